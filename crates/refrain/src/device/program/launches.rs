//! Launches to keep.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::device::launch::{Kernel, Launch, Mode, Operand, RESULTS};
use crate::device::storage::Storage;
use crate::error::Result;
use crate::recycled::{Recycled, emptied};
use crate::types::{DType, Layout};

/// In a replay, a list of up to this many operands is on the stack.
const INLINE: usize = 48;

/// Memory of longer lists, kept for the next replay. All threads share it: any may run the next replay, and one that has run none
/// before must not allocate either.
struct ListMemory(Mutex<Vec<Vec<Operand<'static>>>>);

static LISTS: ListMemory = ListMemory(Mutex::new(Vec::new()));

impl ListMemory {
    fn free(&self) -> MutexGuard<'_, Vec<Vec<Operand<'static>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` with a list of operands.
    fn with<'a, R>(
        &self,
        operands: impl ExactSizeIterator<Item = Operand<'a>>,
        f: impl FnOnce(&[Operand<'a>]) -> R,
    ) -> R {
        if operands.len() <= INLINE {
            return f(&operands.collect::<SmallVec<[_; INLINE]>>());
        }
        let kept = self.free().pop();
        let mut list = emptied(kept.unwrap_or_default());
        list.extend(operands);
        let done = f(&list);
        self.free().push(emptied(list));
        done
    }
}

/// A storage of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StorageRef {
    /// A storage that existed before, by its index in `Recorded::externals`.
    External(usize),
    /// A storage that the recording made, by its index in `Recorded::temporaries`.
    Temporary(usize),
}

/// An operand of a recorded launch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Access {
    pub(crate) place: StorageRef,
    /// Shared by all operands with this layout, because there are far more launches than layouts.
    pub(crate) layout: Arc<Layout>,
    pub(crate) dtype: DType,
}

impl Access {
    /// The range of the storage from the first byte to the last.
    pub(crate) fn byte_range(&self) -> Range<usize> {
        let span = self.layout.span();
        span.start * self.dtype.size()..span.end * self.dtype.size()
    }

    /// The number of bytes of its elements.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.numel() * self.dtype.size()
    }

    /// Whether both may touch a common byte.
    pub(crate) fn overlaps(&self, other: &Access) -> bool {
        let (a, b) = (self.byte_range(), other.byte_range());
        self.place == other.place
            && !a.is_empty()
            && !b.is_empty()
            && a.start < b.end
            && b.start < a.end
            && !(self.dtype == other.dtype && self.layout.is_disjoint(&other.layout))
    }
}

/// A recorded launch.
pub(crate) struct RecordedLaunch {
    pub(crate) op: &'static str,
    pub(crate) kernel: Box<dyn Kernel>,
    pub(crate) reads: Box<[Access]>,
    pub(crate) writes: Box<[(Access, Mode)]>,
    pub(crate) workspace: Option<Access>,
}

impl RecordedLaunch {
    /// Stores a launch; `access` converts its operands.
    pub(crate) fn of(
        launch: &Launch<'_>,
        mut access: impl FnMut(&Operand<'_>) -> Result<Access>,
    ) -> Result<RecordedLaunch> {
        let reads = launch.reads.iter().map(&mut access).collect::<Result<_>>()?;
        let writes = launch.writes.iter().map(|(o, mode)| Ok((access(o)?, *mode))).collect::<Result<_>>()?;
        let workspace = launch.workspace.as_ref().map(&mut access).transpose()?;
        Ok(RecordedLaunch { op: launch.op, kernel: launch.kernel.boxed(), reads, writes, workspace })
    }

    /// Calls `f` with the launch, over the storages that `storage` finds.
    pub(crate) fn with<'a, R>(
        &'a self,
        storage: impl Fn(StorageRef) -> &'a Recycled<Storage>,
        f: impl FnOnce(&Launch<'_>) -> R,
    ) -> R {
        let operand =
            |a: &'a Access| Operand { storage: storage(a.place), layout: &a.layout, dtype: a.dtype };
        let writes: SmallVec<[(Operand<'_>, Mode); RESULTS]> =
            self.writes.iter().map(|(a, mode)| (operand(a), *mode)).collect();
        LISTS.with(self.reads.iter().map(operand), |reads| {
            f(&Launch {
                op: self.op,
                kernel: &*self.kernel,
                reads,
                writes: &writes,
                workspace: self.workspace.as_ref().map(operand),
            })
        })
    }

    /// What the kernel writes, including its workspace.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Access> {
        self.writes.iter().map(|(a, _)| a).chain(&self.workspace)
    }

    /// All operands, each with whether it is written.
    pub(crate) fn accesses(&self) -> impl Iterator<Item = (&Access, bool)> {
        self.reads.iter().map(|a| (a, false)).chain(self.written().map(|a| (a, true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Tensor};

    #[test]
    fn a_thread_reuses_the_list_that_another_thread_has_made() {
        let x = Tensor::zeros([2], DType::F32, &Device::cpu()).unwrap();
        let memory = ListMemory(Mutex::new(Vec::new()));
        let list = |operands: usize| {
            let place = |list: &[Operand<'_>]| (list.as_ptr().addr(), list.len());
            memory.with((0..operands).map(|_| x.operand()), place)
        };
        let elsewhere = || std::thread::scope(|s| s.spawn(|| list(2 * INLINE)).join().unwrap());
        let (first, len) = elsewhere();
        assert_eq!(len, 2 * INLINE);
        // Another thread, and this one with fewer operands.
        assert_eq!([elsewhere().0, list(INLINE + 1).0], [first; 2]);
        assert_eq!(memory.free().len(), 1);
        // Short lists need no memory.
        assert_ne!(list(INLINE).0, first);
        // Two at the same time have one each.
        let both = memory.with((0..2 * INLINE).map(|_| x.operand()), |_| list(2 * INLINE).0);
        assert_ne!(both, first);
        assert_eq!(memory.free().len(), 2);
    }
}
