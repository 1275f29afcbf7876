//! Cross-validation: forecasts from several origins, each by a model that has seen nothing after its origin.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use refrain::Device;
use refrain_forecast::baselines::{Baseline, LastValue, SeasonalNaive};
use refrain_forecast::data::series::{Scaler, Series, SeriesSet, SplitRule};
use refrain_forecast::tasks::forecasting::metrics::{ErrorSums, Errors, Metrics, Units};
use refrain_forecast::tasks::forecasting::{Adaptive, Forecast, Levels};
use serde::Serialize;

use super::Data;
use super::processes::{self, Ended};
use super::score::show;
use super::train::{self, Training};
use super::trained::{Next, TrainedForecaster};
use crate::cli::{CrossValidate, TableFormat};
use crate::console::{Console, count};
use crate::error::{Error, Result};
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::output::{self, Cell};
use crate::run::SavedModel;
use crate::settings::Complete;
use crate::source;
use crate::tasks::as_json;

/// The forecasts of all origins, inside the folder, without the ending that names the format.
const FORECASTS: &str = "forecasts";
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
    /// Of the same values.
    seasonal_naive: Errors,
    last_value: Errors,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    windows: &'a [Window],
    /// The windows that could not be forecast or judged because of a long gap.
    windows_left_out: &'a [usize],
    /// Over all windows.
    #[serde(flatten)]
    metrics: Metrics,
    out: String,
}

/// What all windows share.
struct Validation<'a> {
    console: Console,
    args: &'a CrossValidate,
    settings: Complete,
    set: SeriesSet,
    horizon: usize,
    /// Rows from one origin to the next.
    step: usize,
    /// Rows before each origin that choose the best epoch.
    validation: usize,
    device: Device,
    interrupt: Interrupt,
}

/// What is finished so far.
struct Finished {
    table: Table,
    windows: Vec<Window>,
    left_out: Vec<usize>,
    errors: Option<ErrorSums>,
    /// What the intervals of earlier windows have covered.
    adaptive: Option<Adaptive>,
}

pub fn run(args: &CrossValidate, settings: Complete) -> Result<()> {
    let console = Console::of_files(args.json);
    let (data, of_series) = (settings.data()?, settings.series()?);
    let horizon = of_series.horizon;
    let step = args.step.unwrap_or(horizon);
    let validation = args.validation.unwrap_or(horizon);
    let settings = settings.with_split(&SplitRule::Rows { validation, test: horizon })?;
    output::check_format(args.format)?;
    if args.processes > 1 && source::is_stdin(&data) {
        return Err(Error::usage(
            "standard input can be read by one process only",
            "leave --processes out, or pass a file by --data",
        ));
    }
    let options = of_series.read_options(None, settings.dialect()?);
    let (set, report) = source::read(&data, &options, of_series.layout)?;
    source::describe(console, &set, &report)?;
    console.line(format!(
        "split       by origins: {validation} rows of validation and {horizon} of test after what each model is trained on"
    ))?;
    let (device, interrupt) = (args.device.open()?, Interrupt::listen());
    let all = Validation { console, args, settings, set, horizon, step, validation, device, interrupt };
    // The first origin has the fewest rows before it.
    all.check_rows(0)?;
    if let Some(window) = args.train_window {
        all.interrupt.end_with_input();
        let folder = || RunFolder::create(args.out.as_deref(), "window");
        return match all.train_into(window, folder) {
            Err(Error::Forecast(gap)) if is_gap(&gap) => Err(Error::WindowLeftOut(gap)),
            done => done,
        };
    }
    let folder =
        RunFolder::create(args.out.as_deref(), &format!("{}-cross-validation", source::stem(&data)))?;
    let trained = match args.processes {
        1 => None,
        most => Some(processes::train(console, args.windows, most, folder.path(), &all.interrupt)?),
    };
    let mut done = Finished {
        table: Table::default(),
        windows: Vec::new(),
        left_out: Vec::new(),
        errors: None,
        adaptive: None,
    };
    let mut model = None;
    for window in 0..args.windows {
        console.line(format!("\nwindow {} of {}", window + 1, args.windows))?;
        let left_out = match trained.as_ref().map(|trained| &trained[window]) {
            Some(Ended::LeftOut(why)) => Ok(Some(why.clone())),
            Some(Ended::NotTrained(problem)) => Err(Error::usage(
                problem,
                "read the logs, correct what they say, and start again with another --out",
            )),
            _ => all.window(window, &folder, &mut model, &mut done),
        };
        match left_out {
            Ok(None) => {}
            Ok(Some(why)) => {
                console.warn(format!("window {} is left out: {why}", window + 1))?;
                done.left_out.push(window + 1);
            }
            Err(error) => {
                if !done.windows.is_empty() {
                    let (finished, path) = (done.windows.len(), folder.path().display());
                    console.warn(format!("{finished} windows are finished, and kept in {path}"))?;
                }
                return Err(error);
            }
        }
        done.write(&folder, args.format)?;
    }
    let Some(outcome) = done.outcome(folder.path()) else {
        return Err(Error::usage(
            "every window was left out",
            "choose other --windows or --step, or a larger --max-gap",
        ));
    };
    let mut rows: Vec<(String, Metrics)> = outcome
        .windows
        .iter()
        .map(|of| (of.cutoff.clone().unwrap_or_else(|| of.window.to_string()), of.metrics.clone()))
        .collect();
    rows.push(("all".to_owned(), outcome.metrics.clone()));
    console.line("\nerrors by origin, standardised")?;
    show(console, "after", &rows)?;
    console.line(format!("written to {}", outcome.out))?;
    console.result(&outcome)
}

