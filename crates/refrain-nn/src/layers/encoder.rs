//! The layer of a transformer encoder.

use refrain::{Activation, Tensor};

use super::norm::Norm;
use super::{AttentionOptions, Dropout, Linear, Mode, MultiHeadAttention, NormKind};
use crate::error::Result;
use crate::parameters::ParameterBuilder;

/// The dropout probabilities of a [`TransformerEncoderLayer`]. That of the attention weights is
/// [`AttentionOptions::dropout`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EncoderDropout {
    /// Of the output of the attention, before the residual is added.
    pub attention_output: f64,
    /// Of the hidden features of the feed-forward network.
    pub ffn_hidden: f64,
    /// Of the output of the feed-forward network, before the residual is added.
    pub ffn_output: f64,
}

impl EncoderDropout {
    /// The same probability everywhere.
    pub fn all(p: f64) -> EncoderDropout {
        EncoderDropout { attention_output: p, ffn_hidden: p, ffn_output: p }
    }
}

/// The options of a [`TransformerEncoderLayer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerEncoderOptions {
    /// The attention, with the number of features per token.
    pub attention: AttentionOptions,
    /// Hidden features of the feed-forward network.
    pub ffn: usize,
    /// Whether attention and feed-forward network normalise their input (pre-norm), or the sum of their output and
    /// the residual (post-norm).
    pub norm_first: bool,
    /// The kind of normalisation.
    pub norm: NormKind,
    /// What the normalisation adds to the variance.
    pub eps: f64,
    /// The activation of the feed-forward network.
    pub activation: Activation,
    /// The dropout probabilities in training.
    pub dropout: EncoderDropout,
}

/// One layer of a transformer encoder (Vaswani et al., NeurIPS 2017; pre-norm: Xiong et al., ICML 2020). Its parts
/// are named `norm1`, `attn`, `norm2`, `ffn.0` and `ffn.2`:
///
/// ```text
/// pre-norm   x + dropout(attn(norm1(x))),  then  x + dropout(ffn(norm2(x)))
/// post-norm  norm1(x + dropout(attn(x))),  then  norm2(x + dropout(ffn(x)))
/// ffn(x) = ffn.2(dropout(activation(ffn.0(x))))
/// ```
pub struct TransformerEncoderLayer {
    norm1: Norm,
    attn: MultiHeadAttention,
    norm2: Norm,
    ffn0: Linear,
    ffn2: Linear,
    norm_first: bool,
    activation: Activation,
    attention_output: Dropout,
    ffn_hidden: Dropout,
    ffn_output: Dropout,
}

impl TransformerEncoderLayer {
    /// # Errors
    /// If the heads do not divide `d_model`, a dropout is not in `[0, 1)`, or the names are used already in this
    /// scope.
    pub fn new(
        builder: &ParameterBuilder,
        options: &TransformerEncoderOptions,
    ) -> Result<TransformerEncoderLayer> {
        let TransformerEncoderOptions { attention, ffn, norm, eps, dropout, .. } = *options;
        let d_model = attention.d_model;
        Ok(TransformerEncoderLayer {
            norm1: Norm::new(&builder.scope("norm1"), norm, d_model, eps)?,
            attn: MultiHeadAttention::new(&builder.scope("attn"), &attention)?,
            norm2: Norm::new(&builder.scope("norm2"), norm, d_model, eps)?,
            ffn0: Linear::new(&builder.scope("ffn").scope(0), d_model, ffn)?,
            ffn2: Linear::new(&builder.scope("ffn").scope(2), ffn, d_model)?,
            norm_first: options.norm_first,
            activation: options.activation,
            attention_output: Dropout::new(dropout.attention_output)?,
            ffn_hidden: Dropout::new(dropout.ffn_hidden)?,
            ffn_output: Dropout::new(dropout.ffn_output)?,
        })
    }

    /// `[batch, tokens, d_model]` to the same shape. Under [`Precision::Bf16`](refrain::Precision::Bf16) the result
    /// is bf16.
    ///
    /// # Errors
    /// If `x` has another rank, last size or dtype.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.forward_with_scores(x, &mut None, mode)
    }

    /// Like [`TransformerEncoderLayer::forward`], for a stack of layers that pass on their attention scores (see
    /// [`MultiHeadAttention::attend`]). Begin with `None` and pass the same `scores` to every layer.
    ///
    /// # Errors
    /// As for `forward`, and if the scores have another shape.
    pub fn forward_with_scores(
        &self,
        x: &Tensor,
        scores: &mut Option<Tensor>,
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        if self.norm_first {
            let x = self.attend(&self.norm1.forward(x, mode)?, x, scores, mode)?;
            self.feed_forward(&self.norm2.forward(&x, mode)?, &x, mode)
        } else {
            let x = self.norm1.forward(&self.attend(x, x, scores, mode)?, mode)?;
            self.norm2.forward(&self.feed_forward(&x, &x, mode)?, mode)
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
        let heads = self.attn.attend(x, scores, mode)?;
        add_branch(self.attn.output(), &heads, residual, &self.attention_output, mode)
    }

    /// `residual + dropout(ffn(x))`.
    fn feed_forward(&self, x: &Tensor, residual: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let hidden = self.ffn0.forward_with(x, self.activation, None)?;
        let hidden = self.ffn_hidden.forward(&hidden, mode)?;
        add_branch(&self.ffn2, &hidden, residual, &self.ffn_output, mode)
    }
}

/// `residual + dropout(linear(x))`. Dropout or, without it, the linear layer itself adds the residual. In mixed precision an
/// f32 residual is converted to bf16, the dtype of the branch.
fn add_branch(
    linear: &Linear,
    x: &Tensor,
    residual: &Tensor,
    dropout: &Dropout,
    mode: Mode<'_>,
) -> Result<Tensor> {
    let Some((p, generator)) = dropout.draws(mode) else {
        return linear.forward_with(x, Activation::None, Some(residual));
    };
    let branch = linear.forward(x)?;
    Ok(branch.dropout_add(p, generator, &residual.to_dtype(branch.dtype())?)?)
}
