//! A recorded program as one CUDA graph: captured once, launched as a whole.
//!
//! Before the capture begins, every kernel is compiled and loaded and the memory of the program is allocated. So
//! nothing is allocated during a capture. The capture runs on a private stream. Each launch gets the
//! dependencies of the program, so independent launches become parallel branches behind one root.
#![allow(unsafe_code)] // Calls NVIDIA's driver.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{
    self, CUgraphInstantiate_flags, CUstreamCaptureMode, CUstreamCaptureStatus,
    CUstreamUpdateCaptureDependencies_flags,
};

use smallvec::SmallVec;

use super::args::{CudaArgs, Gpu, Sink};
use super::context::Context;
use super::driver::{Cuda, Resources};
use super::kernel::{Grid, KernelSpec};
use super::kernels::Wanted;
use super::memory::checked;
use super::overlap::{edges, overlap};
use super::params::Put;
use super::priority::{on_longest_chain, prioritise};
use super::product::{MmaKind, Product};
use crate::device::capture::{self, Capture};
use crate::device::communicator::{CollectiveCall, Communicator};
use crate::device::driver::Driver;
use crate::device::launch::Launch;
use crate::device::program::{Bound, Executable};
use crate::error::Result;

const OP: &str = "step";

/// An instantiated graph. The program that it was made from owns all memory that it touches.
pub(super) struct Graph {
    shared: Arc<Resources>,
    /// The stream of the device, on which the graph is in order with eager work.
    stream: sys::CUstream,
    handle: sys::CUgraphExec,
    sync: bool,
    /// The communicators of its collectives, once for each. NCCL waits for the graphs of a communicator before it ends one, so
    /// the graph must go first: this is dropped after the handle.
    collectives: Vec<Communicator>,
}

// SAFETY: the handles may be used from any thread, one launch at a time (the door holds the program's locks).
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Graph {
    /// Makes the graph of a program for a device's stream. The context must be entered.
    pub(super) fn new(cuda: &Cuda, program: &Bound<'_>) -> Result<Graph> {
        let mut warm = Warm::new(cuda);
        (0..program.len()).try_for_each(|at| program.with_launch(at, |launch| warm.add(launch)))?;
        cuda.shared().prepare(&warm.wanted)?;
        let whole = RefCell::default();
        let capture = |stream| {
            capture::program(&Capturing { cuda, stream, whole: &whole, root: Cell::new(None) }, program)
        };
        Ok(Graph::capture(cuda, Some(&whole), capture)?.with_collectives_of(program))
    }

    /// The same graph. Each launch counts the collectives of this program.
    pub(super) fn with_collectives_of(mut self, program: &Bound<'_>) -> Graph {
        let communicator = |at| program.with_launch(at, |launch| launch.kernel.communicator().cloned());
        self.collectives = (0..program.len()).filter_map(communicator).collect();
        self
    }

    /// Makes a graph of what `work` sends to a stream. With `whole`, kernels of its longest chains may overlap, but for the
    /// nodes in it.
    pub(super) fn capture(
        cuda: &Cuda,
        whole: Option<&RefCell<HashSet<sys::CUgraphNode>>>,
        work: impl FnOnce(sys::CUstream) -> Result<()>,
    ) -> Result<Graph> {
        let context = cuda.context();
        let stream = PrivateStream::new(context)?;
        let graph = Captured(capture(context, stream.0, work)?);
        if let Some(whole) = whole {
            let (edges, whole) = (edges(context, graph.0)?, whole.borrow());
            let first = on_longest_chain(&edges);
            overlap(context, graph.0, &edges, &cuda.shared().kernel_handles(), &first, &whole)?;
            // An exchange of gradients begins when the last weight gradient is there, so those must not wait.
            if whole.is_empty() {
                prioritise(context, &first)?;
            }
        }
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY.0;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the graph was just captured.
        checked(
            context,
            OP,
            unsafe { sys::cuGraphInstantiateWithFlags(&mut handle, graph.0, flags.into()) }.result(),
        )?;
        let graph = Graph {
            shared: cuda.shared().clone(),
            stream: cuda.stream(),
            handle,
            sync: cuda.waits_after_launches(),
            collectives: Vec::new(),
        };
        // SAFETY: both are valid; what is uploaded is the graph itself.
        checked(context, OP, unsafe { sys::cuGraphUpload(handle, graph.stream) }.result())?;
        Ok(graph)
    }

    /// Sends the graph to the device's stream. Its memory must exist.
    pub(super) fn launch(&self) -> Result<()> {
        let context = self.shared.context();
        let _entered = context.enter(OP)?;
        for communicator in &self.collectives {
            communicator.nccl(OP)?.usable(OP)?;
            communicator.begin(1);
        }
        // SAFETY: the graph is instantiated, and its memory lives with the program, which the caller has; the
        // stream is the device's.
        checked(context, OP, unsafe { sys::cuGraphLaunch(self.handle, self.stream) }.result())?;
        // SAFETY: the stream is valid.
        let captures = || unsafe { result::stream::is_capturing(self.stream) };
        if self.sync && matches!(captures(), Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)) {
            // SAFETY: the stream is valid.
            checked(context, OP, unsafe { result::stream::synchronize(self.stream) })?;
        }
        Ok(())
    }
}

