//! Saving a run and going on with it.
//!
//! A run's folder is a checkpoint of the best weights (`model.safetensors`, `config.json`), and has in
//! `checkpoint/` one of everything that going on needs.

use super::{ForecastErrors, Task, Trainer};
use crate::{Error, Result, weights};
use refrain_nn::checkpoint::{self, Checkpoint, Snapshot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The folder, inside that of the run, of the last state.
const LATEST: &str = "checkpoint";

/// What an epoch came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport<V = ForecastErrors> {
    /// Number of the epoch, from 1.
    pub epoch: usize,
    /// Mean loss over the training samples, each as it was when its step came.
    pub train_loss: f64,
    /// What the validation found.
    #[serde(flatten)]
    pub validation: V,
    /// The learning rate of the last step.
    pub learning_rate: f64,
    /// Time of training and validation.
    pub seconds: f64,
    /// Whether the validation error is the lowest so far.
    pub best: bool,
}

/// Where a run stands, beside weights, optimiser and dropout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct State<V> {
    pub(super) history: Vec<EpochReport<V>>,
    /// Steps done of the epoch under way.
    pub(super) epoch_steps: u64,
    /// Seconds spent on it.
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

/// The configuration in `checkpoint/`: what the caller gave, and where the run stands.
#[derive(Deserialize)]
struct Saved<R, V> {
    run: R,
    state: State<V>,
    /// Bits of the sum of losses, as the sum may be any float.
    loss_sum: u64,
}

const DROPOUT: &str = "dropout";

impl<T: Task> Trainer<T> {
    /// Saves the run into its folder: the best weights if they have changed, and all that [`Trainer::go_on`] needs.
    /// `run` is kept with both, for the caller. Each file has its old or its new content whatever happens; if the
    /// first is new and the second old, going on from the second brings about the first again.
    ///
    /// To be called after each epoch at least, or the best weights are not those of the folder.
    ///
    /// # Errors
    /// [`Error::Nn`] if the folder cannot be written.
    pub fn save(&self, folder: &Path, run: &Value) -> Result<()> {
        if self.best_is_current {
            let snapshot = Snapshot {
                parameters: self.learner.task.parameters(),
                optimizer: None,
                generators: &[],
                config: run.clone(),
            };
            checkpoint::save(folder, &snapshot)?;
        }
        let loss_sum = self.learner.loss_sum.to_scalar::<f64>()?.to_bits();
        let snapshot = Snapshot {
            parameters: self.learner.task.parameters(),
            optimizer: Some(&self.learner.optimizer),
            generators: &[(DROPOUT, &self.learner.dropout)],
            config: json!({ "run": run, "state": self.state, "loss_sum": loss_sum }),
        };
        Ok(checkpoint::save(folder.join(LATEST), &snapshot)?)
    }

    /// This run, not yet begun, at the state that [`Trainer::save`] left in a folder, to go on bit for bit as if it had
    /// not stopped. Task and settings are those that the run began with.
    ///
    /// # Errors
    /// [`Error::Nn`] if there is no such state, it is broken, or of another model; [`Error::Training`] if it is of other
    /// data.
    pub fn go_on(mut self, folder: &Path) -> Result<Self> {
        let latest = Checkpoint::open(folder.join(LATEST))?;
        let Saved { state, loss_sum, .. } = latest.config::<Saved<Value, T::Validation>>()?;
        if state.epoch_steps > self.steps_per_epoch() {
            return Err(Error::Training {
                problem: format!(
                    "the checkpoint is of step {} of an epoch of {}",
                    state.epoch_steps,
                    self.steps_per_epoch()
                ),
                fix: "resume with the series and settings that the run began with",
            });
        }
        if state.best().is_some() {
            Checkpoint::open(folder)?.load(self.learner.task.parameters())?;
            self.best = Some(weights::copies(self.learner.task.parameters())?);
        }
        latest.resume(
            self.learner.task.parameters(),
            &self.learner.optimizer,
            &[(DROPOUT, &self.learner.dropout)],
        )?;
        self.learner.loss_sum.fill(f64::from_bits(loss_sum))?;
        self.state = state;
        Ok(self)
    }
}

/// What the caller of [`Trainer::save`] gave as `run`.
///
/// # Errors
/// [`Error::Nn`] if there is no such run, it is broken, or of another kind.
pub fn saved_run<T: DeserializeOwned>(folder: &Path) -> Result<T> {
    Ok(Checkpoint::open(folder.join(LATEST))?.config::<Saved<T, Value>>()?.run)
}
