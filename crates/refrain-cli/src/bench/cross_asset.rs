//! Cross-asset attention in training on random features.

use refrain::{DType, Device, Generator, Precision, Tensor, with_precision};
use refrain_forecast::Result;
use refrain_forecast::models::cross_asset::{CLASSES, CrossAsset, CrossAssetConfig, Mode};
use refrain_forecast::training::Task;
use refrain_nn::Parameters;

use super::training::{Nothing, Pace, TrainingBench};

/// The data and the training.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossBenchOptions {
    /// The model.
    pub model: CrossAssetConfig,
    /// Number of samples.
    pub samples: usize,
    /// Number of epochs.
    pub epochs: usize,
    /// Samples per step.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub accumulate: usize,
    /// The learning rate.
    pub lr: f64,
    /// Seed of the data, the weights and the order of the samples.
    pub seed: u64,
}

/// A model in training on standard normal features; the class of each source is the largest of three random linear
/// functions of its own features and those of the source after it. The loss is the mean cross entropy.
pub type CrossBench = TrainingBench<Neighbours>;

/// The samples and the model.
pub struct Neighbours {
    model: CrossAsset,
    features: Tensor, // [N, S, F]
    classes: Tensor,  // [N, S]
}

impl Task for Neighbours {
    type Validation = Nothing;

    fn parameters(&self) -> &Parameters {
        self.model.parameters()
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        self.model.parameters_mut()
    }

    fn device(&self) -> &Device {
        self.features.device()
    }

    fn samples(&self) -> Vec<i64> {
        (0..self.features.dims()[0] as i64).collect()
    }

    fn data(&self) -> Vec<&Tensor> {
        vec![&self.features, &self.classes]
    }

    fn loss(&self, samples: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, classes) = (self.features.index_select(0, samples)?, self.classes.index_select(0, samples)?);
        self.model.loss(&x, &classes, mode)
    }

    fn validation(&self, _: &[f64]) -> Nothing {
        Nothing {}
    }

    fn error(_: &Nothing) -> f64 {
        0.0
    }
}

impl CrossBench {
    /// Makes data and model.
    ///
    /// # Errors
    /// [`refrain_forecast::Error::Model`] and [`refrain_forecast::Error::Training`] for invalid settings;
    /// [`refrain_forecast::Error::Engine`] if the device has no memory for them.
    pub fn new(options: CrossBenchOptions, device: &Device) -> Result<CrossBench> {
        let CrossBenchOptions { model, samples, epochs, batch_size, accumulate, lr, seed } = options;
        let model = CrossAsset::new(model, DType::F32, device, seed)?;
        let CrossAssetConfig { sources, features, .. } = *model.config();
        let generator = Generator::new(device, seed.wrapping_add(1))?;
        let x = generator.normal([samples, sources, features], DType::F32)?;
        let after = Tensor::concat(&[&x.narrow(1, 1, sources - 1)?, &x.narrow(1, 0, 1)?], 1)?;
        let rule = generator.normal([2 * features, CLASSES], DType::F32)?;
        // The classes are the same whatever the model computes in.
        let scores = with_precision(Precision::F32, || Tensor::concat(&[&x, &after], -1)?.matmul(&rule))?;
        let classes = scores.argmax(-1)?;
        let pace = Pace { epochs, batch_size, accumulate, lr, seed };
        TrainingBench::of(Neighbours { model, features: x, classes }, &pace)
    }
}
