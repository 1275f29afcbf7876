//! Products with a long reduced dimension and a small result: weight gradients.

use pulp::{Simd, WithSimd};

use super::block::{Block, block_scratch_len};
use super::pack::{pack_panels, packed_len};
use super::{Accumulate, BLOCK_K, Matrix, MatrixMut, Terms, for_each_chunk};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::arch;

/// The maximum number of parts that the reduced dimension is split into.
const MAX_PARTS: usize = 32;
/// The minimum number of rows per part.
const PART_ROWS: usize = 512;
/// Elements of the result that are summed over the parts at a time.
const SUM_CHUNK: usize = 2048;

/// The number of terms of a sum, rounded up to pairs, so that sums of numbers and of pairs are split in the same way.
fn even_terms<T: Real, M: Terms<T>>(elements: usize) -> usize {
    (elements * M::COUNT).next_multiple_of(2)
}

/// Whether a product suits [`product`].
pub(super) fn is_tall<T: Real, M: Terms<T>>(_: M, a: Matrix<'_, T>, b: Matrix<'_, T>) -> bool {
    let (m, n, k) = (a.rows, b.cols, even_terms::<T, M>(a.cols));
    k >= 2 * PART_ROWS && k >= 4 * m.max(n) && m * n <= 1 << 17
}

/// `c (+)= a b` and, if requested, `row_sums (+)=` the sums of the rows of `a`.
pub(super) fn product<T: Real, M: Terms<T>>(
    terms: M,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: MatrixMut<'_, T>,
    row_sums: Option<&mut [T]>,
    accumulate: Accumulate,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!((m, k, n), (c.rows, b.rows, c.cols), "shapes of a product");
    let arch = arch();
    let terms_of_sum = even_terms::<T, M>(k);
    let parts = (terms_of_sum / PART_ROWS).clamp(1, MAX_PARTS);
    let part_rows = terms_of_sum.div_ceil(parts).next_multiple_of(2) / M::COUNT;
    // A packed block of about 128 KiB stays in the L2 cache.
    let depth = ((1 << 17) / size_of::<T>() / n.max(1)).clamp(128, BLOCK_K) / 2 * 2 / M::COUNT;
    let sums_len = if row_sums.is_some() { m } else { 0 };
    let part_len = m * n + sums_len;
    if part_len == 0 {
        return;
    }
    with_scratch(parts * part_len, |partial: &mut [T]| {
        for_each_chunk(partial, part_len, true, |part, partial| {
            let (first, end) = (part * part_rows, ((part + 1) * part_rows).min(k));
            let (c, sums) = partial.split_at_mut(m * n);
            sums.fill(T::default());
            if first >= end {
                c.fill(T::default());
            }
            with_scratch(packed_len::<T>(depth, n), |panels: &mut [T]| {
                with_scratch(block_scratch_len::<T>(depth), |scratch| {
                    for p0 in (first..end).step_by(depth) {
                        let k = depth.min(end - p0);
                        pack_panels(arch, b, None, (p0, k), (0, n), panels, false);
                        let (c, c_row_stride, add) = (&mut *c, n, p0 > first);
                        let (i0, rows, end) = (0, a.t(), p0 + k);
                        let block =
                            Block { terms, a, i0, p0, m, n, k, panels, c, c_row_stride, add, scratch };
                        terms.dispatch(arch, block);
                        arch.dispatch(AddColumns { terms, rows, first: p0, end, sums });
                    }
                });
            });
        });
        let partial = &*partial;
        let sum = |len: usize, offset: usize, c: &mut [T]| {
            arch.dispatch(SumParts { partial, part_len, offset, c: &mut c[..len], accumulate });
        };
        if c.row_stride == n {
            for_each_chunk(&mut c.data[..m * n], SUM_CHUNK, m * n > SUM_CHUNK, |index, c| {
                sum(c.len(), index * SUM_CHUNK, c);
            });
        } else {
            c.data.chunks_mut(c.row_stride).take(m).enumerate().for_each(|(i, c)| sum(n, i * n, c));
        }
        if let Some(row_sums) = row_sums {
            sum(m, m * n, row_sums);
        }
    });
}

/// `sums (+)=` the sums of the columns of `a`.
pub(super) fn column_sums<T: Real, M: Terms<T>>(
    terms: M,
    a: Matrix<'_, T>,
    sums: &mut [T],
    accumulate: Accumulate,
) {
    if accumulate == Accumulate::Replace {
        sums.fill(T::default());
    }
    arch().dispatch(AddColumns { terms, rows: a, first: 0, end: a.rows, sums: &mut sums[..a.cols] });
}

/// Adds rows `first..end` to `sums`.
struct AddColumns<'a, T, M> {
    terms: M,
    rows: Matrix<'a, T>,
    first: usize,
    end: usize,
    sums: &'a mut [T],
}

impl<T: Real, M: Terms<T>> WithSimd for AddColumns<'_, T, M> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Self { terms, rows, first, end, sums } = self;
        if sums.is_empty() {
            return;
        }
        for row in first..end {
            let row = &rows.data[row * rows.row_stride..];
            if rows.col_stride == 1 {
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum = terms.add(*sum, *x);
                }
            } else {
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = terms.add(*sum, row[j * rows.col_stride]);
                }
            }
        }
    }
}

/// `c (+)=` the sum over the parts, in order, of the elements at `offset` in each.
struct SumParts<'a, T> {
    partial: &'a [T],
    part_len: usize,
    offset: usize,
    c: &'a mut [T],
    accumulate: Accumulate,
}

impl<T: Real> WithSimd for SumParts<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let mut parts = self.partial.chunks_exact(self.part_len).map(|part| &part[self.offset..]);
        if self.accumulate == Accumulate::Replace
            && let Some(part) = parts.next()
        {
            self.c.copy_from_slice(&part[..self.c.len()]);
        }
        for part in parts {
            for (c, x) in self.c.iter_mut().zip(part) {
                *c += *x;
            }
        }
    }
}
