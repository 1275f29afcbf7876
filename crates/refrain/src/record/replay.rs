//! A program with memory, run again and again.

use std::ops::Range;

use super::program::Program;
use super::threads::Touched;
use crate::device::program::{Place, RecordedLaunch};
use crate::device::{Device, Driver, Launch, Storage};
use crate::error::Result;
use crate::recycled::Recycled;
use crate::tensor::{Layout, Tensor};

/// A program whose temporaries have memory: all that a replay needs.
pub(crate) struct Bound {
    program: Program,
    /// The temporaries, as `Program::lives` has them: parts of one block, which they keep alive.
    temporaries: Vec<Recycled<Storage>>,
    /// The external storages that launches touch, with whether any writes to them, by id.
    externals: Vec<(Recycled<Storage>, bool)>,
    /// External bytes that a replay writes, with the operation that does.
    written: Vec<(Recycled<Storage>, Range<usize>, &'static str)>,
}

impl Bound {
    fn new(program: Program, device: &Device) -> Result<Bound> {
        const OP: &str = "step";
        let block = match device.keeps_temporaries_apart() {
            true => None,
            false => Some(Storage::new(OP, device, program.block_bytes())?),
        };
        let temporary = |offset, bytes| match &block {
            Some(block) => Storage::part(OP, block, offset, bytes),
            None => Storage::new(OP, device, bytes),
        };
        let temporaries =
            program.places().map(|(offset, life)| temporary(offset, life.bytes)).collect::<Result<_>>()?;
        let mut externals: Vec<(Recycled<Storage>, bool)> = Vec::new();
        let mut written = Vec::new();
        for launch in program.launches() {
            for (access, writes) in launch.accesses() {
                let Place::External(e) = access.place else { continue };
                let storage = &program.recorded.externals[e];
                externals.push((storage.clone(), writes));
                if writes {
                    written.push((storage.clone(), access.byte_range(), launch.op));
                }
            }
        }
        externals.sort_by_key(|(storage, writes)| (storage.id(), !writes));
        externals.dedup_by_key(|(storage, _)| storage.id());
        Ok(Bound { program, temporaries, externals, written })
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// The external storages that launches touch, each once, in the order of their ids, with whether any launch
    /// writes to it.
    pub(crate) fn externals(&self) -> &[(Recycled<Storage>, bool)] {
        &self.externals
    }

    /// What a replay touches outside its block.
    pub(crate) fn touched(&self) -> impl Iterator<Item = Touched> {
        let accesses = self.program.launches().flat_map(RecordedLaunch::accesses);
        accesses.filter_map(|(access, writes)| match access.place {
            Place::External(e) => {
                Some(Touched::new(&self.program.recorded.externals[e], access.byte_range(), writes))
            }
            Place::Temporary(_) => None,
        })
    }

    /// How many launches there are.
    pub(crate) fn len(&self) -> usize {
        self.program.order.len()
    }

    /// The launches that must have ended before launch `at` begins.
    pub(crate) fn waits(&self, at: usize) -> &[usize] {
        &self.program.waits[at]
    }

    fn storage(&self, place: Place) -> &Recycled<Storage> {
        match place {
            Place::External(e) => &self.program.recorded.externals[e],
            Place::Temporary(t) => match self.program.life(t) {
                Some(l) => &self.temporaries[l],
                None => unreachable!("a temporary that a live launch touches has a place"),
            },
        }
    }

    /// Calls `f` with launch `at` over the program's memory.
    pub(crate) fn with_launch<R>(&self, at: usize, f: impl FnOnce(&Launch<'_>) -> R) -> R {
        let launch = &self.program.recorded.launches[self.program.order[at]];
        launch.with(|place| self.storage(place), f)
    }

    /// Whether the eager code would run, as far as that depends on histories of tensors from outside.
    pub(crate) fn check_histories(&self) -> Result<()> {
        self.program.recorded.outside.check()
    }

    /// Ends the histories of tensors from outside that a replay wrote into.
    pub(crate) fn end_histories(&self) {
        self.program.recorded.outside.wrote();
    }

    /// The operation that writes to memory that `t` lies in.
    pub(super) fn writes_to(&self, t: &Tensor) -> Option<&'static str> {
        let (id, bytes) = (t.storage_id(), t.operand().byte_range());
        let at = self.externals.binary_search_by_key(&id, |(storage, _)| storage.id()).ok()?;
        if !self.externals[at].1 || bytes.is_empty() {
            return None;
        }
        let meets = |range: &Range<usize>| range.start < bytes.end && bytes.start < range.end;
        let written = self.written.iter().find(|(storage, range, _)| storage.id() == id && meets(range));
        written.map(|(_, _, op)| *op)
    }

    /// Leaves the operations' names on watched ranges that they wrote.
    pub(crate) fn note_writes(&self) {
        for (storage, range, op) in &self.written {
            storage.note_write(range, op, None);
        }
    }
}

/// How a driver runs a program.
pub(crate) trait Executable: Send + Sync {
    /// Runs it once. The door holds the locks of the external storages, and the caller has the rest to itself.
    fn run(&self, program: &Bound, driver: &dyn Driver) -> Result<()>;
}

/// Runs the launches of a program one after the other.
pub(crate) struct LaunchByLaunch;

impl Executable for LaunchByLaunch {
    fn run(&self, program: &Bound, driver: &dyn Driver) -> Result<()> {
        (0..program.len()).try_for_each(|at| program.with_launch(at, |launch| driver.launch(launch)))
    }
}

/// A program that can be replayed.
pub(crate) struct Ready {
    bound: Bound,
    executable: Box<dyn Executable>,
}

impl Ready {
    /// Gives a program its memory and makes the device's driver ready for it.
    pub(super) fn new(program: Program, device: &Device) -> Result<Ready> {
        let bound = Bound::new(program, device)?;
        // Once, instead of before every launch of every replay.
        (0..bound.len()).try_for_each(|at| bound.with_launch(at, |launch| launch.verify()))?;
        let executable = device.compile(&bound)?;
        Ok(Ready { bound, executable })
    }

    pub(crate) fn bound(&self) -> &Bound {
        &self.bound
    }

    pub(crate) fn run(&self, driver: &dyn Driver) -> Result<()> {
        self.executable.run(&self.bound, driver)
    }

    /// Handles to the outputs' memory: never to be handed out, as the next replay writes there.
    pub(super) fn outputs(&self) -> Vec<Tensor> {
        let outputs = self.bound.program.recorded.outputs.iter();
        outputs
            .map(|a| {
                Tensor::from_parts(self.bound.storage(a.place).clone(), Layout::clone(&a.layout), a.dtype)
            })
            .collect()
    }
}
