//! Elementwise binary functions with broadcasting, and with a scalar.

mod cuda;
mod host;
mod scaled;
#[cfg(test)]
mod tests;

use super::{Needs, Op, Spec, Specs, accumulate_into, apply, apply_into, check_devices, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::numeric::nearest;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::ops::copy::Copy;
use crate::tensor::{DType, Shape, Tensor};

/// A binary function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Maximum,
    Minimum,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Xor,
}

impl Binary {
    fn label(self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::Pow => "pow",
            Binary::Maximum => "maximum",
            Binary::Minimum => "minimum",
            Binary::Eq => "eq",
            Binary::Ne => "ne",
            Binary::Lt => "lt",
            Binary::Le => "le",
            Binary::Gt => "gt",
            Binary::Ge => "ge",
            Binary::And => "logical_and",
            Binary::Or => "logical_or",
            Binary::Xor => "logical_xor",
        }
    }

    fn is_arithmetic(self) -> bool {
        use Binary::*;
        matches!(self, Add | Sub | Mul | Div | Pow | Maximum | Minimum)
    }

    fn result(self, x: &Tensor) -> Result<DType> {
        match self.is_arithmetic() {
            true if x.dtype() == DType::Bool => Err(x.unsupported(self.label())),
            true => Ok(x.dtype()),
            false => Ok(DType::Bool),
        }
    }
}

