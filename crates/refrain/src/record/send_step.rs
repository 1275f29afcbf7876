//! Steps that move to another thread.

use super::options::StepOptions;
use super::step::{Returned, Step};
use crate::device::Device;
use crate::tensor::Tensor;

/// A [`Step`] that may be recorded on one thread and replayed on another, made by [`Step::new_send`].
pub type SendStep<'f> = Step<'f, dyn Fn(&[Tensor]) -> Returned + Send + 'f>;

impl<'f> SendStep<'f> {
    /// [`Step::new`] of a closure that may move to another thread, and so may the step. It is recorded on the thread of
    /// the first call with inputs of new shapes, and replayed, or checked, on that of each later one.
    ///
    /// ```
    /// use refrain::{Device, Step, Tensor};
    ///
    /// let device = Device::cpu();
    /// let mut step = Step::new_send(&device, |x| Ok(vec![x[0].square()?]));
    /// let x = Tensor::from_slice(&[3.0f32], [1], &device)?;
    /// step.call(&[x.clone()])?;
    /// let there = std::thread::spawn(move || step.call(&[x])?.to_scalar::<f32>(0)).join().unwrap()?;
    /// assert_eq!(there, 9.0);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn new_send<F>(device: &Device, closure: F) -> SendStep<'f>
    where
        F: Fn(&[Tensor]) -> std::result::Result<Vec<Tensor>, Box<dyn std::error::Error + Send + Sync>>
            + Send
            + 'f,
    {
        Step::new_send_with_options(device, StepOptions::new(), closure)
    }

    /// [`Step::new_send`] with options.
    ///
    /// ```
    /// use refrain::{Device, Step, StepOptions, Tensor};
    ///
    /// let device = Device::cpu();
    /// let options = StepOptions::new().keep(1); // The program of the last shape only.
    /// let mut step = Step::new_send_with_options(&device, options, |x| Ok(vec![x[0].square()?]));
    /// step.call(&[Tensor::from_slice(&[3.0f32], [1], &device)?])?;
    /// step.call(&[Tensor::from_slice(&[1.0f32, 2.0], [2], &device)?])?;
    /// assert_eq!((step.programs(), step.evictions()), (1, 1));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn new_send_with_options<F>(device: &Device, options: StepOptions, closure: F) -> SendStep<'f>
    where
        F: Fn(&[Tensor]) -> std::result::Result<Vec<Tensor>, Box<dyn std::error::Error + Send + Sync>>
            + Send
            + 'f,
    {
        Step::of(device, options, Box::new(closure))
    }
}
