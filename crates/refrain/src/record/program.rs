//! A program: a recorded and planned step.

use std::sync::Arc;

use super::edges::{Touch, edges};
use super::false_dependencies::{FalseDependencies, chains_before};
use super::plan::{FEW, GROWTH, LARGE_GROWTH, Life, MemoryPlan, plan, plan_for_overlap};
use super::recorded::Recorded;
use super::{dead, fuse, verify};
use crate::device::cuda::MmaKind;
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::error::{Error, Result};

/// A step is planned again so often at most, if it has no more temporaries than this. Each plan avoids what made the longest chain of the
/// ones before longer.
const MOST_REPLANS: usize = 4;
const FEW_TO_REPLAN: usize = 1024;

fn longest_chain(waits: &[Vec<usize>]) -> usize {
    chains_before(waits).into_iter().max().map_or(0, |before| before + 1)
}

/// A recorded step that is ready to be replayed: its launches, the memory of its temporaries, and which launch waits
/// for which. [`Step::program`](crate::Step::program) returns it for inspection.
///
/// `Display` prints a table of the launches. [`Program::to_dot`] draws the dependencies, [`Program::memory_svg`]
/// draws the memory plan.
pub struct Program {
    pub(super) recorded: Arc<Recorded>,
    /// Launches that stand for several recorded ones.
    pub(super) fused: Vec<RecordedLaunch>,
    /// The launches of a replay, in order: numbers of recorded launches, and behind them those of `fused`.
    pub(super) order: Vec<usize>,
    /// How many recorded launches a replay does the work of.
    live: usize,
    /// The temporaries that they touch: their numbers in the recording, and when they are alive.
    pub(super) lives: Vec<(usize, Life)>,
    pub(super) plan: MemoryPlan,
    /// For each position in `order`, the positions of the launches that must finish before.
    pub(super) waits: Vec<Vec<usize>>,
    /// For each recorded temporary, its position in `lives`.
    pub(super) index: Vec<Option<u32>>,
}

/// The launch with a number: a recorded one, or behind them one of `fused`.
pub(super) fn launch<'a>(
    recorded: &'a Recorded,
    fused: &'a [RecordedLaunch],
    n: usize,
) -> &'a RecordedLaunch {
    match n.checked_sub(recorded.launches.len()) {
        None => &recorded.launches[n],
        Some(n) => &fused[n],
    }
}

/// The error for temporaries that do not fit into any address space.
fn too_large(recorded: &Recorded, lives: &[(usize, Life)]) -> Error {
    let largest = lives.iter().map(|&(t, _)| &recorded.temporaries[t]).max_by_key(|t| t.bytes);
    let (op, bytes) = largest.map_or(("step", 0), |t| (t.op, t.bytes));
    Error::invalid(
        "step",
        format!(
            "its {} temporaries do not fit into the address space together (the largest has {bytes} bytes and is made by {op}); use smaller tensors",
            lives.len()
        ),
    )
}

impl Program {
    /// Verifies a recording, drops unneeded launches, fuses launches if it is told for which matrix instructions, and plans the rest.
    /// `overlaps` says whether the device runs launches side by side that do not wait for one another.
    pub(super) fn new(recorded: Arc<Recorded>, fuses: Option<MmaKind>, overlaps: bool) -> Result<Program> {
        let every: Vec<usize> = (0..recorded.launches.len()).collect();
        verify::recorded(&recorded, &every, &[])?;
        let order = dead::live(&recorded);
        verify::recorded(&recorded, &order, &[])?;
        let live = order.len();
        let (order, fused) = match fuses {
            None => (order, Vec::new()),
            Some(mma) => {
                let fuse::Fused { order: fused_order, launches, parts } = fuse::fuse(&recorded, &order, mma)?;
                verify::fused(&recorded, &order, &fused_order, &parts)?;
                verify::recorded(&recorded, &fused_order, &launches)?;
                (fused_order, launches)
            }
        };

        let mut index: Vec<Option<u32>> = vec![None; recorded.temporaries.len()];
        let mut lives: Vec<(usize, Life)> = Vec::new();
        // The launches that touch each of them.
        let mut touching: Vec<Vec<usize>> = Vec::new();
        let mut touch = |t: usize, at: usize| {
            let l = *index[t].get_or_insert_with(|| {
                let bytes = recorded.temporaries[t].bytes;
                lives.push((t, Life { first: at, last: at, bytes }));
                touching.push(Vec::new());
                (lives.len() - 1) as u32
            }) as usize;
            lives[l].1.last = at;
            // Behind the last launch are only outputs, whose bytes nobody gets.
            if at < order.len() && touching[l].last() != Some(&at) {
                touching[l].push(at);
            }
        };
        for (at, &i) in order.iter().enumerate() {
            for (access, _) in launch(&recorded, &fused, i).accesses() {
                if let StorageRef::Temporary(t) = access.place {
                    touch(t, at);
                }
            }
        }
        // Outputs are alive until the end.
        for output in &recorded.outputs {
            if let StorageRef::Temporary(t) = output.place {
                touch(t, order.len());
            }
        }
        lives.shrink_to_fit();
        let alive: Vec<Life> = lives.iter().map(|(_, life)| *life).collect();
        // Every pair of temporaries is looked at.
        let apart = (overlaps && alive.len() <= FEW).then(|| {
            let touches: Vec<Vec<Touch<'_>>> =
                order.iter().map(|&n| verify::touches(launch(&recorded, &fused, n))).collect();
            edges(&touches)
        });
        let plan = match &apart {
            None => plan(&alive),
            Some(apart) => {
                plan_for_overlap(&alive, &FalseDependencies::new(&alive, &touching, apart), &GROWTH)
            }
        };
        let plan = plan.ok_or_else(|| too_large(&recorded, &lives))?;
        let mut program = Program { recorded, fused, order, live, lives, plan, waits: Vec::new(), index };
        program.waits = edges(&program.touches());
        if let Some(apart) = apart.filter(|_| alive.len() <= FEW_TO_REPLAN) {
            program.shorten(&alive, &touching, &apart);
        }
        verify::planned(&program)?;
        Ok(program)
    }

