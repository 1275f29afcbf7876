//! The unary functions. An entry says everything about a function: its methods, their documentation, and expressions for the
//! CPU (in Rust) and for CUDA (in C++):
//!
//! - `floats`: the function of a float `x`, in arithmetic of type `R`;
//!   `floats(slices)` is a function of all elements, `f(x, y)`, where that is faster than one by one;
//! - `integers`: the function of an integer `x`, in arithmetic of type `I`. Without this line, the function refuses integers;
//! - `derivative`: the gradient of the operand, from the gradient `d` of the result. `derivative(Input)` also has the operand
//!   `x`, `derivative(Output)` the result `y`. `derivative(Linear)` applies the function itself to `d`.
//!   `derivative(Input)(slices)` is `f(x, d, dx)`. Without this line, the gradient is 0.
//!
//! Parameters are numbers: fields of the variant, and `s[0]`, `s[1]`, .. in the C++ expression. A function of one number that has
//! parameters is a `move` closure. A function that has parameters, or checks of its own, writes its methods itself.

use std::f64::consts::{LN_2, LOG2_E, LOG10_E};
use std::hint::select_unpredictable;

use super::table::functions;
use crate::device::cpu::math::{self, angles, erfinv, gamma, hyperbolic};
use crate::device::cpu::narrow::HalfLoops;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::simd;
use crate::kernels::activations::{gelu, gelu_derivative, silu_derivative};
use crate::kernels::elementwise::{Runs, RunsMut};

