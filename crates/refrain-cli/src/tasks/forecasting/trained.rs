//! A trained forecaster: its errors on a series, and its forecast.

use std::path::Path;

use refrain::{DType, Device, with_precision};
use refrain_forecast::data::series::Series;
use refrain_forecast::models::Forecaster;
use refrain_forecast::tasks::forecasting::conformal::{Calibration, Intervals};
use refrain_forecast::tasks::forecasting::evaluation::{self, Forecast};
use serde::Serialize;

use super::score::{self, Details, Score};
use super::table;
use super::windows;
use crate::console::{Console, count};
use crate::error::Result;
use crate::filled;
use crate::run::SavedModel;
use crate::run_config::{Forecasts, RunConfig};
use crate::source;
use crate::tasks::{Prediction, Trained};

/// A forecaster with its weights, and the configuration of its run.
pub struct TrainedForecaster {
    config: RunConfig<Forecasts>,
    model: Box<dyn Forecaster>,
    intervals: Intervals,
    device: Device,
}

/// What `evaluate --json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    #[serde(flatten)]
    score: &'a Score,
    #[serde(flatten)]
    details: &'a Details,
    parameters: usize,
    weights_sha256: String,
    device: String,
}

impl TrainedForecaster {
    pub fn load(saved: &SavedModel, device: &Device) -> Result<TrainedForecaster> {
        let config = RunConfig::<Forecasts>::from_kept(saved.config()?, &saved.folder)?;
        let model = config.task.trained_model().load(&saved.checkpoint, DType::F32, device)?;
        let intervals = intervals(&config, &*model, &saved.folder)?;
        Ok(TrainedForecaster { config, model, intervals, device: device.clone() })
    }

    fn read(&self, console: Console, name: &str) -> Result<Series> {
        let data = &self.config.task.data;
        let (series, report) = source::read(name, data.strict, data.step)?;
        source::describe(console, &series, &report)?;
        Ok(series)
    }

    /// The errors on the test part of a series, in the precision of the run. The table is printed.
    pub fn score(&self, console: Console, series: &Series) -> Result<(Score, Details)> {
        let TrainedForecaster { config, model, intervals, device } = self;
        config.check_channels(series)?;
        let split = config.split(series)?;
        filled::Windows::of(&split).report(console, config.max_gap(series))?;
        filled::report(console, &split.filled(series))?;
        let windows = windows(config, series, device)?;
        with_precision(config.precision.setting(), || {
            score::measure(console, config, series, &split, (&**model, intervals), &windows)
        })
    }

    /// The forecast of the rows that follow the last row of a series, in the precision of the run.
    pub fn values(&self, series: &Series) -> Result<Forecast> {
        let TrainedForecaster { config, model, intervals, device } = self;
        config.check_channels(series)?;
        let rows = series.rows();
        series.check_gaps(rows.saturating_sub(model.window().context)..rows, config.max_gap(series))?;
        let scaler = &config.task.data.scaler;
        let horizon = config.task.model.window().horizon;
        let forecast = || evaluation::forecast(&**model, intervals, scaler, series, (rows, horizon), device);
        Ok(with_precision(config.precision.setting(), forecast)?)
    }
}

/// The intervals of a model: those of the calibration in its folder, or those that it has learned.
fn intervals(config: &RunConfig<Forecasts>, model: &dyn Forecaster, folder: &Path) -> Result<Intervals> {
    let Forecasts { loss, intervals, .. } = &config.task;
    if !intervals.calibrate {
        return Ok(Intervals::learned(loss.levels().clone()));
    }
    let calibration = Calibration::read(folder)?;
    calibration.check(model, &intervals.levels, config.task.model.window().horizon)?;
    Ok(Intervals::calibrated(calibration))
}

impl Trained for TrainedForecaster {
    fn source(&self) -> &str {
        &self.config.task.data.source
    }

    fn evaluate(self: Box<Self>, console: Console, data: &str) -> Result<()> {
        let (score, details) = self.score(console, &self.read(console, data)?)?;
        details.show(console)?;
        console.result(&Outcome {
            score: &score,
            details: &details,
            parameters: self.model.parameter_count(),
            weights_sha256: self.model.weights_sha256()?,
            device: self.device.name(),
        })
    }

    /// See [`table::of`] for the columns.
    fn forecast(self: Box<Self>, console: Console, data: &str) -> Result<Prediction> {
        let series = self.read(console, data)?;
        let forecast = self.values(&series)?;
        score::say_crossings(console, forecast.crossings)?;
        let (columns, rows) = table::of(&series, &forecast);
        let (first, horizon) = (series.rows(), self.config.task.model.window().horizon);
        let time = |step: usize| series.time().format(first + step);
        Ok(Prediction {
            columns,
            rows,
            weights_sha256: self.model.weights_sha256()?,
            summary: format!("{} rows from {} to {}", count(horizon), time(0), time(horizon - 1)),
        })
    }
}
