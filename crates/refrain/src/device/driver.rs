//! The interface between the engine and a kind of device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::communicator::CommunicatorId;
use crate::device::cuda::{Hired, MmaKind, Nccl};
use crate::device::launch::Launch;
use crate::device::pieces::{self, Fill};
use crate::device::program::{Bound, Executable, LaunchByLaunch};
use crate::error::{Error, Result};

/// The end of the message of a kernel's error that was found after the call had returned.
pub(in crate::device) const FOUND_LATE: &str = " (the GPU found it while running, and the next call on the device reports it; the documentation of Device::synchronize says what is damaged)";

/// A piece of a device's memory.
#[derive(Debug)]
pub(crate) struct Block {
    /// Its start, in the address space of the device.
    pub(crate) address: usize,
    /// Its usable size in bytes.
    pub(crate) bytes: usize,
}

/// Whether a graph is being captured on the stream of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// There is no capture. Devices that can't capture also return this.
    None,
    /// Work becomes part of a graph instead of running.
    Active,
    /// Something forbidden happened during the capture. End the capture before you use the stream again.
    Invalidated,
}

/// Which kernels of an operation a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelSet {
    /// The Rust kernels. A simulated GPU runs them, too.
    Host,
    /// The CUDA C++ kernels.
    Cuda,
}

/// A kind of device. The engine is written once, against this trait.
///
/// Everything happens in stream order: in the order of the calls.
pub(crate) trait Driver: Send + Sync {
    /// The name that errors and the trace print: `cpu`, `cuda:0`.
    fn name(&self) -> String;

    /// Which kernels of an operation it runs.
    fn kernels(&self) -> KernelSet {
        KernelSet::Host
    }

    /// Allocates at least `bytes` bytes. Their values are initialised but undefined.
    fn alloc(&self, op: &'static str, bytes: usize) -> Result<Block>;

    /// Frees a block after all work queued so far.
    fn free(&self, block: Block);

    /// Returns memory that is kept for reuse to the system. Returns the number of bytes.
    fn trim(&self) -> usize;

    /// Bytes that the system has free, if it reports them.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// Bytes kept for reuse.
    fn pooled_bytes(&self) -> usize;

    /// How many times memory was requested from the system.
    fn system_allocations(&self) -> u64;

    /// Copies from the host into a block, at a byte offset.
    fn upload(&self, op: &'static str, from: &[u8], to: &Block, offset: usize) -> Result<()>;

    /// How many threads [`Driver::upload_pieces`] uses for so many bytes.
    fn upload_threads(&self, _bytes: usize) -> usize {
        1
    }

    /// Copies into a block, at a byte offset, from a source that fills pieces.
    fn upload_pieces(
        &self,
        op: &'static str,
        bytes: usize,
        fill: &Fill<'_>,
        to: &Block,
        offset: usize,
    ) -> Result<()> {
        let begin = || Ok(vec![0; bytes.min(pieces::PIECE)]);
        pieces::hand_out(bytes, self.upload_threads(bytes), begin, |piece, range| {
            let piece = &mut piece[..range.len()];
            fill(range.start, piece)?;
            self.upload(op, piece, to, offset + range.start)
        })
    }

    /// Copies from a block to the host, after all work that writes it.
    fn download(&self, op: &'static str, from: &Block, offset: usize, to: &mut [u8]) -> Result<()>;

    /// Waits for all work queued so far.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// The first error that kernels are known to have found in values of operands. It is returned once. It waits only
    /// if there is such an error.
    fn fault(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a graph is being captured on the stream of the device.
    fn capture_status(&self) -> CaptureStatus {
        CaptureStatus::None
    }

    /// Workspace bytes that the kernels of a launch need.
    fn workspace(&self, _launch: &Launch<'_>) -> Result<usize> {
        Ok(0)
    }

    /// Runs a kernel. The door has checked the operands and holds their locks.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// The matrix instructions of the device, if a launch costs so much that programs with fewer launches are faster, so that
    /// launches are fused.
    fn fuses(&self) -> Option<MmaKind> {
        None
    }

    /// Whether launches of a program that do not wait for one another run side by side.
    fn overlaps_launches(&self) -> bool {
        false
    }

    /// Whether each temporary of a program gets its own block. This finds kernels that write next to theirs.
    fn keeps_temporaries_apart(&self) -> bool {
        false
    }

    /// Begins in the background what [`Driver::compile`] of this program will wait for.
    fn compile_ahead(&self, _program: &Bound<'_>) -> Option<Hired> {
        None
    }

    /// Prepares a recorded program, so that it can run again and again.
    fn compile(&self, _program: &Bound<'_>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(LaunchByLaunch))
    }

    /// Makes the communicator of a rank. It waits for the other ranks up to a time limit.
    fn connect(
        &self,
        _id: &CommunicatorId,
        _rank: usize,
        _size: usize,
        _limit: Duration,
    ) -> Result<Arc<Nccl>> {
        let message = format!(
            "{} has its memory on the host; use Communicator::over with a transport between processes, or Communicator::in_process",
            self.name()
        );
        Err(Error::invalid("communicator", message))
    }

    /// Runs a compiled program launch by launch and measures the time of each launch in each run.
    fn time(&self, program: &Bound<'_>, runs: usize) -> Result<Vec<Vec<Duration>>> {
        time_calls(self, program, runs)
    }
}

/// Runs a program call by call, waits after each, and measures the calls.
pub(in crate::device) fn time_calls<D: Driver + ?Sized>(
    driver: &D,
    program: &Bound<'_>,
    runs: usize,
) -> Result<Vec<Vec<Duration>>> {
    let launch = |at| {
        let begun = Instant::now();
        program.with_launch(at, |launch| driver.launch(launch))?;
        driver.synchronize()?;
        Ok(begun.elapsed())
    };
    (0..runs).map(|_| (0..program.len()).map(launch).collect()).collect()
}
