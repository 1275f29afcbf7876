//! Reductions on the CPU.

use bytemuck::{Pod, Zeroable};

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, Stored, with_float, with_stored};
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::{PartPosition, Reducer, SEGMENT, reduce};
use crate::kernels::rows;
use crate::tensor::DType;

/// The sum over the middle of `extent`, divided by `divisor`.
pub(crate) fn sum(args: &HostArgs<'_>, extent: Extent, divisor: f64) -> Result<()> {
    match args.read_dtype(0) {
        DType::F16 if args.write_dtype(0) == DType::F32 => {
            sum_of::<half::f16, f32, f32>(args, extent, divisor)
        }
        DType::BF16 if args.write_dtype(0) == DType::F32 => {
            sum_of::<half::bf16, f32, f32>(args, extent, divisor)
        }
        DType::F64 => sum_of::<f64, f64, f64>(args, extent, divisor),
        DType::F32 => sum_of::<f32, f32, f32>(args, extent, divisor),
        DType::F16 => sum_of::<half::f16, half::f16, f32>(args, extent, divisor),
        DType::BF16 => sum_of::<half::bf16, half::bf16, f32>(args, extent, divisor),
        other => with_stored!(other, T => sum_of::<T, i64, i64>(args, extent, divisor)),
    }
}

fn sum_of<T: Stored, U: Stored, N: Number>(args: &HostArgs<'_>, extent: Extent, divisor: f64) -> Result<()> {
    let (x, y, accumulate) = (args.read::<T>(0)?, args.write::<U>(0)?, args.accumulate(0));
    let divisor = N::from_f64(divisor);
    let store = |to: &mut U, sum: N| {
        let v = sum.over(divisor);
        *to = U::from_number(if accumulate { to.to::<N>().plus(v) } else { v });
    };
    if extent.n == 0 {
        y.iter_mut().for_each(|y| store(y, N::ZERO));
    } else {
        reduce([x], extent, &Sum, y, store);
    }
    Ok(())
}

struct Sum;

impl<T: Stored, N: Number> Reducer<T, N, 1> for Sum {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> N {
        simd(
            #[inline(always)]
            || rows::sum([x], |[v]| v.to()),
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, sums: &mut [N]) {
        let width = sums.len();
        simd(
            #[inline(always)]
            || {
                sums.fill(N::ZERO);
                for r in 0..rows {
                    let row = &x[r * stride..][..width];
                    sums.iter_mut().zip(row).for_each(|(s, v)| *s = s.plus(v.to()));
                }
            },
        )
    }

    fn merge(&self, a: N, b: N) -> N {
        a.plus(b)
    }
}

/// Count, mean, and sum of squared distances from the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Moments {
    pub(crate) count: f64,
    pub(crate) mean: f64,
    pub(crate) squares: f64,
}

/// Computes means and sums of squares in the arithmetic `R`. Parts are merged in f64 (Chan, Golub and LeVeque, 1979),
/// so that a mean far from 0 costs no digits.
pub(crate) struct InMoments<R>(pub(crate) std::marker::PhantomData<R>);

impl<T: Stored, R: Real> Reducer<T, Moments, 1> for InMoments<R> {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> Moments {
        simd(
            #[inline(always)]
            || {
                let mean = rows::sum([x], |[v]| v.to::<R>()) / R::from_i64(x.len() as i64);
                let squares = rows::sum(
                    [x],
                    #[inline(always)]
                    |[v]| (v.to::<R>() - mean) * (v.to::<R>() - mean),
                );
                Moments { count: x.len() as f64, mean: mean.to_f64(), squares: squares.to_f64() }
            },
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, states: &mut [Moments]) {
        let width = states.len();
        let (mut means, mut squares) = ([R::ZERO; SEGMENT], [R::ZERO; SEGMENT]);
        let (means, squares) = (&mut means[..width], &mut squares[..width]);
        simd(
            #[inline(always)]
            || {
                for r in 0..rows {
                    let row = &x[r * stride..][..width];
                    means.iter_mut().zip(row).for_each(|(m, v)| *m += v.to());
                }
                let share = R::from_i64(rows as i64);
                means.iter_mut().for_each(|m| *m = *m / share);
                for r in 0..rows {
                    let row = &x[r * stride..][..width];
                    for ((s, v), &m) in squares.iter_mut().zip(row).zip(&*means) {
                        *s += (v.to::<R>() - m) * (v.to::<R>() - m);
                    }
                }
            },
        );
        for ((state, mean), squares) in states.iter_mut().zip(means).zip(squares) {
            *state = Moments { count: rows as f64, mean: mean.to_f64(), squares: squares.to_f64() };
        }
    }

