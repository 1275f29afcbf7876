//! The steps of a training run, on the device.

use super::{LrSchedule, Task, TrainingConfig};
use crate::Result;
use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Generator, Step, Tensor, no_grad};
use refrain_nn::{AdamW, Batches, Mode, Optimizer, Parameters};
use std::rc::Rc;

/// Separates the random numbers of the sample order from those of the weights.
const ORDER: u64 = 0x6f72_6465_7200_0001;

/// Separates the random numbers of dropout from those of the weights.
const DROPOUT: u64 = 0x6472_6f70_0000_0002;

/// What a step works on.
pub(super) struct Learner<T> {
    pub(super) task: T,
    pub(super) optimizer: AdamW,
    pub(super) schedule: Schedule,
    pub(super) dropout: Generator,
    /// The sum of the losses of the samples of this epoch so far, f64 `[]`.
    pub(super) loss_sum: Tensor,
    /// Gives one micro-batch at a time.
    batches: Batches,
    /// Micro-batches per step.
    accumulate: usize,
    batch: Batch,
    /// Gives one batch of validation samples at a time, in order.
    validation: Batches,
    /// The sums over those that were measured, f64 `[SUMS]`.
    sums: Tensor,
}

/// The sums over the micro-batches of the current step, f64 `[]`.
struct Batch {
    /// The sum of their mean losses, each times its weight.
    loss: Tensor,
    /// The sum of their weights.
    weight: Tensor,
    /// The number of their samples.
    samples: Tensor,
}

impl<T: Task> Learner<T> {
    pub(super) fn new(task: T, config: &TrainingConfig) -> Result<Learner<T>> {
        let device = task.device();
        let samples = task.samples();
        let steps = samples.len().div_ceil(config.batch_size) as u64;
        let schedule = schedule(config, steps.saturating_mul(config.epochs as u64));
        let scalar = || Tensor::zeros((), DType::F64, device);
        Ok(Learner {
            optimizer: optimizer(task.parameters(), config, schedule)?,
            schedule,
            dropout: Generator::new(device, config.seed ^ DROPOUT)?,
            loss_sum: scalar()?,
            batches: Batches::new(samples, config.micro_batch(), config.seed ^ ORDER, device)?,
            accumulate: config.accumulate,
            batch: Batch { loss: scalar()?, weight: scalar()?, samples: scalar()? },
            validation: Batches::new(task.validation_samples(), task.validation_batch(), 0, device)?,
            sums: Tensor::zeros(T::SUMS, DType::F64, device)?,
            task,
        })
    }

    /// Starts an epoch, counted from 0, at a step.
    pub(super) fn begin(&self, epoch: u64, step: u64) -> Result<()> {
        Ok(self.batches.begin(epoch, step as usize * self.accumulate)?)
    }

    /// The number of steps of an epoch.
    pub(super) fn steps(&self) -> u64 {
        self.batches.steps().div_ceil(self.accumulate) as u64
    }

    /// How many steps from this position of the epoch on are alike. The smaller batch at the end is different.
    pub(super) fn alike(&self, at: u64) -> u64 {
        let whole = (self.batches.whole() / self.accumulate) as u64;
        if at < whole { whole - at } else { 1 }
    }

    /// Runs this many steps that are alike. They are replayed if they are recorded.
    pub(super) fn run(&self, at: u64, count: u64, mut recorded: Option<&mut Recorded>) -> Result<()> {
        if self.accumulate == 1 {
            return self.passes(at as usize, count as usize, recorded);
        }
        for at in at..at + count {
            let first = at as usize * self.accumulate;
            let end = (first + self.accumulate).min(self.batches.steps());
            // Whole micro-batches, then the smaller last one of the epoch.
            let whole = self.batches.whole().clamp(first, end);
            for (first, end) in [(first, whole), (whole, end)] {
                self.passes(first, end - first, recorded.as_deref_mut())?;
            }
            match recorded.as_deref_mut().and_then(|recorded| recorded.update.as_mut()) {
                Some(update) => {
                    update.call(&[])?;
                }
                None => self.update()?,
            }
        }
        Ok(())
    }

    /// Runs this many passes over micro-batches of the size of the one at this position.
    fn passes(&self, at: usize, count: usize, recorded: Option<&mut Recorded>) -> Result<()> {
        let places = self.batches.places(at);
        match recorded {
            _ if count == 0 => {}
            Some(recorded) => {
                recorded.pass.repeat(std::slice::from_ref(places), count)?;
            }
            None => (0..count).try_for_each(|_| self.pass(places))?,
        }
        Ok(())
    }

