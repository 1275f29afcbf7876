//! Products with a long reduced dimension and a small result: weight gradients.

use pulp::{Simd, WithSimd};

use super::block::{Block, block_scratch_len};
use super::pack::{Packing, Panels, packed_len};
use super::{Accumulate, BLOCK_K, Matrix, MatrixMut, Single, Terms, for_each_chunk};
use crate::device::cpu::numeric::{Real, Stored};
use crate::device::cpu::parallel;
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::arch;

/// The maximum number of parts that the reduced dimension is split into.
const MAX_PARTS: usize = 32;
/// The minimum number of rows per part.
const PART_ROWS: usize = 512;
/// Columns that a thread sums at a time, and their rows that it converts at a time.
const COLUMNS: usize = 64;
const ROWS: usize = 64;
/// Elements of the result that are summed over the parts at a time.
const SUM_CHUNK: usize = 2048;

/// Sums are rounded up to, and split only between, so many numbers, the most in a row of a tile: so all elements are split in the same way.
const TOGETHER: usize = 32;

/// Whether a product of (m, k) and (k, n) suits [`product`].
pub(super) fn is_tall([m, n, k]: [usize; 3]) -> bool {
    let k = k.next_multiple_of(TOGETHER);
    k >= 2 * PART_ROWS && k >= 4 * m.max(n) && m * n <= 1 << 17
}

/// A factor of a tall product, whose columns are divided into elements.
pub(super) trait Factor<T>: Sync {
    /// `count` rows of elements, from row `first` on. `buf` has room for them.
    fn rows<'a>(&'a self, first: usize, count: usize, buf: &'a mut [T]) -> Matrix<'a, T>;
    /// Numbers in a row.
    fn columns(&self) -> usize;
}

/// Elements, as they are.
impl<T: Real> Factor<T> for Matrix<'_, T> {
    fn rows<'a>(&'a self, first: usize, count: usize, _: &'a mut [T]) -> Matrix<'a, T> {
        self.rows_from(first, count)
    }

    fn columns(&self) -> usize {
        self.cols
    }
}

/// Numbers that become elements block by block, while they are in cache.
pub(super) struct Numbers<'a, A, M> {
    pub terms: M,
    pub x: Matrix<'a, A>,
}

impl<A: Stored, T: Real, M: Terms<T>> Factor<T> for Numbers<'_, A, M> {
    fn rows<'a>(&'a self, first: usize, count: usize, buf: &'a mut [T]) -> Matrix<'a, T> {
        let first = first * M::COUNT;
        let count = (count * M::COUNT).min(self.x.rows - first);
        self.terms.elements_of_columns(self.x.rows_from(first, count), buf)
    }

    fn columns(&self) -> usize {
        self.x.cols
    }
}

/// `c (+)= a^T b` and, if requested, `column_sums (+)=` the sums of the columns of `a`. The sums have `k` elements.
pub(super) fn product<T: Real, M: Terms<T>>(
    terms: M,
    (a, b, k): (&dyn Factor<T>, &dyn Factor<T>, usize),
    c: MatrixMut<'_, T>,
    column_sums: Option<&mut [T]>,
    accumulate: Accumulate,
) {
    let (m, n) = (a.columns(), b.columns());
    assert_eq!((m, n), (c.rows, c.cols), "shapes of a product");
    let numbers = (k * M::COUNT).next_multiple_of(TOGETHER);
    let parts = (numbers / PART_ROWS).clamp(1, MAX_PARTS);
    let part_rows = numbers.div_ceil(parts).next_multiple_of(TOGETHER) / M::COUNT;
    // A packed block of about 128 KiB stays in the L2 cache.
    let depth = ((1 << 17) / size_of::<T>() / n.max(1)).clamp(128, BLOCK_K) / TOGETHER * TOGETHER / M::COUNT;
    let sums_len = if column_sums.is_some() { m } else { 0 };
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
            let mut panels = Scratch::<T>::new(packed_len::<T>(depth, n));
            let mut made = Scratch::<T>::new(depth * m.max(n));
            with_scratch(block_scratch_len::<T>(depth), |scratch| {
                for p0 in (first..end).step_by(depth) {
                    let count = depth.min(end - p0);
                    let rows = b.rows(p0, count, &mut made);
                    let k = rows.rows;
                    Packing::one_block(k, n).pack(rows, None, &mut panels, false);
                    let rows = a.rows(p0, count, &mut made);
                    let (c, add) = (RectangleMut::new(c, [m, n], n), p0 > first);
                    let (a, i0, p0, panels) = (rows.t(), 0, 0, Panels::of_one_block(&panels, k));
                    terms.compute(Block { a, i0, p0, k, panels, c, add, scratch });
                    arch().dispatch(AddColumns { terms, rows, first: 0, end: k, sums });
                }
            });
        });
        let partial = &*partial;
        let sum = |len: usize, offset: usize, c: &mut [T]| {
            arch().dispatch(SumParts { partial, part_len, offset, c: &mut c[..len], accumulate });
        };
        if c.row_stride == n {
            for_each_chunk(&mut c.data[..m * n], SUM_CHUNK, m * n > SUM_CHUNK, |index, c| {
                sum(c.len(), index * SUM_CHUNK, c);
            });
        } else {
            c.data.chunks_mut(c.row_stride).take(m).enumerate().for_each(|(i, c)| sum(n, i * n, c));
        }
        if let Some(column_sums) = column_sums {
            sum(m, m * n, column_sums);
        }
    });
}

/// `sums (+)=` the sums of the columns of `a`, each in the order of its rows. Rows of another type than the sums are contiguous.
pub(super) fn column_sums<A: Stored, T: Real>(a: Matrix<'_, A>, sums: &mut [T], accumulate: Accumulate) {
    let sums = &mut sums[..a.cols];
    if accumulate == Accumulate::Replace {
        sums.fill(T::default());
    }
    // One thread reads whole rows, which memory is prefetched for.
    let at_once = if parallel::allowed() { COLUMNS } else { a.cols.max(1) };
    parallel::pieces_that_read(sums, at_once, a.rows.max(1) * a.cols, |at, sums| {
        // Of no rows, there may be no data.
        let data = a.data.get(at * at_once * a.col_stride..).unwrap_or_default();
        let columns = Matrix { data, cols: sums.len(), ..a };
        if let Some(data) = T::same(data) {
            let rows = columns.with_data(data);
            return arch().dispatch(AddColumns { terms: Single, rows, first: 0, end: a.rows, sums });
        }
        with_scratch(ROWS * at_once, |converted| {
            for first in (0..a.rows).step_by(ROWS) {
                let some = columns.rows_from(first, ROWS.min(a.rows - first));
                let rows = Single.elements_of_columns(some, converted);
                arch().dispatch(AddColumns {
                    terms: Single,
                    rows,
                    first: 0,
                    end: rows.rows,
                    sums: &mut *sums,
                });
            }
        });
    });
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
