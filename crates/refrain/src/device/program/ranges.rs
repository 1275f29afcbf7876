//! Values by ranges of bytes, found by the bytes that they meet.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

/// A memory, the first byte, and the one after the last.
type Key = (usize, usize, usize);

/// Values by ranges of bytes of a number of memories.
///
/// Ranges of about the same length (from 2^n to 2^(n + 1)) are kept together, by where they begin: what meets a range begins
/// no further before it than they are long, so that only neighbours are looked at.
pub(crate) struct Ranges<T> {
    by_length: BTreeMap<u32, BTreeMap<Key, SmallVec<[T; 1]>>>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges { by_length: BTreeMap::new() }
    }
}

impl<T> Ranges<T> {
    /// The values whose ranges have a byte in common with this one.
    pub(crate) fn meeting(&self, memory: usize, range: Range<usize>) -> impl Iterator<Item = &T> {
        self.by_length.iter().flat_map(move |(&n, ranges)| {
            let longest = 1usize.checked_shl(n + 1).map_or(usize::MAX, |end| end - 1);
            let from = range.start.saturating_sub(longest);
            let met = ranges.range((memory, from, 0)..(memory, range.end.max(from), 0));
            met.filter(move |((_, _, end), _)| *end > range.start).flat_map(|(_, values)| values)
        })
    }

    /// Adds a value at a range that is not empty. Those there that `replaced` says yes to go, from the last one on.
    pub(crate) fn insert(
        &mut self,
        memory: usize,
        range: Range<usize>,
        value: T,
        replaced: impl Fn(&T) -> bool,
    ) {
        let ranges = self.by_length.entry(range.len().ilog2()).or_default();
        let values = ranges.entry((memory, range.start, range.end)).or_default();
        while values.last().is_some_and(&replaced) {
            values.pop();
        }
        values.push(value);
    }

    /// Takes away what lies within a range.
    pub(crate) fn clear(&mut self, memory: usize, range: Range<usize>) {
        for (_, ranges) in self.by_length.range_mut(..=range.len().ilog2()) {
            let all = ranges.range((memory, range.start, 0)..(memory, range.end, 0));
            let within: SmallVec<[Key; 4]> =
                all.map(|(key, _)| *key).filter(|(_, _, end)| *end <= range.end).collect();
            within.iter().for_each(|key| drop(ranges.remove(key)));
        }
    }
}
