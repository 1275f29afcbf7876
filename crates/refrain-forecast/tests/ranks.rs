//! Ranks that train one model together, as threads on the CPU and on simulated GPUs.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use common::pull::Pull;
use common::{cpus, on_ranks, simulated};
use refrain::{Communicator, CommunicatorId, Device, DeviceKind, Profile};
use refrain_forecast::Error;
use refrain_forecast::data::series::{Grid, Part, ReadOptions, Series, Split, SplitRule};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::patchtst::{NormKind, PatchTstConfig};
use refrain_forecast::tasks::forecasting::Forecasting;
use refrain_forecast::training::{
    BatchNormStatistics, EpochEnd, LrSchedule, Pace, SavedRun, Task, Trainer, TrainingConfig,
};
use refrain_nn::Checkpoint;
use serde_json::{Value, json};

const CHANNELS: usize = 2;

/// Longer than an epoch.
const LONG: Duration = Duration::from_secs(100);

/// Groups of 2 and 3 ranks.
fn groups() -> Vec<Vec<Device>> {
    vec![cpus(2), cpus(3), simulated(2, Profile::Discrete, 1), simulated(3, Profile::Unified, 2)]
}

/// The values of two series, and for some rows of the second one none.
fn values() -> Vec<f64> {
    let noise = |i: usize| ((i * 7919 + i * i * 31) % 1009) as f64 / 1009.0 - 0.5;
    (0..150 * CHANNELS).map(|i| (i as f64 * 0.21).sin() + 0.3 * noise(i)).collect()
}

fn split() -> Split {
    let part = |rows: std::ops::Range<usize>| Part::all(rows, 30);
    Split { context: 24, horizon: 6, train: part(0..90), validation: part(70..120), test: part(100..150) }
}

fn model(dropout: f64, norm: NormKind) -> PatchTstConfig {
    PatchTstConfig {
        channels: CHANNELS,
        dropout,
        attention_dropout: dropout,
        head_dropout: dropout,
        norm,
        revin: true,
        ..PatchTstConfig::small(24, 6, 3, 8, 2, 2, 16, 6)
    }
}

/// 61 training windows: batches of 16, and a last one of 13, which neither 2 nor 3 ranks share equally.
fn training(epochs: usize) -> TrainingConfig {
    TrainingConfig {
        epochs,
        batch_size: 16,
        accumulate: 1,
        lr: 3e-3,
        schedule: LrSchedule::OneCycle,
        weight_decay: 0.01,
        decay_all: false,
        clip: 1.0,
        patience: epochs,
        seed: 5,
        batch_norm: BatchNormStatistics::Synchronised,
    }
}

/// A trainer without dropout and batch norm, or with both.
fn trainer(device: &Device, epochs: usize, dropout: f64) -> Trainer<Forecasting> {
    let windows = Windows::new(&Grid::new(values(), CHANNELS), 24, 6, device).unwrap();
    let norm = if dropout > 0.0 { NormKind::Batch } else { NormKind::Layer };
    Trainer::new(model(dropout, norm), training(epochs), windows, &split()).unwrap()
}

/// The mean loss after each step, and the errors of each validation.
fn losses(trainer: Trainer<Forecasting>) -> Vec<f64> {
    losses_and_weights(trainer).0
}

/// The same, and the weights at the end.
fn losses_and_weights(mut trainer: Trainer<Forecasting>) -> (Vec<f64>, Vec<f32>) {
    let mut losses = Vec::new();
    while !trainer.is_done() {
        let end = trainer.epoch(Duration::ZERO, |t| {
            losses.push(t.mean_loss().unwrap());
            ControlFlow::Continue(())
        });
        let EpochEnd::Finished(report) = end.unwrap() else { panic!("nobody stopped it") };
        losses.extend([report.train_loss, report.validation.mse, report.validation.mae]);
    }
    let weights = trainer.task().parameters().values().detach().to_vec().unwrap();
    (losses, weights)
}

