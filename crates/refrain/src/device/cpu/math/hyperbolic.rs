//! Hyperbolic functions and their inverses, written once for f32 and f64.

use std::f64::consts::LN_2;

use crate::device::cpu::numeric::Real;

/// From here on, `e^-x` is nothing beside `e^x`.
const LARGE: f64 = 1e30;
/// From here on, 1 is nothing beside a number, and the square of the number is finite in f32.
const ALL_DIGITS: f64 = 1e17;

/// The hyperbolic sine.
#[inline(always)]
pub fn sinh<R: Real>(x: R) -> R {
    let half = R::c(0.5);
    // (e^a - 1) / 2 + (1 - e^-a) / 2
    let above = x.abs().half_expm1();
    let power = above + half;
    let below = if power < R::c(LARGE) { half * above / power } else { R::ZERO };
    if x.abs() < R::c(1e-8) { x } else { (above + below).copysign(x) }
}

/// The hyperbolic cosine.
#[inline(always)]
pub fn cosh<R: Real>(x: R) -> R {
    // e^a / 2 + e^-a / 2
    let power = x.abs().half_expm1() + R::c(0.5);
    power + R::c(0.25) / power
}

/// The inverse of [`sinh`].
#[inline(always)]
pub fn asinh<R: Real>(x: R) -> R {
    // ln(1 + a + (sqrt(a^2 + 1) - 1)), without a difference of neighbours.
    let a = x.abs();
    let square = a * a;
    let is_large = a > R::c(ALL_DIGITS);
    let sum = a + square / (R::ONE + (square + R::ONE).sqrt());
    log1p_of_sum(is_large, a, sum).copysign(x)
}

/// The inverse of [`cosh`]; NaN below 1.
#[inline(always)]
pub fn acosh<R: Real>(x: R) -> R {
    // ln(1 + t + sqrt(t^2 + 2 t)) for t = x - 1
    let t = x - R::ONE;
    let is_large = x > R::c(ALL_DIGITS);
    let y = log1p_of_sum(is_large, x, t + (t * (t + R::c(2.0))).sqrt());
    if x >= R::ONE { y } else { R::c(f64::NAN) }
}

/// `ln(1 + sum)`. Where the operand `a` is large, the sum is twice the operand and may be infinite.
#[inline(always)]
fn log1p_of_sum<R: Real>(is_large: bool, a: R, sum: R) -> R {
    let log = (if is_large { a } else { sum }).log1p();
    log + if is_large { R::c(LN_2) } else { R::ZERO }
}

/// The inverse of the hyperbolic tangent; infinite at -1 and 1, NaN beyond.
#[inline(always)]
pub fn atanh<R: Real>(x: R) -> R {
    let a = x.abs();
    (R::c(0.5) * ((a + a) / (R::ONE - a)).log1p()).copysign(x)
}

/// `ln(e^a + e^b)`
#[inline(always)]
pub fn log_add_exp<R: Real>(a: R, b: R) -> R {
    let larger = if a > b { a } else { b };
    // Also of two equal infinities.
    let distance = if a == b { R::ZERO } else { (a - b).abs() };
    larger + (-distance).exp().log1p()
}
