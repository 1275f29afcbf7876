//! `REFRAIN_GUARD=1`: finds kernels that write where they did not declare it.
//!
//! Every buffer gets its own allocation with canaries before and after it. Around each launch, the bytes of all
//! buffers are summed: those that the launch does not declare as written must not change, and neither must the
//! canaries. This is slow. It is for tests, and for NVIDIA's checkers, which know allocations but not the buffers in
//! them.
//!
//! A graph runs many launches at once, which this can't tell apart. So with the guard, the engine makes no graphs: a
//! recorded program runs launch by launch.
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

/// Memory that the host can read.
pub(super) trait Memory {
    /// The bytes at an address. All work must be done.
    fn read(&self, op: &'static str, address: u64, bytes: usize) -> Result<Vec<u8>>;
}

impl Memory for Context {
    fn read(&self, op: &'static str, address: u64, bytes: usize) -> Result<Vec<u8>> {
        contents(address, bytes).map_err(|e| self.error(op, e))
    }
}

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
        self.watch(op, address, &contents(address, bytes)?);
        Ok(address)
    }

    /// Adds a buffer that lies between its canaries.
    fn watch(&self, op: &'static str, address: u64, contents: &[u8]) {
        let buffer = Buffer { bytes: contents.len(), writer: op, sum: Some(hash(contents)) };
        self.buffers().insert(address, buffer);
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
        memory: &impl Memory,
        op: &'static str,
        address: u64,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Held all the time; otherwise a launch of another thread would be blamed for this write.
        let mut buffers = self.buffers();
        run()?;
        if let Some(Buffer { bytes, writer, sum: Some(sum) }) = buffers.get_mut(&address) {
            *writer = op;
            *sum = hash(&memory.read(op, address, *bytes)?);
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
        memory: &impl Memory,
        launch: &Launch<'_>,
        run: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Held all the time; otherwise launches of other threads would be taken for writes of this one.
        let mut buffers = self.buffers();
        // Bytes outside the written ranges of their buffers must not change.
        let mut beside = BTreeMap::new();
        for (&address, buffer) in buffers.iter().filter(|(_, b)| b.sum.is_some()) {
            if writes_to(launch, address) {
                beside.insert(address, outside(memory, launch, address, buffer.bytes)?);
            }
        }
        let ran = run();
        // All sums are taken again, also after an error: the next launch is not to blame for what this one wrote.
        let mut found = Ok(None);
        for (&address, buffer) in buffers.iter_mut() {
            let what = buffer.check(memory, launch, address, beside.get(&address).copied());
            found = found.and_then(|first| Ok(first.or(what?)));
        }
        ran?;
        found?.map_or(Ok(()), |message| Err(Error::Internal { op: launch.op, message }))
    }
}

impl Buffer {
    /// Says what a launch did to this buffer that it had not declared, and takes the sum again. `beside` is the sum of
    /// the bytes that the launch does not write, if it writes to this buffer.
    fn check(
        &mut self,
        memory: &impl Memory,
        launch: &Launch<'_>,
        address: u64,
        beside: Option<u64>,
    ) -> Result<Option<String>> {
        let (op, bytes) = (launch.op, self.bytes);
        let slack = bytes.next_multiple_of(16) - bytes;
        let behind = address + bytes as u64;
        let mut found = None;
        for (at, size, place) in
            [(address - CANARY as u64, CANARY, "before"), (behind, CANARY + slack, "behind")]
        {
            let canary = memory.read(op, at, size)?;
            if let Some(i) = canary.iter().position(|&b| b != PATTERN) {
                found.get_or_insert(format!(
                    "the kernel wrote {place} a buffer of {bytes} bytes at {address:#x} (byte {i} of the canary)"
                ));
            }
        }
        let Some(sum) = &mut self.sum else { return Ok(found) };
        let after = hash(&memory.read(op, address, bytes)?);
        let before = std::mem::replace(sum, after);
        let broken = match beside {
            Some(before) => {
                self.writer = op;
                (outside(memory, launch, address, bytes)? != before).then(|| {
                    format!(
                        "the kernel wrote beside the declared range of a buffer of {bytes} bytes at {address:#x}"
                    )
                })
            }
            None => (after != before).then(|| {
                format!(
                    "the kernel wrote to a buffer of {bytes} bytes at {address:#x}, which is not declared as written \
                     ({} wrote to it last)",
                    self.writer
                )
            }),
        };
        Ok(found.or(broken))
    }
}

