//! `x / (1 + |x|)`, a sigmoid that approaches its limits slowly.

use super::{Needs, Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::{numeric::Real, simd::simd};
use crate::device::cuda::Source;
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::kernels::elementwise::{self, FloatTile, cuda};
use crate::tensor::Tensor;

#[derive(Clone, Debug)]
struct Softsign;

static SOURCE: Source = Source { name: "softsign", parts: &[include_str!("kernel.cu"), cuda::LOOP] };

impl FloatTile for Softsign {
    // One loop for f32 and one for f64; f16 and bf16 arrive as f32, strided operands as slices.
    fn tile<R: Real>(&self, x: &[&[R]], y: &mut [R]) {
        simd(
            #[inline(always)]
            || y.iter_mut().zip(x[0]).for_each(|(y, &x)| *y = x / (R::ONE + x.abs())),
        );
    }
}

impl Op for Softsign {
    const NAME: &'static str = "softsign";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?; // Every check is here, so that the kernel can't fail.
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::float(args, args.read_dtype(0), self)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::run(args, &SOURCE, args.read_dtype(0).accumulator(), &[], |spec| spec)
    }

    // Any strides, without a copy.
    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    // A narrowed destination, too.
    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    // The destination may be the operand.
    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    // The kernel can add to the destination; gradients use that.
    fn accumulates(&self, _: usize) -> bool {
        true
    }

    // The backward pass needs the operand. Overwriting it before then is an error.
    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0)
    }

    // The derivative is 1 / (1 + |x|)^2. Dividing twice does not overflow where the square would.
    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let size = g.input(0)?.abs()?.add_scalar(1.0)?;
        let grad = g.grad()?.div(&size)?.div(&size)?;
        g.add(0, grad)
    }
}

impl Tensor {
    /// `x / (1 + |x|)`. For floats.
    pub fn softsign(&self) -> Result<Tensor> {
        apply(Softsign, &[self])
    }

    /// [`Tensor::softsign`] into the memory of `dst` (which may be this tensor).
    pub fn softsign_into(&self, dst: &Tensor) -> Result<()> {
        apply_into(Softsign, &[self], dst)
    }
}
