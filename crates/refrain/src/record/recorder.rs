//! A step while it is recorded on this thread.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::changed::{Comparison, Origins};
use super::recorded::{Recorded, Temporary};
use crate::autograd::{Outside, RecordedTape};
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::device::recording::{self, Births, Recording, not_recordable};
use crate::device::{Device, Launch, Operand, Storage};
use crate::error::{Error, Result};
use crate::ops::random::{DrawnInStep, Generator};
use crate::recycled::Recycled;
use crate::tensor::{Layout, Tensor};

/// An error of a closure, of any type.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What becomes of the launches.
enum Noted {
    /// They are kept, for a program.
    Kept(Vec<RecordedLaunch>),
    /// They are compared with those of the first recording.
    Compared(Comparison),
}

impl Noted {
    /// The launches so far, up to the first one that differs from the first recording.
    fn launches(&self) -> &[RecordedLaunch] {
        match self {
            Noted::Kept(launches) => launches,
            Noted::Compared(comparison) => comparison.same(),
        }
    }
}

/// What was noted so far.
struct Recorder {
    recording: Arc<Recording>,
    births: Arc<Births>,
    /// The storages that the step reads its inputs from. Instead of them, the closure gets the first storages of the
    /// recording, which have no memory, so that it can't keep an input.
    inputs: Vec<Recycled<Storage>>,
    noted: Noted,
    externals: Vec<Recycled<Storage>>,
    layouts: HashSet<Arc<Layout>>,
    /// The index of each external storage, by id.
    known: HashMap<u64, usize>,
}

impl Recorder {
    /// The index of the input that a storage replaces.
    fn input(&self, storage: &Storage) -> Option<usize> {
        self.births.number(storage).filter(|&n| n < self.inputs.len())
    }

    fn place(&mut self, op: &'static str, storage: &Recycled<Storage>) -> Result<StorageRef> {
        if let Some(i) = self.input(storage) {
            let own = self.inputs[i].clone();
            return Ok(self.external(&own));
        }
        match (self.births.number(storage), storage.birth()) {
            (Some(number), _) => Ok(StorageRef::Temporary(number)),
            (None, Some(birth)) => Err(birth.used_by(op)),
            (None, None) => Ok(self.external(storage)),
        }
    }