impl Executable for Graph {
    fn run(&self, _: &Bound<'_>, _: &dyn Driver) -> Result<()> {
        self.launch()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_entered) = self.shared.context().enter("drop") {
            // SAFETY: instantiated once; the driver keeps what still runs until it is done.
            let _ = unsafe { sys::cuGraphExecDestroy(self.handle) };
        }
    }
}

/// Notes kernels instead of launching them.
pub(super) struct Warm<'a> {
    cuda: &'a Cuda,
    pub(super) wanted: Vec<Wanted>,
}

impl<'a> Warm<'a> {
    pub(super) fn new(cuda: &'a Cuda) -> Warm<'a> {
        Warm { cuda, wanted: Vec::new() }
    }

    /// Notes the kernels of a launch.
    pub(super) fn add(&mut self, launch: &Launch<'_>) -> Result<()> {
        launch.kernel.cuda(&mut CudaArgs::new(launch, self))
    }
}

impl Sink for Warm<'_> {
    fn kernel(&mut self, op: &'static str, spec: KernelSpec, grid: Grid, _: &dyn Put) -> Result<()> {
        self.wanted.push(Wanted { op, spec, shared: grid.shared });
        Ok(())
    }

    fn library_product(&mut self, _: &'static str, product: &Product) -> Result<bool> {
        // Makes the library choose its algorithm.
        Ok(self.cuda.library(product).is_some())
    }

    fn library_takes(&self, product: &Product) -> bool {
        self.cuda.library(product).is_some()
    }

    fn collective(&mut self, communicator: &Communicator, _: CollectiveCall) -> Result<()> {
        // It ran a first collective when it was made.
        communicator.nccl(OP)?.usable(OP)
    }

    fn mma(&self) -> MmaKind {
        self.cuda.mma()
    }

    fn multiprocessors(&self) -> usize {
        self.cuda.context().info.multiprocessors
    }
}

/// A stream for a capture.
struct PrivateStream(sys::CUstream);

impl PrivateStream {
    fn new(context: &Context) -> Result<PrivateStream> {
        checked(context, OP, result::stream::create(result::stream::StreamKind::NonBlocking))
            .map(PrivateStream)
    }
}

