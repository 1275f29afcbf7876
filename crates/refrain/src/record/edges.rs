//! Which launches must wait for which: those that touch a common byte, one of them writing it.

use std::collections::HashMap;
use std::ops::Range;

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

    /// Whether whoever must wait for `earlier` waits for this anyway, which waits for `earlier` itself.
    fn hides(&self, earlier: &Touch<'_>) -> bool {
        self.writes
            && self.access.is_none_or(|a| a.layout.is_contiguous())
            && self.range.start <= earlier.range.start
            && earlier.range.end <= self.range.end
    }
}

/// A set of launches.
#[derive(Clone)]
pub(super) struct Set(Vec<u64>);

impl Set {
    fn new(n: usize) -> Set {
        Set(vec![0; n.div_ceil(64)])
    }

    pub(super) fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }

    fn insert(&mut self, i: usize) {
        self.0[i / 64] |= 1 << (i % 64);
    }

    fn join(&mut self, other: &Set) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
}

/// The launches that each launch waits for directly: none that it waits for by way of another.
///
/// `launches` are in an order in which they may run.
pub(super) fn edges(launches: &[Vec<Touch<'_>>]) -> Vec<Vec<usize>> {
    let mut past: HashMap<usize, Vec<(usize, &Touch<'_>)>> = HashMap::new();
    let mut all: Vec<Vec<usize>> = Vec::with_capacity(launches.len());
    for (i, touches) in launches.iter().enumerate() {
        let mut waits = Vec::new();
        for touch in touches.iter().filter(|t| !t.range.is_empty()) {
            let seen = past.entry(touch.memory).or_default();
            waits.extend(seen.iter().filter(|(_, p)| touch.conflicts(p)).map(|(j, _)| *j));
        }
        for touch in touches.iter().filter(|t| !t.range.is_empty()) {
            let seen = past.entry(touch.memory).or_default();
            seen.retain(|(j, p)| *j == i || !touch.hides(p));
            seen.push((i, touch));
        }
        waits.sort_unstable();
        waits.dedup();
        all.push(waits);
    }
    reduce(all)
}

/// Takes away each edge that a longer way implies.
fn reduce(mut edges: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
    let mut before: Vec<Set> = Vec::with_capacity(edges.len());
    let n = edges.len();
    for waits in &mut edges {
        let mut reached = Set::new(n);
        let mut kept = Vec::new();
        for &j in waits.iter().rev() {
            if !reached.has(j) {
                reached.insert(j);
                reached.join(&before[j]);
                kept.push(j);
            }
        }
        kept.reverse();
        *waits = kept;
        before.push(reached);
    }
    edges
}

/// What comes before each launch, directly or by way of others.
#[cfg(test)]
pub(super) fn before(edges: &[Vec<usize>]) -> Vec<Set> {
    let mut before: Vec<Set> = Vec::new();
    for waits in edges {
        let mut reached = Set::new(edges.len());
        for &j in waits {
            reached.insert(j);
            reached.join(&before[j]);
        }
        before.push(reached);
    }
    before
}
