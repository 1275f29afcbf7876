//! The CPU device. It runs each kernel at once, in the order of the calling thread.
#![allow(unsafe_code)] // Hands the operands' memory to kernels; see `device/args.rs`.

pub(crate) mod bf16_pairs;
#[cfg(target_arch = "x86_64")]
mod f16c;
mod free;
pub(super) mod instructions;
pub(crate) mod math;
pub(crate) mod narrow;
pub(crate) mod numeric;
pub(crate) mod parallel;
pub(super) mod pool;
pub(crate) mod rectangle;
pub(crate) mod scratch;
pub(crate) mod simd;
mod team;
pub(crate) mod widen;

use super::args::{HostArgs, OnFault, copy_in, copy_out};
use super::driver::{Block, Driver};
use super::launch::{Launch, Operand};
use super::pieces;
use crate::device::program::{Bound, Executable, LaunchByLaunch};
use crate::error::Result;
use crate::sync::may_switch;
pub(super) use free::free_bytes;
use pool::Pool;

/// The CPU and memory of the host.
#[derive(Default)]
pub(crate) struct Cpu {
    pool: Pool,
}

impl Driver for Cpu {
    fn name(&self) -> String {
        "cpu".to_string()
    }

    fn alloc(&self, _: &'static str, bytes: usize) -> Result<Block> {
        self.pool.alloc(bytes)
    }

    fn free(&self, block: Block) {
        self.pool.free(block);
    }

    fn trim(&self) -> usize {
        self.pool.trim()
    }

    fn free_bytes(&self) -> Option<usize> {
        free_bytes()
    }

    fn pooled_bytes(&self) -> usize {
        self.pool.pooled_bytes()
    }

    fn system_allocations(&self) -> u64 {
        self.pool.system_allocations()
    }

    fn upload(&self, _: &'static str, from: &[u8], to: &Block, offset: usize) -> Result<()> {
        // SAFETY: the pool's blocks are host memory; the door holds the storage's lock exclusively.
        unsafe { copy_in(from, to, offset) };
        Ok(())
    }

    fn upload_threads(&self, bytes: usize) -> usize {
        pieces::threads(bytes)
    }

    fn download(&self, _: &'static str, from: &Block, offset: usize, to: &mut [u8]) -> Result<()> {
        // SAFETY: the pool's blocks are host memory; the door holds the storage's lock.
        unsafe { copy_out(from, offset, to) };
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        // SAFETY: the door verified the launch and holds the locks of its storages until this returns; the
        // pool's blocks are initialised host memory.
        unsafe { run(launch, OnFault::Stop) }
    }

    fn compile(&self, _: &Bound<'_>) -> Result<Box<dyn Executable>> {
        Ok(Box::new(OnAllThreads))
    }
}

/// Runs a launch's kernel now.
///
/// # Safety
/// As for [`HostArgs::new`], until this returns.
pub(super) unsafe fn run(launch: &Launch<'_>, on_fault: OnFault) -> Result<()> {
    may_switch();
    let bytes = |o: &Operand<'_>| o.layout.numel() * o.dtype.size();
    let all = launch.reads.iter().chain(launch.writes.iter().map(|(o, _)| o));
    let kernel = || {
        // SAFETY: the caller's promise.
        let mut args = unsafe { HostArgs::new(launch, on_fault) };
        launch.kernel.host(&mut args)?;
        args.reported()
    };
    match launch.kernel.communicator() {
        // It waits for other ranks, which may be threads of this process.
        Some(_) => kernel(),
        None if launch.kernel.needs_kernel_threads() => parallel::inside(kernel),
        None => parallel::run(all.map(bytes).sum(), launch.kernel.streams(), kernel),
    }
}

/// Runs all launches of a program, which share their work with the other threads even if they are small: between them, these still
/// look for work.
struct OnAllThreads;

impl Executable for OnAllThreads {
    fn run(&self, program: &Bound<'_>, driver: &dyn Driver) -> Result<()> {
        parallel::replay(|| LaunchByLaunch.run(program, driver))
    }
}