    fn merge(&self, a: Moments, b: Moments) -> Moments {
        a.merge(b)
    }
}

impl Moments {
    /// The moments of both parts together.
    pub(crate) fn merge(self, other: Moments) -> Moments {
        let count = self.count + other.count;
        let distance = other.mean - self.mean;
        Moments {
            count,
            mean: self.mean + distance * (other.count / count),
            squares: self.squares + other.squares + distance * distance * (self.count * other.count / count),
        }
    }

    /// The variance with a divisor of `count - correction`.
    pub(crate) fn variance(self, correction: f64) -> f64 {
        self.squares / (self.count - correction).max(0.0)
    }
}

/// Writes the variance and the mean.
pub(super) fn var(args: &HostArgs<'_>, extent: Extent, correction: usize) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let x = args.read::<T>(0)?;
        let (y, means) = (args.write::<T>(0)?, args.write::<R>(1)?);
        if extent.n == 0 {
            y.fill(T::from_number(R::c(f64::NAN)));
            means.fill(R::c(f64::NAN));
            return Ok(());
        }
        let mut moments = Scratch::<Moments>::new(y.len());
        reduce([x], extent, &InMoments::<R>(std::marker::PhantomData), &mut moments, |to, m| *to = m);
        for ((y, mean), m) in y.iter_mut().zip(means).zip(&*moments) {
            *y = T::from_number(m.variance(correction as f64));
            *mean = R::c(m.mean);
        }
        Ok(())
    })
}

/// Whether `b` replaces `a`: strictly more extreme, or the first NaN.
#[inline(always)]
fn beats<N: Number, const MAX: bool>(a: N, b: N) -> bool {
    let more = if MAX { b > a } else { b < a };
    // Without branches, so that loops become SIMD code.
    more | (b.is_nan() & !a.is_nan())
}

/// The most extreme element, or NaN if one is NaN.
struct Extreme<const MAX: bool>;

impl<T: Stored, N: Number, const MAX: bool> Reducer<T, N, 1> for Extreme<MAX> {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> N {
        simd(
            #[inline(always)]
            || rows::fold(x, x[0].to(), |a, b| if beats::<N, MAX>(a, b) { b } else { a }),
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, states: &mut [N]) {
        let width = states.len();
        simd(
            #[inline(always)]
            || {
                states.iter_mut().zip(x).for_each(|(s, v)| *s = v.to());
                for r in 1..rows {
                    for (s, v) in states.iter_mut().zip(&x[r * stride..][..width]) {
                        let v = v.to();
                        *s = if beats::<N, MAX>(*s, v) { v } else { *s };
                    }
                }
            },
        )
    }

    fn merge(&self, a: N, b: N) -> N {
        if beats::<N, MAX>(a, b) { b } else { a }
    }
}

/// An element and its position. Packed, because `Pod` allows no padding.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C, packed)]
struct Found<N> {
    value: N,
    position: i64,
}

/// The first of the most extreme elements.
struct FirstExtreme<const MAX: bool>;

impl<T: Stored, N: Number, const MAX: bool> Reducer<T, Found<N>, 1> for FirstExtreme<MAX> {
    fn row(&self, [x]: [&[T]; 1], at: PartPosition) -> Found<N> {
        let value: N = Reducer::<T, N, 1>::row(&Extreme::<MAX>, [x], at);
        let position = x.iter().position(|v| {
            let v: N = v.to();
            v == value || v.is_nan()
        });
        Found { value, position: (at.start + position.unwrap_or(0)) as i64 }
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, at: PartPosition, states: &mut [Found<N>]) {
        let width = states.len();
        for (s, v) in states.iter_mut().zip(x) {
            *s = Found { value: v.to(), position: at.start as i64 };
        }
        for r in 1..rows {
            for (s, v) in states.iter_mut().zip(&x[r * stride..][..width]) {
                let v = v.to();
                if beats::<N, MAX>(s.value, v) {
                    *s = Found { value: v, position: (at.start + r) as i64 };
                }
            }
        }
    }

