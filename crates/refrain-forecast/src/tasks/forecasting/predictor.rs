//! Forecasts of a trained model, again and again, from many threads.

use super::conformal::{Calibration, Intervals};
use super::covariate_values::CovariateInputs;
use super::evaluation::{Forecast, decode, extend_context};
use super::loss::Loss;
use super::recorded_model::{Blueprint, RecordedModels};
use super::{CovariateValues, IntervalSettings};
use crate::data::dialect::Dialect;
use crate::data::series::{CovariateColumns, CovariateScaler, Scaler, Scaling, TimeStep};
use crate::models::{ModelConfig, WindowShape};
use crate::{Error, Result};
use refrain::{DType, Device, Precision};
use refrain_nn::Checkpoint;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;

/// A trained model that makes forecasts of contexts.
///
/// It loads the model once. Its forward pass is recorded at the first forecast and then replayed, which gives the same values
/// bit for bit. Any number of threads may use one predictor. It has a copy of the model for each forecast that may be made at the
/// same time; further callers wait. A forecast is computed on the thread of its caller. A predictor with one copy lets the kernels
/// of a CPU use more threads; one with several does not, because its callers share the cores already.
///
/// ```no_run
/// use refrain::Device;
/// use refrain_forecast::tasks::forecasting::Predictor;
///
/// let predictor = Predictor::load("runs/mine".as_ref(), &Device::cpu(), 1)?;
/// // The newest rows, `[context, channels]` in original units.
/// let context = vec![0.0; predictor.window().context * predictor.channels().len()];
/// let forecast = predictor.forecast(&context)?;
/// println!("{:?}", forecast.values); // [horizon, channels]
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
///
/// A model with covariates gets them beside each context:
///
/// ```no_run
/// use refrain::Device;
/// use refrain_forecast::tasks::forecasting::{CovariateValues, Predictor};
///
/// // Trained with `--future price --calendar weekday`.
/// let predictor = Predictor::load("runs/prices".as_ref(), &Device::cpu(), 1)?;
/// let window = predictor.window();
/// let context = vec![0.0; window.context]; // of one channel
/// let prices = vec![2.5; window.context + window.horizon];
/// let covariates = CovariateValues { future: &prices, first: Some("2024-07-01"), ..CovariateValues::default() };
/// let forecast = predictor.forecast_with(&context, &covariates)?;
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
#[derive(Debug)]
pub struct Predictor {
    channels: Vec<String>,
    window: WindowShape,
    scaler: Scaler,
    /// For a model of independent series: how each is scaled by its own values.
    independent: Option<Scaling>,
    covariates: CovariateInputs,
    intervals: Intervals,
    models: RecordedModels,
}

/// The newest version of the configuration in a run folder.
pub const RUN_VERSION: u64 = 2;

/// What a predictor reads of the configuration that a run folder keeps.
#[derive(Deserialize)]
struct Kept {
    model: ModelConfig,
    #[serde(default)]
    loss: Loss,
    #[serde(default)]
    intervals: IntervalSettings,
    data: KeptData,
    #[serde(default)]
    precision: Option<String>,
    /// The share of hidden patches, if the model was pretrained and does not forecast.
    #[serde(default)]
    pretraining: Option<f64>,
}

#[derive(Deserialize)]
struct KeptData {
    channels: Vec<String>,
    scaler: Scaler,
    #[serde(default)]
    independent: bool,
    #[serde(default)]
    scaling: Scaling,
    #[serde(default)]
    covariates: CovariateColumns,
    #[serde(default)]
    covariate_scaler: CovariateScaler,
    #[serde(default)]
    step: Option<TimeStep>,
    #[serde(default)]
    dialect: Dialect,
}