/// What is left of a run, to compare bit for bit: losses, and the last and the best weights.
fn outcome(mut trainer: Trainer<Forecasting>) -> (Vec<[u64; 3]>, String, String) {
    while !trainer.is_done() {
        trainer.epoch(LONG, |_| ControlFlow::Continue(())).unwrap();
    }
    let history = trainer.history().iter();
    let history = history.map(|r| [r.train_loss, r.validation.mse, r.learning_rate].map(f64::to_bits));
    let (history, last) = (history.collect(), trainer.model().weights_sha256().unwrap());
    (history, last, trainer.into_best().unwrap().model.weights_sha256().unwrap())
}

/// The largest relative difference.
#[track_caller]
fn distance(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max)
}

/// Sums over the samples are rounded in another order, which 60 steps of AdamW may enlarge. A wrong weight of the last batch
/// changes the third digit.
const REORDERED: f64 = 2e-5;

/// Statistics of ranks are also computed by another formula. Those of a rank alone change the second digit.
const BATCH_STATISTICS: f64 = 2e-4;

#[test]
fn ranks_lose_as_one_process_with_the_same_batch() {
    let expected = losses(trainer(&Device::cpu(), 15, 0.0));
    assert_eq!(expected.len(), 15 * (4 + 3));
    for devices in groups() {
        let all = on_ranks(&devices, |rank| {
            losses(trainer(rank.device(), 15, 0.0).with_communicator(rank).unwrap())
        });
        for got in &all {
            let distance = distance(got, &expected);
            assert!(distance < REORDERED, "{} ranks on {}: {distance:e}", devices.len(), devices[0]);
            assert_eq!(got, &all[0]);
        }
    }
}

/// A trainer with dropout everywhere, and layer norm.
fn with_dropout(device: &Device, epochs: usize, accumulate: usize) -> Trainer<Forecasting> {
    let windows = Windows::new(&Grid::new(values(), CHANNELS), 24, 6, device).unwrap();
    let config = TrainingConfig { accumulate, ..training(epochs) };
    Trainer::new(model(0.3, NormKind::Layer), config, windows, &split()).unwrap()
}

#[test]
fn dropout_does_not_depend_on_the_number_of_ranks() {
    // In the last batch of an epoch, and in micro-batches, some ranks have a sample more than others.
    for accumulate in [1, 2] {
        let (expected, weights) = losses_and_weights(with_dropout(&Device::cpu(), 4, accumulate));
        let without = losses(trainer(&Device::cpu(), 4, 0.0));
        assert!(accumulate > 1 || distance(&without, &expected) > 0.01);
        for devices in [cpus(1), cpus(2), simulated(3, Profile::Discrete, 7), cpus(8)] {
            let all = on_ranks(&devices, |rank| {
                let trainer = with_dropout(rank.device(), 4, accumulate);
                losses_and_weights(trainer.with_communicator(rank).unwrap())
            });
            for (got, got_weights) in &all {
                let context = format!("{} ranks, {accumulate} micro-batches", devices.len());
                let distance = distance(got, &expected);
                assert!(distance < REORDERED, "{context}: {distance:e}");
                // AdamW makes a whole step of the rounding of a gradient that is nearly 0.
                let apart = got_weights.iter().zip(&weights).map(|(a, b)| (a - b).abs()).sum::<f32>();
                let apart = apart / weights.len() as f32;
                assert!(apart < 1e-5, "{context}: weights {apart:e} apart");
                assert_eq!((got, got_weights), (&all[0].0, &all[0].1), "{context}");
            }
        }
    }
}

