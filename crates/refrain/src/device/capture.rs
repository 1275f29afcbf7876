//! Captures a recorded program as a graph. Each launch gets exactly the dependencies of the program, so independent
//! launches become parallel branches.

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

/// The launch that waits for nothing and touches the fewest bytes, if possible one that waits for no other rank either.
fn smallest_root(program: &Bound<'_>) -> Option<usize> {
    let size = |launch: &Launch<'_>| {
        let operands = launch.reads.iter().chain(launch.writes.iter().map(|(write, _)| write));
        let bytes: usize = operands.map(|operand| operand.byte_range().len()).sum();
        (launch.kernel.communicator().is_some(), bytes)
    };
    let roots = (0..program.len()).filter(|&at| program.waits(at).is_empty());
    roots.min_by_key(|&at| program.with_launch(at, size))
}

/// Captures the program's launches. The first one is the smallest of those that wait for nothing.
pub(super) fn program<C: Capture>(stream: &C, program: &Bound<'_>) -> Result<()> {
    // For each launch, the nodes after which it is finished.
    let mut last: Vec<Vec<C::Node>> = vec![Vec::new(); program.len()];
    let mut has_successor = vec![false; program.len()];
    let first = smallest_root(program);
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