    fn merge(&self, a: Found<N>, b: Found<N>) -> Found<N> {
        if beats::<N, MAX>(a.value, b.value) { b } else { a }
    }
}

/// Runs an expression with `$T` as the stored type of a dtype and `$N` as the type in which it is compared.
macro_rules! with_ordered {
    ($dtype:expr, $T:ident, $N:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $T = f64;
                type $N = f64;
                $body
            }
            DType::F32 => {
                type $T = f32;
                type $N = f32;
                $body
            }
            DType::F16 => {
                type $T = half::f16;
                type $N = f32;
                $body
            }
            DType::BF16 => {
                type $T = half::bf16;
                type $N = f32;
                $body
            }
            other => with_stored!(other, $T => {
                type $N = i64;
                $body
            }),
        }
    };
}

/// The largest or smallest elements.
pub(super) fn extreme(args: &HostArgs<'_>, extent: Extent, max: bool) -> Result<()> {
    with_ordered!(args.read_dtype(0), T, N => {
        let (x, y) = (args.read::<T>(0)?, args.write::<T>(0)?);
        let store = |to: &mut T, v: N| *to = T::from_number(v);
        match max {
            true => reduce([x], extent, &Extreme::<true>, y, store),
            false => reduce([x], extent, &Extreme::<false>, y, store),
        }
        Ok(())
    })
}

/// The positions of the largest or smallest elements.
pub(super) fn arg_extreme(args: &HostArgs<'_>, extent: Extent, max: bool) -> Result<()> {
    with_ordered!(args.read_dtype(0), T, N => {
        let (x, y) = (args.read::<T>(0)?, args.write::<i64>(0)?);
        let store = |to: &mut i64, found: Found<N>| *to = found.position;
        match max {
            true => reduce([x], extent, &FirstExtreme::<true>, y, store),
            false => reduce([x], extent, &FirstExtreme::<false>, y, store),
        }
        Ok(())
    })
}

/// Counts how many elements equal an extreme; `extremes[i]` belongs to result i. NaN counts as equal to NaN.
struct Ties<'a, T> {
    extremes: &'a [T],
}

/// Whether an element equals the extreme.
#[inline(always)]
pub(super) fn is_tie<N: Number>(v: N, extreme: N) -> bool {
    v == extreme || (v.is_nan() && extreme.is_nan())
}

impl<T: Stored, R: Real> Reducer<T, R, 1> for Ties<'_, T> {
    fn row(&self, [x]: [&[T]; 1], at: PartPosition) -> R {
        let extreme: R = self.extremes[at.result].to();
        simd(
            #[inline(always)]
            || rows::sum([x], |[v]| R::from_bool(is_tie(v.to(), extreme))),
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, at: PartPosition, states: &mut [R]) {
        let width = states.len();
        let extremes = &self.extremes[at.result..][..width];
        simd(
            #[inline(always)]
            || {
                states.fill(R::ZERO);
                for r in 0..rows {
                    for ((s, v), e) in states.iter_mut().zip(&x[r * stride..][..width]).zip(extremes) {
                        *s += R::from_bool(is_tie(v.to::<R>(), e.to::<R>()));
                    }
                }
            },
        )
    }

    fn merge(&self, a: R, b: R) -> R {
        a + b
    }
}

/// Operands: x, the extremes and dy. Result: dy divided by the number of elements that share it.
pub(super) fn tie_share(args: &HostArgs<'_>, extent: Extent) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let (x, extremes, dy) = (args.read::<T>(0)?, args.read::<T>(1)?, args.read::<T>(2)?);
        let y = args.write::<R>(0)?;
        reduce([x], extent, &Ties { extremes }, y, |to, count: R| *to = count);
        y.iter_mut().zip(dy).for_each(|(y, d)| *y = d.to::<R>() / *y);
        Ok(())
    })
}
