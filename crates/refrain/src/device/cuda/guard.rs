//! `REFRAIN_GUARD=1`: finds kernels that write where they did not declare it.
//!
//! Every buffer gets its own allocation with canaries before and after it. Around each launch, the bytes of all
//! buffers are summed: those that the launch does not declare as written must not change, and neither must the
//! canaries. This is slow. It is for tests, and for NVIDIA's checkers, which know allocations but not the buffers in
//! them.
//!
//! Launches that become part of a capture of the caller are not checked, because they run when the caller decides.
//! From then on, the memory that they write may change at any time, so only its canaries are checked.
#![allow(unsafe_code)] // Calls NVIDIA's driver.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::result::{self, DriverError};

use super::cache::hash;
use super::context::Context;
use crate::device::launch::Launch;
use crate::error::{Error, Result};

/// Bytes of a canary: a multiple of every alignment that kernels use.
const CANARY: usize = 512;
const PATTERN: u8 = 0xA5;

/// The live buffers, by address.
#[derive(Default)]
pub(super) struct Guard {
    buffers: Mutex<BTreeMap<u64, Buffer>>,
}

struct Buffer {
    bytes: usize,
    /// The operation that last wrote to it as declared. At first, the one that allocated it.
    writer: &'static str,
    /// The sum of its contents after the last declared write. `None` after a graph of the caller may write to it.
    sum: Option<u64>,
}

impl Guard {
    fn buffers(&self) -> MutexGuard<'_, BTreeMap<u64, Buffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn alloc(&self, op: &'static str, bytes: usize) -> std::result::Result<u64, DriverError> {
        let whole = bytes.next_multiple_of(16) + 2 * CANARY;
        // SAFETY: a context is current.
        let base = unsafe { result::malloc_sync(whole) }?;
        // SAFETY: the bytes were just allocated and nobody else knows them.
        unsafe { result::memset_d8_sync(base, PATTERN, whole) }?;
        let address = base + CANARY as u64;
        let sum = contents(address, bytes).map(|b| hash(&b))?;
        self.buffers().insert(address, Buffer { bytes, writer: op, sum: Some(sum) });
        Ok(address)
    }

    /// The stream must have been waited for.
    pub(super) fn free(&self, address: u64) {
        if self.buffers().remove(&address).is_some() {
            // SAFETY: allocated by `alloc`; its owner is gone and no work uses it.
            let _ = unsafe { result::free_sync(address - CANARY as u64) };
        }
    }

    /// Runs a write by the host to its end. `address` is the start of its buffer.
    pub(super) fn write(
        &self,
        context: &Context,
        op: &'static str,
        address: u64,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Held all the time; otherwise a launch of another thread would be blamed for this write.
        let mut buffers = self.buffers();
        run()?;
        if let Some(Buffer { bytes, writer, sum: Some(sum) }) = buffers.get_mut(&address) {
            *writer = op;
            *sum = hash(&contents(address, *bytes).map_err(|e| context.error(op, e))?);
        }
        Ok(())
    }

    /// A launch became part of a graph of the caller.
    pub(super) fn captured(&self, launch: &Launch<'_>) {
        let mut buffers = self.buffers();
        for operand in launch.written() {
            if let Some(buffer) = buffers.get_mut(&(operand.storage.block().address as u64)) {
                buffer.sum = None;
            }
        }
    }

    /// Runs a launch to its end and checks all buffers. Earlier work must be done.
    pub(super) fn around(
        &self,
        context: &Context,
        launch: &Launch<'_>,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Held all the time; otherwise launches of other threads would be taken for writes of this one.
        let mut buffers = self.buffers();
        let named = |address: u64| launch.written().find(|o| o.storage.block().address as u64 == address);
        // Bytes outside the written ranges of their buffers must not change.
        let mut beside = Vec::new();
        for (&address, buffer) in buffers.iter().filter(|(_, b)| b.sum.is_some()) {
            if named(address).is_some() {
                beside.push((
                    address,
                    outside(launch, address, buffer.bytes).map_err(|e| context.error(launch.op, e))?,
                ));
            }
        }
        run()?;
        let broken = |what: String| Err(Error::Internal { op: launch.op, message: what });
        for (&address, buffer) in buffers.iter_mut() {
            let read = |at: u64, bytes: usize| contents(at, bytes).map_err(|e| context.error(launch.op, e));
            let end = address + buffer.bytes as u64;
            let slack = buffer.bytes.next_multiple_of(16) - buffer.bytes;
            let canaries = [read(address - CANARY as u64, CANARY)?, read(end, CANARY + slack)?];
            for (canary, place) in canaries.iter().zip(["before", "behind"]) {
                if let Some(i) = canary.iter().position(|&b| b != PATTERN) {
                    return broken(format!(
                        "the kernel wrote {place} a buffer of {} bytes at {address:#x} (byte {i} of the canary)",
                        buffer.bytes
                    ));
                }
            }
            let Some(sum) = &mut buffer.sum else { continue };
            let after = hash(&read(address, buffer.bytes)?);
            // Report it once: the next launch is not to blame.
            let before = std::mem::replace(sum, after);
            if named(address).is_none() {
                if after != before {
                    return broken(format!(
                        "the kernel wrote to a buffer of {} bytes at {address:#x}, which is not declared as written \
                         ({} wrote to it last)",
                        buffer.bytes, buffer.writer
                    ));
                }
                continue;
            }
            buffer.writer = launch.op;
            if let Some((_, before)) = beside.iter().find(|(a, _)| *a == address) {
                let after =
                    outside(launch, address, buffer.bytes).map_err(|e| context.error(launch.op, e))?;
                if after != *before {
                    return broken(format!(
                        "the kernel wrote beside the declared range of a buffer of {} bytes at {address:#x}",
                        buffer.bytes
                    ));
                }
            }
        }
        Ok(())
    }
}

fn contents(address: u64, bytes: usize) -> std::result::Result<Vec<u8>, DriverError> {
    let mut host = vec![MaybeUninit::new(0u8); bytes];
    if bytes > 0 {
        // SAFETY: the bytes lie in a live allocation; this waits for work that comes before only by the legacy
        // stream, so callers wait for theirs first.
        unsafe { result::memcpy_dtoh_sync(&mut host, address) }?;
    }
    // SAFETY: every byte was initialised with 0 and then written by the driver.
    Ok(host.into_iter().map(|b| unsafe { b.assume_init() }).collect())
}

/// A sum of the bytes of a buffer outside all written elements.
fn outside(launch: &Launch<'_>, address: u64, bytes: usize) -> std::result::Result<u64, DriverError> {
    let mut host = contents(address, bytes)?;
    for operand in launch.written().filter(|o| o.storage.block().address as u64 == address) {
        let size = operand.dtype.size();
        let layout = operand.layout;
        let dims = layout.shape();
        for i in 0..layout.numel() {
            let (mut rest, mut at) = (i, layout.offset());
            for (d, stride) in dims.iter().zip(layout.strides()).rev() {
                at += rest % d * stride;
                rest /= d;
            }
            host[at * size..(at + 1) * size].fill(0);
        }
    }
    Ok(hash(&host))
}
