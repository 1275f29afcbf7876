//! Elementwise unary functions. `functions.rs` is the table of them.

mod functions;
mod table;

use super::{Op, Spec, Specs, apply, apply_into, check_dtypes};

use crate::autograd::{Gradients, Saves};
use crate::device::cpu::narrow::{DOWN, HalfLoops, NEAREST, TOWARDS_0, UP};
use crate::device::cpu::numeric::{Real, nearest};
use crate::device::cuda::Source;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::activations::ACTIVATIONS;
use crate::kernels::elementwise::{self, FloatRows, FloatTile, Runs, RunsMut, cuda};
use crate::tensor::{DType, Tensor};

pub(crate) use functions::Unary;
use table::From;

static SOURCE: Source =
    Source { name: "unary", parts: &[ACTIVATIONS, include_str!("kernel.cu"), cuda::LOOP] };

impl Unary {
    /// Runs a function of the sign alone, of floats of 16 bits, as one of their bits. False for other functions.
    fn changes_sign(self, args: &HostArgs<'_>) -> Result<bool> {
        match self {
            Unary::Neg => elementwise::bits(args, u16::MAX, 0x8000),
            Unary::Abs => elementwise::bits(args, 0x7fff, 0),
            _ => Ok(false),
        }
    }
}

/// Runs `expression` over the operands on CUDA, in the arithmetic of the result.
fn run(op: Unary, expression: &'static str, args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = args.write_dtype(0).accumulator();
    cuda::run(args, &SOURCE, compute, &op.scalars(), |spec| spec.word("FUNCTION", expression))
}

impl FloatRows for Unary {
    fn rows<R: Real>(&self, x: &[Runs<'_, R>], y: RunsMut<'_, R>) {
        self.floats(x[0], y);
    }

    fn takes_halves(&self) -> bool {
        self.is_one_by_one() || matches!(self, Unary::Sin | Unary::Cos | Unary::Elu { .. })
    }

    fn rows_of_halves<L: HalfLoops>(&self, loops: L, x: Runs<'_, L::Half>, y: RunsMut<'_, L::Half>) {
        match *self {
            Unary::Sin => functions::waves_of_halves(loops, 0, x, y),
            Unary::Cos => functions::waves_of_halves(loops, 1, x, y),
            Unary::Elu { alpha } => functions::elus_of_halves(loops, alpha as f32, x, y),
            Unary::Floor => functions::whole_halves::<L, DOWN>(loops, x, y),
            Unary::Ceil => functions::whole_halves::<L, UP>(loops, x, y),
            Unary::Round => functions::whole_halves::<L, NEAREST>(loops, x, y),
            Unary::Trunc => functions::whole_halves::<L, TOWARDS_0>(loops, x, y),
            _ => self.floats_of_halves::<f32, L>(loops, x, y),
        }
    }
}

impl Op for Unary {
    const NAME: &'static str = "unary";

    fn name(&self) -> &'static str {
        self.label()
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        if !(x[0].dtype().is_float() || x[0].dtype().is_int() && self.int_text().is_some()) {
            return Err(x[0].unsupported(self.name()));
        }
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        match args.read_dtype(0) {
            DType::F16 | DType::BF16 if self.changes_sign(args)? => Ok(()),
            dtype if dtype.is_float() => elementwise::float(args, dtype, self),
            DType::U8 if self.scalars().iter().all(|s| (0.0..=255.0).contains(s)) => {
                elementwise::bytes(args, |x, y| self.ints(x[0], y))
            }
            _ => elementwise::int(args, |x, y| self.ints(x[0], y)),
        }
    }

    fn streams(&self) -> bool {
        use Unary::{
            Abs, Ceil, Clamp, Floor, Hardsigmoid, Hardswish, LeakyRelu, Neg, Reciprocal, Relu, Round, Sign,
            Square, Trunc,
        };
        matches!(
            self,
            Neg | Abs
                | Sign
                | Reciprocal
                | Square
                | Relu
                | Floor
                | Ceil
                | Round
                | Trunc
                | Hardswish
                | Hardsigmoid
                | LeakyRelu { .. }
                | Clamp { .. }
        )
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let text = if args.read_dtype(0).is_float() { Some(self.float_text()) } else { self.int_text() };
        let missing = || Error::internal(self.label(), "it takes no integers");
        run(*self, text.ok_or_else(missing)?, args)
    }

