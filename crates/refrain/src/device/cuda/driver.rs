//! The driver for NVIDIA GPUs. All work of a device goes to one stream, in order.
#![allow(unsafe_code)] // Calls NVIDIA's driver with the engine's memory.

use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUstreamCaptureStatus};

use super::args::{CudaArgs, Gpu, Sink};
use super::context::{self, Context, ProcessTable, Relaxed};
use super::cublaslt;
use super::faults::{Faults, Slot};
use super::graph::{Graph, Warm};
use super::guard::Guard;
use super::kernel::{Grid, KernelSpec};
use super::kernels::{self, Kernels, Wanted};
use super::memory::{self, Pool, Staging, checked};
use super::nccl::{self, Buffers, Nccl};
use super::params::{Addresses, Pointer, Put, Words};
use super::product::{MmaKind, Product};
use super::workers::{Hired, Job, Urgency, Workers};
use super::{compile, library, timed};
use crate::device::communicator::{CollectiveCall, Communicator, CommunicatorId};
use crate::device::driver::{self, Block, CaptureStatus, Driver, KernelSet};
use crate::device::launch::Launch;
use crate::device::pieces::{self, Fill};
use crate::device::program::{Bound, Executable, LaunchByLaunch};
use crate::error::{Error, Result};

/// What the devices of one context share.
pub(super) struct Resources {
    context: Context,
    pool: Pool,
    kernels: Kernels,
    compilers: Arc<Workers>,
    staging: Staging,
    faults: Faults,
    /// cuBLASLt, after it was searched for.
    products: OnceLock<Option<cublaslt::Library>>,
    /// `REFRAIN_GUARD=1`.
    guard: Option<Guard>,
}

/// A stream of a GPU, as a device of the engine.
pub(in crate::device) struct Cuda {
    shared: Arc<Resources>,
    stream: sys::CUstream,
    /// Memory whose owner was dropped during a capture. It is freed when the capture ends.
    deferred: Mutex<Vec<u64>>,
    /// The communicators of this device.
    communicators: Mutex<Vec<Weak<Nccl>>>,
    /// Where its kernels report indices out of range.
    faults: Slot,
    /// `REFRAIN_SYNC=1`: wait after each launch, so that an error names its operation.
    sync: bool,
}

// SAFETY: a stream handle may be used from any thread; the rest is Send and Sync.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

pub(super) fn flag(name: &str) -> bool {
    std::env::var(name).is_ok_and(|v| !v.is_empty() && v != "0")
}

/// The contexts in use, by handle. Streams of one context share kernels and memory.
static CONTEXTS: ProcessTable<usize, Arc<Resources>> = ProcessTable::new();

fn unavailable(device: String) -> impl Fn(String) -> Error {
    move |message| Error::Unavailable { device: device.clone(), message }
}

impl Resources {
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// The handles of the loaded kernels.
    pub(super) fn kernel_handles(&self) -> HashSet<sys::CUfunction> {
        self.kernels.handles()
    }

    /// Begins to compile those kernels that are new, side by side and in the background.
    fn begin(self: &Arc<Self>, wanted: &[Wanted], urgency: Urgency) -> Hired {
        let mut new = self.kernels.new_of(wanted);
        kernels::longest_first(&mut new);
        let job = |wanted| -> Job {
            let shared = self.clone();
            Box::new(move || shared.kernels.compile(&shared.context, wanted))
        };
        self.compilers.hire(new.into_iter().map(job).collect(), urgency)
    }

    /// Loads kernels, so that later launches find them. The new ones are compiled side by side.
    pub(super) fn prepare(self: &Arc<Self>, wanted: &[Wanted]) -> Result<()> {
        let _hired = self.begin(wanted, Urgency::Now);
        wanted
            .iter()
            .try_for_each(|w| self.kernels.ready(&self.context, w.op, w.spec.clone(), w.shared).map(drop))
    }

