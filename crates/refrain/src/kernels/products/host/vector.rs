//! A matrix times a vector.

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::{Accumulate, Matrix, MatrixMut};
use crate::device::cpu::numeric::{Real, Stored};
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::arch;
use crate::kernels::rows::{LANES, each_task, load, rows_a_task};
use crate::kernels::sums::{RUN, in_halves, registers};

/// `c (+)= a x`: a dot product for each row of `a`, whose elements lie one after the other. `x` has one row, `c` one
/// column. Rows of other numbers are converted four at a time, so that the copies stay in the L1 cache.
pub(crate) fn vector_product<S: Stored, T: Real>(
    a: Matrix<'_, S>,
    x: Matrix<'_, T>,
    c: MatrixMut<'_, T>,
    accumulate: Accumulate,
) {
    let (k, row_stride) = (x.cols, c.row_stride);
    let copy;
    let x = if x.col_stride == 1 {
        &x.data[..k]
    } else {
        copy = Scratch::collect(k, (0..k).map(|i| x.data[i * x.col_stride]));
        &*copy
    };
    let rows = rows_a_task(k);
    let tasks = c.used().par_chunks_mut(rows * row_stride).enumerate();
    each_task(a.rows * k, tasks, |(task, c)| {
        let row = |i: usize| &a.data[(task * rows + i) * a.row_stride..][..k];
        arch().dispatch(Dots { row, x, c, row_stride, accumulate });
    });
}

/// Dot products of rows and `x`. [`RUN`] products at a time are added in lanes, then the lanes of the runs, and the lanes in
/// halves.
struct Dots<'a, T, F> {
    row: F,
    x: &'a [T],
    c: &'a mut [T],
    row_stride: usize,
    accumulate: Accumulate,
}

impl<'a, E: Stored, T: Real, F: Fn(usize) -> &'a [E]> WithSimd for Dots<'a, T, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Dots { row, x, c, row_stride, accumulate } = self;
        let count = c.len().div_ceil(row_stride);
        let k = x.len();
        let mut copies = Scratch::<T>::new(if T::same::<E>(&[]).is_some() { 0 } else { 4 * k });
        for first in (0..count).step_by(4) {
            // Four at a time, because an addition waits for the one before it in its lane.
            let mut rest = &mut *copies;
            let mut rows = [&[][..]; 4];
            for (i, to) in rows.iter_mut().enumerate() {
                let (copy, after) = rest.split_at_mut(k.min(rest.len()));
                (*to, rest) = (load(row((first + i).min(count - 1)), copy), after);
            }
            let dots = four(simd, rows, x);
            for (i, dot) in (first..count).zip(dots) {
                let c = &mut c[i * row_stride];
                *c = if accumulate == Accumulate::Add { *c + dot } else { dot };
            }
        }
    }
}

#[inline(always)]
fn four<S: Simd, T: Real>(simd: S, rows: [&[T]; 4], x: &[T]) -> [T; 4] {
    // Registers that hold all lanes.
    let count = LANES / T::lanes::<S>();
    let whole = x.len() / LANES * LANES;
    let mut totals = [[T::ZERO; LANES]; 4];
    for start in (0..whole).step_by(RUN) {
        let run = start..whole.min(start + RUN);
        let vx = registers::<S, T>(&x[run.clone()]);
        let (a, b) = (registers::<S, T>(&rows[0][run.clone()]), registers::<S, T>(&rows[1][run.clone()]));
        let (c, d) = (registers::<S, T>(&rows[2][run.clone()]), registers::<S, T>(&rows[3][run]));
        let mut sums = [[T::splat(simd, T::ZERO); LANES]; 4];
        for ((((x, a), b), c), d) in vx.zip(a).zip(b).zip(c).zip(d) {
            for k in 0..count {
                sums[0][k] = T::mul_add(simd, a[k], x[k], sums[0][k]);
                sums[1][k] = T::mul_add(simd, b[k], x[k], sums[1][k]);
                sums[2][k] = T::mul_add(simd, c[k], x[k], sums[2][k]);
                sums[3][k] = T::mul_add(simd, d[k], x[k], sums[3][k]);
            }
        }
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            let lanes: &[T] = bytemuck::cast_slice(&sums[..count]);
            totals.iter_mut().zip(lanes).for_each(|(total, &lane)| *total += lane);
        }
    }
    for (totals, row) in totals.iter_mut().zip(rows) {
        let rest = row[whole..].iter().zip(&x[whole..]);
        totals.iter_mut().zip(rest).for_each(|(total, (&a, &x))| *total += a * x);
    }
    in_halves(totals)
}
