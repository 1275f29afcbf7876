//! Saving a run and resuming it.
//!
//! The folder of a run is a checkpoint of the best weights (`model.safetensors`, `config.json`). Its subfolder
//! `checkpoint/` is a checkpoint of the full state needed to resume.

use super::learner::Learner;
use super::{Task, Trainer};
use crate::models::weights;
use crate::{Error, Result};
use refrain_nn::ModelSize;
use refrain_nn::checkpoint::{self, Checkpoint, Snapshot};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The folder of the last state, inside the run's folder.
const LATEST: &str = "checkpoint";

/// The results of an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport<V> {
    /// Number of the epoch, from 1.
    pub epoch: usize,
    /// Mean loss over the training samples, each computed in its own step. Those of skipped steps do not count.
    pub train_loss: f64,
    /// The result of the validation.
    #[serde(flatten)]
    pub validation: V,
    /// The learning rate of the last step.
    pub learning_rate: f64,
    /// Seconds of training and validation.
    pub seconds: f64,
    /// Whether the validation error is the lowest so far.
    pub best: bool,
    /// How many steps were skipped because their gradients were not finite.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_steps: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The progress of a run, without weights, optimiser state and dropout state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct State<V> {
    pub(super) history: Vec<EpochReport<V>>,
    /// The steps done in the current epoch.
    pub(super) epoch_steps: u64,
    /// The seconds spent on it.
    pub(super) seconds: f64,
}

impl<V> Default for State<V> {
    fn default() -> Self {
        State { history: Vec::new(), epoch_steps: 0, seconds: 0.0 }
    }
}

impl<V> State<V> {
    pub(super) fn best(&self) -> Option<&EpochReport<V>> {
        self.history.iter().rev().find(|report| report.best)
    }
}

/// The configuration in `checkpoint/`: the caller's value and the progress of the run.
#[derive(Deserialize)]
struct Saved<R, V> {
    run: R,
    state: State<V>,
    /// The bits of the sum of losses, since JSON cannot hold every float.
    loss_sum: u64,
    /// How many samples it is of. Older checkpoints skipped none and do not say it.
    loss_samples: Option<u64>,
    /// The bits of the sums of the ranks that trained together.
    #[serde(default)]
    loss_of_ranks: Vec<u64>,
}

const DROPOUT: &str = "dropout";

/// An upper limit for the seconds of a run; more is an error.
const MOST_SECONDS: f64 = 1e11;

impl<T: Task> Trainer<T> {
    /// Saves the run into its folder: the best weights if they have changed, and all that [`Trainer::resume_from`] needs.
    /// `run` is stored with both, for the caller. Each file has its old or its new content, even if the process is killed
    /// while it saves. If only the best weights are new, a resumed run computes them again.
    ///
    /// Call this at least after each epoch; otherwise the folder may not have the best weights.
    ///
    /// If several ranks train together, all of them must call this at the same step. Rank 0 writes, the others wait until it
    /// has. The parameters are compared before, unless the epoch has just ended.
    ///
    /// # Errors
    /// [`Error::Nn`] if a number of the model or of the optimiser is not finite, or the folder cannot be written;
    /// [`Error::Training`] if a loss is not finite, and if rank 0 could not write; [`Error::RanksDiffer`]. If a number is not
    /// finite or ranks differ, nothing is overwritten.
    pub fn save(&self, folder: &Path, run: &Value) -> Result<()> {
        let (epoch, steps) = (self.state.history.len() + 1, self.state.epoch_steps);
        let when = format!("after {steps} steps of epoch {epoch}");
        if steps > 0 {
            let [losses, _] = self.learner.loss_sum.read()?;
            self.check_loss(&when, losses)?;
        }
        let Some(ranks) = &self.learner.ranks else { return self.write(folder, run) };
        if !ranks.has_compared(self.steps()) {
            ranks.compare(self.learner.task.parameters(), self.steps(), &when)?;
        }
        let written = if ranks.writes() { self.write(folder, run) } else { Ok(()) };
        let (failed, _) = ranks.agree(written.is_err(), 0)?;
        written?;
        if failed {
            let problem = format!("rank 0 could not save the run {when}");
            return Err(Error::Training { problem, fix: "see the message of rank 0" });
        }
        Ok(())
    }

    fn write(&self, folder: &Path, run: &Value) -> Result<()> {
        if self.best_is_current {
            let snapshot = Snapshot {
                parameters: self.learner.task.parameters(),
                optimizer: None,
                generators: &[],
                ema: None,
                config: run.clone(),
            };
            checkpoint::save(folder, &snapshot)?;
        }
        let [loss_sum, samples] = self.learner.loss_sum.read()?;
        let of_ranks: Vec<u64> = self.learner.loss_sum.of_ranks().into_iter().map(f64::to_bits).collect();
        let snapshot = Snapshot {
            parameters: self.learner.task.parameters(),
            optimizer: Some(&self.learner.optimizer),
            generators: &[(DROPOUT, &self.learner.dropout)],
            ema: None,
            config: json!({
                "run": run,
                "state": self.state,
                "loss_sum": loss_sum.to_bits(),
                "loss_samples": samples as u64,
                "loss_of_ranks": of_ranks,
            }),
        };
        Ok(checkpoint::save(folder.join(LATEST), &snapshot)?)
    }

