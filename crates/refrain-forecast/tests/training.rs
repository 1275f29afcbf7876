//! Training from end to end: it learns, it can be repeated, and it can be interrupted at any step.

#[allow(dead_code, unused_imports)] // Each program uses a part of it.
#[path = "../../refrain-cli/src/bench/mod.rs"]
mod bench;
mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use bench::{WalkBench, WalkOptions};
use common::{device, sanitized, shortened, turn};
use refrain::{Precision, Tensor, no_grad, with_precision};
use refrain_forecast::data::series::{
    Grid, Part, ReadOptions, Scaler, Series, Split, SplitRule, TimeAxis, TimeStep,
};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::ModelConfig;
use refrain_forecast::models::patchtst::{FfnActivation, Mode, NormKind, NormPosition, PatchTstConfig};
use refrain_forecast::tasks::forecasting::conformal::Intervals;
use refrain_forecast::tasks::forecasting::{ForecastErrors, Forecasting, evaluation};
use refrain_forecast::training::{
    BatchNormStatistics, EpochEnd, LrSchedule, Pace, SavedRun, Task, Trainer, TrainingConfig,
};
use serde_json::json;

const CHANNELS: usize = 2;
const ROWS: usize = 150;
/// Longer than an epoch.
const LONG: Duration = Duration::from_secs(100);

/// Two waves of different periods with some noise, roughly standardised.
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
    let part = |rows: std::ops::Range<usize>| Part::all(rows, context + horizon);
    Split { context, horizon, train: part(0..90), validation: part(70..120), test: part(100..150) }
}

/// All sources of randomness: dropout in all places, batch norm with running statistics.
fn model() -> PatchTstConfig {
    PatchTstConfig {
        channels: CHANNELS,
        end_padding: true,
        dropout: 0.1,
        attention_dropout: 0.1,
        head_dropout: 0.1,
        norm: NormKind::Batch,
        norm_position: NormPosition::Post,
        activation: FfnActivation::Gelu,
        residual_attention: true,
        revin: true,
        ..PatchTstConfig::small(24, 6, 3, 8, 2, 2, 16, 6)
    }
}

/// 61 training windows: the last of four batches is smaller.
fn training() -> TrainingConfig {
    TrainingConfig {
        epochs: if sanitized() { 2 } else { 3 },
        batch_size: 16,
        accumulate: 1,
        lr: 3e-3,
        schedule: LrSchedule::OneCycle,
        weight_decay: 0.01,
        decay_all: false,
        clip: 1.0,
        patience: 3,
        seed: 5,
        batch_norm: BatchNormStatistics::Synchronised,
    }
}

/// For tests that train often: under the sanitizer one epoch of two batches.
fn short(config: TrainingConfig) -> TrainingConfig {
    if sanitized() { TrainingConfig { epochs: 1, batch_size: 48, ..config } } else { config }
}

/// The epochs of a model on random walks.
fn walk_epochs() -> usize {
    if sanitized() { 1 } else { 3 }
}

fn trainer() -> Trainer<Forecasting> {
    Trainer::new(model(), training(), windows(), &split()).unwrap()
}

fn windows() -> Windows {
    Windows::new(&Grid::new(values(), CHANNELS), 24, 6, &device()).unwrap()
}

fn finish(trainer: &mut Trainer<Forecasting>) {
    while !trainer.is_done() {
        let end = trainer.epoch(LONG, |_| ControlFlow::Continue(())).unwrap();
        assert!(matches!(end, EpochEnd::Finished(_)));
    }
}

/// All results of a run, except for times.
fn outcome(mut trainer: Trainer<Forecasting>) -> (Vec<[u64; 3]>, String, String) {
    finish(&mut trainer);
    let bits = |report: &refrain_forecast::training::EpochReport<ForecastErrors>| {
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

/// Runs to the end, stopping every so many steps; each time it is saved and resumed from disk.
fn interrupted(every: u64, folder: &Path) -> Trainer<Forecasting> {
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
            current =
                Trainer::resume(&SavedRun::open(folder).unwrap(), model(), training(), windows(), &split())
                    .unwrap();
        }
    }
    current
}