// In derivatives, products are ordered so that each intermediate lies between the gradient and the result. So none leaves
// the range of its type if both are in range.
functions! {
    /// `-x`. For floats and integers.
    neg, neg_into => Neg {
        floats: (|x| -x, "-x"),
        integers: (|x| I::ZERO.minus(x), "(i64)(0 - (u64)x)"),
        derivative(Linear),
    }

    /// The absolute value; its derivative at 0 is 0. For floats and integers.
    abs, abs_into => Abs {
        floats: (|x| x.abs(), "abs_(x)"),
        integers: (|x| if x < I::ZERO { I::ZERO.minus(x) } else { x }, "abs_(x)"),
        derivative(Input): (
            |x, d| {
                if x > R::ZERO {
                    d
                } else if x < R::ZERO {
                    -d
                } else {
                    R::ZERO * d
                }
            },
            "x > (R)0 ? d : x < (R)0 ? -d : (R)0 * d"
        ),
    }

    /// The sign: -1, 0 or 1; 0 for NaN. For floats and integers.
    sign, sign_into => Sign {
        floats: (
            // Without branches, so that the loop becomes SIMD code.
            |x| R::from_bool(x > R::ZERO) - R::from_bool(x < R::ZERO),
            "x > (R)0 ? (R)1 : x < (R)0 ? (R)-1 : (R)0"
        ),
        integers: (
            |x| {
                if x > I::ZERO {
                    I::ONE
                } else if x < I::ZERO {
                    I::ZERO.minus(I::ONE)
                } else {
                    I::ZERO
                }
            },
            "x > 0 ? 1 : x < 0 ? -1 : 0"
        ),
    }

    /// `e^x`. For floats.
    exp, exp_into => Exp {
        floats: (|x| x.exp(), "exp_(x)"),
        derivative(Output): (|y, d| y * d, "y * d"),
    }

    /// The natural logarithm. For floats.
    log, log_into => Log {
        floats: (|x| x.ln(), "log_(x)"),
        derivative(Input): (|x, d| d / x, "d / x"),
    }

    /// `ln(1 + x)`, exact also for small `x`. For floats.
    log1p, log1p_into => Log1p {
        floats: (|x| x.log1p(), "log1p_(x)"),
        derivative(Input): (|x, d| d / (R::ONE + x), "d / ((R)1 + x)"),
    }

    /// `e^x - 1`, exact also for small `x`. For floats.
    expm1, expm1_into => Expm1 {
        floats: (|x| x.expm1(), "expm1_(x)"),
        derivative(Input): (|x, d| x.exp() * d, "exp_(x) * d"),
    }

    /// `2^x`. For floats.
    exp2, exp2_into => Exp2 {
        floats: (|x| x.exp2(), "exp2_(x)"),
        derivative(Output): (|y, d| y * (R::c(LN_2) * d), "y * ((R)0.69314718055994530942 * d)"),
    }

    /// The logarithm to the base 2. For floats.
    log2, log2_into => Log2 {
        floats: (|x| x.log2(), "log2_(x)"),
        derivative(Input): (|x, d| d / x * R::c(LOG2_E), "d / x * (R)1.44269504088896340736"),
    }

    /// The logarithm to the base 10. For floats.
    log10, log10_into => Log10 {
        floats: (|x| x.log10(), "log10_(x)"),
        derivative(Input): (|x, d| d / x * R::c(LOG10_E), "d / x * (R)0.43429448190325182765"),
    }

    /// The square root. For floats.
    sqrt, sqrt_into => Sqrt {
        floats: (|x| x.sqrt(), "sqrt_(x)"),
        derivative(Output): (|y, d| d / (y + y), "d / (y + y)"),
    }

    /// `1 / sqrt(x)`. For floats.
    rsqrt, rsqrt_into => Rsqrt {
        floats: (|x| R::ONE / x.sqrt(), "(R)1 / sqrt_(x)"),
        derivative(Output): (|y, d| R::c(-0.5) * y * d * y * y, "(R)-0.5 * y * d * y * y"),
    }

    /// `1 / x`. For floats.
    reciprocal, reciprocal_into => Reciprocal {
        floats: (|x| R::ONE / x, "(R)1 / x"),
        derivative(Output): (|y, d| -(y * d) * y, "-(y * d) * y"),
    }

    /// `x * x`. For floats and integers.
    square, square_into => Square {
        floats: (|x| x * x, "x * x"),
        integers: (|x| x.times(x), "(i64)((u64)x * (u64)x)"),
        derivative(Input): (|x, d| R::c(2.0) * (x * d), "(R)2 * (x * d)"),
    }

    /// The sine. For floats.
    sin, sin_into => Sin {
        floats(slices): (R::sines, "sin_(x)"),
        derivative(Input)(slices): (sine_slopes, "cos_(x) * d"),
    }

    /// The cosine. For floats.
    cos, cos_into => Cos {
        floats(slices): (R::cosines, "cos_(x)"),
        derivative(Input)(slices): (cosine_slopes, "-sin_(x) * d"),
    }

    /// The tangent. For floats.
    tan, tan_into => Tan {
        floats(slices): (R::tangents, "tan_(x)"),
        derivative(Output): (|y, d| (R::ONE + y * y) * d, "((R)1 + y * y) * d"),
    }

    /// The inverse sine, from -pi/2 to pi/2; NaN beyond -1 and 1. For floats.
    asin, asin_into => Asin {
        floats: (|x| angles::asin(x), "asin_(x)"),
        derivative(Input): (|x, d| d / angles::sqrt_1_minus_square(x), "d / sqrt_1_minus_square(x)"),
    }

    /// The inverse cosine, from 0 to pi; NaN beyond -1 and 1. For floats.
    acos, acos_into => Acos {
        floats: (|x| angles::acos(x), "acos_(x)"),
        derivative(Input): (|x, d| -d / angles::sqrt_1_minus_square(x), "-d / sqrt_1_minus_square(x)"),
    }

    /// The inverse tangent, from -pi/2 to pi/2. For the angle of two numbers, see [`Tensor::atan2`](crate::tensor::Tensor::atan2).
    /// For floats.
    atan, atan_into => Atan {
        floats: (|x| angles::atan(x), "atan_(x)"),
        derivative(Input): (
            |x, d| select_unpredictable(x.abs() > R::c(1e9), d / x / x, d / (R::ONE + x * x)),
            "abs_(x) > (R)1e9 ? d / x / x : d / ((R)1 + x * x)"
        ),
    }

    /// The hyperbolic sine. For floats.
    sinh, sinh_into => Sinh {
        floats: (|x| hyperbolic::sinh(x), "sinh_(x)"),
        derivative(Input): (|x, d| hyperbolic::cosh(x) * d, "cosh_(x) * d"),
    }

    /// The hyperbolic cosine. For floats.
    cosh, cosh_into => Cosh {
        floats: (|x| hyperbolic::cosh(x), "cosh_(x)"),
        derivative(Input): (|x, d| hyperbolic::sinh(x) * d, "sinh_(x) * d"),
    }

    /// The inverse of [`Tensor::sinh`](crate::tensor::Tensor::sinh). For floats.
    asinh, asinh_into => Asinh {
        floats: (|x| hyperbolic::asinh(x), "asinh_(x)"),
        derivative(Input): (
            |x, d| d / select_unpredictable(x.abs() > R::c(1e9), x.abs(), (x * x + R::ONE).sqrt()),
            "d / (abs_(x) > (R)1e9 ? abs_(x) : sqrt_(x * x + (R)1))"
        ),
    }

    /// The inverse of [`Tensor::cosh`](crate::tensor::Tensor::cosh), from 0 on; NaN below 1. For floats.
    acosh, acosh_into => Acosh {
        floats: (|x| hyperbolic::acosh(x), "acosh_(x)"),
        derivative(Input): (
            |x, d| d / ((x - R::ONE).sqrt() * (x + R::ONE).sqrt()),
            "d / (sqrt_(x - (R)1) * sqrt_(x + (R)1))"
        ),
    }

    /// The inverse of [`Tensor::tanh`](crate::tensor::Tensor::tanh); infinite at -1 and 1, NaN beyond. For floats.
    atanh, atanh_into => Atanh {
        floats: (|x| hyperbolic::atanh(x), "atanh_(x)"),
        derivative(Input): (
            |x, d| d / ((R::ONE - x) * (R::ONE + x)),
            "d / (((R)1 - x) * ((R)1 + x))"
        ),
    }

    /// The hyperbolic tangent. For floats.
    tanh, tanh_into => Tanh {
        floats: (|x| x.tanh(), "tanh_(x)"),
        derivative(Output): (|y, d| (R::ONE - y * y) * d, "((R)1 - y * y) * d"),
    }

    /// `1 / (1 + e^-x)`. For floats.
    sigmoid, sigmoid_into => Sigmoid {
        floats: (|x| x.sigmoid(), "logistic(x)"),
        derivative(Output): (|y, d| y * (R::ONE - y) * d, "y * ((R)1 - y) * d"),
    }

    /// `max(x, 0)`. The derivative is 0 at 0 and 1 at NaN, as in PyTorch. For floats and integers.
    relu, relu_into => Relu {
        floats: (|x| x.relu(), "relu_(x)"),
        integers: (|x| if x < I::ZERO { I::ZERO } else { x }, "relu_(x)"),
        derivative(Output): (|y, d| if y <= R::ZERO { R::ZERO } else { d }, "y <= (R)0 ? (R)0 : d"),
    }

    /// `x/2 * (1 + erf(x / sqrt 2))` (Hendrycks and Gimpel, 2016). For floats.
    gelu, gelu_into => Gelu {
        floats: (|x| gelu(x), "gelu_(x)"),
        derivative(Input)(slices): (gelu_slopes, "gelu_derivative(x) * d"),
    }

    /// `x/2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, the approximation of [`Tensor::gelu`](crate::tensor::Tensor::gelu). For floats.
    gelu_tanh, gelu_tanh_into => GeluTanh {
        floats: (|x| x.gelu_tanh(), "x * logistic(gelu_logit(x))"),
        derivative(Input): (|x, d| x.gelu_tanh_grad() * d, "gelu_tanh_derivative(x) * d"),
    }

    /// `x * sigmoid(x)`. For floats.
    silu, silu_into => Silu {
        floats: (|x| x * x.sigmoid(), "x * logistic(x)"),
        derivative(Input): (|x, d| silu_derivative(x) * d, "silu_derivative(x) * d"),
    }

    /// `ln(1 + e^x)`, a smooth form of [`Tensor::relu`](crate::tensor::Tensor::relu). For floats.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-100.0f32, 0.0, 100.0], [3], &Device::cpu())?;
    /// assert_eq!(x.softplus()?.to_vec::<f32>()?, [3.8e-44, 0.6931472, 100.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    softplus, softplus_into => Softplus {
        floats: (|x| x.relu() + (-x.abs()).exp().log1p(), "relu_(x) + log1p_(exp_(-abs_(x)))"),
        derivative(Input): (|x, d| x.sigmoid() * d, "logistic(x) * d"),
    }

    /// `ln(sigmoid(x))`, exact also where the sigmoid is 0 or 1: `F.logsigmoid` in PyTorch. For floats.
    log_sigmoid, log_sigmoid_into => LogSigmoid {
        floats: (
            |x| -((-x).relu() + (-x.abs()).exp().log1p()),
            "-(relu_(-x) + log1p_(exp_(-abs_(x))))"
        ),
        derivative(Input): (|x, d| (-x).sigmoid() * d, "logistic(-x) * d"),
    }

    /// `x * tanh(softplus(x))` (Misra, 2019). For floats.
    mish, mish_into => Mish {
        floats: (|x| mish(x), "mish_(x)"),
        derivative(Input): (|x, d| mish_derivative(x) * d, "mish_derivative(x) * d"),
    }

    /// `x * hardsigmoid(x)`, which is 0 below -3 and `x` above 3 (Howard et al., ICCV 2019). For floats.
    hardswish, hardswish_into => Hardswish {
        floats: (|x| x * (bounded(x + R::c(3.0), 6.0) / R::c(6.0)), "x * (clamp_(x + (R)3, (R)0, (R)6) / (R)6)"),
        derivative(Input): (
            |x, d| {
                let inside = (x / R::c(3.0) + R::c(0.5)) * d;
                let above = select_unpredictable(x >= R::c(3.0), d, inside);
                select_unpredictable(x <= R::c(-3.0), R::ZERO, above)
            },
            "x <= (R)-3 ? (R)0 : x >= (R)3 ? d : (x / (R)3 + (R)0.5) * d"
        ),
    }

    /// `min(max(x + 3, 0), 6) / 6`. For floats.
    hardsigmoid, hardsigmoid_into => Hardsigmoid {
        floats: (|x| bounded(x + R::c(3.0), 6.0) / R::c(6.0), "clamp_(x + (R)3, (R)0, (R)6) / (R)6"),
        derivative(Input): (
            |x, d| select_unpredictable((x > R::c(-3.0)) & (x < R::c(3.0)), d / R::c(6.0), R::ZERO),
            "x > (R)-3 && x < (R)3 ? d / (R)6 : (R)0"
        ),
    }

    /// The error function. For floats.
    erf, erf_into => Erf {
        floats: (|x| x.erf(), "erf_(x)"),
        derivative(Input): (
            // 2 / sqrt(pi)
            |x, d| R::c(std::f64::consts::FRAC_2_SQRT_PI) * (-(x * x)).exp() * d,
            "(R)1.12837916709551257390 * exp_(-(x * x)) * d"
        ),
    }

    /// `1 - erf(x)`, also where that is tiny: twice the probability that a normal number of variance 1/2 is above x. On the CPU,
    /// computed in f64. For floats.
    erfc, erfc_into => Erfc {
        floats(slices): (erfcs, "erfc_(x)"),
        derivative(Input): (
            |x, d| {
                // The bell itself may be 0 where the product is not.
                let root = (R::c(-0.5) * (x * x)).exp();
                (R::c(-std::f64::consts::FRAC_2_SQRT_PI) * root) * (root * d)
            },
            "((R)-1.12837916709551257390 * exp_((R)-0.5 * (x * x))) * (exp_((R)-0.5 * (x * x)) * d)"
        ),
    }

    /// The inverse of [`Tensor::erf`](crate::tensor::Tensor::erf); infinite at 1 and -1, NaN beyond. The quantile p of a normal
    /// distribution is `mean + std * sqrt(2) * erfinv(2 p - 1)`. On the CPU, computed in f64. For floats.
    erfinv, erfinv_into => Erfinv {
        floats(slices): (erfinvs, "erfinv_(x)"),
        derivative(Output): (
            // sqrt(pi) / 2
            |y, d| R::c(0.886_226_925_452_758) * (y * y).exp() * d,
            "(R)0.88622692545275801365 * exp_(y * y) * d"
        ),
    }

    /// `ln |gamma(x)|`, computed in f64. Infinite at 0 and at negative whole numbers. The derivative is
    /// [`Tensor::digamma`](crate::tensor::Tensor::digamma). For floats.
    lgamma, lgamma_into => Lgamma {
        floats(slices): (lgammas, "(R)lgamma_((double)x)"),
        derivative(Input)(slices): (lgamma_slopes, "(R)(digamma_((double)x) * (double)d)"),
    }

    /// The derivative of [`Tensor::lgamma`](crate::tensor::Tensor::lgamma), computed in f64. NaN at negative whole numbers. Its own
    /// derivative is the trigamma function, `polygamma(1, x)` in PyTorch. For floats.
    digamma, digamma_into => Digamma {
        floats(slices): (digammas, "(R)digamma_((double)x)"),
        derivative(Input)(slices): (digamma_slopes, "(R)(trigamma_((double)x) * (double)d)"),
    }

    /// The largest whole number that is not above x. The gradient is 0. For floats and integers.
    floor, floor_into => Floor {
        floats: (|x| x.floor(), "floor_(x)"),
        integers: (|x| x, "x"),
    }

    /// The smallest whole number that is not below x. The gradient is 0. For floats and integers.
    ceil, ceil_into => Ceil {
        floats: (|x| x.ceil(), "ceil_(x)"),
        integers: (|x| x, "x"),
    }

    /// The nearest whole number; halves are rounded to even. The gradient is 0. For floats and integers.
    round, round_into => Round {
        floats: (|x| x.round_ties_even(), "round_(x)"),
        integers: (|x| x, "x"),
    }

    /// The whole number towards 0. The gradient is 0. For floats and integers.
    trunc, trunc_into => Trunc {
        floats: (|x| x.trunc(), "trunc_(x)"),
        integers: (|x| x, "x"),
    }

    elu => Elu(alpha) {
        floats(slices): (
            |x, y| elus(R::c(alpha), x, y),
            "x > (R)0 ? x : (R)s[0] * expm1_(x)"
        ),
        derivative(Input): (
            move |x, d| if x > R::ZERO { d } else { x.exp() * d * R::c(alpha) },
            "x > (R)0 ? d : exp_(x) * d * (R)s[0]"
        ),
    }

    leaky_relu => LeakyRelu(slope) {
        floats: (
            move |x| select_unpredictable(x > R::ZERO, x, R::c(slope) * x),
            "x > (R)0 ? x : (R)s[0] * x"
        ),
        derivative(Input): (
            move |x, d| if x > R::ZERO { d } else { R::c(slope) * d },
            "x > (R)0 ? d : (R)s[0] * d"
        ),
    }

    clamp => Clamp(min, max) {
        floats: (
            move |x| {
                // Without branches, so that the loop becomes SIMD code.
                let above = select_unpredictable(x < R::c(min), R::c(min), x);
                select_unpredictable(above > R::c(max), R::c(max), above)
            },
            "clamp_(x, (R)s[0], (R)s[1])"
        ),
        integers: (
            move |x| {
                let (low, high) = (I::from_f64(min.ceil()), I::from_f64(max.floor()));
                let above = if x < low { low } else { x };
                if above > high { high } else { above }
            },
            "clamp_(x, cast_to<i64>::of(ceil(s[0])), cast_to<i64>::of(floor(s[1])))"
        ),
        derivative(Input): (
            move |x, d| if x > R::c(min) && x < R::c(max) { d } else { R::ZERO },
            "x > (R)s[0] && x < (R)s[1] ? d : (R)0"
        ),
    }
}

