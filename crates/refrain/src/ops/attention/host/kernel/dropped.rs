//! Dropout of the softmax weights.

use super::scores::Block;
use crate::device::cpu::numeric::Real;
use crate::ops::random::philox::{self, WORDS};

/// Random words at a time.
const TILE: usize = 1024;

/// Which weights dropout keeps. Weight `i` of (batch, heads, queries, keys) is kept if word `skip + i` is at least
/// `threshold`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DroppedWeights<T> {
    pub seed: u64,
    /// The first block of random words.
    pub first: u64,
    /// The words of this block that belong to no weight.
    pub skip: usize,
    pub threshold: u64,
    /// The factor of weights that are kept.
    pub scale: T,
}

impl<T: Real> DroppedWeights<T> {
    /// Drops what belongs to weights that are not kept, and scales the others. `x` has a row of `block.width` elements
    /// for each key; weight `start` is that of the first query of the block and the first key.
    pub(super) fn apply(&self, block: Block, keys: usize, start: usize, x: &mut [T]) {
        let (mut query, mut key) = (0, 0);
        self.for_each(start, block.rows * keys, |is_kept| {
            if key < block.visible(keys) {
                let x = &mut x[key * block.width + query];
                *x = if is_kept { *x * self.scale } else { T::ZERO };
            }
            key += 1;
            if key == keys {
                (query, key) = (query + 1, 0);
            }
        });
    }

    /// Calls `f` for each weight from `start` on with whether it is kept.
    #[inline(always)]
    pub(super) fn for_each(&self, start: usize, count: usize, mut f: impl FnMut(bool)) {
        let start = self.skip + start;
        let (mut tile, mut skip) = (self.first.wrapping_add((start / WORDS) as u64), start % WORDS);
        let mut words = [0u32; TILE];
        let mut left = count;
        while left > 0 {
            let count = left.min(TILE - skip);
            let words = &mut words[..skip + count];
            philox::fill(self.seed, tile, words);
            for &word in &words[skip..] {
                f(u64::from(word) >= self.threshold);
            }
            (left, skip) = (left - count, 0);
            tile = tile.wrapping_add((TILE / WORDS) as u64);
        }
    }
}
