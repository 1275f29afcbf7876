//! Training: epochs over shuffled samples, validation, early stopping, the best weights, and resuming.

mod config;
mod estimate;
mod learner;
mod loss_sum;
mod ranks;
mod replays;
mod state;
mod task;

pub use config::{BatchNormStatistics, LrSchedule, TrainingConfig};
pub(crate) use estimate::Demand;
pub use estimate::Estimate;
use replays::Before;
pub use replays::Replays;
pub use state::{EpochReport, SavedRun};
pub use task::Task;

use crate::models::weights;
use crate::{Error, Result};
use learner::{Learner, Recorded};
use refrain::{Communicator, Step, StepProfile, Tensor};
use state::State;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

const NOT_FINITE: &str = "lower the learning rate, or clip the gradient norm";

/// Trains a model.
///
/// A run depends only on its settings and its data: on the same device it gives the same weights, bit for bit, even
/// if it was saved and resumed in the middle of an epoch.
///
/// The step is recorded at its first call and then replayed (see [`refrain::Step`]), unless [`Trainer::eager`] turns
/// that off; the results are the same, bit for bit. If [`TrainingConfig::accumulate`] is above 1, two things are
/// recorded: the pass over a micro-batch, which adds to the gradients, and the update after the last pass.
///
/// A step whose gradients have an infinity or NaN is skipped: the weights stay as they are, its loss does not count, and
/// [`EpochReport::skipped_steps`] says how many there were. An epoch without any other step is an error.
///
/// Several ranks can train one model together: see [`Trainer::with_communicator`].
pub struct Trainer<T: Task> {
    learner: Rc<Learner<T>>,
    recorded: Option<Recorded>,
    replays: Replays,
    config: TrainingConfig,
    /// The number of training samples.
    samples: usize,
    state: State<T::Validation>,
    /// Copies of the weights of the best epoch.
    best: Option<Vec<Tensor>>,
    best_is_current: bool,
    /// The interval of the last call of the callback, and how many steps fit into it.
    fitting: (Duration, u64),
}

/// How often training calls the callback of [`Trainer::epoch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The approximate interval. Zero means after each step.
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
pub enum EpochEnd<V> {
    /// The epoch is finished and validated.
    Finished(EpochReport<V>),
    /// The callback stopped it between steps. The next call continues there.
    Stopped,
}