/// `min(max(x, 0), most)`; NaN stays NaN. Without branches, so that the loop becomes SIMD code.
#[inline(always)]
fn bounded<R: Real>(x: R, most: f64) -> R {
    let above = select_unpredictable(x < R::ZERO, R::ZERO, x);
    select_unpredictable(above > R::c(most), R::c(most), above)
}

/// `tanh(softplus(x))` is `n / (n + 2)` for `e = e^x` and `n = e (e + 2)`. From this number on, it rounds to 1.
const MISH_IS_LINEAR: f64 = 20.0;

#[inline(always)]
fn mish_power<R: Real>(x: R) -> R {
    select_unpredictable(x > R::c(MISH_IS_LINEAR), R::c(MISH_IS_LINEAR), x).exp()
}

#[inline(always)]
fn mish<R: Real>(x: R) -> R {
    let e = mish_power(x);
    let n = e * (e + R::c(2.0));
    x * (n / (n + R::c(2.0)))
}

#[inline(always)]
fn mish_derivative<R: Real>(x: R) -> R {
    // tanh(s) + x sigmoid(x) (1 - tanh(s)^2), where 1 - tanh(s)^2 = 4 (1 + e)^2 / (n + 2)^2
    let e = mish_power(x);
    let n = e * (e + R::c(2.0));
    let below = n + R::c(2.0);
    let x = select_unpredictable(x > R::c(MISH_IS_LINEAR), R::c(MISH_IS_LINEAR), x);
    n / below + x * (R::c(4.0) * e * (R::ONE + e) / (below * below))
}