#[test]
fn samples_of_different_weight_count_as_in_one_process_also_in_micro_batches() {
    let mut text = "time,a,b\n".to_owned();
    for (row, pair) in values().chunks_exact(2).enumerate() {
        let hour = format!("2020-01-{:02} {:02}:00:00", 1 + row / 24, row % 24);
        let b = if (30..60).contains(&row) && row % 7 != 0 { String::new() } else { pair[1].to_string() };
        text += &format!("{hour},{},{b}\n", pair[0]);
    }
    let (series, _) = Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap();
    let split = Split::new(&series, &SplitRule::default(), 24, 6, 20).unwrap();
    assert!(split.train.has_filled());
    let trainer = |device: &Device, accumulate| {
        let windows = Windows::new(series.grid(), 24, 6, device).unwrap();
        let config = TrainingConfig { accumulate, ..training(4) };
        Trainer::new(model(0.0, NormKind::Layer), config, windows, &split).unwrap()
    };
    let expected = losses(trainer(&Device::cpu(), 1));
    let ends = |losses: &[f64], accumulate: usize| -> Vec<f64> {
        let steps = losses.len() / 4 - 3;
        assert_eq!(losses.len() % 4, 0, "in {accumulate} micro-batches");
        losses.chunks(steps + 3).flat_map(|epoch| epoch[steps..].to_vec()).collect()
    };
    for devices in [cpus(2), simulated(3, Profile::Discrete, 3)] {
        // Micro-batches of 16, 8 and 2 samples.
        for accumulate in [1, 2, 8] {
            let all = on_ranks(&devices, |rank| {
                losses(trainer(rank.device(), accumulate).with_communicator(rank).unwrap())
            });
            let distance = distance(&ends(&all[0], accumulate), &ends(&expected, 1));
            assert!(
                distance < REORDERED,
                "{} ranks, {accumulate} micro-batches: {distance:e}",
                devices.len()
            );
            assert!(all.iter().all(|got| *got == all[0]));
        }
    }
}

#[test]
fn ranks_runs_eager_and_recorded_training_give_the_same_bits() {
    for devices in groups() {
        let run = |eager: bool| {
            on_ranks(&devices, |rank| {
                let trainer = trainer(rank.device(), 3, 0.1);
                let trainer = if eager { trainer.eager() } else { trainer };
                outcome(trainer.with_communicator(rank).unwrap())
            })
        };
        let first = run(false);
        assert!(first.iter().all(|of_rank| *of_rank == first[0]), "{first:?}");
        assert_eq!(run(false), first, "two runs");
        assert_eq!(run(true), first, "eager");
    }
}

/// A communicator of one rank.
fn alone(device: &Device) -> Communicator {
    match device.kind() {
        DeviceKind::Cuda => Communicator::new(device, &CommunicatorId::new().unwrap(), 0, 1).unwrap(),
        _ => Communicator::in_process(std::slice::from_ref(device)).unwrap().remove(0),
    }
}

#[test]
fn one_rank_alone_gives_the_bits_of_no_communicator() {
    for device in common::devices() {
        for norm in [NormKind::Layer, NormKind::Batch] {
            for accumulate in [1, 4] {
                let trainer = || {
                    let windows = Windows::new(&Grid::new(values(), CHANNELS), 24, 6, &device).unwrap();
                    let config = TrainingConfig { accumulate, ..training(2) };
                    Trainer::new(model(0.1, norm), config, windows, &split()).unwrap()
                };
                let rank = trainer().with_communicator(alone(&device)).unwrap();
                assert_eq!(outcome(rank), outcome(trainer()), "{device}, {norm:?}, {accumulate}");
            }
        }
    }
}

