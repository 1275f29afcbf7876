//! The innermost loops: a tile of the product that stays in registers.

use pulp::Simd;

use super::Terms;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::Vectors;

/// A tile of `MR` rows by `NV` registers.
pub(crate) type Tile<T, S, const MR: usize, const NV: usize> = [[<T as Vectors>::Vector<S>; NV]; MR];

/// The product of `MR` rows of a matrix (each contiguous) with a packed panel.
///
/// The sums start at the first row of the panel.
#[inline(always)]
pub(crate) fn rows_times_panel<S: Simd, T: Real, M: Terms<T>, const MR: usize, const NV: usize>(
    simd: S,
    terms: M,
    a: [&[T]; MR],
    panel: &[[T::Vector<S>; NV]],
) -> Tile<T, S, MR, NV> {
    let (start, b) = (panel[0], &panel[1..]);
    let mut tile = [start; MR];
    // A single known length lets the compiler remove the bounds checks of the loop.
    let mut rows = a;
    for row in &mut rows {
        *row = &row[..b.len()];
    }
    for (p, b) in b.iter().enumerate() {
        let b = *b;
        for i in 0..MR {
            let a = T::splat(simd, rows[i][p]);
            for j in 0..NV {
                tile[i][j] = terms.mul_add(simd, a, b[j], tile[i][j]);
            }
        }
    }
    tile
}

/// The same with contiguous columns: element `(i, p)` of the rows is `a[p * stride + i]`.
#[inline(always)]
pub(crate) fn columns_times_panel<S: Simd, T: Real, M: Terms<T>, const MR: usize, const NV: usize>(
    simd: S,
    terms: M,
    a: &[T],
    stride: usize,
    panel: &[[T::Vector<S>; NV]],
) -> Tile<T, S, MR, NV> {
    let mut tile = [panel[0]; MR];
    for (a, b) in a.chunks(stride).zip(&panel[1..]) {
        let (a, b) = (&a[..MR], *b);
        for i in 0..MR {
            let a = T::splat(simd, a[i]);
            for j in 0..NV {
                tile[i][j] = terms.mul_add(simd, a, b[j], tile[i][j]);
            }
        }
    }
    tile
}

/// Writes or adds a tile to `c`, whose rows have at least `NV` registers.
#[inline(always)]
pub(crate) fn store<S: Simd, T: Real, const MR: usize, const NV: usize>(
    simd: S,
    tile: &Tile<T, S, MR, NV>,
    c: &mut [T],
    c_row_stride: usize,
    add: bool,
) {
    for i in 0..MR {
        let c = &mut c[i * c_row_stride..][..NV * T::lanes::<S>()];
        let c = T::as_vectors_mut::<S>(c).0;
        for j in 0..NV {
            c[j] = if add { T::add_vectors(simd, c[j], tile[i][j]) } else { tile[i][j] };
        }
    }
}

/// Writes or adds the first elements of some registers to `c`.
#[inline(always)]
pub(crate) fn store_row<S: Simd, T: Real>(simd: S, row: &[T::Vector<S>], c: &mut [T], add: bool) {
    let (whole, rest) = T::as_vectors_mut::<S>(c);
    let mut row = row.iter();
    for (c, x) in whole.iter_mut().zip(&mut row) {
        *c = if add { T::add_vectors(simd, *c, *x) } else { *x };
    }
    if let (false, Some(&x)) = (rest.is_empty(), row.next()) {
        let x = if add { T::add_vectors(simd, T::load_partial(simd, rest), x) } else { x };
        T::store_partial(simd, rest, x);
    }
}
