//! L2 normalisation: scales vectors along an axis to length 1.

mod cuda;
mod host;

use super::layer_norm::check_eps;
use super::{Needs, Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::tensor::{Tensor, resolve_axis};

/// Results: y, and the norm of each vector.
#[derive(Clone, Copy, Debug)]
struct L2Normalize {
    extent: Extent,
    eps: f64,
}

impl L2Normalize {
    fn new(x: &Tensor, axis: isize, eps: f64) -> Result<L2Normalize> {
        Ok(L2Normalize { extent: Extent::of_axis(x, resolve_axis(Self::NAME, axis, x.rank())?), eps })
    }
}

impl Op for L2Normalize {
    const NAME: &'static str = "l2_normalize";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        check_eps(Self::NAME, self.eps)?;
        let mut specs = Spec::like(x[0]).one();
        specs.push(Spec::new([self.extent.outer, self.extent.inner], x[0].dtype().accumulator()));
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self.extent, self.eps, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self.extent, self.eps, args)
    }

    fn host_input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().output(0).output(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (y, norm, dy) = (g.output(0)?, g.output(1)?, g.grad()?.clone());
        g.emit(&[0], L2NormalizeBackward(*self), &[&y, &dy, &norm])
    }
}

/// Operands: y, dy and the norms. Result: `dx = (dy - y sum(y dy)) / norm`; below eps `dx = dy / eps`.
#[derive(Clone, Copy, Debug)]
struct L2NormalizeBackward(L2Normalize);

impl Op for L2NormalizeBackward {
    const NAME: &'static str = "l2_normalize_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.0.extent, self.0.eps, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.0.extent, self.0.eps, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl Tensor {
    /// `x / max(|x|, eps)` along an axis, with the Euclidean norm `|x| = sqrt(sum(x^2))`.
    ///
    /// For floats of any shape. A negative axis counts from the last one. If the norm is below `eps`, the result is
    /// `x / eps`, and the gradient is that of `x / eps`.
    ///
    /// # Errors
    /// If the axis is out of range, the dtype is not floating-point, or `eps` is negative or not finite.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 4.0, 0.0, 0.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.l2_normalize(1, 1e-12)?.to_vec::<f32>()?, [0.6, 0.8, 0.0, 0.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn l2_normalize(&self, axis: isize, eps: f64) -> Result<Tensor> {
        apply(L2Normalize::new(self, axis, eps)?, &[self])
    }

    /// [`Tensor::l2_normalize`] into the memory of `dst`.
    pub fn l2_normalize_into(&self, axis: isize, eps: f64, dst: &Tensor) -> Result<()> {
        apply_into(L2Normalize::new(self, axis, eps)?, &[self], dst)
    }
}