#[test]
fn an_interrupted_run_goes_on_bit_for_bit() {
    let whole = outcome(trainer());
    // After every step; in the middle of epochs; after the last step of an epoch, before its validation.
    for every in shortened([1, 3, 4], 1, 3) {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(outcome(interrupted(every, folder.path())), whole, "every {every}");
        let run: serde_json::Value = SavedRun::open(folder.path()).unwrap().run().unwrap();
        assert_eq!(run, json!({ "every": every }));
    }
}

#[test]
fn the_caller_hears_of_steps_as_often_as_it_wants() {
    for eager in [false, true] {
        // In each of two epochs.
        let heard = |paces: [Pace; 2]| {
            let trainer = trainer();
            let mut trainer = if eager { trainer.eager() } else { trainer };
            paces.map(|pace| {
                let mut heard = Vec::new();
                let on_steps = |t: &Trainer<Forecasting>| {
                    heard.push(t.steps_in_epoch());
                    assert!(t.mean_loss().unwrap().is_finite());
                    ControlFlow::Continue(())
                };
                trainer.epoch(pace, on_steps).unwrap();
                heard
            })
        };
        let (all, few) = (vec![1, 2, 3, 4], Pace { interval: LONG, stop_every: Some(2) });
        assert_eq!(heard([few; 2]), [all.clone(), vec![2, 3, 4]]);
        if sanitized() {
            continue;
        }
        assert_eq!(heard([Duration::ZERO.into(); 2]), [all.clone(), all.clone()]);
        // The first steps show how many fit, and the next epoch knows that. Another interval begins anew.
        assert_eq!(heard([LONG.into(); 2]), [vec![1, 3, 4], vec![3, 4]]);
        assert_eq!(heard([LONG.into(), Duration::ZERO.into()]), [vec![1, 3, 4], all]);
    }
}

#[test]
fn both_sizes_of_batches_are_recorded_before_the_first_step() {
    let mut trainer = trainer();
    let end = trainer.epoch(Duration::ZERO, |_| ControlFlow::Break(())).unwrap();
    assert_eq!((end, trainer.steps_in_epoch()), (EpochEnd::Stopped, 1));
    let step = trainer.recorded().unwrap();
    assert_eq!((step.programs(), step.replays()), (2, 1));
}

#[test]
fn the_folder_holds_the_best_weights() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = interrupted(5, folder.path());
    let checkpoint = refrain_nn::Checkpoint::open(folder.path()).unwrap();
    let loaded = ModelConfig::from(model()).load(&checkpoint, refrain::DType::F32, &device()).unwrap();
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
        Trainer::resume(&SavedRun::open(folder.path()).unwrap(), wider, training(), windows(), &split())
            .err()
            .unwrap()
            .to_string();
    assert!(
        error.contains("checkpoint") && error.contains("its configuration describes a model of"),
        "{error}"
    );
}

#[test]
fn training_stops_when_patience_is_at_its_end() {
    // At this rate the model learns nothing after the first steps.
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
fn what_is_not_finite_takes_the_place_of_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = Trainer::new(model(), training(), windows(), &split()).unwrap();
    trainer.save(folder.path(), &json!(null)).unwrap();
    no_grad(|| trainer.task().model.parameters().values().fill(f64::NAN)).unwrap();
    let error = trainer.save(folder.path(), &json!(null)).unwrap_err().to_string();
    assert!(error.contains("NaN") && error.contains("checkpoint"), "{error}");
    let saved = SavedRun::open(folder.path()).unwrap();
    let kept = Trainer::resume(&saved, model(), training(), windows(), &split()).unwrap();
    let values = kept.task().model.parameters().values().to_vec::<f32>().unwrap();
    assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
}

