//! What a run would be, without doing it.

use refrain_forecast::training::{Task, Trainer};
use serde::Serialize;

use super::Data;
use crate::console::Console;
use crate::error::Result;
use crate::job::Job;
use crate::run_config::{Forecasts, RunConfig};
use crate::tasks::epochs;

/// What `train --dry-run --json` prints.
#[derive(Serialize)]
struct Plan {
    parameters: usize,
    train_windows: usize,
    validation_windows: usize,
    test_windows: usize,
    #[serde(flatten)]
    time: epochs::StepTime,
    device: String,
}

/// Says how long a run would take, from a few steps of it, and how the time of a step is spent, if `profile` says so. Nothing is
/// written.
pub fn conclude<T: Task>(
    console: Console,
    config: &RunConfig<Forecasts>,
    data: &Data,
    trainer: Trainer<T>,
    (job, profile): (&Job, bool),
) -> Result<()> {
    let parameters = trainer.task().parameters().count();
    let time = epochs::measure(console, trainer, config.precision.setting(), profile)?;
    console.result(&Plan {
        parameters,
        train_windows: data.split.train.windows(),
        validation_windows: data.split.validation.windows(),
        test_windows: data.split.test.windows(),
        time,
        device: job.device().name(),
    })
}
