//! Scores of a block of queries, transposed: one row per key, with the queries in the lanes.

use pulp::Simd;

use super::panels::{Destination, Panels, product, transpose};
use crate::device::cpu::numeric::Real;
use crate::kernels::products::host::Matrix;

/// A block of queries.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The first query.
    pub first: usize,
    /// Number of queries.
    pub rows: usize,
    /// Elements per row of scores: the queries, rounded up to whole registers.
    pub width: usize,
    /// Whether query `i` sees only the keys `0..=i + past`.
    pub causal: bool,
    /// Keys ahead of the first query.
    pub past: usize,
}

impl Block {
    /// How many keys at least one of the queries sees.
    #[inline(always)]
    pub fn visible(self, keys: usize) -> usize {
        if self.causal { keys.min(self.first + self.rows + self.past) } else { keys }
    }

    /// How many keys query `i` of the block sees.
    #[inline(always)]
    pub fn seen(self, i: usize, keys: usize) -> usize {
        if self.causal { keys.min(self.first + i + 1 + self.past) } else { keys }
    }

    /// Writes the products of the visible rows of `x` with the queries or output gradients of the block, or adds them.
    #[inline(always)]
    pub fn products<S: Simd, T: Real>(
        self,
        simd: S,
        x: Matrix<'_, T>,
        panels: Panels<'_, T::Vector<S>>,
        to: &mut [T::Vector<S>],
        add: bool,
    ) {
        let a = Matrix { rows: self.visible(x.rows), ..x };
        let data = bytemuck::cast_slice_mut(to);
        product(
            simd,
            a,
            panels,
            None,
            Destination { data, row_stride: self.width, columns: self.width, add },
        );
    }

    /// Writes the scores of the visible keys that `from` has, (queries, keys) of the block, `row_stride` from query to query.
    #[inline(always)]
    pub fn load<T: Real>(self, from: &[T], row_stride: usize, keys: usize, to: &mut [T]) {
        let visible = self.visible(keys);
        let x = Matrix { data: from, rows: self.rows, cols: visible, row_stride, col_stride: 1 };
        transpose(x, T::ONE, 0, &mut to[..visible * self.width], self.width);
    }

    /// Adds, where a query sees a key, what `from` has, (queries, keys) of the block.
    #[inline(always)]
    pub fn add<T: Real>(self, from: &[T], keys: usize, to: &mut [T]) {
        for (i, from) in from.chunks_exact(keys).take(self.rows).enumerate() {
            for (j, &x) in from[..self.seen(i, keys)].iter().enumerate() {
                to[j * self.width + i] += x;
            }
        }
    }

    /// Writes scores, or their gradients, to `to`, (queries, keys) of the block; 0 where a query does not see a key.
    #[inline(always)]
    pub fn store<T: Real>(self, from: &[T], keys: usize, to: &mut [T]) {
        for (i, to) in to.chunks_exact_mut(keys).take(self.rows).enumerate() {
            let (seen, unseen) = to.split_at_mut(self.seen(i, keys));
            for (j, to) in seen.iter_mut().enumerate() {
                *to = from[j * self.width + i];
            }
            unseen.fill(T::ZERO);
        }
    }

    /// Writes negative infinity where a query does not see a key.
    #[inline(always)]
    pub fn mask<S: Simd, T: Real>(self, scores: &mut [T::Vector<S>], keys: usize) {
        if self.causal {
            let scores = bytemuck::cast_slice_mut::<_, T>(scores).chunks_exact_mut(self.width);
            let seen_by_all = self.seen(0, keys);
            for (j, row) in scores.enumerate().take(self.visible(keys)).skip(seen_by_all) {
                row[..j - self.first - self.past].fill(T::NEG_INFINITY);
            }
        }
    }
}
