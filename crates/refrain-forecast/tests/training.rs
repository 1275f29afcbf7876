//! Training from end to end: it learns, it can be repeated, and it can be interrupted anywhere.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use common::device;
use refrain_forecast::bench::{FieldBench, FieldOptions};
use refrain_forecast::model::{FfnActivation, NormKind, NormPosition, PatchTst, PatchTstConfig, Positions};
use refrain_forecast::series::{Part, Split};
use refrain_forecast::training::{EpochEnd, LrSchedule, Trainer, TrainingConfig};
use refrain_forecast::windows::Windows;
use serde_json::json;

const CHANNELS: usize = 2;
const ROWS: usize = 150;
/// Longer than an epoch.
const LONG: Duration = Duration::from_secs(100);

/// Two waves of different lengths with some noise, about standardised.
fn values() -> Vec<f64> {
    let noise = |i: usize| ((i * 7919 + i * i * 31) % 1009) as f64 / 1009.0 - 0.5;
    let value = |row: usize, channel: usize| {
        1.4 * (row as f64 * std::f64::consts::TAU / (12.0 + 5.0 * channel as f64)).sin()
            + 0.2 * noise(2 * row + channel)
    };
    (0..ROWS * CHANNELS).map(|i| value(i / CHANNELS, i % CHANNELS)).collect()
}

fn split() -> Split {
    let (context, horizon) = (24, 6);
    let part = |rows: std::ops::Range<usize>| Part { windows: rows.len() - context - horizon + 1, rows };
    Split { context, horizon, train: part(0..90), validation: part(70..120), test: part(100..150) }
}

/// Every random thing that there is: dropout in all places, batch norm with running statistics.
fn model() -> PatchTstConfig {
    PatchTstConfig {
        channels: CHANNELS,
        context: 24,
        horizon: 6,
        patch: 6,
        stride: 3,
        end_padding: true,
        d_model: 8,
        heads: 2,
        layers: 2,
        ffn: 16,
        dropout: 0.1,
        attention_dropout: 0.1,
        head_dropout: 0.1,
        norm: NormKind::Batch,
        norm_position: NormPosition::Post,
        activation: FfnActivation::Gelu,
        positions: Positions::Learned,
        residual_attention: true,
        revin: true,
        individual_head: false,
    }
}

/// 61 training windows: the last of four batches is smaller.
fn training() -> TrainingConfig {
    TrainingConfig {
        epochs: 3,
        batch_size: 16,
        accumulate: 1,
        lr: 3e-3,
        schedule: LrSchedule::OneCycle,
        weight_decay: 0.01,
        clip: 1.0,
        patience: 3,
        seed: 5,
    }
}

fn trainer() -> Trainer {
    Trainer::new(model(), training(), windows(), &split()).unwrap()
}

fn windows() -> Windows {
    Windows::new(&values(), CHANNELS, 24, 6, &device()).unwrap()
}

fn finish(trainer: &mut Trainer) {
    while !trainer.is_done() {
        let end = trainer.epoch(LONG, |_| ControlFlow::Continue(())).unwrap();
        assert!(matches!(end, EpochEnd::Finished(_)));
    }
}

/// All that a run comes to, but for times.
fn outcome(mut trainer: Trainer) -> (Vec<[u64; 3]>, String, String) {
    finish(&mut trainer);
    let bits = |report: &refrain_forecast::training::EpochReport| {
        [report.train_loss, report.validation.mse, report.learning_rate].map(f64::to_bits)
    };
    let history = trainer.history().iter().map(bits).collect();
    let last = trainer.model().weights_sha256().unwrap();
    (history, last, trainer.into_best().unwrap().model.weights_sha256().unwrap())
}

#[test]
fn the_same_settings_give_the_same_bits_and_another_seed_gives_others() {
    let (first, second) = (outcome(trainer()), outcome(trainer()));
    assert_eq!(first, second);
    let config = TrainingConfig { seed: 6, ..training() };
    assert_ne!(first, outcome(Trainer::new(model(), config, windows(), &split()).unwrap()));
}