    /// Plans again while false dependencies make the longest chain longer than it is with bytes of its own for every temporary, which
    /// launches wait for as in `apart`. The plan with the shortest chain is kept.
    fn shorten(&mut self, lives: &[Life], touching: &[Vec<usize>], apart: &[Vec<usize>]) {
        let shortest = longest_chain(apart);
        let mut earliest = chains_before(apart);
        let mut waits = self.waits.clone();
        for _ in 0..MOST_REPLANS {
            if longest_chain(&self.waits) <= shortest {
                return;
            }
            // What any of the plans made late stays late, so that the next one does not go back to the one before.
            let mut is_later = false;
            for (at, planned) in earliest.iter_mut().zip(chains_before(&waits)) {
                is_later |= planned > *at;
                *at = planned.max(*at);
            }
            if !is_later {
                return;
            }
            let avoided = FalseDependencies::with_earliest(lives, touching, apart, &earliest);
            let Some(plan) = plan_for_overlap(lives, &avoided, &LARGE_GROWTH) else { return };
            let before = std::mem::replace(&mut self.plan, plan);
            waits = edges(&self.touches());
            match longest_chain(&waits) < longest_chain(&self.waits) {
                true => self.waits.clone_from(&waits),
                false => self.plan = before,
            }
        }
    }

    /// The bytes that each launch touches, at the offsets of the plan.
    pub(super) fn touches(&self) -> Vec<Vec<Touch<'_>>> {
        let of = |launch: &'_ RecordedLaunch| launch.kernel.communicator().map(|_| Touch::NETWORK);
        self.launches()
            .map(|launch| {
                let accesses = launch.accesses().map(|(access, writes)| self.touch(access, writes));
                accesses.chain(of(launch)).collect()
            })
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

    /// The launches of a replay, in order.
    pub(super) fn launches(&self) -> impl ExactSizeIterator<Item = &RecordedLaunch> {
        self.order.iter().map(|&i| launch(&self.recorded, &self.fused, i))
    }

    /// The position of a recorded temporary in `lives`, if a launch of the replay touches it.
    pub(super) fn life(&self, temporary: usize) -> Option<usize> {
        self.index[temporary].map(|l| l as usize)
    }

    /// The offset of a recorded temporary in the block.
    pub(super) fn offset(&self, temporary: usize) -> Option<usize> {
        self.life(temporary).map(|l| self.plan.offsets[l])
    }

    /// The offset and life of each temporary.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, &Life)> {
        self.plan.offsets.iter().copied().zip(self.lives.iter().map(|(_, life)| life))
    }

    /// The number of recorded launches that a replay does the work of. Without fusing, it is
    /// [`Program::launch_count`].
    pub fn recorded_launches(&self) -> usize {
        self.live
    }

    /// The number of launches in a replay.
    pub fn launch_count(&self) -> usize {
        self.order.len()
    }

    /// How many recorded launches were dropped because nobody needs their results.
    pub fn dead_launches(&self) -> usize {
        self.recorded.launches.len() - self.live
    }

    /// The number of temporaries in the block.
    pub fn temporaries(&self) -> usize {
        self.lives.len()
    }

    /// The size of the block with all temporaries, in bytes.
    pub fn block_bytes(&self) -> usize {
        self.plan.bytes
    }

    /// The maximum number of bytes of temporaries that are alive at one time, in the order of the recording. No plan
    /// needs less.
    pub fn live_bytes(&self) -> usize {
        self.plan.bound
    }

    /// The number of pairs of launches of which one directly waits for the other.
    pub fn dependencies(&self) -> usize {
        self.waits.iter().map(Vec::len).sum()
    }

    /// The number of launches on the longest chain of launches that wait for one another. With unlimited parallelism,
    /// a replay would take as long as these.
    pub fn longest_chain(&self) -> usize {
        longest_chain(&self.waits)
    }
}