// In loops of their own, which look at some numbers first, or compute those of 16 bits otherwise.

/// Numbers of [`elus`] that are copied if all of them are above 0.
const BLOCK: usize = 512;

fn elus<R: Real>(alpha: R, x: &[R], y: &mut [R]) {
    simd(
        #[inline(always)]
        || {
            for (y, x) in y.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
                if x.iter().fold(true, |all, &x| all & (x > R::ZERO)) {
                    y.copy_from_slice(x);
                    continue;
                }
                for (y, &x) in y.iter_mut().zip(x) {
                    let below = alpha * x.expm1();
                    *y = select_unpredictable(x > R::ZERO, x, below);
                }
            }
        },
    );
}

pub(super) fn elus_of_halves<L: HalfLoops>(
    loops: L,
    alpha: f32,
    x: Runs<'_, L::Half>,
    y: RunsMut<'_, L::Half>,
) {
    let is_positive = |x: &L::Half| bytemuck::cast::<_, i16>(*x) > 0;
    y.each_by(
        loops,
        #[inline(always)]
        |r, y| {
            let x = x.row(r, y.len());
            for (y, x) in y.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
                if x.iter().fold(true, |all, x| all & is_positive(x)) {
                    y.copy_from_slice(x);
                    continue;
                }
                loops.map(
                    x,
                    y,
                    #[inline(always)]
                    |x: f32| select_unpredictable(x > 0.0, x, alpha * x.expm1()),
                );
            }
        },
    );
}

