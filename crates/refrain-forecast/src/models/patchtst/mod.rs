//! PatchTST: Nie, Nguyen, Sinthong and Kalagnanam, "A Time Series is Worth 64 Words", ICLR 2023.

pub(crate) mod config;
mod embedding;
mod head;
mod revin;
#[cfg(test)]
mod tests;

pub use config::{FfnActivation, NormPosition, PatchTstConfig, Positions};
pub use refrain_nn::{Mode, NormKind};

use crate::models::weights;
use crate::{Error, Result};
use embedding::Embedding;
use head::Head;
use refrain::{DType, Device, Generator, Tensor};
use refrain_nn::{Checkpoint, ModelSize, ParameterBuilder, Parameters, TransformerEncoderLayer};
use revin::RevIn;

/// A forecaster that treats every channel alike: the context is cut into patches, an encoder of transformer layers
/// looks at all patches of a channel, and a linear head maps its flattened output to the horizon.
///
/// ```
/// use refrain::{Device, DType, Tensor};
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

/// What a model is made of, without memory yet.
struct Layers {
    revin: Option<RevIn>,
    embedding: Embedding,
    layers: Vec<TransformerEncoderLayer>,
    head: Head,
}

impl Layers {
    fn declare(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Layers> {
        Ok(Layers {
            revin: config.revin.then(|| RevIn::new(&builder.scope("revin"), config)).transpose()?,
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

impl PatchTstConfig {
    /// The size of the model, told without making it.
    ///
    /// # Errors
    /// [`Error::Model`] for settings that make no model.
    pub fn size(&self) -> Result<ModelSize> {
        self.validate()?;
        let of = |layers| -> Result<ModelSize> {
            let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
            Layers::declare(&builder, &PatchTstConfig { layers, ..self.clone() })?;
            Ok(builder.size())
        };
        Ok(ModelSize::with_layers(self.layers, of(1)?, of(2)?))
    }
}

impl PatchTst {
    /// A model with random weights, which follow from the seed.
    ///
    /// Linear layers begin as PyTorch's, learned positions uniform within 0.02 of 0, norms and RevIN as identity.
    ///
    /// # Errors
    /// [`Error::Model`] for settings that make no model, [`Error::Engine`] if the device has no memory for it.
    pub fn new(config: PatchTstConfig, dtype: DType, device: &Device, seed: u64) -> Result<PatchTst> {
        config.validate()?;
        let builder = ParameterBuilder::new(device, dtype);
        let Layers { revin, embedding, layers, head } = Layers::declare(&builder, &config)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        embedding.build(&config, dtype, device)?;
        Ok(PatchTst { config, parameters, revin, embedding, layers, head })
    }

    /// A model with the weights of a checkpoint.
    ///
    /// # Errors
    /// [`Error::Nn`] if the checkpoint is of a model of other settings, and those of [`PatchTst::new`].
    pub fn load(
        checkpoint: &Checkpoint,
        config: PatchTstConfig,
        dtype: DType,
        device: &Device,
    ) -> Result<PatchTst> {
        checkpoint.check_size(config.size()?)?;
        let model = PatchTst::new(config, dtype, device, 0)?;
        checkpoint.load(&model.parameters)?;
        Ok(model)
    }

    /// Contexts `[B, C, context]` to forecasts `[B, C, horizon]`, in the units and the dtype of the contexts. Under
    /// [`Precision::Bf16`](refrain::Precision::Bf16) what lies between is bf16, from the embedding to the head.
    ///
    /// # Errors
    /// [`Error::Engine`] if the shape, dtype or device of the contexts is another than the model's.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (channels, context) = (self.config.channels, self.config.context);
        let &[batch, c, l] = x.dims() else { return Err(self.misfit(x)) };
        if (c, l) != (channels, context) {
            return Err(self.misfit(x));
        }
        let Some(revin) = &self.revin else { return self.encode(x, batch, mode) };
        let (x, scale) = revin.normalise(x)?;
        revin.denormalise(&self.encode(&x, batch, mode)?, &scale)
    }

    /// The way of a channel through the encoder, the same for all.
    fn encode(&self, x: &Tensor, batch: usize, mode: Mode<'_>) -> Result<Tensor> {
        let rows = x.reshape([batch * self.config.channels, self.config.context])?; // [R, L]
        let mut h = self.embedding.forward(&rows, mode)?; // [R, N, D]
        let mut scores = None;
        for layer in &self.layers {
            h = layer.forward_with_scores(&h, &mut scores, mode)?;
        }
        // In mixed precision the forecast is as exact again as what follows: the window's scale, and the loss.
        Ok(self.head.forward(&h, batch, mode)?.to_dtype(x.dtype())?)
    }

    fn misfit(&self, x: &Tensor) -> Error {
        Error::Model {
            problem: format!(
                "contexts of shape {} for a model of {} channels and a context of {}",
                x.shape(),
                self.config.channels,
                self.config.context
            ),
            fix: "pass [batch, channels, context]",
        }
    }

    /// The settings.
    pub fn config(&self) -> &PatchTstConfig {
        &self.config
    }

    /// The parameters and running statistics.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Number of trained numbers.
    pub fn parameter_count(&self) -> usize {
        self.parameters.count()
    }

    /// SHA-256 over names and f32 values of all parameters and running statistics: two models that agree in it
    /// forecast alike, bit for bit.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device cannot be read.
    pub fn weights_sha256(&self) -> Result<String> {
        weights::sha256(&self.parameters)
    }
}