    fn external(&mut self, storage: &Recycled<Storage>) -> StorageRef {
        let externals = &mut self.externals;
        StorageRef::External(*self.known.entry(storage.id()).or_insert_with(|| {
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
}

impl recording::RecordLaunch for Recorder {
    fn note(&mut self, launch: &Launch<'_>) -> Result<()> {
        let op = launch.op;
        if let Some(i) = launch.written().find_map(|o| self.input(o.storage)) {
            let message = format!(
                "it writes to input {i}, but the step has only a copy of it, so the caller's tensor would not change; write to a tensor from outside instead"
            );
            return Err(not_recordable(op, &self.recording.device, &message));
        }
        let recorded = RecordedLaunch::of(launch, |operand| self.access(op, operand))?;
        for (write, _) in &recorded.writes {
            if let StorageRef::Temporary(number) = write.place {
                self.births.is_written(number, write.dtype, &write.layout);
            }
        }
        match &mut self.noted {
            Noted::Kept(launches) => launches.push(recorded),
            Noted::Compared(comparison) => {
                comparison.add(&recorded, Origins { externals: &self.externals, births: &self.births });
            }
        }
        Ok(())
    }

    fn overwritten_by(&self, storage: &Storage, range: &Range<usize>) -> Option<&'static str> {
        let place = StorageRef::External(*self.known.get(&storage.id())?);
        let meets = |written: &Access| {
            let bytes = written.byte_range();
            written.place == place && bytes.start < range.end && range.start < bytes.end
        };
        self.noted.launches().iter().find(|launch| launch.written().any(meets)).map(|launch| launch.op)
    }
}

/// The recording of this thread. Dropping it ends the recording, however the closure ended.
struct OpenRecording {
    door: recording::Session,
    tape: Taping,
    drawn: DrawnInStep,
    recorder: Rc<RefCell<Recorder>>,
}

/// What the tape notes of the recording, until it is taken or this is dropped.
struct Taping;

impl Drop for Taping {
    fn drop(&mut self) {
        drop(RecordedTape::end());
    }
}

impl OpenRecording {
    fn begin(device: &Device, inputs: &[Tensor], noted: Noted) -> Result<OpenRecording> {
        let door = recording::Session::begin(device)?;
        let recorder = Rc::new(RefCell::new(Recorder {
            recording: door.recording.clone(),
            births: door.births.clone(),
            inputs: inputs.iter().map(|t| t.storage().clone()).collect(),
            noted,
            externals: Vec::new(),
            layouts: HashSet::new(),
            known: HashMap::new(),
        }));
        door.note_with(recorder.clone());
        RecordedTape::begin(device.name());
        Ok(OpenRecording { door, tape: Taping, drawn: DrawnInStep::begin(), recorder })
    }

    /// What the closure gets for its inputs: tensors without memory, like everything that the recording makes.
    fn inputs(&self, device: &Device, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let handle = |t: &Tensor| {
            let handle = Tensor::empty("step", t.shape(), t.dtype(), device)?;
            if let Some(number) = self.door.births.number(handle.storage()) {
                self.door.births.is_written(number, t.dtype(), &Arc::new(handle.layout().clone()));
            }
            Ok(handle)
        };
        inputs.iter().map(handle).collect()
    }

    /// What was noted, by the door and on the tape, and the generators drawn from, with the blocks that were drawn.
    fn end(self) -> Result<(Recorder, RecordedTape, Vec<(Generator, u64)>)> {
        let OpenRecording { door, tape, drawn, recorder } = self;
        drop(door);
        let taped = RecordedTape::end();
        drop(tape);
        let recorder = Rc::into_inner(recorder).map(RefCell::into_inner);
        let (recorder, taped) =
            recorder.zip(taped).ok_or_else(|| Error::internal("step", "the recording is gone"))?;
        Ok((recorder, taped, drawn.end()))
    }
}

/// What a closure returns.
type Returned = std::result::Result<Vec<Tensor>, BoxError>;

/// Records what `closure` does on `device` with inputs like `inputs`, on this thread. Nothing runs.
///
/// # Errors
/// If something can't be recorded, if a tensor or a history outlives the recording, or if the closure returns an
/// error.
pub(super) fn record(
    device: &Device,
    inputs: &[Tensor],
    closure: impl FnOnce(&[Tensor]) -> Returned,
) -> Result<Recorded> {
    let ended = run(device, inputs, closure, Noted::Kept(Vec::new()))?;
    ended.check_apart()?;
    let Ended { noted, births, externals, generators, outputs, outside, .. } = ended;
    let mut launches = match noted {
        Noted::Kept(launches) => launches,
        Noted::Compared(_) => Vec::new(),
    };
    launches.shrink_to_fit();
    let temporaries = births.sizes(|op, bytes| Temporary { op, bytes });
    Ok(Recorded { launches, externals, temporaries, generators, outputs, outside })
}

/// Records the closure again and compares it with the first recording. Nothing runs.
///
/// # Errors
/// As [`record`], and [`Error::RecordingChanged`].
pub(super) fn record_again(
    device: &Device,
    inputs: &[Tensor],
    closure: impl FnOnce(&[Tensor]) -> Returned,
    first: &Arc<Recorded>,
) -> Result<()> {
    let mut ended = run(device, inputs, closure, Noted::Compared(Comparison::with(first.clone())))?;
    if let Noted::Compared(comparison) = &mut ended.noted {
        let now = Origins { externals: &ended.externals, births: &ended.births };
        comparison.finish(&ended.outputs, now)?;
    }
    ended.check_apart()
}

/// A recording that has ended without an error.
struct Ended {
    noted: Noted,
    recording: Arc<Recording>,
    births: Arc<Births>,
    externals: Vec<Recycled<Storage>>,
    generators: Vec<(Generator, u64)>,
    outputs: Vec<Access>,
    outside: Outside,
}

impl Ended {
    /// Checks that no other thread has touched what the recording touches.
    fn check_apart(&self) -> Result<()> {
        let launches = self.noted.launches().iter();
        let launched = launches.flat_map(|l| l.accesses().map(|(access, writes)| (l.op, access, writes)));
        let returned = self.outputs.iter().map(|access| ("an output", access, false));
        self.recording.check_apart(&self.externals, launched.chain(returned))
    }
}

/// Runs the closure while this thread records.
fn run(
    device: &Device,
    inputs: &[Tensor],
    closure: impl FnOnce(&[Tensor]) -> Returned,
    noted: Noted,
) -> Result<Ended> {
    let open = OpenRecording::begin(device, inputs, noted)?;
    let handles = open.inputs(device, inputs)?;
    let returned = closure(&handles);
    // This also drops what the closure attached to them, for example a gradient.
    drop(handles);
    let advanced = open.drawn.advance();
    let (mut recorder, mut tape, generators) = open.end()?;
    if let Some(error) = recorder.recording.refused().or(tape.refused()) {
        return Err(error);
    }
    let returned = returned.map_err(of_closure)?;
    advanced?;
    let mut outputs = Vec::new();
    for (i, tensor) in returned.iter().enumerate() {
        if tensor.device() != device {
            let message = format!(
                "output {i} is on {}, but a recorded step works on one device only; return tensors of that device",
                tensor.device()
            );
            return Err(not_recordable("step", device, &message));
        }
        outputs.push(recorder.access("step", &tensor.operand())?);
    }
    // This also drops the tape that they hold.
    drop(returned);
    let outside = tape.close()?;
    tape.check_ended()?;
    let Recorder { recording, births, inputs, noted, externals, .. } = recorder;
    let alive = births.alive();
    // The last one is held by somebody; the tape behind it may hold the ones before.
    if let Some(&held) = alive.last() {
        let others = match alive.len() {
            1 => String::new(),
            n => format!(" (and {} others are)", n - 1),
        };
        let message = match held < inputs.len() {
            true => format!(
                "it is input {held} and is still reachable after the closure has returned{others}; a step works on copies of its inputs, which the next call overwrites: return what you need of it as an output"
            ),
            false => format!(
                "it is still reachable after the closure has returned{others}, but a replay would never write to it; make state, caches and gradients before the step (run the closure once without it), or return the tensor as an output"
            ),
        };
        return Err(births.escaped(held, message));
    }
    Ok(Ended { noted, recording, births, externals, generators, outputs, outside })
}

/// The error of a closure, as callers get it.
pub(super) fn of_closure(error: BoxError) -> Error {
    match error.downcast::<Error>() {
        Ok(error) => *error,
        Err(error) => Error::Closure { source: Arc::from(error) },
    }
}
