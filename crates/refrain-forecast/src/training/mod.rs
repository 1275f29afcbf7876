//! Training: epochs over shuffled samples, validation, early stopping, the best weights, and going on after a stop.

mod config;
mod estimate;
mod learner;
mod order;
mod replays;
mod state;
mod task;

pub use config::{LrSchedule, TrainingConfig};
pub(crate) use estimate::Demand;
pub use estimate::Estimate;
use replays::Before;
pub use replays::Replays;
pub use state::{EpochReport, SavedRun};
pub use task::Task;

use crate::models::weights;
use crate::tasks::forecasting::{ForecastErrors, Forecasting};
use crate::{Error, Result};
use learner::{Learner, Recorded};
use refrain::{DType, Device, Generator, Step, Tensor};
use refrain_nn::Optimizer;
use state::State;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// What sets the sequence of random numbers for the order of the samples apart from that for the weights.
const ORDER: u64 = 0x6f72_6465_7200_0001;

/// A model in training.
///
/// What a run does follows from its settings and its data alone: the same weights, bit for bit, on the same
/// device, also after being saved and resumed in the middle of an epoch.
///
/// The step is recorded at its first call and replayed from then on (see [`refrain::Step`]), unless
/// [`Trainer::eager`] turns that off; the results are the same bits. With [`TrainingConfig::accumulate`] above 1 what is
/// recorded is the pass over a micro-batch, which adds to the gradients, and the update after the last of them.
pub struct Trainer<T: Task = Forecasting> {
    learner: Rc<Learner<T>>,
    recorded: Option<Recorded>,
    replays: Replays,
    config: TrainingConfig,
    /// The numbers of the training samples.
    samples: Vec<i64>,
    state: State<T::Validation>,
    /// Copies of the weights of the best epoch, and whether they are those that the model has.
    best: Option<Vec<Tensor>>,
    best_is_current: bool,
}

/// How often a training tells the caller of [`Trainer::epoch`] of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// About so often; zero: after each step.
    pub interval: Duration,
    /// Also whenever the number of steps of the whole run is a multiple of this.
    pub stop_every: Option<u64>,
}

impl From<Duration> for Pace {
    fn from(interval: Duration) -> Pace {
        Pace { interval, stop_every: None }
    }
}

/// How a call of [`Trainer::epoch`] ended.
#[derive(Debug, Clone, PartialEq)]
pub enum EpochEnd<V = ForecastErrors> {
    /// The epoch is finished and validated.
    Finished(EpochReport<V>),
    /// The caller stopped it between steps; the next call goes on from there.
    Stopped,
}

impl<T: Task> Trainer<T> {
    /// A task before its first step.
    ///
    /// # Errors
    /// [`Error::Training`] for settings that cannot be; [`Error::Engine`] if the device has no memory for it.
    pub fn of(task: T, config: TrainingConfig) -> Result<Trainer<T>> {
        config.validate()?;
        let samples = task.samples();
        let learner = Rc::new(Learner::new(task, &config, samples.len())?);
        let recorded = Some(Recorded::new(&learner));
        Ok(Trainer {
            learner,
            recorded,
            replays: Replays::default(),
            config,
            samples,
            state: State::default(),
            best: None,
            best_is_current: false,
        })
    }

    /// Runs the steps operation by operation, instead of replaying a recorded one.
    pub fn eager(mut self) -> Trainer<T> {
        self.recorded = None;
        self
    }

