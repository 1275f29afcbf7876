//! Devices, and the door: the one function through which all work goes.

pub(crate) mod args;
mod capture;
mod communicator;
pub(crate) mod cpu;
pub(crate) mod cuda;
mod driver;
mod launch;
mod lineage;
mod locks;
mod open;
pub(crate) mod pieces;
pub(crate) mod program;
pub(crate) mod recording;
mod sim;
mod storage;
mod trace;
mod workspace;

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

pub(crate) use args::HostArgs;
pub(crate) use communicator::CollectiveCall;
pub use communicator::{Communicator, CommunicatorId, CommunicatorOptions, HostTransport, ReduceOp};
pub use cpu::instructions::cpu_instructions;
pub use cpu::parallel::on_one_thread;
pub(crate) use cuda::{CudaArgs, Hired};
pub use cuda::{CudaDevice, CudaReport, compile_kernel};
pub use driver::CaptureStatus;
pub(crate) use driver::{Driver, KernelSet};
pub(crate) use launch::{Kernel, Launch, Mode, OPERANDS, Operand, RESULTS};
pub(crate) use lineage::Lineage;
pub use recording::unrelated_to_recordings;
pub use sim::{Profile, SimGraph, SimStream, Simulator};
pub(crate) use storage::{Storage, Watch};

use crate::error::{Error, Result};
use crate::recycled::Recycled;
use cuda::MmaKind;
use driver::Block;
use locks::{Locks, locked};
use pieces::Fill;
use program::{Bound, Executable};
use recording::Touched;
use workspace::Workspace;

/// The place where tensors are stored and operations run. It is a cheap handle.
///
/// ```
/// use refrain::{Device, DType, Tensor};
/// let device = Device::best();
/// let x = Tensor::zeros([2, 2], DType::F32, &device)?;
/// assert_eq!(x.device(), &device);
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    kind: DeviceKind,
    driver: Arc<dyn Driver>,
    counters: Arc<Counters>,
    workspace: Workspace,
}

/// The kinds of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A simulated GPU.
    Sim,
}

#[derive(Default)]
struct Counters {
    allocations: AtomicU64,
    frees: AtomicU64,
    live_bytes: AtomicUsize,
    peak_bytes: AtomicUsize,
    uploads: AtomicU64,
    downloads: AtomicU64,
    launches: AtomicU64,
}

/// What a device has done so far. To measure a piece of code, read this before and after and subtract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// How many storages were made.
    pub allocations: u64,
    /// How many storages were dropped.
    pub frees: u64,
    /// How often the pool had no suitable block and asked the system for memory.
    pub system_allocations: u64,
    /// Bytes in use by tensors and saved values.
    pub live_bytes: usize,
    /// The maximum of `live_bytes` since the start or the last `reset_peak`.
    pub peak_bytes: usize,
    /// Bytes kept for reuse.
    pub pooled_bytes: usize,
    /// How many copies from the host to the device there were.
    pub uploads: u64,
    /// How many copies from the device to the host there were.
    pub downloads: u64,
    /// How many kernels were launched.
    pub launches: u64,
}

impl Device {
    /// Waits for all work queued so far. Use it for timing; reading a tensor waits by itself.
    ///
    /// # Errors
    /// [`Error::CaptureIncompatible`] during a capture; [`Error::NotRecordable`] within a [`Step`](crate::Step). On a
    /// GPU, an error of earlier work.
    ///
    /// # Errors of earlier work
    /// Some errors can only be seen by the GPU, such as an index out of range. It finds them while the work runs,
    /// after the call has returned. The device remembers the first such error. The next call on the device that
    /// launches, copies or waits, on any thread, returns it instead of doing its own work: an operation, a copy to or
    /// from the host, a [`Step::call`](crate::Step::call); at the latest `synchronize` or a read, which wait. The
    /// error names the operation that failed (not the one that reports it) and one of its bad indices. It is reported
    /// once; then the device can be used again. With `REFRAIN_SYNC=1` the device waits after each operation on CUDA,
    /// so the operation itself returns the error.
    ///
    /// Damaged is what the failed operation made of the bad index (NaN for floats, 0 for other dtypes, or nothing if
    /// it adds; the page of the operation says which). Damaged is also everything computed from that since: a loss,
    /// gradients, and through an optimiser parameters and moments, and running statistics. All other memory is
    /// correct. The damage lasts until you write those tensors again: clear the gradients, and load parameters and
    /// moments from the last checkpoint. A recorded step with good input computes its outputs and temporaries anew.
    ///
    /// On the CPU, the operation itself returns the error before anything is written. A recorded step stops there:
    /// what its earlier operations wrote to tensors from outside stays written, and its generators do not advance.
    pub fn synchronize(&self) -> Result<()> {
        cpu::parallel::refuse_engine("synchronize")?;
        recording::forbid(
            "synchronize",
            self,
            None,
            "a replay does not wait for its own work; wait after the step, or not at all, since reading waits by itself",
        )?;
        recording::enter("synchronize", self, std::iter::empty)?;
        self.0.driver.synchronize()
    }

