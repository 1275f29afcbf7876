//! The steps of a training run, on the device.

use super::loss_sum::LossSum;
use super::ranks::{Ranks, Rows};
use super::{LrSchedule, Task, TrainingConfig};
use crate::Result;
use refrain::optim::{AdamWOptions, Schedule};
use refrain::{Communicator, DType, Generator, ReduceOp, Step, StepProfile, Tensor, no_grad};
use refrain_nn::{AdamW, Batches, Mode, Optimizer, Parameters, norms_and_biases};
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
    /// Where `dropout` is, for the passes over a batch before its last one.
    ahead: Generator,
    pub(super) loss_sum: LossSum,
    /// Gives one micro-batch at a time.
    batches: Batches,
    /// The passes over a micro-batch, of a full one and of the smaller last one.
    passes: [Vec<Inputs>; 2],
    /// Micro-batches per step.
    accumulate: usize,
    batch: Batch,
    /// If several ranks train together.
    pub(super) ranks: Option<Ranks>,
    /// Gives one batch of validation samples at a time, in order.
    validation: Batches,
    /// The sums over those that were measured, f64 `[SUMS]`.
    sums: Tensor,
}

/// The inputs of a pass. The places of its samples in the order of the epoch, counted from the cursor: i64 `[B]`. If several
/// ranks train together: of the samples of all ranks; which of these are this rank's; whether they count (1 or 0, f32 `[]`);
/// and as many places as the batch has samples in all of its passes.
type Inputs = Vec<Tensor>;

/// The sums over the passes of the current step, f64 `[]`.
struct Batch {
    /// The sum of their mean losses, each times its weight.
    loss: Tensor,
    /// The sum of their weights.
    weight: Tensor,
    /// The number of their samples.
    samples: Tensor,
}

impl<T: Task> Learner<T> {
    pub(super) fn new(mut task: T, config: &TrainingConfig) -> Result<Learner<T>> {
        if config.decay_all {
            task.parameters_mut().set_group(norms_and_biases, |group| group.decay_factor = 1.0)?;
        }
        let device = task.device();
        let samples = task.samples();
        let steps = samples.len().div_ceil(config.batch_size) as u64;
        let schedule = schedule(config, steps.saturating_mul(config.epochs as u64));
        let scalar = || Tensor::zeros((), DType::F64, device);
        let batches = Batches::new(samples, config.micro_batch(), config.seed ^ ORDER, device)?;
        let positions = |at: usize| vec![vec![batches.positions(at).clone()]];
        Ok(Learner {
            optimizer: optimizer(task.parameters(), config, schedule)?,
            schedule,
            dropout: Generator::new(device, config.seed ^ DROPOUT)?,
            ahead: Generator::new(device, 0)?,
            loss_sum: LossSum::new(device)?,
            passes: [positions(0), positions(batches.full_steps())],
            batches,
            ranks: None,
            accumulate: config.accumulate,
            batch: Batch { loss: scalar()?, weight: scalar()?, samples: scalar()? },
            validation: Batches::new(task.validation_samples(), task.validation_batch(), 0, device)?,
            sums: Tensor::zeros(T::SUMS, DType::F64, device)?,
            task,
        })
    }

    /// The same as one of several ranks that train together.
    pub(super) fn with_communicator(
        self,
        communicator: Communicator,
        config: &TrainingConfig,
    ) -> Result<Learner<T>> {
        let (device, samples) = (self.task.device(), self.task.samples());
        let validation = self.task.validation_samples();
        let ranks = Ranks::new(communicator, &self.task, config, [&samples, &validation])?;
        let own = ranks.part(&validation).to_vec();
        let [full, last] = [0, self.batches.full_steps()].map(|at| ranks.shares(self.batches.positions(at)));
        Ok(Learner {
            validation: Batches::new(own, self.task.validation_batch(), 0, device)?,
            passes: [full?, last?],
            ranks: Some(ranks),
            ..self
        })
    }

