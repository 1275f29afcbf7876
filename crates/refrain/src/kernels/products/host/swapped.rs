//! A product of few rows with a matrix whose columns are contiguous, if they overlap or are many: as `c^T = b^T a^T`, so that `a` is
//! packed and the columns of `b` are read in place. Each element is summed in the same order, so the bits are the same.

use super::block::{Block, block_scratch_len};
use super::pack::Packing;
use super::{BLOCK_M, BLOCK_N, Matrix, MatrixMut, Terms, depth, for_each_chunk};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::scratch::with_scratch;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};

/// With fewer rows, most lanes of a register would have none of them.
const LEAST_ROWS: usize = 16;
/// Rows of the result that a thread writes at a time.
const ROWS: usize = 16;

/// Whether it takes less work to pack `a` and transpose the result than to pack `b`.
pub(super) fn suits<T>(a: Matrix<'_, T>, b: Matrix<'_, T>) -> bool {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    (LEAST_ROWS..=BLOCK_N).contains(&m) && b.row_stride == 1 && b.col_stride > 1 && 2 * m * (n + k) <= n * k
}

/// `c = a b`.
pub(super) fn product<T: Real, M: Terms<T>>(
    terms: M,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: MatrixMut<'_, T>,
    splits: bool,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    let depth = depth::<T, M>();
    let packing = Packing { p0: 0, k, depth, j0: 0, n: m };
    let row_stride = c.row_stride;
    let c = c.used();
    with_scratch(packing.len::<T>(), |panels: &mut [T]| {
        packing.pack(a.t(), None, panels, true);
        let panels = &*panels;
        for j0 in (0..n).step_by(BLOCK_N) {
            let columns = BLOCK_N.min(n - j0);
            with_scratch(columns * m, |turned: &mut [T]| {
                for_each_chunk(turned, BLOCK_M * m, splits, |index, turned| {
                    let (i0, rows) = (j0 + index * BLOCK_M, turned.len() / m);
                    with_scratch(block_scratch_len::<T>(depth), |scratch: &mut [T]| {
                        for (p0, k, panels) in packing.blocks(panels, 0) {
                            terms.compute(Block {
                                a: b.t(),
                                i0,
                                p0,
                                k,
                                panels,
                                c: RectangleMut::new(turned, [rows, m], m),
                                add: p0 > 0,
                                scratch: &mut *scratch,
                            });
                        }
                    });
                });
                for_each_chunk(c, ROWS * row_stride, splits, |index, c| {
                    let (i0, rows) = (index * ROWS, ROWS.min(m - index * ROWS));
                    let from = Lines { data: &turned[i0..], step: m };
                    transpose(from, LinesMut { data: &mut c[j0..], step: row_stride }, rows, columns);
                });
            });
        }
    });
}
