//! PatchTST: Nie, Nguyen, Sinthong and Kalagnanam, "A Time Series is Worth 64 Words", ICLR 2023.

mod config;
mod dropout_rate;
mod embedding;
mod head;
pub mod hugging_face;
#[cfg(test)]
mod tests;

pub use crate::models::revin::RevinScale;
pub use config::{FfnActivation, NormPosition, PatchTstConfig, PatchesFrom, Pooling, Positions};
pub use dropout_rate::DropoutRate;
pub use refrain_nn::{Mode, NormKind};

use crate::Result;
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
    revin: Option<RevIn>,
    embedding: Embedding,
    layers: Vec<TransformerEncoderLayer>,
    head: Head,
}

/// The parts of a model that has no memory yet.
struct Layers {
    revin: Option<RevIn>,
    embedding: Embedding,
    layers: Vec<TransformerEncoderLayer>,
    head: Head,
}

impl Layers {
    fn declare(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Layers> {
        let revin =
            || RevIn::new(&builder.scope("revin"), config.channels, config.revin_scale, config.revin_affine);
        Ok(Layers {
            revin: config.revin.then(revin).transpose()?,
            embedding: Embedding::new(builder, config)?,
            layers: (0..config.layers)
                .map(|layer| {
                    let scope = builder.scope("layers").scope(layer);
                    TransformerEncoderLayer::new(&scope, &config.encoder_layer())
                })
                .collect::<refrain_nn::Result<_>>()?,
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
        let Layers { revin, embedding, layers, head } = Layers::declare(&builder, &config)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        embedding.build(&config, dtype, device)?;
        Ok(PatchTst { config, parameters, revin, embedding, layers, head })
    }

    /// [`Forecaster::forward`] of contexts in which some values were not observed: `observed` is 1 or 0 for each value of the
    /// contexts, in their dtype. The statistics of RevIN are those of the observed values; the others are inputs like any,
    /// so they must be finite.
    ///
    /// # Errors
    /// Those of [`Forecaster::forward`], and [`crate::Error::Engine`] if `observed` has another shape or dtype.
    pub fn forward_observed(&self, x: &Tensor, observed: Option<&Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let batch = self.window().batch(x)?;
        let Some(revin) = &self.revin else { return self.encode(x, batch, mode) };
        let (x, scale) = revin.normalise(x, observed)?;
        revin.denormalise(&self.encode(&x, batch, mode)?, &scale)
    }

    /// Passes each channel through the encoder in the same way.
    fn encode(&self, x: &Tensor, batch: usize, mode: Mode<'_>) -> Result<Tensor> {
        let rows = x.reshape([batch * self.config.channels, self.config.context])?; // [R, L]
        let mut h = self.embedding.forward(&rows, mode)?; // [R, T, D]
        let mut scores = None;
        for layer in &self.layers {
            let context = AttentionContext { scores: Some(&mut scores), ..AttentionContext::default() };
            h = layer.forward_channels(&h, self.config.channels, context, mode)?;
        }
        // In mixed precision, the forecast becomes as precise again as what follows: the scale of the window, and the
        // loss.
        Ok(self.head.forward(&h, batch, mode)?.to_dtype(x.dtype())?)
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

    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.forward_observed(x, None, mode)
    }
}
