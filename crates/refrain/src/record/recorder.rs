//! What this thread is recording, and what the door asks it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recorded::{Access, Place, Recorded, RecordedLaunch, Temporary};
use super::step::BoxError;
use crate::device::{Device, Launch, Operand, Storage};
use crate::error::{Error, Result};
use crate::ops::random::Generator;
use crate::recycled::Recycled;
use crate::tensor::Tensor;

thread_local! {
    static ACTIVE: RefCell<Option<Recorder>> = const { RefCell::new(None) };
    /// The number of the recording in `ACTIVE`, where no borrow is needed to ask for it.
    static CURRENT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The recording that is under way on this thread.
pub(crate) fn current() -> Option<u64> {
    CURRENT.get()
}

/// Storages born in one recording.
#[derive(Debug, Default)]
struct Births {
    born: Mutex<Vec<Born>>,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Born {
    op: &'static str,
    bytes: usize,
    /// Dtype and shape of what was first written, once something was.
    tensor: Option<String>,
    is_alive: bool,
}

impl Births {
    fn born(&self) -> MutexGuard<'_, Vec<Born>> {
        self.born.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn escaped(&self, number: usize, message: String) -> Error {
        let born = self.born();
        let Born { op, bytes, tensor, .. } = &born[number];
        Error::Escaped { op, tensor: tensor.clone().unwrap_or_else(|| format!("{bytes} bytes")), message }
    }
}

/// What a storage without memory knows about where it comes from. Tells the recording when it is dropped.
#[derive(Debug)]
pub(crate) struct Birth {
    births: Arc<Births>,
    number: usize,
}

impl Birth {
    /// Whether the recording is over, so that the storage will never hold anything.
    pub(crate) fn is_over(&self) -> bool {
        self.births.has_ended.load(Ordering::Acquire)
    }

    /// The error of an operation that uses the storage outside its recording.
    fn used_by(&self, op: &'static str) -> Error {
        let message = format!(
            "{op} can't use it here, since it has no memory outside the recording, which is of one thread and ends when the closure returns; make it before the step, or return it from the closure and read it from the outputs"
        );
        self.births.escaped(self.number, message)
    }
}

impl Drop for Birth {
    fn drop(&mut self) {
        self.births.born()[self.number].is_alive = false;
    }
}

/// A recording under way.
struct Recorder {
    device: Device,
    births: Arc<Births>,
    launches: Vec<RecordedLaunch>,
    externals: Vec<Recycled<Storage>>,
    /// The external storages by id.
    known: HashMap<u64, usize>,
    /// The generators drawn from, with the blocks that were drawn.
    generators: Vec<(Generator, u64)>,
    /// The first thing that can't be recorded: it counts even if the closure makes light of the error.
    refused: Option<Error>,
}

impl Recorder {
    fn refuse(&mut self, error: Error) -> Error {
        self.refused.get_or_insert(error).clone()
    }

    fn place(&mut self, op: &'static str, storage: &Recycled<Storage>) -> Result<Place> {
        match storage.birth() {
            Some(birth) if Arc::ptr_eq(&birth.births, &self.births) => Ok(Place::Temporary(birth.number)),
            Some(birth) => Err(birth.used_by(op)),
            None => {
                let externals = &mut self.externals;
                Ok(Place::External(*self.known.entry(storage.id()).or_insert_with(|| {
                    externals.push(storage.clone());
                    externals.len() - 1
                })))
            }
        }
    }

    fn access(&mut self, op: &'static str, operand: &Operand<'_>) -> Result<Access> {
        let place = self.place(op, operand.storage)?;
        Ok(Access { place, layout: operand.layout.clone(), dtype: operand.dtype })
    }

    fn push(&mut self, launch: &Launch<'_>) -> Result<()> {
        let op = launch.op;
        let recorded = RecordedLaunch::of(launch, |storage| self.place(op, storage))?;
        for (write, _) in &recorded.writes {
            if let Place::Temporary(number) = write.place {
                let born = &mut self.births.born()[number];
                born.tensor.get_or_insert_with(|| format!("{} {}", write.dtype, write.layout.shape()));
            }
        }
        self.launches.push(recorded);
        Ok(())
    }
}

/// What `f` makes of the recorder of this thread. An error, of work on another device too, ends up as that of the
/// recording.
fn with<T>(op: &'static str, device: &Device, f: impl FnOnce(&mut Recorder) -> Result<T>) -> Result<T> {
    ACTIVE.with_borrow_mut(|active| {
        let recorder = active.as_mut().ok_or_else(|| Error::internal(op, "no recording is under way"))?;
        let result = match device == &recorder.device {
            true => f(recorder),
            false => Err(Error::NotRecordable {
                op,
                device: recorder.device.name(),
                message: format!(
                    "it works on {}, and a recorded step is the work of one device; do it outside the step",
                    device.name()
                ),
            }),
        };
        result.map_err(|e| recorder.refuse(e))
    })
}

/// A storage made on this thread while it records: no memory, a number. `None` if it does not record.
///
/// # Errors
/// `Error::NotRecordable` if another device's step is being recorded.
pub(crate) fn birth(op: &'static str, device: &Device, bytes: usize) -> Result<Option<Birth>> {
    if current().is_none() {
        return Ok(None);
    }
    with(op, device, |recorder| {
        let mut born = recorder.births.born();
        born.push(Born { op, bytes, tensor: None, is_alive: true });
        Ok(Some(Birth { births: recorder.births.clone(), number: born.len() - 1 }))
    })
}

/// Puts a launch on the record of this thread; `false` if there is none and the launch is to run.
pub(crate) fn launch(device: &Device, launch: &Launch<'_>) -> Result<bool> {
    if current().is_none() {
        let mut all = launch.reads.iter().chain(launch.written());
        return match all.find_map(|o| o.storage.birth()) {
            Some(birth) => Err(birth.used_by(launch.op)),
            None => Ok(false),
        };
    }
    with(launch.op, device, |recorder| recorder.push(launch))?;
    for operand in launch.written() {
        operand.storage.note_write(&operand.byte_range(), launch.op, current());
    }
    Ok(true)
}

/// An error if this thread records: `message` says why `op` can't be part of a step and what to do instead.
/// Also if `storage` has no memory, because it was recorded.
pub(crate) fn forbid(
    op: &'static str,
    device: &Device,
    storage: Option<&Storage>,
    message: &str,
) -> Result<()> {
    if current().is_some() {
        with(op, device, |recorder| Err::<(), _>(not_recordable(op, &recorder.device, message)))?;
    }
    match storage.and_then(Storage::birth) {
        Some(birth) => Err(birth.used_by(op)),
        None => Ok(()),
    }
}

pub(super) fn not_recordable(op: &'static str, device: &Device, message: &str) -> Error {
    Error::NotRecordable { op, device: device.name(), message: message.to_string() }
}

/// While this thread records: how far the generator's next launch is from where the step begins. The generator
/// itself stays where it is. `None` if this thread does not record.
pub(crate) fn reserve(generator: &Generator, blocks: u64) -> Option<u64> {
    current()?;
    let first = with("random", generator.device(), |recorder| {
        let known = recorder.generators.iter().position(|(g, _)| g.is_same(generator));
        let known = known.unwrap_or_else(|| {
            recorder.generators.push((generator.clone(), 0));
            recorder.generators.len() - 1
        });
        let drawn = &mut recorder.generators[known].1;
        let first = *drawn;
        *drawn = first.wrapping_add(blocks);
        Ok(first)
    });
    // The launch itself is refused, too.
    Some(first.unwrap_or(0))
}

/// The recording of this thread. Ends when it is dropped, however the closure was left.
struct Session;

impl Session {
    fn begin(device: &Device) -> Result<Session> {
        if current().is_some() {
            return Err(Error::internal("step", "a recording is under way"));
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        ACTIVE.set(Some(Recorder {
            device: device.clone(),
            births: Arc::default(),
            launches: Vec::new(),
            externals: Vec::new(),
            known: HashMap::new(),
            generators: Vec::new(),
            refused: None,
        }));
        CURRENT.set(Some(NEXT.fetch_add(1, Ordering::Relaxed)));
        Ok(Session)
    }

    /// Records that each generator goes on by what the step draws: a launch that reads a generator never moves
    /// it, since others of the step count from the same base.
    fn advance_generators(&self) -> Result<()> {
        let generators = ACTIVE.with_borrow(|active| active.as_ref().map(|r| r.generators.clone()));
        generators.iter().flatten().try_for_each(|(generator, drawn)| generator.advance(*drawn))
    }

    fn end(self) -> Result<Recorder> {
        end().ok_or_else(|| Error::internal("step", "the recording is gone"))
    }
}

fn end() -> Option<Recorder> {
    CURRENT.set(None);
    let recorder = ACTIVE.take()?;
    recorder.births.has_ended.store(true, Ordering::Release);
    Some(recorder)
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(end());
    }
}

/// Records what `closure` does on `device`, on this thread: nothing runs.
///
/// # Errors
/// What can't be recorded, a tensor that outlives the recording, or the closure's own error.
pub(super) fn record(
    device: &Device,
    closure: impl FnOnce() -> std::result::Result<Vec<Tensor>, BoxError>,
) -> Result<Recorded> {
    let session = Session::begin(device)?;
    let returned = closure();
    let advanced = session.advance_generators();
    let mut recorder = session.end()?;
    if let Some(error) = recorder.refused {
        return Err(error);
    }
    let returned = returned.map_err(of_closure)?;
    advanced?;
    let mut outputs = Vec::new();
    for (i, tensor) in returned.iter().enumerate() {
        if tensor.device() != device {
            let message = format!(
                "output {i} lies on {}, and a recorded step is the work of one device; return tensors of that device",
                tensor.device()
            );
            return Err(not_recordable("step", device, &message));
        }
        outputs.push(recorder.access("step", &tensor.operand())?);
    }
    // With them goes the tape that they hold.
    drop(returned);
    let Recorder { births, launches, externals, generators, .. } = recorder;
    let alive: Vec<usize> = (0..).zip(&*births.born()).filter(|(_, b)| b.is_alive).map(|(i, _)| i).collect();
    if let Some(&first) = alive.first() {
        let others = match alive.len() {
            1 => String::new(),
            n => format!(" (and {} others are)", n - 1),
        };
        return Err(births.escaped(
            first,
            format!(
                "it is still reachable after the closure has returned{others}, and would hold nothing that a replay computes; make state, caches and gradients before the step (run the closure once without it), or return the tensor as an output"
            ),
        ));
    }
    let temporaries = births.born().iter().map(|b| Temporary { op: b.op, bytes: b.bytes }).collect();
    Ok(Recorded { launches, externals, temporaries, generators, outputs })
}

/// The error of a closure, as callers get it.
pub(super) fn of_closure(error: BoxError) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::Closure { source: Arc::from(error) },
    }
}
