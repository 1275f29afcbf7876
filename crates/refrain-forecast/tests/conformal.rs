//! Intervals that are calibrated by split conformal prediction cover what they promise.

mod common;

use std::sync::Arc;

use common::devices;
use refrain::{DType, Device, Precision};
use refrain_forecast::data::series::{
    Part, ReadOptions, Scaler, Scaling, Series, SeriesSet, Split, SplitRule, TimeAxis, TimeStep,
};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::nlinear::NLinearConfig;
use refrain_forecast::models::{Forecaster, ModelConfig};
use refrain_forecast::tasks::forecasting::conformal::{Calibration, Intervals};
use refrain_forecast::tasks::forecasting::metrics::Units;
use refrain_forecast::tasks::forecasting::{Levels, RecordedForecaster, evaluation};

const CONTEXT: usize = 6;
const HORIZON: usize = 3;
const CHANNELS: usize = 2;

fn levels() -> Levels {
    "80,90".parse().unwrap()
}

/// Independent values with long tails, of one distribution, so all windows are exchangeable but for those that overlap. Every
/// seventh value of the second channel is missing.
fn series(rows: usize) -> Series {
    let axis = TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
    let mut state = 1_u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut noise = move || (uniform() / (1.0 - uniform())).ln();
    let row = |row: usize| {
        let (a, b) = (noise(), 100.0 + 20.0 * noise());
        let b = if row % 7 == 3 { String::new() } else { b.to_string() };
        format!("{},{a},{b}\n", axis.format(row))
    };
    let text = format!("time,a,b\n{}", (0..rows).map(row).collect::<String>());
    Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap().0
}

fn model(values: usize, device: &Device, seed: u64) -> Box<dyn Forecaster> {
    let config = NLinearConfig { channels: CHANNELS, context: CONTEXT, horizon: HORIZON, individual: false };
    ModelConfig::from(config).widened(values).build(DType::F32, device, seed).unwrap()
}

/// The share of the observed values that lie in the interval of each level, over all windows of a part.
fn coverage(forecaster: &RecordedForecaster, scaler: &Scaler, series: &Series, part: &Part) -> Vec<f64> {
    let (mut inside, mut count) = (vec![0.0; forecaster.intervals().levels().len()], 0.0);
    for origin in part.starts().map(|start| start + CONTEXT) {
        let forecast = forecaster.forecast(series, origin, scaler).unwrap();
        for cell in 0..HORIZON * CHANNELS {
            let (row, channel) = (origin + cell / CHANNELS, cell % CHANNELS);
            if series.grid().is_observed(row, channel) {
                let truth = series.values()[row * CHANNELS + channel];
                count += 1.0;
                for (inside, interval) in inside.iter_mut().zip(&forecast.intervals) {
                    *inside +=
                        f64::from(u8::from((interval.low[cell]..=interval.high[cell]).contains(&truth)));
                }
            }
        }
    }
    inside.into_iter().map(|inside| inside / count).collect()
}

#[test]
fn calibrated_intervals_cover_what_their_level_promises_whatever_the_model() {
    let series = series(6000);
    let mut split = Split::new(&series, &SplitRule::default(), CONTEXT, HORIZON, 24).unwrap();
    let rule = SplitRule::Fractions { train: 0.1, validation: 0.6, test: 0.3 };
    split = Split { train: split.train, ..Split::new(&series, &rule, CONTEXT, HORIZON, 24).unwrap() };
    let calibration = split.hold_out_calibration(&series).unwrap();
    let scaler = Scaler::fit(&series, split.train.rows.clone()).unwrap();
    let grid = series.grid().standardised(&scaler);
    for device in devices() {
        let windows = Windows::new(&grid, CONTEXT, HORIZON, &device).unwrap();
        // Nobody has trained them: calibration does not ask how good a model is.
        for values in [1, levels().values()] {
            let model: Arc<dyn Forecaster> = model(values, &device, 1).into();
            let fitted =
                Calibration::fit(&*model, &Intervals::default(), &levels(), &windows, &calibration, None)
                    .unwrap();
            fitted.check(&*model, &levels(), HORIZON).unwrap();
            assert_eq!(fitted.windows, calibration.windows());
            let with = |intervals| {
                RecordedForecaster::new(model.clone(), HORIZON, intervals, Precision::F32, 1).unwrap()
            };
            let calibrated = with(Intervals::calibrated(fitted.clone()));
            let share = coverage(&calibrated, &scaler, &series, &split.test);
            let promised = (0.78..0.82).contains(&share[0]) && (0.88..0.92).contains(&share[1]);
            assert!(promised, "{share:?} with {values} values on {device}");
            if values > 1 {
                let learned = with(Intervals::learned(levels()));
                let share = coverage(&learned, &scaler, &series, &split.test);
                assert!(share[1] < 0.8, "{share:?} without calibration");
            }
            // It is kept as text, and belongs to these weights.
            let text = serde_json::to_string(&fitted).unwrap();
            let kept: Calibration = serde_json::from_str(&text).unwrap();
            assert_eq!(kept, fitted);
            let other = self::model(values, &device, 2);
            let message = kept.check(&*other, &levels(), HORIZON).unwrap_err().to_string();
            assert!(message.contains("belongs to other weights"), "{message}");
            let message = kept.check(&*model, &Levels::NONE, HORIZON).unwrap_err().to_string();
            assert!(message.contains("other levels"), "{message}");
            // On other devices than the first, a few seconds are enough to see that it works.
            if Some(device.name()) != devices().next().map(|first| first.name()) {
                break;
            }
        }
    }
}

