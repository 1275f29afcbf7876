//! Cross-asset attention in training on random features.

use crate::Result;
use crate::models::cross_asset::{CLASSES, CrossAsset, CrossAssetConfig, Mode};
use crate::training::{LrSchedule, Replays, Task, Trainer, TrainingConfig};
use refrain::{DType, Device, Generator, Precision, Step, Tensor, with_precision};
use refrain_nn::Parameters;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::time::Duration;

/// What is trained on, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossBenchOptions {
    /// The model.
    pub model: CrossAssetConfig,
    /// Number of samples.
    pub samples: usize,
    /// Number of epochs.
    pub epochs: usize,
    /// Samples a step.
    pub batch_size: usize,
    /// Micro-batches that a step is cut into.
    pub accumulate: usize,
    /// The learning rate.
    pub lr: f64,
    /// Seed of the data, the weights and the order of the samples.
    pub seed: u64,
}

/// A model in training on standard normal features; the class of each source is the largest of three random linear
/// functions of its own features and those of the source after it. Mean cross entropy, clipping at 1.0, AdamW with weight
/// decay 0.01.
pub struct CrossBench {
    trainer: Trainer<Neighbours>,
}

/// What an epoch came to.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossEpoch {
    /// Mean loss over the samples, each as it was when its step came.
    pub loss: f64,
    /// Number of steps.
    pub steps: u64,
    /// Time of all steps.
    pub time: Duration,
}

/// The samples and the model.
struct Neighbours {
    model: CrossAsset,
    features: Tensor, // [N, S, F]
    classes: Tensor,  // [N, S]
}

/// Nothing is validated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Nothing {}

impl Task for Neighbours {
    type Validation = Nothing;

    fn parameters(&self) -> &Parameters {
        self.model.parameters()
    }

    fn device(&self) -> &Device {
        self.features.device()
    }

    fn samples(&self) -> Vec<i64> {
        (0..self.features.dims()[0] as i64).collect()
    }

    fn loss(&self, samples: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, classes) = (self.features.index_select(0, samples)?, self.classes.index_select(0, samples)?);
        self.model.loss(&x, &classes, mode)
    }

    fn validate(&self) -> Result<Nothing> {
        Ok(Nothing {})
    }

    fn error(_: &Nothing) -> f64 {
        0.0
    }
}

impl CrossBench {
    /// Makes data and model.
    ///
    /// # Errors
    /// [`crate::Error::Model`] and [`crate::Error::Training`] for settings that cannot be; [`crate::Error::Engine`] if
    /// the device has no memory for them.
    pub fn new(options: CrossBenchOptions, device: &Device) -> Result<CrossBench> {
        let config = TrainingConfig {
            epochs: options.epochs,
            batch_size: options.batch_size,
            accumulate: options.accumulate,
            lr: options.lr,
            schedule: LrSchedule::Constant,
            weight_decay: 0.01,
            clip: 1.0,
            patience: options.epochs,
            seed: options.seed,
        };
        let model = CrossAsset::new(options.model, DType::F32, device, options.seed)?;
        let CrossAssetConfig { sources, features, .. } = *model.config();
        let generator = Generator::new(device, options.seed.wrapping_add(1))?;
        let x = generator.normal([options.samples, sources, features], DType::F32)?;
        let after = Tensor::concat(&[&x.narrow(1, 1, sources - 1)?, &x.narrow(1, 0, 1)?], 1)?;
        let rule = generator.normal([2 * features, CLASSES], DType::F32)?;
        // The classes are the same whatever the model computes in.
        let scores = with_precision(Precision::F32, || Tensor::concat(&[&x, &after], -1)?.matmul(&rule))?;
        let classes = scores.argmax(-1)?;
        let trainer = Trainer::of(Neighbours { model, features: x, classes }, config)?;
        Ok(CrossBench { trainer })
    }

    /// Runs the steps operation by operation, instead of replaying a recorded one.
    pub fn eager(mut self) -> CrossBench {
        self.trainer = self.trainer.eager();
        self
    }

    /// The recorded step, for what it can tell; `None` if there is none.
    pub fn recorded(&self) -> Option<&Step<'static>> {
        self.trainer.recorded()
    }

    /// What replaying it asked of the device; `None` if there is none.
    pub fn replays(&self) -> Option<Replays> {
        self.trainer.replays()
    }

    /// One pass over all samples in a new order.
    ///
    /// # Errors
    /// [`crate::Error::Training`] if the loss is no longer finite; [`crate::Error::Engine`] if the device fails.
    pub fn epoch(&mut self) -> Result<CrossEpoch> {
        let steps = self.trainer.steps_per_epoch();
        self.trainer.epoch(Duration::MAX, |_| ControlFlow::Continue(()))?;
        let report = self.trainer.history().last();
        let (loss, seconds) = report.map_or((f64::NAN, 0.0), |report| (report.train_loss, report.seconds));
        Ok(CrossEpoch { loss, steps, time: Duration::from_secs_f64(seconds) })
    }

    /// Number of trained numbers.
    pub fn parameter_count(&self) -> usize {
        self.trainer.task().model.parameter_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_falls_below_that_of_a_guess() {
        let model = CrossAssetConfig { sources: 3, features: 4, d_model: 16, ffn: 32, ..Default::default() };
        let options = CrossBenchOptions {
            model,
            samples: 512,
            epochs: 5,
            batch_size: 32,
            accumulate: 1,
            lr: 3e-3,
            seed: 1,
        };
        let losses = |options: &CrossBenchOptions| {
            let mut bench = CrossBench::new(options.clone(), &Device::cpu()).unwrap();
            [(); 5].map(|()| bench.epoch().unwrap().loss)
        };
        let whole = losses(&options);
        assert!(whole[0] > 1.0 && whole[4] < 0.7, "{whole:?}");
        let parts = losses(&CrossBenchOptions { accumulate: 4, ..options });
        assert!(whole.iter().zip(parts).all(|(a, b)| (a - b).abs() < 1e-3), "{whole:?} and {parts:?}");
    }
}