impl Drop for PrivateStream {
    fn drop(&mut self) {
        // SAFETY: made by `new`; a capture on it has ended.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// A graph that is destroyed after it was instantiated.
struct Captured(sys::CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: made by a capture, destroyed once.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

/// Captures what `work` sends to an idle, private stream.
fn capture(
    context: &Context,
    stream: sys::CUstream,
    work: impl FnOnce(sys::CUstream) -> Result<()>,
) -> Result<sys::CUgraph> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is private and idle.
    checked(context, OP, unsafe { result::stream::begin_capture(stream, mode) })?;
    let captured = work(stream);
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream captures; this ends the capture also when it was invalidated.
    let ended = unsafe { sys::cuStreamEndCapture(stream, &mut graph) }.result();
    match (captured, ended) {
        (Ok(()), Ok(())) => Ok(graph),
        (Err(e), ended) => {
            if ended.is_ok() {
                drop(Captured(graph));
            }
            Err(e)
        }
        (Ok(()), Err(e)) => Err(context.error(OP, e)),
    }
}

/// The launches, each after those that it waits for: of those that could come next, the one at which the longest chain begins. The
/// driver runs the first node behind another one without a break, and begins others behind it later.
///
/// The first launch touches bytes, because others would be no node of the graph, and if possible it waits for no other rank.
fn order(program: &Bound<'_>) -> Vec<usize> {
    let mut heights = vec![0usize; program.len()];
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); program.len()];
    for at in (0..program.len()).rev() {
        for &wait in program.waits(at) {
            heights[wait] = heights[wait].max(heights[at] + 1);
            after[wait].push(at);
        }
    }
    let rank = |at: usize| {
        program.with_launch(at, |launch| {
            let operands = launch.reads.iter().chain(launch.writes.iter().map(|(write, _)| write));
            let bytes: usize = operands.map(|operand| operand.byte_range().len()).sum();
            (bytes > 0).then_some((launch.kernel.communicator().is_some(), Reverse(heights[at]), bytes, at))
        })
    };
    let roots = || (0..program.len()).filter(|&at| program.waits(at).is_empty());
    let first = roots().filter_map(rank).min().map(|(.., at)| at);
    let mut missing: Vec<usize> = (0..program.len()).map(|at| program.waits(at).len()).collect();
    let mut ready: BinaryHeap<_> = roots().map(|at| (Some(at) == first, heights[at], Reverse(at))).collect();
    let mut order = Vec::with_capacity(program.len());
    while let Some((.., Reverse(at))) = ready.pop() {
        order.push(at);
        for &next in &after[at] {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push((false, heights[next], Reverse(next)));
            }
        }
    }
    order
}

/// The private stream during the capture.
struct Capturing<'a> {
    cuda: &'a Cuda,
    stream: sys::CUstream,
    /// The nodes of collectives. What waits for one waits for its end: NCCL's kernels are not ours to overlap.
    whole: &'a RefCell<HashSet<sys::CUgraphNode>>,
    /// The end of the first launch. What waits for nothing else waits for it, because a graph with several roots begins 10 to
    /// 20 microseconds late on an H100 (driver 580).
    root: Cell<Option<sys::CUgraphNode>>,
}

impl Capture for Capturing<'_> {
    type Node = sys::CUgraphNode;

    fn order(&self, program: &Bound<'_>) -> Vec<usize> {
        order(program)
    }

    fn depend(&self, nodes: &mut [sys::CUgraphNode]) -> Result<()> {
        let flags = CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES as u32;
        let mut root: SmallVec<[sys::CUgraphNode; 1]> = self.root.get().into_iter().collect();
        let nodes = if nodes.is_empty() { &mut root[..] } else { nodes };
        // SAFETY: the stream captures, and the nodes are of its graph.
        let set = unsafe {
            sys::cuStreamUpdateCaptureDependencies_v2(
                self.stream,
                nodes.as_mut_ptr(),
                std::ptr::null(),
                nodes.len(),
                flags,
            )
        };
        checked(self.cuda.context(), OP, set.result())
    }

    fn dependencies(&self) -> Result<Vec<sys::CUgraphNode>> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut nodes, mut count) = (std::ptr::null(), 0);
        let none = std::ptr::null_mut();
        // SAFETY: the stream captures; the outputs are a status, a pointer to nodes and their number.
        let status = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.stream,
                &mut status,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &mut nodes,
                none,
                &mut count,
            )
        };
        checked(self.cuda.context(), OP, status.result())?;
        if nodes.is_null() || count == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the driver's array of `count` nodes, valid until the next call on the stream.
        Ok(unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec())
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        self.cuda.run_on(self.stream, launch)?;
        if self.root.get().is_none() {
            self.root.set(self.dependencies()?.first().copied());
        }
        if launch.kernel.communicator().is_some() {
            self.whole.borrow_mut().extend(self.dependencies()?);
        }
        Ok(())
    }
}
