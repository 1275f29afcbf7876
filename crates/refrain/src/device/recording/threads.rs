//! Checks what other threads do while a step is recorded.
//!
//! A recording collects only the work of its own thread. If the closure gave work to another thread, that work would
//! run during the recording but in no replay. So it makes the recording an error. Rust can't tell which thread
//! started another; these rules decide instead:
//!
//! - A worker of a thread pool, or a thread that first uses the engine after the recording has begun, may only touch
//!   memory that was made since then: such work can't matter for a replay. Anything else is refused, and the
//!   recording fails.
//! - A thread that was at work before continues. When the closure has returned, what the thread has touched meanwhile
//!   is compared with what the recording touches.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::not_recordable;
use crate::device::Device;
use crate::device::launch::Launch;
use crate::device::program::{Access, StorageRef};
use crate::device::storage::Storage;
use crate::error::{Error, Result};
use crate::recycled::Recycled;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(shuttle)]
use crate::sync::keys::*;
use crate::sync::thread::{self, Thread};
use crate::sync::{Mutex, MutexGuard, thread_local, with_flag};

/// The advice at the end of each message.
const FIX: &str = "do it in the closure itself, or before the step; if it has nothing to do with the step, wrap it in refrain::unrelated_to_recordings";

/// How many recordings are running. Without a recording, this is all that the door reads.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// How many recordings have begun so far.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static RECORDINGS: Mutex<Vec<Arc<Recording>>> = Mutex::new(Vec::new());

thread_local! {
    /// How many recordings had begun when this thread first used the engine.
    static FIRST_USE: Cell<Option<u64>> = const { Cell::new(None) };
    static IS_UNRELATED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` and marks its work as unrelated to any [`Step`](crate::Step) that another thread may be recording.
///
/// The closure of a step is recorded on the thread that calls the step. Work that the closure gives to other threads
/// is not part of the recording and would be missing in every replay, so it is refused ([`Error::NotRecordable`]).
/// The engine can't find out which thread started another. While a step is recorded on a device, it therefore refuses
/// work on that device
///
/// - by a worker of a thread pool, or by a thread that had not used the engine before the recording began, on tensors
///   that existed before;
/// - by any other thread, on tensors that the step writes, or writes to tensors that the step uses.
///
/// If such work is not part of a closure but may run during a recording, wrap it in this function: for example an
/// evaluation in a thread pool beside the training, or a thread that reads parameters now and then. It applies to the
/// calling thread until `f` returns or panics, but not to threads that `f` starts. On the thread that records, it has
/// no effect.
///
/// ```
/// use refrain::{DType, Device, Step, Tensor, unrelated_to_recordings};
///
/// let device = Device::cpu();
/// let w = Tensor::ones([2], DType::F32, &device)?;
/// let mut step = Step::new(&device, |_| {
///     // A thread that the closure starts, and that only reads.
///     let look = || unrelated_to_recordings(|| w.to_vec::<f32>());
///     std::thread::scope(|s| s.spawn(look).join().unwrap())?;
///     w.add_scalar_assign(1.0)?;
///     Ok(vec![])
/// });
/// step.call(&[])?;
/// # drop(step);
/// assert_eq!(w.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), refrain::Error>(())
/// ```
pub fn unrelated_to_recordings<R>(f: impl FnOnce() -> R) -> R {
    with_flag(|value| IS_UNRELATED.replace(value), true, f)
}

/// Bytes of a storage, and whether they are written.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Touched {
    storage: u64,
    range: Range<usize>,
    writes: bool,
}

impl Touched {
    pub(crate) fn new(storage: &Storage, range: Range<usize>, writes: bool) -> Touched {
        Touched { storage: storage.id(), range, writes }
    }

    /// What a launch touches, except its workspace, whose content never matters.
    pub(crate) fn by<'a>(launch: &'a Launch<'_>) -> impl Iterator<Item = Touched> + 'a {
        let reads = launch.reads.iter().map(|o| Touched::new(o.storage, o.byte_range(), false));
        reads.chain(launch.writes.iter().map(|(o, _)| Touched::new(o.storage, o.byte_range(), true)))
    }

