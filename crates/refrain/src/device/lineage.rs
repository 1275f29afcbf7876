//! How often the origin of the values in a piece of memory has changed.

use std::sync::PoisonError;

use crate::recycled::recycle;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a tensor and its views share: how often an operation has given their memory values of another origin. Each
/// tensor stores the number of the change that its history belongs to. If that number is lower, another view was
/// written to since then, so the history is out of date.
///
/// All tensors of a storage share the lineage of the storage. Those that `detach` has separated share another one.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    changes: AtomicU64,
    /// The operation of the last change.
    by: Mutex<&'static str>,
}
recycle!(Lineage);

impl Lineage {
    /// The number of changes.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn by(&self) -> &'static str {
        *self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reverts changes of a recording, in which nothing ran. `by` is the operation of the change before.
    pub(crate) fn undo(&self, changes: u64, by: &'static str) {
        self.changes.fetch_sub(changes, Ordering::AcqRel);
        *self.by.lock().unwrap_or_else(PoisonError::into_inner) = by;
    }

    /// Counts a change. Returns the new number of changes.
    pub(crate) fn change(&self, op: &'static str) -> u64 {
        *self.by.lock().unwrap_or_else(PoisonError::into_inner) = op;
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }
}
