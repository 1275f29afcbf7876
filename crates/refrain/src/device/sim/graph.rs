//! A captured graph: what waits for what, whether that is enough, and a run in one of the orders that it allows.
#![allow(unsafe_code)] // Runs kernels over the device's memory.

use std::cmp::Reverse;

use super::machine::Rng;
use super::work::Work;
use crate::error::{Error, Result};

/// A launch in a graph, with the nodes that must have ended before it begins.
pub(super) struct Node {
    pub(super) work: Work,
    pub(super) waits: Vec<usize>,
}

/// A graph; nodes wait for earlier ones only.
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
}

/// The launches before one, directly or by way of others.
struct Before(Vec<u64>);

impl Before {
    fn has(&self, i: usize) -> bool {
        self.0[i / 64] >> (i % 64) & 1 == 1
    }
}

impl Graph {
    /// What comes before each node.
    fn before(&self) -> Vec<Before> {
        let words = self.nodes.len().div_ceil(64);
        let mut all: Vec<Before> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let mut before = vec![0; words];
            for &wait in &node.waits {
                before[wait / 64] |= 1 << (wait % 64);
                before.iter_mut().zip(&all[wait].0).for_each(|(a, b)| *a |= b);
            }
            all.push(Before(before));
        }
        all
    }

    /// An error that names two launches which touch a common byte, one of them writing it, and which no way of edges
    /// orders: of all such pairs the closest, whose edge is the one that is missing.
    pub(super) fn check(&self, device: &str) -> Result<()> {
        let before = self.before();
        let mut touches: Vec<(usize, usize)> = (0..self.nodes.len())
            .flat_map(|n| (0..self.nodes[n].work.touches.len()).map(move |t| (n, t)))
            .collect();
        let at = |(n, t): (usize, usize)| &self.nodes[n].work.touches[t];
        touches.sort_unstable_by_key(|&touch| at(touch).range.start);
        let mut closest: Option<((usize, usize), (usize, usize), usize)> = None;
        for (i, &a) in touches.iter().enumerate() {
            let end = at(a).range.end;
            for &b in touches[i + 1..].iter().take_while(|&&b| at(b).range.start < end) {
                let (first, second) = if a.0 < b.0 { (a, b) } else { (b, a) };
                let ordered = first.0 == second.0 || before[second.0].has(first.0);
                let closeness = |f: usize, s: usize| (f, Reverse(s));
                let closer =
                    closest.is_none_or(|(f, s, _)| closeness(f.0, s.0) < closeness(first.0, second.0));
                if ordered || !closer || !(at(a).writes || at(b).writes) {
                    continue;
                }
                if let Some(byte) = at(first).meets(at(second)) {
                    closest = Some((first, second, byte));
                }
            }
        }
        closest.map_or(Ok(()), |(first, second, byte)| Err(self.race(first, second, byte, device)))
    }

    fn race(&self, first: (usize, usize), second: (usize, usize), byte: usize, device: &str) -> Error {
        let does = |(n, t): (usize, usize)| {
            let touch = &self.nodes[n].work.touches[t];
            if touch.writes { "writes" } else { "reads" }
        };
        let (a, b) = (first.0, second.0);
        let (earlier, op) = (self.nodes[a].work.op(), self.nodes[b].work.op());
        let touch = &self.nodes[b].work.touches[second.1];
        Error::Hazard {
            op,
            device: device.to_string(),
            message: format!(
                "launch {b} ({op}) {} the byte at {byte:#x} of storage {}, which launch {a} ({earlier}) {}, and nothing orders them: the graph lacks the edge {a} -> {b}",
                does(second),
                touch.owner,
                does(first),
            ),
        }
    }

    /// Launches that nothing waits for and that the end of the capture did not wait for either.
    pub(super) fn unjoined(&self, joined: &[usize]) -> Option<usize> {
        let mut followed = vec![false; self.nodes.len()];
        self.nodes.iter().flat_map(|n| &n.waits).chain(joined).for_each(|&n| followed[n] = true);
        followed.iter().position(|f| !f)
    }

    /// Runs all launches; the first error of a kernel.
    ///
    /// # Safety
    /// As for `Work::run`.
    pub(super) unsafe fn run(&self, rng: &mut Rng) -> Result<()> {
        let mut first = Ok(());
        let waits: Vec<&[usize]> = self.nodes.iter().map(|n| &n.waits[..]).collect();
        for n in order(&waits, rng) {
            // SAFETY: the caller's promise.
            let done = unsafe { self.nodes[n].work.run() };
            first = first.and(done);
        }
        first
    }
}

/// Nodes in one of the orders that allow each to wait for others, and not a kind one.
fn order(waits: &[&[usize]], rng: &mut Rng) -> Vec<usize> {
    let mut missing: Vec<usize> = waits.iter().map(|w| w.len()).collect();
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); waits.len()];
    for (n, waits) in waits.iter().enumerate() {
        waits.iter().for_each(|&wait| followers[wait].push(n));
    }
    let mut ready: Vec<usize> = (0..waits.len()).filter(|&n| missing[n] == 0).collect();
    let mut order = Vec::with_capacity(waits.len());
    // As late as can be, depth first, or at random.
    let style = rng.below(3);
    while !ready.is_empty() {
        let chosen = match style {
            0 => (0..ready.len()).max_by_key(|&i| ready[i]).unwrap_or(0),
            1 => ready.len() - 1,
            _ => rng.below(ready.len()),
        };
        let n = ready.remove(chosen);
        order.push(n);
        for &follower in &followers[n] {
            missing[follower] -= 1;
            if missing[follower] == 0 {
                ready.push(follower);
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_reach_every_order_of_what_may_run_side_by_side_and_none_other() {
        // 0 -> 1 -> 3 and 0 -> 2 -> 3, and 4 beside them.
        let waits: [&[usize]; 5] = [&[], &[0], &[0], &[1, 2], &[]];
        let mut orders: Vec<Vec<usize>> = (0..200).map(|seed| order(&waits, &mut Rng::new(seed))).collect();
        for order in &orders {
            let at = |n| order.iter().position(|&o| o == n).unwrap();
            (0..5).for_each(|n| waits[n].iter().for_each(|&w| assert!(at(w) < at(n), "{order:?}")));
        }
        orders.sort();
        orders.dedup();
        // Two orders of the branches, and five places of the fifth.
        assert_eq!(orders.len(), 10);
    }
}
