//! Attention of several heads.

use refrain::{Activation, Tensor};

use super::Linear;
use crate::error::{Error, Result};
use crate::parameters::ParameterBuilder;

/// Self-attention of several heads (Vaswani et al., NeurIPS 2017), with projections `qkv`, a [`Linear`] with bias
/// from `d_model` to queries, keys and values, `d_model` features each in this order, and `o`, one from `d_model` to
/// `d_model`. Head `h` takes the `h`-th run of `d_model / heads` features of each.
pub struct MultiHeadAttention {
    qkv: Linear,
    o: Linear,
    heads: usize,
    causal: bool,
}

impl MultiHeadAttention {
    /// With `causal`, a token attends to itself and those before it only.
    ///
    /// # Errors
    /// If `heads` does not divide `d_model`, or the names are taken in this scope.
    pub fn new(
        builder: &ParameterBuilder,
        d_model: usize,
        heads: usize,
        causal: bool,
    ) -> Result<MultiHeadAttention> {
        if heads == 0 || !d_model.is_multiple_of(heads) {
            let message = format!(
                "{heads} heads for d_model {d_model}; the number of heads must divide d_model without remainder"
            );
            return Err(Error::invalid("MultiHeadAttention", message));
        }
        Ok(MultiHeadAttention {
            qkv: Linear::new(&builder.scope("qkv"), d_model, 3 * d_model)?,
            o: Linear::new(&builder.scope("o"), d_model, d_model)?,
            heads,
            causal,
        })
    }

    /// `[batch, tokens, d_model]` to the same shape.
    ///
    /// # Errors
    /// If `x` has another rank, last size or dtype.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, None)
    }

    /// [`MultiHeadAttention::forward`] plus a residual of the same shape, added by the last projection.
    ///
    /// # Errors
    /// As for `forward`, and if the residual has another shape.
    pub fn forward_with(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let &[batch, tokens, d_model] = x.dims() else {
            let message = format!("the input has shape {}; it must be [batch, tokens, d_model]", x.shape());
            return Err(Error::invalid("MultiHeadAttention", message));
        };
        let qkv = self.qkv.forward(x)?.view([batch, tokens, 3, self.heads, d_model / self.heads])?;
        let y = qkv.scaled_dot_product_attention_qkvpacked(None, self.causal)?;
        self.o.forward_with(&y.view([batch, tokens, d_model])?, Activation::None, residual)
    }
}
