//! Lion.

use refrain::Tensor;
use refrain::optim::{self, LionBuffers, LionOptions, SegmentTable};
use serde_json::Value;

use super::{LearningRate, Optimizer, StepState};
use crate::error::Result;
use crate::parameters::Parameters;

/// Lion (Chen et al., NeurIPS 2023), [`refrain::optim::lion`]: one launch for all parameters, and one running mean instead of
/// the two of [`AdamW`](crate::AdamW). Each number moves by the learning rate in every step, so the rate is usually a third to a
/// tenth of that of AdamW, and the weight decay as much larger.
///
/// Parameters of less than two dimensions (norms, biases, and vectors of your own) do not decay, unless their group says so
/// ([`Parameters::set_group`]).
pub struct Lion {
    options: LionOptions,
    state: StepState,
    values: Tensor,
    gradients: Tensor,
    segments: SegmentTable,
    exp_avg: Tensor,
}

impl Lion {
    /// An optimiser for these parameters. Its running mean starts at zero. The learning rate is a
    /// [`Schedule`](refrain::optim::Schedule) or another [`LearningRate`].
    ///
    /// # Errors
    /// If the learning rate is invalid or the device has not enough memory. The first step checks the options.
    pub fn new(
        parameters: &Parameters,
        options: LionOptions,
        schedule: impl Into<LearningRate>,
    ) -> Result<Lion> {
        Ok(Lion {
            options,
            state: StepState::new(parameters, schedule.into())?,
            values: parameters.values().clone(),
            gradients: parameters.gradients().clone(),
            segments: parameters.segments().clone(),
            exp_avg: parameters.values().zeros_like()?,
        })
    }
}

step_options!(Lion, state);

impl Optimizer for Lion {
    fn step(&self) -> Result<()> {
        self.state.run(&self.gradients, || {
            optim::lion(
                self.options,
                LionBuffers {
                    parameters: &self.values,
                    gradients: &self.gradients,
                    exp_avg: &self.exp_avg,
                    learning_rate: &self.state.learning_rate,
                    gradient_scale: &self.state.gradient_scale,
                    segments: &self.segments,
                },
            )
        })
    }

    fn step_state(&self) -> &StepState {
        &self.state
    }

    fn buffers(&self) -> Vec<(&'static str, &Tensor)> {
        vec![("exp_avg", &self.exp_avg)]
    }

    fn describe(&self) -> Value {
        self.state.describe("lion", self.options)
    }
}
