//! What the simulated device knows about its memory: who owns it, and what has been written.

use std::collections::BTreeMap;
use std::ops::Range;

use super::work::MemoryAccess;

/// An allocated piece of memory.
struct Allocation {
    end: usize,
    /// The operation that asked for it.
    by: &'static str,
    /// The storage that it belongs to, and the operation that first used it there.
    owner: Option<(u64, &'static str)>,
    written: Ranges,
}

/// All allocated memory, and for each address what was freed there last.
#[derive(Default)]
pub(super) struct MemoryMap {
    live: BTreeMap<usize, Allocation>,
    freed: BTreeMap<usize, (usize, &'static str)>,
    bytes: usize,
}

impl MemoryMap {
    pub(super) fn add(&mut self, range: Range<usize>, by: &'static str) {
        self.bytes += range.len();
        self.freed.remove(&range.start);
        let allocation = Allocation { end: range.end, by, owner: None, written: Ranges::default() };
        self.live.insert(range.start, allocation);
    }

    /// Frees memory. Returns `false` if none is allocated at this address.
    pub(super) fn remove(&mut self, start: usize) -> bool {
        let Some(gone) = self.live.remove(&start) else { return false };
        self.bytes -= gone.end - start;
        self.freed.insert(start, (gone.end, gone.by));
        true
    }

    /// Forgets freed memory: the addresses are the system's again.
    pub(super) fn trim(&mut self) {
        self.freed.clear();
    }

    /// Bytes that are handed out.
    pub(super) fn live(&self) -> usize {
        self.bytes
    }

    fn find(&mut self, range: &Range<usize>) -> Result<(usize, &mut Allocation), String> {
        let holds = |start: usize, end: usize| start <= range.start && range.end <= end;
        let at = self.live.range(..=range.start).next_back().map(|(&s, a)| (s, a.end));
        if let Some((start, _)) = at.filter(|&(s, e)| holds(s, e))
            && let Some(found) = self.live.get_mut(&start)
        {
            return Ok((start, found));
        }
        let freed = self.freed.range(..=range.start).next_back().filter(|&(&s, &(e, _))| holds(s, e));
        Err(match freed {
            Some((_, (_, by))) => {
                format!("memory that {by} allocated and that was freed before: a use after free")
            }
            None => "memory that was never allocated".to_string(),
        })
    }

    /// Looks at an access of `op` and takes note of it; what is wrong with it otherwise.
    pub(super) fn touch(&mut self, op: &'static str, touch: &MemoryAccess) -> Result<(), String> {
        let (start, found) = self.find(&touch.range).map_err(|what| format!("it touches {what}"))?;
        let (owner, first) = *found.owner.get_or_insert((touch.owner, op));
        if owner != touch.owner {
            return Err(format!(
                "it works in storage {}, whose memory {} also uses as storage {owner}: memory was handed out again while somebody still needed it",
                touch.owner, first
            ));
        }
        if touch.reads && touch.is_dense() {
            found.check(start, &touch.range)?;
        }
        if touch.writes {
            found.written.add(touch.range.clone());
        }
        Ok(())
    }

    /// The same for a copy from the host.
    pub(super) fn write(&mut self, range: &Range<usize>) -> Result<(), String> {
        let (_, found) = self.find(range).map_err(|what| format!("it writes to {what}"))?;
        found.written.add(range.clone());
        Ok(())
    }

    /// The same for a copy to the host.
    pub(super) fn read(&mut self, range: &Range<usize>) -> Result<(), String> {
        let (start, found) = self.find(range).map_err(|what| format!("it reads {what}"))?;
        found.check(start, range)
    }
}

impl Allocation {
    fn check(&self, start: usize, range: &Range<usize>) -> Result<(), String> {
        match self.written.has(range) {
            true => Ok(()),
            false => Err(format!(
                "it reads bytes {}..{} of memory that {} allocated, and nothing has written them all: what should have did not run, or wrote elsewhere",
                range.start - start,
                range.end - start,
                self.by
            )),
        }
    }
}

/// Ranges apart from each other, by their start.
#[derive(Default)]
struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    fn add(&mut self, mut range: Range<usize>) {
        if range.is_empty() || self.has(&range) {
            return;
        }
        while let Some((&start, &end)) =
            self.0.range(..=range.end).next_back().filter(|(_, e)| **e >= range.start)
        {
            range = range.start.min(start)..range.end.max(end);
            self.0.remove(&start);
        }
        self.0.insert(range.start, range.end);
    }

    fn has(&self, range: &Range<usize>) -> bool {
        range.is_empty() || self.0.range(..=range.start).next_back().is_some_and(|(_, end)| *end >= range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_meet() {
        let mut ranges = Ranges::default();
        for r in [10..20, 30..40, 50..60] {
            ranges.add(r);
        }
        assert!(ranges.has(&(12..20)) && !ranges.has(&(12..21)) && ranges.has(&(25..25)));
        ranges.add(20..30);
        assert!(ranges.has(&(10..40)) && !ranges.has(&(10..41)));
        ranges.add(0..100);
        assert_eq!(ranges.0.len(), 1);
    }
}
