//! Forecasting: a model on windows of a series, its loss, its metrics and its evaluation.

pub mod conformal;
pub mod evaluation;
mod levels;
pub mod loss;
pub mod metrics;
mod predictor;
pub mod quantiles;
mod settings;

pub use levels::Levels;
pub use predictor::{Predictor, RUN_VERSION};
pub use settings::{IntervalSettings, SeriesSettings};

use crate::baselines::Linear;
use crate::data::series::{Part, Split};
use crate::data::windows::Windows;
use crate::models::{Forecaster, ForecasterConfig, Mode, ModelConfig};
use crate::training::{Demand, Estimate, SavedRun, Task, Trainer, TrainingConfig};
use crate::{Error, Result};
use loss::Loss;
use refrain::{DType, Device, Precision, Tensor};
use refrain_nn::Parameters;
use serde::{Deserialize, Serialize};

/// Learns to forecast the horizon of each window from its context. It minimises the mean loss over the observed values of
/// the horizon; filled values are inputs only.
///
/// A loss with several [values](Loss::values) in each row needs a model with a horizon that is as many times longer
/// ([`ModelConfig::widened`]): it forecasts the rows of the first quantile, then those of the second, and so on. So every
/// forecaster can learn quantiles.
pub struct Forecasting {
    /// The model.
    pub model: Box<dyn Forecaster>,
    /// The series.
    pub windows: Windows,
    loss: Loss,
    train: Part,
    validation: Part,
}

/// The errors over the validation windows, standardised. Of several quantiles, the median is the forecast.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForecastErrors {
    /// Mean squared error.
    #[serde(rename = "validation_mse")]
    pub mse: f64,
    /// Mean absolute error.
    #[serde(rename = "validation_mae")]
    pub mae: f64,
    /// Mean loss, if it is not the mean squared error. The best weights are those with the lowest loss.
    #[serde(rename = "validation_loss", default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
}

impl Task for Forecasting {
    type Validation = ForecastErrors;

    fn parameters(&self) -> &Parameters {
        self.model.parameters()
    }

    fn device(&self) -> &Device {
        self.windows.device()
    }

    /// The first rows of the windows.
    fn samples(&self) -> Vec<i64> {
        self.train.starts().map(|start| start as i64).collect()
    }

    fn loss(&self, starts: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, y) = self.windows.cut(starts)?;
        let forecast = self.model.forward(&x, mode)?;
        let weights =
            self.train.has_filled().then(|| self.windows.weights(starts, &self.train)).transpose()?;
        self.loss.mean(&forecast, &y, weights.as_ref())
    }

    /// The number of observed values, if some were not observed.
    fn weight(&self, starts: &Tensor) -> Result<Tensor> {
        match self.train.has_filled() {
            true => Ok(self.windows.weights(starts, &self.train)?.sum(())?),
            false => Ok(Tensor::full((), starts.numel() as f64, DType::F32, self.device())?),
        }
    }

    fn validate(&self) -> Result<ForecastErrors> {
        let (mut squared, mut absolute, mut total, mut count) = (0.0, 0.0, 0.0, 0_u64);
        evaluation::each_row(&*self.model, &self.windows, &self.validation, |_, _, values, truth| {
            let observed = |(_, truth): &(&f32, &f32)| !truth.is_nan();
            for (value, forecast) in values.chunks_exact(truth.len()).enumerate() {
                for (&forecast, &truth) in forecast.iter().zip(truth).filter(observed) {
                    total += self.loss.of_error(value, f64::from(forecast) - f64::from(truth));
                }
            }
            quantiles::sort(values, truth.len());
            for (&forecast, &truth) in
                quantiles::median(values, truth.len()).iter().zip(truth).filter(observed)
            {
                let error = f64::from(forecast) - f64::from(truth);
                squared += error * error;
                absolute += error.abs();
                count += 1;
            }
        })?;
        let mean = |sum: f64| sum / count as f64;
        let loss = (self.loss != Loss::default()).then(|| mean(total) / self.loss.values() as f64);
        Ok(ForecastErrors { mse: mean(squared), mae: mean(absolute), loss })
    }

    fn error(validation: &ForecastErrors) -> f64 {
        validation.loss.unwrap_or(validation.mse)
    }
}

