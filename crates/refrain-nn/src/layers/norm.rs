//! Normalisation layers.

use refrain::Tensor;

use super::Mode;
use crate::error::Result;
use crate::init::Init;
use crate::parameters::{Parameter, ParameterBuilder};

/// Layer normalisation over the last dimension (Ba et al., 2016). The parameters `weight` and `bias` have the size of
/// that dimension and start at 1 and 0.
pub struct LayerNorm {
    weight: Parameter,
    bias: Parameter,
    eps: f64,
}

impl LayerNorm {
    /// For a last dimension of `size`; `eps` (PyTorch: 1e-5) is added to the variance.
    ///
    /// # Errors
    /// If the names are used already in this scope.
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
    /// If the last size differs from that of the parameters, or the dtypes do not match (see [`Tensor::layer_norm`]).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.layer_norm(self.weight.tensor()?, self.bias.tensor()?, self.eps)?)
    }
}

/// Batch normalisation of the channels along one axis (Ioffe and Szegedy, ICML 2015). The parameters `weight` and
/// `bias` start at 1 and 0, the buffers `running_mean` and `running_var` at 0 and 1.
pub struct BatchNorm {
    weight: Parameter,
    bias: Parameter,
    running_mean: Parameter,
    running_var: Parameter,
    axis: isize,
    eps: f64,
    momentum: f64,
}

impl BatchNorm {
    /// For `channels` channels along `axis`. A negative axis counts from the last one; in PyTorch the axis is 1.
    /// `momentum` (PyTorch: 0.1) is the weight of a new statistic in the running one. `eps` (PyTorch: 1e-5) is added
    /// to the variance.
    ///
    /// # Errors
    /// If the names are used already in this scope.
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

    /// Any shape with `channels` channels along the axis. Training updates the running statistics.
    ///
    /// # Errors
    /// If the number of channels differs from that of the parameters, or the dtypes do not match (see
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

/// Root-mean-square normalisation over the last dimension (Zhang and Sennrich, NeurIPS 2019). The parameter `weight`
/// has the size of that dimension and starts at 1.
pub struct RmsNorm {
    weight: Parameter,
    eps: f64,
}

impl RmsNorm {
    /// For a last dimension of `size`; `eps` is added to the mean of the squares.
    ///
    /// # Errors
    /// If the name is used already in this scope.
    pub fn new(builder: &ParameterBuilder, size: usize, eps: f64) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: builder.parameter("weight", size, Init::Constant(1.0))?, eps })
    }

    /// `[.., size]` to the same shape.
    ///
    /// # Errors
    /// As for [`LayerNorm::forward`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.rms_norm(self.weight.tensor()?, self.eps)?)
    }
}

/// The kind of normalisation in a transformer layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Over the features of each token: [`LayerNorm`].
    #[default]
    Layer,
    /// Over batch and tokens for each feature, as in PatchTST: [`BatchNorm`] with momentum 0.1.
    Batch,
    /// By the root mean square of the features of each token: [`RmsNorm`].
    Rms,
}

/// The normalisation of tokens `[.., d_model]`.
pub(super) enum Norm {
    Layer(LayerNorm),
    Batch(BatchNorm),
    Rms(RmsNorm),
}

impl Norm {
    pub(super) fn new(builder: &ParameterBuilder, kind: NormKind, d_model: usize, eps: f64) -> Result<Norm> {
        const MOMENTUM: f64 = 0.1;
        Ok(match kind {
            NormKind::Layer => Norm::Layer(LayerNorm::new(builder, d_model, eps)?),
            NormKind::Batch => Norm::Batch(BatchNorm::new(builder, d_model, -1, eps, MOMENTUM)?),
            NormKind::Rms => Norm::Rms(RmsNorm::new(builder, d_model, eps)?),
        })
    }

    pub(super) fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::Batch(norm) => norm.forward(x, mode),
            Norm::Rms(norm) => norm.forward(x),
        }
    }
}
