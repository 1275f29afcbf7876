//! The interface of what a [`super::Trainer`] trains.

use crate::Result;
use refrain::{DType, Device, Tensor};
use refrain_nn::{Mode, Parameters};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A model with the data that it learns from: the loss of a step, and the result of a validation.
///
/// Samples have numbers. A step gets the numbers of its samples as a tensor on the device, because recorded steps are
/// replayed without the host.
pub trait Task: 'static {
    /// The result of a validation. Reports and checkpoints keep it.
    type Validation: Clone + Debug + PartialEq + Serialize + DeserializeOwned;

    /// The parameters that are trained.
    fn parameters(&self) -> &Parameters;

    /// The same, to change their groups.
    fn parameters_mut(&mut self) -> &mut Parameters;

    /// The device of model and data.
    fn device(&self) -> &Device;

    /// The numbers of the training samples.
    fn samples(&self) -> Vec<i64>;

    /// The tensors that the samples are taken from. If several ranks train together, each must have the same values in them.
    fn data(&self) -> Vec<&Tensor>;

    /// The mean loss, a scalar, of the samples with these numbers (i64 `[B]`). Training differentiates it.
    ///
    /// # Errors
    /// If the device fails.
    fn loss(&self, samples: &Tensor, mode: Mode<'_>) -> Result<Tensor>;

    /// The weight of the mean loss of these samples (i64 `[B]`) beside that of others, f32 `[]`, if some samples count more than
    /// others. `None`: it is the number of samples.
    ///
    /// # Errors
    /// If the device fails.
    fn weight(&self, _samples: &Tensor) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// The numbers of the validation samples. There are none, unless a task has some.
    fn validation_samples(&self) -> Vec<i64> {
        Vec::new()
    }

    /// How many validation samples are measured at a time: enough to fill the device, few enough to save memory.
    fn validation_batch(&self) -> usize {
        1024
    }

    /// How many numbers [`Task::measure`] gives.
    const SUMS: usize = 0;

    /// Sums over the validation samples with these numbers (i64 `[B]`), such as those of errors and of counts: f64 `[SUMS]`.
    /// They are added up on the device over all validation samples. This is recorded and replayed like a step. Without
    /// [`SUMS`](Task::SUMS) there is nothing to measure.
    ///
    /// # Errors
    /// If the device fails.
    fn measure(&self, samples: &Tensor) -> Result<Tensor> {
        Ok(Tensor::zeros(0, DType::F64, samples.device())?)
    }

    /// The result of a validation with these sums over all its samples.
    fn validation(&self, sums: &[f64]) -> Self::Validation;

    /// The error for early stopping and for choosing the best weights. Lower is better.
    fn error(validation: &Self::Validation) -> f64;
}
