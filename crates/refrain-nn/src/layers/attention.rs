//! Attention of several heads.

use refrain::{DType, Tensor};

use super::{Dropout, Linear, Mode};
use crate::error::{Error, Result};
use crate::init::Init;
use crate::parameters::{Declared, ParameterBuilder};

const LAYER: &str = "MultiHeadAttention";

/// Shorter queries and keys are divided by this, as `torch.nn.functional.normalize` does.
const EPS: f64 = 1e-12;

/// What a [`MultiHeadAttention`] is like. [`AttentionOptions::new`] gives plain attention; change what differs:
///
/// ```
/// use refrain_nn::AttentionOptions;
/// let options = AttentionOptions { causal: true, dropout: 0.1, ..AttentionOptions::new(64, 4) };
/// assert_eq!(options.qk_norm, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Features of a token.
    pub d_model: usize,
    /// Heads; they divide `d_model`.
    pub heads: usize,
    /// Whether a token attends to itself and those before it only.
    pub causal: bool,
    /// Queries and keys get length 1, and a learned temperature for each head, which begins with this value, takes the
    /// place of `1 / sqrt(dim)` (Henry et al., "Query-Key Normalization for Transformers", Findings of EMNLP 2020). The
    /// larger the temperature, the sharper the attention.
    pub qk_norm: Option<f64>,
    /// Whether the scores of the layer before are added to this layer's (RealFormer: He et al., Findings of ACL 2021).
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

/// Self-attention of several heads (Vaswani et al., NeurIPS 2017), with projections `qkv`, a [`Linear`] with bias
/// from `d_model` to queries, keys and values, `d_model` features each in this order, and `o`, one from `d_model` to
/// `d_model`; with normalised queries and keys also `temperature` `[heads]`. Head `h` takes the `h`-th run of
/// `d_model / heads` features of each.
///
/// ```text
/// softmax(q . k / sqrt(dim)) v                    plain
/// softmax(t_h * (q / |q|) . (k / |k|)) v          with normalised queries and keys
/// ```
pub struct MultiHeadAttention {
    qkv: Linear,
    o: Linear,
    temperature: Option<Declared>,
    options: AttentionOptions,
    dropout: Dropout,
}

impl MultiHeadAttention {
    /// # Errors
    /// If `heads` does not divide `d_model`, `dropout` is not in `[0, 1)`, or the names are taken in this scope.
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

    /// The results of the heads side by side, `[batch, tokens, d_model]`, before the projection
    /// [`MultiHeadAttention::output`]. With residual scores, `scores` `[batch, heads, tokens, tokens]` are those of the
    /// layer before, `None` in the first layer, and this layer's afterwards.
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
        let is_scaled = self.temperature.is_some();
        if !residual_scores && !self.dropout.drops(mode) {
            let y = qkv.scaled_dot_product_attention_qkvpacked(is_scaled.then_some(1.0), causal)?;
            return Ok(y.view([batch, tokens, d_model])?);
        }
        let part = |i| -> Result<Tensor> { Ok(qkv.select(2, i)?.transpose(1, 2)?) };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?); // [batch, heads, tokens, dim]
        let q = if is_scaled { q } else { q.mul_scalar((dim as f64).powf(-0.5))? };
        let mut sum = q.matmul(&k.transpose(2, 3)?)?; // [batch, heads, tokens, tokens]
        if let Some(before) = scores.as_ref() {
            sum = sum.add(before)?;
        }
        let seen = if causal { only_before(&sum)? } else { sum.clone() };
        let weights = self.dropout.forward(&seen.softmax(-1)?, mode)?;
        if residual_scores {
            *scores = Some(sum);
        }
        Ok(weights.matmul(&v)?.transpose(1, 2)?.reshape([batch, tokens, d_model])?)
    }

    /// The projection that follows the heads.
    pub fn output(&self) -> &Linear {
        &self.o
    }
}

/// Scores `[.., tokens, tokens]` with those of later tokens at minus infinity.
fn only_before(scores: &Tensor) -> Result<Tensor> {
    let tokens = scores.dims()[scores.rank() - 1];
    let places = Tensor::arange(0.0, tokens as f64, 1.0, DType::I64, scores.device())?;
    let sees = places.reshape([tokens, 1])?.ge(&places)?;
    let never = Tensor::full((), f64::NEG_INFINITY, scores.dtype(), scores.device())?;
    Ok(sees.where_cond(scores, &never)?)
}
