//! What other threads do while a step is recorded.
//!
//! A recording notes the work of its own thread alone. Work that the closure has another thread do would run while
//! the closure is recorded and in no replay, so it makes the recording an error. Which thread started which can't be
//! asked for in Rust; these rules stand in for it:
//!
//! - A worker of a thread pool, or a thread that first uses the engine after the recording has begun, may only touch
//!   memory that was made since: what it does there can't reach a replay. Anything else is refused, and so is the
//!   recording.
//! - A thread that was at work before goes on. Once the closure has returned, what it has touched meanwhile is
//!   compared with what the recording touches.

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
use crate::sync::thread_local;
use crate::sync::{Mutex, MutexGuard};

/// The fix that each message ends with.
const FIX: &str = "do it in the closure itself, or before the step; if it has nothing to do with the step, wrap it in refrain::unrelated_to_recordings";

/// How many recordings are under way: all that the door reads where there is none.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
/// How many recordings have begun so far.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static RECORDINGS: Mutex<Vec<Arc<Recording>>> = Mutex::new(Vec::new());

thread_local! {
    /// How many recordings had begun when this thread first used the engine.
    static FIRST_USE: Cell<Option<u64>> = const { Cell::new(None) };
    static IS_UNRELATED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, whose work on a device has nothing to do with a [`Step`](crate::Step) that another thread may be
/// recording at the moment.
///
/// A step's closure is recorded on the thread that calls the step. Work that the closure has other threads do is not
/// part of the recording and would be missing in every replay, so it is refused ([`Error::NotRecordable`]). The engine
/// can't ask which thread started which. While a step is recorded on a device, it therefore refuses work on that
/// device
///
/// - of a worker of a thread pool, and of a thread that had not used the engine before the recording began, on tensors
///   that were there before;
/// - of any other thread, on tensors that the step writes, or to tensors that the step uses.
///
/// Wrap work in this function that is no part of the closure and may meet a recording: an evaluation in a thread pool
/// beside the training, a thread that reads parameters now and then. It counts for the calling thread until `f`
/// returns or panics, not for threads that `f` starts. On the thread that records, it changes nothing.
///
/// ```
/// use refrain::{DType, Device, Step, Tensor, unrelated_to_recordings};
///
/// let device = Device::cpu();
/// let w = Tensor::ones([2], DType::F32, &device)?;
/// let mut step = Step::new(&device, |_| {
///     // A thread that the closure starts, and that only looks.
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
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            IS_UNRELATED.set(self.0);
        }
    }
    let _restore = Restore(IS_UNRELATED.replace(true));
    f()
}

/// Bytes of a storage, with whether they are written.
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

    /// What a launch touches, but for its workspace, of whose content nobody relies on anything.
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

/// A recording under way, as other threads see it.
pub(crate) struct Recording {
    pub(crate) device: Device,
    thread: Thread,
    pub(super) number: u64,
    /// Storages with this id or a higher one were made since it began.
    first_storage: u64,
    /// The first thing that can't be recorded: it counts even if the closure makes light of the error.
    refused: Mutex<Option<Error>>,
    /// What threads that were at work before have touched since, with the operation and the thread.
    touched: Mutex<HashMap<Touched, (&'static str, String)>>,
}

impl Recording {
    pub(super) fn begin(device: &Device) -> Arc<Recording> {
        note_use();
        // Before it has begun: a thread whose first use comes after that has no storage below.
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

    /// Makes the recording an error; returns the first that did.
    pub(crate) fn refuse(&self, error: Error) -> Error {
        lock(&self.refused).get_or_insert(error).clone()
    }

    pub(crate) fn refused(&self) -> Option<Error> {
        lock(&self.refused).clone()
    }

    /// Looks at what another thread is about to do.
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
            "{me}, {who}, asked for it while {other} recorded a step, so the step's closure may have handed it the work, which no replay would do again; {FIX}"
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

/// What the door asks about work that is to run now, on a thread that records nothing: `op` on `device`, on what
/// `touched` gives.
///
/// # Errors
/// `Error::NotRecordable` if the work may be part of a step that another thread records.
#[inline]
pub(crate) fn enter<I: Iterator<Item = Touched>>(
    op: &'static str,
    device: &Device,
    touched: impl Fn() -> I,
) -> Result<()> {
    note_use();
    // Threads that a closure starts, or hands work, see its recording here.
    if UNDER_WAY.load(Ordering::Relaxed) == 0 || IS_UNRELATED.get() {
        return Ok(());
    }
    let recordings = lock(&RECORDINGS).clone();
    // Each of them is to know.
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
