//! A residual network with gates (Shazeer, "GLU variants improve transformer", 2020), written in plain operations, that learns
//! a function of a few numbers. A recorded step runs the elementwise operations between two matrix products as one launch.

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Device, Generator, Program, Step, Tensor};
use refrain_nn::{AdamW, LayerNorm, Layers, Linear, Optimizer, ParameterBuilder, Parameters, Result};

/// The numbers that the function is of.
pub const INPUTS: usize = 4;

/// The width of the network.
const WIDTH: usize = 32;

/// The probability that a part of a block's result is dropped.
const DROPPED: f64 = 0.05;

/// `x + scale * dropout(out(silu(gate(norm(x))) * value(norm(x))))`
#[derive(Layers)]
struct Block {
    norm: LayerNorm,
    gate: Linear,
    value: Linear,
    out: Linear,
    #[layers(show)]
    scale: f64,
}

impl Block {
    fn new(builder: &ParameterBuilder, scale: f64) -> Result<Block> {
        Ok(Block {
            norm: LayerNorm::new(&builder.scope("norm"), WIDTH, 1e-5)?,
            gate: Linear::new(&builder.scope("gate"), WIDTH, 2 * WIDTH)?,
            value: Linear::new(&builder.scope("value"), WIDTH, 2 * WIDTH)?,
            out: Linear::new(&builder.scope("out"), 2 * WIDTH, WIDTH)?,
            scale,
        })
    }

    fn forward(&self, x: &Tensor, generator: Option<&Generator>) -> Result<Tensor> {
        let normed = self.norm.forward(x)?;
        let gated = self.gate.forward(&normed)?.silu()?.mul(&self.value.forward(&normed)?)?;
        let mut y = self.out.forward(&gated)?.mul_scalar(self.scale)?;
        if let Some(generator) = generator {
            y = y.dropout(DROPPED, generator)?;
        }
        Ok(x.add(&y)?)
    }
}

/// Blocks between two linear layers.
#[derive(Layers)]
pub struct GatedMlp {
    first: Linear,
    blocks: Vec<Block>,
    last: Linear,
}

impl GatedMlp {
    /// The layers, of which the builder gets the parameters.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, blocks: usize) -> Result<GatedMlp> {
        let scale = 1.0 / (blocks.max(1) as f64).sqrt();
        let of_block = |i| Block::new(&builder.scope("blocks").scope(i), scale);
        Ok(GatedMlp {
            first: Linear::new(&builder.scope("first"), INPUTS, WIDTH)?,
            blocks: (0..blocks).map(of_block).collect::<Result<_>>()?,
            last: Linear::new(&builder.scope("last"), WIDTH, 1)?,
        })
    }

    /// Numbers `[N, INPUTS]` to results `[N, 1]`. With a generator, parts are dropped, as in training.
    ///
    /// # Errors
    /// If the shape is another one, or the device fails.
    pub fn forward(&self, x: &Tensor, generator: Option<&Generator>) -> Result<Tensor> {
        let mut x = self.first.forward(x)?;
        for block in &self.blocks {
            x = block.forward(&x, generator)?;
        }
        self.last.forward(&x)
    }
}

/// A [`GatedMlp`] in training.
pub struct Training {
    /// The network.
    pub network: GatedMlp,
    /// Its parameters.
    pub parameters: Parameters,
    optimizer: AdamW,
    generator: Generator,
    batch: usize,
}

impl Training {
    /// Begins, with numbers that are drawn anew for each batch.
    ///
    /// # Errors
    /// If the device has not enough memory.
    pub fn new(batch: usize, blocks: usize, device: &Device) -> Result<Training> {
        let builder = ParameterBuilder::new(device, DType::F32);
        let network = GatedMlp::new(&builder, blocks)?;
        let parameters = builder.build(&Generator::new(device, 1)?)?;
        let optimizer = AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 3e-3 })?;
        Ok(Training { network, parameters, optimizer, generator: Generator::new(device, 2)?, batch })
    }

    /// Numbers `[batch, INPUTS]`, and for each row `a b + sin(2 c) - |d| / 2`, `[batch, 1]`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn draw(&self) -> Result<(Tensor, Tensor)> {
        let x = self.generator.normal([self.batch, INPUTS], DType::F32)?;
        let column = |i| x.narrow(1, i, 1);
        let product = column(0)?.mul(&column(1)?)?;
        let wave = column(2)?.mul_scalar(2.0)?.sin()?;
        let y = product.add(&wave)?.sub(&column(3)?.abs()?.mul_scalar(0.5)?)?;
        Ok((x, y))
    }

    /// One step. Returns the loss.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step(&self) -> Result<Tensor> {
        let (x, y) = self.draw()?;
        let loss = self.network.forward(&x, Some(&self.generator))?.mse_loss(&y)?;
        loss.backward()?;
        self.optimizer.step()?;
        Ok(loss.detach())
    }

    /// Trains with eager code. Returns the losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, steps: usize) -> Result<Vec<f32>> {
        (0..steps).map(|_| Ok(self.step()?.to_scalar::<f32>()?)).collect()
    }

    /// Trains with a recorded step, and lets `look` see its program. Returns the losses.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run_recorded(&self, steps: usize, look: impl FnOnce(&Program)) -> Result<Vec<f32>> {
        let mut step = Step::new(self.parameters.values().device(), |_| Ok(vec![self.step()?]));
        let losses = (0..steps).map(|_| Ok(step.call(&[])?.to_scalar::<f32>(0)?)).collect::<Result<_>>()?;
        if let Some(program) = step.program() {
            look(program);
        }
        step.finish()?;
        Ok(losses)
    }
}
