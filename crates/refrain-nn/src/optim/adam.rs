//! Adam and AdamW.

use refrain::Tensor;
use refrain::optim::{self, AdamOptions, AdamWBuffers, AdamWOptions, SegmentTable};
use serde_json::Value;

use super::{LearningRate, Optimizer, StepState};
use crate::error::Result;
use crate::parameters::Parameters;

/// What Adam and AdamW share.
struct Moments {
    state: StepState,
    values: Tensor,
    gradients: Tensor,
    segments: SegmentTable,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
}

impl Moments {
    fn new(parameters: &Parameters, schedule: LearningRate) -> Result<Moments> {
        Ok(Moments {
            state: StepState::new(parameters, schedule)?,
            values: parameters.values().clone(),
            gradients: parameters.gradients().clone(),
            segments: parameters.segments().clone(),
            exp_avg: parameters.values().zeros_like()?,
            exp_avg_sq: parameters.values().zeros_like()?,
        })
    }

    fn step(&self, update: impl FnOnce(AdamWBuffers<'_>) -> refrain::Result<()>) -> Result<()> {
        self.state.run(&self.gradients, || {
            update(AdamWBuffers {
                parameters: &self.values,
                gradients: &self.gradients,
                exp_avg: &self.exp_avg,
                exp_avg_sq: &self.exp_avg_sq,
                step: &self.state.step,
                learning_rate: &self.state.learning_rate,
                gradient_scale: &self.state.gradient_scale,
                segments: &self.segments,
            })
        })
    }

    fn buffers(&self) -> Vec<(&'static str, &Tensor)> {
        vec![("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)]
    }
}

/// AdamW (Loshchilov and Hutter, ICLR 2019) with PyTorch's formula, [`refrain::optim::adamw`]: one launch
/// for all parameters.
///
/// Parameters of less than two dimensions (norms, biases, and vectors of your own) do not decay, unless their group says so
/// ([`Parameters::set_group`]).
pub struct AdamW {
    options: AdamWOptions,
    moments: Moments,
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
        Ok(AdamW { options, moments: Moments::new(parameters, schedule.into())? })
    }
}

step_options!(AdamW, moments.state);

impl Optimizer for AdamW {
    fn step(&self) -> Result<()> {
        self.moments.step(|buffers| optim::adamw(self.options, buffers))
    }

    fn step_state(&self) -> &StepState {
        &self.moments.state
    }

    fn buffers(&self) -> Vec<(&'static str, &Tensor)> {
        self.moments.buffers()
    }

    fn describe(&self) -> Value {
        self.moments.state.describe("adamw", self.options)
    }
}

/// Adam (Kingma and Ba, ICLR 2015) with PyTorch's formula, [`refrain::optim::adam`]: one launch for all parameters. Its weight
/// decay is part of the gradient; [`AdamW`] has one of its own.
///
/// Parameters of less than two dimensions (norms, biases, and vectors of your own) do not decay, unless their group says so
/// ([`Parameters::set_group`]).
///
/// ```
/// use refrain::optim::{AdamOptions, Schedule};
/// use refrain::{DType, Device, Generator};
/// use refrain_nn::{Adam, Linear, Optimizer, ParameterBuilder};
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let layer = Linear::new(&builder, 3, 1)?;
/// let generator = Generator::new(&device, 0)?;
/// let parameters = builder.build(&generator)?;
/// let optimizer = Adam::new(&parameters, AdamOptions::default(), Schedule::Constant { lr: 1e-3 })?;
/// layer.forward(&generator.normal([8, 3], DType::F32)?)?.square()?.mean(())?.backward()?;
/// optimizer.step()?;
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct Adam {
    options: AdamOptions,
    moments: Moments,
}

impl Adam {
    /// An optimiser for these parameters. Its moments start at zero. The learning rate is a [`Schedule`](refrain::optim::Schedule)
    /// or another [`LearningRate`].
    ///
    /// # Errors
    /// If the learning rate is invalid or the device has not enough memory. The first step checks the options.
    pub fn new(
        parameters: &Parameters,
        options: AdamOptions,
        schedule: impl Into<LearningRate>,
    ) -> Result<Adam> {
        Ok(Adam { options, moments: Moments::new(parameters, schedule.into())? })
    }
}

step_options!(Adam, moments.state);

impl Optimizer for Adam {
    fn step(&self) -> Result<()> {
        self.moments.step(|buffers| optim::adam(self.options, buffers))
    }

    fn step_state(&self) -> &StepState {
        &self.moments.state
    }

    fn buffers(&self) -> Vec<(&'static str, &Tensor)> {
        self.moments.buffers()
    }

    fn describe(&self) -> Value {
        self.moments.state.describe("adam", self.options)
    }
}