    fn of(context: Context) -> std::result::Result<Arc<Resources>, String> {
        library::nvrtc()?;
        compile::version()?;
        CONTEXTS.get(context.handle as usize, || {
            // SAFETY: the handle is valid for as long as the process runs.
            unsafe { result::ctx::set_current(context.handle) }.map_err(context::describe)?;
            let pool = Pool::new(&context).map_err(context::describe)?;
            Ok(Arc::new(Resources {
                context,
                pool,
                kernels: Kernels::default(),
                compilers: kernels::compilers(),
                staging: Staging::default(),
                faults: Faults::default(),
                products: OnceLock::new(),
                guard: flag("REFRAIN_GUARD").then(Guard::default),
            }))
        })
    }
}

impl Cuda {
    /// A new stream on a GPU.
    pub(in crate::device) fn open(ordinal: usize) -> Result<Cuda> {
        let unavailable = unavailable(format!("cuda:{ordinal}"));
        let shared = Context::primary(ordinal).and_then(Resources::of).map_err(&unavailable)?;
        let _entered = shared.context.enter("open")?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|e| unavailable(context::describe(e)))?;
        Cuda::new(shared, stream).map_err(unavailable)
    }

    /// A stream of the caller.
    ///
    /// # Safety
    /// `stream` is a valid stream (a `CUstream`) for as long as the device or a tensor on it lives.
    pub(in crate::device) unsafe fn lent(stream: *mut c_void) -> Result<Cuda> {
        let stream: sys::CUstream = stream.cast();
        // SAFETY: the caller's promise.
        let context = unsafe { Context::of_stream(stream) };
        let unavailable = unavailable("the lent stream".to_string());
        let shared = context.and_then(Resources::of).map_err(&unavailable)?;
        let _entered = shared.context.enter("open")?;
        Cuda::new(shared, stream).map_err(unavailable)
    }

    /// The context is current.
    fn new(shared: Arc<Resources>, stream: sys::CUstream) -> std::result::Result<Cuda, String> {
        let faults = shared.faults.slot().map_err(context::describe)?;
        let (deferred, communicators) = (Mutex::default(), Mutex::default());
        Ok(Cuda { shared, stream, deferred, communicators, faults, sync: flag("REFRAIN_SYNC") })
    }

    pub(super) fn context(&self) -> &Context {
        &self.shared.context
    }

    pub(super) fn shared(&self) -> &Arc<Resources> {
        &self.shared
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// `REFRAIN_SYNC=1`.
    pub(super) fn waits_after_launches(&self) -> bool {
        self.sync
    }

    /// Enters the context. Returns an error, before CUDA is called, if a capture is active.
    fn outside_capture(&self, op: &'static str, need: &str) -> Result<Relaxed> {
        let entered = self.context().enter(op)?;
        match self.capture_status() {
            CaptureStatus::None => self.free_deferred(op).map(|()| entered),
            _ => Err(Error::CaptureIncompatible {
                operation: format!("{op} ({need})"),
                device: self.context().name().to_string(),
            }),
        }
    }

    /// Frees what was dropped during a capture that has ended.
    fn free_deferred(&self, op: &'static str) -> Result<()> {
        let deferred = std::mem::take(&mut *self.deferred.lock().unwrap_or_else(PoisonError::into_inner));
        if deferred.is_empty() {
            return Ok(());
        }
        if let Some(guard) = &self.shared.guard {
            self.wait(op)?;
            deferred.into_iter().for_each(|address| guard.free(address));
            return Ok(());
        }
        for address in deferred {
            // SAFETY: from `alloc`; its owner is gone.
            checked(self.context(), op, unsafe { self.shared.pool.free(address, self.stream) })?;
        }
        Ok(())
    }

    /// Runs an upload into a block. The guard, if there is one, looks at it.
    fn guarded(&self, op: &'static str, to: &Block, upload: impl FnOnce() -> Result<()>) -> Result<()> {
        match &self.shared.guard {
            Some(guard) => guard.write(self.context(), op, to.address as u64, || {
                upload()?;
                self.wait(op)
            }),
            None => upload(),
        }
    }

    pub(super) fn wait(&self, op: &'static str) -> Result<()> {
        // SAFETY: the stream is valid.
        checked(self.context(), op, unsafe { result::stream::synchronize(self.stream) })
    }

    /// The errors that kernels had reported at the last wait, and communicators that have failed.
    fn reported(&self, op: &'static str) -> Result<()> {
        let communicators = self.communicators.lock().unwrap_or_else(PoisonError::into_inner);
        let alive: Vec<Arc<Nccl>> = communicators.iter().filter_map(Weak::upgrade).collect();
        drop(communicators);
        alive.iter().try_for_each(|nccl| nccl.check(op))?;
        self.faults.take().map_or(Ok(()), Err)
    }

    /// cuBLASLt with its plan for a product that suits it, if it is installed. It takes an eighth of a second to load and to
    /// open, so programs without such products don't.
    pub(super) fn library(
        &self,
        product: &Product,
    ) -> Option<(&cublaslt::Library, Arc<cublaslt::LibraryPlan>)> {
        let key = cublaslt::Key::of(product).filter(|_| !product.passes_rows(self.mma()))?;
        let open = || cublaslt::Library::open(&self.shared.context.info);
        let library = self.shared.products.get_or_init(open).as_ref()?;
        Some((library, library.plan(key)?))
    }

    /// Sends the kernels of a launch to a stream.
    pub(super) fn run_on(&self, stream: sys::CUstream, launch: &Launch<'_>) -> Result<()> {
        launch.kernel.cuda(&mut CudaArgs::new(launch, &mut Live { cuda: self, stream, launch }))
    }
}

