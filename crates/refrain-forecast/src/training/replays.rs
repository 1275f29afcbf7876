//! The cost of replays.

use refrain::{Device, Stats, Step};
use std::time::Duration;

/// How the recorded steps of a training run were recorded, and how many launches and allocations their replays
/// needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replays {
    /// The number of replays: one per step; with gradient accumulation one per micro-batch and one per update.
    pub count: u64,
    /// How long it took to record the program that ran last (with gradient accumulation, that of a micro-batch).
    pub recording: Duration,
    /// The steps that [`Replays::launches`] and [`Replays::allocations`] count. It excludes steps whose program was
    /// called for the first time in the same measurement, since that allocates memory.
    pub steps: u64,
    /// Kernel launches.
    pub launches: u64,
    /// Allocations on the device.
    pub allocations: u64,
}

impl Replays {
    /// Launches per step; `None` if no step was counted.
    pub fn launches_per_step(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.launches as f64 / self.steps as f64)
    }

    /// Allocations on the device per step; `None` if no step was counted.
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

    /// Adds the numbers of another training run, such as the next fold of a panel.
    pub fn merge(&mut self, other: &Replays) {
        self.count += other.count;
        self.recording += other.recording;
        self.steps += other.steps;
        self.launches += other.launches;
        self.allocations += other.allocations;
    }

    /// Adds the statistics of the recorded steps; the recording time is that of the first.
    pub(crate) fn of<'s>(self, steps: impl Iterator<Item = &'s Step<'static>>) -> Replays {
        let mut steps = steps.peekable();
        let recording = steps.peek().and_then(|step| step.recording_time()).unwrap_or_default();
        Replays { count: steps.map(Step::replays).sum(), recording, ..self }
    }
}

/// The counters of the device before some steps.
pub(crate) struct Before {
    stats: Stats,
    first_calls: u64,
}

impl Before {
    pub(crate) fn now<'s>(device: &Device, steps: impl Iterator<Item = &'s Step<'static>>) -> Before {
        Before { stats: device.stats(), first_calls: first_calls(steps) }
    }

    /// Counts the steps taken since then, unless a program was called for the first time.
    pub(crate) fn count<'s>(
        self,
        replays: &mut Replays,
        count: u64,
        device: &Device,
        steps: impl Iterator<Item = &'s Step<'static>>,
    ) {
        if first_calls(steps) == self.first_calls {
            let after = device.stats();
            replays.steps += count;
            replays.launches += after.launches - self.stats.launches;
            replays.allocations += after.allocations - self.stats.allocations;
        }
    }
}

fn first_calls<'s>(steps: impl Iterator<Item = &'s Step<'static>>) -> u64 {
    steps.map(Step::first_calls).sum()
}
