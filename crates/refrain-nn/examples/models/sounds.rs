//! Models of sounds.

use refrain::{Conv1dOptions, DType, Generator, Tensor};
use refrain_nn::{
    AttentionOptions, BatchNorm, Conv1d, Dropout, LayerNorm, Linear, Mode, MultiHeadAttention,
    ParameterBuilder, Result,
};

use crate::{Loss, ids};

/// `drop(ffn(norm(x)))`
struct FeedForward {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl FeedForward {
    fn new(b: &ParameterBuilder, width: usize) -> Result<FeedForward> {
        Ok(FeedForward {
            norm: LayerNorm::new(&b.scope("norm"), width, 1e-5)?,
            up: Linear::new(&b.scope("up"), width, 4 * width)?,
            down: Linear::new(&b.scope("down"), 4 * width, width)?,
        })
    }

    fn forward(&self, x: &Tensor, drop: &Dropout, mode: Mode<'_>) -> Result<Tensor> {
        let y = drop.forward(&self.up.forward(&self.norm.forward(x)?)?.silu()?, mode)?;
        drop.forward(&self.down.forward(&y)?, mode)
    }
}

/// The convolutions of a block: a gate, each channel along time by itself, batch norm.
struct Convolution {
    norm: LayerNorm,
    gate: Conv1d,
    depth: Conv1d,
    batch_norm: BatchNorm,
    out: Conv1d,
}

impl Convolution {
    fn new(b: &ParameterBuilder, width: usize, kernel: usize) -> Result<Convolution> {
        let depth = Conv1dOptions { padding: kernel / 2, groups: width, ..Conv1dOptions::default() };
        Ok(Convolution {
            norm: LayerNorm::new(&b.scope("norm"), width, 1e-5)?,
            gate: Conv1d::new(&b.scope("gate"), width, 2 * width, 1, Conv1dOptions::default())?,
            depth: Conv1d::new(&b.scope("depth"), width, width, kernel, depth)?,
            batch_norm: BatchNorm::new(&b.scope("batch_norm"), width, 1, 1e-5, 0.1)?,
            out: Conv1d::new(&b.scope("out"), width, width, 1, Conv1dOptions::default())?,
        })
    }

    fn forward(&self, x: &Tensor, drop: &Dropout, mode: Mode<'_>) -> Result<Tensor> {
        let y = self.gate.forward(&self.norm.forward(x)?.transpose(1, 2)?)?.glu(1)?;
        let y = self.batch_norm.forward(&self.depth.forward(&y)?, mode)?.silu()?;
        drop.forward(&self.out.forward(&y)?.transpose(1, 2)?, mode)
    }
}

/// A block of [`conformer`].
struct Block {
    first: FeedForward,
    attention_norm: LayerNorm,
    attention: MultiHeadAttention,
    convolution: Convolution,
    second: FeedForward,
    norm: LayerNorm,
}

impl Block {
    fn new(b: &ParameterBuilder, width: usize) -> Result<Block> {
        Ok(Block {
            first: FeedForward::new(&b.scope("first"), width)?,
            attention_norm: LayerNorm::new(&b.scope("attention_norm"), width, 1e-5)?,
            attention: MultiHeadAttention::new(&b.scope("attention"), &AttentionOptions::new(width, 4))?,
            convolution: Convolution::new(&b.scope("convolution"), width, 31)?,
            second: FeedForward::new(&b.scope("second"), width)?,
            norm: LayerNorm::new(&b.scope("norm"), width, 1e-5)?,
        })
    }

    fn forward(&self, x: &Tensor, drop: &Dropout, mode: Mode<'_>) -> Result<Tensor> {
        let x = x.add(&self.first.forward(x, drop, mode)?.mul_scalar(0.5)?)?;
        let y = self.attention.forward(&self.attention_norm.forward(&x)?, mode)?;
        let x = x.add(&drop.forward(&y, mode)?)?;
        let x = x.add(&self.convolution.forward(&x, drop, mode)?)?;
        let x = x.add(&self.second.forward(&x, drop, mode)?.mul_scalar(0.5)?)?;
        self.norm.forward(&x)
    }
}

/// Attention and convolutions between two halves of a feed-forward net; a class of each frame (Gulati et al., 2020).
pub fn conformer(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, frames, features, width, classes) = (16, 256, 80, 144, 32);
    let input = Linear::new(&b.scope("input"), features, width)?;
    let drop = Dropout::new(0.1)?;
    let blocks =
        (0..4).map(|i| Block::new(&b.scope("blocks").scope(i), width)).collect::<Result<Vec<_>>>()?;
    let head = Linear::new(&b.scope("head"), width, classes)?;
    let sounds = g.normal([batch, frames, features], DType::F32)?;
    let labels = ids(g, classes, &[batch, frames])?;
    Ok(Box::new(move |mode| {
        let mut x = drop.forward(&input.forward(&sounds)?, mode)?;
        for block in &blocks {
            x = block.forward(&x, &drop, mode)?;
        }
        Ok(head.forward(&x)?.cross_entropy(&labels)?)
    }))
}
