//! How a model is trained.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The settings of a [`super::Trainer`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingConfig {
    /// Most passes over the training samples.
    pub epochs: usize,
    /// Samples a step: windows of all channels, or moments of all sources.
    pub batch_size: usize,
    /// Micro-batches that a step is cut into, whose gradients add up; 1 cuts nothing, the batch size takes sample by
    /// sample. The step is that of the whole batch but for rounding, in less memory. Batch norm sees micro-batches.
    #[serde(default = "one")]
    pub accumulate: usize,
    /// The highest learning rate.
    pub lr: f64,
    /// How the learning rate changes from step to step.
    pub schedule: LrSchedule,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// The global gradient norm is clipped to this; 0 clips nothing.
    pub clip: f64,
    /// Stop after so many epochs in a row without a lower validation error.
    pub patience: usize,
    /// Seed of the weights, the order of the samples and dropout.
    pub seed: u64,
}

/// How the learning rate changes from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LrSchedule {
    /// It stays.
    Constant,
    /// A half cosine from the highest rate to zero over all epochs.
    Cosine,
    /// One cycle (Smith and Topin, 2018): up for three tenths of all steps, then down to next to nothing.
    OneCycle,
}

impl TrainingConfig {
    /// Whether one can train so.
    ///
    /// # Errors
    /// [`Error::Training`], which says what to change.
    pub fn validate(&self) -> Result<()> {
        let refuse = |problem: String, fix: &'static str| Err(Error::Training { problem, fix });
        for (name, value) in [
            ("epochs", self.epochs),
            ("batch size", self.batch_size),
            ("accumulate", self.accumulate),
            ("patience", self.patience),
        ] {
            if value == 0 {
                return refuse(format!("{name} is 0"), "choose 1 or more");
            }
        }
        if !self.batch_size.is_multiple_of(self.accumulate) {
            let (batch, parts) = (self.batch_size, self.accumulate);
            let problem = format!("a batch of {batch} cannot be cut into {parts} micro-batches of one size");
            return refuse(problem, "choose a number that divides the batch size");
        }
        if !(self.lr > 0.0 && self.lr.is_finite()) {
            return refuse(
                format!("the learning rate is {}", self.lr),
                "choose a positive number such as 1e-3",
            );
        }
        for (name, value) in [("weight decay", self.weight_decay), ("clip", self.clip)] {
            if !(value >= 0.0 && value.is_finite()) {
                return refuse(format!("{name} is {value}"), "choose 0 or a positive number");
            }
        }
        Ok(())
    }

    /// Samples of a micro-batch.
    pub(super) fn micro_batch(&self) -> usize {
        self.batch_size / self.accumulate.max(1)
    }
}

/// For runs that were saved before there was accumulation.
fn one() -> usize {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_training_is_refused_with_the_fix() {
        let good = TrainingConfig {
            epochs: 1,
            batch_size: 1,
            accumulate: 1,
            lr: 1e-3,
            schedule: LrSchedule::Constant,
            weight_decay: 0.0,
            clip: 0.0,
            patience: 1,
            seed: 0,
        };
        good.validate().unwrap();
        type Spoil = fn(&mut TrainingConfig);
        let cases: [(Spoil, &str); 6] = [
            (|c| c.epochs = 0, "epochs is 0"),
            (|c| c.accumulate = 2, "a batch of 1 cannot be cut into 2"),
            (|c| c.batch_size = 0, "batch size is 0"),
            (|c| c.lr = f64::NAN, "learning rate is NaN"),
            (|c| c.lr = -1.0, "learning rate is -1"),
            (|c| c.clip = f64::INFINITY, "clip is inf"),
        ];
        for (spoil, expected) in cases {
            let mut config = good.clone();
            spoil(&mut config);
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("choose"), "{message}");
        }
    }
}
