//! Captures a recorded program as a graph. Each launch gets exactly the dependencies of the program, so independent
//! launches become parallel branches.

use super::launch::Launch;
use crate::device::program::Bound;
use crate::error::{Error, Result};

/// A stream that is being captured.
pub(super) trait Capture {
    /// A node of the graph.
    type Node: Copy + Ord;

    /// The order in which launches become nodes. Each comes after those that it waits for.
    fn order(&self, program: &Bound<'_>) -> Vec<usize> {
        (0..program.len()).collect()
    }

    /// Sets the nodes that the next work on the stream depends on.
    fn depend(&self, nodes: &mut [Self::Node]) -> Result<()>;

    /// The nodes that the next work on the stream would depend on: those of the work before it.
    fn dependencies(&self) -> Result<Vec<Self::Node>>;

    /// Adds the launch to the graph.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;
}

/// Captures the program's launches.
pub(super) fn program<C: Capture>(stream: &C, program: &Bound<'_>) -> Result<()> {
    // For each launch, the nodes after which it is finished.
    let mut last: Vec<Vec<C::Node>> = vec![Vec::new(); program.len()];
    let mut has_successor = vec![false; program.len()];
    for at in stream.order(program) {
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
