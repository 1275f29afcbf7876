//! The locks of storages, taken in the order of their ids, so that two pieces of work never wait for each other.

use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

use smallvec::SmallVec;

use super::launch::Launch;
use super::storage::Storage;
use crate::ops::{OPERANDS, RESULTS};
use crate::recycled::Recycled;

/// The locks of a launch's storages, each once.
pub(super) struct Locks<'a> {
    _reading: SmallVec<[RwLockReadGuard<'a, ()>; OPERANDS]>,
    _writing: SmallVec<[RwLockWriteGuard<'a, ()>; RESULTS]>,
}

impl<'a> Locks<'a> {
    pub(super) fn of(launch: &Launch<'a>) -> Locks<'a> {
        let mut storages: SmallVec<[(&'a Storage, bool); OPERANDS + RESULTS]> = SmallVec::new();
        storages.extend(launch.written().map(|o| (&**o.storage, true)));
        storages.extend(launch.reads.iter().map(|o| (&**o.storage, false)));
        // Writers first among equals, so that a storage both read and written is locked exclusively.
        storages.sort_unstable_by_key(|&(s, writes)| (s.id(), !writes));
        storages.dedup_by_key(|(s, _)| s.id());
        let mut locks = Locks { _reading: SmallVec::new(), _writing: SmallVec::new() };
        for (storage, writes) in storages {
            match writes {
                true => locks._writing.push(storage.lock.write().unwrap_or_else(PoisonError::into_inner)),
                false => locks._reading.push(storage.lock.read().unwrap_or_else(PoisonError::into_inner)),
            }
        }
        locks
    }
}

/// Calls `f` with all storages locked, without any heap memory: a number of them at each level.
pub(super) fn locked(storages: &[(Recycled<Storage>, bool)], f: &mut dyn FnMut()) {
    const AT_ONCE: usize = 32;
    let (now, rest) = storages.split_at(storages.len().min(AT_ONCE));
    let mut reading: SmallVec<[RwLockReadGuard<'_, ()>; AT_ONCE]> = SmallVec::new();
    let mut writing: SmallVec<[RwLockWriteGuard<'_, ()>; AT_ONCE]> = SmallVec::new();
    for (storage, writes) in now {
        match writes {
            true => writing.push(storage.lock.write().unwrap_or_else(PoisonError::into_inner)),
            false => reading.push(storage.lock.read().unwrap_or_else(PoisonError::into_inner)),
        }
    }
    if rest.is_empty() { f() } else { locked(rest, f) }
}
