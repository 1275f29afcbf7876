//! Attention with normalised queries and keys.

use refrain::{Activation, Tensor};

use super::Linear;
use crate::error::{Error, Result};
use crate::init::Init;
use crate::parameters::{Declared, ParameterBuilder};

/// Self-attention of several heads in which queries and keys have length 1 and a learned temperature takes the
/// place of `1 / sqrt(dim)` (Henry et al., "Query-Key Normalization for Transformers", Findings of EMNLP 2020):
///
/// ```text
/// softmax(t_h * (q / |q|) . (k / |k|)) v     for each head h
/// ```
///
/// Parameters are those of [`MultiHeadAttention`](super::MultiHeadAttention), `qkv` and `o`, and `temperature` `[heads]`. Head `h` takes the
/// `h`-th run of `d_model / heads` features of each.
pub struct QkNormAttention {
    qkv: Linear,
    o: Linear,
    temperature: Declared,
    heads: usize,
}

/// Shorter queries and keys are divided by this, as `torch.nn.functional.normalize` does.
const EPS: f64 = 1e-12;

impl QkNormAttention {
    /// An attention of which every head begins with the same temperature: the larger, the sharper.
    ///
    /// # Errors
    /// If `heads` does not divide `d_model`, or the names are taken in this scope.
    pub fn new(
        builder: &ParameterBuilder,
        d_model: usize,
        heads: usize,
        temperature: f64,
    ) -> Result<QkNormAttention> {
        if heads == 0 || !d_model.is_multiple_of(heads) {
            let message = format!(
                "{heads} heads for d_model {d_model}; the number of heads must divide d_model without remainder"
            );
            return Err(Error::invalid("QkNormAttention", message));
        }
        Ok(QkNormAttention {
            qkv: Linear::new(&builder.scope("qkv"), d_model, 3 * d_model)?,
            o: Linear::new(&builder.scope("o"), d_model, d_model)?,
            temperature: builder.parameter("temperature", heads, Init::Constant(temperature))?,
            heads,
        })
    }

    /// `[batch, tokens, d_model]` to the same shape.
    ///
    /// # Errors
    /// If `x` has another rank, last size or dtype.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, None)
    }

    /// [`QkNormAttention::forward`] plus a residual of the same shape, added by the last projection.
    ///
    /// # Errors
    /// As for `forward`, and if the residual has another shape.
    pub fn forward_with(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let &[batch, tokens, d_model] = x.dims() else {
            let message = format!("the input has shape {}; it must be [batch, tokens, d_model]", x.shape());
            return Err(Error::invalid("QkNormAttention", message));
        };
        let qkv = self.qkv.forward(x)?.view([batch, tokens, 3, self.heads, d_model / self.heads])?;
        let qkv = qkv.qk_norm(self.temperature.tensor()?, EPS)?;
        let y = qkv.scaled_dot_product_attention_qkvpacked(Some(1.0), false)?;
        self.o.forward_with(&y.view([batch, tokens, d_model])?, Activation::None, residual)
    }
}
