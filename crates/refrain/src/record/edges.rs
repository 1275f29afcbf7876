//! Which launches must wait for which: two launches with a common byte that at least one of them writes.

use std::ops::Range;

use crate::device::program::{Access, Order, Past, Touching};

/// A range of bytes that a launch reads or writes.
#[derive(Clone, Debug)]
pub(super) struct Touch<'a> {
    /// The memory: the program's block, or one of the external storages.
    pub(super) memory: usize,
    pub(super) range: Range<usize>,
    pub(super) writes: bool,
    /// The operand. It tells interleaved windows of one tensor apart.
    pub(super) access: Option<&'a Access>,
}

impl Touch<'_> {
    /// What every collective writes besides its memory, whatever its communicator. So the collectives of a program keep
    /// their order: on two branches, one rank could begin with the first and another rank with the second, and each would
    /// wait for the other.
    pub(super) const NETWORK: Touch<'static> =
        Touch { memory: usize::MAX, range: 0..1, writes: true, access: None };

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

/// The launches that each launch directly waits for. Launches that it waits for through another one are left out.
///
/// `launches` must be in a valid order.
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
