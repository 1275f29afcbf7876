//! What launches touched, found by the bytes that a later one touches.

use std::ops::Range;

use super::order::Order;
use super::ranges::Ranges;

/// What earlier launches touched, as far as later ones may have to wait for it.
///
/// If a later touch covers an earlier one, the later one already waits for the earlier one. So whoever waits for the
/// later one also waits for the earlier one, and the earlier one is forgotten.
pub(crate) struct Past<T> {
    reads: Ranges<(usize, T)>,
    writes: Ranges<(usize, T)>,
}

/// A touch in a [`Past`].
pub(crate) trait Touching {
    /// The memory, and the range from the first byte to the last.
    fn bytes(&self) -> (usize, Range<usize>);

    fn writes(&self) -> bool;

    /// Whether it touches every byte of the range.
    fn is_dense(&self) -> bool;

    /// Whether it touches the same bytes as another touch of the same range.
    fn is_same(&self, other: &Self) -> bool;
}

impl<T> Default for Past<T> {
    fn default() -> Past<T> {
        Past { reads: Ranges::default(), writes: Ranges::default() }
    }
}

impl<T: Touching + Copy> Past<T> {
    /// The launches whose touches overlap the range of `touch`. The launch of `touch` must come after them if they
    /// have a byte in common.
    pub(crate) fn meeting(&self, touch: T) -> impl Iterator<Item = (usize, T)> {
        let (memory, range) = touch.bytes();
        let reads = touch.writes().then(|| self.reads.meeting(memory, range.clone()));
        self.writes.meeting(memory, range).chain(reads.into_iter().flatten()).copied()
    }

    /// Adds a launch, which must be in `order` already. No range of its touches may be empty.
    pub(crate) fn add(&mut self, launch: usize, touches: impl Iterator<Item = T> + Clone, order: &Order) {
        for touch in touches.clone().filter(|t| t.writes() && t.is_dense()) {
            let (memory, range) = touch.bytes();
            self.reads.clear(memory, range.clone());
            self.writes.clear(memory, range);
        }
        for touch in touches {
            let (memory, range) = touch.bytes();
            let kind = if touch.writes() { &mut self.writes } else { &mut self.reads };
            kind.insert(memory, range, (launch, touch), |(earlier, other)| {
                order.knows(*earlier, launch) && touch.is_same(other)
            });
        }
    }
}
