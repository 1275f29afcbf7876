//! The layer of a transformer encoder.

use refrain::{Activation, Tensor};

use super::{BatchNorm, Dropout, LayerNorm, Linear, Mode, MultiHeadAttention};
use crate::error::Result;
use crate::parameters::ParameterBuilder;

/// Which normalisation a transformer layer has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Over the features of each token.
    #[default]
    Layer,
    /// Of each feature over batch and tokens, as in PatchTST; momentum 0.1.
    Batch,
}

/// What a [`TransformerEncoderLayer`] is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerEncoderOptions {
    /// Features of a token.
    pub d_model: usize,
    /// Heads of the attention; they divide `d_model`.
    pub heads: usize,
    /// Features between the two layers of the feed-forward part.
    pub ffn: usize,
    /// Whether each half normalises its input (pre-norm) instead of its output with the residual added.
    pub norm_first: bool,
    /// Which normalisation.
    pub norm: NormKind,
    /// Added to the variance by the normalisation.
    pub eps: f64,
    /// Between the two layers of the feed-forward part.
    pub activation: Activation,
    /// Probability that an element is dropped from what each half adds to the residual stream, and from the
    /// features between the layers of the feed-forward part.
    pub dropout: f64,
    /// Whether a token attends to itself and those before it only.
    pub causal: bool,
}

enum Norm {
    Layer(LayerNorm),
    Batch(BatchNorm),
}

impl Norm {
    fn new(builder: &ParameterBuilder, options: &TransformerEncoderOptions) -> Result<Norm> {
        Ok(match options.norm {
            NormKind::Layer => Norm::Layer(LayerNorm::new(builder, options.d_model, options.eps)?),
            NormKind::Batch => Norm::Batch(BatchNorm::new(builder, options.d_model, -1, options.eps, 0.1)?),
        })
    }

    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::Batch(norm) => norm.forward(x, mode),
        }
    }
}

/// One layer of a transformer encoder (Vaswani et al., NeurIPS 2017; the pre-norm form: Xiong et al., ICML
/// 2020), with `attn`, `norm1`, `ffn.0`, `ffn.2` and `norm2`:
///
/// ```text
/// pre-norm   x + dropout(attn(norm1(x))),  then  x + dropout(ffn(norm2(x)))
/// post-norm  norm1(x + dropout(attn(x))),  then  norm2(x + dropout(ffn(x)))
/// ffn(x) = ffn.2(dropout(activation(ffn.0(x))))
/// ```
pub struct TransformerEncoderLayer {
    attn: MultiHeadAttention,
    norm1: Norm,
    ffn0: Linear,
    ffn2: Linear,
    norm2: Norm,
    norm_first: bool,
    activation: Activation,
    dropout: Dropout,
}

impl TransformerEncoderLayer {
    /// # Errors
    /// If the heads do not divide `d_model`, `dropout` is not in `[0, 1)`, or the names are taken in this
    /// scope.
    pub fn new(
        builder: &ParameterBuilder,
        options: &TransformerEncoderOptions,
    ) -> Result<TransformerEncoderLayer> {
        let TransformerEncoderOptions { d_model, heads, ffn, causal, .. } = *options;
        Ok(TransformerEncoderLayer {
            attn: MultiHeadAttention::new(&builder.scope("attn"), d_model, heads, causal)?,
            norm1: Norm::new(&builder.scope("norm1"), options)?,
            ffn0: Linear::new(&builder.scope("ffn").scope(0), d_model, ffn)?,
            ffn2: Linear::new(&builder.scope("ffn").scope(2), ffn, d_model)?,
            norm2: Norm::new(&builder.scope("norm2"), options)?,
            norm_first: options.norm_first,
            activation: options.activation,
            dropout: Dropout::new(options.dropout)?,
        })
    }

    /// `[batch, tokens, d_model]` to the same shape; under [`Precision::Bf16`](refrain::Precision::Bf16) in bf16.
    ///
    /// # Errors
    /// If `x` has another rank, last size or dtype.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        if self.norm_first {
            let x = self.attend(&self.norm1.forward(x, mode)?, x, mode)?;
            self.feed_forward(&self.norm2.forward(&x, mode)?, &x, mode)
        } else {
            let x = self.norm1.forward(&self.attend(x, x, mode)?, mode)?;
            self.norm2.forward(&self.feed_forward(&x, &x, mode)?, mode)
        }
    }

    /// `residual + dropout(attn(x))`; without dropout the projection adds the residual itself.
    fn attend(&self, x: &Tensor, residual: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        if !self.dropout.drops(mode) {
            return self.attn.forward_with(x, Some(residual));
        }
        add(residual, &self.dropout.forward(&self.attn.forward(x)?, mode)?)
    }

    /// `residual + dropout(ffn(x))`.
    fn feed_forward(&self, x: &Tensor, residual: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let hidden = self.ffn0.forward_with(x, self.activation, None)?;
        let hidden = self.dropout.forward(&hidden, mode)?;
        if !self.dropout.drops(mode) {
            return self.ffn2.forward_with(&hidden, Activation::None, Some(residual));
        }
        add(residual, &self.dropout.forward(&self.ffn2.forward(&hidden)?, mode)?)
    }
}

/// The sum; in mixed precision an f32 residual stream goes on in bf16, as the branch is.
fn add(residual: &Tensor, branch: &Tensor) -> Result<Tensor> {
    Ok(residual.to_dtype(branch.dtype())?.add(branch)?)
}
