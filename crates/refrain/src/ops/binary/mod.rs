//! Elementwise binary functions with broadcasting, and with a scalar. `functions.rs` is the table of them.

mod functions;
mod scaled;
mod slopes;
mod table;

use super::{Op, Spec, Specs, accumulate_into, apply, apply_into, check_devices, check_dtypes};
use crate::autograd::{Gradients, Saves, no_grad};
use crate::device::cpu::narrow::HalfLoops;
use crate::device::cpu::numeric::{Number, Real, nearest};
use crate::device::cuda::Source;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::elementwise::{
    self, FloatRows, FloatTile, NumberRows, OneNumber, Runs, RunsMut, TruthRows, cuda,
};
use crate::ops::copy::Copy;
use crate::ops::unary::Unary;
use crate::precision::promoted;
use crate::tensor::{DType, Shape, Tensor};

pub(crate) use functions::Binary;
use slopes::Slopes;
use table::{Domain, Gradient};

static SOURCE: Source = Source { name: "binary", parts: &[include_str!("kernel.cu"), cuda::LOOP] };

/// Runs `expression` over the operands on CUDA; `form` says which of its numbers are the operands.
fn run(
    expression: &'static str,
    form: &'static str,
    compute: DType,
    scalars: &[f64],
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    cuda::run(args, &SOURCE, compute.accumulator(), scalars, |spec| {
        spec.word("FUNCTION", expression).word("FORM", form)
    })
}

/// Runs the loop of a function on the CPU.
fn host(op: Binary, tile: &(impl NumberRows + FloatRows + TruthRows), args: &HostArgs<'_>) -> Result<()> {
    match op.domain() {
        Domain::Floats => elementwise::float(args, args.read_dtype(0), tile),
        Domain::Arithmetic => elementwise::number(args, args.read_dtype(0), tile),
        Domain::Truth => elementwise::truth(args, args.read_dtype(0), tile),
    }
}

impl Binary {
    fn result(self, x: &Tensor) -> Result<DType> {
        match self.domain() {
            Domain::Arithmetic if x.dtype() == DType::Bool => Err(x.unsupported(self.label())),
            Domain::Floats if !x.dtype().is_float() => Err(x.unsupported(self.label())),
            Domain::Arithmetic | Domain::Floats => Ok(x.dtype()),
            Domain::Truth => Ok(DType::Bool),
        }
    }

    /// Whether there is a loop over numbers of 16 bits. A power and a remainder take longer than the passes that convert them.
    fn has_half_loop(self) -> bool {
        !matches!(self, Binary::Pow | Binary::Remainder)
    }

    /// Whether it takes hardly longer than to read and to write memory.
    fn streams(self) -> bool {
        use Binary::{Atan2, Hypot, LogAddExp, Pow, Remainder};
        !matches!(self, Pow | Remainder | Atan2 | Hypot | LogAddExp)
    }

    /// Whether the gradients that are wanted are computed from operand `i`.
    fn reads(self, i: usize, needs: &[bool]) -> bool {
        (0..2).any(|by| match self.gradients()[by] {
            Gradient::Linear => needs[by] && i != by,
            Gradient::Other => needs[by],
            Gradient::None | Gradient::Same | Gradient::Negated => false,
        })
    }
}

impl TruthRows for Binary {
    fn rows<N: Number>(&self, x: &[Runs<'_, N>], y: RunsMut<'_, u8>) {
        self.truth_of_both(x[0], x[1], y);
    }

    const WITH_ONE: bool = true;

    fn rows_with_one<N: Number>(&self, one: OneNumber<'_, N>, x: Runs<'_, N>, y: RunsMut<'_, u8>) {
        self.truth_of_scalar(x, one.numbers, one.is_first, y);
    }
}

impl FloatRows for Binary {
    fn rows<R: Real>(&self, x: &[Runs<'_, R>], y: RunsMut<'_, R>) {
        self.floats_of_both(x[0], x[1], y);
    }
}

impl NumberRows for Binary {
    fn takes_halves(&self) -> bool {
        self.has_half_loop()
    }