/// Each number rounded to a whole one in direction `TO`.
pub(super) fn whole_halves<L: HalfLoops, const TO: i32>(
    loops: L,
    x: Runs<'_, L::Half>,
    y: RunsMut<'_, L::Half>,
) {
    y.each_by(
        loops,
        #[inline(always)]
        |r, y| loops.whole::<TO>(x.row(r, y.len()), y),
    );
}

/// The sine of each number plus `more` quarters of a turn.
pub(super) fn waves_of_halves<L: HalfLoops>(
    loops: L,
    more: u32,
    x: Runs<'_, L::Half>,
    y: RunsMut<'_, L::Half>,
) {
    y.each(|r, y| {
        let x = x.row(r, y.len());
        let is_far = |x: &L::Half| bytemuck::cast::<_, u16>(*x) & 0x7fff > L::TWO_TO_16;
        let any_far = loops.run(
            #[inline(always)]
            || {
                loops.map(
                    x,
                    y,
                    #[inline(always)]
                    |x: f32| math::quarter_wave_of_half(x, more),
                );
                x.iter().fold(false, |any, x| any | is_far(x))
            },
        );
        if any_far {
            let of: fn(f32) -> f32 = if more == 0 { math::sin } else { math::cos };
            let far = y.iter_mut().zip(x).filter(|(_, x)| is_far(x));
            far.for_each(|(y, &x)| *y = L::nearest(of(L::wide(x))));
        }
    });
}

