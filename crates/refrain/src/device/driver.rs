//! What the engine asks of a device.

use std::time::{Duration, Instant};

use crate::device::launch::Launch;
use crate::device::program::{Bound, Executable, LaunchByLaunch};
use crate::error::Result;

/// What the error of a kernel ends with that was found after the call that asked for the work had returned.
pub(in crate::device) const FOUND_LATE: &str = " (found by the GPU as it ran, and told by the next call on it; Device::synchronize says what is damaged)";

/// A piece of a device's memory.
#[derive(Debug)]
pub(crate) struct Block {
    /// Where it begins, in the device's address space.
    pub(crate) address: usize,
    /// Bytes that may be used.
    pub(crate) bytes: usize,
}

/// Whether a graph is being captured on a device's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// No capture; also on devices that can't capture.
    None,
    /// Work becomes part of a graph instead of running.
    Active,
    /// Something forbidden was done during the capture; it must be ended before the stream is of use.
    Invalidated,
}

/// Which of an operation's kernels a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelSet {
    /// Those in Rust; a simulated GPU does, too.
    Host,
    /// Those in CUDA C++.
    Cuda,
}

/// A kind of device. The engine is written once against this trait.
///
/// Everything is in stream order: what is asked for later happens after what was asked for earlier.
pub(crate) trait Driver: Send + Sync {
    /// The name that errors and the trace print: `cpu`, `cuda:0`.
    fn name(&self) -> String;

    /// Which of an operation's kernels it runs.
    fn kernels(&self) -> KernelSet {
        KernelSet::Host
    }

    /// Memory for at least `bytes` bytes. It holds initialised bytes of no particular value.
    fn alloc(&self, op: &'static str, bytes: usize) -> Result<Block>;

    /// Takes a block back, after all work asked for so far.
    fn free(&self, block: Block);

    /// Gives memory kept for reuse back to the system; says how many bytes.
    fn trim(&self) -> usize;

    /// Bytes that the system has free, where it tells.
    fn free_bytes(&self) -> Option<usize> {
        None
    }

    /// Bytes kept for reuse.
    fn pooled_bytes(&self) -> usize;

    /// How many times memory was asked of the system.
    fn system_allocations(&self) -> u64;

    /// Copies from the host into a block, at a byte offset.
    fn upload(&self, op: &'static str, from: &[u8], to: &Block, offset: usize) -> Result<()>;

    /// Copies from a block to the host, after all work that writes it.
    fn download(&self, op: &'static str, from: &Block, offset: usize, to: &mut [u8]) -> Result<()>;

    /// Waits for all work asked for so far.
    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    /// What kernels are known by now to have found wrong in the values that they met: the first such error, once.
    /// Waits for nothing as long as there is none.
    fn fault(&self) -> Result<()> {
        Ok(())
    }

    /// Whether a graph is being captured on the device's stream.
    fn capture_status(&self) -> CaptureStatus {
        CaptureStatus::None
    }

    /// Bytes of memory that a launch's kernels work in, beside operands and results.
    fn workspace(&self, _launch: &Launch<'_>) -> Result<usize> {
        Ok(0)
    }

    /// Runs a kernel. The door has checked the operands and holds their locks.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;

    /// Whether each temporary of a program gets a block of its own, for finding kernels that write beside theirs.
    fn keeps_temporaries_apart(&self) -> bool {
        false
    }

    /// Makes ready to run a recorded program again and again.
    fn compile(&self, _program: &Bound<'_>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(LaunchByLaunch))
    }

    /// Runs a program that was compiled, launch by launch, and takes the time of each launch in each run.
    fn time(&self, program: &Bound<'_>, runs: usize) -> Result<Vec<Vec<Duration>>> {
        let launch = |at| {
            let begun = Instant::now();
            program.with_launch(at, |launch| self.launch(launch))?;
            self.synchronize()?;
            Ok(begun.elapsed())
        };
        (0..runs).map(|_| (0..program.len()).map(launch).collect()).collect()
    }
}
