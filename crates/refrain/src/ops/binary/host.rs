//! Functions of two numbers on the CPU.

use super::Binary;
use super::scaled::Scaled;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::elementwise::{self, FloatTile, NumberTile};

struct Forward(Binary);
struct Backward {
    op: Binary,
    by: usize,
}
struct Scalar {
    op: Binary,
    scalar: f64,
    reverse: bool,
}

pub(super) fn forward(op: Binary, args: &HostArgs<'_>) -> Result<()> {
    elementwise::number(args, args.read_dtype(0), &Forward(op))
}

pub(super) fn backward(op: Binary, by: usize, args: &HostArgs<'_>) -> Result<()> {
    elementwise::float(args, args.write_dtype(0), &Backward { op, by })
}

pub(super) fn with_scalar(op: Binary, scalar: f64, reverse: bool, args: &HostArgs<'_>) -> Result<()> {
    elementwise::number(args, args.read_dtype(0), &Scalar { op, scalar, reverse })
}

/// Calls `$go` with the function as a closure of two numbers, so that each function gets its own loop.
macro_rules! with_function {
    ($op:expr, $N:ident, $go:ident) => {
        match $op {
            Binary::Add => $go!(|a: $N, b: $N| a.plus(b)),
            Binary::Sub => $go!(|a: $N, b: $N| a.minus(b)),
            Binary::Mul => $go!(|a: $N, b: $N| a.times(b)),
            Binary::Div => $go!(|a: $N, b: $N| a.over(b)),
            Binary::Pow => $go!(|a: $N, b: $N| a.power(b)),
            Binary::Maximum => $go!(|a: $N, b: $N| if a > b || a.is_nan() { a } else { b }),
            Binary::Minimum => $go!(|a: $N, b: $N| if a < b || a.is_nan() { a } else { b }),
            Binary::Eq => $go!(|a: $N, b: $N| $N::from_bool(a == b)),
            Binary::Ne => $go!(|a: $N, b: $N| $N::from_bool(a != b)),
            Binary::Lt => $go!(|a: $N, b: $N| $N::from_bool(a < b)),
            Binary::Le => $go!(|a: $N, b: $N| $N::from_bool(a <= b)),
            Binary::Gt => $go!(|a: $N, b: $N| $N::from_bool(a > b)),
            Binary::Ge => $go!(|a: $N, b: $N| $N::from_bool(a >= b)),
            Binary::And => $go!(|a: $N, b: $N| $N::from_bool(a != $N::ZERO && b != $N::ZERO)),
            Binary::Or => $go!(|a: $N, b: $N| $N::from_bool(a != $N::ZERO || b != $N::ZERO)),
            Binary::Xor => $go!(|a: $N, b: $N| $N::from_bool((a != $N::ZERO) != (b != $N::ZERO))),
        }
    };
}

impl NumberTile for Forward {
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [N]) {
        let (a, b) = (x[0], x[1]);
        macro_rules! go {
            ($f:expr) => {
                simd(
                    #[inline(always)]
                    || y.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = $f(a, b)),
                )
            };
        }
        with_function!(self.0, N, go);
    }
}

impl NumberTile for Scalar {
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [N]) {
        let (x, s, reverse) = (x[0], N::from_f64(self.scalar), self.reverse);
        macro_rules! go {
            ($f:expr) => {
                simd(
                    #[inline(always)]
                    || match reverse {
                        false => y.iter_mut().zip(x).for_each(|(y, &x)| *y = $f(x, s)),
                        true => y.iter_mut().zip(x).for_each(|(y, &x)| *y = $f(s, x)),
                    },
                )
            };
        }
        with_function!(self.op, N, go);
    }
}

