//! Optimisers. They work on the flat buffers of [`Parameters`]. Everything that changes from step to step is on the
//! device: the step counter, the learning rate, the gradient norm, the moments.

mod adamw;
mod learning_rate;
mod sgd;

pub use adamw::AdamW;
pub use learning_rate::{LearningRate, Plateau, PlateauOptions, PlateauState};
pub use sgd::Sgd;

use refrain::optim;
use refrain::{DType, Tensor};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::parameters::Parameters;

/// An optimiser over the parameters that it was made for.
pub trait Optimizer {
    /// Does one step with the gradients accumulated so far. It clips the gradients, computes the learning rate of the
    /// schedule for the step counter, updates parameters and moments, sets the gradients to zero and advances the
    /// counter. Nothing is copied to the host.
    ///
    /// # Errors
    /// If the device fails.
    fn step(&self) -> Result<()>;

    /// The step counter, the learning rate and the gradient norm.
    fn step_state(&self) -> &StepState;

    /// The optimiser's flat buffers by name, for checkpoints: `exp_avg`, `exp_avg_sq`, `momentum_buffer`.
    fn buffers(&self) -> Vec<(&'static str, &Tensor)>;

    /// Kind and hyper-parameters as JSON, for checkpoints.
    fn describe(&self) -> Value;
}

/// The state that the steps of an optimiser share, on the device.
pub struct StepState {
    schedule: LearningRate,
    max_norm: Option<f64>,
    step: Tensor,
    learning_rate: Tensor,
    gradient_norm: Tensor,
    gradient_scale: Tensor,
}

impl StepState {
    fn new(parameters: &Parameters, schedule: LearningRate) -> Result<StepState> {
        let device = parameters.values().device();
        let step = Tensor::zeros([1], DType::I64, device)?;
        let learning_rate = Tensor::zeros([1], DType::F64, device)?;
        schedule.write(&step, &learning_rate)?;
        Ok(StepState {
            schedule,
            max_norm: None,
            learning_rate,
            gradient_norm: Tensor::full([1], f64::NAN, DType::F64, device)?,
            gradient_scale: Tensor::ones([1], DType::F64, device)?,
            step,
        })
    }

    /// Where the learning rate comes from.
    pub fn schedule(&self) -> &LearningRate {
        &self.schedule
    }

    /// The norm that gradients are clipped to, if any.
    pub fn max_norm(&self) -> Option<f64> {
        self.max_norm
    }

    /// How many steps were done: i64 `[1]`.
    pub fn step(&self) -> &Tensor {
        &self.step
    }

    /// The learning rate of the last step (before the first step: the rate of the first step), f64 `[1]`.
    pub fn learning_rate(&self) -> &Tensor {
        &self.learning_rate
    }

    /// The global gradient norm of the last step before clipping, f64 `[1]`. It is NaN before the first step and
    /// without clipping, because only clipping computes it.
    pub fn gradient_norm(&self) -> &Tensor {
        &self.gradient_norm
    }

    fn clip(&mut self, max_norm: f64) -> Result<()> {
        if max_norm.is_nan() || max_norm < 0.0 {
            let message = format!("max_norm is {max_norm}; it must be at least 0");
            return Err(Error::invalid("clip_grad_norm", message));
        }
        self.max_norm = Some(max_norm);
        Ok(())
    }

    /// Computes gradient norm, gradient scale and learning rate for the next step.
    fn prepare(&self, gradients: &Tensor) -> Result<()> {
        if let Some(max_norm) = self.max_norm {
            optim::clip_coefficient_into(gradients, max_norm, &self.gradient_norm, &self.gradient_scale)?;
        }
        self.schedule.write(&self.step, &self.learning_rate)
    }

    fn advance(&self) -> Result<()> {
        Ok(self.step.add_scalar_assign(1.0)?)
    }

    fn describe(&self, kind: &str, options: impl serde::Serialize) -> Value {
        json!({ "kind": kind, "options": options, "schedule": self.schedule.describe(), "clip_grad_norm": self.max_norm })
    }
}