    fn rows<N: Number>(&self, x: &[Runs<'_, N>], y: RunsMut<'_, N>) {
        self.of_both(x[0], x[1], y);
    }

    fn rows_of_halves<L: HalfLoops>(&self, loops: L, x: &[Runs<'_, L::Half>], y: RunsMut<'_, L::Half>) {
        match self {
            Binary::Maximum => table::extremes_of_halves::<L, false>(loops, x[0], x[1], y),
            Binary::Minimum => table::extremes_of_halves::<L, true>(loops, x[0], x[1], y),
            _ => self.of_both_halves::<f32, L>(loops, x[0], x[1], y),
        }
    }

    fn halves_with_one<L: HalfLoops>(
        &self,
        loops: L,
        one: OneNumber<'_, L::Half>,
        x: Runs<'_, L::Half>,
        y: RunsMut<'_, L::Half>,
    ) {
        let number = |r: usize| L::wide::<f32>(one.numbers.row(r, 1)[0]);
        self.of_scalar_halves(loops, x, number, one.is_first, y);
    }

    const WITH_ONE: bool = true;

    fn rows_with_one<N: Number>(&self, one: OneNumber<'_, N>, x: Runs<'_, N>, y: RunsMut<'_, N>) {
        self.of_scalar(x, one.numbers, one.is_first, y);
    }
}

/// Both operands as views of the shape that they broadcast to, in one dtype if the precision promotes them.
pub(crate) fn broadcast(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let shape = Shape::broadcast(op, a.shape(), b.shape())?;
    let wide = promoted(&[a, b])?;
    let (a, b) = wide.as_ref().map_or((a, b), |wide| (&wide[0], &wide[1]));
    Ok((a.broadcast_to(&shape)?, b.broadcast_to(&shape)?))
}

impl Op for Binary {
    const NAME: &'static str = "binary";

    fn name(&self) -> &'static str {
        self.label()
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        check_dtypes(self.name(), x[0], x[1])?;
        Ok(Spec::new(x[0].shape(), self.result(x[0])?).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host(*self, self, args)
    }

    fn streams(&self) -> bool {
        Binary::streams(*self)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        run(self.text(), "BOTH", args.read_dtype(0), &[], args)
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

    fn saves(&self, needs: &[bool]) -> Saves {
        Saves::default().input_if(0, self.reads(0, needs)).input_if(1, self.reads(1, needs))
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        // An operand that no derivative reads was not saved: pass the other one instead.
        let (a, b) = (g.input_if_saved(0)?, g.input_if_saved(1)?);
        let operands = a.clone().or(b.clone()).zip(b.or(a));
        for (i, gradient) in self.gradients().into_iter().enumerate() {
            if !g.needs(i) {
                continue;
            }
            match (gradient, &operands) {
                (Gradient::Same, _) => g.add(i, grad.clone())?,
                (Gradient::Negated, _) => g.add(i, grad.neg()?)?,
                (Gradient::Linear | Gradient::Other, Some((a, b))) => {
                    g.emit(&[i], BinaryBackward { op: *self, by: i }, &[a, b, &grad])?;
                }
                _ => {
                    return Err(Error::internal(self.label(), "there is nothing to compute a gradient from"));
                }
            }
        }
        Ok(())
    }
}

/// `dy * df/da` or `dy * df/db`, of operands `a`, `b`, `dy`.
#[derive(Clone, Copy, Debug)]
struct BinaryBackward {
    op: Binary,
    by: usize,
}

impl FloatTile for BinaryBackward {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        self.op.slopes(self.by, Slopes { a: x[0], b: x[1], d: x[2], dx });
    }
}

impl Op for BinaryBackward {
    const NAME: &'static str = "binary_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(self.op.label())?;
        Ok(Spec::like(x[2]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::float(args, args.write_dtype(0), self)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let missing = || Error::internal(self.op.label(), "its gradient is not computed");
        let text = self.op.slope_texts()[self.by].ok_or_else(missing)?;
        run(text, "BOTH", args.write_dtype(0), &[], args)
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

/// A binary function in which one operand is a scalar.
#[derive(Clone, Copy, Debug)]
struct WithScalar {
    op: Binary,
    scalar: f64,
    /// The scalar is the first operand.
    reverse: bool,
}

impl WithScalar {
    /// The scalar is rounded to the dtype of `x` first. So forward pass, backward pass and every device compute with
    /// the same number, the one that a tensor of this dtype would hold.
    fn new(op: Binary, x: &Tensor, scalar: f64, reverse: bool) -> WithScalar {
        WithScalar { op, scalar: nearest(x.dtype(), scalar), reverse }
    }

    /// The gradient of the operand that is a tensor.
    fn gradient(&self) -> Gradient {
        self.op.gradients()[usize::from(self.reverse)]
    }
}

impl TruthRows for WithScalar {
    fn rows<N: Number>(&self, x: &[Runs<'_, N>], y: RunsMut<'_, u8>) {
        self.op.truth_of_scalar(x[0], Runs::one(&[N::from_f64(self.scalar)]), self.reverse, y);
    }
}

impl FloatRows for WithScalar {
    fn rows<R: Real>(&self, x: &[Runs<'_, R>], y: RunsMut<'_, R>) {
        self.op.floats_of_scalar(x[0], Runs::one(&[R::from_f64(self.scalar)]), self.reverse, y);
    }
}

impl NumberRows for WithScalar {
    fn takes_halves(&self) -> bool {
        self.op.has_half_loop()
    }

    fn rows_of_halves<L: HalfLoops>(&self, loops: L, x: &[Runs<'_, L::Half>], y: RunsMut<'_, L::Half>) {
        self.op.of_scalar_halves(loops, x[0], |_| self.scalar as f32, self.reverse, y);
    }

    fn rows<N: Number>(&self, x: &[Runs<'_, N>], y: RunsMut<'_, N>) {
        self.op.of_scalar(x[0], Runs::one(&[N::from_f64(self.scalar)]), self.reverse, y);
    }
}

impl Op for WithScalar {
    const NAME: &'static str = "scalar";

    fn name(&self) -> &'static str {
        self.op.label()
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let dtype = self.op.result(x[0])?;
        if !x[0].dtype().is_float() && self.scalar.fract() != 0.0 {
            return Err(Error::invalid(
                self.name(),
                format!(
                    "scalar {} with a tensor of dtype {}; use a whole number, or to_dtype(DType::F32) first",
                    self.scalar,
                    x[0].dtype()
                ),
            ));
        }
        x[0].dtype().require_in_range(self.name(), self.scalar)?;
        Ok(Spec::new(x[0].shape(), dtype).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host(self.op, self, args)
    }

    fn streams(&self) -> bool {
        self.op.streams()
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let form = if self.reverse { "SCALAR_LEFT" } else { "SCALAR_RIGHT" };
        run(self.op.text(), form, args.read_dtype(0), &[self.scalar], args)
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
        Saves::default().input_if(0, self.gradient() == Gradient::Other)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        match self.gradient() {
            Gradient::Same => g.add(0, grad),
            Gradient::Negated => g.emit(&[0], Unary::Neg, &[&grad]),
            Gradient::Linear => g.emit(&[0], WithScalar { reverse: false, ..*self }, &[&grad]),
            Gradient::Other => {
                let x = g.input(0)?;
                let scalar = Tensor::full((), self.scalar, x.dtype(), x.device())?.broadcast_to(x.shape())?;
                let (a, b, by) = if self.reverse { (&scalar, &x, 1) } else { (&x, &scalar, 0) };
                g.emit(&[0], BinaryBackward { op: self.op, by }, &[a, b, &grad])
            }
            Gradient::None => Err(Error::internal(self.op.label(), "it has no gradient")),
        }
    }
}

macro_rules! reversed {
    ($($(#[$doc:meta])* $name:ident, $into:ident => $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// The number is first rounded to the dtype of the tensor.
            pub fn $name(&self, scalar: f64) -> Result<Tensor> {
                apply(WithScalar::new(Binary::$op, self, scalar, true), &[self])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] into the memory of `dst` (which may be this tensor).")]
            pub fn $into(&self, scalar: f64, dst: &Tensor) -> Result<()> {
                apply_into(WithScalar::new(Binary::$op, self, scalar, true), &[self], dst)
            }
        )*}
    };
}

reversed! {
    /// `scalar - x`. For floats and integers.
    scalar_sub, scalar_sub_into => Sub;
    /// `scalar / x`. For floats and integers.
    scalar_div, scalar_div_into => Div;
    /// `scalar` to the power of `x`. For floats and integers.
    scalar_pow, scalar_pow_into => Pow;
}

impl Tensor {
    /// Whether each element is 0 (or false). The result is bool.
    pub fn logical_not(&self) -> Result<Tensor> {
        self.eq_scalar(0.0)
    }

    /// [`Tensor::logical_not`] into the memory of `dst`.
    pub fn logical_not_into(&self, dst: &Tensor) -> Result<()> {
        self.eq_scalar_into(0.0, dst)
    }

    /// Adds `other` (broadcast to this shape) in place, outside the tape.
    ///
    /// # Errors
    /// If this tensor or `other` requires a gradient, unless inside [`crate::no_grad`]. `Error::Aliased` if `other`
    /// overlaps this tensor in any way other than element for element.
    pub fn add_assign(&self, other: &Tensor) -> Result<()> {
        const OP: &str = "add_assign";
        accumulate_into(Copy(OP), &[&self.second_operand(OP, other)?], self)
    }

    /// Subtracts `other` (broadcast to this shape) in place, outside the tape.
    pub fn sub_assign(&self, other: &Tensor) -> Result<()> {
        self.assign("sub_assign", Binary::Sub, other)
    }

    /// Multiplies by `other` (broadcast to this shape) in place, outside the tape.
    pub fn mul_assign(&self, other: &Tensor) -> Result<()> {
        self.assign("mul_assign", Binary::Mul, other)
    }

    /// Divides by `other` (broadcast to this shape) in place, outside the tape.
    pub fn div_assign(&self, other: &Tensor) -> Result<()> {
        self.assign("div_assign", Binary::Div, other)
    }

    /// Multiplies by a number in place, outside the tape. The number is first rounded to the dtype.
    pub fn mul_scalar_assign(&self, scalar: f64) -> Result<()> {
        crate::autograd::check_in_place("mul", self)?;
        no_grad(|| self.mul_scalar_into(scalar, self))
    }

    /// Adds a number in place, outside the tape. The number is first rounded to the dtype.
    pub fn add_scalar_assign(&self, scalar: f64) -> Result<()> {
        crate::autograd::check_in_place("add", self)?;
        no_grad(|| self.add_scalar_into(scalar, self))
    }

    /// Divides by a count of elements. The count is not rounded, because f16 and bf16 hold few integers exactly.
    pub(crate) fn div_count(&self, count: usize) -> Result<Tensor> {
        apply(WithScalar { op: Binary::Div, scalar: count as f64, reverse: false }, &[self])
    }

    fn assign(&self, name: &'static str, op: Binary, other: &Tensor) -> Result<()> {
        let other = self.second_operand(name, other)?;
        crate::autograd::check_in_place(name, self)?;
        no_grad(|| apply_into(op, &[self, &other], self))
    }

    /// `other` as a view of this tensor's shape, for an operation that changes this tensor.
    fn second_operand(&self, op: &'static str, other: &Tensor) -> Result<Tensor> {
        crate::autograd::check_untaped(op, other)?;
        check_devices(op, &[self, other])?;
        let wide = match self.dtype() {
            DType::F32 => no_grad(|| promoted(&[self, other]))?,
            _ => None,
        };
        let other = wide.as_ref().map_or(other, |wide| &wide[1]);
        check_dtypes(op, self, other)?;
        if self.dtype() == DType::Bool {
            return Err(self.unsupported(op));
        }
        if &Shape::broadcast(op, self.shape(), other.shape())? != self.shape() {
            return Err(Error::shapes(
                op,
                self.shape(),
                other.shape(),
                "the second must broadcast to the shape of the first",
            ));
        }
        other.detach().broadcast_to(self.shape())
    }
}
