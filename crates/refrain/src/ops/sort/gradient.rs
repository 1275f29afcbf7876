//! The gradient of sorted elements goes back to where they came from.

use super::cuda;
use crate::device::cpu::numeric::{Number, Stored, with_float};
use crate::device::cpu::parallel;
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::operation::{Op, Spec, Specs};
use crate::tensor::{Shape, Tensor};

/// Operands: dy and the positions, with `keep` elements in the middle. Result: zeros, with dy at the positions, of which no
/// two of a line are equal.
#[derive(Clone, Debug)]
pub(super) struct SortBackward {
    pub(super) extent: Extent,
    pub(super) keep: usize,
    pub(super) shape: Shape,
}

impl Op for SortBackward {
    const NAME: &'static str = "sort_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        Ok(Spec::new(&self.shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let (Extent { n, inner, .. }, keep, accumulate) = (self.extent, self.keep, args.accumulate(0));
        let positions = args.read::<i64>(1)?;
        with_float!(args, args.write_dtype(0), T, R => {
            let (dy, dx) = (args.read::<T>(0)?, args.write::<T>(0)?);
            parallel::pieces(dx, n * inner, |slab, dx| {
                if !accumulate {
                    dx.fill(T::from_number(<R as Number>::ZERO));
                }
                let slab = slab * keep * inner;
                for (i, (&position, &d)) in positions[slab..][..keep * inner].iter().zip(&dy[slab..]).enumerate() {
                    // The positions are those that the operation wrote; one out of range has no element.
                    if let Some(to) = dx.get_mut(position as usize * inner + i % inner) {
                        *to = T::from_number(to.to::<R>() + d.to::<R>());
                    }
                }
            });
            Ok(())
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}
