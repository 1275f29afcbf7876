//! The model and the batch that `refrain bench step` measures: a known configuration, or a user's own settings.

use std::path::Path;

use refrain_forecast::data::series::CovariateCounts;
use refrain_forecast::models::WindowShape;
use serde_json::{Value, json};

use crate::bench::{CrossSizes, ForecasterSizes, StepSizes, Workload};
use crate::cli::{BenchStep, StepConfig};
use crate::error::{Error, Result};
use crate::precision::Precision;
use crate::settings::{Settings, Task};

/// The channels of a batch, if only the settings of a forecaster are known.
const CHANNELS: usize = 7;

/// A configuration.
pub struct Chosen {
    /// Its name, or the file of its settings.
    pub name: String,
    pub workload: Box<dyn Workload>,
    /// What a row of the batch is.
    pub row: String,
    pub precision: Precision,
    /// The settings of a file, on which ranks agree.
    pub settings: Value,
}

impl Chosen {
    pub fn of(args: &BenchStep) -> Result<Chosen> {
        let sizes = match &args.config {
            StepConfig::Settings(path) => return Chosen::of_settings(path, args),
            _ if args.channels.is_some() => {
                let fix = "leave it out, or name a file of settings by --config";
                return Err(Error::usage("--channels is for a file of settings", fix));
            }
            StepConfig::Seed => StepSizes::seed(),
            StepConfig::Small => StepSizes::small(),
            StepConfig::Large => StepSizes::large(),
            StepConfig::Wide => StepSizes::wide(),
            StepConfig::Long => StepSizes::long(),
            StepConfig::Cross => {
                let sizes = CrossSizes::default();
                let row = format!("samples of {} sources", sizes.model.sources);
                return Ok(Chosen::known(args, Box::new(sizes), row));
            }
        };
        let row = format!("rows of {} patches", sizes.model.patches());
        Ok(Chosen::known(args, Box::new(sizes), row))
    }

    fn known(args: &BenchStep, workload: Box<dyn Workload>, row: String) -> Chosen {
        let (name, precision) = (args.config.to_string(), args.precision.unwrap_or_default());
        Chosen { name, workload, row, precision, settings: Value::Null }
    }

    fn of_settings(path: &Path, args: &BenchStep) -> Result<Chosen> {
        let complete = Settings::resolve(Settings::default(), Some(path), None)?;
        if complete.task() != Task::Forecasting {
            return Err(Error::usage(
                format!("{} has the settings of a classifier, {}", path.display(), complete.model()),
                "choose those of a forecaster; --config cross measures a classifier",
            ));
        }
        let (series, loss, training) = (complete.series()?, complete.loss()?, complete.training()?);
        let channels = args.channels.unwrap_or(CHANNELS);
        let window = WindowShape { channels, context: series.context, horizon: series.horizon };
        let model = complete.forecaster(window, CovariateCounts::default())?.widened(loss.values());
        model.validate()?;
        let sizes = ForecasterSizes { model, loss, windows: training.batch_size };
        Ok(Chosen {
            name: path.display().to_string(),
            row: format!("windows of {channels} channels, {}: {}", sizes.model.name(), sizes.model.summary()),
            precision: args.precision.map_or_else(|| complete.precision(), Ok)?,
            settings: json!({ "model": sizes.model, "loss": sizes.loss, "windows": sizes.windows }),
            workload: Box::new(sizes),
        })
    }
}
