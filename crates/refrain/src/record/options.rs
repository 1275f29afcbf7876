//! The options of a step.

/// How many programs a step keeps by default.
const KEPT: usize = 8;

/// What a step does if the driver of the device refuses to make a graph of its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// The call returns an error that names the operation at which the driver refused.
    #[default]
    Error,
    /// The closure runs eagerly, at this call and at all later calls with inputs of these shapes. A line on standard
    /// error says so and why; [`Step::refusal`](crate::Step::refusal) returns the reason.
    Eager,
}

/// The options of a [`Step`](crate::Step); pass them to [`Step::with_options`](crate::Step::with_options) or
/// [`Step::new_send_with_options`](crate::Step::new_send_with_options).
#[derive(Clone, Copy, Debug)]
pub struct StepOptions {
    pub(super) keep: usize,
    pub(super) fallback: Fallback,
    pub(super) strict: bool,
}

impl StepOptions {
    /// Up to eight programs, no fallback, not strict.
    pub fn new() -> StepOptions {
        StepOptions { keep: KEPT, fallback: Fallback::Error, strict: false }
    }

    /// Keeps up to `programs` programs, at least 1: one for each combination of input shapes and dtypes. If there are
    /// more, the least recently used one is dropped.
    pub fn keep(mut self, programs: usize) -> StepOptions {
        self.keep = programs.max(1);
        self
    }

    /// Strict mode: the closure is recorded and compared before every replay. If the state of the host has changed,
    /// the call returns an error and the replay does not run. So a change is found at the first call that would be
    /// wrong, also one that is undone later. Each call takes as long as recording, which is about as long as eager
    /// code takes to submit its work. Use it in tests, and to find what [`Step::finish`](crate::Step::finish) can't
    /// see.
    ///
    /// Set `REFRAIN_STRICT=1` in the environment to make every step of a program strict.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use refrain::{DType, Device, Error, Step, StepOptions, Tensor};
    ///
    /// let (device, rate) = (Device::cpu(), Cell::new(0.5));
    /// let options = StepOptions::new().strict(true);
    /// let mut step = Step::with_options(&device, options, |x| Ok(vec![x[0].mul_scalar(rate.get())?]));
    /// let x = Tensor::ones([2], DType::F32, &device)?;
    /// for _ in 0..5 {
    ///     step.call(&[x.clone()])?;
    /// }
    /// rate.set(0.25);
    /// let error = step.call(&[x.clone()]).map(drop).unwrap_err();
    /// assert!(matches!(error, Error::RecordingChanged { op: "mul", .. }));
    /// rate.set(0.5);
    /// step.call(&[x])?;
    /// step.finish()?;
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn strict(mut self, strict: bool) -> StepOptions {
        self.strict = strict;
        self
    }

    /// What to do if the driver refuses a graph.
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
