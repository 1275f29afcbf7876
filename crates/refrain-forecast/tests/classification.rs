//! Cross-asset training on folds of a panel, and gradient accumulation over micro-batches.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use common::device;
use refrain::{DType, Device, Precision, Profile, Simulator, Tensor, with_precision};
use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::data::panel::{Change, Class, Fold, LabelRule, Panel, PanelOptions};
use refrain_forecast::data::series::MaxGap;
use refrain_forecast::models::cross_asset::{CrossAsset, CrossAssetConfig, Mode};
use refrain_forecast::tasks::classification::{ClassWeights, Classification, RecordedClassifier};
use refrain_forecast::training::{
    BatchNormStatistics, EpochEnd, LrSchedule, SavedRun, Task, Trainer, TrainingConfig,
};
use serde_json::json;

const ROWS: usize = 160;
const SOURCES: usize = 3;
/// Longer than an epoch.
const LONG: Duration = Duration::from_secs(100);

fn noise(i: usize) -> f64 {
    ((i * 7919 + i * i * 31) % 1009) as f64 / 1009.0 - 0.5
}

/// The label of each source is the sign of a feature of the next source, so only attention can predict it. Some
/// labels are missing.
fn panel(rows: usize, from_row: usize, shift: f64) -> Panel {
    let mut text = "time,source,f,g,label\n".to_owned();
    let f = |row: usize, source: usize| noise(row * 5 + source % SOURCES * 17);
    for row in 0..rows {
        let moved = if row >= from_row { shift } else { 0.0 };
        for source in 0..SOURCES {
            let label = match f(row, source + 1) {
                _ if (row + source) % 11 == 0 => "",
                next if next > 0.15 => "up",
                next if next < -0.15 => "down",
                _ => "flat",
            };
            let (day, hour) = (row / 24 + 1, row % 24);
            let (f, g) = (f(row, source) + moved, noise(row + 400 * source));
            text += &format!("2020-01-{day:02} {hour:02}:00,S{source},{f},{g},{label}\n");
        }
    }
    let rule = LabelRule { horizon: 1, threshold: 0.0, change: Change::Difference };
    let options = PanelOptions {
        price: "price".to_owned(),
        rule,
        max_gap: MaxGap::Season,
        dialect: Dialect::default(),
    };
    Panel::from_csv(text.as_bytes(), "a.csv", &options).unwrap().0
}

fn fold() -> Fold {
    Fold { train: 0..115, validation: 117..137, test: 139..160 }
}

fn model() -> CrossAssetConfig {
    let small =
        CrossAssetConfig { sources: SOURCES, features: 2, d_model: 16, heads: 2, ..Default::default() };
    CrossAssetConfig { layers: 1, ffn: 32, ..small }
}

