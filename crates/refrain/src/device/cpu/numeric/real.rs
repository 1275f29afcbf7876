//! Floating-point arithmetic.

use super::Number;
use crate::device::cpu::math;
use crate::device::cpu::simd::Vectors;

/// The floating-point arithmetic types: f64 and f32.
pub(crate) trait Real:
    Number
    + Vectors
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::iter::Sum
{
    const INFINITY: Self;
    const NEG_INFINITY: Self;
    fn c(v: f64) -> Self;
    fn exp(self) -> Self;
    fn exp2(self) -> Self;
    fn ln(self) -> Self;
    fn log2(self) -> Self;
    fn log10(self) -> Self;
    fn sqrt(self) -> Self;
    /// `y[i] = sin(x[i])`, faster than one by one.
    fn sines(x: &[Self], y: &mut [Self]);
    /// `y[i] = cos(x[i])`, faster than one by one.
    fn cosines(x: &[Self], y: &mut [Self]);
    /// `y[i] = tan(x[i])`, faster than one by one.
    fn tangents(x: &[Self], y: &mut [Self]);
    /// The inverse tangent of `|x| <= tan(pi / 8)`.
    fn atan_near_0(self) -> Self;
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round_ties_even(self) -> Self;
    fn trunc(self) -> Self;
    /// This size with the sign of another number.
    fn copysign(self, sign: Self) -> Self;
    fn sigmoid(self) -> Self;
    /// `ln(1 + x)`: the logarithm of the rounded sum, times what the rounding has changed (Kahan).
    #[inline(always)]
    fn log1p(self) -> Self {
        let sum = Self::ONE + self;
        let rounded = sum - Self::ONE;
        let ratio = if rounded == self { Self::ONE } else { self / rounded };
        if rounded == Self::ZERO { self } else { sum.ln() * ratio }
    }
    /// `e^x - 1`, exact also for small `x`.
    fn expm1(self) -> Self;
    /// `(e^x - 1) / 2`, which is finite also where `e^x` is not, for `x` that is not subnormal.
    fn half_expm1(self) -> Self;
    /// The exact GELU.
    fn gelu(self) -> Self;
    fn gelu_tanh(self) -> Self;
    fn gelu_tanh_grad(self) -> Self;
    /// Neither 0 nor subnormal nor infinite nor NaN.
    fn is_normal(self) -> bool;
    /// `max(self, 0)`; NaN stays NaN.
    #[inline(always)]
    fn relu(self) -> Self {
        if self < Self::ZERO { Self::ZERO } else { self }
    }
}

macro_rules! real {
    ($t:ident, $math:path) => {
        impl Real for $t {
            const INFINITY: $t = $t::INFINITY;
            const NEG_INFINITY: $t = $t::NEG_INFINITY;
            #[inline(always)]
            fn c(v: f64) -> $t {
                v as $t
            }
            fn sines(x: &[$t], y: &mut [$t]) {
                use $math as math;
                math::sines(x, y);
            }
            fn cosines(x: &[$t], y: &mut [$t]) {
                use $math as math;
                math::cosines(x, y);
            }
            fn tangents(x: &[$t], y: &mut [$t]) {
                use $math as math;
                math::tangents(x, y);
            }
            #[inline(always)]
            fn copysign(self, sign: $t) -> $t {
                self.copysign(sign)
            }
            #[inline(always)]
            fn is_normal(self) -> bool {
                // Branch-free, so that loops become SIMD code.
                (self.abs() >= $t::MIN_POSITIVE) & (self.abs() <= $t::MAX)
            }
            real!(@of_math $t, $math: ln log, log2 log2, log10 log10, exp exp, exp2 exp2, expm1 expm1);
            real!(@of_math $t, $math: half_expm1 half_expm1, atan_near_0 atan_near_0);
            real!(@of_math $t, $math: tanh tanh, erf erf, sigmoid sigmoid);
            real!(@of_math $t, $math: gelu gelu, gelu_tanh gelu_tanh, gelu_tanh_grad gelu_tanh_grad);
            real!(@own $t: sqrt, abs, floor, ceil, round_ties_even, trunc);
        }
    };
    (@of_math $t:ident, $math:path: $($name:ident $function:ident),*) => {$(
        #[inline(always)]
        fn $name(self) -> $t {
            use $math as math;
            math::$function(self)
        }
    )*};
    (@own $t:ident: $($name:ident),*) => {$(
        #[inline(always)]
        fn $name(self) -> $t {
            self.$name()
        }
    )*};
}
real!(f32, math);
real!(f64, math::f64);
