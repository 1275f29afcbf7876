//! Training: epochs over shuffled windows, validation, early stopping, the best weights, and going on after a stop.

mod config;
mod state;

pub use config::{LrSchedule, TrainingConfig};
pub use state::{EpochReport, saved_run};

use crate::evaluation;
use crate::model::{Mode, PatchTst, PatchTstConfig};
use crate::order::Order;
use crate::series::{Part, Split};
use crate::windows::Windows;
use crate::{Error, Result};
use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Device, Generator, Step, Tensor};
use refrain_nn::{AdamW, Optimizer};
use state::State;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What sets the sequence of random numbers for the order of the windows apart from that for the weights.
const ORDER: u64 = 0x6f72_6465_7200_0001;
/// The same for dropout.
const DROPOUT: u64 = 0x6472_6f70_0000_0002;

/// A model in training.
///
/// What a run does follows from its settings and its series alone: the same weights, bit for bit, on the same
/// device, also after being saved and resumed in the middle of an epoch.
///
/// The step is recorded at its first call and replayed from then on (see [`refrain::Step`]), unless
/// [`Trainer::eager`] turns that off; the results are the same bits.
pub struct Trainer {
    learner: Rc<Learner>,
    step: Option<Step<'static>>,
    config: TrainingConfig,
    train: Part,
    validation: Part,
    state: State,
    /// Copies of the weights of the best epoch, and whether they are those that the model has.
    best: Option<Vec<Tensor>>,
    best_is_current: bool,
}

/// What a step works on.
struct Learner {
    model: PatchTst,
    optimizer: AdamW,
    windows: Windows,
    dropout: Generator,
    order: Order,
    /// Sum over the windows of this epoch of their losses, f64 `[]`.
    loss_sum: Tensor,
}

impl Learner {
    /// One step on the windows that are next, as many as there are places.
    fn step(&self, places: &Tensor) -> Result<()> {
        let starts = self.order.next(places)?;
        let (x, y) = self.windows.cut(&starts)?;
        let loss = step(&self.model, &self.optimizer, &x, &y, Mode::Train(&self.dropout))?;
        let of_batch = loss.to_dtype(DType::F64)?.mul_scalar(starts.numel() as f64)?;
        Ok(self.loss_sum.add_assign(&of_batch)?)
    }
}

/// How a call of [`Trainer::epoch`] ended.
#[derive(Debug, Clone, PartialEq)]
pub enum EpochEnd {
    /// The epoch is finished and validated.
    Finished(EpochReport),
    /// The caller stopped it between steps; the next call goes on from there.
    Stopped,
}

impl Trainer {
    /// A model with random weights, before its first step.
    ///
    /// # Errors
    /// [`Error::Model`] and [`Error::Training`] for settings that cannot be; [`Error::Engine`] if the device has no
    /// memory for it.
    pub fn new(
        model: PatchTstConfig,
        config: TrainingConfig,
        windows: Windows,
        split: &Split,
    ) -> Result<Trainer> {
        config.validate()?;
        let device = windows.device().clone();
        let model = PatchTst::new(model, DType::F32, &device, config.seed)?;
        let steps = split.train.windows.div_ceil(config.batch_size) as u64;
        let optimizer = optimizer(&model, &config, steps.saturating_mul(config.epochs as u64))?;
        let learner = Rc::new(Learner {
            model,
            optimizer,
            windows,
            dropout: Generator::new(&device, config.seed ^ DROPOUT)?,
            order: Order::new(split.train.windows, config.batch_size, &device)?,
            loss_sum: Tensor::zeros((), DType::F64, &device)?,
        });
        let recorded = learner.clone();
        let step = Step::new(&device, move |inputs| {
            recorded.step(&inputs[0])?;
            Ok(Vec::new())
        });
        Ok(Trainer {
            learner,
            step: Some(step),
            train: split.train.clone(),
            validation: split.validation.clone(),
            state: State::default(),
            best: None,
            best_is_current: false,
            config,
        })
    }

    /// Runs the steps operation by operation, instead of replaying a recorded one.
    pub fn eager(mut self) -> Trainer {
        self.step = None;
        self
    }