/// 115 training samples: the last of five batches is smaller, and so is its last micro-batch.
fn training(accumulate: usize) -> TrainingConfig {
    TrainingConfig {
        epochs: 3,
        batch_size: 24,
        accumulate,
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

fn task(panel: &Panel, model: CrossAssetConfig, device: &Device) -> Classification {
    Classification::new(model, panel, &fold(), ClassWeights::Balanced, device, 5).unwrap()
}

fn trainer(model: CrossAssetConfig, accumulate: usize, device: &Device) -> Trainer<Classification> {
    Trainer::of(task(&panel(ROWS, 0, 0.0), model, device), training(accumulate)).unwrap()
}

fn finish(trainer: &mut Trainer<Classification>) {
    while !trainer.is_done() {
        assert!(matches!(trainer.epoch(LONG, |_| ControlFlow::Continue(())).unwrap(), EpochEnd::Finished(_)));
    }
}

/// Losses, validation and weights, as bits.
fn outcome(mut trainer: Trainer<Classification>) -> (Vec<[u64; 3]>, String) {
    finish(&mut trainer);
    let of_epoch = trainer.history().iter().map(|report| {
        [report.train_loss, report.validation.loss, report.validation.balanced_accuracy].map(f64::to_bits)
    });
    (of_epoch.collect(), trainer.task().model.weights_sha256().unwrap())
}

#[test]
fn a_source_learns_from_what_another_shows() {
    let config = TrainingConfig { epochs: 30, patience: 30, lr: 5e-3, ..training(1) };
    let (panel, fold) = (panel(600, 0, 0.0), Fold { train: 0..440, validation: 440..500, test: 500..600 });
    let model = CrossAssetConfig { d_model: 32, ..model() };
    let task = Classification::new(model, &panel, &fold, ClassWeights::Balanced, &device(), 5).unwrap();
    let before = task.test(None).unwrap();
    let mut trainer = Trainer::of(task, config).unwrap();
    finish(&mut trainer);
    let task = trainer.into_best().unwrap();
    let (errors, confusion) = task.test(None).unwrap();
    let majority = confusion.support(task.majority().index()) as f64 / confusion.total() as f64;
    println!("{before:?}, {errors:?}, {majority}");
    assert!(errors.loss < 0.5 * before.0.loss, "{before:?}, {errors:?}");
    assert!(errors.accuracy > majority + 0.3 && errors.balanced_accuracy > 0.7, "{errors:?}, {majority}");
    // Every label of the test part, and no missing one.
    let labels = (500..600).flat_map(|row| panel.labels(row).to_vec());
    assert_eq!(confusion.total(), labels.flatten().count() as u64);
}

#[test]
fn probabilities_are_the_softmax_of_the_logits_of_the_standardised_row() {
    let panel = panel(ROWS, 0, 0.0);
    let [task, same] = [0; 2].map(|_| task(&panel, model(), &device()));
    let recorded = |model| RecordedClassifier::new(model, task.scaler.clone(), Precision::F32, 1);
    let classifier = recorded(same.model);
    for row in [0, 77, ROWS - 1] {
        let found = classifier.probabilities(&panel, row).unwrap();
        let values = &panel.values()[row * SOURCES * 2..][..SOURCES * 2];
        let x: Vec<f32> = values
            .iter()
            .enumerate()
            .map(|(column, value)| ((value - task.scaler.mean[column]) / task.scaler.std[column]) as f32)
            .collect();
        let x = Tensor::from_slice(&x, [1, SOURCES, 2], &device()).unwrap();
        let softmax =
            task.model.forward(&x, Mode::Eval).unwrap().softmax(-1).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(found.len(), SOURCES);
        for (found, expected) in found.as_flattened().iter().zip(softmax) {
            assert!((found - f64::from(expected)).abs() < 1e-6, "{found} for {expected}");
        }
    }
    let other = CrossAssetConfig { features: 3, ..model() };
    let other = CrossAsset::new(other, DType::F32, &device(), 1).unwrap();
    let error = recorded(other).probabilities(&panel, 0).unwrap_err();
    assert!(matches!(error, refrain_forecast::Error::Model { .. }), "{error}");
}

#[test]
fn nothing_is_learned_from_what_comes_after_the_training_part() {
    // Only validation reads the shifted rows.
    let run = |panel: &Panel| {
        let mut trainer = Trainer::of(task(panel, model(), &device()), training(1)).unwrap();
        finish(&mut trainer);
        (
            trainer.task().scaler.clone(),
            trainer.task().model.weights_sha256().unwrap(),
            trainer.history()[2].validation.loss,
        )
    };
    let (scaler, weights, loss) = run(&panel(ROWS, 0, 0.0));
    let (again, same, other) = run(&panel(ROWS, 115, 3.0));
    assert_eq!((&scaler, &weights), (&again, &same));
    assert_ne!(loss, other);
    assert_ne!(weights, run(&panel(ROWS, 114, 3.0)).1);
}

#[test]
fn the_loss_is_the_mean_over_labels_by_their_weights() {
    let (panel, device) = (panel(ROWS, 0, 0.0), device());
    let task = task(&panel, model(), &device);
    let rows = [9, 10, 11, 12, 40i64];
    let samples = Tensor::from_slice(&rows, rows.len(), &device).unwrap();
    let loss: f32 = task.loss(&samples, Mode::Eval).unwrap().to_scalar().unwrap();

    let scaled: Vec<f32> = task.scaler.transform(panel.values()).iter().map(|&value| value as f32).collect();
    let (mut sum, mut weights, mut missing) = (0.0, 0.0, 0);
    for row in rows.map(|row| row as usize) {
        let x = Tensor::from_slice(&scaled[row * 6..][..6], [1, SOURCES, 2], &device).unwrap();
        let logits = task.model.forward(&x, Mode::Eval).unwrap().to_vec::<f32>().unwrap();
        for (label, logits) in panel.labels(row).iter().zip(logits.chunks(3)) {
            let Some(class) = label else {
                missing += 1;
                continue;
            };
            let all: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let weight = task.class_weights()[class.index()];
            sum += weight * (all.ln() - f64::from(logits[class.index()]));
            weights += weight;
        }
    }
    assert!(missing > 0);
    assert!((f64::from(loss) - sum / weights).abs() < 1e-5, "{loss} for {}", sum / weights);
    let weight: f32 = task.weight(&samples).unwrap().unwrap().to_scalar().unwrap();
    assert!((f64::from(weight) - weights).abs() < 1e-4, "{weight} for {weights}");
    // All classes are equally frequent in the training part.
    let labels: Vec<Class> = (0..115).flat_map(|row| panel.labels(row).to_vec()).flatten().collect();
    let sums = Class::ALL.map(|class| {
        labels.iter().filter(|&&label| label == class).count() as f64 * task.class_weights()[class.index()]
    });
    assert!(sums.iter().all(|sum| (sum - sums[0]).abs() < 1e-9), "{sums:?}");
}

#[test]
fn gradients_that_gather_over_micro_batches_are_those_of_the_batch() {
    let run = |accumulate| {
        let mut trainer = trainer(model(), accumulate, &device());
        finish(&mut trainer);
        let losses: Vec<f64> = trainer.history().iter().map(|report| report.train_loss).collect();
        let values = trainer.task().model.parameters().values().to_vec::<f32>().unwrap();
        (losses, values)
    };
    let (losses, values) = run(1);
    // Two, six, and sample by sample.
    for accumulate in [2, 6, 24] {
        let (gathered, weights) = run(accumulate);
        for (a, b) in losses.iter().zip(&gathered) {
            assert!((a - b).abs() < 1e-5, "{accumulate}: {losses:?} and {gathered:?}");
        }
        // AdamW divides a gradient by its size, so for tiny gradients rounding matters.
        let squares: f32 = values.iter().zip(&weights).map(|(a, b)| (a - b) * (a - b)).sum();
        let rms = (squares / values.len() as f32).sqrt();
        assert!(rms < 1e-5, "{accumulate}: weights differ by {rms} in the root mean square");
    }
}

#[test]
fn replayed_training_is_bit_for_bit_eager_training() {
    let dropping = CrossAssetConfig { dropout: 0.1, ..model() };
    for accumulate in [1, 4, 24] {
        let trainer = || trainer(dropping.clone(), accumulate, &device());
        assert_eq!(outcome(trainer()), outcome(trainer().eager()), "{accumulate} micro-batches");
    }
}

#[test]
fn training_is_the_same_on_a_simulated_gpu() {
    let dropping = CrossAssetConfig { dropout: 0.1, ..model() };
    for accumulate in [1, 6] {
        let expected = outcome(trainer(dropping.clone(), accumulate, &Device::cpu()));
        for profile in [Profile::Discrete, Profile::Unified] {
            let device = Simulator::new(profile).seed(3).device();
            assert_eq!(outcome(trainer(dropping.clone(), accumulate, &device)), expected, "{profile:?}");
        }
    }
}

#[test]
fn in_mixed_precision_replays_are_eager_training_and_end_near_f32() {
    let train = |precision, eager, accumulate| {
        with_precision(precision, || {
            let trainer = trainer(CrossAssetConfig { dropout: 0.1, ..model() }, accumulate, &device());
            outcome(if eager { trainer.eager() } else { trainer })
        })
    };
    for accumulate in [1, 4] {
        let exact = train(Precision::F32, false, accumulate);
        let mixed = train(Precision::Bf16, false, accumulate);
        assert_eq!(train(Precision::Bf16, true, accumulate), mixed);
        for (exact, mixed) in exact.0.iter().zip(&mixed.0) {
            assert_ne!(exact, mixed);
            let [exact, mixed] = [exact, mixed].map(|epoch| f64::from_bits(epoch[0]));
            assert!((exact - mixed).abs() < 0.02 * exact, "{mixed} for {exact}");
        }
    }
}

#[test]
fn gradients_keep_their_memory_and_are_zero_between_steps() {
    let mut trainer = trainer(model(), 6, &device());
    let address = |t: &Trainer<Classification>| {
        let gradients = t.task().parameters().iter().map(|(_, p)| p.grad().unwrap().storage_id());
        gradients.collect::<Vec<_>>()
    };
    let before = address(&trainer);
    trainer
        .epoch(Duration::ZERO, |trainer| {
            let gradients = trainer.task().parameters().gradients().to_vec::<f32>().unwrap();
            assert!(gradients.iter().all(|&gradient| gradient == 0.0));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(address(&trainer), before);
}

#[test]
fn an_interrupted_run_goes_on_bit_for_bit() {
    let start = || trainer(CrossAssetConfig { dropout: 0.1, ..model() }, 4, &device());
    let whole = outcome(start());
    let folder = tempfile::tempdir().unwrap();
    let mut current = start();
    while !current.is_done() {
        let end = current.epoch(Duration::ZERO, |t| match t.steps() % 3 {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        current.save(folder.path(), &json!(null)).unwrap();
        if end.unwrap() == EpochEnd::Stopped {
            current = start().resume_from(&SavedRun::open(folder.path()).unwrap()).unwrap();
        }
    }
    assert_eq!(outcome(current), whole);
}

#[test]
fn a_model_of_other_sizes_than_the_panel_is_refused() {
    let wrong = CrossAssetConfig { features: 5, ..model() };
    let error = Classification::new(wrong, &panel(ROWS, 0, 0.0), &fold(), ClassWeights::None, &device(), 0);
    let message = error.err().unwrap().to_string();
    assert!(message.contains("3 sources of 5 features, but the panel has 3 of 2"), "{message}");
    assert_eq!(task(&panel(ROWS, 0, 0.0), model(), &device()).parameters().values().dtype(), DType::F32);
}
