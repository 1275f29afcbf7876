//! One training step on random batches.

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Device, Generator, Step, Tensor};
use refrain_forecast::Result;
use refrain_forecast::models::cross_asset::{CLASSES, CrossAsset, CrossAssetConfig};
use refrain_forecast::models::patchtst::PatchTstConfig;
use refrain_forecast::models::{Forecaster, ForecasterConfig, ModelConfig, WindowShape};
use refrain_forecast::tasks::forecasting::loss::Loss;
use refrain_nn::{AdamW, Mode, Optimizer, Parameters};

/// Random batches that lie on the device and rotate.
pub(super) const POOL: usize = 16;
/// The learning rate.
pub(super) const LR: f64 = 1e-3;

/// The sizes of model and batch.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSizes {
    /// The model.
    pub model: PatchTstConfig,
    /// Rows of a batch: windows times channels. The model treats them alike.
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

    /// Six layers of width 512 (8 heads of 64) over 63 patches; 64 windows of 21 channels to 96 outputs.
    pub fn wide() -> StepSizes {
        StepSizes { model: PatchTstConfig::small(512, 16, 8, 512, 8, 6, 2048, 96), rows: 64 * 21 }
    }

    /// Three layers of width 256 (4 heads of 64) over 509 patches; 8 windows of 7 channels to 96 outputs.
    pub fn long() -> StepSizes {
        StepSizes { model: PatchTstConfig::small(2048, 16, 4, 256, 4, 3, 1024, 96), rows: 8 * 7 }
    }
}

/// The sizes of a cross-asset model and its batch.
#[derive(Debug, Clone, PartialEq)]
pub struct CrossSizes {
    /// The model.
    pub model: CrossAssetConfig,
    /// Samples of a batch, each of all sources.
    pub batch: usize,
}

/// 256 samples for the default model: 12 sources of 32 features, two layers of width 256.
impl Default for CrossSizes {
    fn default() -> CrossSizes {
        CrossSizes { model: CrossAssetConfig::default(), batch: 256 }
    }
}

/// Any forecaster, its loss and the size of its batch.
#[derive(Debug, Clone, PartialEq)]
pub struct ForecasterSizes {
    /// The model, [widened](ModelConfig::widened) for the loss.
    pub model: ModelConfig,
    /// The loss.
    pub loss: Loss,
    /// Windows of a batch.
    pub windows: usize,
}

/// A model and its batches.
pub trait Workload {
    /// Rows (or windows, or samples) of a batch.
    fn rows(&self) -> usize;

    /// The model with random weights.
    ///
    /// # Errors
    /// [`refrain_forecast::Error::Engine`] if the device has no memory for it.
    fn model(&self, device: &Device, seed: u64) -> Result<Model>;

    /// Random inputs and targets of this many rows.
    ///
    /// # Errors
    /// [`refrain_forecast::Error::Engine`] if the device has no memory for them.
    fn random(&self, generator: &Generator, rows: usize) -> refrain::Result<[Tensor; 2]>;
}

/// PatchTST and the mean squared error; all random values are standard normal.
impl Workload for StepSizes {
    fn rows(&self) -> usize {
        self.rows
    }

    fn model(&self, device: &Device, seed: u64) -> Result<Model> {
        Ok(Model::Forecaster(self.model.build(DType::F32, device, seed)?, Loss::default()))
    }

    fn random(&self, generator: &Generator, rows: usize) -> refrain::Result<[Tensor; 2]> {
        let normal = |length| generator.normal([rows, 1, length], DType::F32);
        Ok([normal(self.model.context)?, normal(self.model.horizon)?])
    }
}

/// A forecaster and its loss; all random values are standard normal.
impl Workload for ForecasterSizes {
    fn rows(&self) -> usize {
        self.windows
    }

    fn model(&self, device: &Device, seed: u64) -> Result<Model> {
        let mut model = self.model.build(DType::F32, device, seed)?;
        model.set_distribution(self.loss.distribution())?;
        Ok(Model::Forecaster(model, self.loss.clone()))
    }

    fn random(&self, generator: &Generator, rows: usize) -> refrain::Result<[Tensor; 2]> {
        let WindowShape { channels, context, horizon } = self.model.window();
        let normal = |length| generator.normal([rows, channels, length], DType::F32);
        Ok([normal(context)?, normal(horizon / self.loss.values())?])
    }
}

