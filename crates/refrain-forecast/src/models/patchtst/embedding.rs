//! Turns rows of values into patches with positions.

use super::{Mode, PatchTstConfig, Pooling, Positions};
use crate::models::channel_linear::ChannelLinear;
use crate::{Error, Result};
use refrain::{DType, Device, Tensor, no_grad};
use refrain_nn::{Dropout, Init, Parameter, ParameterBuilder};
use std::sync::OnceLock;

/// Cuts contexts into patches, maps each to `d_model` features and adds its position.
pub(super) struct Embedding {
    embed: ChannelLinear,
    place: PositionVectors,
    /// The token of [`Pooling::Cls`], `[D]`.
    cls: Option<Parameter>,
    dropout: Dropout,
    first_row: usize,
    patch: usize,
    stride: usize,
    end_padding: bool,
}

/// A position vector for each token, `[T, D]`.
enum PositionVectors {
    Learned(Parameter),
    /// Not trained, but kept with the weights. Set by [`Embedding::build`].
    Stored(Parameter),
    /// Set by [`Embedding::build`].
    Fixed(OnceLock<Tensor>),
}

impl Embedding {
    pub(super) fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Embedding> {
        let (tokens, width) = (config.tokens(), config.d_model);
        let sizes = [config.channels, config.patch, width];
        let embed = ChannelLinear::new(&builder.scope("embed"), sizes, config.individual_embedding)?;
        let place = match config.positions {
            Positions::Learned => {
                let spread = Init::Uniform { low: -0.02, high: 0.02 };
                PositionVectors::Learned(builder.parameter("pos", [tokens, width], spread)?)
            }
            Positions::Stored => {
                PositionVectors::Stored(builder.buffer("pos", [tokens, width], Init::Constant(0.0))?)
            }
            Positions::Sinusoidal => PositionVectors::Fixed(OnceLock::new()),
        };
        let cls = || builder.parameter("cls", width, Init::Normal { mean: 0.0, std: 0.02 });
        let cls = (config.pooling == Pooling::Cls).then(cls).transpose()?;
        Ok(Embedding {
            embed,
            place,
            cls,
            dropout: Dropout::new(config.positional_dropout.or(config.dropout))?,
            first_row: config.first_row(),
            patch: config.patch,
            stride: config.stride,
            end_padding: config.end_padding,
        })
    }

    /// Makes the tensors and values that the builder does not make.
    pub(super) fn build(&self, config: &PatchTstConfig, dtype: DType, device: &Device) -> Result<()> {
        let (tokens, width) = (config.tokens(), config.d_model);
        let tensor = |waves: Vec<f64>| Tensor::from_slice(&waves, [tokens, width], device)?.to_dtype(dtype);
        match &self.place {
            PositionVectors::Learned(_) => {}
            PositionVectors::Stored(place) => {
                let waves = tensor(centred(sinusoids(tokens, width)))?;
                no_grad(|| place.tensor()?.copy_from(&waves).map_err(Error::from))?;
            }
            PositionVectors::Fixed(place) => {
                let _ = place.set(tensor(sinusoids(tokens, width))?);
            }
        }
        Ok(())
    }

    /// The patches `[R, N, P]` of `[R, L]`, the channels of a window one after another.
    pub(super) fn patches(&self, rows: &Tensor) -> Result<Tensor> {
        let mut rows = rows.clone();
        if self.first_row > 0 {
            rows = rows.narrow(1, self.first_row, rows.dims()[1] - self.first_row)?;
        }
        if self.end_padding {
            rows = self.pad(&rows)?;
        }
        // Patches overlap; one copy of them serves the forward and the backward pass.
        Ok(rows.unfold(1, self.patch, self.stride)?.contiguous()?)
    }

    /// Patches `[R, N, P]` to tokens `[R, T, D]`.
    pub(super) fn forward(&self, patches: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let place = match &self.place {
            PositionVectors::Learned(place) | PositionVectors::Stored(place) => place.tensor()?,
            PositionVectors::Fixed(place) => place.get().ok_or(Error::Model {
                problem: "its positions have no memory yet".to_owned(),
                fix: "build the embedding first",
            })?,
        };
        let h = self.embed.forward_rows(patches)?;
        // In mixed precision the features are bf16, so convert the few positions.
        let place = place.to_dtype(h.dtype())?;
        let Some(cls) = &self.cls else { return Ok(self.dropout.forward(&h.add(&place)?, mode)?) };
        let &[count, patches, width] = h.dims() else { return Ok(h) };
        let h = self.dropout.forward(&h.add(&place.narrow(0, 1, patches)?)?, mode)?;
        let cls = place.narrow(0, 0, 1)?.add(&cls.tensor()?.to_dtype(h.dtype())?)?;
        Ok(Tensor::concat(&[&cls.broadcast_to([count, 1, width])?, &h], 1)?)
    }

    /// Appends the last value of each row `stride` times.
    fn pad(&self, rows: &Tensor) -> Result<Tensor> {
        let &[count, length] = rows.dims() else { return Ok(rows.clone()) };
        let last = rows.narrow(1, length - 1, 1)?.broadcast_to([count, self.stride])?;
        Ok(Tensor::concat(&[rows, &last], 1)?)
    }
}

/// Shifts and scales values to mean 0 and standard deviation (by n - 1) 0.1.
fn centred(mut values: Vec<f64>) -> Vec<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    let deviation = (squares / (count - 1.0)).sqrt();
    // Constant values (a single position of width 2) would be divided by 0.
    let scale = if deviation > 0.0 { 0.1 / deviation } else { 0.0 };
    values.iter_mut().for_each(|value| *value = (*value - mean) * scale);
    values
}

/// The sines (even features) and cosines (odd features) of Vaswani et al., "Attention Is All You Need", 2017, section
/// 3.5; row-major `[positions, width]`.
pub(super) fn sinusoids(places: usize, width: usize) -> Vec<f64> {
    let wave = |place: usize, feature: usize| {
        let exponent = (feature / 2 * 2) as f64 / width as f64;
        let angle = place as f64 / 10_000f64.powf(exponent);
        if feature.is_multiple_of(2) { angle.sin() } else { angle.cos() }
    };
    (0..places).flat_map(|place| (0..width).map(move |feature| wave(place, feature))).collect()
}

#[cfg(test)]
mod tests {
    use super::{centred, sinusoids};

    #[test]
    fn centred_waves_have_mean_0_and_deviation_one_tenth() {
        let waves = centred(sinusoids(7, 6));
        let mean = waves.iter().sum::<f64>() / 42.0;
        let variance = waves.iter().map(|wave| (wave - mean) * (wave - mean)).sum::<f64>() / 41.0;
        assert!(mean.abs() < 1e-15 && (variance - 0.01).abs() < 1e-15, "{mean} {variance}");
        assert_eq!(centred(vec![1.0, 1.0]), [0.0, 0.0]);
    }

    #[test]
    fn waves_of_the_paper() {
        let waves = sinusoids(3, 4);
        assert_eq!(waves[..4], [0.0, 1.0, 0.0, 1.0]);
        let expected = [2f64.sin(), 2f64.cos(), 0.02f64.sin(), 0.02f64.cos()];
        waves[8..].iter().zip(expected).for_each(|(wave, expected)| assert!((wave - expected).abs() < 1e-12));
    }
}
