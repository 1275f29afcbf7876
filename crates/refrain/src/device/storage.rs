//! Storages: the memory of tensors. It is set when the storage is created and never replaced.

use std::ops::Range;
use std::sync::{OnceLock, PoisonError};

use smallvec::SmallVec;

use super::lineage::Lineage;
use super::recording::{self, StorageBirth};
use super::{Device, driver::Block};
use crate::error::{Error, Result};
use crate::recycled::{Recycled, recycle};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock};

/// The id of the next storage.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Memory that lives as long as a tensor or a saved value refers to it.
#[derive(Debug)]
pub(crate) struct Storage {
    id: u64,
    device: Device,
    bytes: usize,
    memory: StorageMemory,
    /// Held while a kernel or the host reads (shared) or writes (exclusive) the block.
    pub(super) lock: RwLock<()>,
    /// Made for the first watch; most storages have none.
    watches: OnceLock<Recycled<Mutex<Watches>>>,
    /// The number of watches. If it is 0, writers need no lock.
    watching: AtomicUsize,
    /// What all its tensors share that were never detached.
    lineage: Lineage,
}
recycle!(Storage);

/// Where the bytes of a storage are.
#[derive(Debug)]
enum StorageMemory {
    Own(Block),
    /// In the block of a recorded program, which this keeps alive.
    Part {
        block: Block,
        whole: Recycled<Storage>,
    },
    /// In the block of another storage, `owner`, which may be gone. For work that was queued while it existed.
    Alias {
        block: Block,
        owner: u64,
    },
    /// Nowhere: it was made while a step was recorded. The resulting program has memory for it.
    Recorded(StorageBirth),
}

/// Byte ranges whose values must not change.
#[derive(Debug, Default)]
struct Watches {
    slots: SmallVec<[Option<Watched>; 4]>,
    free: SmallVec<[usize; 4]>,
}
recycle!(Mutex<Watches>);

#[derive(Debug)]
struct Watched {
    range: Range<usize>,
    /// The recording that the watch belongs to, if any. Then only launches of that recording matter.
    recording: Option<u64>,
    /// The operation that overwrote the range.
    by: Option<&'static str>,
}

impl Storage {
    /// New memory. If this thread records a step, a storage without memory.
    pub(crate) fn new(op: &'static str, device: &Device, bytes: usize) -> Result<Recycled<Storage>> {
        let memory = match recording::birth(op, device, bytes)? {
            Some(birth) => StorageMemory::Recorded(birth),
            None => StorageMemory::Own(device.alloc(op, bytes)?),
        };
        Ok(Storage::with(Storage::next(), device, bytes, memory))
    }

    /// `bytes` bytes of `whole` from `offset` on. Parts of one storage may overlap: a recorded program uses them one
    /// after the other.
    pub(crate) fn part(
        op: &'static str,
        whole: &Recycled<Storage>,
        offset: usize,
        bytes: usize,
    ) -> Result<Recycled<Storage>> {
        if offset + bytes > whole.bytes {
            return Err(Error::internal(op, "a part reaches beyond its storage"));
        }
        let block = Block { address: whole.block().address + offset, bytes };
        Ok(Storage::with(
            Storage::next(),
            &whole.device,
            bytes,
            StorageMemory::Part { block, whole: whole.clone() },
        ))
    }

    /// The same memory with the same id, without keeping it alive. In stream order, the memory stays valid for the
    /// work that was queued so far.
    pub(super) fn alias(&self, device: &Device) -> Recycled<Storage> {
        let Block { address, bytes } = *self.block();
        let memory = StorageMemory::Alias { block: Block { address, bytes }, owner: self.owner() };
        Storage::with(self.id, device, self.bytes, memory)
    }

    /// The id of the storage that the block was allocated for.
    pub(super) fn owner(&self) -> u64 {
        match &self.memory {
            StorageMemory::Part { whole, .. } => whole.id,
            StorageMemory::Alias { owner, .. } => *owner,
            StorageMemory::Own(_) | StorageMemory::Recorded(_) => self.id,
        }
    }

    fn next() -> u64 {
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// The id that the next storage will get. All existing storages have lower ids.
    pub(crate) fn next_id() -> u64 {
        NEXT.load(Ordering::Relaxed)
    }

    fn with(id: u64, device: &Device, bytes: usize, memory: StorageMemory) -> Recycled<Storage> {
        Recycled::new(Storage {
            id,
            device: device.clone(),
            bytes,
            memory,
            lock: RwLock::new(()),
            watches: OnceLock::new(),
            watching: AtomicUsize::new(0),
            lineage: Lineage::default(),
        })
    }

    pub(crate) fn lineage(&self) -> &Lineage {
        &self.lineage
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

    /// The memory. A recorded storage has no address; the door never passes it to a driver.
    pub(super) fn block(&self) -> &Block {
        match &self.memory {
            StorageMemory::Own(block)
            | StorageMemory::Part { block, .. }
            | StorageMemory::Alias { block, .. } => block,
            StorageMemory::Recorded(_) => &Block { address: 0, bytes: 0 },
        }
    }

    /// The birth record of a storage without memory.
    pub(crate) fn birth(&self) -> Option<&StorageBirth> {
        match &self.memory {
            StorageMemory::Recorded(birth) => Some(birth),
            _ => None,
        }
    }

    fn watches(&self) -> MutexGuard<'_, Watches> {
        let watches = self.watches.get_or_init(|| Recycled::new(Mutex::default()));
        watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks every watched range that a write to `range` touches. A real write marks the ranges that the eager tape
    /// watches; a recorded write marks those of its own recording.
    pub(crate) fn note_write(&self, range: &Range<usize>, op: &'static str, recording: Option<u64>) {
        if self.watching.load(Ordering::Acquire) == 0 {
            return;
        }
        for watched in self.watches().slots.iter_mut().flatten() {
            let touched = watched.range.start < range.end && range.start < watched.range.end;
            if touched && watched.recording == recording && watched.by.is_none() {
                watched.by = Some(op);
            }
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let StorageMemory::Own(block) = &mut self.memory {
            let block = std::mem::replace(block, Block { address: 0, bytes: 0 });
            self.device.free(block, self.bytes);
        }
    }
}

/// Watches a byte range of a storage: has anything written to it since?
///
/// This takes the place of a version number of a saved value. Each write leaves its name on the ranges that it
/// touches, so that the error can say which operation wrote.
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
        watches.slots[slot] = Some(Watched { range, recording: recording::current(), by: None });
        storage.watching.fetch_add(1, Ordering::Release);
        drop(watches);
        Watch { storage: storage.clone(), slot }
    }

    /// Whether it watches this storage.
    pub(crate) fn is_of(&self, storage: &Recycled<Storage>) -> bool {
        self.storage.ptr_eq(storage)
    }

    /// Whether nothing else refers to the storage any more.
    pub(crate) fn is_last(&self) -> bool {
        self.storage.is_unique()
    }

    /// The first operation that wrote to the range since the watch began. In a recording, also one that would have
    /// written.
    pub(crate) fn overwritten_by(&self) -> Option<&'static str> {
        let (by, range) = match &self.storage.watches().slots[self.slot] {
            None => return None,
            Some(Watched { by, recording: Some(_), .. }) => return *by,
            Some(Watched { by, recording: None, range }) => (*by, range.clone()),
        };
        by.or_else(|| recording::overwritten_by(&self.storage, &range))
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
