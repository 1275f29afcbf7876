//! Softmax and its logarithm along an axis.

mod cuda;
mod host;

use super::{Needs, Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::tensor::{Tensor, resolve_axis};

/// `e^x / sum(e^x)`, or its logarithm.
#[derive(Clone, Copy, Debug)]
struct Softmax {
    log: bool,
    extent: Extent,
}

impl Softmax {
    fn new(log: bool, x: &Tensor, axis: isize) -> Result<Softmax> {
        let op = if log { "log_softmax" } else { "softmax" };
        Ok(Softmax { log, extent: Extent::of_axis(x, resolve_axis(op, axis, x.rank())?) })
    }
}

impl Op for Softmax {
    const NAME: &'static str = "softmax";

    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(self.name())?;
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self.log, self.extent, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self.log, self.extent, args)
    }

    fn host_input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().output(0)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (y, dy) = (g.output(0)?, g.grad()?.clone());
        g.emit(&[0], SoftmaxBackward(*self), &[&y, &dy])
    }
}

/// Operands: y and dy. Result: `dx = y (dy - sum(y dy))`; for the logarithm `dx = dy - e^y sum(dy)`.
#[derive(Clone, Copy, Debug)]
struct SoftmaxBackward(Softmax);

impl Op for SoftmaxBackward {
    const NAME: &'static str = "softmax_backward";

    fn name(&self) -> &'static str {
        if self.0.log { "log_softmax_backward" } else { "softmax_backward" }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.0.log, self.0.extent, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.0.log, self.0.extent, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl Tensor {
    /// `e^x / sum(e^x)` along an axis. It is computed from `x - max(x)`, so that no exponential overflows.
    ///
    /// For floats of any shape. A negative axis counts from the last one. The result is NaN if all of `x` is negative
    /// infinity, or if some of it is NaN or positive infinity.
    ///
    /// # Errors
    /// If the axis is out of range or the dtype is not floating-point.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 1.0, f32::NEG_INFINITY, 1.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.softmax(1)?.to_vec::<f32>()?, [0.5, 0.5, 0.0, 1.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        apply(Softmax::new(false, self, axis)?, &[self])
    }

    /// [`Tensor::softmax`] into the memory of `dst`.
    pub fn softmax_into(&self, axis: isize, dst: &Tensor) -> Result<()> {
        apply_into(Softmax::new(false, self, axis)?, &[self], dst)
    }

    /// `x - ln(sum(e^x))` along an axis: the logarithm of [`Tensor::softmax`], which does not underflow.
    ///
    /// For floats of any shape. A negative axis counts from the last one.
    ///
    /// # Errors
    /// If the axis is out of range or the dtype is not floating-point.
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        apply(Softmax::new(true, self, axis)?, &[self])
    }

    /// [`Tensor::log_softmax`] into the memory of `dst`.
    pub fn log_softmax_into(&self, axis: isize, dst: &Tensor) -> Result<()> {
        apply_into(Softmax::new(true, self, axis)?, &[self], dst)
    }
}
