//! A layer of attention among the sources.

use super::{CrossAssetConfig, EPS, Mode};
use crate::Result;
use refrain::{Activation, Tensor};
use refrain_nn::{Dropout, LayerNorm, Linear, ParameterBuilder, QkNormAttention};

/// `x + dropout(attn(norm1(x)))`, then `x + dropout(ffn.2(dropout(gelu_tanh(ffn.0(norm2(x))))))`.
pub(super) struct CrossLayer {
    norm1: LayerNorm,
    attention: QkNormAttention,
    norm2: LayerNorm,
    ffn0: Linear,
    ffn2: Linear,
    dropout: Dropout,
}

impl CrossLayer {
    pub(super) fn new(builder: &ParameterBuilder, config: &CrossAssetConfig) -> Result<CrossLayer> {
        let CrossAssetConfig { d_model, heads, ffn, temperature, .. } = *config;
        Ok(CrossLayer {
            norm1: LayerNorm::new(&builder.scope("norm1"), d_model, EPS)?,
            attention: QkNormAttention::new(&builder.scope("attn"), d_model, heads, temperature)?,
            norm2: LayerNorm::new(&builder.scope("norm2"), d_model, EPS)?,
            ffn0: Linear::new(&builder.scope("ffn").scope(0), d_model, ffn)?,
            ffn2: Linear::new(&builder.scope("ffn").scope(2), ffn, d_model)?,
            dropout: Dropout::new(config.dropout)?,
        })
    }

    /// `[B, S, D]` to the same shape. Without dropout the last linear layer of each half adds the residual itself.
    pub(super) fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let drops = self.dropout.drops(mode);
        let add_dropped = |x: &Tensor, branch: Tensor| -> Result<Tensor> {
            // In mixed precision the branch is bf16, and so is what goes on.
            Ok(x.to_dtype(branch.dtype())?.add(&self.dropout.forward(&branch, mode)?)?)
        };
        let normed = self.norm1.forward(x)?;
        let x = match drops {
            true => add_dropped(x, self.attention.forward(&normed)?)?,
            false => self.attention.forward_with(&normed, Some(x))?,
        };
        let hidden = self.ffn0.forward_with(&self.norm2.forward(&x)?, Activation::GeluTanh, None)?;
        match drops {
            true => add_dropped(&x, self.ffn2.forward(&self.dropout.forward(&hidden, mode)?)?),
            false => Ok(self.ffn2.forward_with(&hidden, Activation::None, Some(&x))?),
        }
    }
}