    /// Forward and backward pass over the next samples, as many as there are positions. Without accumulation also the
    /// update.
    fn pass(&self, places: &Tensor) -> Result<()> {
        let samples = self.batches.next(places)?;
        let loss = self.task.loss(&samples, Mode::Train(&self.dropout))?;
        let wide = |x: &Tensor| x.detach().to_dtype(DType::F64);
        if self.accumulate == 1 {
            loss.backward()?;
            self.optimizer.step()?;
            let of_batch = wide(&loss)?.mul_scalar(samples.numel() as f64)?;
            return Ok(self.loss_sum.add_assign(&of_batch)?);
        }
        let weight = no_grad(|| self.task.weight(&samples))?;
        let weighted = loss.mul(&weight.to_dtype(loss.dtype())?)?;
        weighted.backward()?;
        self.batch.loss.add_assign(&wide(&weighted)?)?;
        self.batch.weight.add_assign(&wide(&weight)?)?;
        Ok(self.batch.samples.add_scalar_assign(samples.numel() as f64)?)
    }

    /// Measures the model on all validation samples. The passes are replayed if they are recorded.
    pub(super) fn validate(&self, mut recorded: Option<&mut Recorded>) -> Result<T::Validation> {
        self.validation.begin_in_order(0)?;
        self.sums.fill(0.0)?;
        let (whole, steps) = (self.validation.whole(), self.validation.steps());
        for (first, count) in [(0, whole), (whole, steps - whole)] {
            let places = self.validation.places(first);
            match recorded.as_deref_mut() {
                _ if count == 0 => {}
                Some(recorded) => {
                    recorded.validation.repeat(std::slice::from_ref(places), count)?;
                }
                None => (0..count).try_for_each(|_| self.measure(places))?,
            }
        }
        Ok(self.task.validation(&self.sums.to_vec::<f64>()?))
    }

    /// Adds the sums over the next validation samples, as many as there are positions.
    fn measure(&self, places: &Tensor) -> Result<()> {
        no_grad(|| Ok(self.sums.add_assign(&self.task.measure(&self.validation.next(places)?)?)?))
    }

    /// Turns the accumulated gradients into those of the mean loss over all micro-batches, and does the optimiser
    /// step.
    fn update(&self) -> Result<()> {
        let Batch { loss, weight, samples } = &self.batch;
        let gradients = self.task.parameters().gradients();
        gradients.div_assign(&weight.to_dtype(gradients.dtype())?)?;
        self.optimizer.step()?;
        self.loss_sum.add_assign(&loss.div(weight)?.mul(samples)?)?;
        [loss, weight, samples].iter().try_for_each(|sum| Ok(sum.fill(0.0)?))
    }
}

/// The recorded steps.
pub(super) struct Recorded {
    pass: Step<'static>,
    /// Only with accumulation.
    update: Option<Step<'static>>,
    /// The pass over a batch of validation samples.
    validation: Step<'static>,
}

impl Recorded {
    pub(super) fn new<T: Task>(learner: &Rc<Learner<T>>) -> Recorded {
        let device = learner.task.device();
        let of_pass = learner.clone();
        let pass = Step::new(device, move |places| {
            of_pass.pass(&places[0])?;
            Ok(Vec::new())
        });
        let update = (learner.accumulate > 1).then(|| {
            let of_update = learner.clone();
            Step::new(device, move |_| {
                of_update.update()?;
                Ok(Vec::new())
            })
        });
        let of_validation = learner.clone();
        let validation = Step::new(device, move |places| {
            of_validation.measure(&places[0])?;
            Ok(Vec::new())
        });
        Recorded { pass, update, validation }
    }

    pub(super) fn pass(&self) -> &Step<'static> {
        &self.pass
    }

    /// The recorded steps of training.
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step<'static>> {
        std::iter::once(&self.pass).chain(&self.update)
    }

    /// Checks that the recordings are still valid.
    pub(super) fn check(&mut self) -> Result<()> {
        self.pass.check()?;
        self.validation.check()?;
        self.update.iter_mut().try_for_each(|update| Ok(update.check()?))
    }
}

/// The learning rate over the steps of the whole run.
fn schedule(config: &TrainingConfig, steps: u64) -> Schedule {
    let lr = config.lr;
    match config.schedule {
        LrSchedule::Constant => Schedule::Constant { lr },
        LrSchedule::Cosine => Schedule::Cosine { lr, eta_min: 0.0, t_max: steps },
        LrSchedule::OneCycle => Schedule::OneCycle {
            max_lr: lr,
            total_steps: steps,
            pct_start: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
        },
    }
}

fn optimizer(parameters: &Parameters, config: &TrainingConfig, schedule: Schedule) -> Result<AdamW> {
    let options = AdamWOptions { weight_decay: config.weight_decay, ..AdamWOptions::default() };
    let optimizer = AdamW::new(parameters, options, schedule)?;
    Ok(if config.clip > 0.0 { optimizer.clip_grad_norm(config.clip)? } else { optimizer })
}
