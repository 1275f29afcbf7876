//! One training step by the library's trainer, as several ranks share it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use refrain::{Communicator, Device, Generator, Tensor};
use refrain_forecast::training::{Pace, Replays, Task, Trainer};
use refrain_forecast::{Error, Result};
use refrain_nn::{Mode, Parameters};

use super::step::{LR, Model, POOL, Workload};
use super::training::{self, Nothing};

/// How often a step is measured.
#[derive(Debug, Clone, Copy)]
pub struct Repeats {
    /// Steps before the first repeat, at least.
    pub warmup: u64,
    /// Steps of a repeat.
    pub steps: u64,
    /// Number of repeats.
    pub repeats: usize,
}

/// A training step by the library's trainer: the model, the loss and the optimiser of a [`StepBench`](super::StepBench). With a
/// communicator, each rank has a batch of its own in every step, and the gradients are added up as in any other training.
pub struct SharedStep {
    trainer: Trainer<RandomBatches>,
    repeats: Repeats,
}

/// Random batches in memory. One of them is a sample of the trainer.
struct RandomBatches {
    model: Model,
    device: Device,
    /// Rows of a batch.
    rows: usize,
    /// The rows of all batches.
    inputs: Tensor,
    targets: Tensor,
    /// The numbers of the batches of an epoch.
    samples: Vec<i64>,
}

impl Task for RandomBatches {
    type Validation = Nothing;

    fn parameters(&self) -> &Parameters {
        self.model.parameters()
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        self.model.parameters_mut()
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn samples(&self) -> Vec<i64> {
        self.samples.clone()
    }

    fn data(&self) -> Vec<&Tensor> {
        vec![&self.inputs, &self.targets]
    }

    fn loss(&self, samples: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let batch = |all: &Tensor| -> refrain::Result<Tensor> {
            let row = &all.dims()[1..];
            let by_batch = all.reshape([&[POOL, self.rows], row].concat())?;
            by_batch.index_select(0, samples)?.reshape([&[samples.numel() * self.rows], row].concat())
        };
        self.model.loss(&batch(&self.inputs)?, &batch(&self.targets)?, mode)
    }

    fn validation(&self, _: &[f64]) -> Nothing {
        Nothing {}
    }

    fn error(_: &Nothing) -> f64 {
        0.0
    }
}

impl SharedStep {
    /// A step of `ranks` ranks, each with a batch of `rows` rows.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device has no memory for it.
    pub fn new(
        workload: &dyn Workload,
        rows: usize,
        ranks: usize,
        device: &Device,
        seed: u64,
        repeats: Repeats,
    ) -> Result<SharedStep> {
        let generator = Generator::new(device, seed.wrapping_add(1))?;
        let [inputs, targets] = workload.random(&generator, POOL * rows)?;
        // The epoch does not end before the last repeat.
        let Repeats { warmup, steps, repeats: count } = repeats;
        let epoch = warmup + steps * (count as u64 + 3);
        let samples = (0..epoch as i64 * ranks as i64).map(|n| n % POOL as i64).collect();
        let model = workload.model(device, seed)?;
        let task = RandomBatches { model, device: device.clone(), rows, inputs, targets, samples };
        let pace = training::Pace { epochs: 1, batch_size: ranks, accumulate: 1, lr: LR, seed };
        Ok(SharedStep { trainer: Trainer::of(task, pace.config())?, repeats })
    }

    /// Runs the steps eagerly instead of replaying a recorded step.
    pub fn eager(self) -> SharedStep {
        SharedStep { trainer: self.trainer.eager(), ..self }
    }

    /// Makes it the step of one of several ranks.
    ///
    /// # Errors
    /// Those of [`Trainer::with_communicator`].
    pub fn with_communicator(self, communicator: Communicator) -> Result<SharedStep> {
        Ok(SharedStep { trainer: self.trainer.with_communicator(communicator)?, ..self })
    }

    /// The times of a step in each repeat, in microseconds. `recorded` is called when the first step is done, which takes longer
    /// than the others.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device fails.
    pub fn measure(&mut self, recorded: impl FnOnce()) -> Result<Vec<f64>> {
        let Repeats { warmup, steps, repeats } = self.repeats;
        // Without reports on the way, all steps between two multiples of `steps` run without the host.
        let pace = Pace { interval: Duration::MAX, stop_every: Some(steps) };
        self.trainer.epoch(pace, |_| ControlFlow::Break(()))?;
        recorded();
        let mut times = Vec::with_capacity(repeats);
        let mut begun: Option<(u64, Instant)> = None;
        self.trainer.epoch(pace, |trainer| {
            let (now, done) = (Instant::now(), trainer.steps());
            if let Some((first, then)) = begun
                && first >= warmup
                && done - first == steps
            {
                times.push((now - then).as_secs_f64() * 1e6 / steps as f64);
            }
            begun = Some((done, now));
            if times.len() < repeats { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        match times.len() == repeats {
            true => Ok(times),
            false => Err(Error::Training {
                problem: format!("only {} of {repeats} repeats ran in one piece", times.len()),
                fix: "choose more steps for a repeat",
            }),
        }
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    /// The mean loss of all steps so far.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device fails.
    pub fn mean_loss(&self) -> Result<f64> {
        self.trainer.mean_loss()
    }

    /// What the replays used on the device. `None` if the steps run eagerly.
    pub fn replays(&self) -> Option<Replays> {
        self.trainer.replays()
    }

    /// The number of trained values.
    pub fn parameter_count(&self) -> usize {
        self.trainer.task().parameters().count()
    }
}
