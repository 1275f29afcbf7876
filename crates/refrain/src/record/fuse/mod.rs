//! Fuses launches: a launch that computes its results element by element joins those whose results it reads, so that an
//! element passes through all of them in one kernel. The first of them may be a product of matrices, or another launch that
//! takes a tail. A norm of the rows of a product's result may be the last, where a block of the product computes whole rows. What
//! only they read is never stored. A second product may follow with all of this, if it multiplies the rows of the first. Slices that are
//! picked by an index may be among the operands of a chain, and a reduction or a sum by an index may be its end.
//!
//! A rule looks at launches and not at models: [`work`] asks the kernel of a launch what it computes for one element. A
//! fused launch contains its parts. The CPU and the simulated GPU run the parts; CUDA runs one kernel with the same bits.

mod group;
mod launch;
mod names;
mod stages;

use std::sync::OnceLock;

use smallvec::SmallVec;

use super::edges::{Touch, edges};
use super::recorded::Recorded;
use super::verify::touches;
use crate::device::cuda::{MmaKind, Work, work};
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::device::{Device, Storage};
use crate::error::Result;
use crate::kernels::products::cuda::{takes_norm, takes_tail};
use crate::recycled::Recycled;
use group::{First, Group, Takes};
use launch::Members;

/// The launches of a program after the pass.
pub(super) struct Fused {
    /// Launches in order: numbers of recorded launches, and behind them those of `launches`.
    pub(super) order: Vec<usize>,
    pub(super) launches: Vec<RecordedLaunch>,
    /// For each of `launches`, the recorded launches that it contains, in order.
    pub(super) parts: Vec<Vec<usize>>,
}

/// A launch that computes its results element by element, slices that are picked, a norm of rows, or one that takes either of them.
struct Fusible {
    work: Work,
    /// What it touches, as a group of one.
    group: Group,
}

/// Launches that become one, or a launch that stays as it is.
struct Node {
    /// Positions in the order, ascending.
    members: Vec<usize>,
    /// Nodes run in the order of their places.
    place: usize,
    /// Whether another node waits for it.
    followed: bool,
    group: Option<Group>,
}

/// Whether `REFRAIN_FUSE=0` switches the pass off.
pub(super) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var("REFRAIN_FUSE").map_or(true, |v| v != "0"))
}

/// Fuses the launches of `order` for GPUs with these matrix instructions.
pub(super) fn fuse(recorded: &Recorded, order: &[usize], mma: MmaKind) -> Result<Fused> {
    // Kernels are asked before memory has a place.
    let nowhere = Storage::new("step", &Device::cpu_scratch(), 0)?;
    let fusible: Vec<Option<Fusible>> =
        order.iter().map(|&n| Fusible::of(&recorded.launches[n], &nowhere, mma)).collect();
    let touches: Vec<Vec<Touch<'_>>> = order.iter().map(|&n| touches(&recorded.launches[n])).collect();
    let waits = edges(&touches);
    let uses = uses(recorded, order);
    // Whether nobody but these launches, of which the last is at a position, touches what the others write.
    let keeps_to_itself = |members: &[usize], last: usize| {
        let launch = |&at: &usize| &recorded.launches[order[at]];
        let touched: Vec<usize> = members.iter().chain([&last]).map(launch).flat_map(temporaries).collect();
        members.iter().map(launch).flat_map(|launch| &launch.writes).all(|(write, _)| match write.place {
            StorageRef::Temporary(t) => touched.iter().filter(|&&other| other == t).count() == uses[t],
            StorageRef::External(_) => false,
        })
    };
    let mut nodes = nodes(&fusible, &waits, &keeps_to_itself);
    nodes.sort_unstable_by_key(|node| node.place);

    let members = |node: &Node| node.members.iter().map(|&at| order[at]).collect::<Vec<usize>>();
    let build = |nodes: &[&Node]| {
        let stages =
            nodes.iter().map(|node| Members::of(node, order, &fusible)).collect::<Option<Vec<_>>>()?;
        launch::build(recorded, &stages, &uses)
    };
    let next = stages::next(&nodes, &fusible, &waits, &|at| &recorded.launches[order[at]], mma);
    let mut is_done = vec![false; nodes.len()];
    let mut fused = Fused { order: Vec::with_capacity(nodes.len()), launches: Vec::new(), parts: Vec::new() };
    for (i, node) in nodes.iter().enumerate() {
        if is_done[i] {
            continue;
        }
        let both = next[i].and_then(|next| Some((next, build(&[node, &nodes[next]])?)));
        let mut parts = members(node);
        let launch = match both {
            Some((next, launch)) => {
                is_done[next] = true;
                parts.extend(members(&nodes[next]));
                Some(launch)
            }
            None => (parts.len() > 1).then(|| build(&[node])).flatten(),
        };
        match launch {
            None => fused.order.extend(parts),
            Some(launch) => {
                fused.order.push(recorded.launches.len() + fused.launches.len());
                fused.launches.push(launch);
                fused.parts.push(parts);
            }
        }
    }
    Ok(fused)
}