    /// The recorded step, for what it can tell; `None` if there is none.
    pub fn recorded(&self) -> Option<&Step<'static>> {
        self.step.as_ref()
    }

    /// Trains to the end of the epoch, then validates. `on_steps` is called about as often as `interval` says, after
    /// each step if that is zero, and may stop the epoch there. Between two calls the steps follow one another on the
    /// device without the host.
    ///
    /// # Errors
    /// [`Error::Training`] if the loss is no longer finite; [`Error::Engine`] if the device fails.
    pub fn epoch(
        &mut self,
        interval: Duration,
        mut on_steps: impl FnMut(&Trainer) -> ControlFlow<()>,
    ) -> Result<EpochEnd> {
        let begun = Instant::now();
        let before = self.state.seconds;
        let learner = self.learner.clone();
        let (order, device) = (&learner.order, learner.windows.device());
        let mut at = self.state.epoch_steps as usize;
        order.begin(&self.starts()?, at)?;
        let mut steps = 1;
        while at < order.steps() {
            // The smaller batch at the end is a step of its own.
            let end = if at < order.whole() { order.whole() } else { order.steps() };
            let count = steps.min(end - at);
            let asked = Instant::now();
            self.run(order.places(at), count)?;
            device.synchronize()?;
            // Twice as many at most, since the first time says little: it includes the recording.
            let fitting = count as f64 * interval.as_secs_f64() / asked.elapsed().as_secs_f64().max(1e-9);
            steps = (fitting as usize).clamp(1, 2 * count);
            at += count;
            self.state.epoch_steps = at as u64;
            self.state.seconds = before + begun.elapsed().as_secs_f64();
            if on_steps(self).is_break() {
                return Ok(EpochEnd::Stopped);
            }
        }
        if let Some(step) = &mut self.step {
            step.check()?;
        }
        let train_loss = self.mean_loss()?;
        let errors = evaluation::evaluate(&self.learner.model, &self.learner.windows, &self.validation)?
            .standardised();
        let epoch = self.state.history.len() + 1;
        if ![train_loss, errors.mse].iter().all(|loss| loss.is_finite()) {
            return Err(Error::Training {
                problem: format!(
                    "in epoch {epoch} the loss is {train_loss} and the validation error {}",
                    errors.mse
                ),
                fix: "lower the learning rate, or clip the gradients' norm",
            });
        }
        let best = self.state.best().is_none_or(|best| errors.mse < best.validation_mse);
        if best {
            self.best = Some(self.copies()?);
            self.best_is_current = true;
        }
        let report = EpochReport {
            epoch,
            train_loss,
            validation_mse: errors.mse,
            validation_mae: errors.mae,
            learning_rate: self.learner.optimizer.step_state().schedule().at(self.steps().saturating_sub(1)),
            seconds: before + begun.elapsed().as_secs_f64(),
            best,
        };
        self.state.history.push(report.clone());
        self.state.epoch_steps = 0;
        self.state.seconds = 0.0;
        self.learner.loss_sum.fill(0.0)?;
        Ok(EpochEnd::Finished(report))
    }

    fn run(&mut self, places: &Tensor, count: usize) -> Result<()> {
        self.best_is_current = false;
        match &mut self.step {
            Some(step) => {
                step.repeat(std::slice::from_ref(places), count)?;
                Ok(())
            }
            None => (0..count).try_for_each(|_| self.learner.step(places)),
        }
    }

    /// The first rows of the windows of this epoch, in an order that follows from seed and epoch.
    fn starts(&self) -> Result<Vec<i64>> {
        let epoch = self.state.history.len() as u64;
        let mut order = shuffled(self.train.windows, self.config.seed, epoch, self.learner.windows.device())?;
        order.iter_mut().for_each(|window| *window += self.train.rows.start as i64);
        Ok(order)
    }

    /// The mean loss over the windows of this epoch so far. It waits for the device.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device fails.
    pub fn mean_loss(&self) -> Result<f64> {
        let seen =
            (self.state.epoch_steps as usize).saturating_mul(self.config.batch_size).min(self.train.windows);
        Ok(self.learner.loss_sum.to_scalar::<f64>()? / seen as f64)
    }

    /// Copies of all tensors of the model.
    fn copies(&self) -> Result<Vec<Tensor>> {
        let copies = self.learner.model.tensors().map(|(_, tensor)| tensor.detach().copy());
        Ok(copies.collect::<refrain::Result<_>>()?)
    }

    /// Whether all epochs are done, or patience is at its end.
    pub fn is_done(&self) -> bool {
        let done = self.state.history.len();
        let best = self.state.best().map_or(0, |best| best.epoch);
        done >= self.config.epochs || done - best >= self.config.patience
    }

    /// What the epochs so far came to.
    pub fn history(&self) -> &[EpochReport] {
        &self.state.history
    }

    /// Steps of one epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.train.windows.div_ceil(self.config.batch_size) as u64
    }

    /// Steps done of this epoch.
    pub fn steps_in_epoch(&self) -> u64 {
        self.state.epoch_steps
    }

    /// Steps done in all.
    pub fn steps(&self) -> u64 {
        self.state.history.len() as u64 * self.steps_per_epoch() + self.state.epoch_steps
    }

    /// The model as it is now.
    pub fn model(&self) -> &PatchTst {
        &self.learner.model
    }

    /// The model with the weights of the best epoch (of the last step, before the first epoch is finished), and the
    /// series that it was trained on.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device fails.
    pub fn into_best(mut self) -> Result<(PatchTst, Windows)> {
        if let Some(best) = &self.best {
            restore(&self.learner.model, best)?;
        }
        // The closure that is recorded holds the other handle.
        self.step = None;
        let learner = Rc::into_inner(self.learner).ok_or(Error::Training {
            problem: "the model is still in use".to_owned(),
            fix: "drop what was made from the trainer first",
        })?;
        Ok((learner.model, learner.windows))
    }
}

