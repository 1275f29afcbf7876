//! Forecasting: a model on windows of a series, its loss, its metrics and its evaluation.

pub mod evaluation;
pub mod loss;
pub mod metrics;
mod settings;

pub use settings::SeriesSettings;

use crate::Result;
use crate::baselines::Linear;
use crate::data::series::{Part, Split};
use crate::data::windows::Windows;
use crate::models::{Forecaster, ForecasterConfig, Mode, ModelConfig};
use crate::training::{Demand, Estimate, SavedRun, Task, Trainer, TrainingConfig};
use loss::Loss;
use metrics::ErrorSums;
use refrain::{DType, Device, Precision, Tensor};
use refrain_nn::Parameters;
use serde::{Deserialize, Serialize};

/// Learns to forecast the horizon of each window from its context. It minimises the mean loss over the observed values of
/// the horizon; filled values are inputs only. The loss is the mean squared error, or that of [`Forecasting::with_loss`].
pub struct Forecasting {
    /// The model.
    pub model: Box<dyn Forecaster>,
    /// The series.
    pub windows: Windows,
    loss: Loss,
    train: Part,
    validation: Part,
}

/// The errors over the validation windows, standardised.
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
        let weights = self.train.has_filled().then(|| self.windows.weights(starts)).transpose()?;
        self.loss.mean(&forecast, &y, weights.as_ref())
    }

    /// The number of observed values, if some were not observed.
    fn weight(&self, starts: &Tensor) -> Result<Tensor> {
        match self.train.has_filled() {
            true => Ok(self.windows.weights(starts)?.sum(())?),
            false => Ok(Tensor::full((), starts.numel() as f64, DType::F32, self.device())?),
        }
    }

    fn validate(&self) -> Result<ForecastErrors> {
        let mut sums = ErrorSums::new(self.windows.channels());
        let mut losses = (self.loss != Loss::default()).then_some((0.0, 0_u64));
        evaluation::each_row(&*self.model, &self.windows, &self.validation, |channel, forecast, truth| {
            sums.add(channel, forecast, truth);
            let Some((sum, count)) = &mut losses else { return };
            for (&forecast, &truth) in forecast.iter().zip(truth).filter(|(_, truth)| !truth.is_nan()) {
                *sum += self.loss.of_error(f64::from(forecast) - f64::from(truth));
                *count += 1;
            }
        })?;
        let errors = sums.standardised();
        let loss = losses.map(|(sum, count)| sum / count as f64);
        Ok(ForecastErrors { mse: errors.mse, mae: errors.mae, loss })
    }

    fn error(validation: &ForecastErrors) -> f64 {
        validation.loss.unwrap_or(validation.mse)
    }
}

impl Forecasting {
    /// A forecaster with these settings and random weights, on windows of a series.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings, [`crate::Error::Engine`] if the device has not enough memory.
    pub fn new(
        model: impl Into<ModelConfig>,
        windows: Windows,
        split: &Split,
        seed: u64,
    ) -> Result<Forecasting> {
        let model = model.into().build(DType::F32, windows.device(), seed)?;
        Ok(Forecasting::of(model, windows, split))
    }

    /// A forecaster, on windows of a series. The windows have the shape that the forecaster expects.
    pub fn of(model: Box<dyn Forecaster>, windows: Windows, split: &Split) -> Forecasting {
        let (train, validation) = (split.train.clone(), split.validation.clone());
        Forecasting { model, windows, loss: Loss::default(), train, validation }
    }

    /// Minimises another loss.
    ///
    /// # Errors
    /// [`crate::Error::Training`] if there is no such loss.
    pub fn with_loss(self, loss: Loss) -> Result<Forecasting> {
        loss.validate()?;
        Ok(Forecasting { loss, ..self })
    }

    /// The resources that training a model on a series of this many rows needs, including the comparison with the
    /// baselines.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings.
    pub fn estimate(
        model: &dyn ForecasterConfig,
        config: &TrainingConfig,
        rows: usize,
        split: &Split,
        precision: Precision,
    ) -> Result<Estimate> {
        let window = model.window();
        let demand = Demand {
            size: model.size()?,
            layers: model.layers(),
            activations: model.activations(config.at_once(split.train.windows())),
            data: rows as f64 * window.channels as f64,
            beside: Linear::bytes(window.context, window.horizon, window.channels),
        };
        Ok(Estimate::new(demand, precision))
    }
}

impl Trainer<Forecasting> {
    /// A forecaster with random weights that minimises the mean squared error, before its first step. For another loss, or
    /// a forecaster of your own, make the [`Forecasting`] and pass it to [`Trainer::of`].
    ///
    /// # Errors
    /// [`crate::Error::Model`] and [`crate::Error::Training`] for invalid settings; [`crate::Error::Engine`] if the
    /// device has not enough memory.
    pub fn new(
        model: impl Into<ModelConfig>,
        config: TrainingConfig,
        windows: Windows,
        split: &Split,
    ) -> Result<Trainer<Forecasting>> {
        config.validate()?;
        Trainer::of(Forecasting::new(model, windows, split, config.seed)?, config)
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
