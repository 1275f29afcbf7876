//! Reports what the replays of a recorded step cost: as a line and as JSON fields.

use refrain_forecast::training::Replays;
use serde::Serialize;

use crate::console::{Console, count};
use crate::error::Result;

/// What `--json` prints about replays. Null with --eager, and if every step came directly after a recording.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReplayFigures {
    pub launches_per_step: Option<f64>,
    /// With accumulation, each micro-batch is one, and so is the update. 0 with --eager.
    pub replays: u64,
    /// Storages that were made on the device.
    pub allocations_per_step: Option<f64>,
    /// How long recording the step took, summed over all folds.
    pub recording_seconds: Option<f64>,
}

impl ReplayFigures {
    /// Without replays with --eager.
    pub fn of(replays: Option<Replays>) -> ReplayFigures {
        let of = replays.unwrap_or_default();
        ReplayFigures {
            launches_per_step: of.launches_per_step(),
            replays: of.count,
            allocations_per_step: of.allocations_per_step(),
            recording_seconds: (of.count > 0).then_some(of.recording.as_secs_f64()),
        }
    }

    /// Prints the line with --verbose, if there were replays.
    pub fn show_detail(&self, console: Console) -> Result<()> {
        self.line().map_or(Ok(()), |line| console.detail(line))
    }

    /// Prints the line, if there were replays.
    pub fn show(&self, console: Console) -> Result<()> {
        match self.line() {
            Some(line) => console.line(line),
            None => Ok(()),
        }
    }

    fn line(&self) -> Option<String> {
        let recording = self.recording_seconds?;
        let launches = self.launches_per_step.map(|launches| format!("{launches:.0} launches per step, "));
        let storages = self.allocations_per_step.map(|storages| format!(", {storages} storages per step"));
        Some(format!(
            "{}replayed; recording took {:.1} ms; {} replay{}{}",
            launches.unwrap_or_default(),
            recording * 1e3,
            count(self.replays),
            if self.replays == 1 { "" } else { "s" },
            storages.unwrap_or_default(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_line_tells_what_is_known() {
        let recording = Duration::from_micros(2340);
        let replays = Replays { count: 1200, recording, steps: 8, launches: 400, allocations: 2 };
        let line = |replays| ReplayFigures::of(replays).line();
        let all =
            "50 launches per step, replayed; recording took 2.3 ms; 1,200 replays, 0.25 storages per step";
        assert_eq!(line(Some(replays)).as_deref(), Some(all));
        let one = Replays { count: 1, steps: 0, ..replays };
        assert_eq!(line(Some(one)).as_deref(), Some("replayed; recording took 2.3 ms; 1 replay"));
        assert_eq!((line(Some(Replays::default())), line(None)), (None, None));
    }
}
