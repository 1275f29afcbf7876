//! Normalisation.

use refrain::Tensor;

use super::Mode;
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
    /// If the last size is another than that of the parameters, or the dtypes do not go together (see
    /// [`Tensor::layer_norm`]).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.layer_norm(self.weight.tensor()?, self.bias.tensor()?, self.eps)?)
    }
}

/// Batch normalisation of the channels along one axis (Ioffe and Szegedy, ICML 2015), with parameters
/// `weight` and `bias`, begun as 1 and 0, and buffers `running_mean` and `running_var`, begun as 0 and 1.
pub struct BatchNorm {
    weight: Declared,
    bias: Declared,
    running_mean: Declared,
    running_var: Declared,
    axis: isize,
    eps: f64,
    momentum: f64,
}

impl BatchNorm {
    /// For `channels` channels along `axis` (negative ones count from the last; PyTorch's layers have 1).
    /// In training a new statistic has the weight `momentum` (PyTorch: 0.1) in the running one; `eps`
    /// (PyTorch: 1e-5) is added to the variance.
    ///
    /// # Errors
    /// If the names are taken in this scope.
    pub fn new(
        builder: &ParameterBuilder,
        channels: usize,
        axis: isize,
        eps: f64,
        momentum: f64,
    ) -> Result<BatchNorm> {
        Ok(BatchNorm {
            weight: builder.parameter("weight", channels, Init::Constant(1.0))?,
            bias: builder.parameter("bias", channels, Init::Constant(0.0))?,
            running_mean: builder.buffer("running_mean", channels, Init::Constant(0.0))?,
            running_var: builder.buffer("running_var", channels, Init::Constant(1.0))?,
            axis,
            eps,
            momentum,
        })
    }

    /// Any shape with `channels` channels along the axis. In training the running statistics move.
    ///
    /// # Errors
    /// If the number of channels is another than that of the parameters, or the dtypes do not go together (see
    /// [`Tensor::batch_norm`]).
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        Ok(x.batch_norm(
            self.weight.tensor()?,
            self.bias.tensor()?,
            self.running_mean.tensor()?,
            self.running_var.tensor()?,
            self.axis,
            mode.is_training(),
            self.momentum,
            self.eps,
        )?)
    }
}
