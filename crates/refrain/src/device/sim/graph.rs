//! A captured graph: its dependencies, a check that they are enough, and a run in one of the orders that they allow.
#![allow(unsafe_code)] // Runs kernels over the device's memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::machine::Rng;
use super::work::{MemoryAccess, Work};
use crate::device::program::{Order, Past, comes_before};
use crate::error::{Error, Result};

/// A launch in a graph, with the nodes that must finish before it begins.
pub(super) struct GraphNode {
    pub(super) work: Work,
    pub(super) waits: Vec<usize>,
}

/// A graph. Nodes wait only for earlier nodes.
pub(super) struct Graph {
    pub(super) nodes: Vec<GraphNode>,
}

impl Graph {
    /// Returns an error if two launches share a byte that one of them writes, or are collectives, and no path of edges
    /// orders them. It names the closest such pair; the edge between them is the missing one.
    pub(super) fn check(&self, device: &str) -> Result<()> {
        let mut order = Order::default();
        let mut past: Past<&MemoryAccess> = Past::default();
        // The earlier launch, the later one, and where they meet. The closest pair is the greatest.
        let mut closest: Option<(usize, Reverse<usize>, Reverse<usize>, [&MemoryAccess; 2])> = None;
        let mut collective: Option<usize> = None;
        for (later, node) in self.nodes.iter().enumerate() {
            order.add(&mut node.waits.clone());
            if node.work.is_collective()
                && let Some(earlier) = collective.replace(later)
                && !order.knows(earlier, later)
                && !comes_before(earlier, later, |n| &self.nodes[n].waits)
            {
                return Err(self.side_by_side([earlier, later], device));
            }
            for touch in &node.work.touches {
                for (earlier, other) in past.meeting(touch) {
                    if order.knows(earlier, later) || comes_before(earlier, later, |n| &self.nodes[n].waits) {
                        continue;
                    }
                    let Some(byte) = other.meets(touch) else { continue };
                    let closer = (earlier, Reverse(later), Reverse(byte));
                    if closest.is_none_or(|(e, l, b, _)| (e, l, b) < closer) {
                        closest = Some((closer.0, closer.1, closer.2, [other, touch]));
                    }
                }
            }
            past.add(later, node.work.touches.iter(), &order);
        }
        closest.map_or(Ok(()), |(earlier, Reverse(later), Reverse(byte), touches)| {
            Err(self.race([earlier, later], touches, byte, device))
        })
    }

    fn side_by_side(&self, launches: [usize; 2], device: &str) -> Error {
        let [a, b] = launches;
        let (earlier, op) = (self.nodes[a].work.op(), self.nodes[b].work.op());
        Error::Hazard {
            op,
            device: device.to_string(),
            message: format!(
                "launch {b} ({op}) and launch {a} ({earlier}) are collectives, and nothing orders them: one rank may begin with the first and another rank with the second, and each would wait for the other; the graph lacks the edge {a} -> {b}"
            ),
        }
    }

    /// Whether any launch waits for other ranks.
    pub(super) fn has_collectives(&self) -> bool {
        self.nodes.iter().any(|node| node.work.is_collective())
    }

    fn race(&self, launches: [usize; 2], touches: [&MemoryAccess; 2], byte: usize, device: &str) -> Error {
        let does = touches.map(|touch| if touch.writes { "writes" } else { "reads" });
        let [a, b] = launches;
        let (earlier, op) = (self.nodes[a].work.op(), self.nodes[b].work.op());
        Error::Hazard {
            op,
            device: device.to_string(),
            message: format!(
                "launch {b} ({op}) {} the byte at {byte:#x} of storage {}, which launch {a} ({earlier}) {}, and nothing orders them: the graph lacks the edge {a} -> {b}",
                does[1], touches[1].owner, does[0],
            ),
        }
    }

    /// A launch that nothing waits for, not even the end of the capture.
    pub(super) fn unjoined(&self, joined: &[usize]) -> Option<usize> {
        let mut followed = vec![false; self.nodes.len()];
        self.nodes.iter().flat_map(|n| &n.waits).chain(joined).for_each(|&n| followed[n] = true);
        followed.iter().position(|f| !f)
    }

    /// Runs all launches. Returns the first error of a kernel.
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

/// The nodes in an adversarial order that their dependencies allow.
fn order(waits: &[&[usize]], rng: &mut Rng) -> Vec<usize> {
    let mut missing: Vec<usize> = waits.iter().map(|w| w.len()).collect();
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); waits.len()];
    for (n, waits) in waits.iter().enumerate() {
        waits.iter().for_each(|&wait| followers[wait].push(n));
    }
    // As late as possible, depth first, or random.
    let style = rng.below(3);
    let mut arrived = 0;
    let mut arrive = |ready: &mut BinaryHeap<(usize, usize)>, n: usize| {
        arrived += 1;
        ready.push(([n, arrived, rng.below(usize::MAX)][style], n));
    };
    let mut ready = BinaryHeap::new();
    (0..waits.len()).filter(|&n| missing[n] == 0).for_each(|n| arrive(&mut ready, n));
    let mut order = Vec::with_capacity(waits.len());
    while let Some((_, n)) = ready.pop() {
        order.push(n);
        for &follower in &followers[n] {
            missing[follower] -= 1;
            if missing[follower] == 0 {
                arrive(&mut ready, follower);
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
        // 0 -> 1 -> 3 and 0 -> 2 -> 3, and 4 independent of them.
        let waits: [&[usize]; 5] = [&[], &[0], &[0], &[1, 2], &[]];
        let mut orders: Vec<Vec<usize>> = (0..200).map(|seed| order(&waits, &mut Rng::new(seed))).collect();
        for order in &orders {
            let at = |n| order.iter().position(|&o| o == n).unwrap();
            (0..5).for_each(|n| waits[n].iter().for_each(|&w| assert!(at(w) < at(n), "{order:?}")));
        }
        orders.sort();
        orders.dedup();
        // Two orders of the branches, times five positions of the fifth node.
        assert_eq!(orders.len(), 10);
    }
}
