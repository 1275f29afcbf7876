//! Cross-asset attention: each source is classified in the light of all the others.

mod config;
#[cfg(test)]
mod tests;

pub use config::{CLASSES, CrossAssetConfig};
pub use refrain_nn::Mode;

use crate::models::weights;
use crate::{Error, Result};
use refrain::{DType, Device, Generator, Tensor};
use refrain_nn::{
    Checkpoint, Init, LayerNorm, Linear, ModelSize, Parameter, ParameterBuilder, Parameters,
    TransformerEncoderLayer,
};

/// Added to the variance by the norms.
const EPS: f64 = 1e-5;

/// A classifier of sources that are observed at the same time. The features of each source are projected to the
/// width of the encoder by a map of its own, pre-norm layers attend among the sources, with normalised queries and
/// keys ([`refrain_nn::AttentionOptions::qk_norm`]) and tanh-GELU in the feed-forward network, and after a last norm a linear
/// head, shared by the sources, gives each a logit for up, down and flat.
///
/// ```
/// use refrain::{DType, Device, Tensor};
/// use refrain_forecast::models::cross_asset::{CrossAsset, CrossAssetConfig, Mode};
///
/// let config = CrossAssetConfig { sources: 3, features: 5, d_model: 16, ffn: 32, ..CrossAssetConfig::default() };
/// let model = CrossAsset::new(config, DType::F32, &Device::cpu(), 42)?;
/// let x = Tensor::zeros([2, 3, 5], DType::F32, &Device::cpu())?;
/// assert_eq!(model.forward(&x, Mode::Eval)?.dims(), [2, 3, 3]);
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
pub struct CrossAsset {
    config: CrossAssetConfig,
    parameters: Parameters,
    /// `embed.weight` `[S, F, D]` and `embed.bias` `[S, D]`: a projection a source.
    weight: Parameter,
    bias: Parameter,
    layers: Vec<TransformerEncoderLayer>,
    norm: LayerNorm,
    head: Linear,
}

/// Logits in which a loss can be summed: halves become f32.
fn summable(logits: Tensor) -> Result<Tensor> {
    Ok(match logits.dtype() {
        DType::F16 | DType::BF16 => logits.to_dtype(DType::F32)?,
        _ => logits,
    })
}

/// What a model is made of, without memory yet.
struct Layers {
    weight: Parameter,
    bias: Parameter,
    layers: Vec<TransformerEncoderLayer>,
    norm: LayerNorm,
    head: Linear,
}

impl Layers {
    fn declare(builder: &ParameterBuilder, config: &CrossAssetConfig) -> Result<Layers> {
        let CrossAssetConfig { sources, features, d_model, .. } = *config;
        let embed = builder.scope("embed");
        let spread = Init::Normal { mean: 0.0, std: (features as f64).powf(-0.5) };
        Ok(Layers {
            weight: embed.parameter("weight", [sources, features, d_model], spread)?,
            bias: embed.parameter("bias", [sources, d_model], Init::Constant(0.0))?,
            layers: (0..config.layers)
                .map(|layer| {
                    let scope = builder.scope("layers").scope(layer);
                    TransformerEncoderLayer::new(&scope, &config.encoder_layer())
                })
                .collect::<refrain_nn::Result<_>>()?,
            norm: LayerNorm::new(&builder.scope("norm"), d_model, EPS)?,
            head: Linear::new(&builder.scope("head"), d_model, CLASSES)?,
        })
    }
}

impl CrossAssetConfig {
    /// The size of the model, told without making it.
    ///
    /// # Errors
    /// [`Error::Model`] for settings that make no model.
    pub fn size(&self) -> Result<ModelSize> {
        self.validate()?;
        let of = |layers| -> Result<ModelSize> {
            let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
            Layers::declare(&builder, &CrossAssetConfig { layers, ..self.clone() })?;
            Ok(builder.size())
        };
        Ok(ModelSize::with_layers(self.layers, of(1)?, of(2)?))
    }
}

