//! Reversible instance normalisation (RevIN).

use super::PatchTstConfig;
use crate::Result;
use refrain::{Tensor, no_grad};
use refrain_nn::{Init, Parameter, ParameterBuilder};

/// What is added to the variance, as in the reference implementation.
const EPS: f64 = 1e-5;

/// RevIN (Kim et al., "Reversible Instance Normalization for Accurate Time-Series Forecasting against Distribution
/// Shift", ICLR 2022). Each window of each channel is normalised by its own mean and standard deviation. Then each
/// channel has an affine map with `weight` and `bias` `[C]`, which start at 1 and 0.
pub(super) struct RevIn {
    weight: Parameter,
    bias: Parameter,
}

/// The mean and deviation of a window, both `[B, C, 1]`.
pub(super) struct Scale {
    mean: Tensor,
    std: Tensor,
}

impl RevIn {
    pub(super) fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<RevIn> {
        Ok(RevIn {
            weight: builder.parameter("weight", config.channels, Init::Constant(1.0))?,
            bias: builder.parameter("bias", config.channels, Init::Constant(0.0))?,
        })
    }

    /// `(x - mean) / sqrt(var + eps) * weight + bias` over the last axis of `[B, C, L]`. For the backward pass, the
    /// statistics are constants.
    pub(super) fn normalise(&self, x: &Tensor) -> Result<(Tensor, Scale)> {
        let scale = no_grad(|| -> Result<Scale> {
            let mean = x.mean_keepdim(-1)?;
            let variance = x.sub(&mean)?.square()?.mean_keepdim(-1)?;
            Ok(Scale { mean, std: variance.add_scalar(EPS)?.sqrt()? })
        })?;
        let normal = x.sub(&scale.mean)?.div(&scale.std)?;
        let (weight, bias) = self.affine()?;
        Ok((normal.mul(&weight)?.add(&bias)?, scale))
    }

    /// The inverse, for forecasts `[B, C, H]`.
    pub(super) fn denormalise(&self, y: &Tensor, scale: &Scale) -> Result<Tensor> {
        let (weight, bias) = self.affine()?;
        // Avoids a division by zero if a weight has become zero, as the reference implementation does.
        let y = y.sub(&bias)?.div(&weight.add_scalar(EPS * EPS)?)?;
        Ok(y.mul(&scale.std)?.add(&scale.mean)?)
    }

    /// Weight and bias as `[C, 1]`.
    fn affine(&self) -> Result<(Tensor, Tensor)> {
        Ok((self.weight.tensor()?.unsqueeze(1)?, self.bias.tensor()?.unsqueeze(1)?))
    }
}
