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
        simd(
            #[inline(always)]
            || {
                for (i, c) in c.iter_mut().step_by(row_stride).enumerate() {
                    let row = &a.data[(task * rows + i) * a.row_stride..][..k];
                    let dot = rows::sum([row, x], |[a, x]| a * x);
                    *c = if accumulate == Accumulate::Add { *c + dot } else { dot };
                }
            },
        );
    });
}
