//! Products of states on the CPU. Tasks take some sequences each through all time steps: the product of a time step is that of a block of
//! the crate's matrix products, with the weight packed once.

use crate::device::cpu::numeric::{Real, Stored};
use crate::device::cpu::parallel;
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::kernels::products::host::block::{Block, block_scratch_len, rows_of_tiles};
use crate::kernels::products::host::pack::{Packing, Panels};
use crate::kernels::products::host::{Matrix, Single, Terms};

/// The most sequences of a task: their gates stay in the cache.
const MOST: usize = 64;

/// The sequences of a task. Values do not depend on it.
pub(crate) fn rows_a_task(batch: usize) -> usize {
    rows_for(batch, parallel::threads())
}

/// As many sequences as give the busiest thread the least to do.
fn rows_for(batch: usize, threads: usize) -> usize {
    // Each task also reads the weight at each time step, which takes about as long as one more row.
    let time = |&rows: &usize| batch.div_ceil(rows).div_ceil(threads) * (rows_of_tiles(rows) + 1);
    (1..=MOST).rev().min_by_key(time).unwrap_or(MOST)
}

/// A packed factor of the products of all time steps.
pub(crate) struct Packed<R> {
    panels: Scratch<R>,
    k: usize,
    n: usize,
}

impl<R: Real> Packed<R> {
    pub(crate) fn of(b: Matrix<'_, R>, start: Option<&[R]>) -> Packed<R> {
        let (k, n) = (b.rows, b.cols);
        let packing = Packing::one_block(k, n);
        let mut panels = Scratch::new(packing.len::<R>());
        packing.pack(b, start, &mut panels, true);
        Packed { panels, k, n }
    }

    /// `c (+)= start + a b` for contiguous rows.
    pub(crate) fn product(&self, a: &[R], c: &mut [R], add: bool) {
        let (k, n, m) = (self.k, self.n, a.len() / self.k);
        with_scratch(block_scratch_len::<R>(k), |scratch| {
            let a = Matrix::row_major(a, m, k);
            let (panels, c) = (Panels::of_one_block(&self.panels, k), RectangleMut::new(c, [m, n], n));
            Single.compute(Block { a, i0: 0, p0: 0, k, panels, c, add, scratch });
        });
    }
}

/// Rounds numbers to where they are stored.
#[inline(always)]
pub(crate) fn put<T: Stored, R: Real>(from: &[R], to: &mut [T]) {
    to.iter_mut().zip(from).for_each(|(to, &v)| *to = T::from_number(v));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tiles are those of [`Block`]: six rows, the last one four if that suffices.
    #[test]
    fn no_thread_has_much_more_to_do_than_its_share() {
        // Whole tiles; a last tile of four rows; and 22 rows, of which 3 threads have 4 tasks each.
        for (batch, threads, rows) in [(96, 2, 48), (128, 2, 64), (256, 2, 64), (256, 3, 22)] {
            assert_eq!(rows_for(batch, threads), rows, "{batch} sequences on {threads} threads");
        }
        for threads in [1, 2, 3, 8, 16] {
            for share in 24..200 {
                let rows = rows_for(share * threads, threads);
                let tasks_of_one = (share * threads).div_ceil(rows).div_ceil(threads);
                let most = share + share / 8 + 2;
                assert!(tasks_of_one * rows <= most, "{threads} threads: {share} each, {rows} a task");
            }
        }
    }
}
