//! Multi-head attention.

use refrain::{SdpaOptions, Tensor};

use super::{Dropout, Linear, Mode};
use crate::error::{Error, Result};
use crate::init::Init;
use crate::parameters::{Parameter, ParameterBuilder};

const LAYER: &str = "MultiHeadAttention";

/// The smallest length that queries and keys are divided by, as in `torch.nn.functional.normalize`.
const EPS: f64 = 1e-12;

/// The options of a [`MultiHeadAttention`]. [`AttentionOptions::new`] gives plain attention; change what differs:
///
/// ```
/// use refrain_nn::AttentionOptions;
/// let options = AttentionOptions { causal: true, dropout: 0.1, ..AttentionOptions::new(64, 4) };
/// assert_eq!(options.qk_norm, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Features per token.
    pub d_model: usize,
    /// Number of heads; must divide `d_model`.
    pub heads: usize,
    /// Whether a token attends only to itself and to earlier tokens.
    pub causal: bool,
    /// If set, queries and keys are scaled to length 1, and a learned temperature for each head replaces `1 /
    /// sqrt(dim)`. The temperature starts at this value; a larger one makes the attention sharper (Henry et al.,
    /// "Query-Key Normalization for Transformers", Findings of EMNLP 2020).
    pub qk_norm: Option<f64>,
    /// Whether the scores of the previous layer are added to the scores of this layer (RealFormer: He et al.,
    /// Findings of ACL 2021).
    pub residual_scores: bool,
    /// Probability that an attention weight is dropped.
    pub dropout: f64,
}

impl AttentionOptions {
    /// Plain attention: every token attends to all tokens.
    pub fn new(d_model: usize, heads: usize) -> AttentionOptions {
        AttentionOptions {
            d_model,
            heads,
            causal: false,
            qk_norm: None,
            residual_scores: false,
            dropout: 0.0,
        }
    }
}

/// Multi-head self-attention (Vaswani et al., NeurIPS 2017). Its parameters are:
///
/// - `qkv`: a [`Linear`] with bias from `d_model` features to queries, keys and values, in this order, `d_model`
///   features each. Head `h` takes the `h`-th run of `d_model / heads` features of each.
/// - `o`: a [`Linear`] with bias from `d_model` to `d_model`, after the heads.
/// - `temperature` `[heads]`, only with normalised queries and keys.
///
/// ```text
/// softmax(q . k / sqrt(dim)) v                    plain
/// softmax(t_h * (q / |q|) . (k / |k|)) v          with normalised queries and keys
/// ```
pub struct MultiHeadAttention {
    qkv: Linear,
    o: Linear,
    temperature: Option<Parameter>,
    options: AttentionOptions,
    dropout: Dropout,
}

impl MultiHeadAttention {
    /// # Errors
    /// If `heads` does not divide `d_model`, `dropout` is not in `[0, 1)`, or the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, options: &AttentionOptions) -> Result<MultiHeadAttention> {
        let AttentionOptions { d_model, heads, .. } = *options;
        if heads == 0 || !d_model.is_multiple_of(heads) {
            let message = format!(
                "{heads} heads for d_model {d_model}; the number of heads must divide d_model without remainder"
            );
            return Err(Error::invalid(LAYER, message));
        }
        let temperature = |value| builder.parameter("temperature", heads, Init::Constant(value));
        Ok(MultiHeadAttention {
            qkv: Linear::new(&builder.scope("qkv"), d_model, 3 * d_model)?,
            o: Linear::new(&builder.scope("o"), d_model, d_model)?,
            temperature: options.qk_norm.map(temperature).transpose()?,
            options: *options,
            dropout: Dropout::new(options.dropout)?,
        })
    }

    /// `[batch, tokens, d_model]` to the same shape.
    ///
    /// # Errors
    /// If `x` has another rank, last size or dtype.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.o.forward(&self.attend(x, &mut None, mode)?)
    }

    /// The concatenated results of the heads, `[batch, tokens, d_model]`, before the projection
    /// [`MultiHeadAttention::output`]. With residual scores, `scores` `[batch, heads, tokens, tokens]` must be those
    /// of the previous layer (`None` in the first layer); afterwards it has those of this layer, 0 where a token does
    /// not see another.
    ///
    /// # Errors
    /// As for `forward`, and if the scores have another shape.
    pub fn attend(&self, x: &Tensor, scores: &mut Option<Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let &[batch, tokens, d_model] = x.dims() else {
            let message = format!("the input has shape {}; it must be [batch, tokens, d_model]", x.shape());
            return Err(Error::invalid(LAYER, message));
        };
        let AttentionOptions { heads, causal, residual_scores, .. } = self.options;
        let dim = d_model / heads;
        let mut qkv = self.qkv.forward(x)?.view([batch, tokens, 3, heads, dim])?;
        if let Some(temperature) = &self.temperature {
            qkv = qkv.qk_norm(temperature.tensor()?, EPS)?;
        }
        let options = SdpaOptions {
            scale: self.temperature.as_ref().map(|_| 1.0),
            causal,
            dropout: self.dropout.draws(mode),
            scores: scores.as_ref().filter(|_| residual_scores),
            returns_scores: residual_scores,
        };
        let (y, sum) = qkv.scaled_dot_product_attention_qkvpacked_with(&options)?;
        if residual_scores {
            *scores = sum;
        }
        Ok(y.view([batch, tokens, d_model])?)
    }

    /// The projection after the heads.
    pub fn output(&self) -> &Linear {
        &self.o
    }
}
