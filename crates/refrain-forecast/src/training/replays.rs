//! What replaying costs.

use refrain::{Device, Stats, Step};
use std::time::Duration;

/// What the recorded steps of a training were, and what their replays asked of the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replays {
    /// Replays so far: one for each step; with accumulation one for each micro-batch, and one for the update.
    pub count: u64,
    /// How long recording the step (with accumulation, that of a micro-batch) took for the program that ran last.
    pub recording: Duration,
    /// The steps that [`Replays::launches`] and [`Replays::allocations`] are of: all but those that were asked for at
    /// once with one that had to be recorded first, since making a program takes memory.
    pub steps: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Storages made on the device.
    pub allocations: u64,
}

impl Replays {
    /// Launches a step; `None` if no step counts.
    pub fn launches_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.launches as f64 / self.steps as f64)
    }

    /// Storages made on the device a step; `None` if no step counts.
    ///
    /// ```
    /// use refrain_forecast::training::Replays;
    ///
    /// let replays = Replays { count: 40, steps: 32, launches: 1600, ..Replays::default() };
    /// assert_eq!((replays.launches_per_step(), replays.allocations_per_step()), (Some(50.0), Some(0.0)));
    /// assert_eq!(Replays::default().allocations_per_step(), None);
    /// ```
    pub fn allocations_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.allocations as f64 / self.steps as f64)
    }

    /// Takes another training's in, as that of the folds of a panel.
    pub fn merge(&mut self, other: &Replays) {
        self.count += other.count;
        self.recording += other.recording;
        self.steps += other.steps;
        self.launches += other.launches;
        self.allocations += other.allocations;
    }

    /// These with what the recorded steps tell themselves; the first is the one whose recording is timed.
    pub(crate) fn of<'s>(self, steps: impl Iterator<Item = &'s Step<'static>>) -> Replays {
        let mut steps = steps.peekable();
        let recording = steps.peek().and_then(|step| step.recording_time()).unwrap_or_default();
        Replays { count: steps.map(Step::replays).sum(), recording, ..self }
    }
}

/// The device before some steps.
pub(crate) struct Before {
    stats: Stats,
    programs: u64,
}

impl Before {
    pub(crate) fn now<'s>(device: &Device, steps: impl Iterator<Item = &'s Step<'static>>) -> Before {
        Before { stats: device.stats(), programs: programs(steps) }
    }

    /// Counts so many steps that were taken since, unless a program was made for them.
    pub(crate) fn count<'s>(
        self,
        replays: &mut Replays,
        count: u64,
        device: &Device,
        steps: impl Iterator<Item = &'s Step<'static>>,
    ) {
        if programs(steps) == self.programs {
            let after = device.stats();
            replays.steps += count;
            replays.launches += after.launches - self.stats.launches;
            replays.allocations += after.allocations - self.stats.allocations;
        }
    }
}

/// How many programs were made so far.
fn programs<'s>(steps: impl Iterator<Item = &'s Step<'static>>) -> u64 {
    steps.map(|step| step.programs() as u64 + step.evictions()).sum()
}
