//! Covariates from a file to the forecasts of models: their roles, their scale, and nothing of the future.

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use common::devices;
use refrain::{DType, Device, Generator, Precision, Profile, Simulator, Tensor, with_precision};
use refrain_forecast::data::series::{
    CovariateColumns, CovariateScaler, Layout, ReadOptions, Scaling, SeriesSet, Split, SplitRule, Stack,
};
use refrain_forecast::data::windows::{WindowCovariates, Windows};
use refrain_forecast::models::patchtst::PatchTstConfig;
use refrain_forecast::models::tsmixer::TsMixerConfig;
use refrain_forecast::models::{Mode, ModelConfig, WindowShape};
use refrain_forecast::settings::{CommaList, Values};
use refrain_forecast::tasks::forecasting::conformal::Intervals;
use refrain_forecast::tasks::forecasting::evaluation::Evaluation;
use refrain_forecast::tasks::forecasting::loss::Loss;
use refrain_forecast::tasks::forecasting::metrics::Units;
use refrain_forecast::tasks::forecasting::{Forecasting, RecordedForecaster, evaluation};
use refrain_forecast::training::{BatchNormStatistics, LrSchedule, Trainer, TrainingConfig};
use serde_json::json;

const CONTEXT: usize = 6;
const HORIZON: usize = 3;

fn list<T: serde::de::DeserializeOwned>(words: &str) -> CommaList<T> {
    serde_json::from_value(json!(words)).unwrap()
}

fn options(past: &str, future: &str, statics: &str, calendar: &str) -> ReadOptions {
    let covariates = CovariateColumns {
        past: list(past),
        future: list(future),
        statics: list(statics),
        calendar: list(calendar),
    };
    ReadOptions { covariates, ..ReadOptions::default() }
}

/// Row after row of a wide file: time, y, p, f. Empty cells where there is no number.
fn wide(rows: impl Iterator<Item = [Option<f64>; 3]>) -> String {
    let mut text = "time,y,p,f\n".to_owned();
    for (row, cells) in rows.enumerate() {
        let cells = cells.map(|cell| cell.map_or(String::new(), |value| value.to_string()));
        text += &format!("2024-01-{:02} {:02}:00:00,{}\n", 1 + row / 24, row % 24, cells.join(","));
    }
    text
}

fn usual(row: usize) -> [f64; 3] {
    let at = row as f64;
    [(at * 0.7).sin() + 0.3 * (at * 0.21).cos(), (at * 0.31).cos(), (at * 1.3).sin()]
}

fn read(text: &str, options: &ReadOptions) -> refrain_forecast::Result<SeriesSet> {
    Ok(SeriesSet::from_csv(text.as_bytes(), "a.csv", options, Layout::Auto)?.0)
}

#[test]
fn columns_have_roles_and_future_ones_go_on_after_the_targets() {
    let known = |row: usize| usual(row).map(Some);
    let rows = (0..40).map(known).chain((40..44).map(|row| [None, None, Some(usual(row)[2])]));
    let set = read(&wide(rows), &options("p", "f", "none", "hour,weekday,month,day-of-year")).unwrap();
    let (series, covariates) = (set.first(), set.first().covariates());
    assert_eq!((series.names(), series.rows()), (&["y".to_owned()][..], 40));
    assert_eq!(covariates.rows_ahead(), Some(4));
    assert_eq!(covariates.past(3..5), [usual(3)[1], usual(4)[1]]);
    // 2 January 2024 was a Tuesday.
    let calendar = [17.0 / 23.0, 1.0 / 6.0, 0.0, 1.0 / 365.0].map(|place| place - 0.5);
    let expected: Vec<f64> = std::iter::once(usual(41)[2]).chain(calendar).collect();
    let found = covariates.future(41..42, series.time());
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-15), "{found:?} {expected:?}");
    // A row without the future covariate ends what is known.
    let rows = (0..40).map(known).chain([[None, None, Some(1.0)], [None; 3], [None, None, Some(1.0)]]);
    let set = read(&wide(rows), &options("p", "f", "none", "none")).unwrap();
    assert_eq!(set.first().covariates().rows_ahead(), Some(1));
}