/// Whether a launch declares that it writes to the buffer at an address.
fn writes_to(launch: &Launch<'_>, address: u64) -> bool {
    launch.written().any(|o| o.storage.block().address as u64 == address)
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
fn outside(memory: &impl Memory, launch: &Launch<'_>, address: u64, bytes: usize) -> Result<u64> {
    let mut host = memory.read(launch.op, address, bytes)?;
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

#[cfg(test)]
mod tests {
    use super::super::tests::Planted;
    use super::*;
    use crate::device::Device;
    use crate::device::launch::{Mode, Operand};
    use crate::device::storage::Storage;
    use crate::recycled::Recycled;
    use crate::types::Layout;
    use crate::{DType, Tensor};

    const BUFFERS: usize = 3;
    const BYTES: usize = 64;
    /// From one buffer to the next.
    const APART: usize = 2048;

    /// Buffers between canaries, all of them in one tensor of the CPU.
    struct Watched {
        guard: Guard,
        memory: Tensor,
        buffers: [Recycled<Storage>; BUFFERS],
    }

    impl Memory for Tensor {
        fn read(&self, _: &'static str, address: u64, bytes: usize) -> Result<Vec<u8>> {
            let first = address as usize - self.storage().block().address;
            Ok(self.to_vec::<u8>()?[first..first + bytes].to_vec())
        }
    }

    impl Watched {
        fn new() -> Watched {
            let memory =
                Tensor::full([BUFFERS * APART], f64::from(PATTERN), DType::U8, &Device::cpu()).unwrap();
            let guard = Guard::default();
            let buffers = std::array::from_fn(|i| {
                let at = i * APART + CANARY;
                memory.narrow(0, at, BYTES).unwrap().fill(0.0).unwrap();
                let buffer = Storage::part("zeros", memory.storage(), at, BYTES).unwrap();
                guard.watch("zeros", buffer.block().address as u64, &[0; BYTES]);
                buffer
            });
            Watched { guard, memory, buffers }
        }

        /// Writes to a byte of a buffer, or beside it.
        fn set(&self, buffer: usize, byte: usize, value: u8) {
            let at = buffer * APART + CANARY + byte;
            self.memory.narrow(0, at, 1).unwrap().fill(f64::from(value)).unwrap();
        }

        /// The message about a launch that declares the first `n` bytes of some buffers.
        fn launch(
            &self,
            op: &'static str,
            declared: &[usize],
            n: usize,
            run: impl FnOnce(),
        ) -> Option<String> {
            let layout = Layout::contiguous([n].into());
            let operand =
                |&i: &usize| Operand { storage: &self.buffers[i], layout: &layout, dtype: DType::U8 };
            let writes: Vec<_> = declared.iter().map(|i| (operand(i), Mode::Replace)).collect();
            let launch = Launch { op, kernel: &Planted(op), reads: &[], writes: &writes, workspace: None };
            let done = self.guard.around(&self.memory, &launch, || {
                run();
                Ok(())
            });
            done.err().map(|e| match e {
                Error::Internal { op: blamed, message } if blamed == op => message,
                other => panic!("{other}"),
            })
        }
    }

    #[test]
    fn writes_that_are_declared_are_no_finding_and_others_name_the_last_writer() {
        let watched = Watched::new();
        let found = watched.launch("exp", &[0, 2], BYTES, || {
            watched.set(0, 0, 1);
            watched.set(2, BYTES - 1, 1);
        });
        assert_eq!(found, None);
        let found = watched.launch("log", &[0], BYTES, || watched.set(2, 3, 2)).unwrap();
        assert!(
            found.contains("64 bytes") && found.contains("not declared as written (exp wrote to it last)"),
            "{found}"
        );
        let found = watched.launch("log", &[0], BYTES / 2, || watched.set(0, BYTES / 2, 2)).unwrap();
        assert!(found.contains("beside the declared range"), "{found}");
        let found = watched.launch("log", &[0], BYTES, || watched.set(1, BYTES, 2)).unwrap();
        assert!(
            found.contains("behind a buffer of 64 bytes") && found.contains("byte 0 of the canary"),
            "{found}"
        );
    }

    #[test]
    fn a_launch_after_a_finding_or_a_failure_is_not_blamed_for_it() {
        let watched = Watched::new();
        // The undeclared write comes first in the order of addresses.
        let both = || {
            watched.set(0, 0, 7);
            watched.set(2, 0, 7);
        };
        assert!(watched.launch("exp", &[2], BYTES, both).unwrap().contains("zeros wrote to it last"));
        assert_eq!(watched.launch("log", &[1], BYTES, || {}), None);
        let layout = Layout::contiguous([BYTES].into());
        let operand = Operand { storage: &watched.buffers[1], layout: &layout, dtype: DType::U8 };
        let writes = [(operand, Mode::Replace)];
        let launch =
            Launch { op: "exp", kernel: &Planted("exp"), reads: &[], writes: &writes, workspace: None };
        let failed = watched.guard.around(&watched.memory, &launch, || {
            watched.set(1, 0, 9);
            Err(Error::invalid("exp", "on purpose"))
        });
        assert!(matches!(failed, Err(Error::InvalidArgument { op: "exp", .. })), "{failed:?}");
        assert_eq!(watched.launch("log", &[0], BYTES, || {}), None);
    }

    #[test]
    fn a_write_by_the_host_is_known_and_one_that_nobody_reports_is_found() {
        let watched = Watched::new();
        let address = watched.buffers[1].block().address as u64;
        let upload = || {
            watched.set(1, 5, 3);
            Ok(())
        };
        watched.guard.write(&watched.memory, "write_from", address, upload).unwrap();
        assert_eq!(watched.launch("log", &[0], BYTES, || {}), None);
        watched.set(1, 5, 4);
        let found = watched.launch("log", &[0], BYTES, || {}).unwrap();
        assert!(found.contains("write_from wrote to it last"), "{found}");
    }
}