impl Predictor {
    /// The best model of the run in a folder that `refrain train` wrote. It makes up to `copies` forecasts at the same time.
    ///
    /// # Errors
    /// [`Error::Nn`] if there is no such run, or if it is damaged; [`Error::Training`] if it is a run of another task;
    /// [`Error::Calibration`] if its intervals have no calibration yet; [`Error::Engine`] if the device has not enough memory.
    pub fn load(folder: &Path, device: &Device, copies: usize) -> Result<Predictor> {
        let checkpoint = Checkpoint::open(folder)?;
        let mut config: Value = checkpoint.config()?;
        // Runs of version 1 knew one forecaster.
        if config["version"].is_string() && config["model"].is_object() {
            config["model"]["name"] = json!("patchtst");
        }
        let refuse = |problem: String| Error::Training {
            problem: format!("{}: {problem}", folder.display()),
            fix: "pass the folder of a forecaster that `refrain train` wrote",
        };
        if let Some(version) = config["version"].as_u64().filter(|&version| version > RUN_VERSION) {
            return Err(refuse(format!(
                "its configuration is of version {version}, and this program reads 1 to {RUN_VERSION}"
            )));
        }
        let mut kept: Kept =
            serde_json::from_value(config).map_err(|error| refuse(format!("no forecaster: {error}")))?;
        if kept.pretraining.is_some() {
            return Err(refuse("it is a pretrained encoder, which does not forecast yet".to_owned()));
        }
        let (covariates, of_covariates) = (kept.data.covariates.counts(), &kept.data.covariate_scaler);
        if [kept.model.covariates(), of_covariates.counts()] != [covariates; 2] || !of_covariates.is_sound() {
            return Err(refuse("its covariates contradict each other".to_owned()));
        }
        let precision = match kept.precision.as_deref() {
            None | Some("f32") => Precision::F32,
            Some("tf32") => Precision::Tf32,
            Some("bf16") => Precision::Bf16,
            Some(other) => return Err(refuse(format!("there is no precision {other:?}"))),
        };
        let model = kept.model.widened(kept.loss.values());
        let horizon = kept.model.window().horizon;
        // Independent series are one channel each, and have no scale that lasts.
        let channels = if kept.data.independent { 1 } else { kept.data.channels.len() };
        if kept.data.independent {
            kept.data.scaler = Scaler::unit(1);
        }
        let sizes = [kept.model.window().channels, kept.data.scaler.mean.len(), kept.data.scaler.std.len()];
        if sizes != [channels; 3] || kept.data.scaler.fault().is_some() {
            return Err(refuse("its channels and its scaler contradict each other".to_owned()));
        }
        let mut intervals = Intervals::of(&kept.loss)?;
        if kept.intervals.calibrate {
            let loaded = model.load(&checkpoint, DType::F32, device)?;
            let calibration = Calibration::read(folder)?;
            calibration.check(&*loaded, &kept.intervals.levels, horizon)?;
            intervals = intervals.with_calibration(calibration);
        }
        let (device, window) = (device.clone(), kept.model.window());
        let blueprint = Blueprint { model, checkpoint, precision, device, window, covariates };
        intervals.check(blueprint.model.window().horizon, window.horizon)?;
        let data = kept.data;
        Ok(Predictor {
            channels: data.channels,
            window,
            scaler: data.scaler,
            independent: data.independent.then_some(data.scaling),
            covariates: CovariateInputs {
                columns: data.covariates,
                scaler: data.covariate_scaler,
                step: data.step,
                dialect: data.dialect,
            },
            intervals,
            models: RecordedModels::load(&blueprint, copies.max(1))?,
        })
    }

    /// The names of the channels, in the order of the values. A model of independent series has none: it forecasts any series
    /// by [`Predictor::forecast_series`].
    pub fn channels(&self) -> &[String] {
        &self.channels
    }

    /// The covariates that the model takes.
    pub fn covariates(&self) -> &CovariateColumns {
        &self.covariates.columns
    }

    /// The shape of its windows.
    pub fn window(&self) -> WindowShape {
        self.window
    }

    /// The intervals of its forecasts.
    pub fn intervals(&self) -> &Intervals {
        &self.intervals
    }

