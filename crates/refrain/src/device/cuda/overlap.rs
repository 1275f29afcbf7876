//! Programmatic dependent launch: a kernel's prologue overlaps the end of the kernel before it, which hides launch
//! latency (CUDA C++ Programming Guide, "Programmatic Dependent Launch").
#![allow(unsafe_code)] // Calls NVIDIA's driver.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use cudarc::driver::sys::{
    self, CUgraph, CUgraphDependencyType, CUgraphEdgeData, CUgraphNode, CUgraphNodeType,
};

use super::context::Context;
use super::memory::checked;
use crate::error::Result;

const OP: &str = "step";
/// An edge whose later node begins after the earlier one has ended.
const WHOLE: CUgraphEdgeData = CUgraphEdgeData { from_port: 0, to_port: 0, type_: 0, reserved: [0; 5] };
/// The first compute capability that supports it.
const FIRST: i32 = 9;

/// An edge of a graph: the earlier and the later node, and its kind.
pub(super) type Edge = (CUgraphNode, CUgraphNode, CUgraphEdgeData);

/// Changes edges between our own `kernels`, so that a kernel starts when all blocks of the kernels that it depends on have ended or
/// said that it may (`let_dependents_begin` in `prelude.cu`). It then waits for them itself, as all our kernels do
/// (`wait_for_dependencies`). What waits for a node in `whole` starts when that has ended, and so do kernels that are not to go
/// `first`: early, their blocks would take room from those that do. The graph must not be instantiated yet.
pub(super) fn overlap(
    context: &Context,
    graph: CUgraph,
    edges: &[Edge],
    kernels: &HashSet<sys::CUfunction>,
    first: &HashMap<CUgraphNode, bool>,
    whole: &HashSet<CUgraphNode>,
) -> Result<()> {
    if context.info.compute_capability.0 < FIRST {
        return Ok(());
    }
    let (mut from, mut to) = (Vec::new(), Vec::new());
    for &(earlier, later, data) in edges {
        let waits = function_of(context, later)?.is_some_and(|function| kernels.contains(&function));
        let early = waits && first.get(&later) == Some(&true) && !whole.contains(&earlier);
        if data == WHOLE && early && function_of(context, earlier)?.is_some() {
            from.push(earlier);
            to.push(later);
        }
    }
    let begun = CUgraphEdgeData {
        from_port: sys::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
        type_: CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
        ..WHOLE
    };
    if from.is_empty() {
        return Ok(());
    }
    let data = vec![begun; from.len()];
    let (from, to, count) = (from.as_ptr(), to.as_ptr(), from.len());
    // SAFETY: the edges are of this graph; each list has `count` of them.
    let removed = unsafe { sys::cuGraphRemoveDependencies_v2(graph, from, to, null(), count) };
    checked(context, OP, removed.result())?;
    // SAFETY: as above; both ends of each edge are kernels.
    let added = unsafe { sys::cuGraphAddDependencies_v2(graph, from, to, data.as_ptr(), count) };
    checked(context, OP, added.result())
}

/// The edges of a graph.
pub(super) fn edges(context: &Context, graph: CUgraph) -> Result<Vec<Edge>> {
    let mut count = 0;
    // SAFETY: the graph is valid; this asks for the number of edges alone.
    let status = unsafe { sys::cuGraphGetEdges_v2(graph, null_mut(), null_mut(), null_mut(), &mut count) };
    // Without edges, the driver returns an error here or below. A program without launches has none.
    if status.result().is_err() || count == 0 {
        return Ok(Vec::new());
    }
    let (mut from, mut to, mut data) = (vec![null_mut(); count], vec![null_mut(); count], vec![WHOLE; count]);
    // SAFETY: each list has room for as many.
    let status = unsafe {
        sys::cuGraphGetEdges_v2(graph, from.as_mut_ptr(), to.as_mut_ptr(), data.as_mut_ptr(), &mut count)
    };
    checked(context, OP, status.result())?;
    Ok(from.into_iter().zip(to).zip(data).map(|((from, to), data)| (from, to, data)).collect())
}

/// The function of a kernel node.
pub(super) fn function_of(context: &Context, node: CUgraphNode) -> Result<Option<sys::CUfunction>> {
    let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the node is of a valid graph.
    checked(context, OP, unsafe { sys::cuGraphNodeGetType(node, &mut kind) }.result())?;
    if kind != CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL {
        return Ok(None);
    }
    let mut params = MaybeUninit::<sys::CUDA_KERNEL_NODE_PARAMS>::zeroed();
    // SAFETY: the node is a kernel, and there is room for what the driver tells of it.
    let status = unsafe { sys::cuGraphKernelNodeGetParams_v2(node, params.as_mut_ptr()) };
    checked(context, OP, status.result())?;
    // SAFETY: plain data, zero where the driver wrote nothing.
    Ok(Some(unsafe { params.assume_init() }.func))
}
