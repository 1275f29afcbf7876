//! PatchTST: Nie, Nguyen, Sinthong and Kalagnanam, "A Time Series is Worth 64 Words", ICLR 2023.

mod config;
mod dropout_rate;
mod embedding;
mod head;
pub mod hugging_face;
mod pretraining;
#[cfg(test)]
mod tests;

pub use crate::models::revin::RevinScale;
pub use config::{FfnActivation, NormPosition, PatchTstConfig, PatchesFrom, Pooling, Positions};
pub use dropout_rate::DropoutRate;
pub use pretraining::MaskedPatchTst;
pub use refrain_nn::{Mode, NormKind};

use crate::Result;
use crate::data::windows::WindowCovariates;
use crate::models::checks::check_covariates;
use crate::models::distribution::{Distribution, of_head};
use crate::models::revin::RevIn;
use crate::models::{Forecaster, ForecasterConfig, WindowShape};
use embedding::Embedding;
use head::Head;
use refrain::{DType, Device, Generator, Tensor};
use refrain_nn::{AttentionContext, ParameterBuilder, Parameters, TransformerEncoderLayer};

/// A forecaster that treats all channels alike. The context is cut into patches, a transformer encoder attends to all
/// patches of a channel, and a linear head maps its flattened output to the horizon.
///
/// Its settings include those of Hugging Face's PatchTST, whose checkpoints [`hugging_face`] reads and writes.
///
/// ```
/// use refrain::{Device, DType, Tensor};
/// use refrain_forecast::models::Forecaster;
/// use refrain_forecast::models::patchtst::{Mode, PatchTst, PatchTstConfig};
///
/// let config = PatchTstConfig { channels: 3, ..PatchTstConfig::small(24, 8, 4, 16, 2, 1, 32, 6) };
/// let model = PatchTst::new(config, DType::F32, &Device::cpu(), 42)?;
/// let x = Tensor::zeros([2, 3, 24], DType::F32, &Device::cpu())?;
/// assert_eq!(model.forward(&x, Mode::Eval)?.dims(), [2, 3, 6]);
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
pub struct PatchTst {
    config: PatchTstConfig,
    parameters: Parameters,
    layers: Layers,
    distribution: Option<Distribution>,
}

struct Layers {
    revin: Option<RevIn>,
    encoder: Encoder,
    head: Head,
}

/// Patches to tokens, and the layers in which they attend to each other.
struct Encoder {
    embedding: Embedding,
    layers: Vec<TransformerEncoderLayer>,
}

impl Encoder {
    fn declare(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Encoder> {
        let layer = |layer| {
            TransformerEncoderLayer::new(&builder.scope("layers").scope(layer), &config.encoder_layer())
        };
        let embedding = Embedding::new(builder, config)?;
        let layers = (0..config.layers).map(layer).collect::<refrain_nn::Result<_>>()?;
        Ok(Encoder { embedding, layers })
    }

    /// Makes the tensors and values that the builder does not make.
    fn build(&self, config: &PatchTstConfig, dtype: DType, device: &Device) -> Result<()> {
        self.embedding.build(config, dtype, device)
    }

    /// `[B, C, L]` to `[B C, N, P]`.
    fn patches(&self, x: &Tensor) -> Result<Tensor> {
        let &[batch, channels, context] = x.dims() else { return Ok(x.clone()) };
        self.embedding.patches(&x.reshape([batch * channels, context])?)
    }

    /// `[B C, N, P]` to `[B C, T, D]`: each channel in the same way.
    fn forward(&self, patches: &Tensor, channels: usize, mode: Mode<'_>) -> Result<Tensor> {
        let mut h = self.embedding.forward(patches, mode)?;
        let mut scores = None;
        for layer in &self.layers {
            let context = AttentionContext { scores: Some(&mut scores), ..AttentionContext::default() };
            h = layer.forward_channels(&h, channels, context, mode)?;
        }
        Ok(h)
    }
}

impl Layers {
    fn declare(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Layers> {
        let config = &config.with_past_as_channels();
        Ok(Layers {
            revin: config.revin(builder)?,
            encoder: Encoder::declare(builder, config)?,
            head: Head::new(&builder.scope("head"), config)?,
        })
    }
}

impl PatchTst {
    /// A model with random weights, which depend only on the seed.
    ///
    /// Linear layers start as in PyTorch, learned positions uniformly within 0.02 of 0, norms and RevIN as identity.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings, [`crate::Error::Engine`] if the device has not enough memory.
    pub fn new(config: PatchTstConfig, dtype: DType, device: &Device, seed: u64) -> Result<PatchTst> {
        config.validate()?;
        let builder = ParameterBuilder::new(device, dtype);
        let layers = Layers::declare(&builder, &config)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        layers.encoder.build(&config, dtype, device)?;
        Ok(PatchTst { config, parameters, layers, distribution: None })
    }

    /// [`Forecaster::forward`] of contexts in which some values were not observed: `observed` is 1 or 0 for each value of the
    /// contexts, in their dtype. The statistics of RevIN are those of the observed values; the others are inputs like any,
    /// so they must be finite.
    ///
    /// # Errors
    /// Those of [`Forecaster::forward`], and [`crate::Error::Engine`] if `observed` has another shape or dtype.
    pub fn forward_observed(&self, x: &Tensor, observed: Option<&Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let batch = self.window().batch(x)?;
        check_covariates(&WindowCovariates::default(), self.config.covariates(), batch, self.window())?;
        self.forward_channels(x, observed, mode)
    }

    /// All channels, past covariates included, to the forecast of each.
    fn forward_channels(&self, x: &Tensor, observed: Option<&Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let Some(revin) = &self.layers.revin else { return self.encode(x, mode) };
        let (x, scale) = revin.normalise(x, observed)?;
        revin.denormalise(&self.encode(&x, mode)?, &scale)
    }

    /// Passes each channel through the encoder in the same way.
    fn encode(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (batch, channels) = (x.dims()[0], x.dims()[1]);
        let Layers { encoder, head, .. } = &self.layers;
        let h = encoder.forward(&encoder.patches(x)?, channels, mode)?; // [R, T, D]
        // In mixed precision, the forecast becomes as precise again as what follows: the scale of the window, and the
        // loss.
        of_head(self.distribution, head.forward(&h, batch, mode)?.to_dtype(x.dtype())?)
    }

    /// The settings.
    pub fn config(&self) -> &PatchTstConfig {
        &self.config
    }
}

impl Forecaster for PatchTst {
    fn name(&self) -> &str {
        PatchTstConfig::about().title
    }

    fn window(&self) -> WindowShape {
        self.config.window()
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    fn set_distribution(&mut self, distribution: Option<Distribution>) -> Result<()> {
        self.distribution = distribution;
        Ok(())
    }

    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.forward_observed(x, None, mode)
    }

    fn forward_with(&self, x: &Tensor, covariates: &WindowCovariates, mode: Mode<'_>) -> Result<Tensor> {
        let batch = self.window().batch(x)?;
        check_covariates(covariates, self.config.covariates(), batch, self.window())?;
        let Some(past) = &covariates.past else { return self.forward_channels(x, None, mode) };
        let all = Tensor::concat(&[x, &past.to_dtype(x.dtype())?], 1)?;
        Ok(self.forward_channels(&all, None, mode)?.narrow(1, 0, self.config.channels)?)
    }
}
