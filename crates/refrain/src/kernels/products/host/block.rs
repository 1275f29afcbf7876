//! A block of rows of the result, which one thread computes.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::pack::{Panels, pack_columns, panel_vectors};
use super::{Matrix, MulAdd, tile};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::rectangle::RectangleMut;

/// The maximum height of a tile, in rows.
const MAX_TILE_ROWS: usize = 16;
/// The height of the tiles of a full panel.
const TILE: usize = 6;
/// The height of the last one, if no more rows are left.
const LOW_TILE: usize = 4;

/// Rows of `a` that are copied at a time if its columns are contiguous. Every tile height divides it.
const STRIP: usize = 96;

/// The number of scratch elements that a [`Block`] needs.
pub(crate) fn block_scratch_len<T>(k: usize) -> usize {
    // A copy of a strip of `a`, and either packed rows of it or a tile. No register is wider than 64 bytes.
    STRIP * k + MAX_TILE_ROWS * k.max(4 * 64 / size_of::<T>())
}

/// The rows of the tiles that a block of so many rows has in a full panel: it takes the time of these.
pub(crate) fn rows_of_tiles(rows: usize) -> usize {
    match rows % TILE {
        0 => rows,
        last if last <= LOW_TILE => rows - last + LOW_TILE,
        last => rows - last + TILE,
    }
}

/// `c (+)= a[i0.., p0..p0 + k] * panels`, with a packed block of as many columns as `c` has.
pub(crate) struct Block<'a, T> {
    pub a: Matrix<'a, T>,
    pub i0: usize,
    pub p0: usize,
    pub k: usize,
    pub panels: Panels<'a, T>,
    pub c: RectangleMut<'a, T>,
    pub add: bool,
    /// [`block_scratch_len`] elements of scratch memory.
    pub scratch: &'a mut [T],
}

/// Computes a block by tiles of registers.
pub(super) struct InRegisters<'a, T, M> {
    pub terms: M,
    pub block: Block<'a, T>,
}

impl<T: Real, M: MulAdd<T>> WithSimd for InRegisters<'_, T, M> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.block.compute(simd, self.terms);
    }
}