/// The numbers below `count` in an order that follows from seed and epoch.
pub(crate) fn shuffled(count: usize, seed: u64, epoch: u64, device: &Device) -> Result<Vec<i64>> {
    // A number of 53 random bits takes half a block of the generator, so epochs do not share any.
    let generator = Generator::from_state(device, seed ^ ORDER, epoch.wrapping_mul(count as u64))?;
    let keys = generator.uniform(count, DType::F64)?.to_vec::<f64>()?;
    let mut order: Vec<i64> = (0..count as i64).collect();
    order.sort_by(|&a, &b| keys[a as usize].total_cmp(&keys[b as usize]));
    Ok(order)
}

/// Forward, loss, backward, clipping and update; the loss before the update, f32 `[]`.
pub(crate) fn step(
    model: &PatchTst,
    optimizer: &AdamW,
    x: &Tensor,
    y: &Tensor,
    mode: Mode<'_>,
) -> Result<Tensor> {
    let loss = model.forward(x, mode)?.mse_loss(y)?;
    loss.backward()?;
    optimizer.step()?;
    Ok(loss.detach())
}

fn optimizer(model: &PatchTst, config: &TrainingConfig, steps: u64) -> Result<AdamW> {
    let lr = config.lr;
    let schedule = match config.schedule {
        LrSchedule::Constant => Schedule::Constant { lr },
        LrSchedule::Cosine => Schedule::Cosine { lr, eta_min: 0.0, t_max: steps },
        LrSchedule::OneCycle => Schedule::OneCycle {
            max_lr: lr,
            total_steps: steps,
            pct_start: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
        },
    };
    let options = AdamWOptions { weight_decay: config.weight_decay, ..AdamWOptions::default() };
    let optimizer = AdamW::new(model.parameters(), options, schedule)?;
    Ok(if config.clip > 0.0 { optimizer.clip_grad_norm(config.clip)? } else { optimizer })
}

/// Puts copies of all tensors of a model back.
fn restore(model: &PatchTst, copies: &[Tensor]) -> Result<()> {
    for ((_, tensor), copy) in model.tensors().zip(copies) {
        tensor.detach().copy_from(copy)?;
    }
    Ok(())
}
