//! A matrix times a vector.

use rayon::prelude::*;

use super::{Accumulate, Matrix, MatrixMut};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::kernels::rows::{self, each_task, rows_a_task};

/// `c (+)= a x`: a dot product for each row of `a`, whose elements lie one after the other. `x` has one row, `c` one
/// column.
pub(super) fn product<T: Real>(
    a: Matrix<'_, T>,
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
        let count = c.len().div_ceil(row_stride);
        simd(
            #[inline(always)]
            || {
                let mut put = |i: usize, dot: T| {
                    let c = &mut c[i * row_stride];
                    *c = if accumulate == Accumulate::Add { *c + dot } else { dot };
                };
                let row = |i: usize| &a.data[(task * rows + i) * a.row_stride..][..k];
                let mut i = 0;
                while i + 4 <= count {
                    let four = [[row(i), x], [row(i + 1), x], [row(i + 2), x], [row(i + 3), x]];
                    let dots = rows::sums(four, |[a, x]| a * x);
                    (0..4).for_each(|j| put(i + j, dots[j]));
                    i += 4;
                }
                (i..count).for_each(|i| put(i, rows::sum([row(i), x], |[a, x]| a * x)));
            },
        );
    });
}
