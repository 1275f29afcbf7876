//! Forecasting: a model on windows of a series, its loss, its metrics and its evaluation.

mod adaptive;
pub mod conformal;
mod covariate_values;
pub mod evaluation;
mod forecast;
mod levels;
pub mod loss;
pub mod metrics;
mod model_inputs;
mod predictor;
mod predictor_config;
pub mod quantiles;
mod recorded_forecaster;
mod settings;
mod student_t;

pub use adaptive::Adaptive;
pub use covariate_values::CovariateValues;
pub use forecast::Forecast;
pub use levels::Levels;
pub use predictor::Predictor;
pub use predictor_config::{PredictorConfig, RUN_VERSION, outdated};
pub use recorded_forecaster::RecordedForecaster;
pub use settings::{Freeze, IntervalSettings, Objective, SeriesSettings, TuningSettings};

use crate::baselines::Linear;
use crate::data::series::{Part, Split};
use crate::data::windows::Windows;
use crate::models::{Forecaster, ForecasterConfig, HEAD, Mode, ModelConfig};
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

    fn parameters_mut(&mut self) -> &mut Parameters {
        self.model.parameters_mut()
    }

    fn device(&self) -> &Device {
        self.windows.device()
    }

    /// The first rows of the windows.
    fn samples(&self) -> Vec<i64> {
        self.train.starts().map(|start| start as i64).collect()
    }

    fn data(&self) -> Vec<&Tensor> {
        self.windows.tensors()
    }

    fn loss(&self, starts: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, y) = self.windows.cut(starts)?;
        let forecast = self.model.forward_with(&x, &self.windows.covariates(starts)?, mode)?;
        let weights =
            self.train.has_filled().then(|| self.windows.weights(starts, &self.train)).transpose()?;
        self.loss.mean(&forecast, &y, weights.as_ref())
    }

    /// The number of observed values, if some were not observed.
    fn weight(&self, starts: &Tensor) -> Result<Option<Tensor>> {
        let weight = || Ok(self.windows.weights(starts, &self.train)?.sum(())?);
        self.train.has_filled().then(weight).transpose()
    }

    fn validation_samples(&self) -> Vec<i64> {
        self.validation.starts().map(|start| start as i64).collect()
    }

    fn validation_batch(&self) -> usize {
        evaluation::windows_at_once(self.windows.channels())
    }

    const SUMS: usize = 4;

    /// The sums of the squared and the absolute errors and of the loss, and the number of observed values.
    fn measure(&self, starts: &Tensor) -> Result<Tensor> {
        let (x, y) = self.windows.cut(starts)?;
        let truth = y.to_dtype(DType::F64)?.unsqueeze(-2)?; // [B, C, 1, horizon]
        let mut dims = truth.dims().to_vec();
        dims[2] = self.loss.values();
        let covariates = self.windows.covariates(starts)?;
        let forecasts = self.model.forward_with(&x, &covariates, Mode::Eval)?;
        let forecasts = forecasts.to_dtype(DType::F64)?.reshape(dims)?;
        let median = self.loss.median(&forecasts)?;
        let errors = median.sub(&truth)?;
        let losses = self.loss.of_errors(&forecasts.sub(&truth)?)?;
        let weights = match self.validation.has_filled() {
            true => {
                Some(self.windows.weights(starts, &self.validation)?.to_dtype(DType::F64)?.unsqueeze(-2)?)
            }
            false => None,
        };
        let sum = |each: Tensor| -> Result<Tensor> {
            let counted = weights.as_ref().map_or(Ok(each.clone()), |weights| each.mul(weights))?;
            Ok(counted.sum(())?)
        };
        let count = match &weights {
            Some(weights) => weights.sum(())?,
            None => Tensor::full((), truth.numel() as f64, DType::F64, self.device())?,
        };
        Ok(Tensor::stack(&[&sum(errors.square()?)?, &sum(errors.abs()?)?, &sum(losses)?, &count], 0)?)
    }

    fn validation(&self, sums: &[f64]) -> ForecastErrors {
        let [squared, absolute, loss, count] = [0, 1, 2, 3].map(|at| sums[at]);
        ForecastErrors {
            mse: squared / count,
            mae: absolute / count,
            loss: (self.loss != Loss::default()).then(|| loss / count / self.loss.terms() as f64),
        }
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
    /// [`Error::Model`] if the forecaster's windows differ from these, or it forecasts no [distribution](Loss::distribution);
    /// [`Error::Training`] if there is no such loss.
    pub fn of(
        mut model: Box<dyn Forecaster>,
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
        model.set_distribution(loss.distribution())?;
        let (train, validation) = (split.train.clone(), split.validation.clone());
        Ok(Forecasting { model, windows, loss, train, validation })
    }

    /// Keeps a part of the weights as they are. Call it before the task gets a trainer.
    ///
    /// # Errors
    /// [`Error::Model`] if the model has no head of its own.
    pub fn freeze(mut self, part: Freeze) -> Result<Forecasting> {
        if part == Freeze::None {
            return Ok(self);
        }
        let name = self.model.name().to_owned();
        let parameters = self.model.parameters_mut();
        let is_head = |name: &str| name.starts_with(HEAD);
        if !parameters.names().any(is_head) {
            let problem = format!("{name} has no head beside an encoder");
            return Err(Error::Model { problem, fix: "train all of it, without --freeze" });
        }
        parameters.set_group(|name, _| !is_head(name), |group| group.trainable = false)?;
        Ok(self)
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
        let columns = channels + model.covariates().total();
        let demand = Demand {
            size: model.size()?,
            layers: model.layers(),
            activations: model.activations(config.at_once(split.train.windows())),
            data: rows as f64 * columns as f64,
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
