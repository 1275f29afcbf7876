//! Functions of one number on the CPU.

use super::Unary;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::activations::{gelu, gelu_derivative, silu_derivative};
use crate::kernels::elementwise::{self, FloatTile};

struct Forward(Unary);
struct Backward(Unary);

pub(super) fn forward(op: Unary, args: &HostArgs<'_>) -> Result<()> {
    let dtype = args.read_dtype(0);
    if dtype.is_float() {
        return elementwise::float(args, dtype, &Forward(op));
    }
    elementwise::int(args, |x, y| int_tile(op, x[0], y))
}

pub(super) fn backward(op: Unary, args: &HostArgs<'_>) -> Result<()> {
    elementwise::float(args, args.write_dtype(0), &Backward(op))
}

#[inline(always)]
fn map<N: Number>(x: &[N], y: &mut [N], f: impl Fn(N) -> N) {
    simd(
        #[inline(always)]
        || y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(x)),
    );
}

#[inline(always)]
fn map2<N: Number>(v: &[N], dy: &[N], dx: &mut [N], f: impl Fn(N, N) -> N) {
    simd(
        #[inline(always)]
        || dx.iter_mut().zip(v).zip(dy).for_each(|((dx, &v), &dy)| *dx = f(v, dy)),
    );
}

fn int_tile(op: Unary, x: &[i64], y: &mut [i64]) {
    match op {
        Unary::Neg => map(x, y, i64::wrapping_neg),
        Unary::Abs => map(x, y, i64::wrapping_abs),
        Unary::Sign => map(x, y, i64::signum),
        Unary::Square => map(x, y, |x| x.wrapping_mul(x)),
        Unary::Relu => map(x, y, |x| x.max(0)),
        Unary::Clamp { min, max } => {
            let (min, max) = (min.ceil() as i64, max.floor() as i64);
            map(x, y, |x| x.max(min).min(max))
        }
        _ => y.copy_from_slice(x),
    }
}

/// 2 / sqrt(pi)
const TWO_OVER_SQRT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;

impl FloatTile for Forward {
    fn tile<R: Real>(&self, x: &[&[R]], y: &mut [R]) {
        let (x, zero, one) = (x[0], R::ZERO, R::ONE);
        match self.0 {
            Unary::Neg => map(x, y, |x| -x),
            Unary::Abs => map(x, y, |x| x.abs()),
            Unary::Sign => map(x, y, |x| {
                if x > zero {
                    one
                } else if x < zero {
                    -one
                } else {
                    zero
                }
            }),
            Unary::Exp => map(x, y, |x| x.exp()),
            Unary::Log => map(x, y, |x| x.ln()),
            Unary::Sqrt => map(x, y, |x| x.sqrt()),
            Unary::Rsqrt => map(x, y, |x| one / x.sqrt()),
            Unary::Reciprocal => map(x, y, |x| one / x),
            Unary::Square => map(x, y, |x| x * x),
            Unary::Sin => map(x, y, |x| x.sin()),
            Unary::Cos => map(x, y, |x| x.cos()),
            Unary::Tanh => map(x, y, |x| x.tanh()),
            Unary::Sigmoid => map(x, y, |x| x.sigmoid()),
            Unary::Relu => map(x, y, |x| x.relu()),
            Unary::Gelu => map(x, y, gelu),
            Unary::GeluTanh => map(x, y, |x| x.gelu_tanh()),
            Unary::Silu => map(x, y, |x| x * x.sigmoid()),
            Unary::Erf => map(x, y, |x| x.erf()),
            Unary::Floor => map(x, y, |x| x.floor()),
            Unary::Ceil => map(x, y, |x| x.ceil()),
            Unary::Round => map(x, y, |x| x.round_ties_even()),
            Unary::Clamp { min, max } => {
                let (min, max) = (R::c(min), R::c(max));
                map(x, y, |x| {
                    if x < min {
                        min
                    } else if x > max {
                        max
                    } else {
                        x
                    }
                })
            }
        }
    }
}

impl FloatTile for Backward {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        let (v, dy, zero, one) = (x[0], x[1], R::ZERO, R::ONE);
        // Products are ordered so that each intermediate lies between the gradient and the result. So none leaves the
        // range of its type if both are in range.
        match self.0 {
            // From the operand:
            Unary::Abs => map2(v, dy, dx, |x, d| {
                if x > zero {
                    d
                } else if x < zero {
                    -d
                } else {
                    zero * d
                }
            }),
            Unary::Log => map2(v, dy, dx, |x, d| d / x),
            Unary::Square => map2(v, dy, dx, |x, d| R::c(2.0) * (x * d)),
            Unary::Sin => map2(v, dy, dx, |x, d| x.cos() * d),
            Unary::Cos => map2(v, dy, dx, |x, d| -x.sin() * d),
            Unary::Gelu => map2(v, dy, dx, |x, d| gelu_derivative(x) * d),
            Unary::GeluTanh => map2(v, dy, dx, |x, d| x.gelu_tanh_grad() * d),
            Unary::Silu => map2(v, dy, dx, |x, d| silu_derivative(x) * d),
            Unary::Erf => map2(v, dy, dx, |x, d| R::c(TWO_OVER_SQRT_PI) * (-(x * x)).exp() * d),
            Unary::Clamp { min, max } => {
                let (min, max) = (R::c(min), R::c(max));
                map2(v, dy, dx, |x, d| if x > min && x < max { d } else { zero })
            }
            // From the result:
            Unary::Exp => map2(v, dy, dx, |y, d| y * d),
            Unary::Sqrt => map2(v, dy, dx, |y, d| d / (y + y)),
            Unary::Rsqrt => map2(v, dy, dx, |y, d| R::c(-0.5) * y * d * y * y),
            Unary::Reciprocal => map2(v, dy, dx, |y, d| -(y * d) * y),
            Unary::Tanh => map2(v, dy, dx, |y, d| (one - y * y) * d),
            Unary::Sigmoid => map2(v, dy, dx, |y, d| y * (one - y) * d),
            Unary::Relu => map2(v, dy, dx, |y, d| if y <= zero { zero } else { d }),
            Unary::Neg => map2(v, dy, dx, |_, d| -d),
            Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round => dx.fill(zero),
        }
    }
}
