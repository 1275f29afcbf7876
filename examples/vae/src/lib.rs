//! A variational autoencoder (Kingma and Welling, ICLR 2014) of small images. It learns to draw new ones: each image has one
//! bright row or one bright column.

use refrain::optim::{AdamOptions, Schedule};
use refrain::{Activation, DType, Device, Generator, Step, Tensor, no_grad};
use refrain_nn::{Adam, Layers, Mlp, Optimizer, ParameterBuilder, Parameters, Result};

/// The height and the width of an image.
pub const SIZE: usize = 6;

/// Numbers of an image.
pub const PIXELS: usize = SIZE * SIZE;

/// Numbers that an image is described by.
const LATENT: usize = 2;

/// How many different images there are: a bright row or a bright column each.
pub const KINDS: usize = 2 * SIZE;

/// All images, `[KINDS, PIXELS]`.
///
/// # Errors
/// If the device fails.
pub fn images(device: &Device) -> Result<Tensor> {
    let is_bright = |kind: usize, row: usize, column: usize| match kind < SIZE {
        true => row == kind,
        false => column == kind - SIZE,
    };
    let pixels: Vec<f32> =
        (0..KINDS * PIXELS).map(|i| f32::from(is_bright(i / PIXELS, i / SIZE % SIZE, i % SIZE))).collect();
    Ok(Tensor::from_slice(&pixels, [KINDS, PIXELS], device)?)
}

/// An encoder from images to means and log variances, and a decoder from latent numbers to logits of pixels.
#[derive(Layers)]
pub struct Vae {
    encoder: Mlp,
    decoder: Mlp,
}

impl Vae {
    /// Declares the parameters.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder) -> Result<Vae> {
        Ok(Vae {
            encoder: Mlp::new(&builder.scope("encoder"), &[PIXELS, 64, 2 * LATENT], Activation::Gelu)?,
            decoder: Mlp::new(&builder.scope("decoder"), &[LATENT, 64, PIXELS], Activation::Gelu)?,
        })
    }

    /// The loss of images `[N, PIXELS]`, the negative evidence lower bound of an image: how badly the decoder draws it from a
    /// sample of its description, and how far the distribution of the description is from the standard normal one.
    ///
    /// # Errors
    /// If the images have another shape, or the device fails.
    pub fn loss(&self, images: &Tensor, generator: &Generator) -> Result<Tensor> {
        let n = images.size(0)? as f64;
        let description = self.encoder.forward(images)?;
        let (mean, log_var) = (description.i((.., ..LATENT))?, description.i((.., LATENT..))?);
        // The sample is a function of the mean and the variance, so gradients go through it.
        let noise = generator.normal(mean.shape(), DType::F32)?;
        let sample = (&mean + (&log_var * 0.5)?.exp()? * noise)?;
        let logits = self.decoder.forward(&sample)?;
        let drawing = (logits.bce_with_logits(images)? * PIXELS as f64)?;
        let spread = (((mean.square()? + log_var.exp()?)? - &log_var)? - 1.0)?;
        Ok((drawing + spread.sum(())? * (0.5 / n))?)
    }

    /// Draws `count` new images, `[count, PIXELS]`: the probability of each pixel.
    ///
    /// # Errors
    /// If the device fails.
    pub fn draw(&self, count: usize, generator: &Generator) -> Result<Tensor> {
        no_grad(|| {
            let sample = generator.normal([count, LATENT], DType::F32)?;
            Ok(self.decoder.forward(&sample)?.sigmoid()?)
        })
    }
}

/// A [`Vae`] in training.
pub struct Training {
    /// The model.
    pub model: Vae,
    /// Its parameters.
    pub parameters: Parameters,
    optimizer: Adam,
    /// Draws batches and samples.
    pub generator: Generator,
    images: Tensor,
    batch: usize,
}

impl Training {
    /// Begins, with images that are drawn anew for each batch.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn new(batch: usize, device: &Device) -> Result<Training> {
        let builder = ParameterBuilder::new(device, DType::F32);
        let model = Vae::new(&builder)?;
        let parameters = builder.build(&Generator::new(device, 1)?)?;
        let optimizer = Adam::new(&parameters, AdamOptions::default(), Schedule::Constant { lr: 5e-3 })?;
        let (generator, images) = (Generator::new(device, 2)?, images(device)?);
        Ok(Training { model, parameters, optimizer, generator, images, batch })
    }

    /// One step. Returns the loss.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self) -> Result<Tensor> {
        let kinds = self.generator.randint(0, KINDS as i64, self.batch)?;
        let loss = self.model.loss(&self.images.index_select(0, &kinds)?, &self.generator)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }

    /// Trains with a recorded step, or with eager code. Returns the losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, steps: usize, recorded: bool) -> Result<Vec<f32>> {
        let mut step = Step::new(self.images.device(), |_| Ok(vec![self.step()?]));
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
}
