//! The locks of storages. They are always taken in the order of their ids, so that two pieces of work never deadlock.

use std::cell::Cell;
use std::sync::PoisonError;

use smallvec::SmallVec;

use super::launch::Launch;
use super::launch::{OPERANDS, RESULTS};
use super::storage::Storage;
use crate::recycled::{Recycled, emptied};
use crate::sync::{RwLockReadGuard, RwLockWriteGuard};

/// The lock of a storage while it is held.
enum Guard<'a> {
    Reading { _lock: RwLockReadGuard<'a, ()> },
    Writing { _lock: RwLockWriteGuard<'a, ()> },
}

impl<'a> Guard<'a> {
    fn of(storage: &'a Storage, writes: bool) -> Guard<'a> {
        match writes {
            true => Guard::Writing { _lock: storage.lock.write().unwrap_or_else(PoisonError::into_inner) },
            false => Guard::Reading { _lock: storage.lock.read().unwrap_or_else(PoisonError::into_inner) },
        }
    }
}

/// The locks of the storages of a launch, each taken once.
pub(super) struct Locks<'a> {
    _guards: SmallVec<[Guard<'a>; OPERANDS + RESULTS]>,
}

impl<'a> Locks<'a> {
    pub(super) fn of(launch: &Launch<'a>) -> Locks<'a> {
        let mut storages: SmallVec<[(&'a Storage, bool); OPERANDS + RESULTS]> = SmallVec::new();
        storages.extend(launch.written().map(|o| (&**o.storage, true)));
        storages.extend(launch.reads.iter().map(|o| (&**o.storage, false)));
        // For the same storage, writers first: a storage that is both read and written is locked exclusively.
        storages.sort_unstable_by_key(|&(s, writes)| (s.id(), !writes));
        storages.dedup_by_key(|(s, _)| s.id());
        Locks { _guards: storages.into_iter().map(|(storage, writes)| Guard::of(storage, writes)).collect() }
    }
}

thread_local! {
    /// The memory of the last list of guards, so that a replay allocates nothing.
    static GUARDS: Cell<Vec<Guard<'static>>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with all storages locked. They must be in the order of their ids.
pub(super) fn locked<R>(storages: &[(Recycled<Storage>, bool)], f: impl FnOnce() -> R) -> R {
    let mut guards = emptied(GUARDS.try_with(Cell::take).unwrap_or_default());
    guards.extend(storages.iter().map(|(storage, writes)| Guard::of(storage, *writes)));
    let result = f();
    let _ = GUARDS.try_with(|kept| kept.set(emptied(guards)));
    result
}
