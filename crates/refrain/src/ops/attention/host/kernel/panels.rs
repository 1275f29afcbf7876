//! Packed operands of matrix products, and the products with them.

use pulp::{NullaryFnOnce, Simd};

use crate::device::cpu::numeric::Real;
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::simd::Vectors;
use crate::kernels::products::host::{Matrix, Single, tile};

/// Registers per row of a panel. The last panel may be narrower.
const PANEL: usize = 2;

/// How many registers a packed matrix takes.
pub(super) fn packed_vectors(rows: usize, cols: usize, lanes: usize) -> usize {
    (rows + 1) * cols.div_ceil(lanes)
}

/// A matrix in registers, packed panel by panel. A panel holds some columns of the matrix. Above its rows is a row of
/// zeros, at which sums start, as [`tile`] expects.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a, V> {
    vectors: &'a [V],
    rows: usize,
}

/// Calls `f` with each panel, the column of its first register, and the registers per row.
#[inline(always)]
fn for_each_panel<V>(panels: &mut [V], depth: usize, mut f: impl FnMut(&mut [V], usize, usize)) {
    let count = panels.len() / depth;
    for (i, panel) in panels.chunks_mut(PANEL * depth).enumerate() {
        f(panel, i * PANEL, PANEL.min(count - i * PANEL));
    }
}

/// Packs `x`. Columns after the last are zero.
#[inline(always)]
pub(super) fn pack<'a, S: Simd, T: Real>(
    simd: S,
    x: Matrix<'_, T>,
    panels: &'a mut [T::Vector<S>],
) -> Panels<'a, T::Vector<S>> {
    let lanes = T::lanes::<S>();
    let vectors = &mut panels[..packed_vectors(x.rows, x.cols, lanes)];
    for_each_panel(
        vectors,
        x.rows + 1,
        #[inline(always)]
        |panel, first, width| {
            let (zeros, panel) = panel.split_at_mut(width);
            zeros.fill(T::splat(simd, T::ZERO));
            for (i, to) in panel.chunks_exact_mut(width).enumerate() {
                let row = &x.data[i * x.row_stride..][..x.cols][first * lanes..];
                let (whole, rest) = T::as_vectors::<S>(row);
                for (c, to) in to.iter_mut().enumerate() {
                    *to = if c < whole.len() { whole[c] } else { T::load_partial(simd, rest) };
                }
            }
        },
    );
    Panels { vectors, rows: x.rows }
}

/// Packs the transpose of `scale x`. Columns after the last repeat it.
#[inline(always)]
pub(super) fn pack_transposed<'a, S: Simd, T: Real>(
    simd: S,
    x: Matrix<'_, T>,
    scale: T,
    panels: &'a mut [T::Vector<S>],
) -> Panels<'a, T::Vector<S>> {
    let lanes = T::lanes::<S>();
    let vectors = &mut panels[..packed_vectors(x.cols, x.rows, lanes)];
    for_each_panel(
        vectors,
        x.cols + 1,
        #[inline(always)]
        |panel, first, width| {
            let (zeros, panel) = panel.split_at_mut(width);
            zeros.fill(T::splat(simd, T::ZERO));
            transpose(x, scale, first * lanes, bytemuck::cast_slice_mut(panel), width * lanes);
        },
    );
    Panels { vectors, rows: x.cols }
}

/// Writes `width` rows of `scale x`, from `first` on, as columns of `to`. Rows after the last repeat it.
#[inline(always)]
pub(super) fn transpose<T: Real>(x: Matrix<'_, T>, scale: T, first: usize, to: &mut [T], width: usize) {
    let row = |i: usize| &x.data[(first + i).min(x.rows - 1) * x.row_stride..][..x.cols];
    if !width.is_multiple_of(4) {
        for i in 0..width {
            for (to, x) in to.chunks_exact_mut(width).zip(row(i)) {
                to[i] = *x * scale;
            }
        }
        return;
    }
    // Blocks of 4 x 4, which the compiler keeps in registers.
    for i in (0..width).step_by(4) {
        // Loops, because `array::map` is a call where it is not inlined.
        let rows = [row(i), row(i + 1), row(i + 2), row(i + 3)];
        let whole = x.cols / 4 * 4;
        let (to, to_rest) = to.split_at_mut(whole * width);
        for (s, to) in to.chunks_exact_mut(4 * width).enumerate() {
            let mut square = [[T::ZERO; 4]; 4];
            for r in 0..4 {
                let row = &rows[r][4 * s..][..4];
                for c in 0..4 {
                    square[c][r] = row[c] * scale;
                }
            }
            for c in 0..4 {
                to[c * width + i..][..4].copy_from_slice(&square[c]);
            }
        }
        for (c, to) in to_rest.chunks_exact_mut(width).enumerate() {
            for r in 0..4 {
                to[i + r] = rows[r][whole + c] * scale;
            }
        }
    }
}

