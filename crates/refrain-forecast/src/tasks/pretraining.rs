//! Masked pretraining of PatchTST: it learns from windows of a series to fill in patches that are hidden from it.

use super::forecasting::evaluation::windows_at_once;
use crate::data::series::{Part, Split};
use crate::data::windows::Windows;
use crate::models::patchtst::{MaskedPatchTst, PatchTstConfig};
use crate::models::{ForecasterConfig, Mode};
use crate::training::{Demand, Estimate, Task, TrainingConfig};
use crate::{Error, Result};
use refrain::{DType, Device, Precision, Tensor, no_grad};
use refrain_nn::Parameters;
use serde::{Deserialize, Serialize};

/// Minimises the mean squared error over the observed values of the hidden patches of each context. In every training step other
/// patches are hidden, of each channel its own; validation hides the same ones of every window.
///
/// The weights are then those that a forecaster begins with: [`initialise`](crate::models::initialise).
pub struct Pretraining {
    model: MaskedPatchTst,
    windows: Windows,
    train: Part,
    validation: Part,
    /// Hidden patches of each channel.
    hidden: usize,
    /// Those that validation hides, f32 `[1, N]`.
    of_validation: Tensor,
}

/// The error over the hidden patches of the validation windows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PretrainingErrors {
    /// Mean squared error.
    #[serde(rename = "validation_mse")]
    pub mse: f64,
}

impl Pretraining {
    /// A model with random weights, on windows of a series; so large a share of the patches is hidden, at least one and at most all
    /// but one.
    ///
    /// # Errors
    /// [`Error::Training`] if the share is not between 0 and 1, and those of [`MaskedPatchTst::new`].
    pub fn new(
        model: PatchTstConfig,
        mask_ratio: f64,
        windows: Windows,
        split: &Split,
        seed: u64,
    ) -> Result<Pretraining> {
        if !(mask_ratio > 0.0 && mask_ratio < 1.0) {
            let problem = format!("the share of hidden patches is {mask_ratio}");
            return Err(Error::Training { problem, fix: "choose a number between 0 and 1, such as 0.4" });
        }
        let patches = model.patches();
        let model = MaskedPatchTst::new(model, DType::F32, windows.device(), seed)?;
        let hidden = ((mask_ratio * patches as f64).round() as usize).clamp(1, patches - 1);
        // Evenly over the context.
        let is_hidden = |patch: usize| (patch + 1) * hidden / patches > patch * hidden / patches;
        let mask: Vec<f32> = (0..patches).map(|patch| f32::from(u8::from(is_hidden(patch)))).collect();
        let of_validation = Tensor::from_slice(&mask, [1, patches], windows.device())?;
        let (train, validation) = (split.train.clone(), split.validation.clone());
        Ok(Pretraining { model, windows, train, validation, hidden, of_validation })
    }

    /// The model.
    pub fn model(&self) -> &MaskedPatchTst {
        &self.model
    }

    /// The resources that pretraining on a series of this many rows needs.
    ///
    /// # Errors
    /// Those of [`MaskedPatchTst::size`].
    pub fn estimate(
        model: &PatchTstConfig,
        config: &TrainingConfig,
        rows: usize,
        split: &Split,
        precision: Precision,
    ) -> Result<Estimate> {
        let demand = Demand {
            size: MaskedPatchTst::size(model)?,
            layers: model.layers,
            activations: model.activations(config.at_once(split.train.windows())),
            data: rows as f64 * model.channels as f64,
            samples: split.train.windows() as f64,
            beside: 0.0,
        };
        Ok(Estimate::new(demand, precision))
    }

    /// The sum of the squared errors over the observed values of the hidden patches, and the number of these values, `[]` each.
    fn sums(&self, starts: &Tensor, hidden: &Tensor, mode: Mode<'_>) -> Result<[Tensor; 2]> {
        let (x, _) = self.windows.cut(starts)?;
        let errors = self.model.errors(&x, hidden, mode)?; // [B, C, N, P]
        let &[batch, channels, patches, patch] = errors.dims() else { return Ok([errors.clone(), errors]) };
        let rows = [batch, channels, patches, 1];
        let hidden = match hidden.dims()[0] {
            1 => hidden.reshape([1, 1, patches, 1])?.broadcast_to(rows)?,
            _ => hidden.reshape(rows)?,
        };
        let counts = match self.windows.observed(starts)? {
            Some(observed) => {
                self.model.patches_of(&observed)?.reshape([batch, channels, patches, patch])?.mul(&hidden)?
            }
            None => hidden.broadcast_to([batch, channels, patches, patch])?.contiguous()?,
        };
        Ok([errors.mul(&counts)?.sum(())?, counts.sum(())?])
    }

    /// Hides patches of each of some rows at random: f32 `[R, N]`, 1 where a patch is hidden.
    fn draw(&self, rows: usize, mode: Mode<'_>) -> Result<Tensor> {
        let Mode::Train(generator) = mode else { return Ok(self.of_validation.clone()) };
        no_grad(|| {
            let noise = generator.uniform([rows, self.model.config().patches()], DType::F32)?;
            let largest = noise.sort(1, false)?.0.narrow(1, self.hidden - 1, 1)?;
            Ok(noise.le(&largest)?.to_dtype(DType::F32)?)
        })
    }
}

impl Task for Pretraining {
    type Validation = PretrainingErrors;

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
        let hidden = self.draw(starts.numel() * self.windows.channels(), mode)?;
        let [sum, count] = self.sums(starts, &hidden, mode)?;
        // Of a batch without an observed hidden value nothing is learned.
        Ok(sum.div(&count.maximum_scalar(1.0)?)?)
    }

    fn validation_samples(&self) -> Vec<i64> {
        self.validation.starts().map(|start| start as i64).collect()
    }

    fn validation_batch(&self) -> usize {
        windows_at_once(self.windows.channels())
    }

    const SUMS: usize = 2;

    /// The sum of the squared errors, and the number of values.
    fn measure(&self, starts: &Tensor) -> Result<Tensor> {
        let sums = self.sums(starts, &self.of_validation, Mode::Eval)?;
        let [sum, count] = sums.map(|sum| sum.to_dtype(DType::F64));
        Ok(Tensor::stack(&[&sum?, &count?], 0)?)
    }

    fn validation(&self, sums: &[f64]) -> PretrainingErrors {
        PretrainingErrors { mse: sums[0] / sums[1].max(1.0) }
    }

    fn error(validation: &PretrainingErrors) -> f64 {
        validation.mse
    }
}
