//! Activation functions, alone and at the end of a matrix product.

use crate::device::cpu::numeric::Real;

/// Their CUDA source.
pub(crate) const ACTIVATIONS: &str = include_str!("kernel.cu");

/// 1 / sqrt(2)
const INV_SQRT_2: f64 = std::f64::consts::FRAC_1_SQRT_2;
/// 1 / sqrt(2 pi)
const INV_SQRT_TAU: f64 = 0.398_942_280_401_432_7;

/// The exact GELU.
#[inline(always)]
pub(crate) fn gelu<R: Real>(x: R) -> R {
    x.gelu()
}

/// The derivative of the exact GELU.
#[inline(always)]
pub(crate) fn gelu_derivative<R: Real>(x: R) -> R {
    let density = R::c(INV_SQRT_TAU) * (R::c(-0.5) * x * x).exp();
    R::c(0.5) * (R::ONE + (x * R::c(INV_SQRT_2)).erf()) + x * density
}

/// The derivative of x * sigmoid(x).
#[inline(always)]
pub(crate) fn silu_derivative<R: Real>(x: R) -> R {
    let s = x.sigmoid();
    s * (R::ONE + x * (R::ONE - s))
}