/// Sends kernels to the stream.
struct Live<'a> {
    cuda: &'a Cuda,
    stream: sys::CUstream,
    launch: &'a Launch<'a>,
}

impl Live<'_> {
    fn addresses(&self) -> Addresses<'_> {
        Addresses { launch: self.launch, faults: self.cuda.faults.address(), looks: false }
    }
}

impl Sink for Live<'_> {
    fn kernel(&mut self, op: &'static str, spec: KernelSpec, grid: Grid, params: &dyn Put) -> Result<()> {
        let shared = &self.cuda.shared;
        let (context, kernels) = (&shared.context, &shared.kernels);
        let function = match kernels.loaded(context, op, &spec, grid.shared) {
            Some(function) => function?,
            None => {
                // With the other kernels of this launch, so that they are compiled side by side.
                let mut warm = Warm::new(self.cuda);
                warm.add(self.launch)?;
                shared.prepare(&warm.wanted)?;
                kernels.ready(context, op, spec, grid.shared)?
            }
        };
        let words = Words::of(self.addresses(), params)?;
        kernels::launch(context, self.stream, op, function, grid, &words)
    }

    fn library_product(&mut self, op: &'static str, product: &Product) -> Result<bool> {
        let Some((library, plan)) = self.cuda.library(product) else { return Ok(false) };
        let addresses = self.addresses();
        let bytes = self.launch.workspace.as_ref().map_or(0, |w| w.byte_range().len());
        let workspace = (addresses.of(Pointer::WORKSPACE)?, bytes);
        library.run(&plan, self.stream, product, &addresses, workspace).map_err(|message| Error::Device {
            op,
            device: self.cuda.context().name().to_string(),
            message,
        })?;
        Ok(true)
    }

    fn library_takes(&self, product: &Product) -> bool {
        self.cuda.library(product).is_some()
    }

    fn collective(&mut self, communicator: &Communicator, call: CollectiveCall) -> Result<()> {
        let op = self.launch.op;
        let Some((to, _)) = self.launch.writes.first() else {
            return Err(Error::internal(op, "a collective has no result"));
        };
        let from = self.launch.reads.first().unwrap_or(to);
        let buffers = Buffers {
            from: from.address(),
            to: to.address(),
            given: from.layout.numel(),
            got: to.layout.numel(),
            dtype: to.dtype,
        };
        communicator.nccl(op)?.run(op, call, &buffers, self.stream)?;
        // A replay counts those of its graph.
        if self.stream == self.cuda.stream {
            communicator.begin(1);
        }
        Ok(())
    }

    fn mma(&self) -> MmaKind {
        self.cuda.mma()
    }

    fn multiprocessors(&self) -> usize {
        self.cuda.context().info.multiprocessors
    }
}

impl Gpu for Cuda {
    fn mma(&self) -> MmaKind {
        MmaKind::of(self.context().info.compute_capability)
    }

