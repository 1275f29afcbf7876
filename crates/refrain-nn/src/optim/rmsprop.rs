//! RMSprop.

use refrain::Tensor;
use refrain::optim::{self, RmsPropBuffers, RmsPropOptions, SegmentTable};
use serde_json::Value;

use super::{LearningRate, Optimizer, StepState};
use crate::error::Result;
use crate::parameters::Parameters;

/// RMSprop with PyTorch's formula, [`refrain::optim::rmsprop`]: one launch for all parameters.
///
/// Parameters of less than two dimensions (norms, biases, and vectors of your own) do not decay, unless their group says so
/// ([`Parameters::set_group`]).
pub struct RmsProp {
    options: RmsPropOptions,
    state: StepState,
    values: Tensor,
    gradients: Tensor,
    segments: SegmentTable,
    square_avg: Tensor,
    grad_avg: Option<Tensor>,
    momentum_buffer: Option<Tensor>,
}

impl RmsProp {
    /// An optimiser for these parameters. Its running means and its momentum start at zero. The learning rate is a
    /// [`Schedule`](refrain::optim::Schedule) or another [`LearningRate`].
    ///
    /// # Errors
    /// If the learning rate is invalid or the device has not enough memory. The first step checks the options.
    pub fn new(
        parameters: &Parameters,
        options: RmsPropOptions,
        schedule: impl Into<LearningRate>,
    ) -> Result<RmsProp> {
        let zeros = || parameters.values().zeros_like();
        Ok(RmsProp {
            options,
            state: StepState::new(parameters, schedule.into())?,
            values: parameters.values().clone(),
            gradients: parameters.gradients().clone(),
            segments: parameters.segments().clone(),
            square_avg: zeros()?,
            grad_avg: options.centered.then(zeros).transpose()?,
            momentum_buffer: (options.momentum != 0.0).then(zeros).transpose()?,
        })
    }
}

step_options!(RmsProp, state);

impl Optimizer for RmsProp {
    fn step(&self) -> Result<()> {
        self.state.run(&self.gradients, || {
            optim::rmsprop(
                self.options,
                RmsPropBuffers {
                    parameters: &self.values,
                    gradients: &self.gradients,
                    square_avg: &self.square_avg,
                    grad_avg: self.grad_avg.as_ref(),
                    momentum_buffer: self.momentum_buffer.as_ref(),
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
        let means = self.grad_avg.iter().map(|buffer| ("grad_avg", buffer));
        let momentum = self.momentum_buffer.iter().map(|buffer| ("momentum_buffer", buffer));
        [("square_avg", &self.square_avg)].into_iter().chain(means).chain(momentum).collect()
    }

    fn describe(&self) -> Value {
        self.state.describe("rmsprop", self.options)
    }
}
