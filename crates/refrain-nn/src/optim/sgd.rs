//! SGD with momentum.

use refrain::Tensor;
use refrain::optim::{self, SegmentTable, SgdBuffers, SgdOptions};
use serde_json::Value;

use super::{LearningRate, Optimizer, StepState};
use crate::error::Result;
use crate::parameters::Parameters;

/// Stochastic gradient descent with PyTorch's formula, [`refrain::optim::sgd`]: one launch for all
/// parameters.
///
/// Parameters of less than two dimensions (norms, biases, and vectors of your own) do not decay, unless their group says so
/// ([`Parameters::set_group`]).
pub struct Sgd {
    options: SgdOptions,
    state: StepState,
    values: Tensor,
    gradients: Tensor,
    segments: SegmentTable,
    momentum_buffer: Option<Tensor>,
}

impl Sgd {
    /// An optimiser for these parameters. Its momentum starts at zero. The learning rate is a [`Schedule`](refrain::optim::Schedule)
    /// or another [`LearningRate`].
    ///
    /// # Errors
    /// If the learning rate is invalid or the device has not enough memory. The first step checks the options.
    pub fn new(
        parameters: &Parameters,
        options: SgdOptions,
        schedule: impl Into<LearningRate>,
    ) -> Result<Sgd> {
        let momentum_buffer =
            if options.momentum == 0.0 { None } else { Some(parameters.values().zeros_like()?) };
        Ok(Sgd {
            options,
            state: StepState::new(parameters, schedule.into())?,
            values: parameters.values().clone(),
            gradients: parameters.gradients().clone(),
            segments: parameters.segments().clone(),
            momentum_buffer,
        })
    }
}

step_options!(Sgd, state);

impl Optimizer for Sgd {
    fn step(&self) -> Result<()> {
        self.state.run(&self.gradients, || {
            optim::sgd(
                self.options,
                SgdBuffers {
                    parameters: &self.values,
                    gradients: &self.gradients,
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
        self.momentum_buffer.iter().map(|buffer| ("momentum_buffer", buffer)).collect()
    }

    fn describe(&self) -> Value {
        self.state.describe("sgd", self.options)
    }
}