/// Cross-asset attention and the cross entropy: standard normal features and evenly distributed classes.
impl Workload for CrossSizes {
    fn rows(&self) -> usize {
        self.batch
    }

    fn model(&self, device: &Device, seed: u64) -> Result<Model> {
        Ok(Model::CrossAsset(Box::new(CrossAsset::new(self.model.clone(), DType::F32, device, seed)?)))
    }

    fn random(&self, generator: &Generator, rows: usize) -> refrain::Result<[Tensor; 2]> {
        let CrossAssetConfig { sources, features, .. } = self.model;
        let x = generator.normal([rows, sources, features], DType::F32)?;
        let classes = generator.uniform([rows, sources], DType::F32)?.mul_scalar(CLASSES as f64)?;
        Ok([x, classes.floor()?.to_dtype(DType::I64)?])
    }
}

/// A model, its optimiser and the batches: forward, loss, backward, clipping at 1.0 and AdamW (learning rate 1e-3,
/// weight decay 0.01 of all parameters).
pub struct StepBench {
    model: Model,
    optimizer: AdamW,
    /// For dropout.
    generator: Generator,
    device: Device,
    batches: Vec<[Tensor; 2]>,
}

/// A model of a [`Workload`].
pub enum Model {
    /// Forecasts rows or windows, and has a loss.
    Forecaster(Box<dyn Forecaster>, Loss),
    /// Classifies the sources of samples.
    CrossAsset(Box<CrossAsset>),
}

impl Model {
    pub(super) fn parameters(&self) -> &Parameters {
        match self {
            Model::Forecaster(model, _) => model.parameters(),
            Model::CrossAsset(model) => model.parameters(),
        }
    }

    pub(super) fn parameters_mut(&mut self) -> &mut Parameters {
        match self {
            Model::Forecaster(model, _) => model.parameters_mut(),
            Model::CrossAsset(model) => model.parameters_mut(),
        }
    }

    /// The mean loss of a batch.
    pub(super) fn loss(&self, x: &Tensor, y: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        match self {
            Model::Forecaster(model, loss) => loss.mean(&model.forward(x, mode)?, y, None),
            Model::CrossAsset(model) => model.loss(x, y, mode),
        }
    }
}

impl StepBench {
    /// Random weights and 16 random batches of a workload.
    ///
    /// # Errors
    /// [`refrain_forecast::Error::Engine`] if the device has no memory for them.
    pub fn new(workload: &dyn Workload, device: &Device, seed: u64) -> Result<StepBench> {
        let generator = Generator::new(device, seed.wrapping_add(1))?;
        let mut model = workload.model(device, seed)?;
        // As the other frameworks do.
        model.parameters_mut().set_group(|_, _| true, |group| group.decay_factor = 1.0)?;
        let batch = |_| workload.random(&generator, workload.rows());
        let batches = (0..POOL).map(batch).collect::<refrain::Result<_>>()?;
        let options = AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() };
        let optimizer = AdamW::new(model.parameters(), options, Schedule::Constant { lr: LR })?;
        let optimizer = optimizer.clip_grad_norm(1.0)?;
        Ok(StepBench { model, optimizer, generator, device: device.clone(), batches })
    }

    /// The batch of step `i`: `x` and `y`. They rotate.
    pub fn batch(&self, i: usize) -> &[Tensor; 2] {
        &self.batches[i % self.batches.len()]
    }

    /// One step; the loss before it, f32 `[]`, still on the device.
    ///
    /// # Errors
    /// [`refrain_forecast::Error::Engine`] if the device fails.
    pub fn step(&self, [x, y]: &[Tensor; 2]) -> Result<Tensor> {
        self.run(x, y)
    }

    /// The step, to call with batches: recorded at the first call, replayed from then on. Its output is the loss.
    pub fn recorded(&self) -> Step<'_> {
        Step::new(&self.device, |batch| Ok(vec![self.run(&batch[0], &batch[1])?]))
    }

    fn run(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let loss = self.model.loss(x, y, Mode::Train(&self.generator))?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }

    /// The number of trained values.
    pub fn parameter_count(&self) -> usize {
        self.model.parameters().count()
    }
}
