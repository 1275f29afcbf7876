//! A map from byte ranges to values, which finds the values whose ranges overlap a range.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

/// The memory, the first byte, and the one after the last.
type Key = (usize, usize, usize);

/// A map from byte ranges in several memories to values.
///
/// Ranges of similar length (from 2^n to 2^(n + 1)) are stored together, ordered by their start. A range that
/// overlaps another starts at most one length before it, so a search looks only at neighbours.
pub(crate) struct Ranges<T> {
    by_length: BTreeMap<u32, BTreeMap<Key, SmallVec<[T; 1]>>>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Ranges<T> {
        Ranges { by_length: BTreeMap::new() }
    }
}

impl<T> Ranges<T> {
    /// The values whose ranges overlap this one.
    pub(crate) fn meeting(&self, memory: usize, range: Range<usize>) -> impl Iterator<Item = &T> {
        self.by_length.iter().flat_map(move |(&n, ranges)| {
            let longest = 1usize.checked_shl(n + 1).map_or(usize::MAX, |end| end - 1);
            let from = range.start.saturating_sub(longest);
            let met = ranges.range((memory, from, 0)..(memory, range.end.max(from), 0));
            met.filter(move |((_, _, end), _)| *end > range.start).flat_map(|(_, values)| values)
        })
    }

    /// Adds a value for a range that is not empty. Of the values for this range, those for which `replaced` returns
    /// true are removed, from the last one on.
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

    /// Removes the ranges that are inside a range.
    pub(crate) fn clear(&mut self, memory: usize, range: Range<usize>) {
        for (_, ranges) in self.by_length.range_mut(..=range.len().ilog2()) {
            let all = ranges.range((memory, range.start, 0)..(memory, range.end, 0));
            let within: SmallVec<[Key; 4]> =
                all.map(|(key, _)| *key).filter(|(_, _, end)| *end <= range.end).collect();
            within.iter().for_each(|key| drop(ranges.remove(key)));
        }
    }
}
