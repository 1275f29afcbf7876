//! What a run would be, without doing it.

use refrain::with_precision;
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

/// Says how long a run would take, from a few steps of it. Nothing is written.
pub fn conclude<T: Task>(
    console: Console,
    config: &RunConfig<Forecasts>,
    data: &Data,
    trainer: &mut Trainer<T>,
    job: &Job,
) -> Result<()> {
    let time = with_precision(config.precision.setting(), || epochs::time_of_step(trainer))?;
    time.show(console)?;
    console.result(&Plan {
        parameters: trainer.task().parameters().count(),
        train_windows: data.split.train.windows(),
        validation_windows: data.split.validation.windows(),
        test_windows: data.split.test.windows(),
        time,
        device: job.device().name(),
    })
}
