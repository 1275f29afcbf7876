//! How often the origin of the values in a piece of memory has changed.

use std::sync::PoisonError;

use crate::recycled::recycle;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// What a tensor and its views have in common: how often an operation has changed where the values in
/// their memory came from. Each tensor knows the number that its own history belongs to; a lower one means
/// that another view was written to since, with values of another origin.
///
/// The tensors of a storage share the one in it, but for those that `detach` has cut off, which share another.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    changes: AtomicU64,
    /// The operation that made the last change.
    by: Mutex<&'static str>,
}
recycle!(Lineage);

impl Lineage {
    /// How many changes there were.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn by(&self) -> &'static str {
        *self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes changes back that a recording made, where nothing ran; `by` made the one before.
    pub(crate) fn undo(&self, changes: u64, by: &'static str) {
        self.changes.fetch_sub(changes, Ordering::AcqRel);
        *self.by.lock().unwrap_or_else(PoisonError::into_inner) = by;
    }

    /// Notes a change; returns how many there are now.
    pub(crate) fn change(&self, op: &'static str) -> u64 {
        *self.by.lock().unwrap_or_else(PoisonError::into_inner) = op;
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }
}