    fn keeps_strides(&self) -> bool {
        true
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn saves(&self, _: &[bool]) -> Saves {
        match self.derivative() {
            Some(From::Input) => Saves::default().input(0),
            Some(From::Output) => Saves::default().output(0),
            Some(From::Linear) | None => Saves::default(),
        }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        let value = match self.derivative() {
            // The derivative is 0 wherever it exists, so there is nothing to add.
            None => return Ok(()),
            Some(From::Linear) => return g.emit(&[0], *self, &[&grad]),
            Some(From::Input) => g.input(0)?,
            Some(From::Output) => g.output(0)?,
        };
        g.emit(&[0], UnaryBackward(*self), &[&value, &grad])
    }
}

/// `dy * f'`, with `f'` computed from the saved operand or result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnaryBackward(pub(crate) Unary);

impl FloatTile for UnaryBackward {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        self.0.slopes(x[0], x[1], dx);
    }
}

impl Op for UnaryBackward {
    const NAME: &'static str = "unary_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(self.name())?;
        check_dtypes(self.name(), x[0], x[1])?;
        if x[0].shape() != x[1].shape() {
            return Err(Error::shapes(self.name(), x[0].shape(), x[1].shape(), "both must be equal"));
        }
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::float(args, args.write_dtype(0), self)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let missing = || Error::internal(self.0.label(), "it has no derivative");
        run(self.0, self.0.slope_text().ok_or_else(missing)?, args)
    }

    fn keeps_strides(&self) -> bool {
        true
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl Tensor {
    /// `min(max(x, min), max)`; NaN stays NaN. The gradient is 0 at the bounds and beyond. For floats, the bounds are
    /// first rounded to the dtype. For integers, the bounds are first rounded to whole numbers within them.
    pub fn clamp(&self, min: f64, max: f64) -> Result<Tensor> {
        apply(clamp(self, min, max)?, &[self])
    }

    /// [`Tensor::clamp`] into the memory of `dst` (which may be this tensor).
    pub fn clamp_into(&self, min: f64, max: f64, dst: &Tensor) -> Result<()> {
        apply_into(clamp(self, min, max)?, &[self], dst)
    }

    /// `x` above 0, else `alpha * (e^x - 1)` (Clevert et al., ICLR 2016). For floats.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1e-6f32, -200.0, 2.0], [3], &Device::cpu())?;
    /// assert_eq!(x.elu(1.0)?.to_vec::<f32>()?, [-9.999995e-7, -1.0, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        apply(Unary::Elu { alpha }, &[self])
    }

    /// [`Tensor::elu`] into the memory of `dst` (which may be this tensor).
    pub fn elu_into(&self, alpha: f64, dst: &Tensor) -> Result<()> {
        apply_into(Unary::Elu { alpha }, &[self], dst)
    }

    /// `x` above 0, else `negative_slope * x`. The derivative at 0 is `negative_slope`, as in PyTorch. For floats. The slope is
    /// first rounded to the dtype.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-4.0f32, 2.0], [2], &Device::cpu())?;
    /// assert_eq!(x.leaky_relu(0.25)?.to_vec::<f32>()?, [-1.0, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn leaky_relu(&self, negative_slope: f64) -> Result<Tensor> {
        apply(leaky_relu(self, negative_slope), &[self])
    }

    /// [`Tensor::leaky_relu`] into the memory of `dst` (which may be this tensor).
    pub fn leaky_relu_into(&self, negative_slope: f64, dst: &Tensor) -> Result<()> {
        apply_into(leaky_relu(self, negative_slope), &[self], dst)
    }
}

fn leaky_relu(x: &Tensor, slope: f64) -> Unary {
    Unary::LeakyRelu { slope: nearest(x.dtype(), slope) }
}

fn clamp(x: &Tensor, min: f64, max: f64) -> Result<Unary> {
    // For a float, the bounds in its dtype; for an integer, the whole numbers within them.
    let [min, max] = match x.dtype().is_float() {
        true => [min, max].map(|bound| nearest(x.dtype(), bound)),
        false => [min.ceil(), max.floor()],
    };
    if min > max || min.is_nan() || max.is_nan() {
        return Err(Error::invalid(
            "clamp",
            format!("the bounds are {min} and {max}; the lower must not exceed the upper"),
        ));
    }
    Ok(Unary::Clamp { min, max })
}
