//! The logarithm of a sum of exponentials, over axes.

mod host;

use super::reduce::{Prepared, prepare};
use super::{Needs, Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::simd;
use crate::device::cuda::{Gpu, KernelSpec, Source};
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::Result;
use crate::kernels::elementwise::cuda::{LOOP, run};
use crate::kernels::elementwise::{self, FloatTile};
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::{MACHINE, REDUCTION, ReductionLaunch, room};
use crate::kernels::rows::map;
use crate::tensor::{Axes, Shape, Tensor};

static SOURCE: Source = Source { name: "logsumexp", parts: &[REDUCTION, include_str!("kernel.cu"), MACHINE] };
static BACKWARD: Source = Source { name: "logsumexp_backward", parts: &[include_str!("backward.cu"), LOOP] };

/// The size of a state in bytes: two f64.
const STATE: usize = 16;

/// `ln(sum(e^x))` over the middle of the extent.
#[derive(Clone, Debug)]
struct LogSumExp {
    extent: Extent,
    shape: Shape,
    kept: Shape,
}

/// Operands: x, the result y and dy, the latter two broadcast. Result: `dy e^(x - y)`, and 0 where y is negative infinity.
#[derive(Clone, Copy, Debug)]
struct LogSumExpBackward;

impl LogSumExp {
    /// The operation, and its operand with the reduced axes side by side.
    fn new(x: &Tensor, axes: &Axes, keepdim: bool) -> Result<(LogSumExp, Tensor)> {
        let Prepared { x, extent, shape, kept } = prepare(LogSumExp::NAME, x, axes, keepdim)?;
        Ok((LogSumExp { extent, shape, kept }, x))
    }
}

impl Op for LogSumExp {
    const NAME: &'static str = "logsumexp";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(Self::NAME)?;
        Ok(Spec::new(&self.shape, x[0].dtype()).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self.extent, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let (compute, out) = (args.read_dtype(0).accumulator(), args.write_dtype(0));
        let constants = |spec: KernelSpec| spec.dtype("COMPUTE", compute).dtype("OUT", out);
        ReductionLaunch::new(args, self.extent, &[0]).output(args, 0).run(args, &SOURCE, constants)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(room(self.extent, launch.reads[0].dtype.size(), STATE))
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0).output(0)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let shape = g.input_shape(0).clone();
        let spread = |t: &Tensor| t.reshape(&self.kept)?.broadcast_to(&shape);
        let (x, y, dy) = (g.input(0)?, spread(&g.output(0)?)?, spread(g.grad()?)?);
        g.emit(&[0], LogSumExpBackward, &[&x, &y, &dy])
    }
}

impl FloatTile for LogSumExpBackward {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        let x = [x[0], x[1], x[2]];
        simd(
            #[inline(always)]
            || {
                map(dx, x, false, |[x, y, d]| {
                    let share = (x - y).exp();
                    if y == R::NEG_INFINITY { R::ZERO } else { share * d }
                })
            },
        )
    }
}

impl Op for LogSumExpBackward {
    const NAME: &'static str = "logsumexp_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::float(args, args.write_dtype(0), self)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        run(args, &BACKWARD, args.write_dtype(0).accumulator(), &[], |spec| spec)
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

impl Tensor {
    /// `ln(sum(e^x))` over `axes`: `()` for all axes, a number, or an array of numbers, which disappear from the shape. It is
    /// computed from `x - max(x)`, so that no exponential overflows. For floats.
    ///
    /// Without elements, or if all are negative infinity, the result is negative infinity; then the gradient is 0.
    ///
    /// # Errors
    /// If an axis is out of range or is named twice, or the dtype is not floating-point.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1000.0f64, 1000.0], [2], &Device::cpu())?;
    /// assert_eq!(x.logsumexp(0)?.to_scalar::<f64>()?, 1000.0 + 2f64.ln());
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let (op, x) = LogSumExp::new(self, &axes.into(), false)?;
        apply(op, &[&x])
    }

    /// [`Tensor::logsumexp`] that keeps the reduced axes as sizes of 1.
    pub fn logsumexp_keepdim(&self, axes: impl Into<Axes>) -> Result<Tensor> {
        let (op, x) = LogSumExp::new(self, &axes.into(), true)?;
        apply(op, &[&x])
    }

    /// [`Tensor::logsumexp`] into the memory of `dst`, whose shape decides whether the reduced axes are kept.
    pub fn logsumexp_into(&self, axes: impl Into<Axes>, dst: &Tensor) -> Result<()> {
        let (op, x) = LogSumExp::new(self, &axes.into(), dst.rank() == self.rank())?;
        apply_into(op, &[&x], dst)
    }
}
