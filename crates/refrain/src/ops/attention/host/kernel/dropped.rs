//! Dropout of the softmax weights.

use super::scores::Block;
use crate::device::cpu::numeric::Real;
use crate::ops::attention::dropout::KEYS_OF_WORD;

/// Which weights dropout keeps: for each row of scores a bit for each key, and the factor of these weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DroppedWeights<'a, T> {
    pub kept: &'a [i64],
    pub keys: usize,
    pub scale: T,
}

impl<T: Real> DroppedWeights<'_, T> {
    /// Drops what belongs to weights that are not kept, and scales the others. `x` has a row of `block.width` elements
    /// for each key; `row` is the number of the first query's row of scores.
    pub(super) fn apply(&self, block: Block, row: usize, x: &mut [T]) {
        let (mut query, mut key) = (0, 0);
        self.for_each(row, block.rows, |is_kept| {
            if key < block.visible(self.keys) {
                let x = &mut x[key * block.width + query];
                *x = if is_kept { *x * self.scale } else { T::ZERO };
            }
            key += 1;
            if key == self.keys {
                (query, key) = (query + 1, 0);
            }
        });
    }

    /// Calls `f` for each weight of so many rows from `row` on with whether it is kept.
    #[inline(always)]
    pub(super) fn for_each(&self, row: usize, rows: usize, mut f: impl FnMut(bool)) {
        let words = self.keys.div_ceil(KEYS_OF_WORD);
        for row in self.kept[row * words..][..rows * words].chunks(words.max(1)) {
            for key in 0..self.keys {
                f(row[key / KEYS_OF_WORD] >> (key % KEYS_OF_WORD) & 1 == 1);
            }
        }
    }
}
