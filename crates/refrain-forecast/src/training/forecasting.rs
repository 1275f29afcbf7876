//! PatchTST on windows of a series.

use super::{Task, Trainer, TrainingConfig};
use crate::model::{Mode, PatchTst, PatchTstConfig};
use crate::series::{Part, Split};
use crate::windows::Windows;
use crate::{Result, evaluation};
use refrain::{DType, Device, Tensor};
use refrain_nn::Parameters;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Learns to forecast the horizon of each window from its context, by the mean squared error.
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
        (0..self.train.windows).map(|window| (self.train.rows.start + window) as i64).collect()
    }

    fn loss(&self, starts: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, y) = self.windows.cut(starts)?;
        Ok(self.model.forward(&x, mode)?.mse_loss(&y)?)
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
        let model = PatchTst::new(model, DType::F32, windows.device(), config.seed)?;
        let (train, validation) = (split.train.clone(), split.validation.clone());
        Trainer::of(Forecasting { model, windows, train, validation }, config)
    }

    /// The run that [`Trainer::save`] left in a folder, to go on bit for bit as if it had not stopped. Model,
    /// training and series are those that it began with.
    ///
    /// # Errors
    /// Those of [`Trainer::go_on`] and of [`Trainer::new`].
    pub fn resume(
        folder: &Path,
        model: PatchTstConfig,
        config: TrainingConfig,
        windows: Windows,
        split: &Split,
    ) -> Result<Trainer> {
        Trainer::new(model, config, windows, split)?.go_on(folder)
    }

    /// The model as it is now.
    pub fn model(&self) -> &PatchTst {
        &self.task().model
    }
}