impl<T: Real> Block<'_, T> {
    #[inline(always)]
    fn compute<S: Simd, M: MulAdd<T>>(mut self, simd: S, terms: M) {
        // The numbers of a tile's row are far apart, often in the same few sets of the cache. A copy has them together.
        let Matrix { data, row_stride, col_stride, .. } = self.a;
        let copies = row_stride == 1 && col_stride > STRIP;
        let [rows, columns] = self.c.size();
        let height = if copies { STRIP } else { rows.max(1) };
        let (copy, scratch) = self.scratch.split_at_mut(STRIP * self.k);
        for i in (0..rows).step_by(height) {
            let m = height.min(rows - i);
            let (mut a, mut i0, mut p0) = (self.a, self.i0 + i, self.p0);
            if copies {
                for (p, to) in copy.chunks_exact_mut(STRIP).enumerate() {
                    to[..m].copy_from_slice(&data[i0 + (p0 + p) * col_stride..][..m]);
                }
                a = Matrix { data: &*copy, rows: m, cols: self.k, row_stride: 1, col_stride: STRIP };
                (i0, p0) = (0, 0);
            }
            let c = self.c.part(i..i + m, 0..columns);
            Block { a, i0, p0, c, scratch: &mut *scratch, ..self }.panels(simd, terms);
        }
    }

    /// Computes the block, panel by panel.
    #[inline(always)]
    fn panels<S: Simd, M: MulAdd<T>>(mut self, simd: S, terms: M) {
        let lanes = T::lanes::<S>();
        let n = self.c.size()[1];
        let mut j = 0;
        while j < n {
            let columns = (n - j).min(panel_vectors::<S>() * lanes);
            let vectors = columns.div_ceil(lanes);
            let panel = self.panels.panel(j, vectors * lanes, self.k + 1);
            // Tiles that fill the registers, except those for a row of the panel.
            match (vectors, S::REGISTER_COUNT >= 32) {
                (4, _) => self.panel::<S, M, TILE, 4>(simd, terms, panel, j, columns),
                (3, _) => self.panel::<S, M, 8, 3>(simd, terms, panel, j, columns),
                (2, true) => self.panel::<S, M, 12, 2>(simd, terms, panel, j, columns),
                (2, false) => self.panel::<S, M, TILE, 2>(simd, terms, panel, j, columns),
                (_, true) => self.panel::<S, M, 16, 1>(simd, terms, panel, j, columns),
                (_, false) => self.panel::<S, M, 12, 1>(simd, terms, panel, j, columns),
            }
            j += columns;
        }
    }

    /// Computes the columns of one panel, tile by tile.
    #[inline(always)]
    fn panel<S: Simd, M: MulAdd<T>, const MR: usize, const NV: usize>(
        &mut self,
        simd: S,
        terms: M,
        panel: &[T],
        j: usize,
        columns: usize,
    ) {
        let panel: &[[T::Vector<S>; NV]] = bytemuck::cast_slice(T::as_vectors::<S>(panel).0);
        // Of the tiles of a full panel, the last one may be lower.
        let all = self.c.size()[0];
        let last = all % MR;
        let m = if MR == TILE && (1..=LOW_TILE).contains(&last) { all - last } else { all };
        self.tiles::<S, M, MR, NV>(simd, terms, panel, j, columns, 0..m);
        if MR == TILE && m < all {
            self.tiles::<S, M, LOW_TILE, NV>(simd, terms, panel, j, columns, m..all);
        }
    }

    /// Computes some rows of a panel.
    #[inline(always)]
    fn tiles<S: Simd, M: MulAdd<T>, const MR: usize, const NV: usize>(
        &mut self,
        simd: S,
        terms: M,
        panel: &[[T::Vector<S>; NV]],
        j: usize,
        columns: usize,
        of: Range<usize>,
    ) {
        let (width, m) = (NV * T::lanes::<S>(), self.c.size()[0]);
        let Matrix { data, row_stride, col_stride, .. } = self.a;
        for i in of.clone().step_by(MR) {
            // The last tile may be short. If there are enough rows above, it starts higher and its first `skip` rows
            // are dropped; otherwise its last rows are dropped.
            let rows = MR.min(of.end - i);
            let skip = if rows < MR && of.end >= MR { MR - rows } else { 0 };
            let at = |row: usize| (self.i0 + row) * row_stride + self.p0 * col_stride;
            let tile = if col_stride == 1 {
                let mut a = [&data[..0]; MR];
                for (r, a) in a.iter_mut().enumerate() {
                    *a = &data[at((i - skip + r).min(m - 1))..][..self.k];
                }
                tile::rows_times_panel(simd, terms, a, panel)
            } else if row_stride == 1 && rows + skip == MR && col_stride >= MR {
                tile::columns_times_panel(simd, terms, &data[at(i - skip)..], col_stride, panel)
            } else {
                let packed = &mut self.scratch[..self.k * MR];
                pack_columns(self.a, self.i0 + i - skip, self.p0, rows + skip, MR, packed);
                tile::columns_times_panel(simd, terms, packed, MR, panel)
            };
            let mut c = self.c.part(i..i + rows, j..j + columns);
            if rows == MR && columns == width {
                tile::store::<S, T, MR, NV>(simd, &tile, &mut c, self.add);
                continue;
            }
            let edge = &mut self.scratch[..MR * width];
            tile::store::<S, T, MR, NV>(simd, &tile, &mut RectangleMut::all(edge, width), false);
            let edge = edge.chunks_exact(width).skip(skip).take(rows);
            for (r, row) in edge.enumerate() {
                tile::store_row(simd, T::as_vectors::<S>(row).0, c.row(r), self.add);
            }
        }
    }
}