/// Whether an error says that a gap leaves nothing to forecast from, to learn from or to judge.
fn is_gap(error: &refrain_forecast::Error) -> bool {
    use refrain_forecast::Error;
    matches!(error, Error::GapInContext { .. } | Error::NoWindows { .. } | Error::NothingObserved { .. })
}

/// A model and the name of its folder.
struct Model {
    forecaster: TrainedForecaster,
    folder: String,
}

impl Validation<'_> {
    /// How many rows at the end are later than the forecast of a window.
    fn later(&self, window: usize) -> usize {
        (self.args.windows - 1 - window.min(self.args.windows - 1)).saturating_mul(self.step)
    }

    /// Refuses a window that no series has rows enough for.
    fn check_rows(&self, window: usize) -> Result<()> {
        let Validation { set, args, horizon, validation, .. } = self;
        let needed =
            self.later(window).saturating_add(*horizon).saturating_add(*validation).saturating_add(1);
        let longest = set.series().iter().map(Series::rows).max().unwrap_or(0);
        if longest >= needed {
            return Ok(());
        }
        let problem = format!(
            "{}: window {} of {} needs {} rows, and the longest series has {longest}",
            set.file(),
            window + 1,
            args.windows,
            count(needed)
        );
        Err(Error::usage(problem, "choose fewer --windows, a smaller --step or a shorter --horizon"))
    }

    /// What is known at the end of a window's forecast. What comes later is cut off before anything else is done.
    fn until(&self, window: usize) -> SeriesSet {
        let least = self.validation.saturating_add(1).saturating_add(self.horizon);
        self.set.without_last(self.later(window), least)
    }

    /// What is known at the origin of a window.
    fn past(&self, window: usize) -> SeriesSet {
        let least = self.validation.saturating_add(1);
        self.set.without_last(self.later(window).saturating_add(self.horizon), least)
    }

    fn train_into(&self, window: usize, folder: impl FnOnce() -> Result<RunFolder>) -> Result<()> {
        let training = Training { interrupt: Some(&self.interrupt), ..Training::of(&self.args.training) };
        let done =
            train::run(self.console, training, &self.settings, self.until(window), folder, &self.device);
        match done {
            Err(Error::Interrupted { signal, .. }) => Err(Error::Stopped { signal }),
            done => done.map(drop),
        }
    }

    /// The model of a window, trained here unless another process has trained it.
    fn model(&self, window: usize, folder: &RunFolder) -> Result<Model> {
        let name = processes::window_folder(window);
        let inner = folder.inside(&name)?;
        if self.args.processes == 1 {
            self.train_into(window, || Ok(inner.clone()))?;
        }
        let forecaster = TrainedForecaster::load(&SavedModel::open(inner.path())?, &self.device)?;
        Ok(Model { forecaster, folder: name })
    }

    /// Forecasts one window, and adds what it gives to what is finished. Returns why it is left out, if it is.
    fn window(
        &self,
        window: usize,
        folder: &RunFolder,
        last: &mut Option<Model>,
        done: &mut Finished,
    ) -> Result<Option<String>> {
        match self.forecast(window, folder, last, done) {
            Ok(true) => Ok(None),
            Ok(false) => {
                let why = "no value that it forecasts was observed, or it lies across a long gap";
                Ok(Some(why.to_owned()))
            }
            // A gap that no window may cross is nothing that is wrong.
            Err(Error::Forecast(gap)) if is_gap(&gap) => Ok(Some(gap.to_string())),
            Err(error) => Err(error),
        }
    }

    /// The same. False if nothing of the window can be judged.
    fn forecast(
        &self,
        window: usize,
        folder: &RunFolder,
        last: &mut Option<Model>,
        done: &mut Finished,
    ) -> Result<bool> {
        let model = match last.take() {
            Some(model) if !self.args.refit => model,
            _ => self.model(window, folder)?,
        };
        // It is kept if this window is left out.
        let Model { forecaster, folder: name } = last.insert(model);
        let (past, own) = (self.past(window), forecaster.intervals().clone());
        if let Some(now) = own.adaptive().filter(|_| !past.is_independent()) {
            match &mut done.adaptive {
                Some(before) => before.recalibrate(now),
                None => done.adaptive = Some(now),
            }
        }
        if let Some(adaptive) = &mut done.adaptive {
            let of_channel = |channel| adaptive.corrections(0, channel, past.rows());
            let corrections: Vec<Vec<f32>> = (0..past.channels()).map(of_channel).collect();
            forecaster.set_intervals(own.with_corrections(&corrections))?;
        }
        let next = forecaster.next(self.console, past, None);
        forecaster.set_intervals(own)?;
        let next = next?;
        let data = forecaster.cut(self.until(window))?;
        let units = Units::new(&data.set, &data.stack, &data.scaler, forecaster.season());
        let judged = done.table.add(&next, &data, &units, forecaster.season(), done.adaptive.as_mut())?;
        let Some([errors, seasonal_naive, last_value]) = &judged else { return Ok(false) };
        let forecast = next.set.names().count();
        let end = |series: &Series| series.time().format(series.rows() - 1);
        done.windows.push(Window {
            window: window + 1,
            cutoff: (!next.set.is_independent()).then(|| end(next.set.first())),
            model: name.clone(),
            forecast,
            left_out: self.set.names().count() - forecast,
            metrics: errors.overall(),
            seasonal_naive: seasonal_naive.standardised(),
            last_value: last_value.standardised(),
        });
        let nothing = || ErrorSums::new(self.horizon, errors.levels(), &Scaler::unit(1).into());
        done.errors.get_or_insert_with(nothing).merge(0, errors);
        Ok(true)
    }
}

