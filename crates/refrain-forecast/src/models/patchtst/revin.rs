//! Reversible instance normalisation.

use super::PatchTstConfig;
use crate::Result;
use refrain::{Tensor, no_grad};
use refrain_nn::{Declared, Init, ParameterBuilder};

/// Added to the variance, as in the reference implementation.
const EPS: f64 = 1e-5;

/// RevIN (Kim et al., "Reversible Instance Normalization for Accurate Time-Series Forecasting against Distribution
/// Shift", ICLR 2022): every window of every channel by its own mean and standard deviation, then an affine map a
/// channel, `weight` and `bias` `[C]`, begun as 1 and 0.
pub(super) struct RevIn {
    weight: Declared,
    bias: Declared,
}

/// What a window was normalised by, both `[B, C, 1]`.
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

    /// `(x - mean) / sqrt(var + eps) * weight + bias` over the last axis of `[B, C, L]`; the statistics are
    /// constants for the backward pass.
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

    /// The way back, of forecasts `[B, C, H]`.
    pub(super) fn denormalise(&self, y: &Tensor, scale: &Scale) -> Result<Tensor> {
        let (weight, bias) = self.affine()?;
        // A weight that has become zero would divide by zero; the reference implementation guards so.
        let y = y.sub(&bias)?.div(&weight.add_scalar(EPS * EPS)?)?;
        Ok(y.mul(&scale.std)?.add(&scale.mean)?)
    }

    /// Weight and bias as `[C, 1]`.
    fn affine(&self) -> Result<(Tensor, Tensor)> {
        Ok((self.weight.tensor()?.unsqueeze(1)?, self.bias.tensor()?.unsqueeze(1)?))
    }
}
