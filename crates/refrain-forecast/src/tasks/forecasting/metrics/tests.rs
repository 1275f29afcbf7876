use super::*;

fn units(naive: [f64; 2]) -> Units {
    Units { scaler: Scaler { mean: vec![5.0, 6.0], std: vec![10.0, 2.0] }, naive: naive.to_vec() }
}

fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() < 1e-12 * expected.abs().max(1.0), "{got} for {expected}");
}

#[test]
fn what_is_not_known_does_not_count_and_a_forecast_of_nan_does() {
    let one = Units { scaler: Scaler::unit(1), naive: vec![1.0] };
    let mut sums = ErrorSums::new(3, &Levels::NONE, &one);
    sums.add(0, &[1.0_f32, 2.0, 5.0], &[0.0, f32::NAN, 2.0]);
    assert_eq!(sums.standardised(), Errors { mse: (1.0 + 9.0) / 2.0, mae: (1.0 + 3.0) / 2.0 });
    assert_eq!(sums.steps().iter().map(|step| step.count).collect::<Vec<_>>(), [1, 0, 1]);
    assert!(sums.steps()[1].mse.is_nan());
    sums.add(0, &[f32::NAN; 3], &[1.0; 3]);
    assert!(sums.standardised().mse.is_nan());
}

#[test]
fn errors_are_those_of_their_channel_and_step_in_their_units() {
    let mut sums = ErrorSums::new(2, &Levels::NONE, &units([0.5, 4.0]));
    sums.add(0, &[1.0_f32, 2.0], &[0.0, 0.0]);
    let mut more = ErrorSums::new(2, &Levels::NONE, &units([0.5, 4.0]).of(1));
    more.add(0, &[3.0_f64, 0.0], &[0.0, 1.0]);
    sums.merge(1, &more);
    assert_eq!(sums.standardised(), Errors { mse: (1.0 + 4.0 + 9.0 + 1.0) / 4.0, mae: 7.0 / 4.0 });
    let all = sums.overall();
    assert_eq!((all.count, all.mse, all.mae, all.rmse), (4, 3.75, 1.75, 3.75_f64.sqrt()));
    close(all.mase, (3.0 / 0.5 + 4.0 / 4.0) / 4.0);
    // In original units, 15 is forecast for 5, 25 for 5, 12 for 6, and 6 for 8.
    close(all.smape, 200.0 * (10.0 / 20.0 + 20.0 / 30.0 + 6.0 / 18.0 + 2.0 / 14.0) / 4.0);
    assert_eq!((all.crps, all.intervals), (None, vec![]));
    let second = sums.channel(1);
    assert_eq!((second.count, second.mse, second.mae), (2, 5.0, 2.0));
    close(second.mase, 2.0 / 4.0);
    let original = sums.channel_original(1);
    assert_eq!((original.mse, original.mae, original.rmse), (20.0, 4.0, 20.0_f64.sqrt()));
    assert_eq!((original.mase, original.smape), (second.mase, second.smape));
    let steps = sums.steps();
    assert_eq!(steps.iter().map(|step| (step.count, step.mse)).collect::<Vec<_>>(), [(2, 5.0), (2, 2.5)]);
}

#[test]
fn intervals_have_coverage_width_and_a_score() {
    let levels: Levels = "50,80".parse().unwrap();
    let mut sums = ErrorSums::new(1, &levels, &units([1.0; 2]));
    // The quantiles 0.1, 0.25, 0.5, 0.75 and 0.9, and a true value in both intervals, in one, at a bound, in none.
    let quantiles = [-2.0, -1.0, 0.0, 1.0, 3.0];
    let truths = [0.5, 2.0, 3.0, -5.0];
    truths.iter().for_each(|truth| sums.add(1, &quantiles, &[*truth]));
    let metrics = sums.channel_original(1);
    let expected = [(50.0, 25.0, 4.0), (80.0, 75.0, 10.0)];
    let got: Vec<_> = metrics.intervals.iter().map(|i| (i.level, i.coverage, i.width)).collect();
    assert_eq!(got, expected);
    let probabilities = [0.1, 0.25, 0.5, 0.75, 0.9];
    let pinball = |truth: f64| {
        let of = |(x, q): (f64, f64)| if truth > x { q * (truth - x) } else { (1.0 - q) * (x - truth) };
        quantiles.into_iter().zip(probabilities).map(of).sum::<f64>() / 5.0
    };
    // Twice the mean, and 2 units a deviation.
    close(metrics.crps.unwrap(), 2.0 * 2.0 * truths.map(pinball).iter().sum::<f64>() / 4.0);
    // The other channel has no forecast, so nothing of it is in the whole.
    assert_eq!(sums.overall().intervals[0].coverage, 25.0);
}

#[test]
fn the_naive_error_is_that_of_the_season_over_observed_pairs() {
    let values = vec![0.0, 9.0, 1.0, 9.0, 3.0, 9.0, 7.0, 9.0, 5.0, 9.0];
    let filled: Vec<bool> = (0..10).map(|cell| cell == 4).collect();
    let grid = Grid::with_filled(values, 2, filled);
    // Of the first channel 0, 1, -, 7, 5.
    assert_eq!(naive_errors(&grid, 0..5, 1)[0], (1.0 + 2.0) / 2.0);
    assert_eq!(naive_errors(&grid, 0..5, 2), [6.0, 0.0]);
    assert_eq!(naive_errors(&grid, 1..5, 2)[0], 6.0);
    assert!(naive_errors(&grid, 0..2, 2)[0].is_nan());
    // Relative to nothing is not defined.
    let mut sums = ErrorSums::new(1, &Levels::NONE, &units([6.0, 0.0]));
    sums.add(1, &[1.0], &[0.0]);
    assert!(sums.channel(1).mase.is_nan() && sums.overall().mase.is_nan());
    // Such a channel does not count, nor does one without a naive error; the others do.
    sums.add(0, &[3.0], &[0.0]);
    assert_eq!((sums.overall().mase, sums.overall().count), (0.5, 2));
    let mut sums = ErrorSums::new(1, &Levels::NONE, &units([f64::NAN, 2.0]));
    (0..2).for_each(|channel| sums.add(channel, &[3.0], &[0.0]));
    assert_eq!(sums.steps()[0].mase, 1.5);
}
