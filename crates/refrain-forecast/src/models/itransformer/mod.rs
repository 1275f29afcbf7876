//! iTransformer: Liu, Hu, Zhang, Wu, Wang, Ma and Long, "iTransformer: Inverted Transformers Are Effective for Time Series
//! Forecasting", ICLR 2024.

#[cfg(test)]
mod tests;

use crate::Result;
use crate::models::checks::{check_dropouts, check_heads, check_sizes};
use crate::models::distribution::{Distribution, of_head};
use crate::models::revin::{RevIn, RevinScale};
use crate::models::{About, CovariateKinds, Forecaster, ForecasterConfig, WindowShape};
use crate::settings::{Preset, Values, settings};
use refrain::{Activation, DType, Device, Generator, Tensor};
use refrain_nn::{
    AttentionOptions, Dropout, EncoderDropout, LayerNorm, Linear, Mode, ModelSize, NormKind,
    ParameterBuilder, Parameters, TransformerEncoderLayer, TransformerEncoderOptions,
};
use serde_json::json;

/// What the norms add to the variance, as in the reference implementation.
const EPS: f64 = 1e-5;

settings! {
    /// The settings of an [`ITransformer`].
    pub struct ITransformerConfig {
        /// Number of channels. Each is forecast from the past of all.
        pub channels: usize;
        /// Rows that the model sees before a forecast.
        pub context: usize;
        /// Rows of a forecast.
        pub horizon: usize;
        /// Width of the encoder (features per token).
        pub d_model: usize = 128, "N";
        /// Number of attention heads; must divide the width.
        pub heads: usize = 8, "N";
        /// Number of encoder layers.
        pub layers: usize = 2, "N";
        /// Width of the feed-forward network.
        pub ffn: usize = 128, "N";
        /// Dropout of the embedding, the attention weights, the projections, the feed-forward network and the residual branches.
        pub dropout: f64 = 0.1, "P";
        /// Normalise each window by its own mean and standard deviation (RevIN).
        ///
        /// The forecast is brought back. There is no affine map, as in the paper.
        pub revin: bool = true, "BOOL";
    }
}

/// A forecaster whose tokens are the channels: a linear layer maps the whole context of a channel to a token, an encoder
/// attends among the channels, and a linear layer maps each token to the horizon of its channel. No weight belongs to a
/// channel, so their order has no influence.
///
/// ```
/// use refrain::{Device, DType, Tensor};
/// use refrain_forecast::models::itransformer::{ITransformer, ITransformerConfig};
/// use refrain_forecast::models::{Forecaster, Mode};
///
/// let (channels, context, horizon) = (3, 24, 6);
/// let (d_model, heads, layers, ffn, dropout, revin) = (16, 2, 1, 32, 0.1, true);
/// let config =
///     ITransformerConfig { channels, context, horizon, d_model, heads, layers, ffn, dropout, revin };
/// let model = ITransformer::new(config, DType::F32, &Device::cpu(), 42)?;
/// let x = Tensor::zeros([2, 3, 24], DType::F32, &Device::cpu())?;
/// assert_eq!(model.forward(&x, Mode::Eval)?.dims(), [2, 3, 6]);
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
pub struct ITransformer {
    config: ITransformerConfig,
    parameters: Parameters,
    layers: Layers,
    distribution: Option<Distribution>,
}

struct Layers {
    revin: Option<RevIn>,
    embed: Linear,
    dropout: Dropout,
    encoder: Vec<TransformerEncoderLayer>,
    norm: LayerNorm,
    head: Linear,
}

impl ITransformerConfig {
    fn encoder_layer(&self) -> TransformerEncoderOptions {
        TransformerEncoderOptions {
            attention: AttentionOptions {
                dropout: self.dropout,
                ..AttentionOptions::new(self.d_model, self.heads)
            },
            ffn: self.ffn,
            ffn_bias: true,
            channel_attention: false,
            norm_first: false,
            norm: NormKind::Layer,
            eps: EPS,
            activation: Activation::Gelu,
            dropout: EncoderDropout::all(self.dropout),
        }
    }