    /// Records everything that an epoch repeats, in the order in which it comes. So the kernels of all of it are compiled side by
    /// side, while the first steps already run.
    pub(super) fn record_ahead(&self, recorded: &mut Recorded) -> Result<()> {
        for first in firsts(&self.batches) {
            match (self.passes(first), self.accumulate) {
                ([inputs], 1) => recorded.step.record_ahead(inputs)?,
                (passes, _) => {
                    passes.iter().try_for_each(|inputs| recorded.part.record_ahead(inputs))?;
                    recorded.update.record_ahead(&[])?;
                }
            }
        }
        for first in firsts(&self.validation) {
            recorded.validation.record_ahead(std::slice::from_ref(self.validation.positions(first)))?;
        }
        Ok(())
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
        let whole = (self.batches.full_steps() / self.accumulate) as u64;
        if at < whole { whole - at } else { 1 }
    }

    /// Runs this many steps that are alike. They are replayed if they are recorded.
    pub(super) fn run(&self, at: u64, count: u64, mut recorded: Option<&mut Recorded>) -> Result<()> {
        if let ([inputs], 1) = (self.passes(at as usize), self.accumulate) {
            return self.repeat(Pass::Step, inputs, count as usize, recorded);
        }
        for at in at..at + count {
            let first = at as usize * self.accumulate;
            let end = (first + self.accumulate).min(self.batches.steps());
            // Whole micro-batches, then the smaller last one of the epoch.
            let whole = self.batches.full_steps().clamp(first, end);
            for (first, end) in [(first, whole), (whole, end)].into_iter().filter(|(first, end)| first < end)
            {
                match self.passes(first) {
                    [inputs] => self.repeat(Pass::Part, inputs, end - first, recorded.as_deref_mut())?,
                    passes => {
                        for inputs in (first..end).flat_map(|_| passes) {
                            self.repeat(Pass::Part, inputs, 1, recorded.as_deref_mut())?;
                        }
                    }
                }
            }
            match recorded.as_deref_mut() {
                Some(recorded) => {
                    recorded.update.call(&[])?;
                }
                None => self.update()?,
            }
        }
        Ok(())
    }

    /// The passes over the micro-batch at this position.
    fn passes(&self, at: usize) -> &[Inputs] {
        &self.passes[usize::from(at >= self.batches.full_steps())]
    }

    /// Runs a pass this many times.
    fn repeat(
        &self,
        pass: Pass,
        inputs: &Inputs,
        count: usize,
        recorded: Option<&mut Recorded>,
    ) -> Result<()> {
        match (recorded, pass) {
            (None, Pass::Step) => (0..count).try_for_each(|_| self.step(inputs)),
            (None, Pass::Part) => (0..count).try_for_each(|_| self.part(inputs)),
            (Some(recorded), pass) => {
                let step = match pass {
                    Pass::Step => &mut recorded.step,
                    Pass::Part => &mut recorded.part,
                };
                step.repeat(inputs, count)?;
                Ok(())
            }
        }
    }

    /// Measures the launches of a pass over full micro-batches, or over the smaller one if no other is there.
    pub(super) fn profile(&self, recorded: &mut Recorded, runs: usize) -> Result<StepProfile> {
        let passes = self.passes(0);
        let has_parts = self.accumulate > 1 || passes.len() > 1;
        let step = if has_parts { &mut recorded.part } else { &mut recorded.step };
        Ok(step.profile(&passes[0], runs.min(self.batches.full_steps()).max(1))?)
    }

    /// The numbers of this rank's next samples.
    fn samples(&self, inputs: &[Tensor]) -> Result<Tensor> {
        Ok(self.batches.peek(inputs.get(1).unwrap_or(&inputs[0]))?)
    }

    /// The weights of the mean loss of these samples, if they count, and of all ranks' samples. The task gives `weight` for these.
    fn weights(&self, weight: Option<Tensor>, own: &Tensor, inputs: &[Tensor]) -> Result<[Tensor; 2]> {
        let or_number = |weight: Option<Tensor>, n: usize| match weight {
            Some(weight) => Ok(weight),
            None => Tensor::full((), n as f64, DType::F32, own.device()),
        };
        let Some(counts) = inputs.get(2) else {
            let weight = or_number(weight, own.numel())?;
            return Ok([weight.clone(), weight]);
        };
        let all = match weight {
            Some(_) => self.task.weight(&self.batches.peek(&inputs[0])?)?,
            None => None,
        };
        Ok([or_number(weight, own.numel())?.mul(counts)?, or_number(all, inputs[0].numel())?])
    }