    /// The recorded step (with accumulation, that of a micro-batch), for what it can tell; `None` if there is none.
    pub fn recorded(&self) -> Option<&Step<'static>> {
        self.recorded.as_ref().map(Recorded::pass)
    }

    /// What the replays of this trainer's steps asked of the device, without the validation and the order of an epoch;
    /// `None` if the steps run operation by operation.
    pub fn replays(&self) -> Option<Replays> {
        self.recorded.as_ref().map(|recorded| self.replays.of(recorded.steps()))
    }

    /// Trains to the end of the epoch, then validates. `on_steps` is called as often as `pace` says (an interval will do)
    /// and may stop the epoch there, for instance to [save](Trainer::save) the run; the next call goes on. Between two
    /// calls of `on_steps` the steps follow one another on the device without the host.
    ///
    /// # Errors
    /// [`Error::Training`] if the loss is no longer finite; [`Error::Engine`] if the device fails.
    pub fn epoch(
        &mut self,
        pace: impl Into<Pace>,
        mut on_steps: impl FnMut(&Trainer<T>) -> ControlFlow<()>,
    ) -> Result<EpochEnd<T::Validation>> {
        let Pace { interval, stop_every } = pace.into();
        let begun = Instant::now();
        let before = self.state.seconds;
        let learner = self.learner.clone();
        learner.begin(&self.order()?, self.state.epoch_steps)?;
        // Nobody waits to be told of the steps; the first epoch also records them.
        let at_once = interval == Duration::MAX && self.steps() > 0;
        let mut steps = if at_once { u64::MAX } else { 1 };
        while self.state.epoch_steps < learner.steps() {
            let at = self.state.epoch_steps;
            let every = stop_every.unwrap_or(u64::MAX).max(1);
            let count = steps.min(learner.alike(at)).min(every - self.steps() % every);
            let asked = Instant::now();
            self.best_is_current = false;
            let device = learner.task.device();
            let start = self.recorded.as_ref().map(|recorded| Before::now(device, recorded.steps()));
            learner.run(at, count, self.recorded.as_mut())?;
            device.synchronize()?;
            if let (Some(start), Some(recorded)) = (start, &self.recorded) {
                start.count(&mut self.replays, count, device, recorded.steps());
            }
            // Twice as many at most, since the first time says little: it includes the recording.
            let fitting = count as f64 * interval.as_secs_f64() / asked.elapsed().as_secs_f64().max(1e-9);
            steps = (fitting as u64).clamp(1, count.saturating_mul(2));
            self.state.epoch_steps += count;
            self.state.seconds = before + begun.elapsed().as_secs_f64();
            if on_steps(self).is_break() {
                self.check()?;
                return Ok(EpochEnd::Stopped);
            }
        }
        self.check()?;
        let train_loss = self.mean_loss()?;
        let validation = self.learner.task.validate()?;
        let error = T::error(&validation);
        let epoch = self.state.history.len() + 1;
        let when = format!("in epoch {epoch}");
        self.check_loss(&when, train_loss)?;
        self.check_loss(&format!("{when} the training loss is {train_loss}, and in its validation"), error)?;
        let best = self.state.best().is_none_or(|best| error < T::error(&best.validation));
        if best {
            self.best = Some(weights::copies(self.learner.task.parameters())?);
            self.best_is_current = true;
        }
        let report = EpochReport {
            epoch,
            train_loss,
            validation,
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

    /// Finds out whether the recorded step still holds: what is saved after it has come about rightly.
    fn check(&mut self) -> Result<()> {
        self.recorded.as_mut().map_or(Ok(()), Recorded::check)
    }

    /// The training samples in the order of this epoch, which follows from seed and epoch.
    fn order(&self) -> Result<Vec<i64>> {
        let epoch = self.state.history.len() as u64;
        let order = shuffled(self.samples.len(), self.config.seed, epoch, self.learner.task.device())?;
        Ok(order.into_iter().map(|place| self.samples[place as usize]).collect())
    }

    /// The mean over the steps of this epoch so far of their losses, each as often as it has samples. It waits for the
    /// device.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device fails.
    pub fn mean_loss(&self) -> Result<f64> {
        Ok(self.learner.loss_sum.to_scalar::<f64>()? / self.samples_in_epoch() as f64)
    }

    /// Refuses a loss that is not finite.
    fn check_loss(&self, when: &str, loss: f64) -> Result<()> {
        if loss.is_finite() {
            return Ok(());
        }
        let problem = format!("{when} the loss is {loss}");
        Err(Error::Training { problem, fix: "lower the learning rate, or clip the gradients' norm" })
    }

    /// Whether all epochs are done, or patience is at its end.
    pub fn is_done(&self) -> bool {
        let done = self.state.history.len();
        let best = self.state.best().map_or(0, |best| best.epoch);
        done >= self.config.epochs || done - best >= self.config.patience
    }

    /// The settings.
    pub fn config(&self) -> &TrainingConfig {
        &self.config
    }

    /// What the epochs so far came to.
    pub fn history(&self) -> &[EpochReport<T::Validation>] {
        &self.state.history
    }

    /// Training samples of one epoch.
    pub fn samples_per_epoch(&self) -> usize {
        self.samples.len()
    }

    /// Training samples seen of this epoch.
    pub fn samples_in_epoch(&self) -> usize {
        (self.state.epoch_steps as usize).saturating_mul(self.config.batch_size).min(self.samples.len())
    }

    /// Steps of one epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.learner.steps()
    }

    /// Steps done of this epoch.
    pub fn steps_in_epoch(&self) -> u64 {
        self.state.epoch_steps
    }

    /// Steps done in all.
    pub fn steps(&self) -> u64 {
        self.state.history.len() as u64 * self.steps_per_epoch() + self.state.epoch_steps
    }

    /// What is trained, as it is now.
    pub fn task(&self) -> &T {
        &self.learner.task
    }

    /// What was trained, with the weights of the best epoch (of the last step, before the first epoch is finished).
    ///
    /// # Errors
    /// [`Error::Engine`] if the device fails.
    pub fn into_best(mut self) -> Result<T> {
        if let Some(best) = &self.best {
            weights::restore(self.learner.task.parameters(), best)?;
        }
        // The closures that are recorded hold the other handles.
        self.recorded = None;
        let learner = Rc::into_inner(self.learner).ok_or(Error::Training {
            problem: "the model is still in use".to_owned(),
            fix: "drop what was made from the trainer first",
        })?;
        Ok(learner.task)
    }
}

/// The numbers below `count` in an order that follows from seed and epoch.
fn shuffled(count: usize, seed: u64, epoch: u64, device: &Device) -> Result<Vec<i64>> {
    // A number of 53 random bits takes half a block of the generator, so epochs do not share any.
    let generator = Generator::from_state(device, seed ^ ORDER, epoch.wrapping_mul(count as u64))?;
    let keys = generator.uniform(count, DType::F64)?.to_vec::<f64>()?;
    let mut order: Vec<i64> = (0..count as i64).collect();
    order.sort_by(|&a, &b| keys[a as usize].total_cmp(&keys[b as usize]));
    Ok(order)
}
