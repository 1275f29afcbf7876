//! A workload that is trained, and the results of its epochs.

use std::ops::ControlFlow;
use std::time::Duration;

use refrain::Communicator;
use refrain_forecast::Result;
use refrain_forecast::training::{BatchNormStatistics, LrSchedule, Replays, Task, Trainer, TrainingConfig};
use serde::{Deserialize, Serialize};

/// A workload that the library's trainer trains: AdamW with weight decay 0.01 and a constant learning rate, gradient norm
/// clipped at 1.0. Nothing is validated.
pub struct TrainingBench<T: Task<Validation = Nothing>> {
    trainer: Trainer<T>,
}

/// The results of an epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochFigures {
    /// Mean loss over the samples, each computed in its own step.
    pub loss: f64,
    /// Number of steps.
    pub steps: u64,
    /// Time of all steps.
    pub time: Duration,
}

/// What the validation of a workload finds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nothing {}

/// The settings of a workload's training that differ from one to the next.
pub struct Pace {
    /// Number of epochs.
    pub epochs: usize,
    /// Samples per step.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub accumulate: usize,
    /// The learning rate.
    pub lr: f64,
    /// Seed of the order of the samples.
    pub seed: u64,
}

impl Pace {
    /// AdamW with weight decay 0.01 of all parameters, as the other frameworks have it, and a constant learning rate, gradient norm clipped at 1.0.
    pub(super) fn config(&self) -> TrainingConfig {
        let Pace { epochs, batch_size, accumulate, lr, seed } = *self;
        TrainingConfig {
            epochs,
            batch_size,
            accumulate,
            lr,
            schedule: LrSchedule::Constant,
            weight_decay: 0.01,
            decay_all: true,
            clip: 1.0,
            patience: epochs,
            seed,
            batch_norm: BatchNormStatistics::Synchronised,
        }
    }
}

impl<T: Task<Validation = Nothing>> TrainingBench<T> {
    pub(super) fn of(task: T, pace: &Pace) -> Result<TrainingBench<T>> {
        Ok(TrainingBench { trainer: Trainer::of(task, pace.config())? })
    }

    /// Runs the steps eagerly instead of replaying a recorded step.
    pub fn eager(mut self) -> TrainingBench<T> {
        self.trainer = self.trainer.eager();
        self
    }

    /// Makes it the training of one of several ranks. The batch size is that of all ranks.
    ///
    /// # Errors
    /// Those of [`Trainer::with_communicator`].
    pub fn with_communicator(mut self, communicator: Communicator) -> Result<TrainingBench<T>> {
        self.trainer = self.trainer.with_communicator(communicator)?;
        Ok(self)
    }

    /// What the replays used on the device. `None` if the steps run eagerly.
    pub fn replays(&self) -> Option<Replays> {
        self.trainer.replays()
    }

    /// One pass over all samples in a new order.
    ///
    /// # Errors
    /// [`refrain_forecast::Error::Training`] if the loss is no longer finite; [`refrain_forecast::Error::Engine`] if the
    /// device fails.
    pub fn epoch(&mut self) -> Result<EpochFigures> {
        let steps = self.trainer.steps_per_epoch();
        self.trainer.epoch(Duration::MAX, |_| ControlFlow::Continue(()))?;
        let report = self.trainer.history().last();
        let (loss, seconds) = report.map_or((f64::NAN, 0.0), |report| (report.train_loss, report.seconds));
        Ok(EpochFigures { loss, steps, time: Duration::from_secs_f64(seconds) })
    }

    /// The number of trained values.
    pub fn parameter_count(&self) -> usize {
        self.trainer.task().parameters().count()
    }
}