    /// The random numbers for a pass: those that one process would draw for this rank's samples of the batch.
    fn random(&self, inputs: &[Tensor]) -> Result<Generator> {
        let Some(ranks) = &self.ranks else { return Ok(self.dropout.clone()) };
        let Rows { own, of, is_last } = ranks.rows(inputs)?;
        if is_last {
            return Ok(self.dropout.for_batch_rows(own, of)?);
        }
        // The last pass draws the same numbers for its rows, and then this generator moves on.
        self.ahead.copy_state_from(&self.dropout)?;
        Ok(self.ahead.for_batch_rows(own, of)?)
    }

    /// A whole step: forward and backward pass over the next samples, and the update.
    fn step(&self, inputs: &[Tensor]) -> Result<()> {
        let (own, all) = (self.samples(inputs)?, inputs[0].numel() as f64);
        let mut loss = self.task.loss(&own, Mode::Train(&self.random(inputs)?))?;
        // What a rank adds to the losses of the epoch is its loss times this.
        let mut times = own.numel() as f64;
        match &self.ranks {
            None => loss.backward()?,
            Some(ranks) => match no_grad(|| self.task.weight(&own))? {
                None if ranks.are_equal(inputs) => {
                    loss.backward()?;
                    ranks.reduce_gradients(ReduceOp::Mean)?;
                }
                weight => {
                    let [weight, of] = no_grad(|| self.weights(weight, &own, inputs))?;
                    // Its sum over the ranks is the mean loss of all samples.
                    loss = loss.mul(&no_grad(|| weight.div(&of))?.to_dtype(loss.dtype())?)?;
                    times = all;
                    loss.backward()?;
                    ranks.reduce_gradients(ReduceOp::Sum)?;
                }
            },
        }
        self.batches.skip(inputs[0].numel())?;
        self.optimizer.step()?;
        let last = self.optimizer.step_state();
        self.loss_sum.add(&wide(&loss)?, last, [&|x| x.mul_scalar(times), &|x| x.mul_scalar(all)])
    }

    /// A part of a step: forward and backward pass over the next samples. The gradients are added up.
    fn part(&self, inputs: &[Tensor]) -> Result<()> {
        let own = self.samples(inputs)?;
        let loss = self.task.loss(&own, Mode::Train(&self.random(inputs)?))?;
        let [weight, all] = no_grad(|| self.weights(self.task.weight(&own)?, &own, inputs))?;
        self.batches.skip(inputs[0].numel())?;
        let weighted = loss.mul(&weight.to_dtype(loss.dtype())?)?;
        weighted.backward()?;
        self.batch.loss.add_assign(&wide(&weighted)?)?;
        self.batch.weight.add_assign(&wide(&all)?)?;
        Ok(self.batch.samples.add_scalar_assign(inputs[0].numel() as f64)?)
    }

    /// How many steps were skipped since the run began, because their gradients were not finite. It waits for the device.
    pub(super) fn skipped_steps(&self) -> Result<u64> {
        let skipped = self.optimizer.step_state().skipped();
        Ok(skipped.map_or(Ok(0), Tensor::to_scalar::<i64>)?.max(0) as u64)
    }

    /// Measures the model on all validation samples. The passes are replayed if they are recorded. It does not wait for the device.
    pub(super) fn begin_validation(&self, mut recorded: Option<&mut Recorded>) -> Result<()> {
        self.validation.begin_in_order(0)?;
        self.sums.fill(0.0)?;
        let (whole, steps) = (self.validation.full_steps(), self.validation.steps());
        for (first, count) in [(0, whole), (whole, steps - whole)] {
            let places = self.validation.positions(first);
            match recorded.as_deref_mut() {
                _ if count == 0 => {}
                Some(recorded) => {
                    recorded.validation.repeat(std::slice::from_ref(places), count)?;
                }
                None => (0..count).try_for_each(|_| self.measure(places))?,
            }
        }
        Ok(())
    }