/// Both operands as views of the shape that they broadcast to.
pub(crate) fn broadcast(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let shape = Shape::broadcast(op, a.shape(), b.shape())?;
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
        host::forward(*self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(*self, args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        match self {
            Binary::Add | Binary::Sub => Saves::default(),
            Binary::Mul => Saves::default().input_if(0, needs[1]).input_if(1, needs[0]),
            Binary::Div => Saves::default().input_if(0, needs[1]).input(1),
            _ => Saves::default().input(0).input(1),
        }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        match self {
            Binary::Add => {
                g.add(0, grad.clone())?;
                g.add(1, grad)
            }
            Binary::Sub => {
                g.add(0, grad.clone())?;
                if g.needs(1) { g.add(1, grad.neg()?) } else { Ok(()) }
            }
            _ => {
                // The derivative does not read an operand that was not saved: pass the other one instead.
                let (a, b) = (g.input_if_saved(0)?, g.input_if_saved(1)?);
                let Some((a, b)) = a.clone().or(b.clone()).zip(b.or(a)) else {
                    return Err(Error::internal(self.label(), "no operand was saved"));
                };
                for i in 0..2 {
                    if g.needs(i) {
                        g.emit(&[i], BinaryBackward { op: *self, by: i }, &[&a, &b, &grad])?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// `dy * df/da` or `dy * df/db`, of operands `a`, `b`, `dy`.
#[derive(Clone, Copy, Debug)]
struct BinaryBackward {
    op: Binary,
    by: usize,
}

impl Op for BinaryBackward {
    const NAME: &'static str = "binary_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        x[0].require_float(self.op.label())?;
        Ok(Spec::like(x[2]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.op, self.by, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.op, self.by, args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
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

    fn is_identity(&self) -> bool {
        matches!((self.op, self.reverse), (Binary::Add, _) | (Binary::Sub, false))
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
        host::with_scalar(self.op, self.scalar, self.reverse, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::with_scalar(self.op, self.scalar, self.reverse, args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn saves(&self, _: &[bool]) -> Saves {
        let linear = self.is_identity()
            || matches!(
                (self.op, self.reverse),
                (Binary::Sub, true) | (Binary::Mul, _) | (Binary::Div, false)
            );
        Saves::default().input_if(0, !linear)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        match (self.op, self.reverse) {
            _ if self.is_identity() => g.add(0, grad),
            (Binary::Sub, true) => g.emit(&[0], super::unary::Unary::Neg, &[&grad]),
            (Binary::Mul, _) | (Binary::Div, false) => {
                g.emit(&[0], WithScalar { reverse: false, ..*self }, &[&grad])
            }
            _ => {
                let x = g.input(0)?;
                let scalar = Tensor::full((), self.scalar, x.dtype(), x.device())?.broadcast_to(x.shape())?;
                let (a, b, by) = if self.reverse { (&scalar, &x, 1) } else { (&x, &scalar, 0) };
                g.emit(&[0], BinaryBackward { op: self.op, by }, &[a, b, &grad])
            }
        }
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident, $into:ident, $scalar:ident, $scalar_into:ident => $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// Both operands must have one dtype. Their shapes broadcast as in NumPy.
            pub fn $name(&self, other: &Tensor) -> Result<Tensor> {
                let (a, b) = broadcast(stringify!($name), self, other)?;
                apply(Binary::$op, &[&a, &b])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] into the memory of `dst` (which may be an operand of the result's shape).")]
            pub fn $into(&self, other: &Tensor, dst: &Tensor) -> Result<()> {
                let (a, b) = broadcast(stringify!($name), self, other)?;
                apply_into(Binary::$op, &[&a, &b], dst)
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with a number as the second operand. The number is first rounded to the dtype of the tensor; for an integer dtype it must be a whole number in its range.")]
            pub fn $scalar(&self, scalar: f64) -> Result<Tensor> {
                apply(WithScalar::new(Binary::$op, self, scalar, false), &[self])
            }

            #[doc = concat!("[`Tensor::", stringify!($scalar), "`] into the memory of `dst` (which may be this tensor).")]
            pub fn $scalar_into(&self, scalar: f64, dst: &Tensor) -> Result<()> {
                apply_into(WithScalar::new(Binary::$op, self, scalar, false), &[self], dst)
            }
        )*}
    };
}

methods! {
    /// `a + b`. For floats and integers.
    add, add_into, add_scalar, add_scalar_into => Add;
    /// `a - b`. For floats and integers.
    sub, sub_into, sub_scalar, sub_scalar_into => Sub;
    /// `a * b`. For floats and integers.
    mul, mul_into, mul_scalar, mul_scalar_into => Mul;
    /// `a / b`. Integers are divided towards zero; division by 0 gives 0. For floats and integers.
    div, div_into, div_scalar, div_scalar_into => Div;
    /// `a` to the power of `b`. The derivative by `b` at `a = 0` is 0. For floats and integers.
    pow, pow_into, pow_scalar, pow_scalar_into => Pow;
    /// The larger of both, or NaN if one is NaN. Equal operands share the gradient; if one is NaN, both get all of
    /// it, as in PyTorch. For floats and integers.
    maximum, maximum_into, maximum_scalar, maximum_scalar_into => Maximum;
    /// The smaller of both, or NaN if one is NaN. Equal operands share the gradient; if one is NaN, both get all of
    /// it, as in PyTorch. For floats and integers.
    minimum, minimum_into, minimum_scalar, minimum_scalar_into => Minimum;
    /// Whether `a == b`. The result is bool.
    eq, eq_into, eq_scalar, eq_scalar_into => Eq;
    /// Whether `a != b`. The result is bool.
    ne, ne_into, ne_scalar, ne_scalar_into => Ne;
    /// Whether `a < b`. The result is bool.
    lt, lt_into, lt_scalar, lt_scalar_into => Lt;
    /// Whether `a <= b`. The result is bool.
    le, le_into, le_scalar, le_scalar_into => Le;
    /// Whether `a > b`. The result is bool.
    gt, gt_into, gt_scalar, gt_scalar_into => Gt;
    /// Whether `a >= b`. The result is bool.
    ge, ge_into, ge_scalar, ge_scalar_into => Ge;
    /// Whether both are nonzero. The result is bool.
    logical_and, logical_and_into, logical_and_scalar, logical_and_scalar_into => And;
    /// Whether at least one is nonzero. The result is bool.
    logical_or, logical_or_into, logical_or_scalar, logical_or_scalar_into => Or;
    /// Whether exactly one is nonzero. The result is bool.
    logical_xor, logical_xor_into, logical_xor_scalar, logical_xor_scalar_into => Xor;
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
        crate::autograd::no_grad(|| self.mul_scalar_into(scalar, self))
    }

    /// Adds a number in place, outside the tape. The number is first rounded to the dtype.
    pub fn add_scalar_assign(&self, scalar: f64) -> Result<()> {
        crate::autograd::check_in_place("add", self)?;
        crate::autograd::no_grad(|| self.add_scalar_into(scalar, self))
    }

    /// Divides by a count of elements. The count is not rounded, because f16 and bf16 hold few integers exactly.
    pub(crate) fn div_count(&self, count: usize) -> Result<Tensor> {
        apply(WithScalar { op: Binary::Div, scalar: count as f64, reverse: false }, &[self])
    }

    fn assign(&self, name: &'static str, op: Binary, other: &Tensor) -> Result<()> {
        let other = self.second_operand(name, other)?;
        crate::autograd::check_in_place(name, self)?;
        crate::autograd::no_grad(|| apply_into(op, &[self, &other], self))
    }

    /// `other` as a view of this tensor's shape, for an operation that changes this tensor.
    fn second_operand(&self, op: &'static str, other: &Tensor) -> Result<Tensor> {
        crate::autograd::check_untaped(op, other)?;
        check_devices(op, &[self, other])?;
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