impl Finished {
    /// What came out, if any window is finished.
    fn outcome(&self, folder: &Path) -> Option<Outcome<'_>> {
        let Finished { windows, left_out, errors, .. } = self;
        let metrics = errors.as_ref()?.overall();
        Some(Outcome { windows, windows_left_out: left_out, metrics, out: folder.display().to_string() })
    }

    /// Writes what is finished, so that a later error loses nothing.
    fn write(&self, folder: &RunFolder, format: TableFormat) -> Result<()> {
        let Some(outcome) = self.outcome(folder.path()) else { return Ok(()) };
        let name = match format {
            TableFormat::Csv => format!("{FORECASTS}.csv"),
            TableFormat::Parquet => format!("{FORECASTS}.parquet"),
        };
        folder.write(&name, &output::table(&self.table.columns, &self.table.rows, format, &name)?)?;
        folder.write(METRICS, as_json(&outcome)?.to_string().as_bytes())
    }
}

/// All forecasts as a table.
#[derive(Default)]
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Adds the forecasts of one origin, with what came true, and measures them beside the seasonal naive forecast and the last
    /// value, over the same values of the same series: those that have a window in the test part. Adaptive intervals are told of what
    /// came true. `None` if there is no such value.
    fn add(
        &mut self,
        next: &Next,
        data: &Data,
        units: &Units,
        season: usize,
        mut adaptive: Option<&mut Adaptive>,
    ) -> Result<Option<[ErrorSums; 3]>> {
        let levels = self.levels(next)?;
        let (context, horizon) = (data.split.context, data.split.horizon);
        let seasonal = SeasonalNaive::new(season, context)?;
        let baselines: [&dyn Baseline; 2] = [&seasonal, &LastValue];
        let none = || ErrorSums::new(horizon, &Levels::NONE, units);
        let mut sums = [ErrorSums::new(horizon, &levels, units), none(), none()];
        let places: HashMap<&String, usize> =
            data.set.names().enumerate().map(|(place, name)| (name, place)).collect();
        let judged: HashSet<usize> =
            data.stack.origins(&data.split.test, context).map(|(number, ..)| number).collect();
        let independent = data.set.is_independent();
        let before = self.rows.len();
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
                self.rows.push(cells);
            }
            if !judged.contains(&if independent { unit } else { 0 }) {
                continue;
            }
            let scaler = units.scaler.of(unit..unit + 1);
            let truth = scaler.transform(&truth);
            let quantiles = scaler.transform(&quantiles(forecast, column, width));
            if let Some(adaptive) = &mut adaptive {
                let narrow = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
                adaptive.observe((0, unit), past.rows(), &narrow(&quantiles), &narrow(&truth));
            }
            sums[0].add(unit, &quantiles, &truth);
            let first = past.rows().saturating_sub(context);
            let known: Vec<f64> = past.channel(if independent { 0 } else { column }).skip(first).collect();
            let known = scaler.transform(&known);
            for (baseline, sums) in baselines.iter().zip(&mut sums[1..]) {
                let mut values = vec![0.0; horizon];
                baseline.forecast(&known, &mut values);
                sums.add(unit, &values, &truth);
            }
        }
        if sums[0].overall().count == 0 {
            self.rows.truncate(before);
            return Ok(None);
        }
        Ok(Some(sums))
    }

    /// The levels of the forecasts. They are the same for all windows.
    fn levels(&mut self, next: &Next) -> Result<Levels> {
        let levels: Vec<f64> =
            next.forecasts.first().map_or(Vec::new(), |of| of.intervals.iter().map(|i| i.level).collect());
        let names = ["unique_id", "ds", "cutoff", "y", "forecast"].map(str::to_owned);
        let bounds = levels.iter().flat_map(|level| [format!("lo-{level}"), format!("hi-{level}")]);
        self.columns = names.into_iter().chain(bounds).collect();
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