// So exact that they are rounded once: functions of f64, whatever the arithmetic.

fn erfcs<R: Real>(x: &[R], y: &mut [R]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = R::from_f64(libm::erfc(x.to_f64())));
}

fn erfinvs<R: Real>(x: &[R], y: &mut [R]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = R::from_f64(erfinv::erfinv(x.to_f64())));
}

fn lgammas<R: Real>(x: &[R], y: &mut [R]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = R::from_f64(gamma::lgamma(x.to_f64())));
}

fn lgamma_slopes<R: Real>(x: &[R], d: &[R], dx: &mut [R]) {
    let slope = |x: R, d: R| R::from_f64(gamma::digamma(x.to_f64()) * d.to_f64());
    dx.iter_mut().zip(x).zip(d).for_each(|((dx, &x), &d)| *dx = slope(x, d));
}

fn digammas<R: Real>(x: &[R], y: &mut [R]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = R::from_f64(gamma::digamma(x.to_f64())));
}

fn digamma_slopes<R: Real>(x: &[R], d: &[R], dx: &mut [R]) {
    let slope = |x: R, d: R| R::from_f64(gamma::trigamma(x.to_f64()) * d.to_f64());
    dx.iter_mut().zip(x).zip(d).for_each(|((dx, &x), &d)| *dx = slope(x, d));
}

fn gelu_slopes<R: Real>(x: &[R], d: &[R], dx: &mut [R]) {
    simd(
        #[inline(always)]
        || {
            for ((dx, &x), &d) in dx.iter_mut().zip(x).zip(d) {
                *dx = gelu_derivative(x) * d;
            }
        },
    );
}

fn sine_slopes<R: Real>(x: &[R], d: &[R], dx: &mut [R]) {
    R::cosines(x, dx);
    simd(
        #[inline(always)]
        || dx.iter_mut().zip(d).for_each(|(dx, &d)| *dx = *dx * d),
    );
}

fn cosine_slopes<R: Real>(x: &[R], d: &[R], dx: &mut [R]) {
    R::sines(x, dx);
    simd(
        #[inline(always)]
        || dx.iter_mut().zip(d).for_each(|(dx, &d)| *dx = -*dx * d),
    );
}
