//! Windows of independent series, and what a model learns from them.

use super::*;
use crate::data::series::{Layout, ReadOptions, Scaling, Series, Split, SplitRule, TimeAxis, TimeStep};
use crate::models::nlinear::NLinearConfig;
use crate::models::patchtst::PatchTstConfig;
use crate::models::{Mode, ModelConfig};
use crate::tasks::forecasting::conformal::Intervals;
use crate::tasks::forecasting::evaluation;
use crate::tasks::forecasting::loss::Loss;
use crate::tasks::forecasting::metrics::Units;
use crate::tasks::forecasting::{Forecasting, RecordedForecaster};
use crate::training::{BatchNormStatistics, EpochEnd, LrSchedule, Task, Trainer, TrainingConfig};
use refrain::{Precision, no_grad};
use refrain_test::devices;
use std::ops::ControlFlow;
use std::time::Duration;

const CONTEXT: usize = 8;
const HORIZON: usize = 3;

/// A value of row `row` of series `id`, each of its own level and size.
fn value(id: usize, row: usize) -> f64 {
    let noise = ((id * 7919 + row * 104_729 + row * row * 31) % 1009) as f64 / 1009.0 - 0.5;
    let size = 1.0 + (id % 7) as f64;
    (10 * (id % 5)) as f64 + size * ((row as f64 * 0.8).sin() + 0.4 * noise)
}

/// Series of these lengths, from different days on. Of the rows in `missing` there is no value.
fn set_of(lengths: &[usize], missing: impl Fn(usize, usize) -> bool) -> SeriesSet {
    let mut text = "unique_id,ds,y\n".to_owned();
    for (id, &rows) in lengths.iter().enumerate() {
        let axis = TimeAxis::new(
            jiff::civil::date(2020, 1, 1 + (id % 28) as i8).at(0, 0, 0, 0),
            TimeStep::seconds(86400),
            false,
        );
        for row in (0..rows).filter(|&row| !missing(id, row)) {
            text += &format!("s{id},{},{}\n", axis.format(row), value(id, row));
        }
    }
    let options = ReadOptions::default();
    SeriesSet::from_csv(text.as_bytes(), "a.csv", &options, Layout::Independent).unwrap().0
}

/// Of all kinds: too short for any part, for a window, for a horizon, and long ones.
const LENGTHS: [usize; 12] = [40, 1, 2, 3, 5, 9, 60, 12, 4, 17, 33, 2];

struct Case {
    set: SeriesSet,
    split: Split,
    stack: Stack,
    scaler: Scaler,
}

impl Case {
    fn new(set: SeriesSet) -> Case {
        let (split, stack) = set.split(&SplitRule::default(), CONTEXT, HORIZON, 2).unwrap();
        let scaler = set.scaler(&stack, Scaling::Standard).unwrap();
        Case { set, split, stack, scaler }
    }

    fn windows(&self, device: &Device) -> Windows {
        Windows::of(&self.set, &self.stack, &self.scaler, (CONTEXT, HORIZON), device).unwrap()
    }
}

/// The parts of a series by hand: their ends.
fn ends(rows: usize) -> [usize; 3] {
    let (train, test) = ((rows as f64 * 0.7) as usize, (rows as f64 * 0.2) as usize);
    [train, rows - test, rows]
}

/// The windows of a part by hand: series, and first row of the horizon.
fn expected(lengths: &[usize], part: usize) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    for (id, &rows) in lengths.iter().enumerate() {
        let ends = ends(rows);
        let (begin, end) = (if part == 0 { 0 } else { ends[part - 1] }, ends[part]);
        if ends[0] == 0 || begin == end {
            continue;
        }
        for origin in 1..rows {
            let whole = origin + HORIZON <= end;
            let taken = match part {
                // A part that has whole windows has only those.
                0 if end >= CONTEXT + HORIZON => origin >= CONTEXT && whole,
                0 => (whole || origin == 1) && origin < end,
                _ => origin >= begin && (whole || origin == begin),
            };
            if taken && origin < end {
                all.push((id, origin));
            }
        }
    }
    all
}

