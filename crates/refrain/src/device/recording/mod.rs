//! What the door asks while a step is recorded: whether this thread records one, who notes its launches, what storages
//! it has made, and what other threads may do meanwhile.

mod births;
mod threads;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use births::{Births, StorageBirth};
pub use threads::unrelated_to_recordings;
pub(crate) use threads::{Recording, Touched, enter};

use super::Device;
use super::launch::{Launch, Operand};
use super::storage::Storage;
use crate::error::{Error, Result};
use crate::recycled::Recycled;
#[cfg(shuttle)]
use crate::sync::keys::*;
use crate::sync::thread_local;
use crate::types::{DType, Layout};

/// Notes the launches of a thread instead of running them. The door tells it of each.
pub(crate) trait RecordLaunch {
    /// Notes a launch.
    ///
    /// # Errors
    /// If it can't be recorded, which makes the recording an error.
    fn note(&mut self, launch: &Launch<'_>) -> Result<()>;

    /// The noted operation that writes into a range of a storage from outside.
    fn overwritten_by(&self, storage: &Storage, range: &Range<usize>) -> Option<&'static str>;
}

/// The recording of a thread.
struct Active {
    recording: Arc<Recording>,
    births: Arc<Births>,
    recorder: Rc<RefCell<dyn RecordLaunch>>,
    computed: RefCell<Vec<Computed>>,
}

/// A result of an operation.
pub(crate) type Computation = (Recycled<Storage>, Layout, DType);

/// What an operation has computed in this recording from the values that its operand still has.
struct Computed {
    /// What was computed.
    text: String,
    /// The operand: the id of its storage, its bytes there and what they mean.
    storage: u64,
    bytes: Range<usize>,
    layout: Layout,
    dtype: DType,
    results: Vec<Computation>,
}

impl Computed {
    fn is_of(&self, text: &str, operand: &Operand<'_>) -> bool {
        self.text == text
            && self.storage == operand.storage.id()
            && &self.layout == operand.layout
            && self.dtype == operand.dtype
    }

