//! TSMixer: Chen, Li, Yoder, Arik and Pfister, "TSMixer: An All-MLP Architecture for Time Series Forecasting", TMLR 2023.

mod block;
mod extended;
#[cfg(test)]
mod tests;

pub use block::MixerNorm;

use crate::Result;
use crate::data::series::CovariateCounts;
use crate::data::windows::WindowCovariates;
use crate::models::checks::{check_covariates, check_dropouts, check_sizes};
use crate::models::distribution::{Distribution, of_head};
use crate::models::patchtst::FfnActivation;
use crate::models::revin::{RevIn, RevinScale};
use crate::models::{About, CovariateKinds, Forecaster, ForecasterConfig, WindowShape};
use crate::settings::{Preset, Values, settings};
use block::Block;
use extended::Extended;
use refrain::{DType, Device, Generator, Tensor};
use refrain_nn::{Linear, Mode, ModelSize, ParameterBuilder, Parameters};
use serde_json::json;

settings! {
    /// The settings of a [`TsMixer`].
    pub struct TsMixerConfig {
        /// Number of channels. Each is forecast from the past of all.
        pub channels: usize;
        /// Rows that the model sees before a forecast.
        pub context: usize;
        /// Rows of a forecast.
        pub horizon: usize;
        /// Number of past covariates.
        #[serde(default)]
        pub past: usize;
        /// Number of future covariates.
        #[serde(default)]
        pub future: usize;
        /// Number of static covariates.
        #[serde(default)]
        pub statics: usize;
        /// Number of mixing layers.
        pub layers: usize = 2, "N";
        /// Width of the feed-forward network that mixes the features of a row.
        pub ffn: usize = 64, "N";
        /// Features of a row, if there are covariates; without them they are the channels.
        pub d_model: usize = 32, "N";
        /// Dropout after each linear layer of the mixing layers.
        pub dropout: f64 = 0.5, "P";
        /// What the norms normalise over: layer (rows and features of a window) or batch (the windows of a batch).
        pub norm: MixerNorm = MixerNorm::Layer, "KIND";
        /// The activation of the mixing layers.
        pub activation: FfnActivation = FfnActivation::Relu, "NAME";
        /// Normalise each window by its own mean and standard deviation (RevIN).
        pub revin: bool = true, "BOOL";
        /// RevIN has an affine map for each channel.
        pub revin_affine: bool = true, "BOOL";
    }
}

/// A forecaster of linear layers only. Each mixing layer has a linear layer along the rows, which the channels share, and a
/// feed-forward network along the channels, which the rows share; both are residual. A linear layer, which the channels share, maps
/// the rows to the horizon.
///
/// With covariates it is the paper's TSMixer-Ext: a linear layer brings the past to the rows of the horizon, where the mixing layers
/// see it beside the future covariates, and static covariates are features of every row.
///
/// ```
/// use refrain::{Device, DType, Tensor};
/// use refrain_forecast::models::tsmixer::{TsMixer, TsMixerConfig};
/// use refrain_forecast::models::{Forecaster, Mode};
///
/// let config = TsMixerConfig { layers: 1, ffn: 8, ..TsMixerConfig::new(3, 24, 6) };
/// let model = TsMixer::new(config, DType::F32, &Device::cpu(), 42)?;
/// let x = Tensor::zeros([2, 3, 24], DType::F32, &Device::cpu())?;
/// assert_eq!(model.forward(&x, Mode::Eval)?.dims(), [2, 3, 6]);
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
pub struct TsMixer {
    config: TsMixerConfig,
    parameters: Parameters,
    layers: Layers,
    distribution: Option<Distribution>,
}

struct Layers {
    revin: Option<RevIn>,
    mixer: Mixer,
}

enum Mixer {
    Plain { blocks: Vec<Block>, head: Linear },
    WithCovariates(Box<Extended>),
}

impl TsMixerConfig {
    /// The default settings for windows of this shape.
    pub fn new(channels: usize, context: usize, horizon: usize) -> TsMixerConfig {
        TsMixerConfig {
            channels,
            context,
            horizon,
            past: 0,
            future: 0,
            statics: 0,
            layers: 2,
            ffn: 64,
            d_model: 32,
            dropout: 0.5,
            norm: MixerNorm::Layer,
            activation: FfnActivation::Relu,
            revin: true,
            revin_affine: true,
        }
    }

    fn declare(&self, builder: &ParameterBuilder) -> Result<Layers> {
        let TsMixerConfig { channels, context, horizon, .. } = *self;
        let revin = || RevIn::new(&builder.scope("revin"), channels, RevinScale::Std, self.revin_affine);
        let block = |layer: usize| Block::new(&builder.scope("layers").scope(layer), self, channels, context);
        let revin = self.revin.then(revin).transpose()?;
        let mixer = match self.covariates().is_empty() {
            true => Mixer::Plain {
                blocks: (0..self.layers).map(block).collect::<Result<_>>()?,
                head: Linear::new(&builder.scope("head"), context, horizon)?,
            },
            false => Mixer::WithCovariates(Box::new(Extended::new(builder, self)?)),
        };
        Ok(Layers { revin, mixer })
    }
}