#[test]
fn a_half_of_the_validation_part_is_held_out_and_shares_no_forecast_with_the_other() {
    let series = series(300);
    let whole = Split::new(&series, &SplitRule::default(), CONTEXT, HORIZON, 24).unwrap();
    let mut split = whole.clone();
    let calibration = split.hold_out_calibration(&series).unwrap();
    assert_eq!((&split.train, &split.test), (&whole.train, &whole.test));
    // Rows 210 to 240 are the validation part: a window forecasts three rows.
    let targets = |part: &Part| -> Vec<usize> { part.starts().map(|start| start + CONTEXT).collect() };
    assert_eq!(targets(&split.validation), (210..=222).collect::<Vec<_>>());
    assert_eq!(targets(&calibration), (225..=237).collect::<Vec<_>>());
    assert_eq!((split.validation.own, calibration.own), (210..225, 225..240));

    let short = SplitRule::Fractions { train: 0.7, validation: 0.016, test: 0.284 };
    let mut split = Split::new(&series, &short, CONTEXT, HORIZON, 24).unwrap();
    let message = split.hold_out_calibration(&series).unwrap_err().to_string();
    assert!(message.contains("half of the 5 rows of the validation part"), "{message}");
}

#[test]
fn too_few_windows_for_a_level_are_refused() {
    let series = series(300);
    let scaler = Scaler::fit(&series, 0..200).unwrap();
    let grid = series.grid().standardised(&scaler);
    let device = Device::cpu();
    let windows = Windows::new(&grid, CONTEXT, HORIZON, &device).unwrap();
    let part = Part::all(200..200 + CONTEXT + HORIZON + 7, CONTEXT + HORIZON);
    assert_eq!(part.windows(), 8);
    let model = model(1, &device, 1);
    let fit = |levels: &str| {
        Calibration::fit(&*model, &Intervals::default(), &levels.parse().unwrap(), &windows, &part, None)
    };
    fit("80").unwrap();
    let set = SeriesSet::from(series.clone());
    let (_, stack) = set.split(&SplitRule::default(), CONTEXT, HORIZON, 24).unwrap();
    let check = |levels: &Levels| Calibration::check_windows(levels, &set, &stack, (CONTEXT, HORIZON), &part);
    check(&"80".parse().unwrap()).unwrap();
    let message = check(&levels()).unwrap_err().to_string();
    assert!(message.contains("8 windows are too few") && message.contains("which need 9"), "{message}");
    let message = fit("80,90").unwrap_err().to_string();
    assert!(message.contains("90 %") && message.contains("at least 9 are needed"), "{message}");
    let seven = self::model(7, &device, 1);
    let message = Calibration::fit(&*seven, &Intervals::default(), &levels(), &windows, &part, None)
        .unwrap_err()
        .to_string();
    assert!(message.contains("not the quantiles of 3 rows"), "{message}");
}

/// Values whose spread grows fivefold at the row where the test part begins.
fn drifting(rows: usize, from: usize) -> Series {
    let calm = series(rows);
    let axis = TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
    let line = |row: usize| {
        let by = if row < from { 1.0 } else { 5.0 };
        let value = |channel: usize| by * (calm.values()[row * CHANNELS + channel] - 100.0 * channel as f64);
        format!("{},{},{}\n", axis.format(row), value(0), value(1))
    };
    let text = format!("time,a,b\n{}", (0..rows).map(line).collect::<String>());
    Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap().0
}