impl Fusible {
    fn of(launch: &RecordedLaunch, nowhere: &Recycled<Storage>, mma: MmaKind) -> Option<Fusible> {
        let kernel = &launch.kernel;
        let may_be = kernel.communicator().is_none()
            && launch.writes.first().is_some_and(|(write, _)| write.layout.numel() > 0);
        if !may_be {
            return None;
        }
        let work = launch.with(|_| nowhere, |launch| work(launch, mma))?;
        if kernel.can_fail() && !matches!(work, Work::Pick(_)) {
            return None;
        }
        let group = match &work {
            Work::Pieces(_) if launch.workspace.is_some() => None,
            Work::Pieces(pieces) => Group::of(launch, pieces),
            Work::Pick(pick) => Group::of_pick(launch, pick),
            Work::Product(product) => {
                let takes = Takes { tail: takes_tail(product, mma), norm: takes_norm(product, mma) };
                let first = (takes.tail || takes.norm).then(|| First::product(product));
                first.and_then(|first| Group::of_first(launch, first, takes))
            }
            Work::Elements(elements) => {
                Group::of_first(launch, First::elements(&**elements), Takes { tail: true, norm: false })
            }
            Work::Norm(norm) => Group::of_norm(launch, norm),
            Work::Summing(summing) => Group::of_summing(launch, &**summing),
        };
        Some(Fusible { work, group: group? })
    }
}

/// The operand that is a product's first factor.
fn factor<'a>(work: &Work, launch: &'a RecordedLaunch) -> Option<&'a Access> {
    match work {
        Work::Product(product) => launch.reads.get(product.a.pointer.number()),
        _ => None,
    }
}

/// How many launches touch each temporary. An output is also read by the caller.
fn uses(recorded: &Recorded, order: &[usize]) -> Vec<usize> {
    let mut uses = vec![0; recorded.temporaries.len()];
    for &n in order {
        temporaries(&recorded.launches[n]).iter().for_each(|&t| uses[t] += 1);
    }
    for output in &recorded.outputs {
        if let StorageRef::Temporary(t) = output.place {
            uses[t] += 1;
        }
    }
    uses
}

/// The temporaries that a launch touches, each once.
fn temporaries(launch: &RecordedLaunch) -> SmallVec<[usize; 8]> {
    let of = |place| match place {
        StorageRef::Temporary(t) => Some(t),
        StorageRef::External(_) => None,
    };
    let mut all: SmallVec<[usize; 8]> =
        launch.accesses().filter_map(|(access, _)| of(access.place)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Puts launches into nodes. `waits` are the positions that each launch directly waits for.
///
/// A launch can join the nodes that it waits for in two ways, and neither needs a search. A node that nobody waits for
/// can run later: where the launch is. The last one of the nodes that a launch waits for can stay where it is, and
/// the launch runs there instead. A launch that takes a tail joins nothing: others join it. A norm joins nothing but these. A launch
/// that takes a head joins the one that computes what it adds up, and nothing joins it. If it may leave elements out, it joins only what
/// nobody else needs.
fn nodes(
    fusible: &[Option<Fusible>],
    waits: &[Vec<usize>],
    keeps_to_itself: &dyn Fn(&[usize], usize) -> bool,
) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::with_capacity(waits.len());
    let mut node_of: Vec<usize> = Vec::with_capacity(waits.len());
    for (at, waits) in waits.iter().enumerate() {
        let mut before: Vec<usize> = waits.iter().map(|&w| node_of[w]).collect();
        before.sort_unstable_by_key(|&b| std::cmp::Reverse(nodes[b].place));
        before.dedup();
        let mut group = fusible[at].as_ref().map(|f| f.group.clone());
        let begins = fusible[at].as_ref().is_some_and(|f| f.group.has_first());
        let (mut place, mut followed) = (at, false);
        let mut joined: SmallVec<[usize; 4]> = SmallVec::new();
        for (i, &b) in before.iter().enumerate() {
            let node = &mut nodes[b];
            // What takes a tail stays at its place: the factors of a product may be far larger than its result, and would be
            // kept for longer.
            let stays = node.group.as_ref().is_some_and(Group::has_first);
            let may_join = !begins && (i == 0 || !(node.followed || stays));
            let may_lead = |group: &Group| !group.leaves_out() || keeps_to_itself(&node.members, at);
            let whole =
                group.as_ref().zip(node.group.as_ref()).filter(|(group, _)| may_join && may_lead(group));
            match whole.and_then(|(group, other)| group.join(other)) {
                None => node.followed = true,
                Some(whole) => {
                    group = Some(whole);
                    joined.push(b);
                    if i == 0 {
                        (place, followed) = (node.place, node.followed);
                    }
                }
            }
        }
        let mut members: Vec<usize> =
            joined.iter().flat_map(|&b| std::mem::take(&mut nodes[b].members)).collect();
        members.push(at);
        members.sort_unstable();
        let node = joined.first().copied().unwrap_or(nodes.len());
        members.iter().filter(|&&member| member < at).for_each(|&member| node_of[member] = node);
        node_of.push(node);
        let whole = Node { members, place, followed, group };
        match nodes.get_mut(node) {
            Some(node) => *node = whole,
            None => nodes.push(whole),
        }
    }
    nodes.retain(|node| !node.members.is_empty());
    nodes
}