    fn library_workspace(&self, _: &'static str, product: &Product) -> Result<Option<usize>> {
        Ok(self.library(product).map(|(_, plan)| plan.workspace))
    }
}

impl Driver for Cuda {
    fn name(&self) -> String {
        self.context().name().to_string()
    }

    fn kernels(&self) -> KernelSet {
        KernelSet::Cuda
    }

    fn alloc(&self, op: &'static str, bytes: usize) -> Result<Block> {
        let _entered = self.outside_capture(op, "which allocates memory")?;
        let address = match &self.shared.guard {
            Some(guard) => guard.alloc(op, bytes),
            None => self.shared.pool.alloc(bytes.max(1), self.stream),
        }
        .map_err(|e| memory::allocation_error(self.context(), op, bytes, e))?;
        Ok(Block { address: address as usize, bytes })
    }

    fn free(&self, block: Block) {
        let address = block.address as u64;
        // A lost device has nothing to free.
        let Ok(_entered) = self.context().enter("free") else { return };
        if self.capture_status() != CaptureStatus::None {
            self.deferred.lock().unwrap_or_else(PoisonError::into_inner).push(address);
            return;
        }
        if let Some(guard) = &self.shared.guard {
            let _ = self.wait("free");
            guard.free(address);
            return;
        }
        // SAFETY: from `alloc`; the storage that owned it is gone, and what its work queued comes before. An
        // error can't be told here: one that matters is sticky and meets the next call.
        let _ = unsafe { self.shared.pool.free(address, self.stream) }
            .map_err(|e| self.context().error("free", e));
    }

    fn trim(&self) -> usize {
        let Ok(_entered) = self.outside_capture("trim", "which waits for the device") else { return 0 };
        if self.wait("trim").is_err() {
            return 0;
        }
        self.shared.pool.trim()
    }

    fn free_bytes(&self) -> Option<usize> {
        let _entered = self.context().enter("stats").ok()?;
        memory::free_bytes()
    }

    fn pooled_bytes(&self) -> usize {
        let Ok(_entered) = self.context().enter("stats") else { return 0 };
        self.shared.pool.pooled()
    }

    fn system_allocations(&self) -> u64 {
        self.shared.pool.grown()
    }

    fn upload(&self, op: &'static str, from: &[u8], to: &Block, offset: usize) -> Result<()> {
        let _entered = self.outside_capture(op, "which copies from the host")?;
        let address = (to.address + offset) as u64;
        self.guarded(op, to, || {
            // SAFETY: the door checked the range; the storage's lock is held.
            let done = unsafe { self.shared.staging.upload(from, address, self.stream) };
            checked(self.context(), op, done)
        })
    }

    fn upload_pieces(
        &self,
        op: &'static str,
        bytes: usize,
        fill: &Fill<'_>,
        to: &Block,
        offset: usize,
    ) -> Result<()> {
        let _entered = self.outside_capture(op, "which copies from the host")?;
        let context = self.context();
        self.guarded(op, to, || {
            let begin = || Ok((context.enter(op)?, checked(context, op, self.shared.staging.lend())?));
            pieces::hand_out(bytes, pieces::threads(bytes), begin, |(_entered, pair), range| {
                let address = (to.address + offset + range.start) as u64;
                let piece = checked(context, op, pair.next())?;
                fill(range.start, piece.bytes(range.len()))?;
                // SAFETY: the door checked the range; the storage's lock is held.
                checked(context, op, unsafe { piece.upload(range.len(), address, self.stream) })
            })
        })
    }

    fn download(&self, op: &'static str, from: &Block, offset: usize, to: &mut [u8]) -> Result<()> {
        let _entered = self.outside_capture(op, "which reads on the host")?;
        let address = (from.address + offset) as u64;
        // SAFETY: the door checked the range; the storage's lock is held.
        checked(self.context(), op, unsafe { self.shared.staging.download(address, to, self.stream) })?;
        // If nothing was copied, nothing was waited for.
        if to.is_empty() { Ok(()) } else { self.reported(op) }
    }

