//! What the commands do with a user's files, without output: for the random inputs of `refrain-fuzz`.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use refrain::Device;
use refrain_forecast::data::panel::Panel;
use refrain_forecast::data::series::{Series, SeriesSet};
use refrain_forecast::tasks::forecasting::Forecasting;
use refrain_forecast::training::{SavedRun, Trainer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::console::Console;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::output::{self, Cell};
use crate::run::SavedModel;
use crate::run_config::{Classes, Forecasts, RunConfig, TaskConfig};
use crate::settings::{Complete, Settings, Task};
use crate::tasks::forecasting::trained::TrainedForecaster;
use crate::tasks::{classification, forecasting};

/// A model whose training needs more bytes than this is not built.
const SMALL: f64 = 8e6;

/// What `train --config FILE` does before its first step, on a series, or on a panel if the model is a classifier. A model
/// with a large estimate is not built.
///
/// # Errors
/// What the command says.
///
/// # Panics
/// If a run folder would store other settings than these.
pub fn settings(file: &Path, series: &Series, panel: &[u8]) -> Result<(), String> {
    configure(file, series, panel).map_err(|error| error.to_string())
}

fn configure(file: &Path, series: &Series, panel: &[u8]) -> Result<()> {
    let settings = Settings::resolve(Settings::default(), Some(file), None)?;
    let device = Device::cpu();
    match settings.task() {
        Task::Forecasting => {
            trainer(&settings, series, &device)?;
        }
        Task::Classification => {
            let (panel, _) = Panel::from_csv(panel, "the panel", &settings.panel_options()?)?;
            let config = RunConfig::<Classes>::new(&settings, &panel)?;
            classification::train::cut(Console::silent(), &config, &panel, &device)?;
            kept(&config);
        }
    }
    Ok(())
}

/// The run of these settings and its trainer, if it is small.
fn trainer(
    settings: &Complete,
    series: &Series,
    device: &Device,
) -> Result<(RunConfig<Forecasts>, Option<Trainer<Forecasting>>)> {
    let (config, mut data) = RunConfig::<Forecasts>::new(settings, series.clone().into())?;
    config.hold_out_calibration(&mut data)?;
    kept(&config);
    let estimate = forecasting::train::estimate(Console::silent(), &config, &data, device)?;
    if estimate.bytes(device) > SMALL {
        return Ok((config, None));
    }
    let trainer = forecasting::train::trainer(&config, &data, device)?;
    Ok((config, Some(trainer)))
}

/// Checks that a stored configuration is read back unchanged.
fn kept<T: TaskConfig>(config: &RunConfig<T>)
where
    RunConfig<T>: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let text = serde_json::to_string(config).unwrap_or_else(|error| panic!("{error}: {config:?}"));
    let kept = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    let again = RunConfig::<T>::from_kept(kept, Path::new("the folder"));
    assert_eq!(again.unwrap_or_else(|error| panic!("{error}: {text}")), *config, "what {text} is read as");
}

/// Trains a small model for one epoch and two steps. Its folder is then that of a run that was killed at this point.
///
/// # Errors
/// What `train --config FILE` says.
pub fn killed_run(file: &Path, series: &Series, folder: &Path) -> Result<(), String> {
    let begin = || -> Result<()> {
        let settings = Settings::resolve(Settings::default(), Some(file), None)?;
        let (config, trainer) = trainer(&settings, series, &Device::cpu())?;
        let Some(mut trainer) = trainer else {
            return Err(Error::usage("the model is not small", "choose a smaller one"));
        };
        let config = serde_json::to_value(&config).map_err(Error::Json)?;
        trainer.epoch(Duration::ZERO, |_| ControlFlow::Continue(()))?;
        trainer.save(folder, &config)?;
        trainer.epoch(Duration::ZERO, |trainer| match trainer.steps_in_epoch() {
            2.. => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })?;
        Ok(trainer.save(folder, &config)?)
    };
    begin().map_err(|error| error.to_string())
}

/// All numbers that `forecast --model FOLDER` and `evaluate --model FOLDER` print for a series.
///
/// # Errors
/// What the commands say.
pub fn results(folder: &Path, series: &Series) -> Result<Vec<f64>, String> {
    let results = || -> Result<Vec<f64>> {
        let trained = TrainedForecaster::load(&SavedModel::open(folder)?, &Device::cpu())?;
        let set = || SeriesSet::from(series.clone());
        let next = trained.next(Console::silent(), set(), None)?;
        let mut all: Vec<f64> = next.forecasts.into_iter().flat_map(|forecast| forecast.values).collect();
        let score = trained.score(Console::silent(), set(), &Job::alone(Device::cpu()))?;
        if let Some((score, _)) = score {
            all.extend([score.test_mse, score.test_mae, score.test_rmse, score.test_smape]);
            all.extend(score.linear_mse);
        }
        Ok(all)
    };
    results().map_err(|error| error.to_string())
}

/// The first line of a forecast of these channels.
///
/// # Errors
/// What the command says.
pub fn header(names: &[String]) -> Result<Vec<u8>, String> {
    let cells: Vec<Cell> = names.iter().cloned().map(Cell::Text).collect();
    output::line(&cells).map_err(|error| error.to_string())
}

/// The trainer with which `train --resume FOLDER` continues.
///
/// # Errors
/// What the command says.
pub fn resume(folder: &Path, series: &Series) -> Result<Trainer<Forecasting>, String> {
    let resume = || -> Result<Trainer<Forecasting>> {
        let saved = SavedRun::open(folder)?;
        let config = RunConfig::<Forecasts>::from_kept(saved.run()?, folder)?;
        saved.check_size(config.task.trained_model().size()?)?;
        let set = SeriesSet::from(series.clone());
        forecasting::train::check_series(&config, &set)?;
        Ok(forecasting::train::resumed(Console::silent(), &config, &saved, set, &Job::alone(Device::cpu()))?
            .trainer)
    };
    resume().map_err(|error| error.to_string())
}
