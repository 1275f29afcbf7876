//! The workload of the field: a small PatchTST learns the mean of random walks.

use super::optimizer;
use crate::Result;
use crate::models::patchtst::{Mode, PatchTst, PatchTstConfig};
use crate::training::order::Order;
use crate::training::{Before, Replays};
use refrain::{DType, Device, Generator, Step, Tensor};
use refrain_nn::{AdamW, Optimizer};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Length of a walk.
const LENGTH: usize = 24;
/// Standard deviation of an increment.
const INCREMENT: f32 = 0.1;

/// What is trained on, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldOptions {
    /// Number of samples.
    pub samples: usize,
    /// Number of channels; a sample is one random walk of 24 values a channel.
    pub channels: usize,
    /// Samples a step.
    pub batch_size: usize,
    /// The learning rate.
    pub lr: f64,
    /// Seed of the data, the weights and the order of the samples.
    pub seed: u64,
}

/// A model in training on random walks: context 24, patch 8, stride 4, d_model 64, 4 heads, 2 pre-norm layers, FFN
/// 256 with tanh-GELU, LayerNorm eps 1e-5, flatten head to 1 output. The label of a sample is the mean of all its
/// values, the prediction is the mean of the head's output over channels; MSE, clipping at 1.0, AdamW.
pub struct FieldBench {
    learner: Rc<Learner>,
    step: Option<Step<'static>>,
    replays: Replays,
    options: FieldOptions,
    epochs: u64,
}

/// What a step works on.
struct Learner {
    model: PatchTst,
    optimizer: AdamW,
    samples: Tensor, // [S, C, 24]
    labels: Tensor,  // [S]
    order: Order,
    /// Sum over the samples of this epoch of their losses, f64 `[]`.
    loss_sum: Tensor,
}

impl Learner {
    /// One step on the samples that are next, as many as there are places.
    fn step(&self, places: &Tensor) -> Result<()> {
        let batch = &self.order.next(places)?;
        let (x, y) = (self.samples.index_select(0, batch)?, self.labels.index_select(0, batch)?);
        let output = self.model.forward(&x, Mode::Eval)?; // [B, C, 1]
        let loss = output.mean([1, 2])?.mse_loss(&y)?;
        loss.backward()?;
        self.optimizer.step()?;
        let of_batch = loss.detach().to_dtype(DType::F64)?.mul_scalar(batch.numel() as f64)?;
        Ok(self.loss_sum.add_assign(&of_batch)?)
    }
}

/// What an epoch came to.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldEpoch {
    /// Mean loss over the samples, each as it was when its step came.
    pub loss: f64,
    /// Number of steps.
    pub steps: usize,
    /// Time of all steps.
    pub time: Duration,
}

impl FieldBench {
    /// Makes data and model.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the device has no memory for them.
    pub fn new(options: FieldOptions, device: &Device) -> Result<FieldBench> {
        let config = PatchTstConfig {
            channels: options.channels,
            ..PatchTstConfig::small(LENGTH, 8, 4, 64, 4, 2, 256, 1)
        };
        let (samples, labels) = random_walks(&options, device)?;
        let model = PatchTst::new(config, DType::F32, device, options.seed)?;
        let learner = Rc::new(Learner {
            optimizer: optimizer(model.parameters(), options.lr)?,
            model,
            samples,
            labels,
            order: Order::new(options.samples, options.batch_size, device)?,
            loss_sum: Tensor::zeros((), DType::F64, device)?,
        });
        let recorded = learner.clone();
        let step = Step::new(device, move |inputs| {
            recorded.step(&inputs[0])?;
            Ok(Vec::new())
        });
        Ok(FieldBench { learner, step: Some(step), replays: Replays::default(), options, epochs: 0 })
    }

    /// Runs the steps operation by operation, instead of replaying a recorded one.
    pub fn eager(mut self) -> FieldBench {
        self.step = None;
        self
    }

    /// The recorded step, for what it can tell; `None` if there is none.
    pub fn recorded(&self) -> Option<&Step<'static>> {
        self.step.as_ref()
    }

    /// What replaying it asked of the device, without the order of an epoch; `None` if there is none.
    pub fn replays(&self) -> Option<Replays> {
        self.step.as_ref().map(|step| self.replays.of(std::iter::once(step)))
    }

    /// One pass over all samples in a new order.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the device fails.
    pub fn epoch(&mut self) -> Result<FieldEpoch> {
        let begun = Instant::now();
        let learner = self.learner.clone();
        let (order, loss_sum) = (&learner.order, &learner.loss_sum);
        order.begin(&self.order()?, 0)?;
        loss_sum.fill(0.0)?;
        // The steps of whole batches, then that of the rest.
        for (first, end) in [(0, order.whole()), (order.whole(), order.steps())] {
            match &mut self.step {
                Some(step) if first < end => {
                    let (device, count) = (learner.samples.device(), end - first);
                    let before = Before::now(device, std::iter::once(&*step));
                    step.repeat(std::slice::from_ref(order.places(first)), count)?;
                    before.count(&mut self.replays, count as u64, device, std::iter::once(&*step));
                }
                Some(_) => {}
                None => (first..end).try_for_each(|at| learner.step(order.places(at)))?,
            }
        }
        if let Some(step) = &mut self.step {
            step.check()?;
        }
        let loss = loss_sum.to_scalar::<f64>()? / self.options.samples as f64;
        self.epochs += 1;
        Ok(FieldEpoch { loss, steps: order.steps(), time: begun.elapsed() })
    }

    fn order(&self) -> Result<Vec<i64>> {
        crate::training::shuffled(
            self.options.samples,
            self.options.seed,
            self.epochs,
            self.learner.samples.device(),
        )
    }

    /// Number of trained numbers.
    pub fn parameter_count(&self) -> usize {
        self.learner.model.parameter_count()
    }
}

/// Walks `[S, C, 24]` that start uniformly in [0, 1) and go on by normal increments, and their means `[S]`.
fn random_walks(options: &FieldOptions, device: &Device) -> Result<(Tensor, Tensor)> {
    let (samples, channels) = (options.samples, options.channels);
    let generator = Generator::new(device, options.seed.wrapping_add(1))?;
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
    let labels: Vec<f32> = walks.chunks_exact(channels * LENGTH).map(mean).collect();
    let walks = Tensor::from_slice(&walks, [samples, channels, LENGTH], device)?;
    Ok((walks, Tensor::from_slice(&labels, samples, device)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_start_in_the_unit_interval_and_labels_are_their_means() {
        let options = FieldOptions { samples: 200, channels: 5, batch_size: 64, lr: 1e-3, seed: 3 };
        let (walks, labels) = random_walks(&options, &Device::cpu()).unwrap();
        assert_eq!((walks.dims(), labels.dims()), (&[200, 5, LENGTH][..], &[200][..]));
        let (walks, labels) = (walks.to_vec::<f32>().unwrap(), labels.to_vec::<f32>().unwrap());
        let mut squares = 0.0;
        for (sample, label) in walks.chunks_exact(5 * LENGTH).zip(labels) {
            let mean = sample.iter().sum::<f32>() / sample.len() as f32;
            assert!((mean - label).abs() < 1e-5);
            for walk in sample.chunks_exact(LENGTH) {
                assert!((0.0..1.0).contains(&walk[0]));
                squares += walk.windows(2).map(|pair| (pair[1] - pair[0]).powi(2)).sum::<f32>();
            }
        }
        let variance = squares / (200 * 5 * (LENGTH - 1)) as f32;
        assert!((variance.sqrt() - INCREMENT).abs() < 2e-3, "increments of deviation {}", variance.sqrt());
    }
}
