//! PatchTST on windows of a series.

pub mod evaluation;
pub mod metrics;

use crate::Result;
use crate::baselines::Linear;
use crate::data::series::{Part, Split};
use crate::data::windows::Windows;
use crate::models::patchtst::{Mode, PatchTst, PatchTstConfig};
use crate::training::{Demand, Estimate, SavedRun, Task, Trainer, TrainingConfig};
use refrain::{DType, Device, Precision, Tensor};
use refrain_nn::Parameters;
use serde::{Deserialize, Serialize};

/// Learns to forecast the horizon of each window from its context, by the mean squared error over what was observed of
/// it: filled values are inputs only.
pub struct Forecasting {
    /// The model.
    pub model: PatchTst,
    /// The series.
    pub windows: Windows,
    train: Part,
    validation: Part,
}

/// Errors over the validation windows, standardised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ForecastErrors {
    /// Mean squared error.
    #[serde(rename = "validation_mse")]
    pub mse: f64,
    /// Mean absolute error.
    #[serde(rename = "validation_mae")]
    pub mae: f64,
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
        let prediction = self.model.forward(&x, mode)?;
        if !self.train.has_filled() {
            return Ok(prediction.mse_loss(&y)?);
        }
        let weights = self.windows.weights(starts)?;
        let squares = prediction.to_dtype(DType::F32)?.sub(&y)?.square()?;
        Ok(squares.mul(&weights)?.sum(())?.div(&weights.sum(())?)?)
    }

    /// The number of values that were observed, where some were not.
    fn weight(&self, starts: &Tensor) -> Result<Tensor> {
        match self.train.has_filled() {
            true => Ok(self.windows.weights(starts)?.sum(())?),
            false => Ok(Tensor::full((), starts.numel() as f64, DType::F32, self.device())?),
        }
    }

    fn validate(&self) -> Result<ForecastErrors> {
        let sums = evaluation::evaluate(&self.model, &self.windows, &self.validation)?;
        let errors = sums.standardised();
        Ok(ForecastErrors { mse: errors.mse, mae: errors.mae })
    }

    fn error(validation: &ForecastErrors) -> f64 {
        validation.mse
    }
}

impl Forecasting {
    /// A PatchTST with random weights on windows of a series.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for settings that make no model, [`crate::Error::Engine`] if the device has no memory for it.
    pub fn new(model: PatchTstConfig, windows: Windows, split: &Split, seed: u64) -> Result<Forecasting> {
        let model = PatchTst::new(model, DType::F32, windows.device(), seed)?;
        Ok(Forecasting { model, windows, train: split.train.clone(), validation: split.validation.clone() })
    }

    /// What training a model on a series of so many rows takes, comparison with the simple forecasts included.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for settings that make no model.
    pub fn estimate(
        model: &PatchTstConfig,
        config: &TrainingConfig,
        rows: usize,
        split: &Split,
        precision: Precision,
    ) -> Result<Estimate> {
        let demand = Demand {
            size: model.size()?,
            layers: model.layers,
            activations: model.activations(config.at_once(split.train.windows())),
            data: rows as f64 * model.channels as f64,
            beside: Linear::bytes(model.context, model.horizon, model.channels),
        };
        Ok(Estimate::new(demand, precision))
    }
}

impl Trainer {
    /// A PatchTST with random weights, before its first step.
    ///
    /// # Errors
    /// [`crate::Error::Model`] and [`crate::Error::Training`] for settings that cannot be; [`crate::Error::Engine`]
    /// if the device has no memory for it.
    pub fn new(
        model: PatchTstConfig,
        config: TrainingConfig,
        windows: Windows,
        split: &Split,
    ) -> Result<Trainer> {
        config.validate()?;
        Trainer::of(Forecasting::new(model, windows, split, config.seed)?, config)
    }

    /// A run that [`Trainer::save`] left, to go on bit for bit as if it had not stopped. Model,
    /// training and series are those that it began with.
    ///
    /// # Errors
    /// Those of [`Trainer::go_on`] and of [`Trainer::new`].
    pub fn resume(
        saved: &SavedRun,
        model: PatchTstConfig,
        config: TrainingConfig,
        windows: Windows,
        split: &Split,
    ) -> Result<Trainer> {
        saved.check_size(model.size()?)?;
        Trainer::new(model, config, windows, split)?.go_on(saved)
    }

    /// The model as it is now.
    pub fn model(&self) -> &PatchTst {
        &self.task().model
    }
}
