//! Forecasts by a recorded forward pass beside the eager model.

mod common;

use common::devices;
use refrain::{DType, Device, DeviceKind, Precision, Tensor, no_grad, with_precision};
use refrain_forecast::data::series::{ReadOptions, Scaler, Series};
use refrain_forecast::models::patchtst::PatchTstConfig;
use refrain_forecast::models::{Forecaster, Mode, ModelConfig};
use refrain_forecast::tasks::forecasting::conformal::Intervals;
use refrain_forecast::tasks::forecasting::{Forecast, RecordedForecaster};

const CONTEXT: usize = 12;
const HORIZON: usize = 3;

fn value(row: usize, channel: usize) -> f64 {
    let noise = ((row * 7919 + channel * 104_729 + row * row * 31) % 1009) as f64 / 1009.0 - 0.5;
    10.0 * (1 + channel) as f64 + (row as f64 * 0.5).sin() + noise
}

fn series(rows: usize, channels: usize) -> Series {
    let row = |row: usize| {
        let cells = (0..channels).map(|channel| format!(",{}", value(row, channel)));
        format!("2024-01-{:02} {:02}:00{}\n", 1 + row / 24, row % 24, cells.collect::<String>())
    };
    let names = (0..channels).map(|channel| format!(",c{channel}")).collect::<String>();
    let text = format!("time{names}\n{}", (0..rows).map(row).collect::<String>());
    Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap().0
}

fn model(channels: usize, device: &Device) -> Box<dyn Forecaster> {
    let config = PatchTstConfig { channels, ..PatchTstConfig::small(CONTEXT, 4, 4, 8, 2, 1, 16, HORIZON) };
    ModelConfig::from(config).build(DType::F32, device, 3).unwrap()
}

fn forecaster(channels: usize, precision: Precision, at_once: usize, device: &Device) -> RecordedForecaster {
    RecordedForecaster::new(model(channels, device), HORIZON, Intervals::default(), precision, at_once)
        .unwrap()
}

/// What the model makes of the rows before `origin`, without a recording: `[horizon, channels]` in original units.
fn eager(
    model: &dyn Forecaster,
    series: &Series,
    origin: usize,
    scaler: &Scaler,
    precision: Precision,
) -> Vec<f64> {
    let (channels, device) = (series.channels(), model.parameters().values().device());
    let first = origin.saturating_sub(CONTEXT);
    let cell = |row: usize, channel: usize| {
        (series.values()[row * channels + channel] - scaler.mean[channel]) / scaler.std[channel]
    };
    let of_channel = |channel: usize| {
        let known = (first..origin).map(move |row| cell(row, channel));
        let mean = known.clone().sum::<f64>() / (origin - first) as f64;
        std::iter::repeat_n(mean, CONTEXT - (origin - first)).chain(known).map(|value| value as f32)
    };
    let context: Vec<f32> = (0..channels).flat_map(of_channel).collect();
    let x = Tensor::from_slice(&context, [1, channels, CONTEXT], device).unwrap();
    let y = with_precision(precision, || no_grad(|| model.forward(&x, Mode::Eval))).unwrap();
    let y = y.contiguous().unwrap().to_vec::<f32>().unwrap();
    let cells = (0..HORIZON).flat_map(|row| (0..channels).map(move |channel| (row, channel)));
    cells
        .map(|(row, channel)| {
            f64::from(y[channel * HORIZON + row]) * scaler.std[channel] + scaler.mean[channel]
        })
        .collect()
}

#[test]
fn a_recorded_forecast_has_the_bits_of_the_eager_model() {
    let series = series(60, 2);
    let scaler = Scaler::fit(&series, 0..40).unwrap();
    for device in devices() {
        for precision in [Precision::F32, Precision::Bf16] {
            let forecaster = forecaster(2, precision, 2, &device);
            let forecast = |origin| forecaster.forecast(&series, origin, &scaler).unwrap().values;
            let expected: Vec<Vec<f64>> = (CONTEXT..60)
                .map(|origin| eager(forecaster.model(), &series, origin, &scaler, precision))
                .collect();
            assert_ne!(expected[0], expected[1]);
            // The first forecasts record; threads that come at the same time use recordings of their own.
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for (origin, expected) in (CONTEXT..60).zip(&expected) {
                            assert_eq!(
                                forecast(origin),
                                *expected,
                                "{precision:?} from {origin} on, {device}"
                            );
                        }
                    });
                }
            });
        }
    }
}

#[test]
fn each_of_many_series_is_forecast_as_if_it_were_alone() {
    let series = series(60, 1);
    let scaler = Scaler::fit(&series, 0..40).unwrap();
    // More than a batch, and contexts that reach beyond the first row.
    let origins: Vec<(&Series, usize)> = (0..1100).map(|n| (&series, 1 + n % 60)).collect();
    let mean = (0..1100).map(|n| scaler.mean[0] + f64::from(n) / 100.0).collect();
    let all = Scaler { mean, std: (0..1100).map(|n| scaler.std[0] * (1.0 + f64::from(n) / 500.0)).collect() };
    for device in devices() {
        let forecaster = forecaster(1, Precision::F32, 1, &device);
        let Forecast { values, .. } = forecaster.forecast_independent(&origins, &all, None).unwrap();
        for (n, &(series, origin)) in origins.iter().enumerate() {
            if (60..1090).contains(&n) {
                continue;
            }
            let alone = eager(forecaster.model(), series, origin, &all.of(n..n + 1), Precision::F32);
            let found: Vec<f64> = (0..HORIZON).map(|row| values[row * 1100 + n]).collect();
            // A GPU chooses the kernel of a product by its number of rows, so a batch rounds otherwise than one window.
            let apart = if device.kind() == DeviceKind::Cuda { 1e-6 } else { 0.0 };
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= apart * b.abs();
            assert!(
                found.iter().zip(&alone).all(near),
                "series {n} from {origin} on, {device}: {found:?} for {alone:?}"
            );
        }
        assert!(forecaster.forecast_independent(&[], &Scaler::unit(0), None).unwrap().values.is_empty());
    }
}

#[test]
fn series_that_the_model_cannot_forecast_are_refused() {
    let device = Device::cpu();
    let (two, three) = (series(60, 2), series(60, 3));
    let forecaster = forecaster(2, Precision::F32, 1, &device);
    let refused = |result: refrain_forecast::Result<Forecast>, words: &[&str]| {
        let message = result.unwrap_err().to_string();
        words.iter().for_each(|word| assert!(message.contains(word), "no {word:?} in {message}"));
    };
    refused(forecaster.forecast(&three, 20, &Scaler::unit(3)), &["3 channels", "the model has 2"]);
    refused(forecaster.forecast(&two, CONTEXT - 1, &Scaler::unit(2)), &["a.csv", "11"]);
    refused(forecaster.forecast(&two, 61, &Scaler::unit(2)), &["a.csv"]);
    refused(
        forecaster.forecast_independent(&[(&two, 20)], &Scaler::unit(1), None),
        &["1 channel", "the model has 2"],
    );
    let one = self::forecaster(1, Precision::F32, 1, &device);
    let message = one.with_intervals(Intervals::learned("80".parse().unwrap())).unwrap_err().to_string();
    assert!(message.contains("quantiles"), "{message}");
    refused(one.forecast_independent(&[(&series(60, 1), 0)], &Scaler::unit(1), None), &["a.csv"]);
}
