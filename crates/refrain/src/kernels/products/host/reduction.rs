//! Products with a long reduced dimension and a small result: weight gradients.

use std::any::TypeId;

use pulp::{Simd, WithSimd};

use super::block::{Block, block_scratch_len};
use super::pack::{pack_panels, packed_len};
use super::{Accumulate, BLOCK_K, Matrix, MatrixMut, Terms, for_each_chunk};
use crate::device::cpu::numeric::{Real, Stored, convert};
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::arch;

/// The maximum number of parts that the reduced dimension is split into.
const MAX_PARTS: usize = 32;
/// The minimum number of rows per part.
const PART_ROWS: usize = 512;
/// Elements of the result that are summed over the parts at a time.
const SUM_CHUNK: usize = 2048;

/// The number of terms of a sum of elements with `count` numbers each, rounded up to pairs, so that sums of numbers and of pairs are
/// split in the same way.
fn even_terms(count: usize, elements: usize) -> usize {
    (elements * count).next_multiple_of(2)
}

/// Whether a product of (m, k) and (k, n) suits [`product`]. An element has `count` numbers.
pub(super) fn is_tall(count: usize, [m, n, k]: [usize; 3]) -> bool {
    let k = even_terms(count, k);
    k >= 2 * PART_ROWS && k >= 4 * m.max(n) && m * n <= 1 << 17
}

/// `c (+)= a b` and, if requested, `row_sums (+)=` the sums of the rows of `a`. Factors of another type than `c` are converted block
/// by block; the columns of `a` and the rows of `b` are then contiguous.
pub(super) fn product<A: Stored, T: Real, M: Terms<T>>(
    terms: M,
    a: Matrix<'_, A>,
    b: Matrix<'_, A>,
    c: MatrixMut<'_, T>,
    row_sums: Option<&mut [T]>,
    accumulate: Accumulate,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    assert_eq!((m, k, n), (c.rows, b.rows, c.cols), "shapes of a product");
    let arch = arch();
    let terms_of_sum = even_terms(M::COUNT, k);
    let parts = (terms_of_sum / PART_ROWS).clamp(1, MAX_PARTS);
    let part_rows = terms_of_sum.div_ceil(parts).next_multiple_of(2) / M::COUNT;
    // A packed block of about 128 KiB stays in the L2 cache.
    let depth = ((1 << 17) / size_of::<T>() / n.max(1)).clamp(128, BLOCK_K) / 2 * 2 / M::COUNT;
    let sums_len = if row_sums.is_some() { m } else { 0 };
    let part_len = m * n + sums_len;
    if part_len == 0 {
        return;
    }
    let converted_len = if TypeId::of::<A>() == TypeId::of::<T>() { 0 } else { depth * m.max(n) };
    with_scratch(parts * part_len, |partial: &mut [T]| {
        for_each_chunk(partial, part_len, true, |part, partial| {
            let (first, end) = (part * part_rows, ((part + 1) * part_rows).min(k));
            let (c, sums) = partial.split_at_mut(m * n);
            sums.fill(T::default());
            if first >= end {
                c.fill(T::default());
            }
            let mut panels = Scratch::<T>::new(packed_len::<T>(depth, n));
            let mut converted = Scratch::<T>::new(converted_len);
            with_scratch(block_scratch_len::<T>(depth), |scratch| {
                for p0 in (first..end).step_by(depth) {
                    let k = depth.min(end - p0);
                    let rows = some_rows(b, p0, k, &mut converted);
                    pack_panels(arch, rows, None, (0, k), (0, n), &mut panels, false);
                    let rows = some_rows(a.t(), p0, k, &mut converted);
                    let (c, c_row_stride, add) = (&mut *c, n, p0 > first);
                    let (a, i0, p0, panels) = (rows.t(), 0, 0, &*panels);
                    let block = Block { terms, a, i0, p0, m, n, k, panels, c, c_row_stride, add, scratch };
                    terms.dispatch(arch, block);
                    arch.dispatch(AddColumns { terms, rows, first: 0, end: k, sums });
                }
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

/// Rows `first..first + count` of `x`, converted into `buf` if they have another type.
fn some_rows<'a, A: Stored, T: Real>(
    x: Matrix<'a, A>,
    first: usize,
    count: usize,
    buf: &'a mut [T],
) -> Matrix<'a, T> {
    let x = x.rows_from(first, count);
    if let Some(same) = T::same(x.data) {
        return x.with_data(same);
    }
    assert_eq!(x.col_stride, 1, "rows of a factor that is converted");
    let buf = &mut buf[..count * x.cols];
    if x.row_stride == x.cols {
        convert(&x.data[..buf.len()], buf);
    } else {
        let rows = buf.chunks_exact_mut(x.cols).enumerate();
        rows.for_each(|(i, to)| convert(&x.data[i * x.row_stride..][..x.cols], to));
    }
    Matrix::row_major(buf, count, x.cols)
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