    /// Whether a graph is being captured on the device's stream; `None` on devices that can't capture.
    pub fn capture_status(&self) -> CaptureStatus {
        self.0.driver.capture_status()
    }

    /// Which kernels of an operation the device runs.
    pub(crate) fn kernels(&self) -> KernelSet {
        self.0.driver.kernels()
    }

    /// Workspace bytes that the kernels of a launch need.
    pub(crate) fn workspace_bytes(&self, launch: &Launch<'_>) -> Result<usize> {
        self.0.driver.workspace(launch)
    }

    fn from_driver(kind: DeviceKind, driver: Arc<dyn Driver>) -> Device {
        Device(Arc::new(Inner { kind, driver, counters: Arc::default(), workspace: Workspace::default() }))
    }

    /// The kind of the device.
    pub fn kind(&self) -> DeviceKind {
        self.0.kind
    }

    /// The name of the device in errors, for example `cpu`.
    pub fn name(&self) -> String {
        self.0.driver.name()
    }

    /// What the device has done so far.
    pub fn stats(&self) -> Stats {
        let c = &self.0.counters;
        Stats {
            allocations: c.allocations.load(Ordering::Relaxed),
            frees: c.frees.load(Ordering::Relaxed),
            system_allocations: self.0.driver.system_allocations(),
            live_bytes: c.live_bytes.load(Ordering::Relaxed),
            peak_bytes: c.peak_bytes.load(Ordering::Relaxed),
            pooled_bytes: self.0.driver.pooled_bytes(),
            uploads: c.uploads.load(Ordering::Relaxed),
            downloads: c.downloads.load(Ordering::Relaxed),
            launches: c.launches.load(Ordering::Relaxed),
        }
    }

    /// Bytes that tensors can still take, including those kept for reuse, if the system reports it. On a GPU this is
    /// device memory. On the CPU it is host memory (on Linux within the limits of containers and of the process).
    pub fn free_bytes(&self) -> Option<usize> {
        let free = self.0.driver.free_bytes()?;
        Some(free.saturating_add(self.0.driver.pooled_bytes()))
    }

