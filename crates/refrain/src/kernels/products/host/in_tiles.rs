//! Blocks of products of bf16 by tiles of AMX.

use pulp::{Simd, WithSimd};

use super::Matrix;
use super::block::Block;
use super::pack::panel_vectors;
use crate::device::cpu::bf16_pairs::{Amx, TILE, Tiles};
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::simd::Vectors;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};

/// Rows and columns that are computed at a time: two tiles each way, so that each tile of a factor is used twice.
const SIDE: usize = 2 * TILE;

/// Computes a block by tiles of AMX.
pub(super) struct InTiles<'a> {
    pub amx: Amx,
    pub block: Block<'a, f32>,
}

impl WithSimd for InTiles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let Block { a, i0, p0, k, panels, mut c, add, scratch } = self.block;
        let [m, n] = c.size();
        let widest = panel_vectors::<S>() * <f32 as Vectors>::lanes::<S>();
        assert_eq!((k % TILE, widest % SIDE), (0, 0), "elements of tiles, and a panel of them");
        let (turned, edge) = scratch.split_at_mut(SIDE * k);
        let tiles = self.amx.tiles();
        for i in (0..m).step_by(SIDE) {
            let rows = Rows::of(a, (i0, p0), (i, m), k, turned);
            for j in (0..n).step_by(widest) {
                let width = widest.min(n - j).next_multiple_of(TILE);
                let panel = panels.panel(j, width, k + 1);
                for at in (0..width).step_by(SIDE) {
                    let columns = SIDE.min(n - j - at);
                    let c = c.part(i..i + rows.rows, j + at..j + at + columns);
                    rows.multiply(&tiles, (&panel[at..], width), c, add, edge);
                }
            }
        }
    }
}

/// Some rows of the first factor, as one or two tiles.
struct Rows<'a> {
    data: &'a [f32],
    stride: usize,
    /// Tiles of a row.
    steps: usize,
    /// Rows of the result before which `skip` rows of the tiles have been computed already; rows behind them do not count.
    rows: usize,
    skip: usize,
}

impl<'a> Rows<'a> {
    /// Rows `i` and following of a block of `m` rows, which begins at row `i0` and element `p0`.
    #[inline(always)]
    fn of(
        a: Matrix<'a, f32>,
        (i0, p0): (usize, usize),
        (i, m): (usize, usize),
        k: usize,
        turned: &'a mut [f32],
    ) -> Rows<'a> {
        let (rows, steps) = (SIDE.min(m - i), k / TILE);
        let all = rows.next_multiple_of(TILE);
        if a.col_stride == 1 && m >= all {
            // If there are rows above, the tiles start there.
            let skip = all - rows;
            let data = &a.data[(i0 + i - skip) * a.row_stride + p0..];
            return Rows { data, stride: a.row_stride, steps, rows, skip };
        }
        let data = &a.data[(i0 + i) * a.row_stride + p0 * a.col_stride..];
        if a.row_stride == 1 {
            let to = LinesMut { data: &mut *turned, step: k };
            transpose(Lines { data, step: a.col_stride }, to, rows, k);
        } else {
            for (row, to) in turned.chunks_exact_mut(k.max(1)).take(rows).enumerate() {
                for (p, to) in to.iter_mut().enumerate() {
                    *to = data[row * a.row_stride + p * a.col_stride];
                }
            }
        }
        turned[rows * k..all * k].fill(0.0);
        Rows { data: turned, stride: k, steps, rows, skip: 0 }
    }

    /// The product with some columns of a panel.
    #[inline(always)]
    fn multiply(
        &self,
        tiles: &Tiles,
        (panel, width): (&[f32], usize),
        mut c: RectangleMut<'_, f32>,
        add: bool,
        edge: &mut [f32],
    ) {
        let columns = c.size()[1];
        let (tall, wide) = (self.skip + self.rows > TILE, columns > TILE);
        let (b, a) = ((panel, width), (self.data, self.stride));
        let run = |c: RectangleMut<'_, f32>| match (tall, wide) {
            (false, false) => tiles.multiply::<1, 1>(a, b, self.steps, c),
            (false, true) => tiles.multiply::<1, 2>(a, b, self.steps, c),
            (true, false) => tiles.multiply::<2, 1>(a, b, self.steps, c),
            (true, true) => tiles.multiply::<2, 2>(a, b, self.steps, c),
        };
        if self.rows.is_multiple_of(TILE) && columns.is_multiple_of(TILE) && !add {
            return run(c);
        }
        run(RectangleMut::new(edge, [SIDE; 2], SIDE));
        let edge = edge.chunks_exact(SIDE).skip(self.skip).take(self.rows);
        for (r, row) in edge.enumerate() {
            let sums = c.row(r).iter_mut().zip(row);
            if add {
                sums.for_each(|(c, &x)| *c += x);
            } else {
                sums.for_each(|(c, &x)| *c = x);
            }
        }
    }
}