    fn declare(&self, builder: &ParameterBuilder) -> Result<Layers> {
        let ITransformerConfig { channels, context, horizon, d_model, .. } = *self;
        let revin = || RevIn::new(&builder.scope("revin"), channels, RevinScale::Std, false);
        let layer = |layer: usize| {
            TransformerEncoderLayer::new(&builder.scope("layers").scope(layer), &self.encoder_layer())
        };
        Ok(Layers {
            revin: self.revin.then(revin).transpose()?,
            embed: Linear::new(&builder.scope("embed"), context, d_model)?,
            dropout: Dropout::new(self.dropout)?,
            encoder: (0..self.layers).map(layer).collect::<refrain_nn::Result<_>>()?,
            norm: LayerNorm::new(&builder.scope("norm"), d_model, EPS)?,
            head: Linear::new(&builder.scope("head"), d_model, horizon)?,
        })
    }
}

impl ITransformer {
    /// A model with random weights, which depend only on the seed. Linear layers start as in PyTorch, norms as identity.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings, [`crate::Error::Engine`] if the device has not enough memory.
    pub fn new(config: ITransformerConfig, dtype: DType, device: &Device, seed: u64) -> Result<ITransformer> {
        config.validate()?;
        let builder = ParameterBuilder::new(device, dtype);
        let layers = config.declare(&builder)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        Ok(ITransformer { config, parameters, layers, distribution: None })
    }
}

impl Layers {
    /// `[B, C, L]` to `[B, C, H]`.
    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let mut h = self.dropout.forward(&self.embed.forward(x)?, mode)?; // [B, C, D]
        for layer in &self.encoder {
            h = layer.forward(&h, mode)?;
        }
        let y = self.head.forward(&self.norm.forward(&h)?)?;
        // In mixed precision, the forecast becomes as precise again as what follows.
        Ok(y.to_dtype(x.dtype())?)
    }
}

impl Forecaster for ITransformer {
    fn name(&self) -> &str {
        ITransformerConfig::about().title
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
        self.window().batch(x)?;
        let forecast = |x: &Tensor| of_head(self.distribution, self.layers.forward(x, mode)?);
        let Some(revin) = &self.layers.revin else { return forecast(x) };
        let (x, scale) = revin.normalise(x, None)?;
        revin.denormalise(&forecast(&x)?, &scale)
    }
}

impl ForecasterConfig for ITransformerConfig {
    fn about() -> About {
        let training: Values = [("lr".to_owned(), json!(5e-4))].into_iter().collect();
        About {
            title: "iTransformer",
            does: "forecasts series by attention among the channels, each of which is a token",
            presets: &[ETTH1],
            training,
            covariates: CovariateKinds::NONE,
        }
    }

    fn window(&self) -> WindowShape {
        WindowShape { channels: self.channels, context: self.context, horizon: self.horizon }
    }

    fn validate(&self) -> Result<()> {
        check_sizes(&[
            ("channels", self.channels),
            ("context", self.context),
            ("horizon", self.horizon),
            ("d_model", self.d_model),
            ("heads", self.heads),
            ("layers", self.layers),
            ("ffn", self.ffn),
        ])?;
        check_heads(self.d_model, self.heads)?;
        check_dropouts(&[("dropout", self.dropout)])
    }

    fn size(&self) -> Result<ModelSize> {
        self.validate()?;
        let of = |layers| -> Result<ModelSize> {
            let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
            ITransformerConfig { layers, ..self.clone() }.declare(&builder)?;
            Ok(builder.size())
        };
        Ok(ModelSize::with_layers(self.layers, of(1)?, of(2)?))
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn activations(&self, windows: usize) -> f64 {
        let of = |size: usize| size as f64;
        let layer = 7.75 * of(self.d_model) + 2.75 * of(self.ffn);
        let token = of(self.layers) * layer + 6.0 * of(self.d_model);
        of(windows) * of(self.channels) * (token + 3.0 * of(self.context) + 3.0 * of(self.horizon))
    }

    fn summary(&self) -> String {
        let ITransformerConfig { d_model, heads, layers, ffn, .. } = self;
        format!("a token a channel, d_model {d_model}, {heads} heads, {layers} layers, FFN {ffn}")
    }

    fn build(&self, dtype: DType, device: &Device, seed: u64) -> Result<Box<dyn Forecaster>> {
        Ok(Box::new(ITransformer::new(self.clone(), dtype, device, seed)?))
    }
}

const ETTH1: Preset = Preset {
    name: "itransformer-etth1",
    help: "ETTh1 with the settings of the iTransformer paper (Liu et al., ICLR 2024); needs --data ETTh1.csv",
    toml: include_str!("etth1.toml"),
    data: Some("download ETTh1.csv of https://github.com/zhouhaoyi/ETDataset and pass it with --data"),
};