impl CrossAsset {
    /// A model with random weights, which follow from the seed.
    ///
    /// The projections begin normally distributed with deviation `1 / sqrt(features)` and without bias, linear
    /// layers as PyTorch's, norms as identity.
    ///
    /// # Errors
    /// [`Error::Model`] for settings that make no model, [`Error::Engine`] if the device has no memory for it.
    pub fn new(config: CrossAssetConfig, dtype: DType, device: &Device, seed: u64) -> Result<CrossAsset> {
        config.validate()?;
        let builder = ParameterBuilder::new(device, dtype);
        let Layers { weight, bias, layers, norm, head } = Layers::declare(&builder, &config)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        Ok(CrossAsset { config, parameters, weight, bias, layers, norm, head })
    }

    /// A model with the weights of a checkpoint.
    ///
    /// # Errors
    /// [`Error::Nn`] if the checkpoint is of a model of other settings, and those of [`CrossAsset::new`].
    pub fn load(
        checkpoint: &Checkpoint,
        config: CrossAssetConfig,
        dtype: DType,
        device: &Device,
    ) -> Result<CrossAsset> {
        checkpoint.check_size(config.size()?)?;
        let model = CrossAsset::new(config, dtype, device, 0)?;
        checkpoint.load(&model.parameters)?;
        Ok(model)
    }

    /// Features `[B, S, F]` to logits `[B, S, 3]` of up, down and flat, in the dtype of the features, whatever dtype
    /// [`refrain::with_precision`] has what lies between.
    ///
    /// # Errors
    /// [`Error::Model`] if the features are of other sizes than the model's, [`Error::Engine`] if they are of another
    /// dtype or device.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        Ok(self.head_of(x, mode)?.to_dtype(x.dtype())?)
    }

    /// Logits in the dtype that the head has them in.
    fn head_of(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (sources, features) = (self.config.sources, self.config.features);
        if x.rank() != 3 || x.dims()[1..] != [sources, features] {
            let problem =
                format!("features of shape {} for a model of {sources} sources of {features}", x.shape());
            return Err(Error::Model { problem, fix: "pass [batch, sources, features]" });
        }
        // One product a source; the sum with the bias brings the sources of a sample side by side again.
        let projected = x.transpose(0, 1)?.matmul(self.weight.tensor()?)?.transpose(0, 1)?; // [B, S, D]
        let bias = self.bias.tensor()?.to_dtype(projected.dtype())?;
        let mut h = projected.add(&bias)?;
        for layer in &self.layers {
            h = layer.forward(&h, mode)?;
        }
        Ok(self.head.forward(&self.norm.forward(&h)?)?)
    }

    /// The mean cross entropy, `[]`, f32 at least, of the logits of features `[B, S, F]` with classes i64 or i32 `[B, S]`: 0 is
    /// up, 1 down, 2 flat.
    ///
    /// # Errors
    /// Those of [`CrossAsset::forward`], and [`Error::Engine`] if the classes are of another shape or not of these.
    pub fn loss(&self, x: &Tensor, classes: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let logits = self.head_of(x, mode)?;
        // In mixed precision the loss is f32 whatever the logits are; else it has their dtype.
        let logits = if logits.dtype() == x.dtype() { summable(logits)? } else { logits };
        Ok(logits.cross_entropy(classes)?)
    }

    /// Logits of [`CrossAsset::forward`], f32 at least.
    pub(crate) fn logits(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        summable(self.forward(x, mode)?)
    }

    /// The settings.
    pub fn config(&self) -> &CrossAssetConfig {
        &self.config
    }

    /// The parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Number of trained numbers.
    pub fn parameter_count(&self) -> usize {
        self.parameters.count()
    }

    /// SHA-256 over names and f32 values of all parameters: two models that agree in it classify alike, bit for bit.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device cannot be read.
    pub fn weights_sha256(&self) -> Result<String> {
        weights::sha256(&self.parameters)
    }
}