/// Runs to the end, stopping after every so many steps, each time saved and resumed from disk.
fn interrupted(every: u64, folder: &Path) -> Trainer {
    let mut current = trainer();
    while !current.is_done() {
        let end = current
            .epoch(Duration::ZERO, |t| {
                if t.steps().is_multiple_of(every) {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            })
            .unwrap();
        current.save(folder, &json!({ "every": every })).unwrap();
        if end == EpochEnd::Stopped {
            current = Trainer::resume(folder, model(), training(), windows(), &split()).unwrap();
        }
    }
    current
}

#[test]
fn an_interrupted_run_goes_on_bit_for_bit() {
    let whole = outcome(trainer());
    // After every step; in the middle of epochs; after the last step of an epoch, before its validation.
    for every in [1, 3, 4] {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(outcome(interrupted(every, folder.path())), whole, "every {every}");
        let run: serde_json::Value = refrain_forecast::training::saved_run(folder.path()).unwrap();
        assert_eq!(run, json!({ "every": every }));
    }
}

#[test]
fn the_caller_hears_of_steps_as_often_as_it_wants() {
    for eager in [false, true] {
        let heard = |interval| {
            let trainer = trainer();
            let mut trainer = if eager { trainer.eager() } else { trainer };
            let mut heard = Vec::new();
            let on_steps = |t: &Trainer| {
                heard.push(t.steps_in_epoch());
                assert!(t.mean_loss().unwrap().is_finite());
                ControlFlow::Continue(())
            };
            trainer.epoch(interval, on_steps).unwrap();
            heard
        };
        assert_eq!(heard(Duration::ZERO), [1, 2, 3, 4]);
        assert_eq!(heard(LONG), [1, 3, 4]);
    }
}

#[test]
fn the_folder_holds_the_best_weights() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = interrupted(5, folder.path());
    let checkpoint = refrain_nn::Checkpoint::open(folder.path()).unwrap();
    let loaded = PatchTst::load(&checkpoint, model(), refrain::DType::F32, &device()).unwrap();
    assert_eq!(
        loaded.weights_sha256().unwrap(),
        trainer.into_best().unwrap().model.weights_sha256().unwrap()
    );
}

#[test]
fn a_checkpoint_of_another_shape_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    trainer().save(folder.path(), &json!(null)).unwrap();
    let wider = PatchTstConfig { d_model: 16, ..model() };
    let error =
        Trainer::resume(folder.path(), wider, training(), windows(), &split()).err().unwrap().to_string();
    assert!(error.contains("checkpoint") && error.contains("embed.weight"), "{error}");
}

#[test]
fn training_stops_when_patience_is_at_its_end() {
    // At this rate nothing is learned after the first steps.
    let config =
        TrainingConfig { epochs: 50, lr: 1e-12, patience: 2, schedule: LrSchedule::Constant, ..training() };
    let still = PatchTstConfig { norm: NormKind::Layer, ..model() };
    let mut trainer = Trainer::new(still, config, windows(), &split()).unwrap();
    finish(&mut trainer);
    let best = trainer.history().iter().rposition(|report| report.best).unwrap();
    assert_eq!(trainer.history().len(), best + 1 + 2);
    assert!(trainer.history().len() < 50);
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_with_advice() {
    let config = TrainingConfig { lr: 1e30, clip: 0.0, schedule: LrSchedule::Constant, ..training() };
    let mut trainer = Trainer::new(model(), config, windows(), &split()).unwrap();
    let error = loop {
        match trainer.epoch(LONG, |_| ControlFlow::Continue(())) {
            Ok(_) => assert!(!trainer.is_done()),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("loss is") && error.contains("lower the learning rate"), "{error}");
}

#[test]
fn models_trained_side_by_side_on_one_device_lose_as_alone() {
    let losses = |seed| {
        let options = FieldOptions { samples: 48, channels: 3, batch_size: 16, lr: 1e-3, seed };
        let mut bench = FieldBench::new(options, &device()).unwrap();
        (0..3).map(|_| bench.epoch().unwrap().loss.to_bits()).collect::<Vec<_>>()
    };
    let alone = [losses(1), losses(2)];
    let together = std::thread::scope(|s| {
        let threads = [1, 2].map(|seed| s.spawn(move || losses(seed)));
        threads.map(|t| t.join().unwrap())
    });
    assert_eq!(together, alone);
}

#[test]
fn replayed_training_is_bit_for_bit_eager_training() {
    // The last batch of an epoch is smaller, and there is dropout.
    let trainer = || Trainer::new(model(), training(), windows(), &split()).unwrap();
    assert_eq!(outcome(trainer()), outcome(trainer().eager()));
    let options = FieldOptions { samples: 15, channels: 3, batch_size: 4, lr: 1e-3, seed: 1 };
    let bench = || FieldBench::new(options.clone(), &device()).unwrap();
    let losses = |mut bench: FieldBench| [0; 3].map(|_| bench.epoch().unwrap().loss.to_bits());
    assert_eq!(losses(bench()), losses(bench().eager()));
}

#[test]
fn gradients_that_gather_over_micro_batches_are_those_of_the_batch() {
    // No dropout, whose masks depend on how a step is cut, and no batch norm, which looks at a whole micro-batch.
    let plain = PatchTstConfig {
        norm: NormKind::Layer,
        dropout: 0.0,
        attention_dropout: 0.0,
        head_dropout: 0.0,
        residual_attention: false,
        ..model()
    };
    let losses = |accumulate| {
        let config = TrainingConfig { accumulate, ..training() };
        let mut trainer = Trainer::new(plain.clone(), config, windows(), &split()).unwrap();
        finish(&mut trainer);
        trainer.history().iter().flat_map(|r| [r.train_loss, r.validation.mse]).collect::<Vec<_>>()
    };
    let whole = losses(1);
    for accumulate in [4, 16] {
        let parts = losses(accumulate);
        assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-5), "{whole:?} and {parts:?}");
    }
}