impl TsMixer {
    /// A model with random weights, which depend only on the seed. Linear layers start as in PyTorch, norms and RevIN as
    /// identity.
    ///
    /// # Errors
    /// [`crate::Error::Model`] for invalid settings, [`crate::Error::Engine`] if the device has not enough memory.
    pub fn new(config: TsMixerConfig, dtype: DType, device: &Device, seed: u64) -> Result<TsMixer> {
        config.validate()?;
        let builder = ParameterBuilder::new(device, dtype);
        let layers = config.declare(&builder)?;
        let parameters = builder.build(&Generator::new(device, seed)?)?;
        Ok(TsMixer { config, parameters, layers, distribution: None })
    }
}

impl Mixer {
    /// `[B, C, L]` to `[B, C, H]`.
    fn forward(&self, x: &Tensor, covariates: &WindowCovariates, mode: Mode<'_>) -> Result<Tensor> {
        let (blocks, head) = match self {
            Mixer::Plain { blocks, head } => (blocks, head),
            Mixer::WithCovariates(extended) => return extended.forward(x, covariates, mode),
        };
        let mut h = x.clone();
        for block in blocks {
            h = block.forward(&h, mode)?;
        }
        // In mixed precision, the forecast becomes as precise again as what follows.
        Ok(head.forward(&h)?.to_dtype(x.dtype())?)
    }
}

impl Forecaster for TsMixer {
    fn name(&self) -> &str {
        TsMixerConfig::about().title
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
        self.forward_with(x, &WindowCovariates::default(), mode)
    }

    fn forward_with(&self, x: &Tensor, covariates: &WindowCovariates, mode: Mode<'_>) -> Result<Tensor> {
        let batch = self.window().batch(x)?;
        check_covariates(covariates, self.config.covariates(), batch, self.window())?;
        // The model may be one of f64.
        let to = |of: &Option<Tensor>| of.as_ref().map(|of| of.to_dtype(x.dtype())).transpose();
        let WindowCovariates { past, future, statics } = covariates;
        let covariates = WindowCovariates { past: to(past)?, future: to(future)?, statics: to(statics)? };
        let Layers { revin, mixer } = &self.layers;
        let forecast = |x: &Tensor| of_head(self.distribution, mixer.forward(x, &covariates, mode)?);
        let Some(revin) = revin else { return forecast(x) };
        let (x, scale) = revin.normalise(x, None)?;
        revin.denormalise(&forecast(&x)?, &scale)
    }
}

impl ForecasterConfig for TsMixerConfig {
    fn about() -> About {
        let training: Values =
            [("lr".to_owned(), json!(1e-3)), ("epochs".to_owned(), json!(10))].into_iter().collect();
        About {
            title: "TSMixer",
            does: "forecasts series by linear layers that mix rows and channels in turn",
            presets: &[ETTH1],
            training,
            covariates: CovariateKinds { past: true, future: true, statics: true },
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
            ("layers", self.layers),
            ("ffn", self.ffn),
            ("d_model", self.d_model),
            ("past covariates", self.past + 1),
            ("future covariates", self.future + 1),
            ("static covariates", self.statics + 1),
        ])?;
        check_dropouts(&[("dropout", self.dropout)])
    }

    fn covariates(&self) -> CovariateCounts {
        CovariateCounts { past: self.past, future: self.future, statics: self.statics }
    }

    fn size(&self) -> Result<ModelSize> {
        self.validate()?;
        let of = |layers| -> Result<ModelSize> {
            let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
            TsMixerConfig { layers, ..self.clone() }.declare(&builder)?;
            Ok(builder.size())
        };
        // With covariates the first layer may be wider than the others.
        match self.layers {
            1 => of(1),
            layers => Ok(ModelSize::with_layers(layers - 1, of(2)?, of(3)?)),
        }
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn activations(&self, windows: usize) -> f64 {
        let of = |size: usize| size as f64;
        let ends = of(self.channels) * (3.0 * of(self.context) + 4.0 * of(self.horizon));
        let covariates = self.covariates();
        if covariates.is_empty() {
            let layer = of(self.context) * (10.0 * of(self.channels) + 3.0 * of(self.ffn));
            return of(windows) * (of(self.layers) * layer + ends);
        }
        let inputs = of(self.channels + covariates.past + covariates.future);
        let layer = of(self.horizon) * (20.0 * of(self.d_model) + 3.0 * of(self.ffn));
        of(windows) * (of(self.layers + 2) * layer + ends + inputs * of(self.context + 2 * self.horizon))
    }

    fn summary(&self) -> String {
        let TsMixerConfig { layers, ffn, .. } = self;
        format!("{layers} mixing layers, FFN {ffn}")
    }

    fn build(&self, dtype: DType, device: &Device, seed: u64) -> Result<Box<dyn Forecaster>> {
        Ok(Box::new(TsMixer::new(self.clone(), dtype, device, seed)?))
    }
}

const ETTH1: Preset = Preset {
    name: "tsmixer-etth1",
    help: "ETTh1 with a context of 512 rows as in the TSMixer paper (Chen et al., 2023); needs --data ETTh1.csv",
    toml: include_str!("etth1.toml"),
    data: Some("download ETTh1.csv of https://github.com/zhouhaoyi/ETDataset and pass it with --data"),
};