impl Forecasting {
    /// A forecaster with these settings and random weights, on windows of a series. Its horizon is that of the windows; for a
    /// loss with several values in each row it is [widened](ModelConfig::widened).
    ///
    /// # Errors
    /// [`Error::Model`] and [`Error::Training`] for invalid settings, [`Error::Engine`] if the device has not enough memory.
    pub fn new(
        model: impl Into<ModelConfig>,
        loss: Loss,
        windows: Windows,
        split: &Split,
        seed: u64,
    ) -> Result<Forecasting> {
        let model = model.into().widened(loss.values()).build(DType::F32, windows.device(), seed)?;
        Forecasting::of(model, loss, windows, split)
    }

    /// A forecaster, on windows of a series.
    ///
    /// # Errors
    /// [`Error::Model`] if the forecaster's windows differ from these; [`Error::Training`] if there is no such loss.
    pub fn of(
        model: Box<dyn Forecaster>,
        loss: Loss,
        windows: Windows,
        split: &Split,
    ) -> Result<Forecasting> {
        loss.validate()?;
        let (values, horizon) = (loss.values(), windows.horizon());
        if model.window().horizon != values * horizon {
            let found = model.window().horizon;
            let problem = format!(
                "the horizon of the model is {found}, but the loss needs {values} values in {horizon} rows"
            );
            return Err(Error::Model { problem, fix: "make the model of settings that are `widened`" });
        }
        let (train, validation) = (split.train.clone(), split.validation.clone());
        Ok(Forecasting { model, windows, loss, train, validation })
    }

    /// The resources that training a model on a series of this many rows needs, including the comparison with the
    /// baselines. For a loss with several values in each row, the model is a [widened](ModelConfig::widened) one.
    ///
    /// # Errors
    /// [`Error::Model`] for invalid settings.
    pub fn estimate(
        model: &dyn ForecasterConfig,
        config: &TrainingConfig,
        rows: usize,
        split: &Split,
        precision: Precision,
    ) -> Result<Estimate> {
        let channels = model.window().channels;
        let demand = Demand {
            size: model.size()?,
            layers: model.layers(),
            activations: model.activations(config.at_once(split.train.windows())),
            data: rows as f64 * channels as f64,
            samples: split.train.windows() as f64,
            beside: Linear::bytes(split.context, split.horizon, channels),
        };
        Ok(Estimate::new(demand, precision))
    }
}

impl Trainer<Forecasting> {
    /// A forecaster with random weights that minimises the mean squared error, before its first step. For another loss, or
    /// a forecaster of your own, make the [`Forecasting`] and pass it to [`Trainer::of`].
    ///
    /// # Errors
    /// [`Error::Model`] and [`Error::Training`] for invalid settings; [`Error::Engine`] if the
    /// device has not enough memory.
    pub fn new(
        model: impl Into<ModelConfig>,
        config: TrainingConfig,
        windows: Windows,
        split: &Split,
    ) -> Result<Trainer<Forecasting>> {
        config.validate()?;
        Trainer::of(Forecasting::new(model, Loss::default(), windows, split, config.seed)?, config)
    }

    /// A run that [`Trainer::save`] left, to go on bit for bit as if it had not stopped. Model,
    /// training and series are those that it began with, and its loss is the mean squared error.
    ///
    /// # Errors
    /// Those of [`Trainer::resume_from`] and of [`Trainer::new`].
    pub fn resume(
        saved: &SavedRun,
        model: impl Into<ModelConfig>,
        config: TrainingConfig,
        windows: Windows,
        split: &Split,
    ) -> Result<Trainer<Forecasting>> {
        let model = model.into();
        saved.check_size(model.size()?)?;
        Trainer::new(model, config, windows, split)?.resume_from(saved)
    }

    /// The model as it is now.
    pub fn model(&self) -> &dyn Forecaster {
        &*self.task().model
    }
}
