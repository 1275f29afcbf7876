//! Cross-asset attention: classifies each source, and looks at all others to do so.

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

/// What the norms add to the variance.
const EPS: f64 = 1e-5;

/// A classifier of sources that are observed at the same time. Each source has its own projection of its features to
/// the width of the encoder. Then pre-norm layers attend across the sources, with normalised queries and keys
/// ([`refrain_nn::AttentionOptions::qk_norm`]) and tanh-GELU in the feed-forward network. After a last norm, a linear
/// head that all sources share gives each source a logit for up, down and flat.
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
    /// `embed.weight` `[S, F, D]` and `embed.bias` `[S, D]`: one projection per source.
    weight: Parameter,
    bias: Parameter,
    layers: Vec<TransformerEncoderLayer>,
    norm: LayerNorm,
    head: Linear,
}

/// Converts f16 and bf16 logits to f32, in which a loss can be summed.
fn summable(logits: Tensor) -> Result<Tensor> {
    Ok(match logits.dtype() {
        DType::F16 | DType::BF16 => logits.to_dtype(DType::F32)?,
        _ => logits,
    })
}

/// The parts of a model that has no memory yet.
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
    /// The size of the model, computed without allocating it.
    ///
    /// # Errors
    /// [`Error::Model`] for invalid settings.
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
    /// A model with random weights, which depend only on the seed.
    ///
    /// The projections start normally distributed with standard deviation `1 / sqrt(features)` and zero bias. Linear
    /// layers start as in PyTorch, norms as identity.
    ///
    /// # Errors
    /// [`Error::Model`] for invalid settings, [`Error::Engine`] if the device has not enough memory.
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
    /// [`Error::Nn`] if the checkpoint belongs to a model with other settings, and the errors of [`CrossAsset::new`].
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

    /// Maps features `[B, S, F]` to logits `[B, S, 3]` of up, down and flat. The logits have the dtype of the
    /// features, whatever precision [`refrain::with_precision`] sets for the layers between.
    ///
    /// # Errors
    /// [`Error::Model`] if the features have other sizes than the model, [`Error::Engine`] if they have another dtype
    /// or device.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        Ok(self.head_of(x, mode)?.to_dtype(x.dtype())?)
    }

    /// The logits in the dtype of the head's result.
    fn head_of(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let (sources, features) = (self.config.sources, self.config.features);
        if x.rank() != 3 || x.dims()[1..] != [sources, features] {
            let problem = format!(
                "the features have shape {}, but the model has {sources} sources of {features} features",
                x.shape()
            );
            return Err(Error::Model { problem, fix: "pass [batch, sources, features]" });
        }
        // One product per source. The sum with the bias makes the sources of a sample adjacent again.
        let projected = x.transpose(0, 1)?.matmul(self.weight.tensor()?)?.transpose(0, 1)?; // [B, S, D]
        let bias = self.bias.tensor()?.to_dtype(projected.dtype())?;
        let mut h = projected.add(&bias)?;
        for layer in &self.layers {
            h = layer.forward(&h, mode)?;
        }
        Ok(self.head.forward(&self.norm.forward(&h)?)?)
    }

    /// The mean cross entropy, a scalar of at least f32, of the logits of features `[B, S, F]` with classes (i64 or
    /// i32) `[B, S]`: 0 is up, 1 down, 2 flat.
    ///
    /// # Errors
    /// Those of [`CrossAsset::forward`], and [`Error::Engine`] if the classes have another shape or other values.
    pub fn loss(&self, x: &Tensor, classes: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let logits = self.head_of(x, mode)?;
        // In mixed precision, the loss is f32 for logits of any dtype; otherwise it has the dtype of the logits.
        let logits = if logits.dtype() == x.dtype() { summable(logits)? } else { logits };
        Ok(logits.cross_entropy(classes)?)
    }

    /// The logits of [`CrossAsset::forward`], at least f32.
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

    /// The same, to change their groups.
    pub fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    /// The number of trained values.
    pub fn parameter_count(&self) -> usize {
        self.parameters.count()
    }

    /// SHA-256 over the names and f32 values of all parameters. Two models with the same hash classify alike, bit for
    /// bit.
    ///
    /// # Errors
    /// [`Error::Engine`] if the device cannot be read.
    pub fn weights_sha256(&self) -> Result<String> {
        weights::sha256(&self.parameters)
    }
}
