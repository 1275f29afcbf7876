//! Panels of a head's rows, and the products with them.
//!
//! A panel is a register for each index that a product sums over, after one register of zeros that the
//! sums start from, as [`tile`] wants it.

use pulp::{NullaryFnOnce, Simd};

use super::super::gemm::{Matrix, tile};
use super::super::numeric::Real;
use super::super::simd::Vectors;

/// Writes each row of `x` to registers: panel `c` has the columns from `c * lanes`, zeros after the last.
#[inline(always)]
pub(super) fn pack<S: Simd, T: Real>(simd: S, x: Matrix<'_, T>, panels: &mut [T::Vector<S>]) {
    let lanes = T::lanes::<S>();
    let panels = panels.chunks_exact_mut(x.rows + 1).take(x.cols.div_ceil(lanes));
    for (c, panel) in panels.enumerate() {
        let first = c * lanes;
        let columns = lanes.min(x.cols - first);
        panel[0] = T::splat(simd, T::ZERO);
        for (i, to) in panel[1..].iter_mut().enumerate() {
            let row = &x.data[i * x.row_stride + first..][..columns];
            *to = match T::as_vectors::<S>(row).0 {
                [whole] => *whole,
                _ => T::load_partial(simd, row),
            };
        }
    }
}

/// Writes `scale` times each column of `x`, which has no more rows than a register has lanes, to a
/// register. Lanes without a row repeat the last one.
#[inline(always)]
pub(super) fn pack_transposed<S: Simd, T: Real>(
    simd: S,
    x: Matrix<'_, T>,
    scale: T,
    panel: &mut [T::Vector<S>],
) {
    let lanes = T::lanes::<S>();
    panel[0] = T::splat(simd, T::ZERO);
    let to = bytemuck::cast_slice_mut::<_, T>(&mut panel[1..]);
    let row = |i: usize| &x.data[i.min(x.rows - 1) * x.row_stride..][..x.cols];
    if lanes % 4 != 0 {
        for i in 0..lanes {
            for (to, x) in to.chunks_exact_mut(lanes).zip(row(i)) {
                to[i] = *x * scale;
            }
        }
        return;
    }
    // Squares of 4 x 4, which the compiler keeps in registers.
    for i in (0..x.rows).step_by(4) {
        let rows = [row(i), row(i + 1), row(i + 2), row(i + 3)];
        let (squares, rest) =
            (rows.map(|row| row.as_chunks::<4>().0), rows.map(|row| row.as_chunks::<4>().1));
        let (to, to_rest) = to.split_at_mut(squares[0].len() * 4 * lanes);
        for (s, to) in to.chunks_exact_mut(4 * lanes).enumerate() {
            let square = squares.map(|row| row[s]);
            for c in 0..4 {
                to[c * lanes + i..][..4].copy_from_slice(&square.map(|row| row[c] * scale));
            }
        }
        for (c, to) in to_rest.chunks_exact_mut(lanes).enumerate() {
            to[i..][..4].copy_from_slice(&rest.map(|row| row[c] * scale));
        }
    }
}

/// Where a product goes.
pub(super) struct Destination<'a, T> {
    /// From the first element on.
    pub data: &'a mut [T],
    /// Distance from a row to the next.
    pub row_stride: usize,
    /// Elements of a row; no more than a register has lanes.
    pub columns: usize,
    /// Whether the product is added to what is there.
    pub add: bool,
}

/// `to (+)= a panel`, each row then multiplied by its element of `factors`, if there are any.
///
/// Either the rows or the columns of `a` are contiguous.
#[inline(always)]
pub(super) fn product<S: Simd, T: Real>(
    simd: S,
    a: Matrix<'_, T>,
    panel: &[T::Vector<S>],
    factors: Option<&[T]>,
    to: Destination<'_, T>,
) {
    // A function of its own: kernels that had all their products inline would outgrow the instruction cache.
    simd.vectorize(Product { simd, a, panel: bytemuck::cast_slice(panel), factors, to });
}

struct Product<'a, T: Vectors, S: Simd> {
    simd: S,
    a: Matrix<'a, T>,
    panel: &'a [[T::Vector<S>; 1]],
    factors: Option<&'a [T]>,
    to: Destination<'a, T>,
}

impl<T: Real, S: Simd> NullaryFnOnce for Product<'_, T, S> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let mut i = 0;
        while i < self.a.rows {
            // Eight sums at a time hide the latency of an addition.
            i += match self.a.rows - i {
                8.. => self.tile::<8>(i),
                4.. => self.tile::<4>(i),
                2.. => self.tile::<2>(i),
                _ => self.tile::<1>(i),
            }
        }
    }
}

impl<T: Real, S: Simd> Product<'_, T, S> {
    /// Computes `MR` rows from row `i` on, and returns that number.
    #[inline(always)]
    fn tile<const MR: usize>(&mut self, i: usize) -> usize {
        let Self { simd, a: Matrix { data, cols, row_stride, col_stride, .. }, panel, factors, ref mut to } =
            *self;
        let mut tile = if col_stride == 1 {
            let mut a = [&data[..0]; MR];
            for (r, a) in a.iter_mut().enumerate() {
                *a = &data[(i + r) * row_stride..][..cols];
            }
            tile::rows_times_panel::<S, T, MR, 1>(simd, a, panel)
        } else {
            tile::columns_times_panel::<S, T, MR, 1>(simd, &data[i * row_stride..], col_stride, panel)
        };
        if let Some(factors) = factors {
            for (row, factor) in tile.iter_mut().zip(&factors[i..][..MR]) {
                row[0] = T::mul_vectors(simd, row[0], T::splat(simd, *factor));
            }
        }
        let c = &mut to.data[i * to.row_stride..];
        if to.columns == T::lanes::<S>() {
            tile::store::<S, T, MR, 1>(simd, &tile, c, to.row_stride, to.add);
        } else {
            for (row, c) in tile.iter().zip(c.chunks_mut(to.row_stride)) {
                tile::store_row::<S, T>(simd, row, &mut c[..to.columns], to.add);
            }
        }
        MR
    }
}

/// Queries whose scores a register holds for each key.
#[derive(Clone, Copy)]
pub(super) struct Group {
    /// The first query.
    pub first: usize,
    /// How many there are.
    pub rows: usize,
    /// Whether query `i` sees only the keys `0..=i`.
    pub causal: bool,
}

impl Group {
    /// How many keys there are that any of these queries sees.
    #[inline(always)]
    pub fn visible(self, keys: usize) -> usize {
        if self.causal { keys.min(self.first + self.rows) } else { keys }
    }

    /// Writes the scores of the visible keys, from element `at` of each row of `width` elements on;
    /// negative infinity where a query doesn't see the key.
    #[inline(always)]
    pub fn scores<S: Simd, T: Real>(
        self,
        simd: S,
        k: Matrix<'_, T>,
        q_panel: &[T::Vector<S>],
        (scores, at, width): (&mut [T], usize, usize),
    ) {
        let visible = self.visible(k.rows);
        let k = Matrix { rows: visible, ..k };
        let columns = T::lanes::<S>();
        product(
            simd,
            k,
            q_panel,
            None,
            Destination { data: &mut scores[at..], row_stride: width, columns, add: false },
        );
        if self.causal {
            for j in self.first + 1..visible {
                scores[j * width + at..][..j - self.first].fill(T::NEG_INFINITY);
            }
        }
    }
}
