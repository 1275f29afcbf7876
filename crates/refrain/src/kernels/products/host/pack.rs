//! Packs blocks of a matrix into the order in which the innermost loops read them.

use pulp::{Arch, Simd, WithSimd};

use super::{Matrix, for_each_chunk};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::parallel;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};

/// From this many elements on, several threads pack.
const PARALLEL: usize = 1 << 14;

/// The width of a full panel in registers: four if there are 32 registers, otherwise two.
#[inline(always)]
pub(crate) fn panel_vectors<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 4 } else { 2 }
}

/// The lanes of a register and the columns of a full panel on this machine.
pub(crate) fn panel_width<T: Real>(arch: Arch) -> (usize, usize) {
    arch.dispatch(PanelWidth::<T>(std::marker::PhantomData))
}

struct PanelWidth<T>(std::marker::PhantomData<T>);

impl<T: Real> WithSimd for PanelWidth<T> {
    type Output = (usize, usize);

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) -> (usize, usize) {
        (T::lanes::<S>(), T::lanes::<S>() * panel_vectors::<S>())
    }
}

/// The number of elements of a packed block of `k` rows and `n` columns, on any machine.
pub(crate) fn packed_len<T>(k: usize, n: usize) -> usize {
    // No register is wider than 64 bytes.
    (k + 1) * n.next_multiple_of(64 / size_of::<T>())
}

/// Packs the block `b[p0..p0 + k, j0..j0 + n]`. Before it comes a row with the starting values of the sums:
/// `start[j0..j0 + n]`, or zeros.
///
/// The block becomes panels with the width of [`panel_vectors`] registers; the last one is as narrow as possible. A
/// panel is stored row by row; columns past the end are zeros. Only with `splits` may several threads pack.
pub(crate) fn pack_panels<T: Real>(
    arch: Arch,
    b: Matrix<'_, T>,
    start: Option<&[T]>,
    (p0, k): (usize, usize),
    (j0, n): (usize, usize),
    packed: &mut [T],
    splits: bool,
) {
    let (lanes, widest) = panel_width::<T>(arch);
    let packed = &mut packed[..(k + 1) * n.next_multiple_of(lanes)];
    let splits = splits && k * n >= PARALLEL && parallel::allowed();
    // One thread reads whole rows, which memory is prefetched for.
    let by_rows = !splits && b.col_stride == 1 && k * n > 0;
    if by_rows {
        let b = Matrix { data: &b.data[p0 * b.row_stride + j0..], rows: k, cols: n, ..b };
        arch.dispatch(PackByRows { b, packed: &mut *packed });
    }
    for_each_chunk(packed, (k + 1) * widest, splits, |panel_index, panel| {
        let j = panel_index * widest;
        let columns = widest.min(n - j);
        let width = columns.next_multiple_of(lanes);
        let (first, panel) = panel.split_at_mut(width);
        first.fill(T::default());
        if let Some(start) = start {
            first[..columns].copy_from_slice(&start[j0 + j..][..columns]);
        }
        if by_rows {
            return;
        }
        for_each_chunk(panel, 64 * width, splits, |rows_index, rows| {
            let p = p0 + rows_index * 64;
            let source = &b.data[p * b.row_stride + (j0 + j) * b.col_stride..];
            arch.dispatch(PackRows { b: Matrix { data: source, ..b }, columns, width, rows });
        });
    });
}

/// Packs `b`, whose rows are contiguous, into panels, without their first rows.
struct PackByRows<'a, T> {
    b: Matrix<'a, T>,
    packed: &'a mut [T],
}

impl<T: Real> WithSimd for PackByRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match panel_vectors::<S>() {
            2 => self.panels::<S, 2>(simd),
            _ => self.panels::<S, 4>(simd),
        }
    }
}

impl<T: Real> PackByRows<'_, T> {
    /// Packs into panels as wide as `NV` registers. The last one may be narrower.
    #[inline(always)]
    fn panels<S: Simd, const NV: usize>(self, simd: S) {
        let Self { b, packed } = self;
        let (rows, lanes) = (b.rows, T::lanes::<S>());
        let whole = b.cols / (NV * lanes);
        let (panels, last) = packed.split_at_mut(whole * (rows + 1) * NV * lanes);
        let panels: &mut [[T::Vector<S>; NV]] = bytemuck::cast_slice_mut(T::as_vectors_mut::<S>(panels).0);
        let last_width = (b.cols - whole * NV * lanes).next_multiple_of(lanes);
        for p in 0..rows {
            let (row, rest) = b.data[p * b.row_stride..][..b.cols].split_at(whole * NV * lanes);
            let row: &[[T::Vector<S>; NV]] = bytemuck::cast_slice(T::as_vectors::<S>(row).0);
            for (to, x) in panels.iter_mut().skip(p + 1).step_by(rows + 1).zip(row) {
                *to = *x;
            }
            if !rest.is_empty() {
                copy_row(simd, rest, &mut last[(p + 1) * last_width..][..last_width]);
            }
        }
    }
}

/// Writes a row and zeros after it.
#[inline(always)]
fn copy_row<S: Simd, T: Real>(simd: S, row: &[T], to: &mut [T]) {
    let (row, rest) = T::as_vectors::<S>(row);
    let to = T::as_vectors_mut::<S>(to).0;
    for (to, x) in to.iter_mut().zip(row) {
        *to = *x;
    }
    if !rest.is_empty() {
        to[row.len()] = T::load_partial(simd, rest);
    }
}

/// Packs the first `columns` columns of the first rows of `b` into `rows`, each with `width` elements.
struct PackRows<'a, T> {
    b: Matrix<'a, T>,
    columns: usize,
    width: usize,
    rows: &'a mut [T],
}

impl<T: Real> WithSimd for PackRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { b, columns, width, rows } = self;
        if b.col_stride == 1 {
            for (p, row) in rows.chunks_exact_mut(width).enumerate() {
                copy_row(simd, &b.data[p * b.row_stride..][..columns], row);
            }
            return;
        }
        if columns < width {
            rows.fill(T::default());
        }
        if b.row_stride == 1 {
            let height = rows.len() / width;
            let from = Lines { data: b.data, step: b.col_stride };
            transpose(from, LinesMut { data: rows, step: width }, height, columns);
            return;
        }
        for (p, row) in rows.chunks_exact_mut(width).enumerate() {
            for (c, x) in row[..columns].iter_mut().enumerate() {
                *x = b.data[p * b.row_stride + c * b.col_stride];
            }
        }
    }
}

/// Packs `a[i0..i0 + rows, p0..p0 + k]` column by column, each padded with zeros to `width`. `packed` has `k * width`
/// elements.
#[inline(always)]
pub(crate) fn pack_columns<T: Real>(
    a: Matrix<'_, T>,
    i0: usize,
    p0: usize,
    rows: usize,
    width: usize,
    packed: &mut [T],
) {
    for (p, column) in packed.chunks_exact_mut(width).enumerate() {
        let source = &a.data[i0 * a.row_stride + (p0 + p) * a.col_stride..];
        for (i, x) in column.iter_mut().enumerate() {
            *x = if i < rows { source[i * a.row_stride] } else { T::default() };
        }
    }
}
