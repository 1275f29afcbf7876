//! A queued launch, and the bytes that it touches.
#![allow(unsafe_code)] // Hands the operands' memory to kernels; see `device/args.rs`.

use std::ops::Range;

use crate::device::args::OnFault;
use crate::device::program::{Access, RecordedLaunch, StorageRef, Touching};
use crate::device::{Device, Launch, Mode, Storage, cpu};
use crate::error::Result;
use crate::recycled::Recycled;

/// Bytes of device memory that a launch touches.
pub(super) struct MemoryAccess {
    /// The address range from the first byte to the last.
    pub(super) range: Range<usize>,
    pub(super) reads: bool,
    pub(super) writes: bool,
    /// The storage that the memory was allocated for.
    pub(super) owner: u64,
    /// The address of the storage, and the elements in it.
    base: usize,
    access: Access,
}

impl MemoryAccess {
    fn new(storage: &Storage, access: &Access, reads: bool, writes: bool) -> MemoryAccess {
        let base = storage.block().address;
        let bytes = access.byte_range();
        let range = base + bytes.start..base + bytes.end;
        MemoryAccess { range, reads, writes, owner: storage.owner(), base, access: access.clone() }
    }

    /// Whether every byte of the range is touched.
    pub(super) fn is_dense(&self) -> bool {
        self.access.layout.is_contiguous()
    }

    /// The first byte that both touch.
    pub(super) fn meets(&self, other: &MemoryAccess) -> Option<usize> {
        let common = self.range.start.max(other.range.start)..self.range.end.min(other.range.end);
        if common.is_empty() {
            return None;
        }
        if self.is_dense() && other.is_dense() {
            return Some(common.start);
        }
        let mut touched = vec![false; common.len()];
        self.each(&common, |byte| touched[byte - common.start] = true);
        let mut first = None;
        other.each(&common, |byte| {
            if touched[byte - common.start] {
                first = Some(first.map_or(byte, |f: usize| f.min(byte)));
            }
        });
        first
    }

    /// Calls `f` with each byte of the elements inside `window`.
    fn each(&self, window: &Range<usize>, mut f: impl FnMut(usize)) {
        let (layout, size) = (&self.access.layout, self.access.dtype.size());
        let dims = layout.shape().dims();
        let mut index = vec![0usize; dims.len()];
        for _ in 0..layout.numel() {
            let offset: usize = index.iter().zip(layout.strides()).map(|(i, s)| i * s).sum();
            let at = self.base + (layout.offset() + offset) * size;
            (at..at + size).filter(|byte| window.contains(byte)).for_each(&mut f);
            for (i, n) in index.iter_mut().zip(dims).rev() {
                *i += 1;
                if *i < *n {
                    break;
                }
                *i = 0;
            }
        }
    }
}

impl Touching for &MemoryAccess {
    fn bytes(&self) -> (usize, Range<usize>) {
        (0, self.range.clone())
    }

    fn writes(&self) -> bool {
        self.writes
    }

    fn is_dense(&self) -> bool {
        MemoryAccess::is_dense(self)
    }

    fn is_same(&self, other: &Self) -> bool {
        let same = || {
            self.base == other.base
                && self.access.dtype == other.access.dtype
                && self.access.layout == other.access.layout
        };
        MemoryAccess::is_dense(self) && MemoryAccess::is_dense(other) || same()
    }
}

/// A launch with everything that its kernel needs.
pub(super) struct Work {
    launch: RecordedLaunch,
    storages: Vec<Recycled<Storage>>,
    /// What it reads, then what it writes. Empty ranges are left out.
    pub(super) touches: Vec<MemoryAccess>,
}

impl Work {
    pub(super) fn of(launch: &Launch<'_>) -> Result<Work> {
        let mut storages: Vec<Recycled<Storage>> = Vec::new();
        let recorded = RecordedLaunch::of(launch, |operand| {
            let known = storages.iter().position(|s| s.id() == operand.storage.id());
            let place = StorageRef::External(known.unwrap_or_else(|| {
                // Kernels run on the CPU, for which this is normal host memory.
                storages.push(operand.storage.alias(&Device::cpu()));
                storages.len() - 1
            }));
            Ok(Access { place, layout: operand.layout.clone().into(), dtype: operand.dtype })
        })?;
        let touch = |access: &Access, reads, writes| {
            let StorageRef::External(s) = access.place else { return None };
            Some(MemoryAccess::new(&storages[s], access, reads, writes)).filter(|t| !t.range.is_empty())
        };
        let reads = recorded.reads.iter().map(|a| touch(a, true, false));
        let writes = recorded.writes.iter().map(|(a, mode)| touch(a, *mode == Mode::Accumulate, true));
        let workspace = recorded.workspace.iter().map(|a| touch(a, false, true));
        let touches = reads.chain(writes).chain(workspace).flatten().collect();
        Ok(Work { launch: recorded, storages, touches })
    }

    pub(super) fn op(&self) -> &'static str {
        self.launch.op
    }

    /// Whether it waits for other ranks.
    pub(super) fn is_collective(&self) -> bool {
        self.launch.kernel.communicator().is_some()
    }

    /// Runs the kernel now. For an index out of range, it does what the kernel of a GPU does.
    ///
    /// # Safety
    /// The storages' memory is there, and nobody else touches it meanwhile.
    pub(super) unsafe fn run(&self) -> Result<()> {
        let storage = |place| match place {
            StorageRef::External(s) | StorageRef::Temporary(s) => &self.storages[s],
        };
        // SAFETY: the door verified the launch; the rest is the caller's promise.
        self.launch.with(storage, |launch| unsafe { cpu::run(launch, OnFault::Continue) })
    }
}
