//! Priorities of the kernels of a graph. Where several are ready, those on a longest chain go first: a weight gradient that fills
//! the multiprocessors would keep the next input gradient waiting, for which everything else waits.
#![allow(unsafe_code)] // Calls NVIDIA's driver.

use std::collections::HashMap;
use std::mem::MaybeUninit;

use cudarc::driver::sys::{self, CUgraphNode, CUkernelNodeAttrValue, CUlaunchAttributeID};

use super::context::Context;
use super::memory::checked;
use super::overlap::{Edge, function_of};
use crate::error::Result;

const OP: &str = "step";
/// How many kernels shorter a chain may be that counts as a longest one.
const SLACK: usize = 1;

/// Of each node that has an edge, whether it is on a longest chain.
pub(super) fn on_longest_chain(edges: &[Edge]) -> HashMap<CUgraphNode, bool> {
    let edges: Vec<_> = edges.iter().map(|&(from, to, _)| (from, to)).collect();
    slacks(&edges).into_iter().map(|(node, slack)| (node, slack <= SLACK)).collect()
}

/// Gives kernels that go first the greatest priority and the others the least. Their graph must not be instantiated yet.
pub(super) fn prioritise(context: &Context, first: &HashMap<CUgraphNode, bool>) -> Result<()> {
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: a context is current; writes two integers.
    let range = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
    checked(context, OP, range.result())?;
    for (&node, &first) in first {
        if function_of(context, node)?.is_none() {
            continue;
        }
        // SAFETY: an integer array, for which zeros are valid; the member is set below.
        let mut value: CUkernelNodeAttrValue = unsafe { MaybeUninit::zeroed().assume_init() };
        value.priority = if first { greatest } else { least };
        let attribute = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY;
        // SAFETY: the node is a kernel of a valid graph, and the value has the member of this attribute.
        checked(
            context,
            OP,
            unsafe { sys::cuGraphKernelNodeSetAttribute(node, attribute, &value) }.result(),
        )?;
    }
    Ok(())
}

/// By how many nodes the longest chain through each node is shorter than the longest one of all.
fn slacks<N: Copy + Eq + std::hash::Hash>(edges: &[(N, N)]) -> HashMap<N, usize> {
    let forwards = heights(edges);
    let backwards = heights(&edges.iter().map(|&(from, to)| (to, from)).collect::<Vec<_>>());
    let through = |node: &N| forwards[node] + backwards[node];
    let longest = forwards.keys().map(through).max().unwrap_or(0);
    forwards.keys().map(|node| (*node, longest - through(node))).collect()
}

/// The length of the longest chain that ends at each node.
fn heights<N: Copy + Eq + std::hash::Hash>(edges: &[(N, N)]) -> HashMap<N, usize> {
    let mut heights: HashMap<N, usize> = HashMap::new();
    let mut waits: HashMap<N, usize> = HashMap::new();
    let mut after: HashMap<N, Vec<N>> = HashMap::new();
    for &(from, to) in edges {
        heights.insert(from, 0);
        heights.insert(to, 0);
        *waits.entry(to).or_default() += 1;
        after.entry(from).or_default().push(to);
    }
    let mut ready: Vec<N> = heights.keys().copied().filter(|node| !waits.contains_key(node)).collect();
    while let Some(node) = ready.pop() {
        let height = heights[&node] + 1;
        for next in after.remove(&node).unwrap_or_default() {
            let of_next = heights.entry(next).or_default();
            *of_next = height.max(*of_next);
            let left = waits.entry(next).or_default();
            *left -= 1;
            if *left == 0 {
                ready.push(next);
            }
        }
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_beside_a_longest_chain_have_slack() {
        // 0 to 4 is a chain, 5 and 6 are beside it, 7 reaches it late.
        let slack = slacks(&[(0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (5, 4), (1, 6), (7, 3)]);
        let expected = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (6, 2), (7, 2)];
        assert_eq!(slack, expected.into_iter().collect());
        assert!(slacks::<i32>(&[]).is_empty());
    }
}