#[test]
fn windows_are_those_of_each_series_and_count_only_their_own_part() {
    let case = Case::new(set_of(&LENGTHS, |_, _| false));
    let Case { split, stack, scaler, .. } = &case;
    assert!(stack.padding() > 0 && stack.rows() == stack.padding() + LENGTHS.iter().sum::<usize>());
    for device in devices() {
        let windows = case.windows(&device);
        for (number, part) in [&split.train, &split.validation, &split.test].into_iter().enumerate() {
            let expected = expected(&LENGTHS, number);
            let starts: Vec<i64> = part.starts().map(|start| start as i64).collect();
            assert_eq!(starts.len(), expected.len(), "part {number}");
            let own: Vec<(usize, usize)> = stack
                .origins(part, CONTEXT)
                .flat_map(|(id, runs, _)| runs.into_iter().flatten().map(move |origin| (id, origin)))
                .collect();
            assert_eq!(own, expected, "part {number}");
            let table = Tensor::from_slice(&starts, [starts.len()], &device).unwrap();
            let (x, y) = windows.cut(&table).unwrap();
            let [x, y] = [x, y].map(|x| x.to_vec::<f32>().unwrap());
            let weights = windows.weights(&table, part).unwrap().to_vec::<f32>().unwrap();
            for (at, (id, origin)) in expected.into_iter().enumerate() {
                let scaled = |row: usize| ((value(id, row) - scaler.mean[id]) / scaler.std[id]) as f32;
                assert_eq!(windows.series_of(starts[at] as usize), id);
                let known: Vec<f32> = (origin.saturating_sub(CONTEXT)..origin).map(scaled).collect();
                let x = &x[at * CONTEXT..][..CONTEXT];
                assert_eq!(x[CONTEXT - known.len()..], known, "series {id} from {origin} on, {device}");
                let mean = known.iter().sum::<f32>() / known.len() as f32;
                let near = |value: &f32| (value - mean).abs() < 1e-5;
                assert!(x[..CONTEXT - known.len()].iter().all(near), "series {id}, {x:?}");
                for step in 0..HORIZON {
                    let (row, cell) = (origin + step, at * HORIZON + step);
                    let counts = row < ends(LENGTHS[id])[number];
                    assert_eq!(weights[cell], f32::from(u8::from(counts)), "series {id}, row {row}");
                    // Beyond its end there is nothing, least of all the next series.
                    let there = if row < LENGTHS[id] { scaled(row) } else { 0.0 };
                    assert_eq!(y[cell], there, "series {id}, row {row}");
                }
            }
        }
    }
}

#[test]
fn each_series_has_the_scale_of_its_training_part() {
    let case = Case::new(set_of(&LENGTHS, |_, _| false));
    for (id, &rows) in LENGTHS.iter().enumerate().filter(|&(_, &rows)| ends(rows)[0] > 1) {
        let values: Vec<f64> = (0..ends(rows)[0]).map(|row| value(id, row)).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let std = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
        let (got, of) = (case.scaler.mean[id], case.scaler.std[id]);
        assert!((got - mean).abs() < 1e-9 && (of - std).abs() < 1e-9, "series {id}");
    }
    let unit = case.set.scaler(&case.stack, Scaling::None).unwrap();
    assert_eq!(unit, Scaler::unit(LENGTHS.len()));
}

#[test]
fn series_of_one_length_have_the_windows_of_a_grid() {
    let set = set_of(&[50; 4], |_, _| false);
    let case = Case::new(set.clone());
    assert_eq!(case.stack.padding(), 0);
    for (number, series) in set.series().iter().enumerate() {
        let split = Split::new(series, &SplitRule::default(), CONTEXT, HORIZON, 2).unwrap();
        for (part, of_grid) in [
            (&case.split.train, &split.train),
            (&case.split.validation, &split.validation),
            (&case.split.test, &split.test),
        ] {
            let own: Vec<usize> =
                part.starts().skip(number * of_grid.windows()).take(of_grid.windows()).collect();
            assert_eq!(own, of_grid.starts().map(|start| start + 50 * number).collect::<Vec<_>>());
            assert!(!part.has_filled());
        }
    }
}

fn training(accumulate: usize) -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        batch_size: 16,
        accumulate,
        lr: 3e-3,
        schedule: LrSchedule::OneCycle,
        weight_decay: 0.01,
        decay_all: false,
        clip: 1.0,
        patience: 2,
        seed: 5,
        batch_norm: BatchNormStatistics::Synchronised,
    }
}

fn nlinear() -> ModelConfig {
    NLinearConfig { channels: 1, context: CONTEXT, horizon: HORIZON, individual: false }.into()
}

fn patchtst() -> ModelConfig {
    let small = PatchTstConfig::small(CONTEXT, 4, 2, 8, 2, 1, 16, HORIZON);
    PatchTstConfig { revin: true, dropout: 0.1, end_padding: true, ..small }.into()
}

