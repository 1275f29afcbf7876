//! Which launches must wait for which: those that touch a common byte, one of them writing it.

use std::ops::Range;

use super::order::Order;
use super::ranges::Ranges;
use super::recorded::Access;

/// Bytes that a launch touches.
#[derive(Clone, Debug)]
pub(super) struct Touch<'a> {
    /// Which memory: the program's block, or one of the external storages.
    pub(super) memory: usize,
    pub(super) range: Range<usize>,
    pub(super) writes: bool,
    /// The operand, for telling interleaved windows of one tensor apart.
    pub(super) access: Option<&'a Access>,
}

impl Touch<'_> {
    /// Whether the order of both matters.
    pub(super) fn conflicts(&self, other: &Touch<'_>) -> bool {
        let (a, b) = (&self.range, &other.range);
        (self.writes || other.writes)
            && self.memory == other.memory
            && a.start < b.end
            && b.start < a.end
            && !a.is_empty()
            && !b.is_empty()
            && match (self.access, other.access) {
                (Some(x), Some(y)) if x.place == y.place => x.overlaps(y),
                _ => true,
            }
    }
}

/// What launches touched that later ones may have to wait for.
///
/// Whoever must wait for a touch waits for a later one that covers it anyway, which waits for the first itself: what is
/// covered is forgotten.
pub(crate) struct Past<T> {
    reads: Ranges<(usize, T)>,
    writes: Ranges<(usize, T)>,
}

/// A touch in a [`Past`].
pub(crate) trait Touching {
    /// Which memory, and the bytes from the first to the last.
    fn bytes(&self) -> (usize, Range<usize>);

    fn writes(&self) -> bool;

    /// Whether it touches every byte of the range.
    fn is_dense(&self) -> bool;

    /// Whether it touches the same bytes as another of the same range.
    fn is_same(&self, other: &Self) -> bool;
}

impl<T> Default for Past<T> {
    fn default() -> Past<T> {
        Past { reads: Ranges::default(), writes: Ranges::default() }
    }
}

impl<T: Touching + Copy> Past<T> {
    /// The launches with the touches whose range has a byte in common with that of `touch`, and that it must not
    /// come before if they have a byte in common.
    pub(crate) fn meeting(&self, touch: T) -> impl Iterator<Item = (usize, T)> {
        let (memory, range) = touch.bytes();
        let reads = touch.writes().then(|| self.reads.meeting(memory, range.clone()));
        self.writes.meeting(memory, range).chain(reads.into_iter().flatten()).copied()
    }

    /// Adds a launch, which `order` has already. No range of its touches is empty.
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

impl Touching for &Touch<'_> {
    fn bytes(&self) -> (usize, Range<usize>) {
        (self.memory, self.range.clone())
    }

    fn writes(&self) -> bool {
        self.writes
    }

    fn is_dense(&self) -> bool {
        self.access.is_none_or(|a| a.layout.is_contiguous())
    }

    fn is_same(&self, other: &Self) -> bool {
        self.is_dense() && other.is_dense() || self.access == other.access
    }
}

/// The launches that each launch waits for directly: none that it is known to wait for by way of another.
///
/// `launches` are in an order in which they may run.
pub(super) fn edges(launches: &[Vec<Touch<'_>>]) -> Vec<Vec<usize>> {
    let mut order = Order::default();
    let mut past: Past<&Touch<'_>> = Past::default();
    let each = launches.iter().enumerate().map(|(i, touches)| {
        let touches = touches.iter().filter(|t| !t.range.is_empty());
        let met = touches.clone().flat_map(|t| past.meeting(t).filter(|(_, p)| t.conflicts(p)));
        let mut waits: Vec<usize> = met.map(|(j, _)| j).collect();
        order.add(&mut waits);
        past.add(i, touches, &order);
        waits.shrink_to_fit();
        waits
    });
    each.collect()
}
