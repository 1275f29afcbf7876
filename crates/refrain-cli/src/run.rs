//! A run's folder and what stands in it.

use std::path::{Path, PathBuf};

use refrain::{DType, Device};
use refrain_forecast::model::{PatchTst, PatchTstConfig};
use refrain_forecast::series::{Scaler, Series, Split, SplitRule};
use refrain_forecast::training::{TrainingConfig, saved_run};
use refrain_nn::checkpoint::{Checkpoint, write_atomic};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cli::Precision;
use crate::error::{Error, Result};
use crate::settings::Complete;

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
    /// The name of a bundled series, or an absolute path.
    pub source: String,
    pub strict: bool,
    pub split: SplitRule,
    /// Rows of a season, for the seasonal naive forecast.
    pub season: usize,
    /// Names of the channels, in the model's order.
    pub channels: Vec<String>,
    pub scaler: Scaler,
    /// SHA-256 of names and values after filling, to know the series again.
    pub sha256: String,
}

impl RunConfig {
    /// The configuration of a new run on this series.
    pub fn new(settings: &Complete, series: &Series) -> Result<(RunConfig, Split)> {
        let model = settings.patchtst(series.channels());
        model.validate()?;
        let training = settings.training();
        training.validate()?;
        let split = Split::new(series, &settings.split, settings.context, settings.horizon)?;
        let scaler = Scaler::fit(series, split.train.rows.clone())?;
        let season = match settings.season {
            0 => series.time().step().season(settings.context),
            season => season,
        };
        // A season that does not fit is told before the training, not after.
        refrain_forecast::baselines::SeasonalNaive::new(season, settings.context)?;
        let data = DataConfig {
            source: absolute(&settings.data),
            strict: settings.strict,
            split: settings.split,
            season,
            channels: series.names().to_vec(),
            scaler,
            sha256: fingerprint(series),
        };
        let (version, precision) = (env!("CARGO_PKG_VERSION").to_owned(), settings.precision);
        Ok((RunConfig { version, data, model, training, precision }, split))
    }

    /// Whether its parts fit each other.
    fn validate(&self, folder: &Path) -> Result<()> {
        self.model.validate()?;
        self.training.validate()?;
        let (named, scaler) = (self.data.channels.len(), &self.data.scaler);
        if [self.model.channels, scaler.mean.len(), scaler.std.len()] == [named; 3] {
            return Ok(());
        }
        let problem = format!(
            "the configuration contradicts itself: {named} channels are named, the model has {}",
            self.model.channels
        );
        Err(Error::run(folder, problem, "restore the folder, or train again"))
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

/// Names for a message, the first few of many.
fn listing(names: &[String]) -> String {
    const FEW: usize = 8;
    let more = if names.len() > FEW { format!(", ... ({} in all)", names.len()) } else { String::new() };
    names.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join(", ") + &more
}

/// A path that stays right when the working folder changes; a bundled name stays as it is.
pub fn absolute(source: &str) -> String {
    if source == refrain_forecast::data::NYC_WEATHER {
        return source.to_owned();
    }
    std::path::absolute(source).map_or_else(|_| source.to_owned(), |path| path.display().to_string())
}

/// SHA-256 over the channels' names and all values.
pub fn fingerprint(series: &Series) -> String {
    let mut hash = Sha256::new();
    for name in series.names() {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
    }
    series.values().iter().for_each(|value| hash.update(value.to_le_bytes()));
    hex(&hash.finalize())
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
        return Err(match folder.join(LATEST).is_dir() {
            true => Error::run(
                folder,
                format!("there is no {MODEL} in it, as no epoch of this run is finished yet"),
                "go on with it by `refrain train --resume`",
            ),
            false if is_panel_run(folder) => no_forecaster(folder),
            false => no_run(folder),
        });
    }
    if folder.parent().is_some_and(is_panel_run) {
        return Err(no_forecaster(folder));
    }
    let checkpoint = Checkpoint::open(folder)?;
    let config: RunConfig = checkpoint.config()?;
    config.validate(folder)?;
    let model = PatchTst::load(&checkpoint, config.model.clone(), DType::F32, device)?;
    Ok((config, model))
}

/// What made a run that is to go on.
pub fn load_interrupted(folder: &Path) -> Result<RunConfig> {
    if !is_begun(folder) {
        return Err(no_run(folder));
    }
    let config: RunConfig = saved_run(folder)?;
    config.validate(folder)?;
    Ok(config)
}

/// Whether a run was begun in a folder.
pub fn is_begun(folder: &Path) -> bool {
    folder.join(LATEST).join(MODEL).is_file()
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

fn no_run(folder: &Path) -> Error {
    Error::run(
        folder,
        "there is no run in this folder",
        "pass the folder that `refrain train` wrote to, such as runs/nyc-weather-1",
    )
}

/// A folder that belongs to one run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes the folder of a new run. A folder that holds anything is refused.
    pub fn create(wanted: Option<&Path>, stem: &str) -> Result<RunFolder> {
        let path = match wanted {
            Some(path) => claim(path)?,
            None => next_free(Path::new("runs"), stem)?,
        };
        Ok(RunFolder { path })
    }

    /// A folder inside this one, made if need be.
    pub fn inside(&self, name: &str) -> Result<RunFolder> {
        let path = self.path.join(name);
        std::fs::create_dir_all(&path).map_err(|source| Error::write(&path, source))?;
        Ok(RunFolder { path })
    }

    /// The folder of a run that is there.
    pub fn open(path: &Path) -> RunFolder {
        RunFolder { path: path.to_owned() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        Ok(write_atomic(&self.path.join(name), content)?)
    }
}

fn claim(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path).map_err(|source| Error::write(path, source))?;
    let mut entries = std::fs::read_dir(path).map_err(|source| Error::read(path, source))?;
    if entries.next().is_some() {
        return Err(Error::run(
            path,
            "the folder is not empty, and nothing is overwritten",
            "choose another --out, or go on with the run in it by --resume",
        ));
    }
    Ok(path.to_owned())
}

/// `runs/<stem>-<number>` with the first free number; making the folder is what takes it.
fn next_free(runs: &Path, stem: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(runs).map_err(|source| Error::write(runs, source))?;
    for number in 1_u64.. {
        let path = runs.join(format!("{stem}-{number}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(Error::write(&path, source)),
        }
    }
    unreachable!("numbers do not end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_numbered_and_never_share_a_folder() {
        let runs = tempfile::tempdir().unwrap();
        let paths = [(); 3].map(|()| next_free(runs.path(), "a").unwrap());
        assert_eq!(paths.map(|path| path.file_name().unwrap().to_owned()), ["a-1", "a-2", "a-3"]);
        let error = claim(runs.path()).unwrap_err().to_string();
        assert!(error.contains("not empty") && error.contains("--resume"), "{error}");
    }
}
