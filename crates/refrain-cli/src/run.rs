//! A run's folder and what stands in it.

use std::collections::BTreeSet;
use std::path::Path;

use refrain::{DType, Device};
use refrain_forecast::data::series::{MaxGap, Scaler, Series, Split, SplitRule, Step};
use refrain_forecast::models::patchtst::{PatchTst, PatchTstConfig};
use refrain_forecast::training::{SavedRun, TrainingConfig};
use refrain_nn::checkpoint::Checkpoint;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::Precision;
use crate::console::note;
use crate::error::{Error, Result};
use crate::folder::LOCK;
use crate::settings::Complete;
use crate::source;

/// Everything that made a run, as its checkpoints keep it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// The version of the program.
    pub version: String,
    pub data: DataConfig,
    pub model: PatchTstConfig,
    pub training: TrainingConfig,
    #[serde(default)]
    pub precision: Precision,
}

/// The series of a run and how it is cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    /// The name of a bundled series, an absolute path, or `-` for standard input.
    pub source: String,
    pub strict: bool,
    /// The calendar; runs from before it was kept have none.
    #[serde(default)]
    pub step: Option<Step>,
    pub split: SplitRule,
    /// Rows of a season, for the seasonal naive forecast.
    pub season: usize,
    /// Names of the channels, in the model's order.
    pub channels: Vec<String>,
    pub scaler: Scaler,
    /// The longest gap that is filled across.
    #[serde(default)]
    pub max_gap: MaxGap,
    /// SHA-256 of names and values after filling, and of what was filled, to know the series again.
    pub sha256: String,
}

impl RunConfig {
    /// The configuration of a new run on this series.
    pub fn new(settings: &Complete, series: &Series) -> Result<(RunConfig, Split)> {
        let model = settings.patchtst(series.channels());
        model.validate()?;
        let training = settings.training();
        training.validate()?;
        let season = match settings.season {
            0 => series.time().step().season(settings.context),
            season => season,
        };
        let max_gap = settings.max_gap.rows(season, series.time().step(), settings.context);
        let split = Split::new(series, &settings.split, settings.context, settings.horizon, max_gap)?;
        let scaler = Scaler::fit(series, split.train.rows.clone())?;
        // A season that does not fit is told before the training, not after.
        refrain_forecast::baselines::SeasonalNaive::new(season, settings.context)?;
        let data = DataConfig {
            source: source::lasting(&settings.data),
            strict: settings.strict,
            step: Some(series.time().step()),
            split: settings.split,
            season,
            channels: series.names().to_vec(),
            scaler,
            max_gap: settings.max_gap,
            sha256: series.fingerprint(),
        };
        let (version, precision) = (env!("CARGO_PKG_VERSION").to_owned(), settings.precision);
        Ok((RunConfig { version, data, model, training, precision }, split))
    }

    /// How the run cuts a series.
    pub fn split(&self, series: &Series) -> Result<Split> {
        let PatchTstConfig { context, horizon, .. } = self.model;
        Ok(Split::new(series, &self.data.split, context, horizon, self.max_gap(series))?)
    }

    /// The longest gap of a series that the run fills across, in rows.
    pub fn max_gap(&self, series: &Series) -> usize {
        self.data.max_gap.rows(self.data.season, series.time().step(), self.model.context)
    }

    /// Whether its parts fit each other.
    fn validate(&self, folder: &Path) -> Result<()> {
        self.model.validate()?;
        self.training.validate()?;
        let refuse = |problem: String| {
            let problem = format!("the configuration contradicts itself: {problem}");
            Err(Error::run(folder, problem, "restore the folder, or train again"))
        };
        let DataConfig { channels, scaler, season, .. } = &self.data;
        let named = channels.len();
        if [self.model.channels, scaler.mean.len(), scaler.std.len()] != [named; 3] {
            return refuse(format!("{named} channels are named, the model has {}", self.model.channels));
        }
        if let Some(channel) = scaler.fault() {
            let (mean, std) = (scaler.mean[channel], scaler.std[channel]);
            return refuse(format!("`{}` has a mean of {mean} and a deviation of {std}", channels[channel]));
        }
        if *season == 0 || *season > self.model.context {
            return refuse(format!("a season of {season} rows, with a context of {}", self.model.context));
        }
        Ok(())
    }

    /// The part of a series that the model can be used on has the channels that it was trained on.
    pub fn check_channels(&self, series: &Series) -> Result<()> {
        if series.names() == self.data.channels {
            return Ok(());
        }
        Err(Error::usage(
            format!(
                "{} has the channels {}, the model was trained on {}",
                series.file(),
                listing(series.names()),
                listing(&self.data.channels)
            ),
            "pass a series with the same columns in the same order",
        ))
    }
}

/// Refuses settings that differ from those of the run in a folder; the version of the program may.
pub fn check_same(run: &impl Serialize, wanted: &impl Serialize, folder: &Path) -> Result<()> {
    const FEW: usize = 3;
    let [run, wanted] = [serde_json::to_value(run), serde_json::to_value(wanted)];
    let mut all = Vec::new();
    differences("", &run.map_err(Error::Json)?, &wanted.map_err(Error::Json)?, &mut all);
    all.retain(|difference| !difference.starts_with("version "));
    if all.is_empty() {
        return Ok(());
    }
    let more = if all.len() > FEW { format!(" and {} more", all.len() - FEW) } else { String::new() };
    all.truncate(FEW);
    let problem = format!("the run in it was begun with other settings: {}{more}", all.join(", "));
    Err(Error::run(folder, problem, "give the same, or choose another --out"))
}

