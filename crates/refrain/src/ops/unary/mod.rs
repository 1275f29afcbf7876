//! Elementwise unary functions.

mod cuda;
pub(crate) mod host;
#[cfg(test)]
mod tests;

use super::{Needs, Op, Spec, Specs, apply, apply_into, check_dtypes};

use crate::autograd::{Gradients, Saves};
use crate::device::cpu::numeric::nearest;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A unary function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Unary {
    Neg,
    Abs,
    Sign,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Square,
    Sin,
    Cos,
    Tanh,
    Sigmoid,
    Relu,
    Gelu,
    GeluTanh,
    Silu,
    Erf,
    Floor,
    Ceil,
    Round,
    Clamp { min: f64, max: f64 },
}

/// What the derivative is computed from.
enum Needed {
    Nothing,
    Input,
    Output,
}

impl Unary {
    fn label(self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Sign => "sign",
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Reciprocal => "reciprocal",
            Unary::Square => "square",
            Unary::Sin => "sin",
            Unary::Cos => "cos",
            Unary::Tanh => "tanh",
            Unary::Sigmoid => "sigmoid",
            Unary::Relu => "relu",
            Unary::Gelu => "gelu",
            Unary::GeluTanh => "gelu_tanh",
            Unary::Silu => "silu",
            Unary::Erf => "erf",
            Unary::Floor => "floor",
            Unary::Ceil => "ceil",
            Unary::Round => "round",
            Unary::Clamp { .. } => "clamp",
        }
    }

    /// Whether the function maps integers to integers.
    fn takes_ints(self) -> bool {
        use Unary::*;
        matches!(self, Neg | Abs | Sign | Square | Relu | Floor | Ceil | Round | Clamp { .. })
    }

    fn derivative_needs(self) -> Needed {
        use Unary::*;
        match self {
            Neg | Sign | Floor | Ceil | Round => Needed::Nothing,
            Exp | Sqrt | Rsqrt | Reciprocal | Tanh | Sigmoid | Relu => Needed::Output,
            _ => Needed::Input,
        }
    }
}

impl Op for Unary {
    const NAME: &'static str = "unary";

    fn name(&self) -> &'static str {
        self.label()
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        if !(x[0].dtype().is_float() || x[0].dtype().is_int() && self.takes_ints()) {
            return Err(x[0].unsupported(self.name()));
        }
        Ok(Spec::like(x[0]).one())
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

    fn saves(&self, _: &[bool]) -> Saves {
        match self.derivative_needs() {
            Needed::Nothing => Saves::default(),
            Needed::Input => Saves::default().input(0),
            Needed::Output => Saves::default().output(0),
        }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        let value = match self.derivative_needs() {
            // The derivative is 0 wherever it exists, so there is nothing to add.
            Needed::Nothing if *self != Unary::Neg => return Ok(()),
            Needed::Nothing => return g.emit(&[0], Unary::Neg, &[&grad]),
            Needed::Input => g.input(0)?,
            Needed::Output => g.output(0)?,
        };
        g.emit(&[0], UnaryBackward(*self), &[&value, &grad])
    }
}

/// `dy * f'`, with `f'` computed from the saved operand or result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnaryBackward(pub(crate) Unary);

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
        host::backward(self.0, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.0, args)
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

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident, $into:ident => $op:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Tensor> {
                apply($op, &[self])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] into the memory of `dst` (which may be this tensor).")]
            pub fn $into(&self, dst: &Tensor) -> Result<()> {
                apply_into($op, &[self], dst)
            }
        )*}
    };
}

methods! {
    /// `-x`. For floats and integers.
    neg, neg_into => Unary::Neg;
    /// The absolute value; its derivative at 0 is 0. For floats and integers.
    abs, abs_into => Unary::Abs;
    /// The sign: -1, 0 or 1; 0 for NaN. For floats and integers.
    sign, sign_into => Unary::Sign;
    /// `e^x`. For floats.
    exp, exp_into => Unary::Exp;
    /// The natural logarithm. For floats.
    log, log_into => Unary::Log;
    /// The square root. For floats.
    sqrt, sqrt_into => Unary::Sqrt;
    /// `1 / sqrt(x)`. For floats.
    rsqrt, rsqrt_into => Unary::Rsqrt;
    /// `1 / x`. For floats.
    reciprocal, reciprocal_into => Unary::Reciprocal;
    /// `x * x`. For floats and integers.
    square, square_into => Unary::Square;
    /// The sine. For floats.
    sin, sin_into => Unary::Sin;
    /// The cosine. For floats.
    cos, cos_into => Unary::Cos;
    /// The hyperbolic tangent. For floats.
    tanh, tanh_into => Unary::Tanh;
    /// `1 / (1 + e^-x)`. For floats.
    sigmoid, sigmoid_into => Unary::Sigmoid;
    /// `max(x, 0)`. The derivative is 0 at 0 and 1 at NaN, as in PyTorch. For floats and integers.
    relu, relu_into => Unary::Relu;
    /// `x/2 * (1 + erf(x / sqrt 2))` (Hendrycks and Gimpel, 2016). For floats.
    gelu, gelu_into => Unary::Gelu;
    /// `x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, the approximation of [`Tensor::gelu`]. For floats.
    gelu_tanh, gelu_tanh_into => Unary::GeluTanh;
    /// `x * sigmoid(x)`. For floats.
    silu, silu_into => Unary::Silu;
    /// The error function. For floats.
    erf, erf_into => Unary::Erf;
    /// The largest whole number that is not above x. The gradient is 0. For floats and integers.
    floor, floor_into => Unary::Floor;
    /// The smallest whole number that is not below x. The gradient is 0. For floats and integers.
    ceil, ceil_into => Unary::Ceil;
    /// The nearest whole number; halves are rounded to even. The gradient is 0. For floats and integers.
    round, round_into => Unary::Round;
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
