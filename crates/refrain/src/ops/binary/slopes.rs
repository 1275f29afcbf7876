//! Derivatives of functions of two numbers: what each makes of `a`, `b` and the gradient `d`, and whether no part of the
//! result has left the range of its type on the way.

use super::scaled::Scaled;
use crate::device::cpu::math::angles::hypot;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::simd;

/// Operands, the gradient of the result, and the gradient to write, of a tile.
pub(super) struct Slopes<'a, R> {
    pub(super) a: &'a [R],
    pub(super) b: &'a [R],
    pub(super) d: &'a [R],
    pub(super) dx: &'a mut [R],
}

impl<R: Real> Slopes<'_, R> {
    /// `f` of each element.
    #[inline(always)]
    pub(super) fn each(self, f: impl Fn(R, R, R) -> R) {
        let Slopes { a, b, d, dx } = self;
        simd(
            #[inline(always)]
            || dx.iter_mut().zip(a).zip(b).zip(d).for_each(|(((dx, &a), &b), &d)| *dx = f(a, b, d)),
        );
    }

    /// Computes each element with `quick`. If `quick` reports that an intermediate has left the range of its type (which
    /// is rare), computes the element again with `scaled`.
    #[inline(always)]
    pub(super) fn in_range(self, quick: impl Fn(R, R, R) -> (R, bool), scaled: impl Fn(R, R, R) -> Scaled) {
        let Slopes { a, b, d: dy, dx } = self;
        let beyond = simd(
            #[inline(always)]
            || {
                let mut beyond = 0u32;
                for (((dx, &a), &b), &d) in dx.iter_mut().zip(a).zip(b).zip(dy) {
                    let (y, within) = quick(a, b, d);
                    *dx = y;
                    beyond += u32::from(!within);
                }
                beyond
            },
        );
        if beyond > 0 {
            for (((dx, &a), &b), &d) in dx.iter_mut().zip(a).zip(b).zip(dy) {
                if !quick(a, b, d).1 {
                    *dx = scaled(a, b, d).get();
                }
            }
        }
    }
}

/// `-d a / b^2`. Products with zero are exact.
#[inline(always)]
pub(super) fn denominator<R: Real>(a: R, b: R, d: R) -> (R, bool) {
    let (over, under) = (d * a, b * b);
    let exact = (a == R::ZERO) | (d == R::ZERO);
    // Branch-free, like is_normal.
    (-over / under, (over.is_normal() | exact) & under.is_normal())
}

/// [`denominator`], where numbers leave the range of their type on the way.
pub(super) fn scaled_denominator<R: Real>(a: R, b: R, d: R) -> Scaled {
    let [a, b, d] = [a, b, d].map(Scaled::of);
    -(d * a) / (b * b)
}

/// `d b a^(b - 1)`, and 0 if b is 0. The power of a negative number may be NaN; that of 0 is exact.
#[inline(always)]
pub(super) fn base<R: Real>(a: R, b: R, d: R) -> (R, bool) {
    if b == R::ZERO {
        return (R::ZERO * d, true);
    }
    let (slope, power) = (d * b, a.power(b - R::ONE));
    let exact = a == R::ZERO || power.is_nan();
    (slope * power, (slope.is_normal() || d == R::ZERO) && (power.is_normal() || exact))
}

/// [`base`], likewise.
pub(super) fn scaled_base<R: Real>(a: R, b: R, d: R) -> Scaled {
    let (power, sign) = (half_power(a, b - R::ONE), a.power(b - R::ONE).to_f64());
    Scaled::of(d) * Scaled::of(b) * power * Scaled::of(1f64.copysign(sign))
}

/// `d a^b ln(a)`, and 0 if a is 0. The logarithm of a negative number is NaN.
#[inline(always)]
pub(super) fn exponent<R: Real>(a: R, b: R, d: R) -> (R, bool) {
    if a == R::ZERO {
        return (R::ZERO * d, true);
    }
    let (power, log) = (a.power(b), a.ln());
    let part = d * power;
    (part * log, log.is_nan() || power.is_normal() && (part.is_normal() || d == R::ZERO))
}

/// [`exponent`], likewise.
pub(super) fn scaled_exponent<R: Real>(a: R, b: R, d: R) -> Scaled {
    Scaled::of(d) * half_power(a, b) * Scaled::of(a.ln())
}

/// `|a|^b`, computed as the square of `|a|^(b/2)`.
fn half_power<R: Real>(a: R, b: R) -> Scaled {
    let root = Scaled::of(a.abs().to_f64().powf(b.to_f64() / 2.0));
    root * root
}

/// The gradient goes to the chosen operand. If both are equal, each gets half. If one is NaN, both get all of it.
#[inline(always)]
pub(super) fn share<R: Real>(beaten: bool, equal: bool, d: R) -> R {
    if equal {
        R::c(0.5) * d
    } else if beaten {
        R::ZERO
    } else {
        d
    }
}

/// `floor(a / b)`, of the exact quotient.
#[inline(always)]
pub(super) fn floor_of_quotient<R: Real>(a: R, b: R) -> R {
    let rest = a.remainder(b);
    if rest.is_nan() {
        return rest;
    }
    if b.abs() == R::INFINITY {
        return if rest == a { R::ZERO } else { -R::ONE };
    }
    (a / b - rest / b).round_ties_even()
}

/// `d` times `other / (a^2 + b^2)`, where `other` is one of both numbers; 0 if both are 0 or one is infinite.
#[inline(always)]
pub(super) fn atan2_slope<R: Real>(a: R, b: R, other: R, d: R) -> R {
    // The larger number is taken out of the squares, so that they stay in range, and divides last, because it may be small.
    let size = if a.abs() > b.abs() { a.abs() } else { b.abs() };
    let is_nan = a.is_nan() | b.is_nan();
    let is_nothing = ((size == R::ZERO) | (size == R::INFINITY)) & !is_nan;
    let size = if is_nothing { R::ONE } else { size };
    let (p, q) = (a / size, b / size);
    let slope = d * (other / size / (p * p + q * q)) / size;
    if is_nothing { R::ZERO * d } else { slope }
}

/// `d a / hypot(a, b)`; 0 if both are 0.
#[inline(always)]
pub(super) fn hypot_slope<R: Real>(a: R, b: R, d: R) -> R {
    let length = hypot(a, b);
    d * (a / if length == R::ZERO { R::ONE } else { length })
}

/// `d e^a / (e^a + e^b)`; half of `d` also for equal infinities.
#[inline(always)]
pub(super) fn logaddexp_slope<R: Real>(a: R, b: R, d: R) -> R {
    (if a == b { R::ZERO } else { a - b }).sigmoid() * d
}