impl<T: Task> Trainer<T> {
    /// A task before its first step.
    ///
    /// # Errors
    /// [`Error::Training`] for invalid settings; [`Error::Engine`] if the device has not enough memory.
    pub fn of(task: T, config: TrainingConfig) -> Result<Trainer<T>> {
        config.validate()?;
        let samples = task.samples().len();
        let learner = Rc::new(Learner::new(task, &config)?);
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
            fitting: (Duration::ZERO, 1),
        })
    }

    /// Makes this trainer one of several ranks that train one model together, each on its own device with the whole data.
    /// Call it on every rank, with the same task and settings, before the first step and before [`Trainer::resume_from`].
    /// All ranks get the parameters of rank 0.
    ///
    /// The batch size and the order of the samples stay those of the whole job. Each rank takes its part of every batch;
    /// the gradients are added up and weighted so that a step is that of one process with the whole batch, but for the
    /// rounding of sums. Gradients are exchanged in buckets of at most 16 MiB, the last of at most 1 MiB, each as soon as it is
    /// complete, in a recorded step beside the rest of the backward pass. A batch that the ranks cannot share equally takes a second pass, over one sample of each
    /// rank; so choose a batch size that is a multiple of the number of ranks. Validation is shared, too.
    ///
    /// All ranks have the same losses, reports and parameters, bit for bit, in each of two runs, eager or recorded. One rank
    /// alone gives the bits of a trainer without communicator. The parameters are compared, by checksums, at the end of each epoch
    /// and whenever the run is saved within one.
    ///
    /// Besides its steps, an epoch exchanges its pace, for each call of the callback the losses and whether to stop, the checksums,
    /// and the sums of the validation. All ranks must call [`Trainer::epoch`] and [`Trainer::save`] alike, with the same pace. If the
    /// callback of one rank stops an epoch, it stops on all of them at the same step; rank 0 sets the pace.
    ///
    /// Dropout: the mask of a sample follows from its place in the batch of the whole job, so it does not depend on the number of
    /// ranks. This holds for draws from the generator of [`Mode::Train`](refrain_nn::Mode) whose first axis is the batch, or the
    /// batch times other axes; see [`Generator::for_batch_rows`](refrain::Generator::for_batch_rows). Batch norm uses the
    /// statistics of all ranks' samples (of a batch that the ranks cannot share equally, those of each pass), unless
    /// [`TrainingConfig::batch_norm`] says otherwise.
    ///
    /// # Errors
    /// [`Error::Training`] if a rank has another model, other settings, other samples or other data ([`Task::data`]), if the communicator is on another device,
    /// and after the first step; [`Error::Engine`] if the ranks cannot exchange values.
    pub fn with_communicator(mut self, communicator: Communicator) -> Result<Trainer<T>> {
        if self.steps() > 0 {
            return Err(Error::Training {
                problem: "a trainer that has taken steps gets a communicator".to_owned(),
                fix: "call with_communicator before the first step and before resume_from",
            });
        }
        let is_recorded = self.recorded.take().is_some();
        let learner = only_handle(self.learner)?.with_communicator(communicator, &self.config)?;
        let learner = Rc::new(learner);
        let recorded = is_recorded.then(|| Recorded::new(&learner));
        Ok(Trainer { learner, recorded, ..self })
    }

    /// Runs the steps eagerly instead of replaying a recorded step.
    pub fn eager(mut self) -> Trainer<T> {
        self.recorded = None;
        self
    }

    /// The recorded step (with accumulation, that of a micro-batch). `None` if there is none.
    pub fn recorded(&self) -> Option<&Step<'static>> {
        self.recorded.as_ref().map(Recorded::pass)
    }

    /// Measures each launch of the recorded step (with accumulation, that of a micro-batch) in `runs` runs at most, one launch
    /// after the other. See [`Step::profile`]. `None` if the steps run eagerly.
    ///
    /// The runs train on the first batches of an epoch, so the trainer is of no use afterwards.
    ///
    /// # Errors
    /// If the device fails.
    pub fn profile(mut self, runs: usize) -> Result<Option<StepProfile>> {
        let Some(recorded) = &mut self.recorded else { return Ok(None) };
        self.learner.begin(0, 0)?;
        let profile = self.learner.profile(recorded, runs)?;
        recorded.check()?;
        Ok(Some(profile))
    }

    /// What the replays of this trainer's steps used on the device, without validation and the order of an epoch.
    /// `None` if the steps run eagerly.
    pub fn replays(&self) -> Option<Replays> {
        self.recorded.as_ref().map(|recorded| self.replays.of(recorded.steps()))
    }

    /// Trains to the end of the epoch, then validates. `on_steps` is called as often as `pace` says (about once per
    /// interval) and may stop the epoch, for example to [save](Trainer::save) the run; the next call continues.
    /// Between two calls of `on_steps`, the steps run on the device without the host.
    ///
    /// # Errors
    /// [`Error::Training`] if the loss is no longer finite, and if a rank has another pace or is at another step;
    /// [`Error::RanksDiffer`]; [`Error::Engine`] if the device fails.
    pub fn epoch(
        &mut self,
        pace: impl Into<Pace>,
        mut on_steps: impl FnMut(&Trainer<T>) -> ControlFlow<()>,
    ) -> Result<EpochEnd<T::Validation>> {
        let pace = pace.into();
        let Pace { interval, stop_every } = pace;
        let begun = Instant::now();
        let before = self.state.seconds;
        let learner = self.learner.clone();
        if let Some(ranks) = &learner.ranks {
            ranks.check_pace(pace, self.steps())?;
        }
        if let Some(recorded) = &mut self.recorded {
            learner.record_ahead(recorded)?;
        }
        learner.begin(self.state.history.len() as u64, self.state.epoch_steps)?;
        // Nobody waits to be told of the steps; the first epoch also records them.
        let at_once = interval == Duration::MAX && self.steps() > 0;
        let mut steps = match self.fitting {
            _ if at_once => u64::MAX,
            (earlier, steps) if earlier == interval => steps,
            _ => 1,
        };
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
            if let Some(ranks) = &learner.ranks {
                learner.loss_sum.share(ranks)?;
            }
            // At most twice as many as were ever timed, because the first time includes the recording and so says little.
            let fitting = count as f64 * interval.as_secs_f64() / asked.elapsed().as_secs_f64().max(1e-9);
            steps = (fitting as u64).clamp(1, count.saturating_mul(2).max(steps));
            self.state.epoch_steps += count;
            self.state.seconds = before + begun.elapsed().as_secs_f64();
            let mut stop = on_steps(self).is_break();
            if let Some(ranks) = &learner.ranks {
                (stop, steps) = ranks.agree(stop, steps)?;
            }
            self.fitting = (interval, steps);
            if stop {
                self.check()?;
                return Ok(EpochEnd::Stopped);
            }
        }
        if let Some(ranks) = &learner.ranks {
            let when = format!("at the end of epoch {}", self.state.history.len() + 1);
            ranks.compare(learner.task.parameters(), self.steps(), &when)?;
        }
        learner.begin_validation(self.recorded.as_mut())?;
        // The host records once more while the device computes. Other ranks wait for this one's validation, whatever it finds.
        let checked = self.check();
        let validation = learner.end_validation()?;
        checked?;
        let train_loss = self.mean_loss()?;
        let error = T::error(&validation);
        let epoch = self.state.history.len() + 1;
        let when = format!("in epoch {epoch}");
        let earlier: u64 = self.state.history.iter().map(|report| report.skipped_steps).sum();
        let skipped = learner.skipped_steps()?;
        let skipped_steps = skipped.saturating_sub(earlier);
        if skipped_steps >= learner.steps() {
            let problem = format!("{when} no step had finite gradients, so all {skipped_steps} were skipped");
            return Err(Error::Training { problem, fix: NOT_FINITE });
        }
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
            // A skipped step does not advance the schedule.
            learning_rate: learner.schedule.at(self.steps().saturating_sub(skipped + 1)),
            seconds: before + begun.elapsed().as_secs_f64(),
            best,
            skipped_steps,
        };
        self.state.history.push(report.clone());
        self.state.epoch_steps = 0;
        self.state.seconds = 0.0;
        learner.loss_sum.reset()?;
        Ok(EpochEnd::Finished(report))
    }

    /// Checks that the recorded step is still valid, so that what is saved afterwards is right.
    fn check(&mut self) -> Result<()> {
        self.recorded.as_mut().map_or(Ok(()), Recorded::check)
    }

    /// The mean loss over the samples of this epoch so far, without those of skipped steps; NaN if there are none. It waits for
    /// the device.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device fails.
    pub fn mean_loss(&self) -> Result<f64> {
        self.learner.loss_sum.mean()
    }

    /// Returns an error if a loss is not finite.
    fn check_loss(&self, when: &str, loss: f64) -> Result<()> {
        if loss.is_finite() {
            return Ok(());
        }
        let problem = format!("{when} the loss is {loss}");
        Err(Error::Training { problem, fix: NOT_FINITE })
    }

    /// Whether all epochs are done, or early stopping has ended the run.
    pub fn is_done(&self) -> bool {
        let done = self.state.history.len();
        let best = self.state.best().map_or(0, |best| best.epoch);
        done >= self.config.epochs || done - best >= self.config.patience
    }

    /// The settings.
    pub fn config(&self) -> &TrainingConfig {
        &self.config
    }

    /// The reports of the epochs so far.
    pub fn history(&self) -> &[EpochReport<T::Validation>] {
        &self.state.history
    }

    /// The number of training samples per epoch.
    pub fn samples_per_epoch(&self) -> usize {
        self.samples
    }

    /// The number of training samples seen in this epoch.
    pub fn samples_in_epoch(&self) -> usize {
        self.samples_of(self.state.epoch_steps)
    }

    /// The number of training samples in so many steps of an epoch.
    fn samples_of(&self, steps: u64) -> usize {
        (steps as usize).saturating_mul(self.config.batch_size).min(self.samples)
    }

    /// Steps per epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.learner.steps()
    }

    /// Steps done in this epoch.
    pub fn steps_in_epoch(&self) -> u64 {
        self.state.epoch_steps
    }

    /// Steps done in total.
    pub fn steps(&self) -> u64 {
        self.state.history.len() as u64 * self.steps_per_epoch() + self.state.epoch_steps
    }

    /// The task, with the current weights.
    pub fn task(&self) -> &T {
        &self.learner.task
    }

    /// The task, with the weights of the best epoch (or of the last step, before the first epoch is finished).
    ///
    /// # Errors
    /// [`Error::Engine`] if the device fails.
    pub fn into_best(mut self) -> Result<T> {
        if let Some(best) = &self.best {
            weights::restore(self.learner.task.parameters(), best)?;
        }
        // The recorded closures hold the other handles.
        self.recorded = None;
        Ok(only_handle(self.learner)?.task)
    }
}

/// What only this handle refers to.
fn only_handle<L>(learner: Rc<L>) -> Result<L> {
    Rc::into_inner(learner).ok_or(Error::Training {
        problem: "the model is still in use".to_owned(),
        fix: "drop what was made from the trainer first",
    })
}