#[test]
fn models_trained_side_by_side_on_one_device_lose_as_alone() {
    let epochs = walk_epochs();
    // The sanitizer's racecheck loses track of launches by two threads at once.
    let one_at_a_time = || sanitized().then(turn);
    let losses = |seed| {
        let options = WalkOptions { samples: 48, channels: 3, epochs, batch_size: 16, lr: 1e-3, seed };
        let mut bench = {
            let _turn = one_at_a_time();
            WalkBench::new(options, &device()).unwrap()
        };
        let mut epoch = || {
            let _turn = one_at_a_time();
            bench.epoch().unwrap().loss.to_bits()
        };
        (0..epochs).map(|_| epoch()).collect::<Vec<_>>()
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
    let epochs = walk_epochs();
    let options = WalkOptions { samples: 15, channels: 3, epochs, batch_size: 4, lr: 1e-3, seed: 1 };
    let bench = || WalkBench::new(options.clone(), &device()).unwrap();
    let losses =
        |mut bench: WalkBench| (0..epochs).map(|_| bench.epoch().unwrap().loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(losses(bench()), losses(bench().eager()));
}

/// Marks the values of the second series of [`gappy`] that were not observed: some of the last rows of the training
/// part, which are targets there and in no context, and some of the test part.
const MISSING: [usize; 5] = [100, 102, 103, 144, 147];

/// The waves with missing values, as in a file.
fn gappy() -> (Series, Split) {
    let axis = TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
    let mut text = "time,a,b\n".to_owned();
    for (row, pair) in values().chunks_exact(2).enumerate() {
        let b = if MISSING.contains(&row) { String::new() } else { pair[1].to_string() };
        text += &format!("{},{},{b}\n", axis.format(row), pair[0]);
    }
    let (series, _) = Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap();
    let split = Split::new(&series, &SplitRule::default(), 24, 6, 2).unwrap();
    assert!([&split.train, &split.test].iter().all(|part| part.has_filled() && part.left_out.total() == 0));
    (series, split)
}

/// The same series with other filled values.
fn filled_with(series: &Series, value: f64) -> Grid {
    let grid = series.grid();
    let filled = grid.filled().unwrap();
    let cells = grid.values().iter().zip(filled);
    let values = cells.map(|(&own, &filled)| if filled { value } else { own }).collect();
    Grid::with_filled(values, CHANNELS, filled.to_vec())
}

#[test]
fn what_was_filled_is_not_learned_from() {
    let (series, split) = gappy();
    for device in common::devices() {
        let train = |grid: &Grid, eager: bool, accumulate| {
            let windows = Windows::new(grid, 24, 6, &device).unwrap();
            let config = short(TrainingConfig { accumulate, ..training() });
            let trainer = Trainer::new(model(), config, windows, &split).unwrap();
            let mut trainer = if eager { trainer.eager() } else { trainer };
            finish(&mut trainer);
            let losses: Vec<u64> =
                trainer.history().iter().map(|report| report.train_loss.to_bits()).collect();
            (losses, trainer.model().weights_sha256().unwrap())
        };
        let filled = train(series.grid(), false, 1);
        assert_eq!(train(&filled_with(&series, 1e4), false, 1), filled, "{device}");
        assert_eq!(train(series.grid(), true, 1), filled, "{device}, eager");
        assert_ne!(train(&Grid::new(values(), CHANNELS), false, 1).0, filled.0, "{device}");
        let mixed = |grid| with_precision(Precision::Bf16, || train(grid, false, 1));
        assert_eq!(mixed(&filled_with(&series, 1e4)), mixed(series.grid()), "{device}, bf16");
        let parts = train(series.grid(), false, 4);
        assert_eq!(train(&filled_with(&series, 1e4), false, 4), parts, "{device}, in parts");
    }
}

#[test]
fn the_loss_is_the_mean_over_what_was_observed() {
    let (series, split) = gappy();
    for device in common::devices() {
        let windows = Windows::new(&filled_with(&series, 50.0), 24, 6, &device).unwrap();
        let trainer = Trainer::new(model(), training(), windows, &split).unwrap();
        let task = trainer.task();
        let starts: Vec<i64> = vec![3, 70, 71, 72, 73, 74, 75];
        let loss = |starts: &[i64]| {
            let starts = Tensor::from_slice(starts, [starts.len()], &device).unwrap();
            let loss = task.loss(&starts, Mode::Eval).unwrap().to_scalar::<f32>().unwrap();
            (f64::from(loss), f64::from(task.weight(&starts).unwrap().unwrap().to_scalar::<f32>().unwrap()))
        };
        let forecast = |start: i64| {
            let starts = Tensor::from_slice(&[start], [1], &device).unwrap();
            let (x, _) = task.windows.cut(&starts).unwrap();
            task.model.forward(&x, Mode::Eval).unwrap().to_vec::<f32>().unwrap()
        };
        let (mut squared, mut count) = (0.0, 0.0);
        for &start in &starts {
            for (cell, forecast) in forecast(start).into_iter().enumerate() {
                let (channel, row) = (cell / 6, start as usize + 24 + cell % 6);
                if series.grid().is_observed(row, channel) {
                    squared += (f64::from(forecast) - series.values()[row * CHANNELS + channel]).powi(2);
                    count += 1.0;
                }
            }
        }
        let (got, weight) = loss(&starts);
        assert!((got - squared / count).abs() < 1e-5 * got, "{device}: {got} and {}", squared / count);
        assert_eq!((weight, count < 7.0 * 12.0), (count, true), "{device}");
        // The test part counts in the same way.
        let unit = Scaler { mean: vec![0.0; CHANNELS], std: vec![1.0; CHANNELS] };
        let none = Intervals::default();
        let errors =
            evaluation::evaluate(&*task.model, &none, &unit.into(), &task.windows, &split.test, None)
                .unwrap();
        let errors = errors.errors.standardised();
        let (mut squared, mut count) = (0.0, 0.0);
        for start in split.test.starts() {
            for (cell, forecast) in forecast(start as i64).into_iter().enumerate() {
                let (channel, row) = (cell / 6, start + 24 + cell % 6);
                if series.grid().is_observed(row, channel) {
                    squared += (f64::from(forecast) - series.values()[row * CHANNELS + channel]).powi(2);
                    count += 1.0;
                }
            }
        }
        assert!((errors.mse - squared / count).abs() < 1e-5 * errors.mse, "{device}: {errors:?}");
    }
}

#[test]
fn a_training_part_without_gaps_is_trained_on_as_ever() {
    let (_, split) = gappy();
    let (series, whole) = {
        let axis =
            TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
        let row = |(row, pair): (usize, &[f64])| {
            let b = if row == 144 { String::new() } else { pair[1].to_string() };
            format!("{},{},{b}\n", axis.format(row), pair[0])
        };
        let text: String = values().chunks_exact(2).enumerate().map(row).collect();
        let (series, _) =
            Series::from_csv(format!("time,a,b\n{text}").as_bytes(), "a.csv", &ReadOptions::default())
                .unwrap();
        let split = Split::new(&series, &SplitRule::default(), 24, 6, 2).unwrap();
        (series, split)
    };
    assert!(!whole.train.has_filled() && whole.test.has_filled());
    assert_eq!(whole.train.runs(), split.train.runs());
    let train = |grid: &Grid, split: &Split| {
        let windows = Windows::new(grid, 24, 6, &device()).unwrap();
        outcome(Trainer::new(model(), training(), windows, split).unwrap())
    };
    let parts = Split {
        context: 24,
        horizon: 6,
        train: Part::all(whole.train.rows.clone(), 30),
        validation: Part::all(whole.validation.rows.clone(), 30),
        test: Part::all(whole.test.rows.clone(), 30),
    };
    assert_eq!(train(series.grid(), &whole), train(&Grid::new(values(), CHANNELS), &parts));
}

#[test]
fn gradients_that_gather_over_micro_batches_are_those_of_the_batch() {
    // Without dropout, whose masks depend on the micro-batches, and without batch norm, which uses the statistics of
    // a whole micro-batch.
    let plain = PatchTstConfig {
        norm: NormKind::Layer,
        dropout: 0.0,
        attention_dropout: 0.0,
        head_dropout: 0.0,
        residual_attention: false,
        ..model()
    };
    let losses = |accumulate| {
        let config = short(TrainingConfig { accumulate, ..training() });
        let mut trainer = Trainer::new(plain.clone(), config, windows(), &split()).unwrap();
        finish(&mut trainer);
        trainer.history().iter().flat_map(|r| [r.train_loss, r.validation.mse]).collect::<Vec<_>>()
    };
    let whole = losses(1);
    for accumulate in shortened([4, 16], 0, 2) {
        let parts = losses(accumulate);
        assert!(whole.iter().zip(&parts).all(|(a, b)| (a - b).abs() < 1e-5), "{whole:?} and {parts:?}");
    }
}
