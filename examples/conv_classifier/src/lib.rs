//! A convolutional network that tells shapes in noisy images apart, trained in a recorded step. The images are drawn on the
//! device, so that the step needs no input.

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{Conv2dOptions, DType, Device, Generator, Pool2dOptions, Step, Tensor, no_grad};
use refrain_nn::{AdamW, Conv2d, Layers, Linear, MaxPool2d, Optimizer, ParameterBuilder, Parameters, Result};

/// The height and the width of an image.
pub const SIZE: usize = 12;

/// The shapes: a horizontal line, a vertical line, a diagonal line and a frame.
pub const CLASSES: usize = 4;

/// How an image of each class looks without noise: `[CLASSES, SIZE * SIZE]`.
fn templates(device: &Device) -> Result<Tensor> {
    let end = SIZE - 1;
    let is_set = |class: usize, row: usize, column: usize| match class {
        0 => row == SIZE / 2,
        1 => column == SIZE / 2,
        2 => row == column,
        _ => {
            (row == 2 || row == end - 2 || column == 2 || column == end - 2)
                && (2..=end - 2).contains(&row)
                && (2..=end - 2).contains(&column)
        }
    };
    let pixels: Vec<f32> = (0..CLASSES * SIZE * SIZE)
        .map(|i| f32::from(is_set(i / SIZE / SIZE, i / SIZE % SIZE, i % SIZE)))
        .collect();
    Ok(Tensor::from_slice(&pixels, [CLASSES, SIZE * SIZE], device)?)
}

/// Two convolutions, each with pooling, and a linear layer.
#[derive(Layers)]
pub struct Network {
    first: Conv2d,
    second: Conv2d,
    pool: MaxPool2d,
    head: Linear,
}

impl Network {
    /// The layers, of which the builder gets the parameters.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder) -> Result<Network> {
        let around = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
        Ok(Network {
            first: Conv2d::new(&builder.scope("first"), 1, 8, [3, 3], around)?,
            second: Conv2d::new(&builder.scope("second"), 8, 16, [3, 3], around)?,
            pool: MaxPool2d(Pool2dOptions::new([2, 2])),
            head: Linear::new(&builder.scope("head"), 16 * (SIZE / 4) * (SIZE / 4), CLASSES)?,
        })
    }

    /// Images `[N, 1, SIZE, SIZE]` to logits `[N, CLASSES]`.
    ///
    /// # Errors
    /// If the shape is another one, or the device fails.
    pub fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let x = self.pool.forward(&self.first.forward(images)?.relu()?)?; // [N, 8, SIZE / 2, SIZE / 2]
        let x = self.pool.forward(&self.second.forward(&x)?.relu()?)?; // [N, 16, SIZE / 4, SIZE / 4]
        self.head.forward(&x.flatten(1, -1)?)
    }
}

/// A [`Network`] in training.
pub struct Training {
    /// The network.
    pub network: Network,
    /// Its parameters.
    pub parameters: Parameters,
    optimizer: AdamW,
    generator: Generator,
    templates: Tensor,
    batch: usize,
}

impl Training {
    /// Begins, with images that are drawn anew for each batch.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn new(batch: usize, device: &Device) -> Result<Training> {
        let builder = ParameterBuilder::new(device, DType::F32);
        let network = Network::new(&builder)?;
        let parameters = builder.build(&Generator::new(device, 1)?)?;
        let optimizer = AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 5e-3 })?;
        let (generator, templates) = (Generator::new(device, 2)?, templates(device)?);
        Ok(Training { network, parameters, optimizer, generator, templates, batch })
    }

    /// Images `[batch, 1, SIZE, SIZE]` and their classes `[batch]`: shapes that are moved by up to two pixels, in noise.
    ///
    /// # Errors
    /// If the device fails.
    pub fn draw(&self) -> Result<(Tensor, Tensor)> {
        let classes = self.generator.randint(0, CLASSES as i64, self.batch)?;
        let clean = self.templates.index_select(0, &classes)?.reshape((self.batch, 1, SIZE, SIZE))?;
        // Each image is one of these, by the class of a draw of its own.
        let moved = clean.roll(&[1, -2], &[2, 3])?;
        let is_moved = self.generator.bernoulli(&Tensor::full(
            [self.batch, 1, 1, 1],
            0.5,
            DType::F32,
            clean.device(),
        )?)?;
        let images = is_moved.gt_scalar(0.0)?.where_cond(&moved, &clean)?;
        let noise = self.generator.normal(images.shape(), DType::F32)?;
        Ok(((images + noise * 0.5)?, classes))
    }

    /// One step. Returns the loss.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self) -> Result<Tensor> {
        let (images, classes) = self.draw()?;
        let loss = self.network.forward(&images)?.cross_entropy(&classes)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }

    /// Trains with a recorded step, or with eager code. Returns the losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, steps: usize, recorded: bool) -> Result<Vec<f32>> {
        let mut step = Step::new(self.templates.device(), |_| Ok(vec![self.step()?]));
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

    /// The share of new images whose class is the most likely one.
    ///
    /// # Errors
    /// If the device fails.
    pub fn accuracy(&self) -> Result<f64> {
        no_grad(|| {
            let (images, classes) = self.draw()?;
            let right = self.network.forward(&images)?.argmax(1)?.eq(&classes)?;
            Ok(right.to_dtype(DType::F64)?.mean(())?.to_scalar::<f64>()?)
        })
    }
}
