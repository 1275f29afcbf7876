//! The gradient of pooling.

use super::{Pool, cuda, host};
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::operation::{Op, Spec, Specs};
use crate::tensor::Tensor;

/// Operands: dy and, of the largest elements, their places. Result: each element gets the gradients of its windows, in their
/// order.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolBackward(pub(super) Pool);

impl Op for PoolBackward {
    const NAME: &'static str = "pool_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        Ok(Spec::new(self.0.shape(self.0.images), x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(&self.0, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(&self.0, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}