    /// Restores the state saved by [`Trainer::save`] into this trainer, which must not have trained yet. The run then
    /// continues bit for bit as if it had not stopped. Use the same task and settings as in the original run.
    ///
    /// If several ranks train together, all of them must resume from the same state, after [`Trainer::with_communicator`].
    /// Their number may be another one than before; then sums are rounded otherwise.
    ///
    /// # Errors
    /// [`Error::Nn`] if the state is broken, or belongs to another model; [`Error::Training`] if it belongs to other data, or
    /// is impossible; [`Error::RanksDiffer`].
    pub fn resume_from(mut self, saved: &SavedRun) -> Result<Self> {
        let Saved { state, loss_sum, loss_samples, loss_of_ranks, .. } =
            saved.latest.config::<Saved<Value, T::Validation>>()?;
        let loss_sum = f64::from_bits(loss_sum);
        let of_ranks: Vec<f64> = loss_of_ranks.into_iter().map(f64::from_bits).collect();
        let steps = saved.latest.steps().saturating_add(saved.latest.skipped_steps());
        let loss_samples = loss_samples.unwrap_or(self.samples_of(state.epoch_steps) as u64);
        let all_sums = of_ranks.iter().fold(loss_sum, |sum, own| sum + own);
        self.check_state(&state, (all_sums, loss_samples), steps)?;
        if let Some(best) = &saved.best {
            best.load(self.learner.task.parameters())?;
            self.best = Some(weights::copies(self.learner.task.parameters())?);
        }
        let Learner { task, optimizer, dropout, .. } = &*self.learner;
        let generators = [(DROPOUT, dropout)];
        match saved.extended {
            false => saved.latest.resume(task.parameters(), optimizer, &generators, None)?,
            true => saved.latest.resume_rescheduled(task.parameters(), optimizer, &generators, None)?,
        }
        let sums = [loss_sum, loss_samples as f64];
        self.learner.loss_sum.write(sums, &of_ranks, self.learner.ranks.as_ref())?;
        if let Some(ranks) = &self.learner.ranks {
            ranks.check_step(steps)?;
            ranks.compare(self.learner.task.parameters(), steps as u64, "after resuming")?;
        }
        self.state = state;
        Ok(self)
    }

    /// Returns an error for a state that no run with these settings and data can reach.
    fn check_state(
        &self,
        state: &State<T::Validation>,
        (loss_sum, loss_samples): (f64, u64),
        steps: i64,
    ) -> Result<()> {
        let refuse = |problem: String| {
            let fix =
                "resume with the series and settings that the run began with, or use an earlier checkpoint";
            Err(Error::Training { problem: format!("the checkpoint {problem}"), fix })
        };
        let (epochs, epoch_steps, of_epoch) =
            (state.history.len(), state.epoch_steps, self.steps_per_epoch());
        if epoch_steps > of_epoch {
            return refuse(format!("is at step {epoch_steps} of an epoch, which has only {of_epoch} steps"));
        }
        if epochs > self.config.epochs {
            return refuse(format!("is at epoch {epochs} of {}", self.config.epochs));
        }
        let expected = (epochs as u64).saturating_mul(of_epoch).saturating_add(epoch_steps);
        if u64::try_from(steps).ok() != Some(expected) {
            return refuse(format!("is at step {steps}, but its epochs sum to {expected} steps"));
        }
        let time = |seconds: f64| (0.0..MOST_SECONDS).contains(&seconds);
        for (index, report) in state.history.iter().enumerate() {
            let EpochReport { epoch, train_loss, validation, learning_rate, seconds, .. } = report;
            let numbers = [*train_loss, T::error(validation), *learning_rate];
            if *epoch != index + 1 || !numbers.iter().all(|number| number.is_finite()) || !time(*seconds) {
                return refuse(format!("has an impossible report of epoch {}: {report:?}", index + 1));
            }
        }
        if !loss_sum.is_finite() || !time(state.seconds) {
            return refuse(format!("has a loss of {loss_sum} and a time of {} seconds", state.seconds));
        }
        let samples = self.samples_of(epoch_steps);
        if loss_samples > samples as u64 {
            return refuse(format!(
                "has the losses of {loss_samples} samples, of which only {samples} were seen"
            ));
        }
        Ok(())
    }
}

/// A saved run, opened so that it can be resumed.
pub struct SavedRun {
    latest: Checkpoint,
    /// The best weights, if an epoch is finished.
    best: Option<Checkpoint>,
    /// Whether it goes on with another number of epochs.
    extended: bool,
}

impl SavedRun {
    /// Opens the run that [`Trainer::save`] saved in a folder.
    ///
    /// # Errors
    /// [`Error::Nn`] if there is no such run, or if it is broken.
    pub fn open(folder: &Path) -> Result<SavedRun> {
        let latest = Checkpoint::open(folder.join(LATEST))?;
        let state = latest.config::<Saved<IgnoredAny, Value>>()?.state;
        let best = state.best().map(|_| Checkpoint::open(folder)).transpose()?;
        Ok(SavedRun { latest, best, extended: false })
    }

    /// The same, to go on with another number of epochs. The schedule of learning rates becomes that of all epochs, so only
    /// with a constant one the run is the one that had them from the beginning.
    pub fn extended(self) -> SavedRun {
        SavedRun { extended: true, ..self }
    }

    /// The value that was passed to [`Trainer::save`] as `run`.
    ///
    /// # Errors
    /// [`Error::Nn`] if the value has another type.
    pub fn run<R: DeserializeOwned>(&self) -> Result<R> {
        Ok(self.latest.config::<Saved<R, Value>>()?.run)
    }

    /// Returns an error for a model of another size; see [`Checkpoint::check_size`].
    ///
    /// # Errors
    /// [`Error::Nn`] if the size differs.
    pub fn check_size(&self, model: ModelSize) -> Result<()> {
        Ok(self.latest.check_size(model)?)
    }

    /// The reason why the run could not be verified, if any; see [`Checkpoint::unverified`].
    pub fn unverified(&self) -> Option<String> {
        self.latest.unverified().or_else(|| self.best.as_ref()?.unverified())
    }
}