#[test]
fn adaptive_intervals_cover_what_their_level_promises_when_the_values_change() {
    let rule = SplitRule::Fractions { train: 0.1, validation: 0.4, test: 0.5 };
    for (changes, series) in [(false, drifting(6000, 6000)), (true, drifting(6000, 3000))] {
        let set = SeriesSet::from(series);
        let (mut split, stack) = set.split(&rule, CONTEXT, HORIZON, 0).unwrap();
        let part = set.hold_out_calibration(&mut split, &stack).unwrap();
        let scaler = set.scaler(&stack, Scaling::Standard).unwrap();
        let units = Units::new(&set, &stack, &scaler, 1);
        for device in devices() {
            let windows = Windows::of(&set, &stack, &scaler, (CONTEXT, HORIZON), &device).unwrap();
            for values in [1, levels().values()] {
                let model = model(values, &device, 1);
                let coverage = |rate: f64| {
                    let learned = Intervals::default().adapting(rate).unwrap();
                    let fitted =
                        Calibration::fit(&*model, &learned, &levels(), &windows, &part, None).unwrap();
                    fitted.check(&*model, &levels(), HORIZON).unwrap();
                    let intervals = learned.with_calibration(fitted);
                    let of = evaluation::evaluate(&*model, &intervals, &units, &windows, &split.test, None)
                        .unwrap();
                    of.errors.overall().intervals.iter().map(|of| of.coverage).collect::<Vec<f64>>()
                };
                let (fixed, adaptive) = (coverage(0.0), coverage(0.02));
                let promised = |of: &[f64]| (78.0..82.0).contains(&of[0]) && (88.0..92.0).contains(&of[1]);
                assert_eq!(promised(&fixed), !changes, "{fixed:?} with {values} values on {device}");
                assert!(
                    promised(&adaptive),
                    "{adaptive:?} with {values} values on {device}, changes: {changes}"
                );
            }
        }
    }
    let message = Intervals::default().adapting(-1.0).unwrap_err().to_string();
    assert!(message.contains("step size") && message.contains("-1"), "{message}");
}

/// What comes true after an origin has no influence on the intervals there.
#[test]
fn adaptive_intervals_know_only_what_has_come_true() {
    let device = Device::cpu();
    let set = SeriesSet::from(series(400));
    let rule = SplitRule::Fractions { train: 0.2, validation: 0.5, test: 0.3 };
    let (mut split, stack) = set.split(&rule, CONTEXT, HORIZON, 24).unwrap();
    let part = set.hold_out_calibration(&mut split, &stack).unwrap();
    let scaler = set.scaler(&stack, Scaling::Standard).unwrap();
    let windows = Windows::of(&set, &stack, &scaler, (CONTEXT, HORIZON), &device).unwrap();
    let model = model(1, &device, 1);
    let learned = Intervals::default().adapting(0.05).unwrap();
    let fitted = Calibration::fit(&*model, &learned, &levels(), &windows, &part, None).unwrap();
    let intervals = learned.with_calibration(fitted);
    // Five quantiles of three steps, and true values inside or far outside.
    let quantiles: Vec<f32> = (0..5).flat_map(|quantile| [quantile as f32 - 2.0; HORIZON]).collect();
    let after = |origin: usize, outside: [bool; HORIZON]| {
        let mut adaptive = intervals.adaptive().unwrap();
        adaptive.corrections(0, 1, 100);
        adaptive.observe((0, 1), 100, &quantiles, &outside.map(|outside| if outside { 9.0 } else { 0.0 }));
        adaptive.corrections(0, 1, origin)
    };
    let inside = [false; HORIZON];
    let plain = intervals.adaptive().unwrap().corrections(0, 1, 100);
    assert_eq!(after(100, [true; HORIZON]), plain);
    // At the next row the first step is known.
    assert_eq!(after(101, [false, true, true]), after(101, inside));
    let missed = after(101, [true, false, false]);
    assert!(
        missed[0] > after(101, inside)[0] && missed[1..HORIZON] == plain[1..HORIZON],
        "{missed:?} {plain:?}"
    );
    assert_eq!(after(102, [false, false, true]), after(102, inside));
    assert_ne!(after(103, [false, false, true]), after(103, inside));
    assert_eq!(after(103, [true, true, true]), after(500, [true, true, true]));
}