/// Runs to the end, but one rank stops every three of the 12 steps; then all save, and resume from disk.
fn interrupted(rank: &Communicator, folder: &Path) -> Trainer<Forecasting> {
    let fresh = || trainer(rank.device(), 3, 0.1).with_communicator(rank.clone()).unwrap();
    let mut current = fresh();
    let mut stops = 0;
    while !current.is_done() {
        let end = current.epoch(Duration::ZERO, |t| {
            let stop = rank.rank() == rank.size() - 1 && t.steps() % 3 == 0;
            if stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let end = end.unwrap();
        current.save(folder, &json!(null)).unwrap();
        if end == EpochEnd::Stopped {
            stops += 1;
            current = fresh().resume_from(&SavedRun::open(folder).unwrap()).unwrap();
        }
    }
    assert_eq!(stops, 4);
    current
}

#[test]
fn an_interrupted_job_goes_on_bit_for_bit() {
    for devices in [cpus(2), simulated(3, Profile::Discrete, 4)] {
        let whole = on_ranks(&devices, |rank| {
            outcome(trainer(rank.device(), 3, 0.1).with_communicator(rank).unwrap())
        });
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(on_ranks(&devices, |rank| outcome(interrupted(&rank, folder.path()))), whole);
    }
}

/// Stops an epoch after this step of the run.
fn stops_at(step: u64) -> impl Fn(&Trainer<Forecasting>) -> ControlFlow<()> {
    move |trainer| match trainer.steps() < step {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}

/// The bits of each rank's sum of losses in a checkpoint.
fn sums_of_ranks(folder: &Path) -> Value {
    let saved = Checkpoint::open(folder.join("checkpoint")).unwrap();
    saved.config::<Value>().unwrap()["loss_of_ranks"].clone()
}

#[test]
fn each_rank_goes_on_with_its_own_sum_of_losses() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [early, late] = folders.each_ref().map(|folder| folder.path());
    on_ranks(&cpus(3), |rank| {
        let mut trainer = trainer(rank.device(), 3, 0.1).with_communicator(rank).unwrap();
        trainer.epoch(Duration::ZERO, stops_at(2)).unwrap();
        trainer.save(early, &json!(null)).unwrap();
        trainer.epoch(Duration::ZERO, stops_at(3)).unwrap();
        trainer.save(late, &json!(null)).unwrap();
    });
    let whole = sums_of_ranks(late);
    assert!(whole.as_array().is_some_and(|sums| sums.len() == 3 && sums[0] != sums[1]), "{whole}");
    on_ranks(&cpus(3), |rank| {
        let trainer = trainer(rank.device(), 3, 0.1).with_communicator(rank).unwrap();
        let mut trainer = trainer.resume_from(&SavedRun::open(early).unwrap()).unwrap();
        trainer.epoch(Duration::ZERO, stops_at(3)).unwrap();
        trainer.save(late, &json!(null)).unwrap();
    });
    assert_eq!(sums_of_ranks(late), whole);
}

#[test]
fn a_job_goes_on_within_an_epoch_with_another_number_of_ranks() {
    let trainer = |device: &Device| with_dropout(device, 4, 1);
    let expected = losses(trainer(&Device::cpu()));
    let folder = tempfile::tempdir().unwrap();
    on_ranks(&cpus(2), |rank| {
        let mut trainer = trainer(rank.device()).with_communicator(rank).unwrap();
        let end = trainer.epoch(Duration::ZERO, stops_at(2));
        assert_eq!(end.unwrap(), EpochEnd::Stopped);
        trainer.save(folder.path(), &json!(null)).unwrap();
    });
    let resumed = |trainer: Trainer<Forecasting>| {
        losses(trainer.resume_from(&SavedRun::open(folder.path()).unwrap()).unwrap())
    };
    let three = on_ranks(&cpus(3), |rank| resumed(trainer(rank.device()).with_communicator(rank).unwrap()));
    // The first loss is of all three steps.
    for losses in [&three[0], &three[2], &resumed(trainer(&Device::cpu()))] {
        assert!(distance(losses, &expected[2..]) < REORDERED, "{losses:?} {expected:?}");
    }
}

#[test]
fn a_job_goes_on_with_another_number_of_ranks() {
    let trainer = |device: &Device| with_dropout(device, 4, 1);
    let expected = losses(trainer(&Device::cpu()));
    let folder = tempfile::tempdir().unwrap();
    on_ranks(&cpus(2), |rank| {
        let mut trainer = trainer(rank.device()).with_communicator(rank).unwrap();
        trainer.epoch(LONG, |_| ControlFlow::Continue(())).unwrap();
        trainer.save(folder.path(), &json!(null)).unwrap();
    });
    let rest = on_ranks(&cpus(3), |rank| {
        let trainer = trainer(rank.device()).with_communicator(rank).unwrap();
        losses(trainer.resume_from(&SavedRun::open(folder.path()).unwrap()).unwrap())
    });
    assert!(distance(&rest[0], &expected[expected.len() / 4..]) < REORDERED);
}

#[test]
fn ranks_that_resume_at_different_steps_are_refused() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for (steps, folder) in [2, 3].into_iter().zip(&folders) {
        let mut trainer = trainer(&Device::cpu(), 2, 0.0);
        let end = trainer.epoch(Duration::ZERO, |t| match t.steps() == steps {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        assert_eq!(end.unwrap(), EpochEnd::Stopped);
        trainer.save(folder.path(), &json!(null)).unwrap();
    }
    let errors = on_ranks(&cpus(2), |rank| {
        let saved = SavedRun::open(folders[rank.rank()].path()).unwrap();
        let trainer = trainer(rank.device(), 2, 0.0).with_communicator(rank).unwrap();
        trainer.resume_from(&saved).err().unwrap().to_string()
    });
    assert!(errors.iter().all(|e| e.contains("rank 1 resumes at step 3, rank 0 at step 2")), "{errors:?}");
}

#[test]
fn all_ranks_learn_that_rank_0_could_not_save() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").unwrap();
    let errors = on_ranks(&cpus(2), |rank| {
        let trainer = trainer(rank.device(), 1, 0.0).with_communicator(rank).unwrap();
        trainer.save(&file.join("run"), &json!(null)).unwrap_err().to_string()
    });
    assert!(errors[0].contains("cannot"), "{errors:?}");
    assert!(errors[1].contains("rank 0 could not save the run"), "{errors:?}");
}

#[test]
fn parameters_that_differ_are_named_with_their_ranks() {
    let errors = |save: bool| {
        let folder = tempfile::tempdir().unwrap();
        on_ranks(&cpus(3), |rank| {
            let number = rank.rank();
            let mut trainer = trainer(rank.device(), 2, 0.0).with_communicator(rank).unwrap();
            let end = trainer.epoch(Duration::ZERO, |t| {
                if t.steps() == 4 && number == 2 {
                    let bias = t.task().parameters().get("head.bias").unwrap().detach();
                    bias.narrow(0, 1, 1).unwrap().add_scalar_assign(1e-6).unwrap();
                }
                if save && t.steps() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match save {
                true => trainer.save(folder.path(), &json!(null)).unwrap_err(),
                false => end.unwrap_err(),
            }
        })
    };
    for (save, moment) in [(false, "at the end of epoch 1"), (true, "after 4 steps of epoch 1")] {
        for error in errors(save) {
            let Error::RanksDiffer { when, ranks, parameter } = &error else { panic!("{error}") };
            assert_eq!((when.as_str(), &ranks[..], parameter.as_str()), (moment, &[2][..], "head.bias"));
            let said = "rank 2 has other parameters than rank 0, beginning with `head.bias`; resume";
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}

#[test]
fn ranks_that_would_train_something_else_are_refused_by_name() {
    type Spoil = fn(&mut TrainingConfig, &mut PatchTstConfig, &mut Split, &mut [f64]);
    let cases: [(Spoil, &str); 5] = [
        (|_, _, _, values| values[7] += 1e-6, "rank 1 has other data than rank 0"),
        (|config, _, _, _| config.lr = 1e-4, "rank 1 has other settings than rank 0"),
        (|_, model, _, _| model.d_model = 16, "rank 1 has other parameters than rank 0"),
        (
            |_, _, split, _| split.train = Part::all(0..80, 30),
            "rank 1 has other training samples than rank 0",
        ),
        (|_, _, split, _| split.validation = Part::all(70..110, 30), "rank 1 has other validation samples"),
    ];
    for (spoil, expected) in cases {
        let errors = on_ranks(&cpus(3), |rank| {
            let (mut config, mut model, mut split) = (training(1), model(0.0, NormKind::Layer), split());
            let mut values = values();
            if rank.rank() == 1 {
                spoil(&mut config, &mut model, &mut split, &mut values);
            }
            let windows = Windows::new(&Grid::new(values, CHANNELS), 24, 6, rank.device()).unwrap();
            let trainer = Trainer::new(model, config, windows, &split).unwrap();
            trainer.with_communicator(rank).err().unwrap().to_string()
        });
        assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
    }
}

#[test]
fn a_rank_at_another_pace_is_an_error_and_no_hang() {
    let paces: [(Pace, &str); 2] = [
        (Pace { interval: LONG, stop_every: Some(3) }, "every 100s and every 3 steps, rank 0 trains"),
        (Duration::MAX.into(), "rank 1 trains from step 0 on with a callback every 9223372036"),
    ];
    for (pace, expected) in paces {
        for devices in [cpus(2), simulated(3, Profile::Discrete, 6), cpus(8)] {
            let errors = on_ranks(&devices, |rank| {
                let pace = if rank.rank() == 1 { pace } else { LONG.into() };
                let mut trainer = trainer(rank.device(), 2, 0.0).with_communicator(rank).unwrap();
                trainer.epoch(pace, |_| ControlFlow::Continue(())).unwrap_err().to_string()
            });
            assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?}");
        }
    }
}

#[test]
fn batch_norm_sees_the_samples_of_all_ranks() {
    // 60 windows in batches of 12.
    let split = Split { train: Part::all(0..89, 30), ..split() };
    let trainer = |device: &Device| {
        let windows = Windows::new(&Grid::new(values(), CHANNELS), 24, 6, device).unwrap();
        let config = TrainingConfig { batch_size: 12, ..training(10) };
        Trainer::new(model(0.0, NormKind::Batch), config, windows, &split).unwrap()
    };
    let expected = losses(trainer(&Device::cpu()));
    assert_eq!(expected.len(), 10 * (5 + 3));
    for devices in groups() {
        let all = on_ranks(&devices, |rank| losses(trainer(rank.device()).with_communicator(rank).unwrap()));
        let distance = distance(&all[0], &expected);
        assert!(distance < BATCH_STATISTICS, "{} ranks on {}: {distance:e}", devices.len(), devices[0]);
        assert!(all.iter().all(|got| *got == all[0]));
    }
}

#[test]
fn local_batch_norm_takes_the_samples_of_each_rank_for_themselves() {
    // 60 windows in batches of 12. The part of a rank is a micro-batch of one process.
    let split = Split { train: Part::all(0..89, 30), ..split() };
    let trainer = |device: &Device, accumulate, batch_norm| {
        let windows = Windows::new(&Grid::new(values(), CHANNELS), 24, 6, device).unwrap();
        let config = TrainingConfig { batch_size: 12, accumulate, batch_norm, ..training(4) };
        Trainer::new(model(0.0, NormKind::Batch), config, windows, &split).unwrap()
    };
    // The running statistics differ, so validation does, too.
    let of_training =
        |losses: &[f64]| losses.chunks(8).flat_map(|epoch| epoch[..6].to_vec()).collect::<Vec<_>>();
    let synchronised = losses(trainer(&Device::cpu(), 1, BatchNormStatistics::Synchronised));
    for devices in groups() {
        let expected = losses(trainer(&Device::cpu(), devices.len(), BatchNormStatistics::Local));
        let all = on_ranks(&devices, |rank| {
            let trainer = trainer(rank.device(), 1, BatchNormStatistics::Local);
            losses_and_weights(trainer.with_communicator(rank).unwrap())
        });
        let got = of_training(&all[0].0);
        let apart = distance(&got, &of_training(&expected));
        assert!(apart < BATCH_STATISTICS, "{} ranks on {}: {apart:e}", devices.len(), devices[0]);
        assert!(distance(&got, &of_training(&synchronised)) > 10.0 * BATCH_STATISTICS);
        // All of them validate with the running statistics of rank 0.
        assert!(all.iter().all(|got| *got == all[0]));
    }
}

#[test]
fn all_ranks_begin_with_the_parameters_of_rank_0() {
    let device = Device::cpu();
    let first = trainer(&device, 1, 0.0).model().weights_sha256().unwrap();
    let all = on_ranks(&cpus(2), |rank| {
        let own = trainer(rank.device(), 1, 0.0);
        let bias = own.task().parameters().get("head.bias").unwrap().detach();
        bias.fill(rank.rank() as f64).unwrap();
        let together = own.with_communicator(rank).unwrap();
        let bias = together.task().parameters().get("head.bias").unwrap().detach();
        bias.to_vec::<f32>().unwrap()
    });
    assert!(!first.is_empty() && all.iter().flatten().all(|&bias| bias == 0.0), "{all:?}");
}

impl Pull {
    fn trainer(device: &Device, size: usize, numbers: &[f32], dropout: f64) -> Trainer<Pull> {
        let (batch_size, schedule) = (numbers.len(), LrSchedule::Constant);
        let config = TrainingConfig { batch_size, schedule, clip: 0.0, weight_decay: 0.0, ..training(1) };
        Trainer::of(Pull::new(device, size, numbers, dropout), config).unwrap()
    }

    /// The parameter after one step.
    fn after_a_step(mut trainer: Trainer<Pull>) -> Vec<f32> {
        trainer.epoch(LONG, |_| ControlFlow::Continue(())).unwrap();
        trainer.task().values()
    }
}

#[test]
fn each_bucket_of_the_gradients_is_summed() {
    // Three buckets, of which the last is smaller. The samples of each rank alone give another sign or size.
    const SIZE: usize = (9 << 20) / 4;
    let numbers = [-8.0, 1.0, 2.0, 0.5, -16.0, 24.0];
    let expected = Pull::after_a_step(Pull::trainer(&Device::cpu(), SIZE, &numbers, 0.0));
    for devices in [cpus(2), simulated(3, Profile::Discrete, 5)] {
        let all = on_ranks(&devices, |rank| {
            let trainer = Pull::trainer(rank.device(), SIZE, &numbers, 0.0).with_communicator(rank).unwrap();
            Pull::after_a_step(trainer)
        });
        for got in all {
            let distance = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(distance < 1e-6, "{distance}");
        }
    }
}

#[test]
fn more_ranks_than_samples_train_as_one_process() {
    let numbers = [3.0, -1.0];
    let expected = Pull::after_a_step(Pull::trainer(&Device::cpu(), 4, &numbers, 0.0));
    let all = on_ranks(&cpus(3), |rank| {
        Pull::after_a_step(Pull::trainer(rank.device(), 4, &numbers, 0.0).with_communicator(rank).unwrap())
    });
    assert!(all.iter().all(|got| *got == expected), "{all:?} and {expected:?}");
}

#[test]
fn what_is_dropped_beside_the_batch_is_the_same_on_all_ranks() {
    // AdamW moves an element unless it is dropped.
    const SIZE: usize = 1024;
    let numbers = [1.0; 6];
    let expected = Pull::after_a_step(Pull::trainer(&Device::cpu(), SIZE, &numbers, 0.5));
    let moved = expected.iter().filter(|weight| **weight != 0.5).count();
    assert!((450..575).contains(&moved), "{moved}");
    for devices in groups() {
        let all = on_ranks(&devices, |rank| {
            let trainer = Pull::trainer(rank.device(), SIZE, &numbers, 0.5).with_communicator(rank).unwrap();
            Pull::after_a_step(trainer)
        });
        assert!(all.iter().all(|weights| *weights == expected));
    }
}
