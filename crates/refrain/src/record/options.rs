//! How a step is to behave.

/// How many programs a step keeps unless told otherwise.
const KEPT: usize = 8;

/// What a step does where the device's driver refuses to make a graph of its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// The call is an error, with the operation at which it was refused.
    #[default]
    Error,
    /// The closure is run operation by operation, at this call and at all later ones with inputs of these shapes. A
    /// line on standard error says so and why, and [`Step::refusal`](crate::Step::refusal) does.
    Eager,
}

/// How a [`Step`](crate::Step) behaves ([`Step::with_options`](crate::Step::with_options)).
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    pub(super) keep: usize,
    pub(super) fallback: Fallback,
}

impl StepOptions {
    /// Eight programs, no fallback.
    pub fn new() -> StepOptions {
        StepOptions { keep: KEPT, fallback: Fallback::Error }
    }

    /// Keeps up to `programs` programs, at least 1: one for each combination of input shapes and dtypes. One more, and
    /// the one not used for longest goes.
    pub fn keep(mut self, programs: usize) -> StepOptions {
        self.keep = programs.max(1);
        self
    }

    /// What to do where the driver refuses a graph.
    ///
    /// ```
    /// use refrain::{DType, Fallback, Profile, Simulator, Step, StepOptions, Tensor};
    ///
    /// // A GPU whose driver invalidates the first capture.
    /// let device = Simulator::new(Profile::Discrete).invalidate_capture_at(1).device();
    /// let options = StepOptions::new().fallback(Fallback::Eager);
    /// let mut step = Step::with_options(&device, options, |x| Ok(vec![x[0].exp()?.sum(())?]));
    /// let x = Tensor::zeros([3], DType::F32, &device)?;
    /// assert_eq!(step.call(&[x])?.to_scalar::<f32>(0)?, 3.0);
    /// assert!(step.refusal().is_some() && step.program().is_none());
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn fallback(mut self, fallback: Fallback) -> StepOptions {
        self.fallback = fallback;
        self
    }
}

impl Default for StepOptions {
    fn default() -> StepOptions {
        StepOptions::new()
    }
}
