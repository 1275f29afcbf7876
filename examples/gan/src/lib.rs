//! A generative adversarial network (Goodfellow et al., NeurIPS 2014): two models and two optimisers in one recorded step. It
//! learns to draw points of a cloud.

use refrain::optim::{AdamOptions, Schedule};
use refrain::{Activation, DType, Device, Generator, Step, Tensor, no_grad};
use refrain_nn::{Adam, Mlp, Optimizer, ParameterBuilder, Parameters, Result};

/// Numbers that a point is made from.
const LATENT: usize = 4;

/// The centre of the cloud.
pub const CENTRE: [f64; 2] = [2.0, -1.0];

/// The standard deviation of the cloud in both directions.
pub const SPREAD: f64 = 0.3;

/// A model with its optimiser.
pub struct Player {
    /// The layers.
    pub model: Mlp,
    /// Their parameters.
    pub parameters: Parameters,
    optimizer: Adam,
}

impl Player {
    fn new(sizes: &[usize], seed: u64, device: &Device) -> Result<Player> {
        let builder = ParameterBuilder::new(device, DType::F32);
        let model = Mlp::new(&builder, sizes, Activation::Gelu)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        let options = AdamOptions { betas: (0.5, 0.9), ..AdamOptions::default() };
        let optimizer = Adam::new(&parameters, options, Schedule::Constant { lr: 2e-3 })?;
        Ok(Player { model, parameters, optimizer })
    }
}

/// Two players in training: one draws points, the other one tells them from real ones.
pub struct Training {
    /// From noise to points.
    pub artist: Player,
    /// From points to the logit that they are real.
    pub critic: Player,
    generator: Generator,
    centre: Tensor,
    batch: usize,
}

impl Training {
    /// Begins, with points that are drawn anew for each batch.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn new(batch: usize, device: &Device) -> Result<Training> {
        Ok(Training {
            artist: Player::new(&[LATENT, 32, 32, 2], 1, device)?,
            critic: Player::new(&[2, 32, 32, 1], 2, device)?,
            generator: Generator::new(device, 3)?,
            centre: Tensor::from_slice(&CENTRE.map(|x| x as f32), 2, device)?,
            batch,
        })
    }

    /// Real points, `[batch, 2]`.
    fn real(&self) -> Result<Tensor> {
        let noise = self.generator.normal([self.batch, 2], DType::F32)?;
        Ok((&self.centre + noise * SPREAD)?)
    }

    /// Points of the artist, `[count, 2]`.
    fn drawn(&self, count: usize) -> Result<Tensor> {
        self.artist.model.forward(&self.generator.normal([count, LATENT], DType::F32)?)
    }

    /// How far the critic is from telling that all points are real (1) or drawn (0).
    fn judge(&self, points: &Tensor, target: f64) -> Result<Tensor> {
        let logits = self.critic.model.forward(points)?;
        let target = Tensor::full(logits.shape(), target, DType::F32, logits.device())?;
        Ok(logits.bce_with_logits(&target)?)
    }

    /// A step of the critic, then one of the artist. Returns their losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self) -> Result<[Tensor; 2]> {
        // Detached, so that only the critic gets gradients.
        let drawn = self.drawn(self.batch)?.detach();
        let of_critic = (self.judge(&self.real()?, 1.0)? + self.judge(&drawn, 0.0)?)?;
        of_critic.backward()?;
        self.critic.optimizer.step()?;

        let of_artist = self.judge(&self.drawn(self.batch)?, 1.0)?;
        of_artist.backward()?;
        self.artist.optimizer.step()?;
        // The backward pass went through the critic, which does not learn from it.
        self.critic.parameters.zero_gradients()?;
        Ok([of_critic.detach(), of_artist.detach()])
    }

    /// Trains with a recorded step, or with eager code. Returns the losses of critic and artist.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, steps: usize, recorded: bool) -> Result<Vec<[f32; 2]>> {
        let mut step = Step::new(self.centre.device(), |_| Ok(self.step()?.into()));
        let mut losses = Vec::with_capacity(steps);
        for _ in 0..steps {
            losses.push(match recorded {
                true => {
                    let outputs = step.call(&[])?;
                    [outputs.to_scalar(0)?, outputs.to_scalar(1)?]
                }
                false => {
                    let [critic, artist] = self.step()?;
                    [critic.to_scalar()?, artist.to_scalar()?]
                }
            });
        }
        step.finish()?;
        Ok(losses)
    }

    /// Points of the artist, x and y each.
    ///
    /// # Errors
    /// If the device fails.
    pub fn draw(&self, count: usize) -> Result<Vec<[f32; 2]>> {
        let points = no_grad(|| self.drawn(count))?.to_vec::<f32>()?;
        Ok(points.chunks_exact(2).map(|point| [point[0], point[1]]).collect())
    }
}
