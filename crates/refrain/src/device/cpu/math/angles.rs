//! Inverse trigonometric functions, and lengths, written once for f32 and f64.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

use crate::device::cpu::numeric::Real;

/// `tan(pi / 8)`
const TAN_PI_8: f64 = std::f64::consts::SQRT_2 - 1.0;
/// From here on, numbers are made smaller before they are added.
const LARGE: f64 = 1e38;

/// The angle of the point `(x, y)`, from -pi to pi, with the special cases of C's `atan2`.
#[inline(always)]
pub fn atan2<R: Real>(y: R, x: R) -> R {
    let (height, width) = (y.abs(), x.abs());
    let is_steep = height > width;
    let (low, high) = if is_steep { (width, height) } else { (height, width) };
    // Of two infinities, the angle is pi / 4. A product, so that NaN stays.
    let both = if low == high { R::ONE } else { low * R::ZERO };
    let (low, high) = if high == R::INFINITY { (both, R::ONE) } else { (low, high) };
    let scale = if high > R::c(LARGE) { R::c(0.25) } else { R::ONE };
    let (low, high) = (low * scale, if high == R::ZERO { R::ONE } else { high * scale });
    // atan(v) = pi / 4 + atan((v - 1) / (v + 1))
    let is_near_1 = low > R::c(TAN_PI_8) * high;
    let (above, below) = if is_near_1 { (low - high, low + high) } else { (low, high) };
    let angle = (above / below).atan_near_0() + if is_near_1 { R::c(FRAC_PI_4) } else { R::ZERO };
    let angle = if is_steep { R::c(FRAC_PI_2) - angle } else { angle };
    let is_left = R::ONE.copysign(x) < R::ZERO;
    (if is_left { R::c(PI) - angle } else { angle }).copysign(y)
}

/// The inverse tangent.
#[inline(always)]
pub fn atan<R: Real>(x: R) -> R {
    atan2(x, R::ONE)
}

/// The inverse sine; NaN beyond -1 and 1.
#[inline(always)]
pub fn asin<R: Real>(x: R) -> R {
    atan2(x, sqrt_1_minus_square(x))
}

/// The inverse cosine; NaN beyond -1 and 1.
#[inline(always)]
pub fn acos<R: Real>(x: R) -> R {
    atan2(sqrt_1_minus_square(x), x)
}

/// `sqrt(1 - x^2)`
#[inline(always)]
pub fn sqrt_1_minus_square<R: Real>(x: R) -> R {
    ((R::ONE - x) * (R::ONE + x)).sqrt()
}

/// `sqrt(a^2 + b^2)`, whatever the squares; infinite if one of both is.
#[inline(always)]
pub fn hypot<R: Real>(a: R, b: R) -> R {
    let (a, b) = (a.abs(), b.abs());
    let (low, high) = if a > b { (b, a) } else { (a, b) };
    let ratio = low / if high == R::ZERO { R::ONE } else { high };
    let length = high * (R::ONE + ratio * ratio).sqrt();
    if (a == R::INFINITY) | (b == R::INFINITY) { R::INFINITY } else { length }
}