    /// Whether an operand of another launch has a byte of its operand.
    fn meets(&self, other: &Operand<'_>) -> bool {
        let bytes = other.byte_range();
        self.storage == other.storage.id() && self.bytes.start < bytes.end && bytes.start < self.bytes.end
    }
}

thread_local! {
    static ACTIVE: RefCell<Option<Active>> = const { RefCell::new(None) };
    /// The number of the recording in `ACTIVE`, which can be read without a borrow.
    static CURRENT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The number of the recording that runs on this thread.
pub(crate) fn current() -> Option<u64> {
    CURRENT.get()
}

/// A recording on this thread, from [`Session::note_with`] until this is dropped.
pub(crate) struct Session {
    pub(crate) recording: Arc<Recording>,
    pub(crate) births: Arc<Births>,
}

impl Session {
    /// Makes the recording known to other threads.
    ///
    /// # Errors
    /// If this thread records already, which callers refuse before.
    pub(crate) fn begin(device: &Device) -> Result<Session> {
        if current().is_some() {
            return Err(Error::internal("step", "a recording is under way"));
        }
        let recording = Recording::begin(device);
        let births = Arc::new(Births::new(recording.clone()));
        Ok(Session { recording, births })
    }

    /// From now on `recorder` notes what this thread does.
    pub(crate) fn note_with(&self, recorder: Rc<RefCell<dyn RecordLaunch>>) {
        let (recording, births) = (self.recording.clone(), self.births.clone());
        CURRENT.set(Some(recording.number));
        ACTIVE.set(Some(Active { recording, births, recorder, computed: RefCell::default() }));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        CURRENT.set(None);
        drop(ACTIVE.take());
        self.recording.end();
        self.births.end();
    }
}

/// What `f` makes of the recording of this thread. An error, of work on another device too, ends up as that of the
/// recording.
fn with<T>(op: &'static str, device: &Device, f: impl FnOnce(&Active) -> Result<T>) -> Result<T> {
    ACTIVE.with_borrow(|active| {
        let active = active.as_ref().ok_or_else(|| Error::internal(op, "no recording is under way"))?;
        let recording = &active.recording;
        let result = match device == &recording.device {
            true => f(active),
            false => {
                let message = format!(
                    "it works on {}, but a recorded step works on one device only; do it outside the step",
                    device.name()
                );
                Err(not_recordable(op, &recording.device, &message))
            }
        };
        result.map_err(|e| recording.refuse(e))
    })
}

/// While this thread records: an error if `device` is not that of its step.
pub(crate) fn check_device(op: &'static str, device: &Device) -> Result<()> {
    with(op, device, |_| Ok(()))
}

/// A storage that this thread makes while it records: it has a number but no memory. `None` if the thread does not
/// record.
///
/// # Errors
/// `Error::NotRecordable` if the step of another device is being recorded.
pub(super) fn birth(op: &'static str, device: &Device, bytes: usize) -> Result<Option<StorageBirth>> {
    // This also counts as use: the storage is older than a recording that begins before the thread launches anything.
    threads::note_use();
    if current().is_none() {
        return Ok(None);
    }
    with(op, device, |active| Ok(Some(active.births.add(op, bytes))))
}

/// Has a launch noted if this thread records; `false` if it does not and the launch is to run.
///
/// # Errors
/// What can't be recorded; of a launch that is to run, what [`enter`] says.
pub(super) fn launch(device: &Device, launch: &Launch<'_>) -> Result<bool> {
    if current().is_none() {
        let mut all = launch.reads.iter().chain(launch.written());
        return match all.find_map(|o| o.storage.birth()) {
            Some(birth) => Err(birth.used_by(launch.op)),
            None => enter(launch.op, device, || Touched::by(launch)).map(|()| false),
        };
    }
    let outdated = with(launch.op, device, |active| {
        active.recorder.borrow_mut().note(launch)?;
        let is_written = |computed: &mut Computed| launch.written().any(|write| computed.meets(write));
        Ok(active.computed.borrow_mut().extract_if(.., is_written).collect::<Vec<Computed>>())
    })?;
    // Storages are dropped outside of the recording's borrow.
    drop(outdated);
    for operand in launch.written() {
        operand.storage.note_write(&operand.byte_range(), launch.op, current());
    }
    Ok(true)
}

/// What was computed under this text from the values of an operand earlier in the recording of this thread.
pub(crate) fn computed(
    text: &str,
    operand: &Operand<'_>,
) -> Option<impl Iterator<Item = Computation> + use<>> {
    current()?;
    let results = ACTIVE.with_borrow(|active| {
        let known = active.as_ref()?.computed.borrow();
        known.iter().find(|computed| computed.is_of(text, operand)).map(|computed| computed.results.clone())
    });
    results.map(Vec::into_iter)
}

/// Keeps results for [`computed`], if this thread records.
pub(crate) fn keep_computed(text: String, operand: &Operand<'_>, results: impl Iterator<Item = Computation>) {
    if current().is_none() {
        return;
    }
    let computed = Computed {
        text,
        storage: operand.storage.id(),
        bytes: operand.byte_range(),
        layout: operand.layout.clone(),
        dtype: operand.dtype,
        results: results.collect(),
    };
    ACTIVE.with_borrow(|active| {
        if let Some(active) = active {
            active.computed.borrow_mut().push(computed);
        }
    });
}

/// Returns an error if this thread records. `message` says why `op` can't be part of a step and what to do instead.
/// Also returns an error if `storage` was recorded and so has no memory.
pub(crate) fn forbid(
    op: &'static str,
    device: &Device,
    storage: Option<&Storage>,
    message: &str,
) -> Result<()> {
    if current().is_some() {
        with(op, device, |active| Err::<(), _>(not_recordable(op, &active.recording.device, message)))?;
    }
    match storage.and_then(Storage::birth) {
        Some(birth) => Err(birth.used_by(op)),
        None => Ok(()),
    }
}

/// The operation in the recording of this thread that writes into a range of a storage from outside.
pub(super) fn overwritten_by(storage: &Storage, range: &Range<usize>) -> Option<&'static str> {
    current()?;
    ACTIVE.with_borrow(|active| active.as_ref()?.recorder.borrow().overwritten_by(storage, range))
}

pub(crate) fn not_recordable(op: &'static str, device: &Device, message: &str) -> Error {
    Error::NotRecordable { op, device: device.name(), message: message.to_string() }
}
