//! Reversible instance normalisation (RevIN).

use crate::Result;
use refrain::{Tensor, no_grad};
use refrain_nn::{Init, Parameter, ParameterBuilder};
use serde::{Deserialize, Serialize};

/// What is added to the variance, as in the reference implementation.
const EPS: f64 = 1e-5;

/// The smallest mean absolute value, as in Hugging Face's PatchTST.
const LEAST: f64 = 1e-10;

/// What RevIN normalises a window by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RevinScale {
    /// Its mean and standard deviation.
    #[default]
    Std,
    /// Its mean absolute value. It is not shifted.
    Mean,
}

/// RevIN (Kim et al., "Reversible Instance Normalization for Accurate Time-Series Forecasting against Distribution
/// Shift", ICLR 2022). Each window of each channel is normalised by its own mean and standard deviation, or by its mean
/// absolute value. Then each channel may have an affine map with `weight` and `bias` `[C]`, which start at 1 and 0.
pub(super) struct RevIn {
    kind: RevinScale,
    affine: Option<Affine>,
}

struct Affine {
    weight: Parameter,
    bias: Parameter,
}

/// How a window was normalised, all `[B, C, 1]`.
pub(super) struct Scale {
    /// What was subtracted, if anything.
    shift: Option<Tensor>,
    divisor: Tensor,
}

impl RevIn {
    pub(super) fn new(
        builder: &ParameterBuilder,
        channels: usize,
        kind: RevinScale,
        affine: bool,
    ) -> Result<RevIn> {
        let map = || -> Result<Affine> {
            Ok(Affine {
                weight: builder.parameter("weight", channels, Init::Constant(1.0))?,
                bias: builder.parameter("bias", channels, Init::Constant(0.0))?,
            })
        };
        Ok(RevIn { kind, affine: affine.then(map).transpose()? })
    }

    /// `(x - mean) / sqrt(var + eps) * weight + bias` over the last axis of `[B, C, L]`, or `x / mean(|x|) * weight + bias`.
    /// For the backward pass, the statistics are constants. They are those of the values whose `observed` `[B, C, L]` is 1.
    pub(super) fn normalise(&self, x: &Tensor, observed: Option<&Tensor>) -> Result<(Tensor, Scale)> {
        let scale = no_grad(|| match (self.kind, observed) {
            (RevinScale::Std, None) => deviation(x),
            (RevinScale::Std, Some(observed)) => deviation_of_observed(x, observed),
            (RevinScale::Mean, None) => Ok(magnitude(x.abs()?.mean_keepdim(-1)?)?),
            (RevinScale::Mean, Some(observed)) => magnitude_of_observed(x, observed),
        })?;
        let shifted = scale.shift.as_ref().map(|shift| x.sub(shift)).transpose()?;
        let normal = shifted.as_ref().unwrap_or(x).div(&scale.divisor)?;
        let Some(affine) = &self.affine else { return Ok((normal, scale)) };
        let (weight, bias) = affine.by_channel()?;
        Ok((normal.mul(&weight)?.add(&bias)?, scale))
    }

    /// The inverse, for forecasts `[B, C, H]`.
    pub(super) fn denormalise(&self, y: &Tensor, scale: &Scale) -> Result<Tensor> {
        let mut y = y.clone();
        if let Some(affine) = &self.affine {
            let (weight, bias) = affine.by_channel()?;
            // Avoids a division by zero if a weight has become zero, as the reference implementation does.
            y = y.sub(&bias)?.div(&weight.add_scalar(EPS * EPS)?)?;
        }
        let y = y.mul(&scale.divisor)?;
        Ok(match &scale.shift {
            Some(shift) => y.add(shift)?,
            None => y,
        })
    }
}

impl Affine {
    /// Weight and bias as `[C, 1]`.
    fn by_channel(&self) -> Result<(Tensor, Tensor)> {
        Ok((self.weight.tensor()?.unsqueeze(1)?, self.bias.tensor()?.unsqueeze(1)?))
    }
}

fn deviation(x: &Tensor) -> Result<Scale> {
    let (mean, variance) = (x.mean_keepdim(-1)?, x.var_keepdim(-1, 0)?);
    Ok(Scale { shift: Some(mean), divisor: variance.add_scalar(EPS)?.sqrt()? })
}

fn deviation_of_observed(x: &Tensor, observed: &Tensor) -> Result<Scale> {
    let count = observed.sum_keepdim(-1)?.maximum_scalar(1.0)?;
    let mean = x.mul(observed)?.sum_keepdim(-1)?.div(&count)?;
    let variance = x.sub(&mean)?.mul(observed)?.square()?.sum_keepdim(-1)?.div(&count)?;
    Ok(Scale { shift: Some(mean), divisor: variance.add_scalar(EPS)?.sqrt()? })
}

fn magnitude(divisor: Tensor) -> Result<Scale> {
    Ok(Scale { shift: None, divisor: divisor.maximum_scalar(LEAST)? })
}

/// A window without an observed value takes the magnitude of its channel over the batch.
fn magnitude_of_observed(x: &Tensor, observed: &Tensor) -> Result<Scale> {
    let total = x.mul(observed)?.abs()?.sum_keepdim(-1)?;
    let count = observed.sum_keepdim(-1)?;
    let own = total.div(&count.maximum_scalar(1.0)?)?;
    let of_batch = total.sum_keepdim(0)?.div(&count.sum_keepdim(0)?.maximum_scalar(1.0)?)?;
    magnitude(count.gt_scalar(0.0)?.where_cond(&own, &of_batch)?)
}
