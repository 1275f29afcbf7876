//! The gradient of resizing.

use super::{Axes, Interpolation, cuda, host};
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::operation::{Op, Spec, Specs};
use crate::tensor::{Shape, Tensor};

/// Operand: dy. Result: each element of the tensor gets the gradients of what it is a part of, by its weights there.
#[derive(Clone, Debug)]
pub(super) struct InterpolateBackward {
    pub(super) axes: Axes,
    pub(super) mode: Interpolation,
}

impl Op for InterpolateBackward {
    const NAME: &'static str = "interpolate_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        let outer = &x[0].dims()[..x[0].rank() - self.axes.len()];
        let shape: Shape = outer.iter().copied().chain(self.axes.iter().map(|axis| axis.from)).collect();
        Ok(Spec::new(shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::resize(&self.axes, self.mode, true, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::resize(&self.axes, self.mode, true, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}