    /// What [`Learner::begin_validation`] has measured.
    pub(super) fn end_validation(&self) -> Result<T::Validation> {
        let sums =
            self.ranks.as_ref().map_or_else(|| Ok(self.sums.clone()), |ranks| ranks.sum(&self.sums))?;
        Ok(self.task.validation(&sums.to_vec::<f64>()?))
    }

    /// Adds the sums over the next validation samples, as many as there are positions.
    fn measure(&self, places: &Tensor) -> Result<()> {
        no_grad(|| Ok(self.sums.add_assign(&self.task.measure(&self.validation.next(places)?)?)?))
    }

    /// Turns the accumulated gradients into those of the mean loss over all passes, and does the optimiser step.
    fn update(&self) -> Result<()> {
        let Batch { loss, weight, samples } = &self.batch;
        self.ranks.as_ref().map_or(Ok(()), |ranks| ranks.reduce_gradients(ReduceOp::Sum))?;
        let gradients = self.task.parameters().gradients();
        gradients.div_assign(&weight.to_dtype(gradients.dtype())?)?;
        self.optimizer.step()?;
        let times = |x: &Tensor| x.mul(samples);
        self.loss_sum.add(&loss.div(weight)?, self.optimizer.step_state(), [&times, &times])?;
        [loss, weight, samples].iter().try_for_each(|sum| Ok(sum.fill(0.0)?))
    }
}

/// The positions of the first full batch and of the smaller last one, if there are such.
fn firsts(batches: &Batches) -> impl Iterator<Item = usize> {
    let (full, all) = (batches.full_steps(), batches.steps());
    [0, full].into_iter().zip([full, all]).filter(|(first, end)| first < end).map(|(first, _)| first)
}

/// What is recorded and repeated.
#[derive(Clone, Copy)]
enum Pass {
    Step,
    Part,
}

/// A loss or a weight as f64.
fn wide(x: &Tensor) -> Result<Tensor> {
    Ok(x.detach().to_dtype(DType::F64)?)
}

/// The recorded steps.
pub(super) struct Recorded {
    step: Step<'static>,
    /// With accumulation, and for batches that the ranks cannot share equally.
    part: Step<'static>,
    /// After the parts.
    update: Step<'static>,
    accumulates: bool,
    /// The pass over a batch of validation samples.
    validation: Step<'static>,
}

impl Recorded {
    pub(super) fn new<T: Task>(learner: &Rc<Learner<T>>) -> Recorded {
        let device = learner.task.device();
        let step = |run: fn(&Learner<T>, &[Tensor]) -> Result<()>| {
            let learner = learner.clone();
            Step::new(device, move |inputs| {
                run(&learner, inputs)?;
                Ok(Vec::new())
            })
        };
        Recorded {
            step: step(Learner::step),
            part: step(Learner::part),
            update: step(|learner, _| learner.update()),
            accumulates: learner.accumulate > 1,
            validation: step(|learner, places| learner.measure(&places[0])),
        }
    }

    /// The step, with accumulation the pass over a micro-batch.
    pub(super) fn pass(&self) -> &Step<'static> {
        if self.accumulates { &self.part } else { &self.step }
    }

    /// The recorded steps of training.
    pub(super) fn steps(&self) -> impl Iterator<Item = &Step<'static>> {
        let other = if self.accumulates { &self.step } else { &self.part };
        [self.pass(), other, &self.update].into_iter()
    }

    /// Checks that the recordings are still valid.
    pub(super) fn check(&mut self) -> Result<()> {
        let steps = [&mut self.step, &mut self.part, &mut self.update, &mut self.validation];
        steps.into_iter().try_for_each(|step| Ok(step.check()?))
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
    let optimizer = AdamW::new(parameters, options, schedule)?.skip_non_finite()?;
    Ok(if config.clip > 0.0 { optimizer.clip_grad_norm(config.clip)? } else { optimizer })
}