    /// Restarts `Stats::peak_bytes` from the bytes that are in use now.
    pub fn reset_peak(&self) {
        let c = &self.0.counters;
        c.peak_bytes.store(c.live_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns memory that is kept for reuse to the system. Returns the number of bytes.
    pub fn trim(&self) -> usize {
        self.0.driver.trim()
    }

    fn alloc(&self, op: &'static str, bytes: usize) -> Result<Block> {
        let c = &self.0.counters;
        let block = match self.0.driver.alloc(op, bytes) {
            Err(Error::OutOfMemory { .. }) => {
                let pooled = self.0.driver.trim();
                self.0.driver.alloc(op, bytes).map_err(|_| Error::OutOfMemory {
                    device: self.name(),
                    requested: bytes,
                    live: c.live_bytes.load(Ordering::Relaxed),
                    pooled,
                    free: self.0.driver.free_bytes(),
                })?
            }
            other => other?,
        };
        c.allocations.fetch_add(1, Ordering::Relaxed);
        let live = c.live_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        c.peak_bytes.fetch_max(live, Ordering::Relaxed);
        Ok(block)
    }

    fn free(&self, block: Block, bytes: usize) {
        self.0.counters.frees.fetch_add(1, Ordering::Relaxed);
        self.0.counters.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.0.driver.free(block);
    }

    /// The same driver in another handle. A storage may hold this handle and be in the device's own workspace without
    /// keeping the device alive.
    fn without_workspace(&self) -> Device {
        Device(Arc::new(Inner {
            kind: self.0.kind,
            driver: self.0.driver.clone(),
            counters: self.0.counters.clone(),
            workspace: Workspace::default(),
        }))
    }

    /// A workspace for a kernel, of at least `bytes` bytes.
    pub(crate) fn workspace(&self, op: &'static str, bytes: usize) -> Result<Recycled<Storage>> {
        // In a step, each launch has its own workspace, which is a temporary like any other.
        match recording::current() {
            Some(_) => Storage::new(op, self, bytes),
            None => self.0.workspace.get(op, bytes, self),
        }
    }

    /// **The door.** Every kernel of every operation goes through here.
    ///
    /// It locks the storages in the order of their ids (so that two launches never deadlock), shared if they are only
    /// read. It notes the name of the operation on watched ranges that it wrote. If this thread records a step, the
    /// launch is recorded instead of run. If another thread records one, the launch must be unrelated to it.
    pub(crate) fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        launch.verify()?;
        cpu::parallel::refuse_engine(launch.op)?;
        if recording::launch(self, launch)? {
            return Ok(());
        }
        self.0.driver.fault()?;
        trace::launch(launch);
        let locks = Locks::of(launch);
        let done = self.0.driver.launch(launch);
        // Also after a failure: the old values may be gone.
        for operand in launch.written() {
            operand.storage.note_write(&operand.byte_range(), launch.op, None);
        }
        drop(locks);
        self.0.counters.launches.fetch_add(1, Ordering::Relaxed);
        done
    }

    /// The matrix instructions of this device, if launches of a program are fused for it.
    pub(crate) fn fuses(&self) -> Option<MmaKind> {
        self.0.driver.fuses()
    }

    /// Whether launches of a program that do not wait for one another run side by side.
    pub(crate) fn overlaps_launches(&self) -> bool {
        self.0.driver.overlaps_launches()
    }

    pub(crate) fn keeps_temporaries_apart(&self) -> bool {
        self.0.driver.keeps_temporaries_apart()
    }

    /// Begins in the background what [`Device::compile`] of this program will wait for.
    pub(crate) fn compile_ahead(&self, program: &Bound<'_>) -> Option<Hired> {
        self.0.driver.compile_ahead(program)
    }

    /// Prepares a program in the driver, so that it can run again and again.
    pub(crate) fn compile(&self, program: &Bound<'_>) -> Result<Box<dyn Executable>> {
        self.0.driver.compile(program)
    }

    /// The door for a whole program: its external storages are locked once for all launches.
    pub(crate) fn replay(&self, program: &Bound<'_>, executable: &dyn Executable) -> Result<()> {
        self.run(program, 1, |driver| executable.run(program, driver))
    }

    /// Runs a program several times and measures the time of each launch in each run.
    pub(crate) fn time(&self, program: &Bound<'_>, runs: usize) -> Result<Vec<Vec<Duration>>> {
        self.run(program, runs, |driver| driver.time(program, runs))
    }

    fn run<R>(&self, program: &Bound<'_>, times: usize, run: impl Fn(&dyn Driver) -> Result<R>) -> Result<R> {
        self.0.driver.fault()?;
        recording::enter("step", self, || program.touches())?;
        program.effects.check()?;
        if trace::enabled() {
            (0..program.len()).for_each(|at| program.with_launch(at, trace::launch));
        }
        let done = locked(program.touched, || {
            let done = run(&*self.0.driver);
            program.note_writes();
            done
        });
        program.effects.done();
        self.0.counters.launches.fetch_add((times * program.len()) as u64, Ordering::Relaxed);
        done
    }

    /// Copies host bytes into a storage, in order with the launches before and after.
    pub(crate) fn upload(
        &self,
        op: &'static str,
        from: &[u8],
        storage: &Storage,
        offset: usize,
    ) -> Result<()> {
        self.uploading(op, storage, offset..offset + from.len(), || {
            self.0.driver.upload(op, from, storage.block(), offset)
        })
    }

    /// As [`Device::upload`], from a source that fills pieces. The storage's lock is held meanwhile.
    pub(crate) fn upload_pieces(
        &self,
        op: &'static str,
        bytes: usize,
        fill: &Fill<'_>,
        storage: &Storage,
        offset: usize,
    ) -> Result<()> {
        self.uploading(op, storage, offset..offset + bytes, || {
            self.0.driver.upload_pieces(op, bytes, fill, storage.block(), offset)
        })
    }

    /// Checks an upload into a range of a storage, and does it.
    fn uploading(
        &self,
        op: &'static str,
        storage: &Storage,
        range: Range<usize>,
        upload: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if range.end > storage.bytes() {
            return Err(Error::internal(op, "an upload reaches beyond its storage"));
        }
        cpu::parallel::refuse_engine(op)?;
        recording::forbid(
            op,
            self,
            Some(storage),
            "it copies values from the host, which a replay would not repeat; make the tensor before the step and use it in the closure, pass the values as an input, or fill a tensor on the device (full, arange)",
        )?;
        recording::enter(op, self, || std::iter::once(Touched::new(storage, range.clone(), true)))?;
        self.0.driver.fault()?;
        let _lock = storage.lock.write().unwrap_or_else(PoisonError::into_inner);
        self.0.counters.uploads.fetch_add(1, Ordering::Relaxed);
        upload()?;
        storage.note_write(&range, op, None);
        Ok(())
    }

    /// Copies the bytes of a storage to the host, after all work that writes them.
    pub(crate) fn download(
        &self,
        op: &'static str,
        storage: &Storage,
        offset: usize,
        to: &mut [u8],
    ) -> Result<()> {
        if offset + to.len() > storage.bytes() {
            return Err(Error::internal(op, "a download reaches beyond its storage"));
        }
        cpu::parallel::refuse_engine(op)?;
        recording::forbid(
            op,
            self,
            Some(storage),
            "it copies values to the host, but a recording runs nothing that could be read; return the tensor from the closure and read it from the outputs, or keep the decision on the device (where_cond)",
        )?;
        let range = offset..offset + to.len();
        recording::enter(op, self, || std::iter::once(Touched::new(storage, range.clone(), false)))?;
        let _lock = storage.lock.read().unwrap_or_else(PoisonError::into_inner);
        self.0.counters.downloads.fetch_add(1, Ordering::Relaxed);
        self.0.driver.download(op, storage.block(), offset, to)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
impl Eq for Device {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.name())
    }
}
