//! What this thread is recording, and what the door asks it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use super::recorded::{Recorded, Temporary};
use super::step::BoxError;
use super::threads::{self, Recording, Touched};
use crate::autograd::RecordedTape;
use crate::device::program::{Access, Place, RecordedLaunch};
use crate::device::{Device, Launch, Operand, Storage};
use crate::error::{Error, Result};
use crate::ops::random::Generator;
use crate::recycled::Recycled;
use crate::sync::atomic::{AtomicBool, Ordering};
#[cfg(shuttle)]
use crate::sync::keys::*;
use crate::sync::thread_local;
use crate::sync::{Mutex, MutexGuard};
use crate::tensor::{DType, Layout, Tensor};

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
struct Births {
    recording: Arc<Recording>,
    born: Mutex<Vec<Born>>,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Born {
    op: &'static str,
    bytes: usize,
    /// What was first written, once something was.
    tensor: Option<(DType, Arc<Layout>)>,
    is_alive: bool,
}

impl Births {
    fn born(&self) -> MutexGuard<'_, Vec<Born>> {
        self.born.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn escaped(&self, number: usize, message: String) -> Error {
        let born = self.born();
        let Born { op, bytes, tensor, .. } = &born[number];
        let tensor = match tensor {
            Some((dtype, layout)) => format!("{dtype} {}", layout.shape()),
            None => format!("{bytes} bytes"),
        };
        Error::Escaped { op, tensor, message }
    }
}

/// What a storage without memory knows about where it comes from. Tells the recording when it is dropped.
pub(crate) struct Birth {
    births: Arc<Births>,
    number: usize,
}

impl fmt::Debug for Birth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Birth({})", self.number)
    }
}

impl Birth {
    /// Whether the recording is over, so that the storage will never hold anything.
    pub(crate) fn is_over(&self) -> bool {
        self.births.has_ended.load(Ordering::Acquire)
    }

    /// The error of an operation that uses the storage outside its recording: that of the recording too, if it is
    /// still under way on another thread.
    fn used_by(&self, op: &'static str) -> Error {
        let message = format!(
            "{op} can't use it here, since it has no memory outside the recording, which is of one thread and ends when the closure returns; make it before the step, or return it from the closure and read it from the outputs"
        );
        let error = self.births.escaped(self.number, message);
        if !self.is_over() {
            self.births.recording.refuse(error.clone());
        }
        error
    }
}

impl Drop for Birth {
    fn drop(&mut self) {
        self.births.born()[self.number].is_alive = false;
    }
}

/// A recording under way.
struct Recorder {
    recording: Arc<Recording>,
    births: Arc<Births>,
    /// What the step reads its inputs from. The closure gets the storages that were born first in their place, which
    /// hold nothing, so that none can be kept.
    inputs: Vec<Recycled<Storage>>,
    launches: Vec<RecordedLaunch>,
    externals: Vec<Recycled<Storage>>,
    layouts: HashSet<Arc<Layout>>,
    /// The external storages by id.
    known: HashMap<u64, usize>,
    /// The generators drawn from, with the blocks that were drawn.
    generators: Vec<(Generator, u64)>,
}

impl Recorder {
    /// The number of the input that a storage stands for.
    fn input(&self, storage: &Storage) -> Option<usize> {
        let birth = storage.birth().filter(|b| Arc::ptr_eq(&b.births, &self.births))?;
        Some(birth.number).filter(|&n| n < self.inputs.len())
    }

    fn place(&mut self, op: &'static str, storage: &Recycled<Storage>) -> Result<Place> {
        if let Some(i) = self.input(storage) {
            let own = self.inputs[i].clone();
            return Ok(self.external(&own));
        }
        match storage.birth() {
            Some(birth) if Arc::ptr_eq(&birth.births, &self.births) => Ok(Place::Temporary(birth.number)),
            Some(birth) => Err(birth.used_by(op)),
            None => Ok(self.external(storage)),
        }
    }

    fn external(&mut self, storage: &Recycled<Storage>) -> Place {
        let externals = &mut self.externals;
        Place::External(*self.known.entry(storage.id()).or_insert_with(|| {
            externals.push(storage.clone());
            externals.len() - 1
        }))
    }