    fn conflicts(&self, other: &Touched) -> bool {
        (self.writes || other.writes)
            && self.storage == other.storage
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// A running recording, as other threads see it.
pub(crate) struct Recording {
    pub(crate) device: Device,
    thread: Thread,
    pub(super) number: u64,
    /// Storages with this id or a higher one were made after it began.
    first_storage: u64,
    /// The first thing that can't be recorded. It counts even if the closure ignores the error.
    refused: Mutex<Option<Error>>,
    /// What threads that were at work before have touched since then, with the operation and the thread.
    touched: Mutex<HashMap<Touched, (&'static str, String)>>,
}

impl Recording {
    pub(super) fn begin(device: &Device) -> Arc<Recording> {
        note_use();
        // Read before the recording begins: a thread whose first use comes later has no storage with a lower id.
        let first_storage = Storage::next_id();
        let recording = Arc::new(Recording {
            device: device.clone(),
            thread: thread::current(),
            number: BEGUN.fetch_add(1, Ordering::SeqCst) + 1,
            first_storage,
            refused: Mutex::default(),
            touched: Mutex::default(),
        });
        lock(&RECORDINGS).push(recording.clone());
        UNDER_WAY.fetch_add(1, Ordering::SeqCst);
        recording
    }

    pub(super) fn end(&self) {
        lock(&RECORDINGS).retain(|other| other.number != self.number);
        UNDER_WAY.fetch_sub(1, Ordering::SeqCst);
    }

    /// Makes the recording an error. Returns the first error.
    pub(crate) fn refuse(&self, error: Error) -> Error {
        lock(&self.refused).get_or_insert(error).clone()
    }

    pub(crate) fn refused(&self) -> Option<Error> {
        lock(&self.refused).clone()
    }

    /// Checks what another thread is about to do.
    fn meet(&self, op: &'static str, touched: impl Iterator<Item = Touched>) -> Result<()> {
        let mut old = touched.filter(|t| !t.range.is_empty() && t.storage < self.first_storage);
        let is_worker = rayon::current_thread_index().is_some();
        if !is_worker && FIRST_USE.get().is_some_and(|begun| begun < self.number) {
            let mut known = lock(&self.touched);
            old.for_each(|t| _ = known.entry(t).or_insert_with(|| (op, name_of(&thread::current()))));
            return Ok(());
        }
        if old.next().is_none() {
            return Ok(());
        }
        let (me, other) = (name_of(&thread::current()), name_of(&self.thread));
        let who = match is_worker {
            true => "a worker of a thread pool",
            false => "which had not used the engine before the recording began",
        };
        let message = format!(
            "{me}, {who}, started it while {other} was recording a step, so the closure of the step may have given it this work, which no replay would repeat; {FIX}"
        );
        let error = not_recordable(op, &self.device, &message);
        self.refuse(error.clone());
        Err(error)
    }

    /// An error if a thread that was at work before has written what the recording uses, or touched what it writes:
    /// `ours` are the operands of the recording over `externals`, by operation, with whether they are written.
    pub(crate) fn check_apart<'a>(
        &self,
        externals: &[Recycled<Storage>],
        ours: impl Iterator<Item = (&'static str, &'a Access, bool)>,
    ) -> Result<()> {
        let touched = lock(&self.touched);
        if touched.is_empty() {
            return Ok(());
        }
        let mut others: HashMap<u64, Vec<_>> = HashMap::new();
        for (other, by) in &*touched {
            others.entry(other.storage).or_default().push((other, by));
        }
        for (op_of_step, access, writes) in ours {
            let StorageRef::External(e) = access.place else { continue };
            let touched = Touched::new(&externals[e], access.byte_range(), writes);
            let near = others.get(&touched.storage).into_iter().flatten();
            let Some((other, (op, thread))) = near.into_iter().find(|(other, _)| other.conflicts(&touched))
            else {
                continue;
            };
            let does = |writes| if writes { "writes" } else { "reads" };
            let message = format!(
                "{thread} did it while {} recorded a step: it {} what {op_of_step} of the step {} ({} {}), so the step's closure may have handed it the work, which no replay would do again; {FIX}",
                name_of(&self.thread),
                does(other.writes),
                does(writes),
                access.dtype,
                access.layout.shape(),
            );
            return Err(not_recordable(op, &self.device, &message));
        }
        Ok(())
    }
}

/// Notes that this thread uses the engine.
pub(super) fn note_use() {
    if FIRST_USE.get().is_none() {
        FIRST_USE.set(Some(BEGUN.load(Ordering::SeqCst)));
    }
}

/// The door calls this for work that runs now, on a thread that records nothing: `op` on `device`, on what `touched`
/// yields.
///
/// # Errors
/// `Error::NotRecordable` if the work may be part of a step that another thread records.
/// `Error::NotRecordable` if the work may be part of a step that another thread records.
#[inline]
pub(crate) fn enter<I: Iterator<Item = Touched>>(
    op: &'static str,
    device: &Device,
    touched: impl Fn() -> I,
) -> Result<()> {
    note_use();
    // Threads that a closure starts or gives work to see its recording here.
    if UNDER_WAY.load(Ordering::Relaxed) == 0 || IS_UNRELATED.get() {
        return Ok(());
    }
    let recordings = lock(&RECORDINGS).clone();
    // Every running recording must know.
    let mut met = Ok(());
    for recording in recordings.iter().filter(|r| r.device == *device) {
        met = met.and(recording.meet(op, touched()));
    }
    met
}

fn name_of(thread: &Thread) -> String {
    match thread.name() {
        Some(name) => format!("thread {name:?} ({:?})", thread.id()),
        None => format!("a thread without a name ({:?})", thread.id()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