/// The training losses and validation errors of all epochs, and the weights at the end, in bits.
fn outcome(
    case: &Case,
    model: &ModelConfig,
    windows: Windows,
    eager: bool,
    accumulate: usize,
) -> (Vec<u64>, Vec<u64>, String) {
    let task = Forecasting::new(model.clone(), Loss::default(), windows, &case.split, 5).unwrap();
    let trainer = Trainer::of(task, training(accumulate)).unwrap();
    let mut trainer = if eager { trainer.eager() } else { trainer };
    while !trainer.is_done() {
        let end = trainer.epoch(Duration::MAX, |_| ControlFlow::Continue(())).unwrap();
        assert!(matches!(end, EpochEnd::Finished(_)));
    }
    let losses = trainer.history().iter().map(|report| report.train_loss.to_bits()).collect();
    let errors = trainer.history().iter().map(|report| report.validation.mse.to_bits()).collect();
    (losses, errors, trainer.model().weights_sha256().unwrap())
}

/// The same windows with other values in the padding.
fn with_padding(case: &Case, device: &Device, value: f32) -> Windows {
    let windows = case.windows(device);
    let mut values = windows.series.to_vec::<f32>().unwrap();
    let marks = windows.marks.as_ref().unwrap().to_vec::<u8>().unwrap();
    let padding = values.iter_mut().zip(marks).filter(|(_, mark)| *mark == PADDING);
    assert_eq!(padding.map(|(to, _)| *to = value).count(), case.stack.padding());
    windows.series.write_from(&values).unwrap();
    windows
}

#[test]
fn padding_changes_no_bit_of_anything() {
    let case = Case::new(set_of(&LENGTHS, |_, _| false));
    for device in devices() {
        for (model, accumulate) in [(nlinear(), 1), (patchtst(), 1), (nlinear(), 4)] {
            let run = |value| outcome(&case, &model, with_padding(&case, &device, value), false, accumulate);
            let zeros = run(0.0);
            for value in [777.0, -1e30, f32::NAN] {
                assert_eq!(run(value), zeros, "{value} on {device}");
            }
            // Eager steps give the same bits.
            assert_eq!(
                outcome(&case, &model, case.windows(&device), true, accumulate),
                zeros,
                "{device}, eager"
            );
        }
    }
}

#[test]
fn the_loss_is_the_mean_over_what_each_series_has_of_its_part() {
    let missing = |id: usize, row: usize| id == 0 && (11..13).contains(&row) || id == 6 && row == 30;
    let case = Case::new(set_of(&LENGTHS, missing));
    for device in devices() {
        let windows = case.windows(&device);
        let task = Forecasting::new(nlinear(), Loss::default(), windows, &case.split, 5).unwrap();
        let starts: Vec<i64> = case.split.train.starts().map(|start| start as i64).collect();
        let table = Tensor::from_slice(&starts, [starts.len()], &device).unwrap();
        let (x, _) = task.windows.cut(&table).unwrap();
        let forecast = task.model.forward(&x, Mode::Eval).unwrap().to_vec::<f32>().unwrap();
        let origins = case.stack.origins(&case.split.train, CONTEXT);
        let origins = origins.flat_map(|(id, runs, _)| runs.into_iter().flatten().map(move |row| (id, row)));
        let (mut squared, mut count) = (0.0, 0);
        for (at, (id, origin)) in origins.enumerate() {
            for step in 0..HORIZON {
                let row = origin + step;
                if row < ends(LENGTHS[id])[0] && !missing(id, row) {
                    let truth = (value(id, row) - case.scaler.mean[id]) / case.scaler.std[id];
                    squared += (f64::from(forecast[at * HORIZON + step]) - truth).powi(2);
                    count += 1;
                }
            }
        }
        let loss = f64::from(task.loss(&table, Mode::Eval).unwrap().to_scalar::<f32>().unwrap());
        let oracle = squared / f64::from(count);
        assert!((loss - oracle).abs() < 1e-5 * oracle, "{device}: {loss} for {oracle}");
        assert_eq!(task.weight(&table).unwrap().unwrap().to_scalar::<f32>().unwrap(), count as f32);
        assert!((count as usize) < starts.len() * HORIZON);
        // So are the metrics of the test part, and of each series.
        let units = Units::new(&case.set, &case.stack, &case.scaler, 2);
        let test = &case.split.test;
        let none = Intervals::default();
        let errors =
            evaluation::evaluate(&*task.model, &none, &units, &task.windows, test, None).unwrap().errors;
        let counted = |id: usize| {
            let [_, begin, end] = ends(LENGTHS[id]);
            let of = |&(other, origin): &(usize, usize)| {
                if other == id { (origin + HORIZON).min(end) - origin } else { 0 }
            };
            assert!(begin <= end);
            expected(&LENGTHS, 2).iter().map(of).sum::<usize>() as u64
        };
        for id in (0..LENGTHS.len()).filter(|&id| ![0, 6].contains(&id)) {
            assert_eq!(errors.channel(id).count, counted(id), "series {id}");
        }
    }
}