    fn access(&mut self, op: &'static str, operand: &Operand<'_>) -> Result<Access> {
        let place = self.place(op, operand.storage)?;
        let layout = match self.layouts.get(operand.layout) {
            Some(layout) => layout.clone(),
            None => {
                let layout = Arc::new(operand.layout.clone());
                self.layouts.insert(layout.clone());
                layout
            }
        };
        Ok(Access { place, layout, dtype: operand.dtype })
    }

    fn push(&mut self, launch: &Launch<'_>) -> Result<()> {
        let op = launch.op;
        if let Some(i) = launch.written().find_map(|o| self.input(o.storage)) {
            let message = format!(
                "it writes to input {i}, of which the step has a copy, so that the caller's tensor would not change; write to a tensor that the closure takes from outside"
            );
            return Err(not_recordable(op, &self.recording.device, &message));
        }
        let recorded = RecordedLaunch::of(launch, |operand| self.access(op, operand))?;
        for (write, _) in &recorded.writes {
            if let Place::Temporary(number) = write.place {
                let born = &mut self.births.born()[number];
                born.tensor.get_or_insert_with(|| (write.dtype, write.layout.clone()));
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
        let recording = recorder.recording.clone();
        let result = match device == &recording.device {
            true => f(recorder),
            false => {
                let message = format!(
                    "it works on {}, and a recorded step is the work of one device; do it outside the step",
                    device.name()
                );
                Err(not_recordable(op, &recording.device, &message))
            }
        };
        result.map_err(|e| recording.refuse(e))
    })
}

/// A storage made on this thread while it records: no memory, a number. `None` if it does not record.
///
/// # Errors
/// `Error::NotRecordable` if another device's step is being recorded.
pub(crate) fn birth(op: &'static str, device: &Device, bytes: usize) -> Result<Option<Birth>> {
    // Also a use: the storage is older than a recording that begins before the thread launches anything.
    threads::note_use();
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
///
/// # Errors
/// What can't be recorded; of a launch that is to run, what [`threads::enter`] says.
pub(crate) fn launch(device: &Device, launch: &Launch<'_>) -> Result<bool> {
    if current().is_none() {
        let mut all = launch.reads.iter().chain(launch.written());
        return match all.find_map(|o| o.storage.birth()) {
            Some(birth) => Err(birth.used_by(launch.op)),
            None => threads::enter(launch.op, device, || Touched::by(launch)).map(|()| false),
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
        with(op, device, |recorder| Err::<(), _>(not_recordable(op, &recorder.recording.device, message)))?;
    }
    match storage.and_then(Storage::birth) {
        Some(birth) => Err(birth.used_by(op)),
        None => Ok(()),
    }
}

/// The operation that writes, in the recording of this thread, into a range of a storage from outside.
pub(crate) fn overwritten_by(storage: &Storage, range: &Range<usize>) -> Option<&'static str> {
    current()?;
    ACTIVE.with_borrow(|active| {
        let recorder = active.as_ref()?;
        let place = Place::External(*recorder.known.get(&storage.id())?);
        let meets = |written: &Access| {
            let bytes = written.byte_range();
            written.place == place && bytes.start < range.end && range.start < bytes.end
        };
        recorder.launches.iter().find(|launch| launch.written().any(meets)).map(|launch| launch.op)
    })
}

pub(super) fn not_recordable(op: &'static str, device: &Device, message: &str) -> Error {
    Error::NotRecordable { op, device: device.name(), message: message.to_string() }
}

/// While this thread records: how far the generator's next launch is from where the step begins. The generator
/// itself stays where it is.
pub(crate) fn drawn(generator: &Generator) -> Result<u64> {
    with("random", generator.device(), |recorder| {
        let known = recorder.generators.iter().find(|(g, _)| g.is_same(generator));
        Ok(known.map_or(0, |(_, drawn)| *drawn))
    })
}

/// While this thread records: a launch that uses so many blocks of the generator is on record.
pub(crate) fn drew(generator: &Generator, blocks: u64) -> Result<()> {
    with("random", generator.device(), |recorder| {
        match recorder.generators.iter_mut().find(|(g, _)| g.is_same(generator)) {
            Some((_, drawn)) => *drawn = drawn.wrapping_add(blocks),
            None => recorder.generators.push((generator.clone(), blocks)),
        }
        Ok(())
    })
}

/// The recording of this thread. Ends when it is dropped, however the closure was left.
struct Session;

impl Session {
    fn begin(device: &Device, inputs: &[Tensor]) -> Result<Session> {
        if current().is_some() {
            return Err(Error::internal("step", "a recording is under way"));
        }
        let recording = Recording::begin(device);
        CURRENT.set(Some(recording.number));
        let births = Births {
            recording: recording.clone(),
            born: Mutex::default(),
            has_ended: AtomicBool::new(false),
        };
        ACTIVE.set(Some(Recorder {
            recording,
            births: Arc::new(births),
            inputs: inputs.iter().map(|t| t.storage().clone()).collect(),
            launches: Vec::new(),
            externals: Vec::new(),
            layouts: HashSet::new(),
            known: HashMap::new(),
            generators: Vec::new(),
        }));
        RecordedTape::begin(device.name());
        Ok(Session)
    }

    /// What the closure gets for the inputs: without memory, like all that is born in the recording.
    fn inputs(&self, device: &Device, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let handle = |t: &Tensor| {
            let handle = Tensor::empty("step", t.shape(), t.dtype(), device)?;
            if let Some(birth) = handle.storage().birth() {
                birth.births.born()[birth.number].tensor =
                    Some((t.dtype(), Arc::new(handle.layout().clone())));
            }
            Ok(handle)
        };
        inputs.iter().map(handle).collect()
    }

    /// Records that each generator goes on by what the step draws: a launch that reads a generator never moves
    /// it, since others of the step count from the same base.
    fn advance_generators(&self) -> Result<()> {
        let generators = ACTIVE.with_borrow(|active| active.as_ref().map(|r| r.generators.clone()));
        generators.iter().flatten().try_for_each(|(generator, drawn)| generator.advance(*drawn))
    }

    fn end(self) -> Result<(Recorder, RecordedTape)> {
        end().ok_or_else(|| Error::internal("step", "the recording is gone"))
    }
}

fn end() -> Option<(Recorder, RecordedTape)> {
    CURRENT.set(None);
    let tape = RecordedTape::end();
    let recorder = ACTIVE.take()?;
    recorder.recording.end();
    recorder.births.has_ended.store(true, Ordering::Release);
    Some((recorder, tape?))
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(end());
    }
}

/// Records what `closure` does on `device` with inputs like `inputs`, on this thread: nothing runs.
///
/// # Errors
/// What can't be recorded, a tensor or a history that outlives the recording, or the closure's own error.
pub(super) fn record(
    device: &Device,
    inputs: &[Tensor],
    closure: impl FnOnce(&[Tensor]) -> std::result::Result<Vec<Tensor>, BoxError>,
) -> Result<Recorded> {
    let session = Session::begin(device, inputs)?;
    let handles = session.inputs(device, inputs)?;
    let returned = closure(&handles);
    // With them goes what the closure hung on them: a gradient, say.
    drop(handles);
    let advanced = session.advance_generators();
    let (mut recorder, mut tape) = session.end()?;
    if let Some(error) = recorder.recording.refused().or(tape.refused()) {
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
    let outside = tape.close()?;
    tape.check_ended()?;
    let Recorder { recording, births, inputs, mut launches, externals, generators, .. } = recorder;
    launches.shrink_to_fit();
    let alive: Vec<usize> = (0..).zip(&*births.born()).filter(|(_, b)| b.is_alive).map(|(i, _)| i).collect();
    // The last one is what is held; the tape behind it may hold those before.
    if let Some(&held) = alive.last() {
        let others = match alive.len() {
            1 => String::new(),
            n => format!(" (and {} others are)", n - 1),
        };
        let message = match held < inputs.len() {
            true => format!(
                "it stands for input {held} and is still reachable after the closure has returned{others}; a step works on copies of its inputs, which the next call writes to. Return what is needed of it as an output"
            ),
            false => format!(
                "it is still reachable after the closure has returned{others}, and would hold nothing that a replay computes; make state, caches and gradients before the step (run the closure once without it), or return the tensor as an output"
            ),
        };
        return Err(births.escaped(held, message));
    }
    let temporaries = births.born().iter().map(|b| Temporary { op: b.op, bytes: b.bytes }).collect();
    let recorded = Recorded { launches, externals, temporaries, generators, outputs, outside };
    recording.check_apart(&recorded)?;
    Ok(recorded)
}

/// The error of a closure, as callers get it.
pub(super) fn of_closure(error: BoxError) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::Closure { source: Arc::from(error) },
    }
}
