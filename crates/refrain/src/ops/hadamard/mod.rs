//! The Walsh-Hadamard transform.

mod cuda;
mod host;

use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::Gradients;
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Each row times the Sylvester matrix, divided by the square root of its size. The matrix is symmetric and
/// orthonormal, so the operation is its own inverse and its own adjoint.
#[derive(Clone, Debug)]
struct Hadamard;

impl Op for Hadamard {
    const NAME: &'static str = "hadamard_transform";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        match x[0].dims().last() {
            Some(n) if n.is_power_of_two() => Ok(Spec::like(x[0]).one()),
            _ => Err(Error::invalid(
                Self::NAME,
                format!("a tensor of shape {}; the last size must be a power of two (pad it)", x[0].shape()),
            )),
        }
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::transform(args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::transform(args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(launch))
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        g.emit(&[0], Hadamard, &[&grad])
    }
}

impl Tensor {
    /// The orthonormal Walsh-Hadamard transform along the last axis, in natural (Sylvester's) order: `x H / sqrt(n)`
    /// with `H[i, j] = (-1)^popcount(i & j)`, in `n log2(n)` additions (Fino and Algazi, "Unified matrix treatment of
    /// the fast Walsh-Hadamard transform", 1976). It is its own inverse. For floats; the result has the shape and
    /// dtype of this tensor.
    ///
    /// # Errors
    /// If the last size is not a power of two.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4], &Device::cpu())?;
    /// assert_eq!(x.hadamard_transform()?.to_vec::<f32>()?, [5.0, -1.0, -2.0, 0.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn hadamard_transform(&self) -> Result<Tensor> {
        apply(Hadamard, &[self])
    }

    /// [`Tensor::hadamard_transform`] into the memory of `dst` (which may be this tensor).
    pub fn hadamard_transform_into(&self, dst: &Tensor) -> Result<()> {
        apply_into(Hadamard, &[self], dst)
    }
}