#[test]
fn ids_have_covariates_and_static_values_of_their_own() {
    let mut text = "unique_id,ds,y,price,size\n".to_owned();
    for (id, days, price, size) in [("a", 1..11, 2, 5), ("b", 3..9, 7, 9)] {
        for day in days.clone() {
            text += &format!("{id},2024-03-{day:02},{},{},{size}\n", day * price, price + day);
        }
        text += &format!("{id},2024-03-{:02},,{},\n", days.end, price + days.end);
    }
    let own = options("none", "price", "size", "none");
    let set = read(&text, &own).unwrap();
    assert!(set.is_independent());
    let told: Vec<_> =
        set.series().iter().map(|of| (of.rows(), of.covariates().statics().to_vec())).collect();
    assert_eq!(told, [(10, vec![5.0]), (6, vec![9.0])]);
    let second = &set.series()[1];
    assert_eq!(second.covariates().future(0..7, second.time()), [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
    let refused = |text: &str, options: &ReadOptions, layout, words: &[&str]| {
        let message = SeriesSet::from_csv(text.as_bytes(), "a.csv", options, layout).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    refused(
        &text.replacen("a,2024-03-05,10,7,5", "a,2024-03-05,10,7,6", 1),
        &own,
        Layout::Auto,
        &["`size` of `a`", "5 and 6"],
    );
    refused(&text, &own, Layout::Grid, &["covariates of their own", "--layout independent"]);
    refused(
        &text,
        &options("size", "cost,price", "none", "none"),
        Layout::Auto,
        &["no column `cost`", "--future"],
    );
    refused(
        &text,
        &options("size", "y,price", "none", "none"),
        Layout::Auto,
        &["`y` is the ids, the times or the values"],
    );
    refused(
        &wide((0..30).map(|row| usual(row).map(Some))),
        &options("none", "none", "f", "none"),
        Layout::Auto,
        &["this file is wide", "--static"],
    );
    refused(
        &wide((0..30).map(|row| usual(row).map(Some))),
        &options("p,y", "f", "none", "none"),
        Layout::Auto,
        &["nothing to forecast"],
    );
}

/// A series cut into parts, with its covariates scaled.
struct Cut {
    set: SeriesSet,
    split: Split,
    stack: Stack,
}

fn file(change: impl Fn(usize, &mut [f64; 3])) -> SeriesSet {
    let row = |row: usize| {
        let mut cells = usual(row);
        change(row, &mut cells);
        cells.map(Some)
    };
    read(&wide((0..120).map(row)), &options("p", "f", "none", "hour")).unwrap()
}

fn cut(change: impl Fn(usize, &mut [f64; 3])) -> (Cut, CovariateScaler) {
    let set = file(change);
    let (split, stack) = set.split(&SplitRule::default(), CONTEXT, HORIZON, 0).unwrap();
    let scaler = CovariateScaler::fit(&set, &stack);
    let set = set.with_scaled_covariates(&scaler);
    (Cut { set, split, stack }, scaler)
}

fn windows(cut: &Cut, device: &Device) -> Windows {
    let scaler = cut.set.scaler(&cut.stack, Scaling::Standard).unwrap();
    Windows::of(&cut.set, &cut.stack, &scaler, (CONTEXT, HORIZON), device).unwrap()
}

fn mixer() -> TsMixerConfig {
    TsMixerConfig {
        past: 1,
        future: 2,
        d_model: 6,
        ffn: 8,
        dropout: 0.1,
        ..TsMixerConfig::new(1, CONTEXT, HORIZON)
    }
}

fn forecaster(config: TsMixerConfig, device: &Device) -> RecordedForecaster {
    let model = ModelConfig::from(config).build(DType::F32, device, 5).unwrap();
    RecordedForecaster::new(model, HORIZON, Intervals::default(), Precision::F32, 1).unwrap()
}

fn attending(past: usize) -> PatchTstConfig {
    let small = PatchTstConfig::small(CONTEXT, 3, 3, 8, 2, 1, 8, HORIZON);
    PatchTstConfig { past, channel_attention: true, revin: true, ..small }
}

#[test]
fn a_forecast_sees_past_covariates_before_it_and_future_ones_within_it_and_nothing_else() {
    const ORIGIN: usize = 60;
    let (own, of_covariates) = cut(|_, _| {});
    // The scale stays, so only what the model sees can change its forecast.
    let scaler = own.set.scaler(&own.stack, Scaling::Standard).unwrap();
    for device in devices() {
        let forecaster = forecaster(mixer(), &device);
        let planted = |rows: std::ops::Range<usize>, column: usize| {
            let plant = |row: usize, cells: &mut [f64; 3]| {
                if rows.contains(&row) {
                    cells[column] += 0.5;
                }
            };
            let set = file(plant).with_scaled_covariates(&of_covariates);
            forecaster.forecast(set.first(), ORIGIN, &scaler).unwrap().values
        };
        let base = planted(0..0, 0);
        assert_eq!(planted(ORIGIN..120, 1), base, "a past covariate after the origin, on {device}");
        assert_eq!(planted(ORIGIN..120, 0), base, "the target after the origin, on {device}");
        assert_ne!(planted(ORIGIN - 1..ORIGIN, 1), base, "a past covariate before it, on {device}");
        assert_ne!(planted(ORIGIN + 2..ORIGIN + 3, 2), base, "a future covariate within it, on {device}");
        assert_eq!(planted(ORIGIN + 3..120, 2), base, "a future covariate after it, on {device}");
        assert_eq!(planted(0..ORIGIN - CONTEXT, 2), base, "before the context, on {device}");
    }
}

#[test]
fn a_recorded_evaluation_has_the_errors_of_an_eager_one() {
    let (cut, _) = cut(|_, _| {});
    let scaler = cut.set.scaler(&cut.stack, Scaling::Standard).unwrap();
    let (units, part) = (Units::new(&cut.set, &cut.stack, &scaler, 1), &cut.split.test);
    for device in devices() {
        for precision in [Precision::F32, Precision::Bf16] {
            let (windows, model) = (windows(&cut, &device), ModelConfig::from(mixer()));
            let model = model.build(DType::F32, &device, 5).unwrap();
            let none = Intervals::default();
            let forecaster = RecordedForecaster::new(model, HORIZON, none.clone(), precision, 1).unwrap();
            let eager = |part| {
                let evaluate =
                    || evaluation::evaluate(forecaster.model(), &none, &units, &windows, part, None);
                with_precision(precision, evaluate).unwrap()
            };
            let recorded = |part| forecaster.evaluate(&units, &windows, part, None).unwrap();
            // A part of another length is recorded, too, and the first one replayed with other windows in between.
            for part in [part, &cut.split.validation, part] {
                assert_eq!(recorded(part), eager(part), "{precision:?}, {device}");
            }
            assert_ne!(eager(part), eager(&cut.split.validation));
            // A step can't be called in a worker of a thread pool.
            assert_eq!(rayon::scope(|_| recorded(part)), eager(part), "{precision:?}, {device}");
        }
    }
    // Nobody else uses this device, and a replay makes no storage.
    let device = Simulator::new(Profile::Discrete).device();
    let (windows, forecaster) = (windows(&cut, &device), forecaster(mixer(), &device));
    let storages = |evaluate: &dyn Fn() -> Evaluation| {
        let before = device.stats().allocations;
        evaluate();
        device.stats().allocations - before
    };
    let (model, intervals) = (forecaster.model(), forecaster.intervals());
    let recorded = || forecaster.evaluate(&units, &windows, part, None).unwrap();
    recorded();
    let eager = || evaluation::evaluate(model, intervals, &units, &windows, part, None).unwrap();
    let (recorded, eager) = (storages(&recorded), storages(&eager));
    assert!(recorded * 2 < eager, "{recorded} storages beside {eager}");
}

#[test]
fn windows_on_the_device_are_those_of_the_file() {
    let (cut, _) = cut(|_, _| {});
    let of = cut.set.first().covariates();
    for device in devices() {
        let windows = windows(&cut, &device);
        let starts = Tensor::from_slice(&[4_i64, 31], 2, &device).unwrap();
        let WindowCovariates { past, future, statics } = windows.covariates(&starts).unwrap();
        let (past, future) = (past.unwrap(), future.unwrap());
        assert_eq!((past.dims(), future.dims()), (&[2, 1, CONTEXT][..], &[2, 2, CONTEXT + HORIZON][..]));
        assert!(statics.is_none());
        let past: Vec<f32> = past.to_vec().unwrap();
        let expected = [4, 31].map(|first| of.past(first..first + CONTEXT).to_vec()).concat();
        assert!(past.iter().zip(&expected).all(|(a, &b)| *a == b as f32), "{past:?} {expected:?}");
        let future: Vec<f32> = future.contiguous().unwrap().to_vec().unwrap();
        let rows = of.future(31..31 + CONTEXT + HORIZON, cut.set.first().time());
        for (row, pair) in rows.chunks(2).enumerate() {
            let at = |column: usize| future[(2 + column) * (CONTEXT + HORIZON) + row];
            assert_eq!([at(0), at(1)], [pair[0] as f32, pair[1] as f32], "row {row}");
        }
    }
}

#[test]
fn the_scale_of_covariates_is_that_of_the_training_part() {
    let (_, scaler) = cut(|_, _| {});
    let (_, later) = cut(|row, cells| cells[1] += if row >= 84 { 1e3 } else { 0.0 });
    assert_eq!(scaler, later);
    let (_, earlier) = cut(|row, cells| cells[1] += if row == 83 { 1e3 } else { 0.0 });
    assert_ne!(scaler, earlier);
}

/// The losses of two epochs, and the hash of the weights.
fn train(model: ModelConfig, cut: &Cut, device: &Device, eager: bool) -> (Vec<u64>, String) {
    let (windows, split) = (windows(cut, device), &cut.split);
    let config = TrainingConfig {
        epochs: 2,
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
    };
    let loss = Loss::from_settings(
        &[("loss".to_owned(), json!("quantile")), ("levels".to_owned(), json!("80"))]
            .into_iter()
            .collect::<Values>(),
    )
    .unwrap();
    let task = Forecasting::new(model, loss, windows, split, 5).unwrap();
    let mut trainer = Trainer::of(task, config).unwrap();
    if eager {
        trainer = trainer.eager();
    }
    while !trainer.is_done() {
        trainer.epoch(Duration::from_secs(1), |_| ControlFlow::Continue(())).unwrap();
    }
    let losses = trainer.history().iter().flat_map(|report| [report.train_loss, report.validation.mse]);
    (losses.map(f64::to_bits).collect(), trainer.model().weights_sha256().unwrap())
}

#[test]
fn training_with_covariates_is_recorded_and_the_same_on_a_simulated_gpu() {
    let both = cut(|_, _| {}).0;
    // The same series with a past covariate alone.
    let text = wide((0..120).map(|row| usual(row).map(Some)));
    let set = read(&text, &options("p,f", "none", "none", "none")).unwrap();
    let (split, stack) = set.split(&SplitRule::default(), CONTEXT, HORIZON, 0).unwrap();
    let scaler = CovariateScaler::fit(&set, &stack);
    let past = Cut { set: set.with_scaled_covariates(&scaler), split, stack };
    for (model, cut) in [(mixer().into(), &both), (ModelConfig::from(attending(2)), &past)] {
        let expected = train(model.clone(), cut, &Device::cpu(), true);
        for device in ["cpu", "sim", "sim:unified"] {
            let device = device.parse().unwrap();
            assert_eq!(train(model.clone(), cut, &device, false), expected, "{} on {device}", model.name());
        }
    }
}

#[test]
fn patchtst_sees_past_covariates_as_channels_that_it_does_not_forecast() {
    for device in devices() {
        let generator = Generator::new(&device, 3).unwrap();
        let x = generator.normal([2, 3, CONTEXT], DType::F64).unwrap();
        let build = |channels, past| {
            let config = PatchTstConfig { channels, ..attending(past) };
            ModelConfig::from(config).build(DType::F64, &device, 7).unwrap()
        };
        // Both have the weights of three channels.
        let (all, some) = (build(3, 0), build(1, 2));
        let expected = all.forward(&x, Mode::Eval).unwrap().narrow(1, 0, 1).unwrap().contiguous().unwrap();
        let past = Some(x.narrow(1, 1, 2).unwrap());
        let covariates = WindowCovariates { past, ..WindowCovariates::default() };
        let context = x.narrow(1, 0, 1).unwrap();
        let got = some.forward_with(&context, &covariates, Mode::Eval).unwrap();
        assert_eq!(got.dims(), [2, 1, HORIZON]);
        let got = got.contiguous().unwrap().to_vec::<f64>().unwrap();
        assert_eq!(got, expected.to_vec::<f64>().unwrap(), "{device}");
        let message = some.forward(&context, Mode::Eval).err().unwrap().to_string();
        assert!(message.contains("none (past)") && message.contains("takes 2, 0 and 0"), "{message}");
    }
    let blind = PatchTstConfig { channel_attention: false, ..attending(2) };
    let message = ModelConfig::from(blind).validate().unwrap_err().to_string();
    assert!(message.contains("would change nothing") && message.contains("--channel-attention"), "{message}");
}

#[test]
fn models_that_take_no_covariates_name_those_that_do() {
    let (cut, _) = cut(|_, _| {});
    let window = WindowShape { channels: 1, context: CONTEXT, horizon: HORIZON };
    let refused = |name: &str| {
        let counts = cut.set.covariate_counts();
        ModelConfig::with_covariates(name, window, counts, &Values::new()).unwrap_err().to_string()
    };
    let message = refused("nlinear");
    assert!(message.contains("NLinear takes no past covariates; these models do: tsmixer"), "{message}");
    let message = refused("patchtst");
    assert!(message.contains("PatchTST takes no future covariates; these models do: tsmixer"), "{message}");
}

#[test]
fn a_forecast_without_the_future_covariates_of_its_rows_says_what_to_add() {
    let (cut, _) = cut(|_, _| {});
    let device = Device::cpu();
    let forecaster = forecaster(mixer(), &device);
    let scaler = cut.set.scaler(&cut.stack, Scaling::Standard).unwrap();
    let at = |origin| forecaster.forecast(cut.set.first(), origin, &scaler);
    at(117).unwrap();
    // Its truth ends with the series, too: it is measured, not forecast.
    at(118).unwrap();
    let message = at(120).unwrap_err().to_string();
    for word in ["3 rows of `y` after 2024-01-05 23:00:00", "gives 0", "add rows"] {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}

/// Rows of each series, and rows after them that have the future covariate alone.
const RAGGED: [(usize, usize); 5] = [(40, 5), (7, 2), (8, 0), (30, 0), (12, 6)];

fn plan(id: usize, row: usize) -> f64 {
    usual(50 * id + row)[2]
}

fn ragged() -> SeriesSet {
    let stamp = |row: usize| format!("2024-01-{:02} {:02}:00:00", 1 + row / 24, row % 24);
    let mut text = "unique_id,ds,y,f\n".to_owned();
    for (id, (rows, ahead)) in RAGGED.into_iter().enumerate() {
        for row in 0..rows + ahead {
            let y = if row < rows { usual(70 * id + row)[0].to_string() } else { String::new() };
            text += &format!("s{id},{},{y},{}\n", stamp(row), plan(id, row));
        }
    }
    read(&text, &options("none", "f", "none", "hour")).unwrap()
}

#[test]
fn a_window_that_ends_beyond_its_series_has_the_future_covariates_that_are_given_there() {
    let set = ragged();
    let (split, stack) = set.split(&SplitRule::default(), CONTEXT, HORIZON, 0).unwrap();
    let scaler = set.scaler(&stack, Scaling::Standard).unwrap();
    let set = set.clone().with_scaled_covariates(&CovariateScaler::fit(&set, &stack));
    // The scale of the plan by hand: over the training parts of all series.
    let of_training = |id: usize| stack.training(id).map(move |row| plan(id, row));
    let known: Vec<f64> = (0..RAGGED.len()).flat_map(of_training).collect();
    let mean = known.iter().sum::<f64>() / known.len() as f64;
    let variance = known.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / known.len() as f64;
    let expected = |id: usize, row: Option<usize>| match row {
        // Before a series there is nothing.
        None => [0.0; 2],
        Some(row) => {
            let (rows, ahead) = RAGGED[id];
            let plan = if row < rows + ahead { (plan(id, row) - mean) / variance.sqrt() } else { 0.0 };
            [plan, (row % 24) as f64 / 23.0 - 0.5]
        }
    };
    let config = TsMixerConfig { past: 0, ..mixer() };
    for device in devices() {
        let windows = Windows::of(&set, &stack, &scaler, (CONTEXT, HORIZON), &device).unwrap();
        let forecaster = forecaster(config.clone(), &device);
        let model = forecaster.model();
        let (mut given, mut not_given) = (0, 0);
        for part in [&split.train, &split.validation, &split.test] {
            let starts: Vec<i64> = part.starts().map(|start| start as i64).collect();
            let table = Tensor::from_slice(&starts, [starts.len()], &device).unwrap();
            let covariates = windows.covariates(&table).unwrap();
            let future: Vec<f32> =
                covariates.future.as_ref().unwrap().contiguous().unwrap().to_vec().unwrap();
            let (x, _) = windows.cut(&table).unwrap();
            let forecast = model.forward_with(&x, &covariates, Mode::Eval).unwrap();
            let forecast: Vec<f32> = forecast.contiguous().unwrap().to_vec().unwrap();
            let origins = stack.origins(part, CONTEXT);
            let origins =
                origins.flat_map(|(id, runs, _)| runs.into_iter().flatten().map(move |row| (id, row)));
            for (at, (id, origin)) in origins.enumerate() {
                for step in 0..CONTEXT + HORIZON {
                    let row = (origin + step).checked_sub(CONTEXT);
                    for (column, expected) in expected(id, row).into_iter().enumerate() {
                        let found = future[(2 * at + column) * (CONTEXT + HORIZON) + step];
                        let what = format!("series {id}, row {row:?}, column {column} on {device}");
                        assert!(
                            (f64::from(found) - expected).abs() < 1e-5,
                            "{what}: {found}, not {expected}"
                        );
                    }
                }
                let ((rows, ahead), end) = (RAGGED[id], origin + HORIZON);
                given += usize::from(rows < end && end <= rows + ahead);
                not_given += usize::from(rows + ahead < end);
                // What is forecast of the series alone is the same.
                let (of_id, alone) = (scaler.of(id..id + 1), [(&set.series()[id], origin)]);
                let alone = forecaster.forecast_independent(&alone, &of_id, None).unwrap();
                for (step, value) in of_id.transform(&alone.values).into_iter().enumerate() {
                    let found = f64::from(forecast[at * HORIZON + step]);
                    assert!(
                        (found - value).abs() < 1e-4,
                        "series {id} from {origin} on {device}: {found}, {value}"
                    );
                }
            }
        }
        assert!(given > 1 && not_given > 0, "{given} and {not_given}");
    }
}

#[test]
fn the_rows_ahead_are_a_part_of_the_data() {
    let known = |row: usize| usual(row).map(Some);
    let of = |ahead: f64| {
        let rows = (0..40).map(known).chain([[None, None, Some(ahead)]]);
        read(&wide(rows), &options("p", "f", "none", "none")).unwrap().fingerprint()
    };
    assert_eq!(of(1.0), of(1.0));
    assert_ne!(of(1.0), of(2.0));
}

#[test]
fn gaps_of_covariates_are_reported_and_refused_under_strict() {
    let whole = |row: usize| usual(row).map(Some);
    let lacking = |row: usize| {
        let [y, p, f] = whole(row);
        [y, p.filter(|_| !(3..5).contains(&row)), f.filter(|_| row != 9)]
    };
    // After the last value, the past covariate is not known, and need not be.
    let ahead = || (40..43).map(|row| [None, None, Some(usual(row)[2])]);
    let strict = ReadOptions { strict: true, ..options("p", "f", "none", "none") };
    let relaxed = ReadOptions { strict: false, ..strict.clone() };
    let read = |text: &str, options: &ReadOptions| {
        SeriesSet::from_csv(text.as_bytes(), "a.csv", options, Layout::Auto)
    };
    let text = wide((0..40).map(whole).chain(ahead()));
    assert!(read(&text, &strict).unwrap().1.is_complete());
    let text = wide((0..40).map(lacking).chain(ahead()));
    let (set, report) = read(&text, &relaxed).unwrap();
    assert_eq!(set.first().covariates().past(4..5), [usual(2)[1]]);
    assert_eq!(report.to_string(), "0 rows and 3 values missing (p: 2, f: 1)");
    assert_eq!(report.missing[0].longest_run, 2);
    let message = read(&text, &strict).unwrap_err().to_string();
    assert!(message.contains("a.csv") && message.contains("p: 2, f: 1"), "{message}");
    // A row that is not in the file is one gap, not one of each column.
    let text = wide((0..40).map(whole))
        .replace("2024-01-01 07:00:00,", "#")
        .lines()
        .fold(String::new(), |text, line| if line.starts_with('#') { text } else { text + line + "\n" });
    assert_eq!(read(&text, &relaxed).unwrap().1.to_string(), "1 row and 0 values missing");

    let long = |size: &str| {
        let row = |(id, day): (&str, usize)| {
            format!("{id},2024-03-{day:02},{day},{day},{}\n", if id == "a" { "1" } else { size })
        };
        let rows = ["a", "b"].into_iter().flat_map(|id| (1..9).map(move |day| (id, day)));
        format!("unique_id,ds,y,p,size\n{}", rows.map(row).collect::<String>())
    };
    let own = ReadOptions { strict: true, ..options("p", "none", "size", "none") };
    assert!(read(&long("2"), &own).unwrap().1.is_complete());
    let message = read(&long(""), &own).unwrap_err().to_string();
    assert!(message.contains("size of b: 1"), "{message}");
    let message =
        read(&long("2").replace("b,2024-03-04,4,4", "b,2024-03-04,4,"), &own).unwrap_err().to_string();
    assert!(message.contains("p of b: 1"), "{message}");
}
