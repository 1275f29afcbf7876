//! A recorded step, planned: what runs, in which memory, and what waits for what.

use super::edges::{Touch, edges};
use super::plan::{Life, MemoryPlan, plan};
use super::recorded::Recorded;
use super::{dead, verify};
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::error::{Error, Result};

/// A step as it was recorded, ready to be replayed: its launches, the memory of its temporaries, and which launch
/// waits for which. [`Step::program`](crate::Step::program) gives it, for looking at.
///
/// `Display` prints a table of the launches; [`Program::to_dot`] draws the dependencies, [`Program::memory_svg`]
/// the memory.
pub struct Program {
    pub(super) recorded: Recorded,
    /// The launches that are replayed, in order.
    pub(super) order: Vec<usize>,
    /// The temporaries that they touch: numbers among the recorded ones, and when they are alive.
    pub(super) lives: Vec<(usize, Life)>,
    pub(super) plan: MemoryPlan,
    /// For each place in `order`, the places of the launches that must have ended before.
    pub(super) waits: Vec<Vec<usize>>,
    /// The place of each recorded temporary in `lives`.
    pub(super) index: Vec<Option<u32>>,
}

/// The error of temporaries that no address space would hold.
fn too_large(recorded: &Recorded, lives: &[(usize, Life)]) -> Error {
    let largest = lives.iter().map(|&(t, _)| &recorded.temporaries[t]).max_by_key(|t| t.bytes);
    let (op, bytes) = largest.map_or(("step", 0), |t| (t.op, t.bytes));
    Error::invalid(
        "step",
        format!(
            "its {} temporaries are larger than the address space at one time (the largest has {bytes} bytes, of {op}); use smaller tensors",
            lives.len()
        ),
    )
}

impl Program {
    /// Verifies a recording, drops launches that nobody needs, and plans the rest.
    pub(super) fn new(recorded: Recorded) -> Result<Program> {
        let every: Vec<usize> = (0..recorded.launches.len()).collect();
        verify::recorded(&recorded, &every)?;
        let order = dead::live(&recorded);
        verify::recorded(&recorded, &order)?;

        let mut index: Vec<Option<u32>> = vec![None; recorded.temporaries.len()];
        let mut lives: Vec<(usize, Life)> = Vec::new();
        let mut touch = |t: usize, at: usize| {
            let l = *index[t].get_or_insert_with(|| {
                let bytes = recorded.temporaries[t].bytes;
                lives.push((t, Life { first: at, last: at, bytes }));
                (lives.len() - 1) as u32
            });
            lives[l as usize].1.last = at;
        };
        for (at, &i) in order.iter().enumerate() {
            for (access, _) in recorded.launches[i].accesses() {
                if let StorageRef::Temporary(t) = access.place {
                    touch(t, at);
                }
            }
        }
        // Outputs stay to the end.
        for output in &recorded.outputs {
            if let StorageRef::Temporary(t) = output.place {
                touch(t, order.len());
            }
        }
        lives.shrink_to_fit();
        let plan = plan(&lives.iter().map(|(_, life)| *life).collect::<Vec<_>>())
            .ok_or_else(|| too_large(&recorded, &lives))?;
        let mut program = Program { recorded, order, lives, plan, waits: Vec::new(), index };
        program.waits = edges(&program.touches());
        verify::planned(&program)?;
        Ok(program)
    }

    /// The bytes that each launch touches, where the plan puts them.
    pub(super) fn touches(&self) -> Vec<Vec<Touch<'_>>> {
        self.launches()
            .map(|launch| launch.accesses().map(|(access, writes)| self.touch(access, writes)).collect())
            .collect()
    }

    fn touch<'a>(&self, access: &'a Access, writes: bool) -> Touch<'a> {
        let (memory, start) = match access.place {
            StorageRef::Temporary(t) => (0, self.offset(t).unwrap_or(0)),
            StorageRef::External(e) => (e + 1, 0),
        };
        let range = access.byte_range();
        Touch { memory, range: range.start + start..range.end + start, writes, access: Some(access) }
    }

    /// The launches that are replayed, in order.
    pub(super) fn launches(&self) -> impl ExactSizeIterator<Item = &RecordedLaunch> {
        self.order.iter().map(|&i| &self.recorded.launches[i])
    }

    /// The number of a recorded temporary among `lives`, if a launch that is replayed touches it.
    pub(super) fn life(&self, temporary: usize) -> Option<usize> {
        self.index[temporary].map(|l| l as usize)
    }

    /// Where a recorded temporary lies in the block.
    pub(super) fn offset(&self, temporary: usize) -> Option<usize> {
        self.life(temporary).map(|l| self.plan.offsets[l])
    }

    /// Offset and life of each temporary.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, &Life)> {
        self.plan.offsets.iter().copied().zip(self.lives.iter().map(|(_, life)| life))
    }

    /// How many launches a replay makes.
    pub fn launch_count(&self) -> usize {
        self.order.len()
    }

    /// How many launches the recording had that nobody needs the results of.
    pub fn dead_launches(&self) -> usize {
        self.recorded.launches.len() - self.order.len()
    }

    /// How many temporaries share the block.
    pub fn temporaries(&self) -> usize {
        self.lives.len()
    }

    /// The size in bytes of the block that all temporaries lie in.
    pub fn block_bytes(&self) -> usize {
        self.plan.bytes
    }

    /// The most bytes of temporaries that are alive at one time, in the order of recording: no plan needs less.
    pub fn live_bytes(&self) -> usize {
        self.plan.bound
    }

    /// How many pairs of launches there are of which one waits for the other, not counting those that others imply.
    pub fn dependencies(&self) -> usize {
        self.waits.iter().map(Vec::len).sum()
    }

    /// The launches on the longest chain of launches that wait for each other: with endless parallel branches, a
    /// replay takes as long as these.
    pub fn longest_chain(&self) -> usize {
        let mut depth: Vec<usize> = Vec::with_capacity(self.waits.len());
        for waits in &self.waits {
            depth.push(1 + waits.iter().map(|&j| depth[j]).max().unwrap_or(0));
        }
        depth.into_iter().max().unwrap_or(0)
    }
}