/// Where two settings differ, as in `model.layers 3 (now 2)`.
fn differences(name: &str, run: &Value, now: &Value, all: &mut Vec<String>) {
    match (run, now) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let inner = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                differences(&inner, &of(a), &of(b), all);
            }
        }
        // A run from before a setting was kept says nothing of it.
        (Value::Null, _) => {}
        _ if run == now => {}
        (Value::Array(_), _) | (_, Value::Array(_)) => all.push(format!("{name} (not the same now)")),
        _ => all.push(format!("{name} {run} (now {now})")),
    }
}

/// Names for a message, the first few of many.
fn listing(names: &[String]) -> String {
    const FEW: usize = 8;
    let more = if names.len() > FEW { format!(", ... ({} in all)", names.len()) } else { String::new() };
    names.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join(", ") + &more
}

/// The folder, inside that of the run, of the last state; the best weights lie beside it.
const LATEST: &str = "checkpoint";
const MODEL: &str = refrain_nn::checkpoint::TENSORS;
/// The folder, inside that of a cross-asset run, of a fold; folds count from 1.
pub fn fold_folder(fold: usize) -> String {
    format!("fold-{fold}")
}
pub const FOLDS: &str = "folds.json";
pub const METRICS: &str = "metrics.jsonl";
pub const LOSS: &str = "loss.svg";
pub const FORECAST: &str = "forecast.svg";

/// The best model of a run, and what made it.
pub fn load(folder: &Path, device: &Device) -> Result<(RunConfig, PatchTst)> {
    if !folder.join(MODEL).is_file() {
        return Err(match is_saved(folder) {
            true => Error::run(
                folder,
                format!("there is no {MODEL} in it, as no epoch of this run is finished yet"),
                "go on with it by `refrain train --resume`",
            ),
            false if is_begun(folder) => no_forecaster(folder),
            false => unbegun(folder),
        });
    }
    if folder.parent().is_some_and(is_panel_run) {
        return Err(no_forecaster(folder));
    }
    let checkpoint = Checkpoint::open(folder)?;
    warn(checkpoint.unverified());
    let config: RunConfig = checkpoint.config()?;
    config.validate(folder)?;
    let model = PatchTst::load(&checkpoint, config.model.clone(), DType::F32, device)?;
    Ok((config, model))
}

/// A run that is to go on, and what made it.
pub fn load_interrupted(folder: &Path) -> Result<(RunConfig, SavedRun)> {
    let saved = open_saved(folder)?;
    let config: RunConfig = saved.run()?;
    config.validate(folder)?;
    saved.check_size(config.model.size()?)?;
    Ok((config, saved))
}

/// Opens what a run saved to go on from.
pub fn open_saved(folder: &Path) -> Result<SavedRun> {
    let saved = SavedRun::open(folder)?;
    warn(saved.unverified());
    Ok(saved)
}

fn warn(unverified: Option<String>) {
    if let Some(why) = unverified {
        note(format!("warning: {why}"));
    }
}

/// The files that a run writes into its folders.
pub const FILES: [&str; 7] = [MODEL, refrain_nn::checkpoint::CONFIG, FOLDS, METRICS, LOSS, FORECAST, LOCK];

/// Whether a folder of this name, in lower case, is one inside that of a run.
pub fn is_inner_folder(name: &str) -> bool {
    name == LATEST || name.strip_prefix("fold-").is_some_and(|fold| fold.parse::<usize>().is_ok())
}

/// Whether a run writes files or folders of this name, in lower case, into its folders.
pub fn is_name_of_run(name: &str) -> bool {
    FILES.contains(&name) || is_inner_folder(name)
}

/// Whether a folder is that of a run, or one inside it.
pub fn is_of_run(folder: &Path) -> bool {
    [MODEL, LATEST, LOCK].iter().any(|name| folder.join(name).exists()) || is_panel_run(folder)
}

/// Whether a folder holds a state to go on from.
pub fn is_saved(folder: &Path) -> bool {
    folder.join(LATEST).join(MODEL).is_file()
}

/// Whether a run was begun in a folder, of whatever model.
pub fn is_begun(folder: &Path) -> bool {
    is_saved(folder) || is_saved(&folder.join(fold_folder(1)))
}

/// Whether a folder is that of a cross-asset run.
pub fn is_panel_run(folder: &Path) -> bool {
    folder.join(fold_folder(1)).is_dir()
}

fn no_forecaster(folder: &Path) -> Error {
    Error::run(
        folder,
        "it is the run of a cross-asset model, which makes no forecasts",
        "pass the folder of a PatchTST run; what the folds came to is in folds.json",
    )
}

/// Why nothing can go on in a folder in which no run was begun.
pub fn unbegun(folder: &Path) -> Error {
    if folder.join(LOCK).exists() {
        let problem = "the run in this folder ended before it was saved for the first time";
        return Error::run(folder, problem, "start it again by `refrain train --out` and its settings");
    }
    Error::run(
        folder,
        "there is no run in this folder",
        "pass the folder that `refrain train` wrote to, such as runs/nyc-weather-1",
    )
}
