//! Which product multiplies the rows of another one, so that both can share a kernel, each with what follows it.

use super::{Fusible, Node};
use crate::device::cuda::{MmaKind, Pointer, Product, Work};
use crate::device::program::{Access, RecordedLaunch};
use crate::kernels::products::cuda::feeds;

/// For each node, in the order in which they run, the one that becomes a part of its kernel. A node is at most in one kernel.
/// `waits` are the positions that each launch waits for, `launch` gives a launch by its position.
pub(super) fn next<'a>(
    nodes: &[Node],
    fusible: &[Option<Fusible>],
    waits: &[Vec<usize>],
    launch: &dyn Fn(usize) -> &'a RecordedLaunch,
    mma: MmaKind,
) -> Vec<Option<usize>> {
    let mut node_of = vec![0; waits.len()];
    for (i, node) in nodes.iter().enumerate() {
        node.members.iter().for_each(|&at| node_of[at] = i);
    }
    let product = |node: &Node| {
        node.members.iter().find_map(|&at| match &fusible[at].as_ref()?.work {
            Work::Product(product) => Some((at, &**product)),
            _ => None,
        })
    };
    let mut next: Vec<Option<usize>> = vec![None; nodes.len()];
    let mut is_next = vec![false; nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        // It runs where the last one of those runs that it waits for, so that it must be there that the rows come from.
        let waited = node.members.iter().flat_map(|&at| &waits[at]).map(|&at| node_of[at]);
        let Some(first) = waited.filter(|&other| other != i).max().filter(|&first| !is_next[first]) else {
            continue;
        };
        let both = || Some((product(&nodes[first])?, product(node)?));
        let Some(((_, before), (at, behind))) = both() else { continue };
        let passes = feeds(before, behind, mma)
            && next[first].is_none()
            && passes_rows(&nodes[first], node, (at, behind), launch);
        if passes {
            next[first] = Some(i);
            is_next[i] = true;
        }
    }
    next
}

/// Whether one node computes the rows that a product of another one multiplies, and they meet nowhere else.
fn passes_rows<'a>(
    first: &Node,
    second: &Node,
    (at, product): (usize, &Product),
    launch: &dyn Fn(usize) -> &'a RecordedLaunch,
) -> bool {
    let a = product.a.pointer;
    let Some((group, rows)) = first.group.as_ref().zip(launch(at).reads.get(a.number())) else {
        return false;
    };
    let launches = |node: &Node| node.members.iter().map(|&at| launch(at)).collect::<Vec<_>>();
    let (before, behind) = (launches(first), launches(second));
    let writes = |launches: &[&'a RecordedLaunch]| -> Vec<&'a Access> {
        launches.iter().flat_map(|launch| launch.writes.iter().map(|(write, _)| write)).collect()
    };
    let [written_before, written_behind] = [&before, &behind].map(|launches| writes(launches));
    let read_before = before.iter().flat_map(|launch| &launch.reads);
    let read_behind = second.members.iter().flat_map(|&member| {
        let reads = launch(member).reads.iter().enumerate();
        reads.filter(move |&(i, _)| (member, i) != (at, a.number())).map(|(_, read)| read)
    });
    // A block does not wait for others, which may still be at the first product.
    let meets = |access: &Access, others: &[&Access]| others.iter().any(|other| other.overlaps(access));
    let meet = read_before.into_iter().any(|read| meets(read, &written_behind))
        || read_behind.into_iter().any(|read| meets(read, &written_before))
        || written_before.iter().any(|write| meets(write, &written_behind));
    let has_workspace = before.iter().chain(&behind).any(|launch| launch.workspace.is_some());
    a == Pointer::read(a.number()) && group.computes_rows(rows) && !meet && !has_workspace
}
