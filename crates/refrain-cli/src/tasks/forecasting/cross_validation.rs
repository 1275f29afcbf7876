//! Cross-validation: forecasts from several origins, each by a model that has seen nothing after its origin.

use std::collections::HashMap;

use refrain::Device;
use refrain_forecast::baselines::{Baseline, LastValue, SeasonalNaive, evaluate_set};
use refrain_forecast::data::series::{Scaler, Series, SeriesSet, SplitRule};
use refrain_forecast::tasks::forecasting::Levels;
use refrain_forecast::tasks::forecasting::evaluation::Forecast;
use refrain_forecast::tasks::forecasting::metrics::{ErrorSums, Errors, Metrics, Units};
use serde::Serialize;

use super::Data;
use super::score::show;
use super::train::{self, Training};
use super::trained::{Next, TrainedForecaster};
use crate::cli::{CheckpointEvery, CrossValidate};
use crate::console::{Console, count};
use crate::error::{Error, Result};
use crate::folder::RunFolder;
use crate::output::{self, Cell};
use crate::run::SavedModel;
use crate::settings::Complete;
use crate::source;

/// The forecasts of all origins, inside the folder.
const FORECASTS: &str = "forecasts.csv";
/// The metrics of all origins, inside the folder.
const METRICS: &str = "cross-validation.json";

/// What was forecast from one origin.
#[derive(Debug, Serialize)]
struct Window {
    /// From 1, the earliest.
    window: usize,
    /// Of a grid, the time of the last row before the forecast. Independent series have one each.
    #[serde(skip_serializing_if = "Option::is_none")]
    cutoff: Option<String>,
    /// The folder of the model.
    model: String,
    /// Series or channels that were forecast, and those that were too short, or have a long gap before the origin.
    forecast: usize,
    left_out: usize,
    /// In units of each channel's standard deviation in its training part.
    #[serde(flatten)]
    metrics: Metrics,
    seasonal_naive: Errors,
    last_value: Errors,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome {
    windows: Vec<Window>,
    /// Over all windows.
    #[serde(flatten)]
    metrics: Metrics,
    out: String,
}

pub fn run(args: &CrossValidate, settings: Complete) -> Result<()> {
    let (console, device) = (Console::of_files(args.json), args.device.open()?);
    let (data, of_series) = (settings.data()?, settings.series()?);
    let horizon = of_series.horizon;
    let step = args.step.unwrap_or(horizon);
    let validation = args.validation.unwrap_or(horizon);
    let settings = settings.with_split(&SplitRule::Rows { validation, test: horizon })?;
    let (set, report) = source::read(&data, &of_series.read_options(None), of_series.layout)?;
    source::describe(console, &set, &report)?;
    let folder =
        RunFolder::create(args.out.as_deref(), &format!("{}-cross-validation", source::stem(&data)))?;
    let mut table = Table::default();
    let (mut windows, mut all) = (Vec::new(), None);
    let mut trained = None;
    for window in 0..args.windows {
        // What comes after the forecast of this window is cut off before anything else is done.
        let later = (args.windows - 1 - window).saturating_mul(step);
        let known = later.saturating_add(horizon);
        let needed = known.saturating_add(validation).saturating_add(1);
        let longest = set.series().iter().map(Series::rows).max().unwrap_or(0);
        if longest < needed {
            let problem = format!(
                "{}: window {} of {} needs {} rows, and the longest series has {longest}",
                set.file(),
                window + 1,
                args.windows,
                count(needed)
            );
            return Err(Error::usage(
                problem,
                "choose fewer --windows, a smaller --step or a shorter --horizon",
            ));
        }
        let least = validation.saturating_add(1);
        let (until, past) =
            (set.without_last(later, least.saturating_add(horizon)), set.without_last(known, least));
        console.line(format!("\nwindow {} of {}", window + 1, args.windows))?;
        let mut model: Model = match trained.take() {
            Some(model) if !args.refit => model,
            _ => train_one(console, args, &settings, &folder, until.clone(), window, &device)?,
        };
        let next = model.forecaster.next(console, past, None)?;
        let data = model.forecaster.cut(until)?;
        let units = Units::new(&data.set, &data.stack, &data.scaler, model.forecaster.season());
        let errors = table.add(&next, &data, &units, horizon)?;
        windows.push(of_window(window, &model, &next, &data, &units, &errors, set.names().count())?);
        let nothing = || ErrorSums::new(horizon, errors.levels(), &Scaler::unit(1).into());
        all.get_or_insert_with(nothing).merge(0, &errors);
        trained = Some(model);
    }
    let Some(overall) = all.map(|sums| sums.overall()) else {
        return Err(Error::usage("there is no window", "choose --windows 1 or more"));
    };
    let mut rows: Vec<(String, Metrics)> = windows
        .iter()
        .map(|of| (of.cutoff.clone().unwrap_or_else(|| of.window.to_string()), of.metrics.clone()))
        .collect();
    rows.push(("all".to_owned(), overall.clone()));
    console.line("\nerrors by origin, standardised")?;
    show(console, "after", &rows)?;
    let path = folder.path().display().to_string();
    folder.write(FORECASTS, &table.lines)?;
    let outcome = Outcome { windows, metrics: overall, out: path.clone() };
    folder.write(METRICS, crate::tasks::as_json(&outcome)?.to_string().as_bytes())?;
    console.line(format!("written to {path}"))?;
    console.result(&outcome)
}

/// A model and the name of its folder.
struct Model {
    forecaster: TrainedForecaster,
    folder: String,
}

fn train_one(
    console: Console,
    args: &CrossValidate,
    settings: &Complete,
    folder: &RunFolder,
    set: SeriesSet,
    window: usize,
    device: &Device,
) -> Result<Model> {
    let name = format!("window-{}", window + 1);
    let inner = folder.inside(&name)?;
    let training = Training { eager: args.training.eager, checkpoint_every: CheckpointEvery::Epoch, init: None };
    let done = train::run(console, training, settings, set, || Ok(inner.clone()), device);
    if let Err(Error::Interrupted { signal, .. }) = done {
        return Err(Error::Stopped { signal });
    }
    done?;
    let forecaster = TrainedForecaster::load(&SavedModel::open(inner.path())?, device)?;
    Ok(Model { forecaster, folder: name })
}

fn of_window(
    window: usize,
    model: &Model,
    next: &Next,
    data: &Data,
    units: &Units,
    errors: &ErrorSums,
    all: usize,
) -> Result<Window> {
    let Data { set, split, stack, .. } = data;
    let errors_of = |baseline: &dyn Baseline| {
        evaluate_set(baseline, set, stack, units, (split, &split.test)).standardised()
    };
    let seasonal = SeasonalNaive::new(model.forecaster.season(), split.context)?;
    let forecast = next.set.names().count();
    let last = |series: &Series| series.time().format(series.rows() - 1);
    Ok(Window {
        window: window + 1,
        cutoff: (!next.set.is_independent()).then(|| last(next.set.first())),
        model: model.folder.clone(),
        forecast,
        left_out: all - forecast,
        metrics: errors.overall(),
        seasonal_naive: errors_of(&seasonal),
        last_value: errors_of(&LastValue),
    })
}

/// All forecasts as CSV.
#[derive(Default)]
struct Table {
    lines: Vec<u8>,
}

impl Table {
    /// Adds the forecasts of one origin, with what came true, and measures them.
    fn add(&mut self, next: &Next, data: &Data, units: &Units, horizon: usize) -> Result<ErrorSums> {
        let levels = self.levels(next)?;
        let mut errors = ErrorSums::new(horizon, &levels, units);
        let places: HashMap<&String, usize> =
            data.set.names().enumerate().map(|(place, name)| (name, place)).collect();
        let independent = data.set.is_independent();
        for (at, (name, forecast, column, width)) in next.columns().enumerate() {
            let Some(&unit) = places.get(name) else { continue };
            let (whole, channel) = match independent {
                true => (&data.set.series()[unit], 0),
                false => (data.set.first(), unit),
            };
            let past = &next.set.series()[if independent { at } else { 0 }];
            let truth: Vec<f64> = whole.grid().truth(channel).skip(past.rows()).take(horizon).collect();
            let cutoff = Cell::Text(past.time().format(past.rows() - 1));
            for (step, &truth) in truth.iter().enumerate() {
                let ds = Cell::Text(past.time().format(past.rows() + step));
                let y = if truth.is_nan() { Cell::Text(String::new()) } else { Cell::Number(truth as f32) };
                let mut cells = vec![Cell::Text(name.clone()), ds, cutoff.clone(), y];
                cells.extend(super::table::cells(forecast, step * width + column));
                self.lines.extend(output::line(&cells)?);
            }
            let scaler = units.scaler.of(unit..unit + 1);
            errors.add(
                unit,
                &scaler.transform(&quantiles(forecast, column, width)),
                &scaler.transform(&truth),
            );
        }
        Ok(errors)
    }