    fn synchronize(&self) -> Result<()> {
        let _entered = self.outside_capture("synchronize", "which waits for the device")?;
        self.wait("synchronize")?;
        self.reported("synchronize")
    }

    fn fault(&self) -> Result<()> {
        if !self.faults.is_reported() {
            return Ok(());
        }
        let _entered = self.context().enter("synchronize")?;
        match self.capture_status() {
            // Then all words of the report are there.
            CaptureStatus::None => self.wait("synchronize").and_then(|()| self.reported("synchronize")),
            _ => Ok(()),
        }
    }

    fn capture_status(&self) -> CaptureStatus {
        // SAFETY: the stream is valid. A device that can't capture says so by an error: no capture.
        match unsafe { result::stream::is_capturing(self.stream) } {
            Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE) => CaptureStatus::Active,
            Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED) => CaptureStatus::Invalidated,
            _ => CaptureStatus::None,
        }
    }

    fn fuses(&self) -> Option<MmaKind> {
        Some(self.mma())
    }

    fn overlaps_launches(&self) -> bool {
        true
    }

    fn keeps_temporaries_apart(&self) -> bool {
        self.shared.guard.is_some()
    }

    fn workspace(&self, launch: &Launch<'_>) -> Result<usize> {
        let _entered = self.context().enter(launch.op)?;
        launch.kernel.cuda_workspace(launch, self)
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let _entered = self.context().enter(launch.op)?;
        if !self.sync && self.shared.guard.is_none() {
            return self.run_on(self.stream, launch);
        }
        // Waiting would break the capture, and work in a graph does not run yet.
        if self.capture_status() != CaptureStatus::None {
            self.run_on(self.stream, launch)?;
            if let Some(guard) = &self.shared.guard {
                guard.captured(launch);
            }
            return Ok(());
        }
        let run = || {
            self.run_on(self.stream, launch)?;
            self.wait(launch.op)
        };
        match &self.shared.guard {
            Some(guard) => {
                // For graphs of the caller.
                self.wait(launch.op)?;
                guard.around(self.context(), launch, run)?;
            }
            None => run()?,
        }
        self.reported(launch.op)
    }

    fn compile_ahead(&self, program: &Bound<'_>) -> Option<Hired> {
        let _entered = self.outside_capture("step", "which is captured itself").ok()?;
        let mut warm = Warm::new(self);
        // What fails here fails again when the program is compiled.
        let _ = (0..program.len()).try_for_each(|at| program.with_launch(at, |launch| warm.add(launch)));
        Some(self.shared.begin(&warm.wanted, Urgency::Later))
    }

    fn compile(&self, program: &Bound<'_>) -> Result<Box<dyn Executable>> {
        if self.shared.guard.is_some() {
            return Ok(Box::new(LaunchByLaunch));
        }
        let _entered = self.outside_capture("step", "which is captured itself")?;
        Ok(Box::new(Graph::new(self, program)?))
    }

    fn connect(&self, id: &CommunicatorId, rank: usize, size: usize, limit: Duration) -> Result<Arc<Nccl>> {
        const OP: &str = "communicator";
        let _entered = self.outside_capture(OP, "which waits for other ranks")?;
        let scratch = self.alloc(OP, size_of::<i64>())?;
        let address = scratch.address as u64;
        let made = nccl::connect(&self.shared, self.stream, address, id, [rank, size], limit);
        // A thread that is left behind may still use it.
        if !matches!(made, Err(Error::Collective { .. })) {
            self.free(scratch);
        }
        let nccl = made?;
        let mut communicators = self.communicators.lock().unwrap_or_else(PoisonError::into_inner);
        communicators.retain(|nccl| nccl.strong_count() > 0);
        communicators.push(Arc::downgrade(&nccl));
        Ok(nccl)
    }

    fn time(&self, program: &Bound<'_>, runs: usize) -> Result<Vec<Vec<Duration>>> {
        // The guard would not know what a graph writes, and blame the launches after it.
        if self.shared.guard.is_some() {
            return driver::time_calls(self, program, runs);
        }
        let _entered = self.outside_capture("profile", "which is captured itself")?;
        timed::time(self, program, runs)
    }
}
