//! Optimisers. They work on the flat buffers of [`Parameters`]. Everything that changes from step to step is on the
//! device: the step counter, the learning rate, the gradient norm, the moments.

/// The options that all optimisers have, as methods of `$name`; its [`StepState`] is in the field `$state`.
macro_rules! step_options {
    ($name:ident, $($state:ident).+) => {
        impl $name {
            /// Scales the gradients of each step so that their global norm is at most `max_norm`.
            ///
            /// # Errors
            /// If `max_norm` is negative or NaN.
            pub fn clip_grad_norm(mut self, max_norm: f64) -> Result<$name> {
                self.$($state).+.clip(max_norm)?;
                Ok(self)
            }

            /// Skips each step whose gradients have an infinity or NaN: only the gradients change, to zero. The device decides, so
            /// it works in recorded steps, too. [`StepState::skipped`] counts such steps. The sum of the squared gradients must
            /// be finite in f64.
            ///
            /// # Errors
            /// If the device has not enough memory.
            pub fn skip_non_finite(mut self) -> Result<$name> {
                self.$($state).+.skip_non_finite()?;
                Ok(self)
            }
        }
    };
}

mod adam;
mod learning_rate;
mod lion;
mod rmsprop;
mod sgd;

pub use adam::{Adam, AdamW};
pub use learning_rate::{LearningRate, Plateau, PlateauOptions, PlateauState};
pub use lion::Lion;
pub use rmsprop::RmsProp;
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
    /// counter. Nothing is copied to the host. An optimiser that skips steps that are not finite leaves parameters, moments and
    /// counter alone in such a step.
    ///
    /// # Errors
    /// If the device fails.
    fn step(&self) -> Result<()>;

    /// The step counter, the learning rate and the gradient norm.
    fn step_state(&self) -> &StepState;

    /// The optimiser's flat buffers by name, for checkpoints: `exp_avg`, `momentum_buffer` and so on.
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
    /// How many steps were skipped, if such that are not finite are.
    skipped: Option<Tensor>,
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
            skipped: None,
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

    /// The global gradient norm of the last step before clipping, f64 `[1]`. It is NaN before the first step, and
    /// if the optimiser neither clips nor skips steps, because only these two need it.
    pub fn gradient_norm(&self) -> &Tensor {
        &self.gradient_norm
    }

    /// How many steps were skipped because gradients were not finite, i64 `[1]`; `None` if the optimiser does not skip such steps.
    pub fn skipped(&self) -> Option<&Tensor> {
        self.skipped.as_ref()
    }

    fn skip_non_finite(&mut self) -> Result<()> {
        self.skipped = Some(Tensor::zeros([1], DType::I64, self.step.device())?);
        Ok(())
    }

    fn clip(&mut self, max_norm: f64) -> Result<()> {
        if max_norm.is_nan() || max_norm < 0.0 {
            let message = format!("max_norm is {max_norm}; it must be at least 0");
            return Err(Error::invalid("clip_grad_norm", message));
        }
        self.max_norm = Some(max_norm);
        Ok(())
    }

    /// One step: computes gradient norm, gradient scale and learning rate, runs `update`, and advances the counter.
    fn run(&self, gradients: &Tensor, update: impl FnOnce() -> refrain::Result<()>) -> Result<()> {
        if self.max_norm.is_some() || self.skipped.is_some() {
            let max_norm = self.max_norm.unwrap_or(f64::INFINITY);
            optim::clip_coefficient_into(gradients, max_norm, &self.gradient_norm, &self.gradient_scale)?;
        }
        self.schedule.write(&self.step, &self.learning_rate)?;
        let Some(skipped) = &self.skipped else {
            update()?;
            return Ok(self.step.add_scalar_assign(1.0)?);
        };
        // NaN is not below infinity, either.
        let skips = self.gradient_norm.lt_scalar(f64::INFINITY)?.eq_scalar(0.0)?;
        self.gradient_scale.masked_fill_into(&skips, f64::NEG_INFINITY, &self.gradient_scale)?;
        update()?;
        let skips = skips.to_dtype(DType::I64)?;
        skipped.add_assign(&skips)?;
        self.step.add_scalar_assign(1.0)?;
        Ok(self.step.sub_assign(&skips)?)
    }

    fn describe(&self, kind: &str, options: impl serde::Serialize) -> Value {
        json!({ "kind": kind, "options": options, "schedule": self.schedule.describe(), "clip_grad_norm": self.max_norm })
    }
}
