//! What a [`super::Trainer`] trains.

use crate::Result;
use refrain::{DType, Device, Tensor};
use refrain_nn::{Mode, Parameters};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A model with the data that it learns from: what a step computes, and what a validation finds.
///
/// Samples have numbers; a step is given those that it takes as a tensor on the device, since recorded steps are
/// replayed without the host.
pub trait Task: 'static {
    /// What a validation finds; kept in reports and checkpoints.
    type Validation: Clone + Debug + PartialEq + Serialize + DeserializeOwned;

    /// The parameters that are trained.
    fn parameters(&self) -> &Parameters;

    /// Where model and data lie.
    fn device(&self) -> &Device;

    /// The numbers of the training samples.
    fn samples(&self) -> Vec<i64>;

    /// The mean loss, `[]`, of samples i64 `[B]`, to be derived.
    ///
    /// # Errors
    /// If the device fails.
    fn loss(&self, samples: &Tensor, mode: Mode<'_>) -> Result<Tensor>;

    /// How much the mean loss of samples i64 `[B]` counts beside that of others: f32 `[]`, the number of samples
    /// unless some count more than others.
    ///
    /// # Errors
    /// If the device fails.
    fn weight(&self, samples: &Tensor) -> Result<Tensor> {
        Ok(Tensor::full((), samples.numel() as f64, DType::F32, samples.device())?)
    }

    /// Measures the model on the validation samples.
    ///
    /// # Errors
    /// If the device fails.
    fn validate(&self) -> Result<Self::Validation>;

    /// The error that training is stopped by and the best weights are chosen by: lower is better.
    fn error(validation: &Self::Validation) -> f64;
}
