//! Saving a run and going on with it.
//!
//! A run's folder is a checkpoint of the best weights (`model.safetensors`, `config.json`), and has in
//! `checkpoint/` one of everything that going on needs.

use super::{Trainer, TrainingConfig};
use crate::model::PatchTstConfig;
use crate::series::Split;
use crate::windows::Windows;
use crate::{Error, Result};
use refrain_nn::checkpoint::{self, Checkpoint, Snapshot};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;

/// The folder, inside that of the run, of the last state.
const LATEST: &str = "checkpoint";

/// What an epoch came to. Errors are standardised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// Number of the epoch, from 1.
    pub epoch: usize,
    /// Mean loss over the training windows, each as it was when its step came.
    pub train_loss: f64,
    /// Mean squared error over the validation windows.
    pub validation_mse: f64,
    /// Mean absolute error over the validation windows.
    pub validation_mae: f64,
    /// The learning rate of the last step.
    pub learning_rate: f64,
    /// Time of training and validation.
    pub seconds: f64,
    /// Whether the validation error is the lowest so far.
    pub best: bool,
}

/// Where a run stands, beside weights, optimiser and dropout.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) history: Vec<EpochReport>,
    /// Steps done of the epoch under way.
    pub(super) epoch_steps: u64,
    /// Seconds spent on it.
    pub(super) seconds: f64,
}

impl State {
    pub(super) fn best(&self) -> Option<&EpochReport> {
        self.history.iter().rev().find(|report| report.best)
    }
}

/// The configuration in `checkpoint/`: what the caller gave, and where the run stands.
#[derive(Deserialize)]
struct Saved<T> {
    run: T,
    state: State,
    /// Bits of the sum of losses, as the sum may be any float.
    loss_sum: u64,
}

const DROPOUT: &str = "dropout";

impl Trainer {
    /// Saves the run into its folder: the best weights if they have changed, and all that [`Trainer::resume`] needs.
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
                parameters: self.learner.model.parameters(),
                optimizer: None,
                generators: &[],
                config: run.clone(),
            };
            checkpoint::save(folder, &snapshot)?;
        }
        let loss_sum = self.learner.loss_sum.to_scalar::<f64>()?.to_bits();
        let snapshot = Snapshot {
            parameters: self.learner.model.parameters(),
            optimizer: Some(&self.learner.optimizer),
            generators: &[(DROPOUT, &self.learner.dropout)],
            config: json!({ "run": run, "state": self.state, "loss_sum": loss_sum }),
        };
        Ok(checkpoint::save(folder.join(LATEST), &snapshot)?)
    }

    /// The run that [`Trainer::save`] left in a folder, to go on bit for bit as if it had not stopped. Model,
    /// training and series are those that it began with.
    ///
    /// # Errors
    /// [`Error::Nn`] if there is none, it is broken, or of another model; and those of [`Trainer::new`].
    pub fn resume(
        folder: &Path,
        model: PatchTstConfig,
        config: TrainingConfig,
        windows: Windows,
        split: &Split,
    ) -> Result<Trainer> {
        let mut trainer = Trainer::new(model, config, windows, split)?;
        let latest = Checkpoint::open(folder.join(LATEST))?;
        let Saved { state, loss_sum, .. } = latest.config::<Saved<Value>>()?;
        if state.epoch_steps > trainer.steps_per_epoch() {
            return Err(Error::Training {
                problem: format!(
                    "the checkpoint is of step {} of an epoch of {}",
                    state.epoch_steps,
                    trainer.steps_per_epoch()
                ),
                fix: "resume with the series and settings that the run began with",
            });
        }
        if state.best().is_some() {
            Checkpoint::open(folder)?.load(trainer.learner.model.parameters())?;
            trainer.best = Some(trainer.copies()?);
        }
        latest.resume(
            trainer.learner.model.parameters(),
            &trainer.learner.optimizer,
            &[(DROPOUT, &trainer.learner.dropout)],
        )?;
        trainer.learner.loss_sum.fill(f64::from_bits(loss_sum))?;
        trainer.state = state;
        Ok(trainer)
    }
}

/// What the caller of [`Trainer::save`] gave as `run`.
///
/// # Errors
/// [`Error::Nn`] if there is no such run, it is broken, or of another kind.
pub fn saved_run<T: DeserializeOwned>(folder: &Path) -> Result<T> {
    Ok(Checkpoint::open(folder.join(LATEST))?.config::<Saved<T>>()?.run)
}
