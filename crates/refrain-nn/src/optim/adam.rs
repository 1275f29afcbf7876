//! AdamW.

use refrain::Tensor;
use refrain::optim::{self, AdamWBuffers, AdamWOptions, SegmentTable};
use serde_json::Value;

use super::{LearningRate, Optimizer, StepState};
use crate::error::Result;
use crate::parameters::Parameters;

/// AdamW (Loshchilov and Hutter, ICLR 2019) with PyTorch's formula, [`refrain::optim::adamw`]: one launch
/// for all parameters.
pub struct AdamW {
    options: AdamWOptions,
    state: StepState,
    values: Tensor,
    gradients: Tensor,
    segments: SegmentTable,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
}

impl AdamW {
    /// An optimiser for these parameters. Its moments start at zero. The learning rate is a [`Schedule`](refrain::optim::Schedule)
    /// or another [`LearningRate`].
    ///
    /// # Errors
    /// If the learning rate is invalid or the device has not enough memory. The first step checks the options.
    pub fn new(
        parameters: &Parameters,
        options: AdamWOptions,
        schedule: impl Into<LearningRate>,
    ) -> Result<AdamW> {
        Ok(AdamW {
            options,
            state: StepState::new(parameters, schedule.into())?,
            values: parameters.values().clone(),
            gradients: parameters.gradients().clone(),
            segments: parameters.segments().clone(),
            exp_avg: parameters.values().zeros_like()?,
            exp_avg_sq: parameters.values().zeros_like()?,
        })
    }

    /// Scales the gradients of each step so that their global norm is at most `max_norm`.
    ///
    /// # Errors
    /// If `max_norm` is negative or NaN.
    pub fn clip_grad_norm(mut self, max_norm: f64) -> Result<AdamW> {
        self.state.clip(max_norm)?;
        Ok(self)
    }
}

impl Optimizer for AdamW {
    fn step(&self) -> Result<()> {
        self.state.prepare(&self.gradients)?;
        optim::adamw(
            self.options,
            AdamWBuffers {
                parameters: &self.values,
                gradients: &self.gradients,
                exp_avg: &self.exp_avg,
                exp_avg_sq: &self.exp_avg_sq,
                step: &self.state.step,
                learning_rate: &self.state.learning_rate,
                gradient_scale: &self.state.gradient_scale,
                segments: &self.segments,
            },
        )?;
        self.state.advance()
    }

    fn step_state(&self) -> &StepState {
        &self.state
    }

    fn buffers(&self) -> Vec<(&'static str, &Tensor)> {
        vec![("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)]
    }

    fn describe(&self) -> Value {
        self.state.describe("adamw", self.options)
    }
}
