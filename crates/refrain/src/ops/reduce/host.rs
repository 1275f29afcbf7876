//! Reductions on the CPU.

use std::any::TypeId;

use bytemuck::{Pod, Zeroable};

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, Stored, convert, with_float, with_stored};
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::{
    Extent, PartPosition, Reducer, SEGMENT, State, Steps, Transposed, reduce, reduce_in,
};
use crate::kernels::{elementwise, rows};
use crate::tensor::DType;

/// What a reduction may do with the order of elements without changing a bit of its result.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Nothing: rows are reduced as rows, columns as columns.
    Fixed,
    /// Reduce rows as columns, and columns as rows.
    Along,
    /// Everything.
    Free,
}

/// The operand `[outer, n, inner]`: where it lies, if its rows are contiguous or its columns are, otherwise as a contiguous copy.
pub(super) enum Elements<'a, T> {
    InPlace(&'a [T], Extent, Steps),
    Transposed(&'a [T], Transposed),
    Copy(Scratch<T>, Extent),
}

impl<'a, T: Stored> Elements<'a, T> {
    pub(super) fn of(args: &HostArgs<'a>, extent: Extent, order: Order) -> Result<Elements<'a, T>> {
        let (x, layout) = (args.read::<T>(0)?, args.read_layout(0));
        let turned = || if order == Order::Fixed { None } else { extent.turned(layout) };
        let whole = || match order {
            Order::Free if extent.n == layout.numel() => layout.packed().map(|_| (extent, extent.steps())),
            _ => None,
        };
        Ok(match extent.steps_in(layout).map(|steps| (extent, steps)).or_else(turned).or_else(whole) {
            Some((extent, steps)) => Elements::InPlace(x, extent, steps),
            None => match Transposed::of(extent, layout) {
                Some(transposed) => Elements::Transposed(x, transposed),
                None => Elements::Copy(elementwise::contiguous(layout, x), extent),
            },
        })
    }

    pub(super) fn reduce<U: Send, S: State>(
        &self,
        f: &impl Reducer<T, S, 1>,
        y: &mut [U],
        store: impl Fn(&mut U, S) + Sync + Send,
    ) {
        match self {
            Elements::InPlace(x, extent, steps) => reduce_in([x], *extent, *steps, f, y, store),
            Elements::Transposed(x, transposed) => transposed.reduce(x, f, y, store),
            Elements::Copy(x, extent) => reduce([x], *extent, f, y, store),
        }
    }
}

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
    // Sums of integers are exact.
    let order = if TypeId::of::<N>() == TypeId::of::<i64>() { Order::Free } else { Order::Fixed };
    let x = Elements::<T>::of(args, extent, order)?;
    let (y, accumulate) = (args.write::<U>(0)?, args.accumulate(0));
    let divisor = N::from_f64(divisor);
    let store = |to: &mut U, sum: N| {
        let v = sum.over(divisor);
        *to = U::from_number(if accumulate { to.to::<N>().plus(v) } else { v });
    };
    if extent.n == 0 {
        y.iter_mut().for_each(|y| store(y, N::ZERO));
    } else {
        x.reduce(&Sum, y, store);
    }
    Ok(())
}

struct Sum;

/// A row in the arithmetic type: itself, or a copy, because a reduction that also converts does not become SIMD code.
pub(super) fn widened<T: Stored, N: Number, R>(x: &[T], f: impl FnOnce(&[N]) -> R) -> R {
    match N::same(x) {
        Some(same) => f(same),
        None => with_scratch(x.len(), |copy| {
            convert(x, copy);
            f(copy)
        }),
    }
}

/// Bytes that are summed at a time, so that the sum has at most 32 bits.
const BYTES: usize = 1 << 16;

impl<T: Stored, N: Number> Reducer<T, N, 1> for Sum {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> N {
        if let Some(bytes) = u8::same(x) {
            let sum_of = |bytes: &[u8]| bytes.iter().fold(0u32, |sum, &v| sum + u32::from(v));
            return simd(
                #[inline(always)]
                || {
                    bytes
                        .chunks(BYTES)
                        .fold(N::ZERO, |sum, bytes| sum.plus(N::from_i64(sum_of(bytes).into())))
                },
            );
        }
        widened(x, |x| {
            simd(
                #[inline(always)]
                || rows::sum([x], |[v]| v),
            )
        })
    }

    fn four_rows(&self, x: [[&[T]; 1]; 4], at: [PartPosition; 4]) -> [N; 4] {
        match x.map(|[x]| N::same(x)) {
            [Some(a), Some(b), Some(c), Some(d)] => simd(
                #[inline(always)]
                || rows::sums([[a], [b], [c], [d]], |[v]| v),
            ),
            _ if TypeId::of::<T>() == TypeId::of::<u8>() => std::array::from_fn(|i| self.row(x[i], at[i])),
            _ => {
                let n = x[0][0].len();
                with_scratch(4 * n, |copy| {
                    copy.chunks_exact_mut(n.max(1)).zip(x).for_each(|(copy, [x])| convert(x, copy));
                    let copy = &*copy;
                    let row = |i: usize| [&copy[i * n..][..n]];
                    simd(
                        #[inline(always)]
                        || rows::sums([row(0), row(1), row(2), row(3)], |[v]| v),
                    )
                })
            }
        }
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

    #[inline(always)]
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
        let x = Elements::<T>::of(args, extent, Order::Fixed)?;
        let (y, means) = (args.write::<T>(0)?, args.write::<R>(1)?);
        if extent.n == 0 {
            y.fill(T::from_number(R::c(f64::NAN)));
            means.fill(R::c(f64::NAN));
            return Ok(());
        }
        let mut moments = Scratch::<Moments>::new(y.len());
        x.reduce(&InMoments::<R>(std::marker::PhantomData), &mut moments, |to, m| *to = m);
        for ((y, mean), m) in y.iter_mut().zip(means).zip(&*moments) {
            *y = T::from_number(m.variance(correction as f64));
            *mean = R::c(m.mean);
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
