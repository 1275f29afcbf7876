//! Attention of several heads.

use refrain::{Activation, Tensor};

use super::Linear;
use crate::error::{Error, Result};
use crate::parameters::ParameterBuilder;

/// Self-attention of several heads (Vaswani et al., NeurIPS 2017), with projections `q`, `k`, `v` and `o`,
/// each a [`Linear`] with bias from `d_model` to `d_model`. Head `h` takes the `h`-th run of
/// `d_model / heads` features.
pub struct MultiHeadAttention {
    q: Linear,
    k: Linear,
    v: Linear,
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
        let projection = |name: &str| Linear::new(&builder.scope(name), d_model, d_model);
        Ok(MultiHeadAttention {
            q: projection("q")?,
            k: projection("k")?,
            v: projection("v")?,
            o: projection("o")?,
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
        let heads = |projection: &Linear| -> Result<Tensor> {
            let y = projection.forward(x)?;
            Ok(y.view([batch, tokens, self.heads, d_model / self.heads])?.transpose(1, 2)?)
        };
        let (q, k, v) = (heads(&self.q)?, heads(&self.k)?, heads(&self.v)?);
        let y = q.scaled_dot_product_attention(&k, &v, None, self.causal)?;
        let merged = y.transpose(1, 2)?.reshape([batch, tokens, d_model])?;
        self.o.forward_with(&merged, Activation::None, residual)
    }
}
