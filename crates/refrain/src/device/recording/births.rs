//! Storages that are made while a step is recorded: each is born with a number instead of memory.

use std::fmt;
use std::sync::{Arc, PoisonError};

use super::threads::Recording;
use crate::device::storage::Storage;
use crate::error::Error;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::types::{DType, Layout};

/// The storages that one recording made.
pub(crate) struct Births {
    recording: Arc<Recording>,
    born: Mutex<Vec<Born>>,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Born {
    op: &'static str,
    bytes: usize,
    /// What the first write to it looked like, after there was one.
    tensor: Option<(DType, Arc<Layout>)>,
    is_alive: bool,
}

impl Births {
    pub(super) fn new(recording: Arc<Recording>) -> Births {
        Births { recording, born: Mutex::default(), has_ended: AtomicBool::new(false) }
    }

    fn born(&self) -> MutexGuard<'_, Vec<Born>> {
        self.born.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(self: &Arc<Births>, op: &'static str, bytes: usize) -> StorageBirth {
        let mut born = self.born();
        born.push(Born { op, bytes, tensor: None, is_alive: true });
        StorageBirth { births: self.clone(), number: born.len() - 1 }
    }

    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// The number of a storage that was born in this recording.
    pub(crate) fn number(&self, storage: &Storage) -> Option<usize> {
        storage.birth().filter(|birth| std::ptr::eq(&*birth.births, self)).map(|birth| birth.number)
    }

    /// Notes what storage `number` was first written as, for errors that name it.
    pub(crate) fn is_written(&self, number: usize, dtype: DType, layout: &Arc<Layout>) {
        self.born()[number].tensor.get_or_insert_with(|| (dtype, layout.clone()));
    }

    /// The numbers of those that are still reachable.
    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..).zip(&*self.born()).filter(|(_, b)| b.is_alive).map(|(i, _)| i).collect()
    }

    /// The operation that made storage `number`.
    pub(crate) fn made_by(&self, number: usize) -> &'static str {
        self.born()[number].op
    }

    /// The operation that made each, and its bytes.
    pub(crate) fn sizes<T>(&self, each: impl Fn(&'static str, usize) -> T) -> Vec<T> {
        self.born().iter().map(|b| each(b.op, b.bytes)).collect()
    }

    /// The error of storage `number` where there is nothing in its place.
    pub(crate) fn escaped(&self, number: usize, message: String) -> Error {
        let born = self.born();
        let Born { op, bytes, tensor, .. } = &born[number];
        let tensor = match tensor {
            Some((dtype, layout)) => format!("{dtype} {}", layout.shape()),
            None => format!("{bytes} bytes"),
        };
        Error::Escaped { op, tensor, message }
    }
}

/// What a storage without memory knows about its recording. When it is dropped, it tells the recording.
pub(crate) struct StorageBirth {
    births: Arc<Births>,
    number: usize,
}

impl fmt::Debug for StorageBirth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Birth({})", self.number)
    }
}

impl StorageBirth {
    /// Whether the recording has ended, so that the storage will never get memory.
    pub(crate) fn is_over(&self) -> bool {
        self.births.has_ended.load(Ordering::Acquire)
    }

    /// The error for an operation that uses the storage outside its recording. If the recording still runs on another
    /// thread, this is its error, too.
    pub(crate) fn used_by(&self, op: &'static str) -> Error {
        let message = format!(
            "{op} can't use it here, because it has no memory outside the recording, which runs on one thread and ends when the closure returns; make it before the step, or return it from the closure and read it from the outputs"
        );
        let error = self.births.escaped(self.number, message);
        if !self.is_over() {
            self.births.recording.refuse(error.clone());
        }
        error
    }
}

impl Drop for StorageBirth {
    fn drop(&mut self) {
        self.births.born()[self.number].is_alive = false;
    }
}
