//! The memory of tensors: set at creation, never replaced.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use smallvec::SmallVec;

use super::{Device, driver::Block};
use crate::error::Result;
use crate::recycled::{Recycled, recycle};

/// Memory that lives as long as a tensor or a saved value refers to it.
#[derive(Debug)]
pub(crate) struct Storage {
    id: u64,
    device: Device,
    bytes: usize,
    block: Block,
    /// Held while a kernel or the host reads (shared) or writes (exclusive) the block.
    pub(super) lock: RwLock<()>,
    watches: Mutex<Watches>,
    /// How many watches there are; spares writers the lock when nobody watches.
    watching: AtomicUsize,
}
recycle!(Storage);

/// Byte ranges whose values must stay as they are, each with the operation that wrote over it.
#[derive(Debug, Default)]
struct Watches {
    slots: SmallVec<[Option<(Range<usize>, Option<&'static str>)>; 4]>,
    free: SmallVec<[usize; 4]>,
}

impl Storage {
    pub(crate) fn new(op: &'static str, device: &Device, bytes: usize) -> Result<Recycled<Storage>> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let block = device.alloc(op, bytes)?;
        Ok(Recycled::new(Storage {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            device: device.clone(),
            bytes,
            block,
            lock: RwLock::new(()),
            watches: Mutex::default(),
            watching: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks every watched range that a write to `range` touches.
    pub(super) fn note_write(&self, range: &Range<usize>, op: &'static str) {
        if self.watching.load(Ordering::Acquire) == 0 {
            return;
        }
        for (watched, by) in self.watches().slots.iter_mut().flatten() {
            if watched.start < range.end && range.start < watched.end && by.is_none() {
                *by = Some(op);
            }
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let block = std::mem::replace(&mut self.block, Block { address: 0, bytes: 0 });
        self.device.free(block, self.bytes);
    }
}

/// Keeps an eye on a byte range of a storage: has anything written to it since?
///
/// This is the version of a saved value: instead of a number to compare, each write leaves its name
/// on the ranges that it touches, so that the error can say who wrote.
#[derive(Debug)]
pub(crate) struct Watch {
    storage: Recycled<Storage>,
    slot: usize,
}

impl Watch {
    pub(crate) fn new(storage: &Recycled<Storage>, range: Range<usize>) -> Watch {
        let mut watches = storage.watches();
        let slot = watches.free.pop().unwrap_or_else(|| {
            watches.slots.push(None);
            watches.slots.len() - 1
        });
        watches.slots[slot] = Some((range, None));
        storage.watching.fetch_add(1, Ordering::Release);
        drop(watches);
        Watch { storage: storage.clone(), slot }
    }

    /// The first operation that wrote to the range since the watch began.
    pub(crate) fn overwritten_by(&self) -> Option<&'static str> {
        self.storage.watches().slots[self.slot].as_ref().and_then(|(_, by)| *by)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watches = self.storage.watches();
        watches.slots[self.slot] = None;
        watches.free.push(self.slot);
        self.storage.watching.fetch_sub(1, Ordering::Release);
    }
}
