//! A program with memory, which can run again and again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::time::Duration;

use super::program::Program;
use super::rules::OP;
use crate::device::program::{Bound, Executable, StorageRef};
use crate::device::{Device, Hired, Storage};
use crate::error::Result;
use crate::recycled::Recycled;
use crate::tensor::{Layout, Tensor};

/// A program whose temporaries have memory: everything that a replay needs.
struct Placed {
    program: Program,
    /// The temporaries of `Program::lives`: parts of one block, which they keep alive. Those with the same bytes, at
    /// different times, are one storage.
    temporaries: Vec<Recycled<Storage>>,
    /// The external storages that launches touch, ordered by id, each with whether any launch writes to it.
    externals: Vec<(Recycled<Storage>, bool)>,
    /// The external bytes that a replay writes, each range with the operation that writes it.
    written: Vec<(Recycled<Storage>, Range<usize>, &'static str)>,
}

impl Placed {
    fn new(program: Program, device: &Device) -> Result<Placed> {
        let block = match device.keeps_temporaries_apart() {
            true => None,
            false => Some(Storage::new(OP, device, program.block_bytes())?),
        };
        let mut parts: HashMap<(usize, usize), Recycled<Storage>> = HashMap::new();
        let mut temporary = |offset, bytes| match &block {
            None => Storage::new(OP, device, bytes),
            Some(block) => Ok(match parts.entry((offset, bytes)) {
                Entry::Occupied(part) => part.get().clone(),
                Entry::Vacant(place) => place.insert(Storage::part(OP, block, offset, bytes)?).clone(),
            }),
        };
        let temporaries =
            program.places().map(|(offset, life)| temporary(offset, life.bytes)).collect::<Result<_>>()?;
        let mut externals: Vec<(Recycled<Storage>, bool)> = Vec::new();
        let mut written = Vec::new();
        for launch in program.launches() {
            for (access, writes) in launch.accesses() {
                let StorageRef::External(e) = access.place else { continue };
                externals.push((program.recorded.externals[e].clone(), writes));
            }
            for (o, access) in launch.written().enumerate() {
                let StorageRef::External(e) = access.place else { continue };
                let op = launch.kernel.writer(o).unwrap_or(launch.op);
                written.push((program.recorded.externals[e].clone(), access.byte_range(), op));
            }
        }
        externals.sort_by_key(|(storage, writes)| (storage.id(), !writes));
        externals.dedup_by_key(|(storage, _)| storage.id());
        Ok(Placed { program, temporaries, externals, written })
    }

    fn bound(&self) -> Bound<'_> {
        Bound { touched: &self.externals, written: &self.written, ..bound(&self.program, &self.temporaries) }
    }

    /// The operation that writes to the memory of `t`, if any.
    fn writes_to(&self, t: &Tensor) -> Option<&'static str> {
        let (id, bytes) = (t.storage_id(), t.operand().byte_range());
        let at = self.externals.binary_search_by_key(&id, |(storage, _)| storage.id()).ok()?;
        if !self.externals[at].1 || bytes.is_empty() {
            return None;
        }
        let meets = |range: &Range<usize>| range.start < bytes.end && bytes.start < range.end;
        let written = self.written.iter().find(|(storage, range, _)| storage.id() == id && meets(range));
        written.map(|(_, _, op)| *op)
    }
}

/// A program with these temporaries, without what its launches do to external storages.
fn bound<'a>(program: &'a Program, temporaries: &'a [Recycled<Storage>]) -> Bound<'a> {
    Bound {
        launches: &program.recorded.launches,
        fused: &program.fused,
        order: &program.order,
        waits: &program.waits,
        externals: &program.recorded.externals,
        temporaries,
        lives: &program.index,
        touched: &[],
        written: &[],
        effects: &program.recorded.outside,
    }
}

/// A program without memory, for which the driver prepares in the background.
pub(super) struct Ahead {
    program: Program,
    background: Option<Hired>,
}

impl Ahead {
    /// Begins what the first replay waits for.
    pub(super) fn new(program: Program, device: &Device) -> Result<Ahead> {
        // Kernels are asked for before memory has a place.
        let nowhere = Storage::new(OP, &Device::cpu_scratch(), 0)?;
        let temporaries = vec![nowhere; program.places().count()];
        let background = device.compile_ahead(&bound(&program, &temporaries));
        Ok(Ahead { program, background })
    }

    pub(super) fn program(&self) -> &Program {
        &self.program
    }

    /// Gives the program its memory, and waits until it can be replayed.
    pub(super) fn finish(self, device: &Device) -> Result<Ready> {
        let Ahead { program, background } = self;
        let placed = Placed::new(program, device)?;
        let bound = placed.bound();
        // Verify once instead of before every launch of every replay.
        (0..bound.len()).try_for_each(|at| bound.with_launch(at, |launch| launch.verify()))?;
        let executable = device.compile(&bound)?;
        drop(background);
        Ok(Ready { placed, executable })
    }
}

/// A program that can be replayed.
pub(super) struct Ready {
    placed: Placed,
    executable: Box<dyn Executable>,
}

impl Ready {
    pub(super) fn program(&self) -> &Program {
        &self.placed.program
    }

    /// Runs it once.
    pub(super) fn replay(&self, device: &Device) -> Result<()> {
        device.replay(&self.placed.bound(), &*self.executable)
    }

    /// Runs it a number of times and takes the time of each launch in each run.
    pub(super) fn time(&self, device: &Device, runs: usize) -> Result<Vec<Vec<Duration>>> {
        device.time(&self.placed.bound(), runs)
    }

    /// The operation that writes to the memory of `t`, if any.
    pub(super) fn writes_to(&self, t: &Tensor) -> Option<&'static str> {
        self.placed.writes_to(t)
    }

    /// Handles to the memory of the outputs. Never give them out, because the next replay writes there.
    pub(super) fn outputs(&self) -> Vec<Tensor> {
        let outputs = self.placed.program.recorded.outputs.iter();
        let bound = self.placed.bound();
        outputs
            .map(|a| Tensor::from_parts(bound.storage(a.place).clone(), Layout::clone(&a.layout), a.dtype))
            .collect()
    }
}
