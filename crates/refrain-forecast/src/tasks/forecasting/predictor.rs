//! Forecasts of a trained model, again and again, from many threads.

use super::conformal::{Calibration, Intervals};
use super::covariate_values::CovariateInputs;
use super::model_inputs::ModelInputs;
use super::predictor_config::{PredictorConfig, RUN_VERSION, outdated};
use super::{CovariateValues, Forecast, RecordedForecaster};
use crate::data::series::{CovariateColumns, Scaler, Scaling, SeriesSet};
use crate::models::{ChannelUse, ModelConfig, WindowShape, weights};
use crate::{Error, Result};
use refrain::{DType, Device, Precision};
use refrain_nn::Checkpoint;
use serde_json::{Value, json};
use std::path::Path;

/// A trained model that makes forecasts of contexts.
///
/// It loads the model once. Its forward pass is recorded at the first forecast and then replayed, which gives the same values
/// bit for bit. Any number of threads may use one predictor. It has a recording for each forecast that may be made at the same
/// time; further callers wait. A forecast is computed on the thread of its caller. On a CPU, callers that come at the same time use
/// one core each, and one that has been alone for a while uses more. `refrain forecast` and `refrain cross-validate` make their
/// forecasts by one.
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
    scaler: Scaler,
    /// For a model of independent series: how each is scaled by its own values.
    independent: Option<Scaling>,
    covariates: CovariateInputs,
    /// Its settings, from which it is also made for other channels.
    model: ModelConfig,
    forecaster: RecordedForecaster,
}

impl Predictor {
    /// The best model of the run in a folder that `refrain train` wrote. It makes up to `at_once` forecasts at the same time.
    ///
    /// # Errors
    /// [`Error::Nn`] if there is no such run, or if it is damaged; [`Error::Training`] if it is a run of another task;
    /// [`Error::Calibration`] if its intervals have no calibration yet; [`Error::Engine`] if the device has not enough memory.
    pub fn load(folder: &Path, device: &Device, at_once: usize) -> Result<Predictor> {
        Predictor::of_run(folder, &Checkpoint::open(folder)?, device, at_once)
    }

    /// The same, if the checkpoint in the folder is open already.
    ///
    /// # Errors
    /// Those of [`Predictor::load`].
    pub fn of_run(
        folder: &Path,
        checkpoint: &Checkpoint,
        device: &Device,
        at_once: usize,
    ) -> Result<Predictor> {
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
        if let Some(problem) = outdated(&config) {
            return Err(Error::Training {
                fix: "train it again",
                problem: format!("{}: {problem}", folder.display()),
            });
        }
        let mut kept: PredictorConfig =
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
        let mut trained = model.load(checkpoint, DType::F32, device)?;
        trained.set_distribution(kept.loss.distribution())?;
        let mut intervals = Intervals::of(&kept.loss)?.adapting(kept.intervals.adaptive)?;
        if kept.intervals.calibrate {
            let calibration = Calibration::read(folder)?;
            calibration.check(&*trained, &kept.intervals.levels, horizon)?;
            intervals = intervals.with_calibration(calibration);
        }
        let forecaster = RecordedForecaster::new(trained, horizon, intervals, precision, at_once)?;
        let data = kept.data;
        Ok(Predictor {
            channels: data.channels,
            scaler: data.scaler,
            independent: data.independent.then_some(data.scaling),
            covariates: CovariateInputs {
                columns: data.covariates,
                scaler: data.covariate_scaler,
                step: data.step,
                dialect: data.dialect,
            },
            model,
            forecaster,
        })
    }

    /// The model with its recordings, for series in memory. Those have the channels that the model was trained on; see
    /// [`Predictor::forecaster_of`] for others.
    pub fn forecaster(&self) -> &RecordedForecaster {
        &self.forecaster
    }

    /// The forecaster of these series. A model that treats all channels alike ([`ChannelUse::Shared`]) can forecast any number of
    /// them. Calibrated intervals are those of the channels with the same names.
    ///
    /// # Errors
    /// [`Error::Model`] if the model needs the number of channels that it was trained on; [`Error::Calibration`] if the intervals of a
    /// channel were not calibrated; [`Error::Engine`] if the device has not enough memory.
    pub fn forecaster_of(&self, set: &SeriesSet) -> Result<RecordedForecaster> {
        let own = &self.forecaster;
        let (found, trained) = (set.channels(), self.window().channels);
        let forecaster = match found == trained {
            true => own.clone(),
            false => {
                if self.model.channel_use() != ChannelUse::Shared {
                    let problem =
                        format!("the series have {found} channels, but the model was trained on {trained}");
                    return Err(Error::Model {
                        problem,
                        fix: "pass series with the channels of the training",
                    });
                }
                let mut model = self.model.with_channels(found).build(DType::F32, own.device(), 0)?;
                model.set_distribution(own.intervals().distribution())?;
                weights::copy(own.model().parameters(), model.parameters())?;
                own.with_model(model)?
            }
        };
        if self.independent.is_some() || (!set.is_independent() && set.names().eq(&self.channels)) {
            return Ok(forecaster);
        }
        let place = |name: &String| self.channels.iter().position(|known| known == name);
        // A calibration is that of channels; those of a grid that are forecast one by one have none in common.
        let places: Vec<Option<usize>> = match set.is_independent() {
            true => vec![None],
            false => set.names().map(place).collect(),
        };
        forecaster.with_intervals(own.intervals().of_channels(&places)?)
    }

    /// Makes forecasts with other intervals from now on.
    ///
    /// # Errors
    /// [`Error::Model`] if the model has other quantiles than they.
    pub fn set_intervals(&mut self, intervals: Intervals) -> Result<()> {
        self.forecaster = self.forecaster.with_intervals(intervals)?;
        Ok(())
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
        self.forecaster.window()
    }

    /// The intervals of its forecasts.
    pub fn intervals(&self) -> &Intervals {
        self.forecaster.intervals()
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
        let WindowShape { channels, context: rows, .. } = self.window();
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
        let mut inputs = ModelInputs::new(self.window(), 1);
        inputs.push_context(&self.scaler.transform(context));
        self.covariates.push(&mut inputs, covariates, rows)?;
        self.forecaster.forecast_inputs(&inputs, &self.scaler, channels)
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
        let refuse = |problem: &str, fix| Err(Error::Model { problem: problem.to_owned(), fix });
        let Some(scaling) = self.independent else {
            return refuse("it did not learn from independent series", "pass a context to `forecast`");
        };
        if known.is_empty() || !known.iter().all(|value| value.is_finite()) {
            return refuse("a series has no values, or one that is not finite", "pass known values only");
        }
        let scaler = Scaler::of_values(known, scaling);
        let newest = &known[known.len().saturating_sub(self.window().context)..];
        let mut inputs = ModelInputs::new(self.window(), 1);
        inputs.push_context(&scaler.transform(newest));
        self.covariates.push(&mut inputs, covariates, known.len())?;
        self.forecaster.forecast_inputs(&inputs, &scaler, 1)
    }
}
