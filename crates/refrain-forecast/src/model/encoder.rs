//! A layer of the encoder.

use super::{Mode, NormKind, NormPosition, PatchTstConfig};
use crate::Result;
use refrain::{Activation, Tensor};
use refrain_nn::{BatchNorm, Dropout, LayerNorm, Linear, ParameterBuilder};

/// Attention and feed-forward network, each with a residual, a norm and dropout:
///
/// ```text
/// pre-norm   x + dropout(attn(norm1(x))),  then  x + dropout(ffn(norm2(x)))
/// post-norm  norm1(x + dropout(attn(x))),  then  norm2(x + dropout(ffn(x)))
/// ffn(x) = ffn.2(dropout(activation(ffn.0(x))))
/// ```
///
/// Unlike [`refrain_nn::TransformerEncoderLayer`] it can hand the attention scores to the next layer, drop attention
/// weights, and drops the attention's output as often as PatchTST's reference implementation.
pub(super) struct EncoderLayer {
    attention: Attention,
    norm1: Norm,
    ffn0: Linear,
    ffn2: Linear,
    norm2: Norm,
    position: NormPosition,
    activation: Activation,
    attention_branch: Dropout,
    dropout: Dropout,
}

impl EncoderLayer {
    pub(super) fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<EncoderLayer> {
        // Two dropouts in a row are one: an element stays with probability (1 - p)^2 and is scaled by its inverse.
        let twice = 1.0 - (1.0 - config.dropout) * (1.0 - config.dropout);
        Ok(EncoderLayer {
            norm1: Norm::new(&builder.scope("norm1"), config)?,
            attention: Attention::new(&builder.scope("attn"), config)?,
            norm2: Norm::new(&builder.scope("norm2"), config)?,
            ffn0: Linear::new(&builder.scope("ffn").scope(0), config.d_model, config.ffn)?,
            ffn2: Linear::new(&builder.scope("ffn").scope(2), config.ffn, config.d_model)?,
            position: config.norm_position,
            activation: config.activation.into(),
            attention_branch: Dropout::new(twice)?,
            dropout: Dropout::new(config.dropout)?,
        })
    }

    /// `[R, N, D]` to the same shape; `scores` are those of the layer before, and then this layer's.
    pub(super) fn forward(&self, x: &Tensor, scores: &mut Option<Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        match self.position {
            NormPosition::Pre => {
                let x = self.attend(&self.norm1.forward(x, mode)?, x, scores, mode)?;
                self.feed_forward(&self.norm2.forward(&x, mode)?, &x, mode)
            }
            NormPosition::Post => {
                let x = self.norm1.forward(&self.attend(x, x, scores, mode)?, mode)?;
                self.norm2.forward(&self.feed_forward(&x, &x, mode)?, mode)
            }
        }
    }

    /// `residual + dropout(attn(x))`.
    fn attend(
        &self,
        x: &Tensor,
        residual: &Tensor,
        scores: &mut Option<Tensor>,
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        let merged = self.attention.merged(x, scores, mode)?;
        add_branch(&self.attention.o, &merged, residual, &self.attention_branch, mode)
    }

    /// `residual + dropout(ffn(x))`.
    fn feed_forward(&self, x: &Tensor, residual: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let hidden = self.ffn0.forward_with(x, self.activation, None)?;
        let hidden = self.dropout.forward(&hidden, mode)?;
        add_branch(&self.ffn2, &hidden, residual, &self.dropout, mode)
    }
}

/// `residual + dropout(linear(x))`; without dropout the linear layer adds the residual itself.
fn add_branch(
    linear: &Linear,
    x: &Tensor,
    residual: &Tensor,
    dropout: &Dropout,
    mode: Mode<'_>,
) -> Result<Tensor> {
    if !dropout.drops(mode) {
        return Ok(linear.forward_with(x, Activation::None, Some(residual))?);
    }
    let y = dropout.forward(&linear.forward(x)?, mode)?;
    Ok(residual.to_dtype(y.dtype())?.add(&y)?)
}

/// Batch or layer norm over `[R, N, D]`.
enum Norm {
    Batch(BatchNorm),
    Layer(LayerNorm),
}

impl Norm {
    fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Norm> {
        const EPS: f64 = 1e-5;
        const MOMENTUM: f64 = 0.1;
        Ok(match config.norm {
            NormKind::Batch => Norm::Batch(BatchNorm::new(builder, config.d_model, -1, EPS, MOMENTUM)?),
            NormKind::Layer => Norm::Layer(LayerNorm::new(builder, config.d_model, EPS)?),
        })
    }

    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        Ok(match self {
            Norm::Batch(norm) => norm.forward(x, mode)?,
            Norm::Layer(norm) => norm.forward(x)?,
        })
    }
}

/// Self-attention of several heads, up to the output projection.
struct Attention {
    /// To queries, keys and values side by side.
    qkv: Linear,
    o: Linear,
    heads: usize,
    /// Whether the scores of a layer are added to those of the next (RealFormer: He et al., 2021).
    residual: bool,
    dropout: Dropout,
}

impl Attention {
    fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Attention> {
        Ok(Attention {
            qkv: Linear::new(&builder.scope("qkv"), config.d_model, 3 * config.d_model)?,
            o: Linear::new(&builder.scope("o"), config.d_model, config.d_model)?,
            heads: config.heads,
            residual: config.residual_attention,
            dropout: Dropout::new(config.attention_dropout)?,
        })
    }

    /// The heads' results side by side, `[R, N, D]`, to be projected.
    fn merged(&self, x: &Tensor, scores: &mut Option<Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let &[rows, patches, width] = x.dims() else {
            return Ok(x.clone()); // The encoder's input has three dimensions.
        };
        let dim = width / self.heads;
        let qkv = self.qkv.forward(x)?.view([rows, patches, 3, self.heads, dim])?;
        if !self.residual && !self.dropout.drops(mode) {
            let y = qkv.scaled_dot_product_attention_qkvpacked(None, false)?;
            return Ok(y.view([rows, patches, width])?);
        }
        let part = |i| -> Result<Tensor> { Ok(qkv.select(2, i)?.transpose(1, 2)?) };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?); // [R, heads, N, D / heads]
        let mut sum = q.mul_scalar((dim as f64).powf(-0.5))?.matmul(&k.transpose(2, 3)?)?; // [R, heads, N, N]
        if let Some(before) = scores.as_ref() {
            sum = sum.add(before)?;
        }
        let weights = self.dropout.forward(&sum.softmax(-1)?, mode)?;
        if self.residual {
            *scores = Some(sum);
        }
        Ok(weights.matmul(&v)?.transpose(1, 2)?.reshape([rows, patches, width])?)
    }
}
