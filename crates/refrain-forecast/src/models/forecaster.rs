//! What every forecaster can do, and what its settings say before it is built.

use crate::data::series::CovariateCounts;
use crate::data::windows::WindowCovariates;
use crate::models::{Distribution, weights};
use crate::settings::{Preset, Setting, Values};
use crate::{Error, Result};
use refrain::{DType, Device, Tensor};
use refrain_nn::{Mode, ModelSize, Parameters};

/// A model that forecasts the horizon of each channel from contexts of all channels.
///
/// To train a forecaster of your own, pass it to [`Forecasting::of`](crate::tasks::forecasting::Forecasting::of). To have it
/// on the command line, implement [`ForecasterConfig`] for its settings and add a line to [`ModelConfig`](super::ModelConfig).
pub trait Forecaster: Send + Sync {
    /// Its name for people, such as `PatchTST`.
    fn name(&self) -> &str;

    /// The shape of its windows.
    fn window(&self) -> WindowShape;

    /// The parameters and running statistics.
    fn parameters(&self) -> &Parameters;

    /// The same, to change which of them are trained.
    fn parameters_mut(&mut self) -> &mut Parameters;

    /// Contexts `[B, C, context]` to forecasts `[B, C, horizon]`, in the units and the dtype of the contexts. Under
    /// [`Precision::Bf16`](refrain::Precision::Bf16) the layers between may compute in bf16.
    ///
    /// # Errors
    /// [`Error::Model`] if the contexts have another shape than the model's windows; [`Error::Engine`] if they have another
    /// dtype or device.
    fn forward(&self, contexts: &Tensor, mode: Mode<'_>) -> Result<Tensor>;

    /// The same with covariates of the windows. A model that takes none refuses them.
    ///
    /// # Errors
    /// Those of [`Forecaster::forward`]; [`Error::Model`] if the covariates are not those of the model's settings.
    fn forward_with(
        &self,
        contexts: &Tensor,
        covariates: &WindowCovariates,
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        if covariates.is_empty() {
            return self.forward(contexts, mode);
        }
        let problem = format!("{} takes no covariates", self.name());
        Err(Error::Model { problem, fix: "leave them out, or choose a model that takes them" })
    }

    /// Makes the model forecast the parameters of a distribution, [so many values](Distribution::values) in each row, or again what
    /// its head gives. Its horizon does not change: it is that of all values.
    /// [`Forecasting`](crate::tasks::forecasting::Forecasting) calls this for its loss.
    ///
    /// # Errors
    /// [`Error::Model`] if the model forecasts no distributions.
    fn set_distribution(&mut self, distribution: Option<Distribution>) -> Result<()> {
        if distribution.is_none() {
            return Ok(());
        }
        let problem = format!("{} forecasts no distributions", self.name());
        Err(Error::Model {
            problem,
            fix: "choose a loss without a distribution, or implement `set_distribution`",
        })
    }

    /// The number of trained values.
    fn parameter_count(&self) -> usize {
        self.parameters().count()
    }

    /// SHA-256 over the names and f32 values of all parameters and running statistics. Two models with the same settings and
    /// the same hash forecast alike, bit for bit.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device cannot be read.
    fn weights_sha256(&self) -> Result<String> {
        weights::sha256(self.parameters())
    }
}

/// The settings of a forecaster. They say what it needs before it is built.
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

    /// How many covariates the model takes beside the contexts.
    fn covariates(&self) -> CovariateCounts {
        CovariateCounts::default()
    }

    /// How the model uses its channels.
    fn channel_use(&self) -> ChannelUse {
        ChannelUse::Mixed
    }

    /// The size of the model, computed without allocating it.
    ///
    /// # Errors
    /// [`Error::Model`] for invalid settings.
    fn size(&self) -> Result<ModelSize>;

    /// The number of layers, for the size of a recorded step.
    fn layers(&self) -> usize {
        1
    }

    /// The number of values that a training step over this many windows keeps for its backward pass and as scratch.
    fn activations(&self, windows: usize) -> f64;

    /// Its layers in one line, without its window and its number of parameters.
    fn summary(&self) -> String;

    /// A model with random weights, which depend only on the seed.
    ///
    /// # Errors
    /// [`Error::Model`] for invalid settings, [`Error::Engine`] if the device has not enough memory.
    fn build(&self, dtype: DType, device: &Device, seed: u64) -> Result<Box<dyn Forecaster>>;
}

/// How a forecaster uses the channels of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelUse {
    /// Each channel is forecast from its own past by the same weights. Such a model can learn from independent series, and
    /// forecast any number of channels, also those that it has not been trained on.
    Shared,
    /// Each channel is forecast from its own past, by some weights of its own.
    Own,
    /// A channel may be forecast from the past of others.
    Mixed,
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
    /// The defaults of training settings that differ from the usual ones.
    pub training: Values,
    /// The covariates that it can take.
    pub covariates: CovariateKinds,
}

/// Kinds of covariates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CovariateKinds {
    /// Those that are known up to the last row of the context.
    pub past: bool,
    /// Those that are also known over the horizon.
    pub future: bool,
    /// Those that are values of a series.
    pub statics: bool,
}

impl CovariateKinds {
    /// No covariates.
    pub const NONE: CovariateKinds = CovariateKinds { past: false, future: false, statics: false };

    /// The first kind that there are covariates of, but which is not among these.
    pub(super) fn lacks(self, counts: CovariateCounts) -> Option<&'static str> {
        let CovariateCounts { past, future, statics } = counts;
        [("past", past, self.past), ("future", future, self.future), ("static", statics, self.statics)]
            .into_iter()
            .find_map(|(name, count, takes)| (count > 0 && !takes).then_some(name))
    }
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
