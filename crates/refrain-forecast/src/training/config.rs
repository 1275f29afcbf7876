//! The settings of training.

use crate::settings::{Values, assemble, settings};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

settings! {
    /// The settings of a [`super::Trainer`].
    pub struct TrainingConfig {
        /// Maximum number of epochs.
        pub epochs: usize = 6, "N";
        /// Samples per step; a sample is a window of all channels, or a moment of all sources.
        pub batch_size: usize = 64, "N";
        /// Micro-batches per step, to save memory; their gradients are added up.
        ///
        /// 1 cuts nothing, the batch size takes sample by sample. The step is that of the whole batch but for rounding, in
        /// less memory. Batch norm sees micro-batches.
        #[serde(default = "one")]
        pub accumulate: usize = 1, "N";
        /// Highest learning rate.
        pub lr: f64 = 1e-3, "RATE";
        /// Learning rate schedule: constant, cosine or one-cycle.
        pub schedule: LrSchedule = LrSchedule::OneCycle, "NAME";
        /// Weight decay of AdamW (decoupled).
        pub weight_decay: f64 = 0.01, "RATE";
        /// Whether norms and biases decay, too, as by PyTorch's AdamW.
        #[serde(default = "yes")]
        pub decay_all: bool = false, "BOOL";
        /// Clip the global gradient norm to this value; 0 switches clipping off.
        pub clip: f64 = 1.0, "NORM";
        /// Stop after this many epochs without a lower validation error.
        pub patience: usize = 5, "EPOCHS";
        /// Seed of the weights, the order of the samples and dropout.
        pub seed: u64 = 42, "N";
        /// Statistics of batch norm with several ranks: synchronised or local.
        #[serde(default)]
        pub batch_norm: BatchNormStatistics = BatchNormStatistics::Synchronised, "NAME";
    }
}

impl Default for TrainingConfig {
    /// The defaults of `refrain train`.
    fn default() -> TrainingConfig {
        assemble(&TrainingConfig::settings(), &Values::new(), Values::new())
            .expect("each setting has a default of its type")
    }
}

/// The learning rate schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LrSchedule {
    /// The highest rate at every step.
    Constant,
    /// A half cosine from the highest rate to zero over all epochs.
    Cosine,
    /// One cycle (Smith and Topin, 2018): up for 30 % of all steps, then down to almost zero.
    OneCycle,
}

/// What batch norm takes its statistics from, if several ranks train together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchNormStatistics {
    /// The samples of all ranks, so that the number of ranks does not matter. Each layer exchanges its statistics in the
    /// forward and in the backward pass.
    #[default]
    Synchronised,
    /// The samples of each rank alone, without an exchange. The statistics of a smaller batch are noisier, and the result
    /// depends on the number of ranks. The running statistics, which validation and forecasts use, are those of rank 0.
    Local,
}

impl TrainingConfig {
    /// Checks the settings.
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
            let problem =
                format!("a batch of {batch} cannot be split into {parts} micro-batches of equal size");
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

    /// Samples per micro-batch.
    pub(super) fn micro_batch(&self) -> usize {
        self.batch_size / self.accumulate.max(1)
    }
}

/// The value for runs that were saved when all parameters decayed.
fn yes() -> bool {
    true
}

/// The value for runs that were saved before accumulation existed.
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
            decay_all: false,
            clip: 0.0,
            patience: 1,
            seed: 0,
            batch_norm: BatchNormStatistics::default(),
        };
        good.validate().unwrap();
        type Spoil = fn(&mut TrainingConfig);
        let cases: [(Spoil, &str); 6] = [
            (|c| c.epochs = 0, "epochs is 0"),
            (|c| c.accumulate = 2, "a batch of 1 cannot be split into 2"),
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
