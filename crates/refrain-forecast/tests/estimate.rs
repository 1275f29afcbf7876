//! The memory estimate of a training run equals its real use. The program has only this test, since it counts the
//! bytes of a device that other tests would share.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use common::devices;
use refrain::{Device, Precision, with_precision};
use refrain_forecast::data::panel::{Change, FoldRule, LabelRule, Panel};
use refrain_forecast::data::series::{Grid, MaxGap, Part, Split};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::cross_asset::CrossAssetConfig;
use refrain_forecast::models::dlinear::DLinearConfig;
use refrain_forecast::models::nlinear::NLinearConfig;
use refrain_forecast::models::patchtst::{FfnActivation, NormKind, NormPosition, PatchTstConfig};
use refrain_forecast::tasks::classification::{ClassWeights, Classification};
use refrain_forecast::tasks::forecasting::Forecasting;
use refrain_forecast::tasks::forecasting::loss::Loss;
use refrain_forecast::training::{BatchNormStatistics, Estimate, LrSchedule, Task, Trainer, TrainingConfig};

const BATCH: usize = 16;

fn training() -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        batch_size: BATCH,
        accumulate: 1,
        lr: 1e-3,
        schedule: LrSchedule::Constant,
        weight_decay: 0.0,
        decay_all: false,
        clip: 1.0,
        patience: 1,
        seed: 1,
        batch_norm: BatchNormStatistics::Synchronised,
    }
}

/// The peak of the bytes used during some steps, without the bytes used before; and the estimate.
fn measured<T: Task>(
    device: &Device,
    precision: Precision,
    task: impl Fn() -> T,
    estimate: &Estimate,
) -> [f64; 2] {
    device.reset_peak();
    let before = device.stats().live_bytes;
    with_precision(precision, || {
        let mut trainer = Trainer::of(task(), training()).unwrap();
        let some =
            |t: &Trainer<T>| if t.steps() < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        trainer.epoch(Duration::ZERO, some).unwrap();
    });
    [(device.stats().peak_bytes - before) as f64, estimate.device_bytes()]
}

#[track_caller]
fn close(name: &str, device: &Device, [took, told]: [f64; 2]) {
    assert!((0.75..1.25).contains(&(told / took)), "{name} on {device}: told {told}, took {took}");
}

#[test]
fn a_training_takes_about_what_it_is_told_to_take() {
    let base = PatchTstConfig {
        channels: 8,
        end_padding: true,
        dropout: 0.2,
        norm: NormKind::Batch,
        norm_position: NormPosition::Post,
        activation: FfnActivation::Gelu,
        revin: true,
        ..PatchTstConfig::small(96, 12, 12, 32, 4, 2, 64, 24)
    };
    let cases: [(&str, fn(&mut PatchTstConfig)); 7] = [
        ("base", |_| {}),
        ("layers", |c| c.layers = 4),
        ("width", |c| c.d_model = 96),
        ("ffn", |c| c.ffn = 256),
        ("patches", |c| (c.patch, c.stride) = (3, 3)),
        ("attention dropout", |c| (c.patch, c.stride, c.attention_dropout) = (3, 3, 0.1)),
        ("residual attention", |c| (c.patch, c.stride, c.residual_attention) = (3, 3, true)),
    ];
    let (rows, length) = (200, 96 + 24);
    let values: Vec<f64> =
        (0..rows * base.channels).map(|i| ((i * 7919) % 101) as f64 / 50.0 - 1.0).collect();
    let part = || Part::all(0..rows, length);
    let split = Split { context: 96, horizon: 24, train: part(), validation: part(), test: part() };
    let grid = Grid::new(values, base.channels);
    let rule = LabelRule { horizon: 6, threshold: 2.0, change: Change::Difference };
    let (panel, _) = Panel::nyc_weather(&rule, MaxGap::default()).unwrap();
    let fold = FoldRule { folds: 1, embargo: 6, ..FoldRule::default() }.cut(&panel).unwrap().remove(0);
    let (sources, features) = (panel.sources().len(), panel.features().len());
    let small = CrossAssetConfig { sources, features, d_model: 64, ffn: 256, ..CrossAssetConfig::default() };
    for device in devices() {
        for precision in [Precision::F32, Precision::Bf16] {
            for (name, change) in cases {
                let mut model = base.clone();
                change(&mut model);
                let estimate = Forecasting::estimate(&model, &training(), rows, &split, precision).unwrap();
                let task = || {
                    let windows = Windows::new(&grid, 96, 24, &device).unwrap();
                    Forecasting::new(model.clone(), Loss::default(), windows, &split, 1).unwrap()
                };
                close(name, &device, measured(&device, precision, task, &estimate));
            }
        }
        for individual in [false, true] {
            let model = NLinearConfig { channels: 8, context: 96, horizon: 24, individual };
            let estimate = Forecasting::estimate(&model, &training(), rows, &split, Precision::F32).unwrap();
            let task = || {
                let windows = Windows::new(&grid, 96, 24, &device).unwrap();
                Forecasting::new(model.clone(), Loss::default(), windows, &split, 1).unwrap()
            };
            close("NLinear", &device, measured(&device, Precision::F32, task, &estimate));
        }
        for individual in [false, true] {
            let model =
                DLinearConfig { channels: 8, context: 96, horizon: 24, moving_average: 25, individual };
            let estimate = Forecasting::estimate(&model, &training(), rows, &split, Precision::F32).unwrap();
            let task = || {
                let windows = Windows::new(&grid, 96, 24, &device).unwrap();
                Forecasting::new(model.clone(), Loss::default(), windows, &split, 1).unwrap()
            };
            close("DLinear", &device, measured(&device, Precision::F32, task, &estimate));
        }
        let estimate = Classification::estimate(&small, &training(), &panel, &fold, Precision::F32).unwrap();
        let task =
            || Classification::new(small.clone(), &panel, &fold, ClassWeights::None, &device, 1).unwrap();
        close("cross-asset", &device, measured(&device, Precision::F32, task, &estimate));
    }
}