impl FloatTile for Backward {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        let (a, b, dy) = (x[0], x[1], x[2]);
        let half = R::c(0.5);
        macro_rules! each {
            ($f:expr) => {
                simd(
                    #[inline(always)]
                    || {
                        dx.iter_mut()
                            .zip(a)
                            .zip(b)
                            .zip(dy)
                            .for_each(|(((dx, &a), &b), &d): (((&mut R, &R), &R), &R)| *dx = $f(a, b, d))
                    },
                )
            };
        }
        match (self.op, self.by) {
            (Binary::Mul, 0) => each!(|_, b, d| b * d),
            (Binary::Mul, _) => each!(|a, _, d| a * d),
            (Binary::Div, 0) => each!(|_, b, d: R| d / b),
            (Binary::Div, _) => in_range(x, dx, denominator, |a, b, d| {
                let [a, b, d] = [a, b, d].map(Scaled::of);
                -(d * a) / (b * b)
            }),
            (Binary::Pow, 0) => in_range(x, dx, base, |a, b, d| {
                let (power, sign) = (halves(a, b - R::ONE), a.power(b - R::ONE).to_f64());
                Scaled::of(d) * Scaled::of(b) * power * Scaled::of(1f64.copysign(sign))
            }),
            (Binary::Pow, _) => {
                in_range(x, dx, exponent, |a, b, d| Scaled::of(d) * halves(a, b) * Scaled::of(a.ln()))
            }
            (Binary::Maximum, by) => {
                each!(|a: R, b: R, d: R| share(if by == 0 { a < b } else { b < a }, a == b, d, half))
            }
            (Binary::Minimum, by) => {
                each!(|a: R, b: R, d: R| share(if by == 0 { b < a } else { a < b }, a == b, d, half))
            }
            (Binary::Sub, 1) => each!(|_, _, d: R| -d),
            _ => each!(|_, _, d| d),
        }
    }
}

/// Computes each element with `quick`. If `quick` reports that an intermediate has left the range of its type (which
/// is rare), computes the element again with `scaled`.
#[inline(always)]
fn in_range<R: Real>(
    x: &[&[R]],
    dx: &mut [R],
    quick: impl Fn(R, R, R) -> (R, bool),
    scaled: impl Fn(R, R, R) -> Scaled,
) {
    let (a, b, dy) = (x[0], x[1], x[2]);
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

/// `-d a / b^2`. Products with zero are exact.
#[inline(always)]
fn denominator<R: Real>(a: R, b: R, d: R) -> (R, bool) {
    let (over, under) = (d * a, b * b);
    let exact = (a == R::ZERO) | (d == R::ZERO);
    // Branch-free, like is_normal.
    (-over / under, (over.is_normal() | exact) & under.is_normal())
}

/// `d b a^(b - 1)`, and 0 if b is 0. The power of a negative number may be NaN; that of 0 is exact.
#[inline(always)]
fn base<R: Real>(a: R, b: R, d: R) -> (R, bool) {
    if b == R::ZERO {
        return (R::ZERO * d, true);
    }
    let (slope, power) = (d * b, a.power(b - R::ONE));
    let exact = a == R::ZERO || power.is_nan();
    (slope * power, (slope.is_normal() || d == R::ZERO) && (power.is_normal() || exact))
}

/// `d a^b ln(a)`, and 0 if a is 0. The logarithm of a negative number is NaN.
#[inline(always)]
fn exponent<R: Real>(a: R, b: R, d: R) -> (R, bool) {
    if a == R::ZERO {
        return (R::ZERO * d, true);
    }
    let (power, log) = (a.power(b), a.ln());
    let part = d * power;
    (part * log, log.is_nan() || power.is_normal() && (part.is_normal() || d == R::ZERO))
}

/// `|a|^b`, computed as the square of `|a|^(b/2)`.
fn halves<R: Real>(a: R, b: R) -> Scaled {
    let root = Scaled::of(a.abs().to_f64().powf(b.to_f64() / 2.0));
    root * root
}

/// The gradient goes to the chosen operand. If both are equal, each gets half. If one is NaN, both get all of it.
#[inline(always)]
fn share<R: Real>(beaten: bool, equal: bool, d: R, half: R) -> R {
    if equal {
        half * d
    } else if beaten {
        R::ZERO
    } else {
        d
    }
}
