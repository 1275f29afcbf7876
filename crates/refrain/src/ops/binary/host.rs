//! Functions of two numbers on the CPU.

use super::Binary;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::ops::elementwise::{self, FloatTile, NumberTile};

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

/// Calls `$go` with the function as a closure of two numbers, so that each gets a loop of its own.
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
        let zero = R::ZERO;
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
            (Binary::Div, _) => each!(|a: R, b: R, d: R| -(d * a) / (b * b)),
            (Binary::Pow, 0) => {
                each!(|a: R, b: R, d: R| if b == zero { zero * d } else { d * b * a.power(b - R::ONE) })
            }
            (Binary::Pow, _) => {
                each!(|a: R, b: R, d: R| if a == zero { zero * d } else { d * a.power(b) * a.ln() })
            }
            (Binary::Maximum, by) => {
                let sign = if by == 0 { R::ONE } else { -R::ONE };
                each!(|a: R, b: R, d: R| share((a - b) * sign, a == b, d, half))
            }
            (Binary::Minimum, by) => {
                let sign = if by == 0 { -R::ONE } else { R::ONE };
                each!(|a: R, b: R, d: R| share((a - b) * sign, a == b, d, half))
            }
            (Binary::Sub, 1) => each!(|_, _, d: R| -d),
            _ => each!(|_, _, d| d),
        }
    }
}

/// The gradient goes to the operand that was chosen, half to each if they were equal.
#[inline(always)]
fn share<R: Real>(chosen_if_positive: R, equal: bool, d: R, half: R) -> R {
    if equal {
        half * d
    } else if chosen_if_positive > R::ZERO {
        d
    } else {
        R::ZERO
    }
}
