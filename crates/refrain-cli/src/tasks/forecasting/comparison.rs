//! Several forecasters, trained and tested on the same parts of a series.

use std::path::Path;

use refrain::Device;
use refrain_forecast::data::series::SeriesSet;
use refrain_forecast::plot::{Bar, bars_svg};
use refrain_forecast::settings::Values;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::train::{self, Training};
use crate::cli::{CheckpointEvery, Compare};
use crate::console::{Console, count, number, seconds, table};
use crate::error::{Error, Result};
use crate::folder::RunFolder;
use crate::interrupt::Interrupt;
use crate::output::{self, Cell};
use crate::run::{self, COMPARISON, COMPARISON_PLOT, COMPARISON_TABLE, OUTCOME};
use crate::run_config::{Forecasts, RunConfig};
use crate::settings::{Complete, DECAY_ALL, Settings};
use crate::source;
use crate::tasks::as_json;

/// What is compared, as the folder keeps it.
#[derive(Debug, Serialize, Deserialize)]
struct Comparison {
    written_by: String,
    /// The settings that were chosen for each model.
    models: Vec<Chosen>,
    eager: bool,
    #[serde(default)]
    tensorboard: bool,
    /// The series that all models see.
    #[serde(default)]
    data: Option<Seen>,
    /// The test errors of what is finished, the lowest MSE first.
    #[serde(default)]
    rows: Vec<Row>,
}

/// What tells whether a file still has the series that the comparison began with.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    /// Channels of a table, or independent series.
    series: usize,
    /// Of all independent series together.
    rows: usize,
    sha256: String,
}

impl Seen {
    fn of(set: &SeriesSet) -> Seen {
        Seen { series: set.names().count(), rows: set.rows(), sha256: set.fingerprint() }
    }

