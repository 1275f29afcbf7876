//! The backward passes of reductions.

use super::{cuda, host};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::simd;
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::Result;
use crate::kernels::elementwise::{self, FloatTile};
use crate::kernels::reduction::Extent;
use crate::kernels::rows::map;
use crate::ops::{Needs, Op, Spec, Specs};
use crate::tensor::Tensor;

/// Operands: x, mean and dy, the latter two broadcast. Result: `scale * dy * (x - mean)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct VarBackward {
    pub(super) scale: f64,
}

/// Operands: x, the extreme and a share of its gradient, the latter two broadcast. Result: the share where x is the
/// extreme, otherwise 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExtremeBackward;

impl FloatTile for VarBackward {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        let (x, scale) = ([x[0], x[1], x[2]], R::c(self.scale));
        simd(
            #[inline(always)]
            || map(dx, x, false, |[x, mean, d]| scale * d * (x - mean)),
        )
    }
}

impl FloatTile for ExtremeBackward {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        let x = [x[0], x[1], x[2]];
        simd(
            #[inline(always)]
            || {
                map(
                    dx,
                    x,
                    false,
                    |[x, extreme, share]| if host::is_tie(x, extreme) { share } else { R::ZERO },
                )
            },
        )
    }
}

macro_rules! elementwise_op {
    ($op:ident, $name:literal, $form:literal, $scalars:expr) => {
        impl Op for $op {
            const NAME: &'static str = $name;

            fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
                Ok(Spec::like(x[0]).one())
            }

            fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
                elementwise::float(args, args.write_dtype(0), self)
            }

            fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
                let scalars: fn(&$op) -> &[f64] = $scalars;
                cuda::backward($form, scalars(self), args)
            }

            fn input_needs(&self, _: usize) -> Needs {
                Needs::Any
            }

            fn output_needs(&self, _: usize) -> Needs {
                Needs::Any
            }

            fn accumulates(&self, _: usize) -> bool {
                true
            }
        }
    };
}

elementwise_op!(VarBackward, "var_backward", "VARIANCE", |op| std::slice::from_ref(&op.scale));
elementwise_op!(ExtremeBackward, "extreme_backward", "EXTREME", |_| &[]);

/// Operands: x, its extremes and their gradient dy. Result: dy divided by the number of elements that equal the
/// extreme.
#[derive(Clone, Copy, Debug)]
pub(super) struct TieShare {
    pub(super) extent: Extent,
}

impl Op for TieShare {
    const NAME: &'static str = "extreme_share";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new(x[1].shape(), x[0].dtype().accumulator()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::tie_share(args, self.extent)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::tie_share(self.extent, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(self.extent, launch))
    }
}
