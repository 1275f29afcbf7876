//! A recorded program as drivers get it: launches to run again and again, and which waits for which.

mod launches;
mod order;
mod past;
mod ranges;

use std::ops::Range;

pub(crate) use launches::{Access, RecordedLaunch, StorageRef};
pub(crate) use order::{Order, comes_before};
pub(crate) use past::{Past, Touching};
pub(crate) use ranges::Ranges;

use super::driver::Driver;
use super::launch::Launch;
use super::recording::Touched;
use super::storage::Storage;
use crate::error::Result;
use crate::recycled::Recycled;

/// A program whose memory is there. It borrows from its owner, which keeps that memory.
#[derive(Clone, Copy)]
pub(crate) struct Bound<'a> {
    /// The launches of the recording.
    pub(crate) launches: &'a [RecordedLaunch],
    /// Launches that stand for several of them. They have the numbers behind the last of `launches`.
    pub(crate) fused: &'a [RecordedLaunch],
    /// The numbers of those that run, in order.
    pub(crate) order: &'a [usize],
    /// For each position in `order`, the positions of the launches that must finish before.
    pub(crate) waits: &'a [Vec<usize>],
    /// Storages by the numbers of [`StorageRef::External`].
    pub(crate) externals: &'a [Recycled<Storage>],
    /// Storages of temporaries: parts of one block.
    pub(crate) temporaries: &'a [Recycled<Storage>],
    /// The place in `temporaries` of each number of [`StorageRef::Temporary`].
    pub(crate) lives: &'a [Option<u32>],
    /// The external storages that launches touch, each once, ordered by id, with whether any launch writes to it.
    pub(crate) touched: &'a [(Recycled<Storage>, bool)],
    /// External bytes that a run writes, with the operation that does.
    pub(crate) written: &'a [(Recycled<Storage>, Range<usize>, &'static str)],
    pub(crate) effects: &'a dyn Effects,
}

/// What a run of a program means for those who look at its storages.
pub(crate) trait Effects: Sync {
    /// Whether the program may run now.
    ///
    /// # Errors
    /// If the eager code would be refused.
    fn check(&self) -> Result<()>;

    /// After a run, even of a part.
    fn done(&self);
}

impl<'a> Bound<'a> {
    /// What a run touches outside its block.
    pub(super) fn touches(&self) -> impl Iterator<Item = Touched> {
        let run = self.order.iter().map(|&n| self.launch(n));
        run.flat_map(RecordedLaunch::accesses).filter_map(|(access, writes)| match access.place {
            StorageRef::External(e) => Some(Touched::new(&self.externals[e], access.byte_range(), writes)),
            StorageRef::Temporary(_) => None,
        })
    }

    fn launch(&self, n: usize) -> &'a RecordedLaunch {
        n.checked_sub(self.launches.len()).map_or_else(|| &self.launches[n], |n| &self.fused[n])
    }

    /// The number of launches.
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    /// The launches that must finish before launch `at` begins.
    pub(crate) fn waits(&self, at: usize) -> &'a [usize] {
        &self.waits[at]
    }

    pub(crate) fn storage(&self, place: StorageRef) -> &'a Recycled<Storage> {
        match place {
            StorageRef::External(e) => &self.externals[e],
            StorageRef::Temporary(t) => match self.lives[t] {
                Some(l) => &self.temporaries[l as usize],
                None => unreachable!("a temporary that a live launch touches has an offset"),
            },
        }
    }

    /// Calls `f` with launch `at`, over the memory of the program.
    pub(crate) fn with_launch<R>(&self, at: usize, f: impl FnOnce(&Launch<'_>) -> R) -> R {
        self.launch(self.order[at]).with(|place| self.storage(place), f)
    }

    /// Notes the names of the operations that wrote into watched ranges.
    pub(super) fn note_writes(&self) {
        for (storage, range, op) in self.written {
            storage.note_write(range, op, None);
        }
    }
}

/// How a driver runs a program.
pub(crate) trait Executable: Send + Sync {
    /// Runs it once. The door holds the locks of the external storages; nobody else uses the block.
    fn run(&self, program: &Bound<'_>, driver: &dyn Driver) -> Result<()>;
}

/// Runs the launches of a program one after the other.
pub(crate) struct LaunchByLaunch;

impl Executable for LaunchByLaunch {
    fn run(&self, program: &Bound<'_>, driver: &dyn Driver) -> Result<()> {
        (0..program.len()).try_for_each(|at| program.with_launch(at, |launch| driver.launch(launch)))
    }
}
