//! The binary functions. An entry says everything about a function: its methods, their documentation, its value from `a` and
//! `b` for the CPU (in Rust, in numbers of type `N`) and for CUDA (in C++), and the gradients of both operands, from the
//! gradient `d` of the result:
//!
//! - `Same` and `Negated`: the gradient is `d`, or `-d`;
//! - `Linear`: the function is linear in this operand. The gradient is the function with `d` in its place, and reads only the
//!   other operand;
//! - `Other`: the gradient is computed from both operands.
//!
//! `Arithmetic` takes floats and integers, and its result has their dtype; `Floats` takes floats alone, and the numbers in Rust are
//! of type `R`. `Truth` takes any dtype, and its result, in Rust too, is bool.
//!
//! With `else`, there are two values in Rust. The first one says with a bool whether it is exact; where it is not, which is rare,
//! the second one is taken. So the loop over the first one becomes SIMD code.

use super::slopes;
use super::table::functions;
use crate::device::cpu::math::{angles, hyperbolic};

functions! {
    /// `a + b`. For floats and integers.
    add, add_into, add_scalar, add_scalar_into => Add: Arithmetic {
        value: (|a, b| a.plus(b), "plus(a, b)"),
        left: Same,
        right: Same,
    }

    /// `a - b`. For floats and integers.
    sub, sub_into, sub_scalar, sub_scalar_into => Sub: Arithmetic {
        value: (|a, b| a.minus(b), "minus(a, b)"),
        left: Same,
        right: Negated,
    }

    /// `a * b`. For floats and integers.
    mul, mul_into, mul_scalar, mul_scalar_into => Mul: Arithmetic {
        value: (|a, b| a.times(b), "times(a, b)"),
        left: Linear(|t| t.each(|_, b, d| b * d), "b * d"),
        right: Linear(|t| t.each(|a, _, d| a * d), "a * d"),
    }

    /// `a / b`. Integers are divided towards zero; division by 0 gives 0. For floats and integers.
    div, div_into, div_scalar, div_scalar_into => Div: Arithmetic {
        value: (|a, b| a.over(b), "over(a, b)"),
        left: Linear(|t| t.each(|_, b, d| d / b), "d / b"),
        right: Other(|t| t.in_range(slopes::denominator, slopes::scaled_denominator), "by_denominator(a, b, d)"),
    }

    /// The remainder of `a / b`, whose sign is that of `b`, as in Python (but a 0 has that of `a`); that of a division by 0 is NaN, and 0 for
    /// integers. The derivative by `b` is `-floor(a / b)`. For floats and integers.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let hours = Tensor::from_slice(&[25.5f32, -1.0, 48.0], [3], &Device::cpu())?;
    /// assert_eq!(hours.remainder_scalar(24.0)?.to_vec::<f32>()?, [1.5, 23.0, 0.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    remainder, remainder_into, remainder_scalar, remainder_scalar_into => Remainder: Arithmetic {
        value: (|a, b| a.quick_remainder(b), else |a, b| a.remainder(b), "remainder_(a, b)"),
        left: Same,
        right: Other(|t| t.each(|a, b, d| -d * slopes::floor_of_quotient(a, b)), "-d * floor_of_quotient(a, b)"),
    }

    /// `a` to the power of `b`. The derivative by `b` at `a = 0` is 0. For floats and integers.
    pow, pow_into, pow_scalar, pow_scalar_into => Pow: Arithmetic {
        value: (|a, b| a.power(b), "power(a, b)"),
        left: Other(|t| t.in_range(slopes::base, slopes::scaled_base), "by_base(a, b, d)"),
        right: Other(|t| t.in_range(slopes::exponent, slopes::scaled_exponent), "by_exponent(a, b, d)"),
    }

    /// The larger of both, or NaN if one is NaN. Equal operands share the gradient; if one is NaN, both get all of
    /// it, as in PyTorch. For floats and integers.
    maximum, maximum_into, maximum_scalar, maximum_scalar_into => Maximum: Arithmetic {
        value: (|a, b| if (a > b) | a.is_nan() { a } else { b }, "a > b || is_nan(a) ? a : b"),
        left: Other(|t| t.each(|a, b, d| slopes::share(a < b, a == b, d)), "share(a < b, a == b, d)"),
        right: Other(|t| t.each(|a, b, d| slopes::share(b < a, a == b, d)), "share(b < a, a == b, d)"),
    }

    /// The smaller of both, or NaN if one is NaN. Equal operands share the gradient; if one is NaN, both get all of
    /// it, as in PyTorch. For floats and integers.
    minimum, minimum_into, minimum_scalar, minimum_scalar_into => Minimum: Arithmetic {
        value: (|a, b| if (a < b) | a.is_nan() { a } else { b }, "a < b || is_nan(a) ? a : b"),
        left: Other(|t| t.each(|a, b, d| slopes::share(b < a, a == b, d)), "share(b < a, a == b, d)"),
        right: Other(|t| t.each(|a, b, d| slopes::share(a < b, a == b, d)), "share(a < b, a == b, d)"),
    }

    /// The angle of the point (`b`, `a`), from -pi to pi: the inverse tangent of `a / b`, in its quadrant. The derivatives at (0, 0) are
    /// 0. For floats.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let y = Tensor::from_slice(&[0.0f32, 1.0, 0.0], [3], &Device::cpu())?;
    /// let x = Tensor::from_slice(&[1.0f32, 0.0, -1.0], [3], &Device::cpu())?;
    /// assert_eq!(y.atan2(&x)?.to_vec::<f32>()?, [0.0, 1.5707964, 3.1415927]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    atan2, atan2_into, atan2_scalar, atan2_scalar_into => Atan2: Floats {
        value: (|a, b| angles::atan2(a, b), "atan2_(a, b)"),
        left: Other(|t| t.each(|a, b, d| slopes::atan2_slope(a, b, b, d)), "atan2_slope(a, b, b, d)"),
        right: Other(|t| t.each(|a, b, d| slopes::atan2_slope(a, b, -a, d)), "atan2_slope(a, b, -a, d)"),
    }

    /// `sqrt(a^2 + b^2)`, also where the squares would leave the range of the dtype: the absolute value of a complex number. The
    /// derivatives at (0, 0) are 0. For floats.
    hypot, hypot_into, hypot_scalar, hypot_scalar_into => Hypot: Floats {
        value: (|a, b| angles::hypot(a, b), "hypot_(a, b)"),
        left: Other(|t| t.each(|a, b, d| slopes::hypot_slope(a, b, d)), "hypot_slope(a, b, d)"),
        right: Other(|t| t.each(|a, b, d| slopes::hypot_slope(b, a, d)), "hypot_slope(b, a, d)"),
    }

    /// `ln(e^a + e^b)`, exact also where the powers would be 0 or infinite: adds probabilities that are given by their
    /// logarithms. For floats.
    logaddexp, logaddexp_into, logaddexp_scalar, logaddexp_scalar_into => LogAddExp: Floats {
        value: (|a, b| hyperbolic::log_add_exp(a, b), "logaddexp(a, b)"),
        left: Other(|t| t.each(|a, b, d| slopes::logaddexp_slope(a, b, d)), "logaddexp_slope(a, b, d)"),
        right: Other(|t| t.each(|a, b, d| slopes::logaddexp_slope(b, a, d)), "logaddexp_slope(b, a, d)"),
    }

    /// Whether `a == b`. The result is bool.
    eq, eq_into, eq_scalar, eq_scalar_into => Eq: Truth {
        value: (|a, b| a == b, "(N)(a == b)"),
    }

    /// Whether `a != b`. The result is bool.
    ne, ne_into, ne_scalar, ne_scalar_into => Ne: Truth {
        value: (|a, b| a != b, "(N)(a != b)"),
    }

    /// Whether `a < b`. The result is bool.
    lt, lt_into, lt_scalar, lt_scalar_into => Lt: Truth {
        value: (|a, b| a < b, "(N)(a < b)"),
    }

    /// Whether `a <= b`. The result is bool.
    le, le_into, le_scalar, le_scalar_into => Le: Truth {
        value: (|a, b| a <= b, "(N)(a <= b)"),
    }

    /// Whether `a > b`. The result is bool.
    gt, gt_into, gt_scalar, gt_scalar_into => Gt: Truth {
        value: (|a, b| a > b, "(N)(a > b)"),
    }

    /// Whether `a >= b`. The result is bool.
    ge, ge_into, ge_scalar, ge_scalar_into => Ge: Truth {
        value: (|a, b| a >= b, "(N)(a >= b)"),
    }

    /// Whether both are nonzero. The result is bool.
    logical_and, logical_and_into, logical_and_scalar, logical_and_scalar_into => And: Truth {
        value: (|a, b| (a != N::ZERO) & (b != N::ZERO), "(N)(a != (N)0 && b != (N)0)"),
    }

    /// Whether at least one is nonzero. The result is bool.
    logical_or, logical_or_into, logical_or_scalar, logical_or_scalar_into => Or: Truth {
        value: (|a, b| (a != N::ZERO) | (b != N::ZERO), "(N)(a != (N)0 || b != (N)0)"),
    }

    /// Whether exactly one is nonzero. The result is bool.
    logical_xor, logical_xor_into, logical_xor_scalar, logical_xor_scalar_into => Xor: Truth {
        value: (|a, b| (a != N::ZERO) != (b != N::ZERO), "(N)((a != (N)0) != (b != (N)0))"),
    }
}
