//! One training step on random batches.

use super::optimizer;
use crate::Result;
use crate::model::{Mode, PatchTst, PatchTstConfig};
use crate::training;
use refrain::{DType, Device, Generator, Step, Tensor};
use refrain_nn::AdamW;

/// Random batches that lie on the device and rotate.
const POOL: usize = 16;
/// The learning rate.
const LR: f64 = 1e-3;

/// The sizes of model and batch.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSizes {
    /// The model.
    pub model: PatchTstConfig,
    /// Rows of a batch: windows times channels, which the model does not tell apart.
    pub rows: usize,
}

impl StepSizes {
    /// Two layers of width 64 over 5 patches; 64 windows of 20 channels to 1 output.
    pub fn seed() -> StepSizes {
        StepSizes { model: PatchTstConfig::small(24, 8, 4, 64, 4, 2, 256, 1), rows: 64 * 20 }
    }

    /// The paper's ETTh1 model: three layers of width 16 over 41 patches; 128 windows of 7 channels to 96 outputs.
    pub fn small() -> StepSizes {
        StepSizes { model: PatchTstConfig::small(336, 16, 8, 16, 4, 3, 128, 96), rows: 128 * 7 }
    }

    /// The paper's Weather model: three layers of width 128 over 41 patches; 32 windows of 21 channels to 96 outputs.
    pub fn large() -> StepSizes {
        StepSizes { model: PatchTstConfig::small(336, 16, 8, 128, 16, 3, 256, 96), rows: 32 * 21 }
    }
}

/// A model, its optimiser and the batches: forward, MSE, backward, clipping at 1.0 and AdamW (learning rate 1e-3,
/// weight decay 0.01).
pub struct StepBench {
    model: PatchTst,
    optimizer: AdamW,
    device: Device,
    batches: Vec<[Tensor; 2]>,
}

impl StepBench {
    /// Random weights and 16 random batches, standard normal.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the device has no memory for them.
    pub fn new(sizes: &StepSizes, device: &Device, seed: u64) -> Result<StepBench> {
        let config = sizes.model.clone();
        let generator = Generator::new(device, seed.wrapping_add(1))?;
        let normal = |length| generator.normal([sizes.rows, 1, length], DType::F32);
        let batches = (0..POOL)
            .map(|_| Ok([normal(config.context)?, normal(config.horizon)?]))
            .collect::<Result<_>>()?;
        let model = PatchTst::new(config, DType::F32, device, seed)?;
        Ok(StepBench { optimizer: optimizer(&model, LR)?, model, device: device.clone(), batches })
    }

    /// The batch of step `i`: `x` and `y`. They rotate.
    pub fn batch(&self, i: usize) -> &[Tensor; 2] {
        &self.batches[i % self.batches.len()]
    }

    /// One step; the loss before it, f32 `[]`, still on the device.
    ///
    /// # Errors
    /// [`crate::Error::Engine`] if the device fails.
    pub fn step(&self, [x, y]: &[Tensor; 2]) -> Result<Tensor> {
        training::step(&self.model, &self.optimizer, x, y, Mode::Eval)
    }

    /// The step to be called with batches: recorded at the first call, replayed from then on. Its output is the loss.
    pub fn recorded(&self) -> Step<'_> {
        Step::new(&self.device, |batch| {
            Ok(vec![training::step(&self.model, &self.optimizer, &batch[0], &batch[1], Mode::Eval)?])
        })
    }

    /// Number of trained numbers.
    pub fn parameter_count(&self) -> usize {
        self.model.parameter_count()
    }
}
