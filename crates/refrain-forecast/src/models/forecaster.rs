//! What every forecaster can do, and what its settings tell before it is made.

use crate::models::weights;
use crate::settings::{Preset, Setting, Values};
use crate::{Error, Result};
use refrain::{DType, Device, Tensor};
use refrain_nn::{Mode, ModelSize, Parameters};

/// A model that forecasts the horizon of each channel from contexts of all channels.
///
/// A forecaster of your own trains by [`Forecasting::of`](crate::tasks::forecasting::Forecasting::of). To have it on the
/// command line, give its settings [`ForecasterConfig`] and [`ModelConfig`](super::ModelConfig) a line.
pub trait Forecaster {
    /// Its name for people, such as `PatchTST`.
    fn name(&self) -> &str;

    /// The shape of its windows.
    fn window(&self) -> WindowShape;

    /// The parameters and running statistics.
    fn parameters(&self) -> &Parameters;

    /// Contexts `[B, C, context]` to forecasts `[B, C, horizon]`, in the units and the dtype of the contexts. Under
    /// [`Precision::Bf16`](refrain::Precision::Bf16) what lies between may be bf16.
    ///
    /// # Errors
    /// [`Error::Model`] if the contexts are of another shape than the model's windows; [`Error::Engine`] if their dtype or
    /// device is another.
    fn forward(&self, contexts: &Tensor, mode: Mode<'_>) -> Result<Tensor>;

    /// Number of trained numbers.
    fn parameter_count(&self) -> usize {
        self.parameters().count()
    }

    /// SHA-256 over names and f32 values of all parameters and running statistics: two models of the same settings that
    /// agree in it forecast alike, bit for bit.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device cannot be read.
    fn weights_sha256(&self) -> Result<String> {
        weights::sha256(self.parameters())
    }
}

/// The settings of a forecaster: what it takes is known before it is made.
pub trait ForecasterConfig {
    /// What a user should know to choose it.
    fn about() -> About
    where
        Self: Sized;

    /// The shape of its windows.
    fn window(&self) -> WindowShape;

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Model`], which says what to change.
    fn validate(&self) -> Result<()>;

    /// The size of the model, computed without allocating it.
    ///
    /// # Errors
    /// [`Error::Model`] for invalid settings.
    fn size(&self) -> Result<ModelSize>;

    /// Layers that are alike, for the size of a recorded step.
    fn layers(&self) -> usize {
        1
    }

    /// Numbers that a training step over so many windows keeps for its backward pass and works with.
    fn activations(&self, windows: usize) -> f64;

    /// A line about what it is made of, without its window and the number of parameters.
    fn summary(&self) -> String;

    /// A model with random weights, which follow from the seed.
    ///
    /// # Errors
    /// [`Error::Model`] for settings that make no model, [`Error::Engine`] if the device has no memory for it.
    fn build(&self, dtype: DType, device: &Device, seed: u64) -> Result<Box<dyn Forecaster>>;
}

/// The shape of a forecaster's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowShape {
    /// Number of channels.
    pub channels: usize,
    /// Rows that the model sees before a forecast.
    pub context: usize,
    /// Rows of a forecast.
    pub horizon: usize,
}

impl WindowShape {
    /// The batch of contexts `[B, C, context]`.
    ///
    /// # Errors
    /// [`Error::Model`] if they have another shape.
    pub fn batch(&self, contexts: &Tensor) -> Result<usize> {
        match *contexts.dims() {
            [batch, channels, context] if (channels, context) == (self.channels, self.context) => Ok(batch),
            _ => Err(Error::Model {
                problem: format!(
                    "the contexts have shape {}, but the model has {} channels and a context of {}",
                    contexts.shape(),
                    self.channels,
                    self.context
                ),
                fix: "pass [batch, channels, context]",
            }),
        }
    }
}

/// What a user should know of a model to choose it.
#[derive(Debug, Clone)]
pub struct About {
    /// Its name for people, such as `PatchTST`.
    pub title: &'static str,
    /// What it does, in a few words.
    pub does: &'static str,
    /// Settings that have a name.
    pub presets: &'static [Preset],
    /// The defaults of training that suit it, where they are not the usual ones.
    pub training: Values,
}

/// A model that can be trained, as a command line lists it.
#[derive(Debug, Clone)]
pub struct ModelListing {
    /// Its name on the command line and in run folders, such as `patchtst`.
    pub name: &'static str,
    /// What it is.
    pub about: About,
    /// What a user can choose of it.
    pub settings: Vec<Setting>,
}
