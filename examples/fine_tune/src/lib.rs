//! Fine-tuning: a classifier begins with weights that PyTorch trained for another task, with other names. It learns a new task
//! by a new head on frozen layers, then all layers learn slowly. Gradients of several small batches are accumulated by hand.

use std::path::PathBuf;

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{Activation, DType, Device, Generator, Step, Tensor, no_grad};
use refrain_nn::{
    AdamW, Layers, Linear, LoadOptions, Mlp, Optimizer, ParameterBuilder, Parameters, Result, Unmatched,
    part_of,
};

/// The height and the width of an image.
pub const SIZE: usize = 8;

/// Numbers of an image.
pub const PIXELS: usize = SIZE * SIZE;

/// The kinds of images that PyTorch learned to tell apart: a bright row, a bright column, the diagonal, the other diagonal.
const KINDS: i64 = 4;

/// The file that `pretrained.py` writes.
pub fn pretrained() -> PathBuf {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(folder).join("data/pretrained.safetensors")
}

/// A body that makes features, and a head that says whether the line of an image is a diagonal.
#[derive(Layers)]
pub struct Classifier {
    body: Mlp,
    head: Linear,
}

impl Classifier {
    /// Declares the parameters.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder) -> Result<Classifier> {
        Ok(Classifier {
            body: Mlp::new(&builder.scope("body"), &[PIXELS, 64, 32], Activation::Relu)?,
            head: Linear::new(&builder.scope("head"), 32, 2)?,
        })
    }

    /// Images `[N, PIXELS]` to features `[N, 32]`.
    ///
    /// # Errors
    /// If the shape is another one, or the device fails.
    pub fn features(&self, images: &Tensor) -> Result<Tensor> {
        Ok(self.body.forward(images)?.relu()?)
    }

    /// Images `[N, PIXELS]` to logits `[N, 2]`.
    ///
    /// # Errors
    /// As for [`Classifier::features`].
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.features(images)?)
    }
}

/// Loads the body from a file of PyTorch, where it is called `features`. The head of the old task is left in the file, and the new
/// head keeps its values. Returns the names of both.
///
/// # Errors
/// If the file is broken, or a shape differs.
pub fn load_body(parameters: &Parameters, path: PathBuf) -> Result<Unmatched> {
    let options = LoadOptions { strict: false, ..LoadOptions::default() };
    parameters.load_safetensors(path, |name| name.replace("body.", "features."), options)
}

/// A [`Classifier`] in training.
pub struct Training {
    /// The model.
    pub model: Classifier,
    /// Its parameters.
    pub parameters: Parameters,
    optimizer: AdamW,
    generator: Generator,
    device: Device,
}

/// Images of a batch, and batches of a step.
const BATCH: usize = 8;
const BATCHES: usize = 4;

impl Training {
    /// Begins from scratch, or with the body of PyTorch, which is frozen.
    ///
    /// # Errors
    /// If the file cannot be read, or the device has not enough memory.
    pub fn new(is_pretrained: bool, device: &Device) -> Result<Training> {
        let builder = ParameterBuilder::new(device, DType::F32);
        let model = Classifier::new(&builder)?;
        let mut parameters = builder.build(&Generator::new(device, 1)?)?;
        if is_pretrained {
            load_body(&parameters, pretrained())?;
            parameters.set_group(part_of(&model.body), |group| group.trainable = false)?;
        }
        let optimizer = AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 1e-2 })?;
        let generator = Generator::new(device, 2)?;
        Ok(Training { model, parameters, optimizer, generator, device: device.clone() })
    }

    /// From now on, the body learns, too, at a tenth of the rate.
    ///
    /// # Errors
    /// If the device fails.
    pub fn unfreeze(&mut self) -> Result<()> {
        self.parameters.set_group(part_of(&self.model.body), |group| {
            group.trainable = true;
            group.rate_factor = 0.1;
        })?;
        Ok(())
    }

    /// New images `[count, PIXELS]`, and whether their lines are diagonals, `[count]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn draw(&self, count: usize) -> Result<(Tensor, Tensor)> {
        let line = |low, high| -> Result<Tensor> { Ok(self.generator.randint(low, high, [count, 1, 1])?) };
        let (kinds, places) = (line(0, KINDS)?, line(0, SIZE as i64)?);
        let numbers = Tensor::arange(0.0, SIZE as f64, 1.0, DType::I64, &self.device)?;
        let (rows, columns) = (numbers.reshape((SIZE, 1))?, numbers.reshape((1, SIZE))?);
        let shape = [count, SIZE, SIZE];
        let mut images = (rows.add(&columns)?).eq_scalar((SIZE - 1) as f64)?.broadcast_to(shape)?;
        for (kind, bright) in
            [rows.eq(&places)?, columns.eq(&places)?, rows.eq(&columns)?].into_iter().enumerate()
        {
            images = kinds.eq_scalar(kind as f64)?.where_cond(&bright.broadcast_to(shape)?, &images)?;
        }
        let noise = self.generator.normal(shape, DType::F32)?;
        let images = (images.to_dtype(DType::F32)? + noise * 0.4)?.reshape((count, PIXELS))?;
        Ok((images, kinds.ge_scalar(2.0)?.to_dtype(DType::I64)?.reshape(-1)?))
    }

    /// Adds the gradients of some images to those that there are, as a part of `parts`. Returns the loss.
    ///
    /// # Errors
    /// If the device fails.
    pub fn accumulate(&self, images: &Tensor, classes: &Tensor, parts: usize) -> Result<Tensor> {
        let loss = self.model.forward(images)?.cross_entropy(classes)?;
        (&loss * (1.0 / parts as f64))?.backward()?;
        Ok(loss.detach())
    }

    /// One step of the optimiser, with the gradients of several batches. Returns the mean of their losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self) -> Result<Tensor> {
        let mut sum = Tensor::zeros((), DType::F32, &self.device)?;
        for _ in 0..BATCHES {
            let (images, classes) = self.draw(BATCH)?;
            sum = (sum + self.accumulate(&images, &classes, BATCHES)?)?;
        }
        self.optimizer.step()?;
        Ok((sum * (1.0 / BATCHES as f64))?)
    }

    /// Trains with a recorded step, or with eager code. Returns the losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, steps: usize, recorded: bool) -> Result<Vec<f32>> {
        let mut step = Step::new(&self.device, |_| Ok(vec![self.step()?]));
        let mut losses = Vec::with_capacity(steps);
        for _ in 0..steps {
            losses.push(match recorded {
                true => step.call(&[])?.to_scalar::<f32>(0)?,
                false => self.step()?.to_scalar::<f32>()?,
            });
        }
        step.finish()?;
        Ok(losses)
    }

    /// The share of new images that the model is right about.
    ///
    /// # Errors
    /// If the device fails.
    pub fn accuracy(&self) -> Result<f64> {
        no_grad(|| {
            let (images, classes) = self.draw(500)?;
            let right = self.model.forward(&images)?.argmax(1)?.eq(&classes)?;
            Ok(right.to_dtype(DType::F64)?.mean(())?.to_scalar::<f64>()?)
        })
    }
}
