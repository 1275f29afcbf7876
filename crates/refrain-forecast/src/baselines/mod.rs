//! Simple forecasts to compare a model with: last value, seasonal naive, and a linear model.

mod cholesky;
mod linear;
mod naive;
mod observed;

pub use linear::Linear;
pub use naive::{LastValue, SeasonalNaive};

use crate::data::series::{Grid, Part, Scaler, Split};
use crate::tasks::forecasting::Levels;
use crate::tasks::forecasting::metrics::ErrorSums;
use rayon::prelude::*;

/// A forecaster that predicts one channel from its own past.
pub trait Baseline: Sync {
    /// The name to print in tables.
    fn name(&self) -> &'static str;

    /// Predicts the `forecast.len()` values after `context` (oldest first, in the units of `context`).
    fn forecast(&self, context: &[f64], forecast: &mut [f64]);
}

/// The errors of a baseline over every window and channel of a part of a grid that a scaler has standardised. Only observed
/// values count. The sums do not depend on the number of threads.
///
/// # Panics
/// If the part reaches past the grid, or the scaler is one of other channels.
pub fn evaluate(
    baseline: &dyn Baseline,
    grid: &Grid,
    scaler: &Scaler,
    split: &Split,
    part: &Part,
) -> ErrorSums {
    const WINDOWS_A_TASK: usize = 256;
    let (channels, columns) = (grid.channels(), columns(grid, part));
    assert_eq!(scaler.mean.len(), channels, "a scaler of the channels");
    let truth = part.has_filled().then(|| {
        let truth =
            |channel: usize| grid.truth(channel).skip(part.rows.start).take(part.rows.len()).collect();
        (0..channels).map(truth).collect::<Vec<Vec<f64>>>()
    });
    let truth = truth.as_ref().unwrap_or(&columns);
    let starts: Vec<usize> = part.starts().map(|start| start - part.rows.start).collect();
    let of_task = |channel: usize, starts: &[usize]| {
        let unit = Scaler { mean: vec![scaler.mean[channel]], std: vec![scaler.std[channel]] };
        let mut sums = ErrorSums::new(split.horizon, &Levels::NONE, &unit);
        let mut forecast = vec![0.0; split.horizon];
        for &start in starts {
            let origin = start + split.context;
            baseline.forecast(&columns[channel][start..origin], &mut forecast);
            sums.add(0, &forecast, &truth[channel][origin..origin + split.horizon]);
        }
        sums
    };
    let mut total = ErrorSums::new(split.horizon, &Levels::NONE, scaler);
    for channel in 0..channels {
        let tasks = starts.par_chunks(WINDOWS_A_TASK).map(|starts| of_task(channel, starts));
        tasks.collect::<Vec<_>>().iter().for_each(|sums| total.merge(channel, sums));
    }
    total
}

/// The rows of a part by channel, including filled values.
fn columns(grid: &Grid, part: &Part) -> Vec<Vec<f64>> {
    let channels = grid.channels();
    let rows = &grid.values()[part.rows.start * channels..part.rows.end * channels];
    (0..channels).map(|channel| rows.iter().skip(channel).step_by(channels).copied().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::series::{ReadOptions, Series, SplitRule, TimeAxis, TimeStep};

    /// Its errors are those that a simple loop over all windows computes.
    #[test]
    fn evaluation_visits_every_window_of_every_channel_once() {
        let (channels, rows) = (3, 700);
        let values: Vec<f64> = (0..rows * channels).map(|i| ((i * 7919) % 101) as f64 / 10.0).collect();
        let part = Part::all(20..rows, 5 + 2);
        let split = Split {
            context: 5,
            horizon: 2,
            train: part.clone(),
            validation: part.clone(),
            test: part.clone(),
        };
        let grid = Grid::new(values.clone(), channels);
        let unit = Scaler { mean: vec![0.0; 3], std: vec![1.0; 3] };
        let got = evaluate(&LastValue, &grid, &unit, &split, &part).standardised();
        let (mut squared, mut absolute, mut count) = (0.0, 0.0, 0.0);
        for last in 20 + 4..rows - 2 {
            for step in 1..=2 {
                for channel in 0..channels {
                    let error: f64 =
                        values[last * channels + channel] - values[(last + step) * channels + channel];
                    squared += error * error;
                    absolute += error.abs();
                    count += 1.0;
                }
            }
        }
        assert!((got.mse - squared / count).abs() < 1e-9, "{got:?}");
        assert!((got.mae - absolute / count).abs() < 1e-9, "{got:?}");
    }

    #[test]
    fn what_was_filled_is_not_scored() {
        let axis =
            TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
        let missing = |row: usize| row % 9 == 4;
        let value = |row: usize| (row * 7919 % 101) as f64 / 10.0;
        let row = |row: usize| {
            let cell = if missing(row) { String::new() } else { value(row).to_string() };
            format!("{},{cell},{row}\n", axis.format(row))
        };
        let text = format!("time,a,b\n{}", (0..100).map(row).collect::<String>());
        let (series, _) = Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap();
        let split = Split::new(&series, &SplitRule::default(), 5, 3, 1).unwrap();
        let unit = Scaler { mean: vec![0.0; 2], std: vec![1.0; 2] };
        let errors = evaluate(&LastValue, series.grid(), &unit, &split, &split.test);
        let (mut squared, mut count) = (0.0, 0.0);
        for start in split.test.starts() {
            let last = series.values()[2 * (start + 4)];
            for target in (start + 5..start + 8).filter(|&row| !missing(row)) {
                squared += (last - value(target)).powi(2);
                count += 1.0;
            }
        }
        assert!((errors.channel(0, &[1.0; 2]).mse - squared / count).abs() < 1e-9, "{errors:?}");
        assert!((errors.channel(1, &[1.0; 2]).mse - 14.0 / 3.0).abs() < 1e-9, "{errors:?}");
    }
}
