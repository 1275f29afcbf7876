//! The logarithm of a sum of exponentials on the CPU.

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::{Extent, PartPosition, Reducer, SEGMENT, reduce};
use crate::kernels::rows::{load, max, sum};

/// The largest of some numbers, and the sum of `e^(x - largest)`.
type Exponentials<R> = [R; 2];

struct SumExponentials;

/// `e^(x - largest)`; 1 for the largest itself, which may be infinite.
#[inline(always)]
fn power<R: Real>(x: R, largest: R) -> R {
    let power = (x - largest).exp();
    if x == largest { R::ONE } else { power }
}

impl<T: Stored, R: Real> Reducer<T, Exponentials<R>, 1> for SumExponentials {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> Exponentials<R> {
        with_scratch(x.len(), |buf: &mut [R]| {
            simd(
                #[inline(always)]
                || {
                    let x = load(x, buf);
                    let largest = max(x);
                    [largest, sum([x], |[x]| power(x, largest))]
                },
            )
        })
    }

    fn columns(
        &self,
        [x]: [&[T]; 1],
        stride: usize,
        rows: usize,
        _: PartPosition,
        states: &mut [Exponentials<R>],
    ) {
        let width = states.len();
        let (mut largest, mut sums) = ([R::NEG_INFINITY; SEGMENT], [R::ZERO; SEGMENT]);
        let (largest, sums) = (&mut largest[..width], &mut sums[..width]);
        simd(
            #[inline(always)]
            || {
                for r in 0..rows {
                    for (largest, &v) in largest.iter_mut().zip(&x[r * stride..][..width]) {
                        let v: R = v.to();
                        *largest = if v > *largest { v } else { *largest };
                    }
                }
                for r in 0..rows {
                    for ((sum, &largest), &v) in sums.iter_mut().zip(&*largest).zip(&x[r * stride..][..width])
                    {
                        *sum += power(v.to(), largest);
                    }
                }
            },
        );
        for ((state, &largest), &sum) in states.iter_mut().zip(&*largest).zip(&*sums) {
            *state = [largest, sum];
        }
    }

    fn rows_at_a_time(&self, extent: Extent) -> usize {
        extent.most_rows_at_a_time()
    }

    fn merge(&self, a: Exponentials<R>, b: Exponentials<R>) -> Exponentials<R> {
        let largest = if a[0] > b[0] { a[0] } else { b[0] };
        [largest, a[1] * power(a[0], largest) + b[1] * power(b[0], largest)]
    }
}

pub(super) fn forward(extent: Extent, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let (x, y) = (args.read::<T>(0)?, args.write::<T>(0)?);
        match extent.n {
            0 => y.fill(T::from_number(R::NEG_INFINITY)),
            _ => reduce([x], extent, &SumExponentials, y, |to, [largest, sum]: Exponentials<R>| {
                *to = T::from_number(sum.ln() + largest);
            }),
        }
        Ok(())
    })
}