    /// Refuses other series than these: the models that are finished have not seen them.
    fn check(&self, set: &SeriesSet, source: &str) -> Result<()> {
        let now = Seen::of(set);
        if *self == now {
            return Ok(());
        }
        let counts = |of: &Seen| json!({ "series": of.series, "rows": of.rows });
        let mut changed = run::differences(&counts(self), &counts(&now), "now").join(", ");
        if changed.is_empty() {
            changed = "names or values are not the same".to_owned();
        }
        let problem = format!("the data has changed since the comparison began: {changed}");
        Err(Error::run(Path::new(source), problem, "restore the file, or start a new comparison with --out"))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Chosen {
    model: String,
    settings: Values,
}

/// The test errors of a model or a baseline, in units of the channels' standard deviations.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    name: String,
    mse: f64,
    mae: f64,
    rmse: Option<f64>,
    /// `None` where it is not defined.
    mase: Option<f64>,
    smape: Option<f64>,
    /// Of a model with intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crps: Option<f64>,
    /// What follows is known of trained models only.
    trained: Option<TrainedRow>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct TrainedRow {
    parameters: u64,
    epochs: u64,
    best_epoch: u64,
    seconds: f64,
    /// The run folder, inside that of the comparison.
    folder: String,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    rows: &'a [Row],
    device: String,
    out: String,
}

pub fn start(args: &Compare, all: &[Complete]) -> Result<()> {
    let (console, device) = (Console::of_files(args.json), args.device.open()?);
    let Some(first) = all.first() else {
        return Err(Error::usage("there is no model to compare", "name them by --models"));
    };
    let set = read(console, first)?;
    // All of them are possible before the first is trained.
    for settings in all {
        RunConfig::<Forecasts>::new(settings, set.clone())?;
    }
    let data = first.data()?;
    let folder = RunFolder::create(args.out.as_deref(), &format!("{}-comparison", source::stem(&data)))?;
    let chosen = |settings: &Complete| {
        let (model, mut settings) = (settings.model().to_owned(), settings.chosen());
        settings.insert("data".to_owned(), source::lasting(&data).into());
        settings.entry(DECAY_ALL.to_owned()).or_insert(false.into());
        Chosen { model, settings }
    };
    let comparison = Comparison {
        written_by: concat!("refrain ", env!("CARGO_PKG_VERSION")).to_owned(),
        models: all.iter().map(chosen).collect(),
        eager: args.training.eager,
        tensorboard: args.training.tensorboard,
        data: Some(Seen::of(&set)),
        rows: Vec::new(),
    };
    folder.write(COMPARISON, as_json(&comparison)?.to_string().as_bytes())?;
    run(console, comparison, &folder, &set, &device)
}

pub fn resume(args: &Compare, path: &Path) -> Result<()> {
    let (console, device) = (Console::of_files(args.json), args.device.open()?);
    let folder = RunFolder::open_with(path, COMPARISON, "pass the folder that `refrain compare` wrote to")?;
    let file = path.join(COMPARISON);
    let text = std::fs::read_to_string(&file).map_err(|source| Error::read(&file, source))?;
    let mut comparison: Comparison = serde_json::from_str(&text).map_err(|error| damaged(&file, &error))?;
    for chosen in &mut comparison.models {
        // Where it was not kept, an earlier version began the comparison, and everything decayed.
        chosen.settings.entry(DECAY_ALL.to_owned()).or_insert(true.into());
    }
    let Some(first) = comparison.models.first() else {
        return Err(Error::run(&file, "it names no model", "start a new comparison"));
    };
    let settings = settings_of(first)?;
    let set = read(console, &settings)?;
    if let Some(seen) = &comparison.data {
        seen.check(&set, &settings.data()?)?;
    }
    run(console, comparison, &folder, &set, &device)
}

fn read(console: Console, settings: &Complete) -> Result<SeriesSet> {
    let (data, of_series) = (settings.data()?, settings.series()?);
    let options = of_series.read_options(None, settings.dialect()?);
    let (set, report) = source::read(&data, &options, of_series.layout)?;
    source::describe(console, &set, &report)?;
    Ok(set)
}

fn settings_of(chosen: &Chosen) -> Result<Complete> {
    Settings::of(chosen.settings.clone()).resolve_over(None, None, Values::new())
}

fn damaged(file: &Path, error: &serde_json::Error) -> Error {
    Error::run(file, format!("it cannot be read: {error}"), "restore the file, or start a new comparison")
}

/// Trains what is not finished yet. The table is written after each model.
fn run(
    console: Console,
    mut comparison: Comparison,
    folder: &RunFolder,
    set: &SeriesSet,
    device: &Device,
) -> Result<()> {
    let interrupt = Interrupt::listen();
    let training = Training {
        eager: comparison.eager,
        checkpoint_every: CheckpointEvery::Epoch,
        init: None,
        interrupt: Some(&interrupt),
        tensorboard: comparison.tensorboard,
    };
    let models = comparison.models.len();
    let mut outcomes = Vec::with_capacity(models);
    for (at, chosen) in comparison.models.iter().enumerate() {
        let inner = folder.inside(&chosen.model)?;
        console.line(format!("\nmodel {} of {models}: {}", at + 1, chosen.model))?;
        if let Some(outcome) = finished(&inner)? {
            console.line("finished    before")?;
            outcomes.push(outcome);
            continue;
        }
        let done = match run::is_saved(inner.path()) {
            true => train::go_on(console, training, inner.clone(), set.clone(), device),
            false => {
                let settings = settings_of(chosen)?;
                train::run(console, training, &settings, set.clone(), || Ok(inner.clone()), device)
            }
        };
        let outcome = match done {
            Err(Error::Interrupted { signal, .. }) => return Err(paused(signal, folder)),
            done => as_json(&done?)?,
        };
        inner.write(OUTCOME, outcome.to_string().as_bytes())?;
        outcomes.push(outcome);
        if let Some(signal) = interrupt.asked().filter(|_| at + 1 < models) {
            return Err(paused(signal, folder));
        }
    }
    comparison.rows = rows(&comparison.models, &outcomes, folder.path())?;
    let rows = &comparison.rows;
    show(console, rows)?;
    let kept = as_json(&comparison)?.to_string();
    folder.write(COMPARISON_TABLE, &csv(rows)?)?;
    folder.write(COMPARISON_PLOT, plot(folder.path(), rows).as_bytes())?;
    folder.write(COMPARISON, kept.as_bytes())?;
    let out = folder.path().display().to_string();
    console.line(format!("written to {out}"))?;
    console.result(&Outcome { rows, device: device.name(), out })
}

fn paused(signal: crate::interrupt::Signal, folder: &RunFolder) -> Error {
    Error::Paused { signal, command: "compare", dir: folder.path().to_owned() }
}

/// The result of a run that is finished.
fn finished(folder: &RunFolder) -> Result<Option<Value>> {
    let file = folder.path().join(OUTCOME);
    match std::fs::read_to_string(&file) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| damaged(&file, &error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::read(&file, source)),
    }
}

/// A row for each model and each baseline, the lowest MSE first.
fn rows(models: &[Chosen], outcomes: &[Value], folder: &Path) -> Result<Vec<Row>> {
    let missing = |name: &str| {
        Error::run(
            folder,
            format!("a result in it has no {name}"),
            "remove that run's outcome.json, and resume",
        )
    };
    let whole = |outcome: &Value, name: &str| outcome[name].as_u64().ok_or_else(|| missing(name));
    let row = |name: &str, key: &str, outcome: &Value, trained| {
        let metric = |metric: &str| outcome[format!("{key}_{metric}")].as_f64();
        Some(Row {
            name: name.to_owned(),
            mse: metric("mse")?,
            mae: metric("mae")?,
            rmse: metric("rmse"),
            mase: metric("mase"),
            smape: metric("smape"),
            crps: metric("crps"),
            trained,
        })
    };
    let mut rows = Vec::new();
    for (Chosen { model, .. }, outcome) in models.iter().zip(outcomes) {
        let trained = TrainedRow {
            parameters: whole(outcome, "parameters")?,
            epochs: whole(outcome, "epochs")?,
            best_epoch: whole(outcome, "best_epoch")?,
            seconds: outcome["seconds"].as_f64().ok_or_else(|| missing("seconds"))?,
            folder: model.clone(),
        };
        rows.push(row(model, "test", outcome, Some(trained)).ok_or_else(|| missing("test_mse"))?);
    }
    // They are the same for every model, which sees the same windows.
    if let Some(outcome) = outcomes.first() {
        let all = [("linear", "linear"), ("seasonal naive", "seasonal_naive"), ("last value", "last_value")];
        rows.extend(all.iter().filter_map(|(name, key)| row(name, key, outcome, None)));
    }
    rows.sort_by(|a, b| a.mse.total_cmp(&b.mse));
    Ok(rows)
}

fn show(console: Console, rows: &[Row]) -> Result<()> {
    let with_crps = rows.iter().any(|row| row.crps.is_some());
    let mut header = vec!["test errors, standardised", "MSE", "MAE", "RMSE", "MASE", "sMAPE"];
    header.extend(with_crps.then_some("CRPS"));
    header.extend(["parameters", "epochs", "trained in"]);
    let row = |row: &Row| {
        let nothing = || "-".to_owned();
        let mut cells = vec![row.name.clone(), number(row.mse), number(row.mae)];
        cells.extend([row.rmse, row.mase].map(|metric| metric.map_or_else(nothing, number)));
        cells.push(row.smape.map_or_else(nothing, |smape| format!("{smape:.1} %")));
        if with_crps {
            cells.push(row.crps.map_or_else(nothing, number));
        }
        match &row.trained {
            None => cells.resize(header.len(), nothing()),
            Some(of) => cells.extend([count(of.parameters), of.epochs.to_string(), seconds(of.seconds)]),
        }
        cells
    };
    console.line(format!("\n{}", table(&header, &rows.iter().map(row).collect::<Vec<_>>())))
}

fn csv(rows: &[Row]) -> Result<Vec<u8>> {
    let text = |text: &str| Cell::Text(text.to_owned());
    let header = [
        "name",
        "mse",
        "mae",
        "rmse",
        "mase",
        "smape",
        "crps",
        "parameters",
        "epochs",
        "best_epoch",
        "seconds",
        "folder",
    ];
    let mut lines = vec![output::line(&header.map(text))?];
    for row in rows {
        let number = |value: f64| Cell::Text(value.to_string());
        let mut cells = vec![text(&row.name), number(row.mse), number(row.mae)];
        let metrics = [row.rmse, row.mase, row.smape, row.crps];
        cells.extend(metrics.map(|metric| metric.map_or(text(""), number)));
        match &row.trained {
            None => cells.resize(header.len(), text("")),
            Some(of) => cells.extend([
                text(&of.parameters.to_string()),
                text(&of.epochs.to_string()),
                text(&of.best_epoch.to_string()),
                number(of.seconds),
                text(&of.folder),
            ]),
        }
        lines.push(output::line(&cells)?);
    }
    Ok(lines.concat())
}

fn plot(folder: &Path, rows: &[Row]) -> String {
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let bars: Vec<Bar> = rows
        .iter()
        .map(|row| Bar {
            name: &row.name,
            values: vec![row.mse, row.mae],
            is_baseline: row.trained.is_none(),
        })
        .collect();
    bars_svg(&format!("{name}: test errors (standardised)"), &["MSE", "MAE"], &bars)
}
