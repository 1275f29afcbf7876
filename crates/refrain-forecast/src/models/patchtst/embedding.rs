//! Turns rows of values into patches with positions.

use super::{Mode, PatchTstConfig, Positions};
use crate::{Error, Result};
use refrain::{DType, Device, Tensor};
use refrain_nn::{Dropout, Init, Linear, Parameter, ParameterBuilder};
use std::cell::OnceCell;

/// Cuts contexts into patches, maps each to `d_model` features and adds its position.
pub(super) struct Embedding {
    embed: Linear,
    place: PositionVectors,
    dropout: Dropout,
    patch: usize,
    stride: usize,
    end_padding: bool,
}

/// A position vector for each patch, `[N, D]`.
enum PositionVectors {
    Learned(Parameter),
    /// Set by [`Embedding::build`].
    Fixed(OnceCell<Tensor>),
}

impl Embedding {
    pub(super) fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Embedding> {
        let (patches, width) = (config.patches(), config.d_model);
        let embed = Linear::new(&builder.scope("embed"), config.patch, width)?;
        let place = match config.positions {
            Positions::Learned => {
                let spread = Init::Uniform { low: -0.02, high: 0.02 };
                PositionVectors::Learned(builder.parameter("pos", [patches, width], spread)?)
            }
            Positions::Sinusoidal => PositionVectors::Fixed(OnceCell::new()),
        };
        Ok(Embedding {
            embed,
            place,
            dropout: Dropout::new(config.dropout)?,
            patch: config.patch,
            stride: config.stride,
            end_padding: config.end_padding,
        })
    }

    /// Makes the tensors that the builder does not make.
    pub(super) fn build(&self, config: &PatchTstConfig, dtype: DType, device: &Device) -> Result<()> {
        if let PositionVectors::Fixed(place) = &self.place {
            let (patches, width) = (config.patches(), config.d_model);
            let waves = Tensor::from_slice(&sinusoids(patches, width), [patches, width], device)?;
            let _ = place.set(waves.to_dtype(dtype)?);
        }
        Ok(())
    }

    /// `[R, L]` to `[R, N, D]`.
    pub(super) fn forward(&self, rows: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let padded = if self.end_padding { self.pad(rows)? } else { rows.clone() };
        // Patches overlap; one copy of them serves the forward and the backward pass.
        let patches = padded.unfold(1, self.patch, self.stride)?.contiguous()?; // [R, N, P]
        let place = match &self.place {
            PositionVectors::Learned(place) => place.tensor()?,
            PositionVectors::Fixed(place) => place.get().ok_or(Error::Model {
                problem: "its positions have no memory yet".to_owned(),
                fix: "build the embedding first",
            })?,
        };
        let h = self.embed.forward(&patches)?;
        // In mixed precision the features are bf16, so convert the few positions.
        let h = h.add(&place.to_dtype(h.dtype())?)?;
        Ok(self.dropout.forward(&h, mode)?)
    }

    /// Appends the last value of each row `stride` times.
    fn pad(&self, rows: &Tensor) -> Result<Tensor> {
        let &[count, length] = rows.dims() else { return Ok(rows.clone()) };
        let last = rows.narrow(1, length - 1, 1)?.broadcast_to([count, self.stride])?;
        Ok(Tensor::concat(&[rows, &last], 1)?)
    }
}

/// The sines (even features) and cosines (odd features) of Vaswani et al., "Attention Is All You Need", 2017, section
/// 3.5; row-major `[positions, width]`.
fn sinusoids(places: usize, width: usize) -> Vec<f64> {
    let wave = |place: usize, feature: usize| {
        let exponent = (feature / 2 * 2) as f64 / width as f64;
        let angle = place as f64 / 10_000f64.powf(exponent);
        if feature.is_multiple_of(2) { angle.sin() } else { angle.cos() }
    };
    (0..places).flat_map(|place| (0..width).map(move |feature| wave(place, feature))).collect()
}

#[cfg(test)]
mod tests {
    use super::sinusoids;

    #[test]
    fn waves_of_the_paper() {
        let waves = sinusoids(3, 4);
        assert_eq!(waves[..4], [0.0, 1.0, 0.0, 1.0]);
        let expected = [2f64.sin(), 2f64.cos(), 0.02f64.sin(), 0.02f64.cos()];
        waves[8..].iter().zip(expected).for_each(|(wave, expected)| assert!((wave - expected).abs() < 1e-12));
    }
}