    /// The levels of the forecasts. The header is written before the first.
    fn levels(&mut self, next: &Next) -> Result<Levels> {
        let levels: Vec<f64> =
            next.forecasts.first().map_or(Vec::new(), |of| of.intervals.iter().map(|i| i.level).collect());
        if self.lines.is_empty() {
            let names = ["unique_id", "ds", "cutoff", "y", "forecast"].map(str::to_owned);
            let bounds = levels.iter().flat_map(|level| [format!("lo-{level}"), format!("hi-{level}")]);
            let header: Vec<Cell> = names.into_iter().chain(bounds).map(Cell::Text).collect();
            self.lines = output::line(&header)?;
        }
        let wrong = |problem: String| Error::usage(problem, "train the windows again");
        Levels::new(levels).map_err(wrong)
    }
}

/// All quantiles of a column of a forecast, `[quantiles, horizon]`, ascending.
fn quantiles(forecast: &Forecast, column: usize, width: usize) -> Vec<f64> {
    let of = |values: &[f64]| values.iter().skip(column).step_by(width).copied().collect::<Vec<f64>>();
    let low = forecast.intervals.iter().rev().map(|interval| of(&interval.low));
    let high = forecast.intervals.iter().map(|interval| of(&interval.high));
    low.chain(std::iter::once(of(&forecast.values))).chain(high).flatten().collect()
}