/// A forecast that is made of a series alone sees the context that its window has in the table.
#[test]
fn a_series_is_forecast_alone_as_among_others() {
    let case = Case::new(set_of(&LENGTHS, |_, _| false));
    for device in devices() {
        let model = patchtst().build(DType::F32, &device, 3).unwrap();
        let windows = case.windows(&device);
        let origins: Vec<(usize, usize)> = expected(&LENGTHS, 2);
        let starts: Vec<i64> = case.split.test.starts().map(|start| start as i64).collect();
        let table = Tensor::from_slice(&starts, [starts.len()], &device).unwrap();
        let (x, _) = windows.cut(&table).unwrap();
        let y = no_grad(|| model.forward(&x, Mode::Eval)).unwrap().to_vec::<f32>().unwrap();
        let none = Intervals::default();
        let forecaster = RecordedForecaster::new(model, HORIZON, none, Precision::F32, 1).unwrap();
        for (&(id, origin), y) in origins.iter().zip(y.chunks(HORIZON)) {
            let scaler = case.scaler.of(id..id + 1);
            let of = [(&case.set.series()[id], origin)];
            let alone = forecaster.forecast_independent(&of, &scaler, None).unwrap();
            for (value, y) in scaler.transform(&alone.values).into_iter().zip(y) {
                assert!((value - f64::from(*y)).abs() < 1e-4, "series {id} from {origin} on, {device}");
            }
        }
    }
}

/// What lies after the training part has no influence on what is learned; the scale of all rows would have one.
#[test]
fn nothing_of_the_later_parts_leaks_into_training() {
    let lengths = [40, 30, 9, 25, 12, 4];
    let later = |series: &Series, id: usize, by: f64| -> Series {
        let train = ends(lengths[id])[0];
        let axis = series.time();
        let row = |(row, value): (usize, f64)| {
            let value = if row < train { value } else { value + by };
            format!("{},{value}\n", axis.format(row))
        };
        let rows: String = series.channel(0).enumerate().map(row).collect();
        let text = format!("time,{}\n{rows}", series.names()[0]);
        Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap().0
    };
    let changed = |by: f64| {
        let own = set_of(&lengths, |_, _| false);
        let series = own.series().iter().enumerate().map(|(id, series)| later(series, id, by)).collect();
        Case::new(SeriesSet::independent(series).unwrap())
    };
    let device = Device::cpu();
    let run = |case: &Case| outcome(case, &nlinear(), case.windows(&device), false, 1);
    let leaking = |by: f64| {
        let case = changed(by);
        let scaler = case.set.scaler_of_all(Scaling::Standard);
        Case { scaler, ..case }
    };
    let (losses, errors, weights) = run(&changed(0.0));
    let (other_losses, other_errors, other_weights) = run(&changed(100.0));
    assert_eq!((&losses, &weights), (&other_losses, &other_weights));
    assert_ne!(errors, other_errors);
    assert_ne!(run(&leaking(0.0)).2, run(&leaking(100.0)).2, "the test finds a leak");
}

#[test]
fn five_thousand_ragged_series_train_together() {
    let lengths: Vec<usize> = (0..5000).map(|id| 1 + id * 37 % 45).collect();
    let set = set_of(&lengths, |id, row| row % 11 == 5 && id % 3 == 0 && row + 1 < lengths[id]);
    let case = Case::new(set);
    let Case { set, split, stack, .. } = &case;
    assert_eq!(set.series().len(), 5000);
    // The table has a bounded number of rows beside those of the series.
    assert!(stack.padding() < 5000 * (CONTEXT + HORIZON), "{}", stack.padding());
    let device = Device::cpu();
    let config = TrainingConfig { batch_size: 512, ..training(1) };
    let task = Forecasting::new(nlinear(), Loss::default(), case.windows(&device), split, 5).unwrap();
    let mut trainer = Trainer::of(task, config).unwrap();
    assert_eq!(trainer.samples_per_epoch(), split.train.windows());
    while !trainer.is_done() {
        trainer.epoch(Duration::MAX, |_| ControlFlow::Continue(())).unwrap();
    }
    let losses: Vec<f64> = trainer.history().iter().map(|report| report.train_loss).collect();
    assert!(losses[1] < losses[0], "{losses:?}");
    let units = Units::new(set, stack, &case.scaler, 7);
    let task = trainer.into_best().unwrap();
    let none = Intervals::default();
    let errors =
        evaluation::evaluate(&*task.model, &none, &units, &task.windows, &split.test, None).unwrap().errors;
    let overall = errors.overall();
    assert!(overall.mse.is_finite() && overall.mase.is_finite());
    assert_eq!(overall.count, (0..5000).map(|id| errors.channel(id).count).sum::<u64>());
}