    /// The forecast of the rows after a context, which is row-major `[context, channels]` in original units.
    ///
    /// # Errors
    /// [`Error::Model`] if the context has another number of values, the model is one of independent series, or it takes covariates;
    /// [`Error::NotFinite`] if a value of the forecast is not finite; [`Error::Engine`] if the device fails.
    pub fn forecast(&self, context: &[f64]) -> Result<Forecast> {
        self.forecast_with(context, &CovariateValues::default())
    }

    /// The same by a model that takes covariates: those of the rows of the context and of the horizon.
    ///
    /// # Errors
    /// Those of [`Predictor::forecast`]; [`Error::Model`] if the covariates are not those that the model takes;
    /// [`Error::NotFinite`] for an infinite one.
    pub fn forecast_with(&self, context: &[f64], covariates: &CovariateValues<'_>) -> Result<Forecast> {
        let WindowShape { channels, context: rows, horizon } = self.window;
        if self.independent.is_some() {
            let problem = "it learned from independent series, each with a scale of its own".to_owned();
            return Err(Error::Model {
                problem,
                fix: "pass all known values of a series to `forecast_series`",
            });
        }
        if context.len() != channels * rows {
            let found = context.len();
            return Err(Error::Model {
                problem: format!(
                    "the context has {found} values, but the model needs {rows} rows of {channels}"
                ),
                fix: "pass the newest rows, [context, channels]",
            });
        }
        let past = self.scaler.transform(context);
        let at = |channel: usize, row: usize| past[row * channels + channel] as f32;
        let cells = (0..channels).flat_map(|channel| (0..rows).map(move |row| (channel, row)));
        let context = cells.map(|(channel, row)| at(channel, row)).collect();
        let beside = self.covariates.of(covariates, rows, (rows, horizon))?;
        decode(self.values(context, beside)?, &self.intervals, &self.scaler, channels, horizon)
    }

    /// The forecast of the rows after those of a series, which need not be one that the model was trained on. Pass all values
    /// that are known of it, oldest first: they say its scale, and the newest are the context. There may be fewer than the context
    /// has; their mean then stands for what is missing.
    ///
    /// # Errors
    /// [`Error::Model`] if there is no value, one is not finite, the model is not one of independent series, or it takes covariates;
    /// [`Error::NotFinite`] if a value of the forecast is not finite; [`Error::Engine`] if the device fails.
    pub fn forecast_series(&self, known: &[f64]) -> Result<Forecast> {
        self.forecast_series_with(known, &CovariateValues::default())
    }

    /// The same by a model that takes covariates: those of all the rows that are known, and of the horizon.
    ///
    /// # Errors
    /// Those of [`Predictor::forecast_series`]; [`Error::Model`] if the covariates are not those that the model takes;
    /// [`Error::NotFinite`] for an infinite one.
    pub fn forecast_series_with(&self, known: &[f64], covariates: &CovariateValues<'_>) -> Result<Forecast> {
        let WindowShape { context, horizon, .. } = self.window;
        let refuse = |problem: &str, fix| Err(Error::Model { problem: problem.to_owned(), fix });
        let Some(scaling) = self.independent else {
            return refuse("it did not learn from independent series", "pass a context to `forecast`");
        };
        if known.is_empty() || !known.iter().all(|value| value.is_finite()) {
            return refuse("a series has no values, or one that is not finite", "pass known values only");
        }
        let scaler = Scaler::of_values(known, scaling);
        let newest = &known[known.len().saturating_sub(context)..];
        let mut values = Vec::with_capacity(context);
        extend_context(&mut values, &scaler.transform(newest), context);
        let beside = self.covariates.of(covariates, known.len(), (context, horizon))?;
        decode(self.values(values, beside)?, &self.intervals, &scaler, 1, horizon)
    }

    /// What the model makes of a context `[channels, context]` and covariates.
    fn values(&self, context: Vec<f32>, beside: Vec<Vec<f32>>) -> Result<Vec<f32>> {
        let inputs: Vec<Vec<f32>> = std::iter::once(context).chain(beside).collect();
        self.models.forecast(&inputs)
    }
}
