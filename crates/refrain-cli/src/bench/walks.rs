//! A small PatchTST that learns the mean of random walks.

use refrain::{DType, Device, Generator, Tensor};
use refrain_forecast::Result;
use refrain_forecast::models::Forecaster;
use refrain_forecast::models::patchtst::{Mode, PatchTst, PatchTstConfig};
use refrain_forecast::training::Task;
use refrain_nn::Parameters;

use super::training::{Nothing, Pace, TrainingBench};

/// Length of a walk.
pub const LENGTH: usize = 24;
/// Standard deviation of an increment.
pub const INCREMENT: f32 = 0.1;

/// The data and the training.
#[derive(Debug, Clone, PartialEq)]
pub struct WalkOptions {
    /// Number of samples.
    pub samples: usize,
    /// Number of channels; a sample is one random walk of 24 values per channel.
    pub channels: usize,
    /// Number of epochs.
    pub epochs: usize,
    /// Samples per step.
    pub batch_size: usize,
    /// The learning rate.
    pub lr: f64,
    /// Seed of the data, the weights and the order of the samples.
    pub seed: u64,
}

/// A model in training on random walks: context 24, patch 8, stride 4, d_model 64, 4 heads, 2 pre-norm layers, FFN
/// 256 with tanh-GELU, LayerNorm eps 1e-5, flatten head to 1 output. The label of a sample is the mean of all its
/// values, the prediction is the mean of the head's output over channels; the loss is MSE.
pub type WalkBench = TrainingBench<Walks>;

/// The samples and the model.
pub struct Walks {
    model: PatchTst,
    walks: Tensor, // [N, C, 24]
    means: Tensor, // [N]
}

impl Task for Walks {
    type Validation = Nothing;

    fn parameters(&self) -> &Parameters {
        self.model.parameters()
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        self.model.parameters_mut()
    }

    fn device(&self) -> &Device {
        self.walks.device()
    }

    fn samples(&self) -> Vec<i64> {
        (0..self.walks.dims()[0] as i64).collect()
    }

    fn data(&self) -> Vec<&Tensor> {
        vec![&self.walks, &self.means]
    }

    fn loss(&self, samples: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (x, y) = (self.walks.index_select(0, samples)?, self.means.index_select(0, samples)?);
        let output = self.model.forward(&x, mode)?; // [B, C, 1]
        // In bf16, the loss is f32 all the same.
        Ok(output.to_dtype(DType::F32)?.mean([1, 2])?.mse_loss(&y)?)
    }

    fn validation(&self, _: &[f64]) -> Nothing {
        Nothing {}
    }

    fn error(_: &Nothing) -> f64 {
        0.0
    }
}

impl WalkBench {
    /// Makes data and model.
    ///
    /// # Errors
    /// [`refrain_forecast::Error::Training`] for invalid settings; [`refrain_forecast::Error::Engine`] if the device
    /// has no memory for them.
    pub fn new(options: WalkOptions, device: &Device) -> Result<WalkBench> {
        let WalkOptions { samples, channels, epochs, batch_size, lr, seed } = options;
        let config = PatchTstConfig { channels, ..PatchTstConfig::small(LENGTH, 8, 4, 64, 4, 2, 256, 1) };
        let (walks, means) = random_walks(samples, channels, seed, device)?;
        let model = PatchTst::new(config, DType::F32, device, seed)?;
        let pace = Pace { epochs, batch_size, accumulate: 1, lr, seed };
        TrainingBench::of(Walks { model, walks, means }, &pace)
    }
}

/// Walks `[N, C, 24]` that start uniformly in [0, 1) and have normally distributed increments, and their means `[N]`.
pub fn random_walks(samples: usize, channels: usize, seed: u64, device: &Device) -> Result<(Tensor, Tensor)> {
    let generator = Generator::new(device, seed.wrapping_add(1))?;
    let starts = generator.uniform([samples, channels], DType::F32)?.to_vec::<f32>()?;
    let mut walks = generator.normal([samples, channels, LENGTH], DType::F32)?.to_vec::<f32>()?;
    for (walk, start) in walks.chunks_exact_mut(LENGTH).zip(starts) {
        walk[0] = start;
        for at in 1..LENGTH {
            walk[at] = walk[at - 1] + INCREMENT * walk[at];
        }
    }
    let mean =
        |sample: &[f32]| (sample.iter().copied().map(f64::from).sum::<f64>() / sample.len() as f64) as f32;
    let means: Vec<f32> = walks.chunks_exact(channels * LENGTH).map(mean).collect();
    let walks = Tensor::from_slice(&walks, [samples, channels, LENGTH], device)?;
    Ok((walks, Tensor::from_slice(&means, samples, device)?))
}