/// The destination of a product.
pub(super) struct Destination<'a, T> {
    /// The elements, from the first one on.
    pub data: &'a mut [T],
    /// Distance between rows.
    pub row_stride: usize,
    /// Elements per row.
    pub columns: usize,
    /// Whether the product is added to the destination instead of replacing it.
    pub add: bool,
}

/// Computes `to (+)= a b`, then multiplies each row by its element of `factors`, if given. `b` is the first rows of
/// `panels`, as many as `a` has columns.
///
/// Either the rows or the columns of `a` must be contiguous.
#[inline(always)]
pub(super) fn product<S: Simd, T: Real>(
    simd: S,
    a: Matrix<'_, T>,
    panels: Panels<'_, T::Vector<S>>,
    factors: Option<&[T]>,
    to: Destination<'_, T>,
) {
    // A separate function: with all products inlined, a kernel would exceed the instruction cache.
    simd.vectorize(Product { simd, a, panels, factors, to });
}

struct Product<'a, T: Vectors, S: Simd> {
    simd: S,
    a: Matrix<'a, T>,
    panels: Panels<'a, T::Vector<S>>,
    factors: Option<&'a [T]>,
    to: Destination<'a, T>,
}

impl<T: Real, S: Simd> NullaryFnOnce for Product<'_, T, S> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let Panels { vectors, rows } = self.panels;
        let width = PANEL * T::lanes::<S>();
        for (i, panel) in vectors.chunks(PANEL * (rows + 1)).enumerate() {
            if panel.len() == PANEL * (rows + 1) {
                self.panel::<PANEL>(panel, i * width);
            } else {
                self.panel::<1>(panel, i * width);
            }
        }
    }
}

impl<T: Real, S: Simd> Product<'_, T, S> {
    /// Computes the columns of a panel of `NV` registers, from column `j` on.
    #[inline(always)]
    fn panel<const NV: usize>(&mut self, panel: &[T::Vector<S>], j: usize) {
        let panel = &bytemuck::cast_slice(panel)[..=self.a.cols];
        // Eight sums at a time hide the latency of an addition. Registers must remain for the loads.
        let eight = NV == 1 || S::REGISTER_COUNT >= 32;
        let mut i = 0;
        while i < self.a.rows {
            i += match self.a.rows - i {
                8.. if eight => self.tile::<8, NV>(panel, i, j),
                4.. => self.tile::<4, NV>(panel, i, j),
                2.. => self.tile::<2, NV>(panel, i, j),
                _ => self.tile::<1, NV>(panel, i, j),
            }
        }
    }

    /// Computes `MR` rows from row `i` on. Returns that number.
    #[inline(always)]
    fn tile<const MR: usize, const NV: usize>(
        &mut self,
        panel: &[[T::Vector<S>; NV]],
        i: usize,
        j: usize,
    ) -> usize {
        let Self { simd, a: Matrix { data, cols, row_stride, col_stride, .. }, factors, ref mut to, .. } =
            *self;
        let mut tile = if col_stride == 1 {
            let mut a = [&data[..0]; MR];
            for (r, a) in a.iter_mut().enumerate() {
                *a = &data[(i + r) * row_stride..][..cols];
            }
            tile::rows_times_panel::<S, T, _, MR, NV>(simd, Single, a, panel)
        } else {
            tile::columns_times_panel::<S, T, _, MR, NV>(
                simd,
                Single,
                &data[i * row_stride..],
                col_stride,
                panel,
            )
        };
        if let Some(factors) = factors {
            let factors = &factors[i..][..MR];
            for r in 0..MR {
                let factor = T::splat(simd, factors[r]);
                for n in 0..NV {
                    tile[r][n] = T::mul_vectors(simd, tile[r][n], factor);
                }
            }
        }
        let columns = to.columns - j;
        let c = &mut to.data[i * to.row_stride + j..];
        let width = NV * T::lanes::<S>();
        if columns >= width {
            let mut c = RectangleMut::new(c, [MR, width], to.row_stride);
            tile::store::<S, T, MR, NV>(simd, &tile, &mut c, to.add);
            return MR;
        }
        // A loop over the tile itself would prevent it from staying in registers.
        let mut edge = [[T::splat(simd, T::ZERO); NV]; MR];
        for r in 0..MR {
            for n in 0..NV {
                edge[r][n] = tile[r][n];
            }
        }
        for (row, c) in edge.iter().zip(c.chunks_mut(to.row_stride)) {
            tile::store_row::<S, T>(simd, row, &mut c[..columns], to.add);
        }
        MR
    }
}
