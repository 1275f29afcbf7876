//! The innermost loops: a tile of the product that stays in registers.

use pulp::Simd;

use super::MulAdd;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::simd::Vectors;

/// A tile of `MR` rows by `NV` registers.
pub(crate) type Tile<T, S, const MR: usize, const NV: usize> = [[<T as Vectors>::Vector<S>; NV]; MR];

/// The product of `MR` rows of a matrix (each contiguous) with a packed panel.
///
/// The sums start at the first row of the panel.
#[inline(always)]
pub(crate) fn rows_times_panel<S: Simd, T: Real, M: MulAdd<T>, const MR: usize, const NV: usize>(
    simd: S,
    terms: M,
    a: [&[T]; MR],
    panel: &[[T::Vector<S>; NV]],
) -> Tile<T, S, MR, NV> {
    let (start, b) = (panel[0], &panel[1..]);
    let mut tile = [start; MR];
    // Four steps at a time have one check of bounds, and counters of the loop stay in registers.
    let (steps, last_steps) = b.as_chunks::<4>();
    let mut rows = [&[][..]; MR];
    let mut last_rows = [&a[0][..0]; MR];
    for i in 0..MR {
        let (row, last) = a[i][..b.len()].as_chunks::<4>();
        (rows[i], last_rows[i]) = (&row[..steps.len()], &last[..last_steps.len()]);
    }
    for (p, b) in steps.iter().enumerate() {
        for q in 0..4 {
            let b = b[q];
            for i in 0..MR {
                let a = T::splat(simd, rows[i][p][q]);
                for j in 0..NV {
                    tile[i][j] = terms.mul_add(simd, a, b[j], tile[i][j]);
                }
            }
        }
    }
    for (p, b) in last_steps.iter().enumerate() {
        let b = *b;
        for i in 0..MR {
            let a = T::splat(simd, last_rows[i][p]);
            for j in 0..NV {
                tile[i][j] = terms.mul_add(simd, a, b[j], tile[i][j]);
            }
        }
    }
    tile
}

/// The same with contiguous columns: element `(i, p)` of the rows is `a[p * stride + i]`.
#[inline(always)]
pub(crate) fn columns_times_panel<S: Simd, T: Real, M: MulAdd<T>, const MR: usize, const NV: usize>(
    simd: S,
    terms: M,
    a: &[T],
    stride: usize,
    panel: &[[T::Vector<S>; NV]],
) -> Tile<T, S, MR, NV> {
    let mut tile = [panel[0]; MR];
    let steps = a.chunks_exact(stride).zip(&panel[1..]);
    // After the last step, `a` may end before the stride does.
    let whole = steps.len();
    for (a, b) in steps {
        add_step(simd, terms, &mut tile, &a[..MR], b);
    }
    if let Some(b) = panel[1..].get(whole) {
        add_step(simd, terms, &mut tile, &a[whole * stride..][..MR], b);
    }
    tile
}

/// Adds the products of `MR` numbers with a row of a panel.
#[inline(always)]
fn add_step<S: Simd, T: Real, M: MulAdd<T>, const MR: usize, const NV: usize>(
    simd: S,
    terms: M,
    tile: &mut Tile<T, S, MR, NV>,
    a: &[T],
    b: &[T::Vector<S>; NV],
) {
    let b = *b;
    for i in 0..MR {
        let a = T::splat(simd, a[i]);
        for j in 0..NV {
            tile[i][j] = terms.mul_add(simd, a, b[j], tile[i][j]);
        }
    }
}

/// Writes or adds a tile to the first rows of `c`, which have `NV` registers.
#[inline(always)]
pub(crate) fn store<S: Simd, T: Real, const MR: usize, const NV: usize>(
    simd: S,
    tile: &Tile<T, S, MR, NV>,
    c: &mut RectangleMut<'_, T>,
    add: bool,
) {
    for i in 0..MR {
        let c = &mut c.row(i)[..NV * T::lanes::<S>()];
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
