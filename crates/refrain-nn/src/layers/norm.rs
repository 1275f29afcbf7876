//! Normalisation.

use refrain::Tensor;

use crate::error::Result;
use crate::init::Init;
use crate::parameters::{Declared, ParameterBuilder};

/// Layer normalisation over the last dimension (Ba et al., 2016), with parameters `weight` and `bias` of its
/// size, begun as 1 and 0.
pub struct LayerNorm {
    weight: Declared,
    bias: Declared,
    eps: f64,
}

impl LayerNorm {
    /// For a last dimension of `size`; `eps` (PyTorch: 1e-5) is added to the variance.
    ///
    /// # Errors
    /// If the names are taken in this scope.
    pub fn new(builder: &ParameterBuilder, size: usize, eps: f64) -> Result<LayerNorm> {
        Ok(LayerNorm {
            weight: builder.parameter("weight", size, Init::Constant(1.0))?,
            bias: builder.parameter("bias", size, Init::Constant(0.0))?,
            eps,
        })
    }

    /// `[.., size]` to the same shape.
    ///
    /// # Errors
    /// If the last size or the dtype is another than that of the parameters.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.layer_norm(self.weight.tensor()?, self.bias.tensor()?, self.eps)?)
    }
}
