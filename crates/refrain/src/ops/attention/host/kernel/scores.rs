//! Scores of a block of queries, transposed: a row for each key, with the queries in the lanes.

use pulp::Simd;

use super::panels::{Destination, Panels, product};
use crate::device::cpu::numeric::Real;
use crate::kernels::products::host::Matrix;

/// A block of queries.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// The first query.
    pub first: usize,
    /// How many there are.
    pub rows: usize,
    /// Elements of a row of scores: the queries, up to whole registers.
    pub width: usize,
    /// Whether query `i` sees only the keys `0..=i`.
    pub causal: bool,
}

impl Block {
    /// How many keys there are that any of the queries sees.
    #[inline(always)]
    pub fn visible(self, keys: usize) -> usize {
        if self.causal { keys.min(self.first + self.rows) } else { keys }
    }

    /// Writes the products of the first rows of `x`, those of visible keys, with the block's queries or
    /// output gradients.
    #[inline(always)]
    pub fn products<S: Simd, T: Real>(
        self,
        simd: S,
        x: Matrix<'_, T>,
        panels: Panels<'_, T::Vector<S>>,
        to: &mut [T::Vector<S>],
    ) {
        let a = Matrix { rows: self.visible(x.rows), ..x };
        let data = bytemuck::cast_slice_mut(to);
        product(
            simd,
            a,
            panels,
            None,
            Destination { data, row_stride: self.width, columns: self.width, add: false },
        );
    }

    /// Writes negative infinity where a query doesn't see the key.
    #[inline(always)]
    pub fn mask<S: Simd, T: Real>(self, scores: &mut [T::Vector<S>], keys: usize) {
        if self.causal {
            let scores = bytemuck::cast_slice_mut::<_, T>(scores).chunks_exact_mut(self.width);
            for (j, row) in scores.enumerate().take(self.visible(keys)).skip(self.first + 1) {
                row[..j - self.first].fill(T::NEG_INFINITY);
            }
        }
    }
}
