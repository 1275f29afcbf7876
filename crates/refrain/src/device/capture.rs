//! Captures a recorded program as a graph. Each launch gets exactly the dependencies of the program, so independent
//! launches become parallel branches.

use std::cmp::Reverse;

use super::launch::Launch;
use crate::device::program::Bound;
use crate::error::{Error, Result};

/// A stream that is being captured.
pub(super) trait Capture {
    /// A node of the graph.
    type Node: Copy + Ord;

    /// Sets the nodes that the next work on the stream depends on.
    fn depend(&self, nodes: &mut [Self::Node]) -> Result<()>;

    /// The nodes that the next work on the stream would depend on: those of the work before it.
    fn dependencies(&self) -> Result<Vec<Self::Node>>;

    /// Adds the launch to the graph.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;
}

/// The launch at which a longest chain begins, of those that wait for nothing; if possible one that waits for no other rank either.
/// One that touches no bytes may be no node of the graph.
fn first_root(program: &Bound<'_>) -> Option<usize> {
    let mut heights = vec![0usize; program.len()];
    for at in (0..program.len()).rev() {
        for &wait in program.waits(at) {
            heights[wait] = heights[wait].max(heights[at] + 1);
        }
    }
    let rank = |at: usize| {
        program.with_launch(at, |launch| {
            let operands = launch.reads.iter().chain(launch.writes.iter().map(|(write, _)| write));
            let bytes: usize = operands.map(|operand| operand.byte_range().len()).sum();
            (bytes > 0).then_some((launch.kernel.communicator().is_some(), Reverse(heights[at]), bytes, at))
        })
    };
    let roots = (0..program.len()).filter(|&at| program.waits(at).is_empty());
    roots.filter_map(rank).min().map(|(.., at)| at)
}

/// Captures the program's launches. A longest chain begins with the first one.
pub(super) fn program<C: Capture>(stream: &C, program: &Bound<'_>) -> Result<()> {
    // For each launch, the nodes after which it is finished.
    let mut last: Vec<Vec<C::Node>> = vec![Vec::new(); program.len()];
    let mut has_successor = vec![false; program.len()];
    let first = first_root(program);
    let others = (0..program.len()).filter(|&at| Some(at) != first);
    for at in first.into_iter().chain(others) {
        let mut before: Vec<C::Node> = Vec::new();
        for &wait in program.waits(at) {
            has_successor[wait] = true;
            before.extend(&last[wait]);
        }
        before.sort_unstable();
        before.dedup();
        stream.depend(&mut before)?;
        program.with_launch(at, |launch| {
            let refused = |e| match e {
                Error::Device { op, device, message } => {
                    let message = format!("the driver refused it while a step was captured: {message}");
                    Error::Device { op, device, message }
                }
                other => other,
            };
            stream.launch(launch).map_err(refused)
        })?;
        last[at] = stream.dependencies()?;
    }
    // All nodes without a successor, so that the capture ends joined.
    let ends = last.iter().zip(&has_successor).filter(|(_, succeeded)| !**succeeded);
    let mut ends: Vec<C::Node> = ends.flat_map(|(nodes, _)| nodes.iter().copied()).collect();
    ends.sort_unstable();
    ends.dedup();
    stream.depend(&mut ends)
}
