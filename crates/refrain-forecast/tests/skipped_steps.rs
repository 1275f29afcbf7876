//! Steps whose gradients are not finite are skipped in training, and told.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use common::pull::{Nothing, Pull};
use common::{cpus, devices, on_ranks};
use refrain::Device;
use refrain_forecast::Error;
use refrain_forecast::training::{
    BatchNormStatistics, EpochReport, LrSchedule, SavedRun, Task, Trainer, TrainingConfig,
};
use serde_json::json;

fn config(batch_size: usize, accumulate: usize, clip: f64) -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        batch_size,
        accumulate,
        lr: 0.01,
        schedule: LrSchedule::Constant,
        weight_decay: 0.01,
        decay_all: false,
        clip,
        patience: 9,
        seed: 5,
        batch_norm: BatchNormStatistics::Synchronised,
    }
}

fn trainer(device: &Device, numbers: &[f32], config: TrainingConfig) -> Trainer<Pull> {
    // Four weights; the gradient of each is the mean of the batch's numbers.
    Trainer::of(Pull::new(device, 4, numbers, 0.0), config).unwrap()
}

type Report = EpochReport<Nothing>;

/// Trains to the end. Returns the reports and the bits of the weights.
fn finish(mut trainer: Trainer<Pull>) -> (Vec<Report>, Vec<u32>) {
    while !trainer.is_done() {
        trainer.epoch(Duration::from_secs(100), |_| ControlFlow::Continue(())).unwrap();
    }
    (trainer.history().to_vec(), weights(&trainer))
}

fn weights(trainer: &Trainer<Pull>) -> Vec<u32> {
    trainer.task().values().into_iter().map(f32::to_bits).collect()
}

/// The loss and the rate of each epoch, without times.
fn figures(history: &[Report]) -> Vec<[u64; 2]> {
    history.iter().map(|report| [report.train_loss, report.learning_rate].map(f64::to_bits)).collect()
}

#[test]
fn steps_that_are_not_finite_leave_no_trace_but_their_number() {
    for device in devices() {
        for clip in [0.0, 0.5] {
            // The other samples are all alike, so their order says nothing.
            let (good, all) = ([1.5; 5], [1.5, 1.5, f32::INFINITY, 1.5, 1.5, f32::NAN, 1.5]);
            let (expected, expected_weights) = finish(trainer(&device, &good, config(1, 1, clip)));
            assert!(expected.iter().all(|report| report.skipped_steps == 0));
            for eager in [false, true] {
                let trainer = trainer(&device, &all, config(1, 1, clip));
                let (history, weights) = finish(if eager { trainer.eager() } else { trainer });
                let what = format!("clip {clip}, eager: {eager}, on {device}");
                assert_eq!(weights, expected_weights, "{what}");
                assert_eq!(figures(&history), figures(&expected), "{what}");
                assert!(history.iter().all(|report| report.skipped_steps == 2), "{what}: {history:?}");
            }
        }
    }
}

#[test]
fn a_broken_sample_spoils_the_step_that_gathers_it() {
    for device in devices() {
        // Three steps of two passes; one has the broken sample.
        let numbers = [1.5, 1.5, f32::NEG_INFINITY, 1.5, 1.5, 1.5];
        let (history, weights) = finish(trainer(&device, &numbers, config(2, 2, 0.0)));
        let (good, good_weights) = finish(trainer(&device, &[1.5; 4], config(2, 2, 0.0)));
        assert_eq!(weights, good_weights, "{device}");
        assert_eq!(figures(&history), figures(&good), "{device}");
        assert!(history.iter().all(|report| report.skipped_steps == 1), "{history:?} on {device}");
    }
}

#[test]
fn an_interrupted_run_counts_and_goes_on_bit_for_bit() {
    let numbers = [1.0, 2.0, f32::NAN, 3.0, 4.0, f32::INFINITY, 5.0];
    let device = Device::cpu();
    let expected = finish(trainer(&device, &numbers, config(1, 1, 0.5)));
    let folder = tempfile::tempdir().unwrap();
    let mut current = trainer(&device, &numbers, config(1, 1, 0.5));
    while !current.is_done() {
        let one_step = |_: &Trainer<Pull>| ControlFlow::Break(());
        current.epoch(Duration::ZERO, one_step).unwrap();
        current.save(folder.path(), &json!({})).unwrap();
        let saved = SavedRun::open(folder.path()).unwrap();
        current = trainer(&device, &numbers, config(1, 1, 0.5)).resume_from(&saved).unwrap();
    }
    assert_eq!(weights(&current), expected.1);
    assert_eq!(figures(current.history()), figures(&expected.0));
    assert!(current.history().iter().all(|report| report.skipped_steps == 2), "{:?}", current.history());
}

#[test]
fn batch_norm_takes_nothing_from_a_step_that_is_skipped() {
    for device in devices() {
        for eager in [false, true] {
            // Huge numbers have no finite variance in f32.
            let numbers = [1.0, 2.0, 3.0, f32::NAN, 5.0, 3e38, 4.0, 6.0];
            let new = || Trainer::of(Pull::with_norm(&device, 4, &numbers), config(2, 1, 0.0)).unwrap();
            let mut trainer = if eager { new().eager() } else { new() };
            trainer.epoch(Duration::from_secs(100), |_| ControlFlow::Continue(())).unwrap();
            assert!(trainer.history()[0].skipped_steps > 0);
            let folder = tempfile::tempdir().unwrap();
            trainer.save(folder.path(), &json!({})).unwrap();
            let resumed = new().resume_from(&SavedRun::open(folder.path()).unwrap()).unwrap();
            for name in ["norm.running_mean", "norm.running_var"] {
                let statistic: Vec<f32> = resumed.task().parameters().get(name).unwrap().to_vec().unwrap();
                assert!(statistic[0].abs() < 10.0, "{name} is {statistic:?} on {device}, eager: {eager}");
            }
        }
    }
}

#[test]
fn an_epoch_of_broken_steps_alone_is_an_error_and_changes_nothing() {
    let mut trainer = trainer(&Device::cpu(), &[f32::NAN, f32::INFINITY], config(1, 1, 0.0));
    let before = weights(&trainer);
    let error = trainer.epoch(Duration::MAX, |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::Training { .. }), "{error}");
    assert!(
        error.to_string().contains("in epoch 1 no step had finite gradients, so all 2 were skipped"),
        "{error}"
    );
    assert_eq!(weights(&trainer), before);
}

#[test]
fn all_ranks_skip_the_step_that_one_of_them_breaks() {
    let numbers = [1.5, 1.5, 1.5, 1.5, f32::INFINITY, 1.5];
    let all = on_ranks(&cpus(2), |rank| {
        let trainer = trainer(rank.device(), &numbers, config(2, 1, 0.5));
        let (history, weights) = finish(trainer.with_communicator(rank).unwrap());
        (figures(&history), weights, history.iter().map(|report| report.skipped_steps).collect::<Vec<_>>())
    });
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0].2, [1, 1]);
    let (_, expected) = finish(trainer(&Device::cpu(), &[1.5; 4], config(2, 1, 0.5)));
    assert_eq!(all[0].1, expected);
}
