//! The settings of a PatchTST model.

use super::{Layers, PatchTst};
use crate::Result;
use crate::models::checks::{check_dropouts, check_heads, check_sizes, refuse};
use crate::models::{About, ChannelUse, Forecaster, ForecasterConfig, WindowShape};
use crate::settings::{Preset, Values, settings};
use refrain::{Activation, DType, Device};
use refrain_nn::{
    AttentionOptions, EncoderDropout, ModelSize, NormKind, ParameterBuilder, TransformerEncoderOptions,
};
use serde::{Deserialize, Serialize};

settings! {
    /// The settings of a [`super::PatchTst`].
    pub struct PatchTstConfig {
        /// Number of channels. Each is forecast from its own past.
        pub channels: usize;
        /// Rows that the model sees before a forecast.
        pub context: usize;
        /// Rows of a forecast.
        pub horizon: usize;
        /// Rows per patch.
        pub patch: usize = 24, "ROWS";
        /// Rows from one patch to the next.
        pub stride: usize = 24, "ROWS";
        /// Repeat the last value at the end of the context, which gives one more patch.
        ///
        /// It is repeated `stride` times.
        pub end_padding: bool = true, "BOOL";
        /// Width of the encoder (features per token).
        pub d_model: usize = 64, "N";
        /// Number of attention heads; must divide the width.
        pub heads: usize = 4, "N";
        /// Number of encoder layers.
        pub layers: usize = 2, "N";
        /// Width of the feed-forward network.
        pub ffn: usize = 128, "N";
        /// Dropout of the embedding, the projections, the feed-forward network and the residual branches.
        ///
        /// That of the attention drops twice, as in the reference implementation (once in the attention's projection, once
        /// in the encoder layer).
        pub dropout: f64 = 0.2, "P";
        /// Dropout of the attention weights.
        pub attention_dropout: f64 = 0.0, "P";
        /// Dropout of the head's output.
        pub head_dropout: f64 = 0.0, "P";
        /// Normalisation of the encoder: batch or layer.
        ///
        /// Each feature over batch and patches as in the paper, or each patch over its features.
        pub norm: NormKind = NormKind::Batch, "KIND";
        /// Where the encoder normalises: pre (before attention and feed-forward network) or post (after them).
        pub norm_position: NormPosition = NormPosition::Post, "PLACE";
        /// Activation of the feed-forward network: gelu, gelu-tanh or relu.
        pub activation: FfnActivation = FfnActivation::Gelu, "NAME";
        /// Position encoding of the patches: learned or sinusoidal.
        pub positions: Positions = Positions::Learned, "KIND";
        /// Add the attention scores of each layer to the scores of the next layer.
        ///
        /// They are added before the softmax (RealFormer, He et al., 2021).
        pub residual_attention: bool = false, "BOOL";
        /// Normalise each window by its own mean and standard deviation (RevIN).
        ///
        /// The forecast is brought back (Kim et al., ICLR 2022); each channel has a learnable affine map.
        pub revin: bool = true, "BOOL";
        /// Give each channel its own head.
        pub individual_head: bool = false, "BOOL";
    }
}

/// Where the encoder normalises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NormPosition {
    /// Before attention and feed-forward network, inside the residual branch.
    Pre,
    /// After the residual sum, as in the paper.
    Post,
}

/// The activation of the feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FfnActivation {
    /// The exact GELU (erf), as in the paper.
    Gelu,
    /// GELU by the tanh approximation.
    GeluTanh,
    /// ReLU.
    Relu,
}

impl From<FfnActivation> for Activation {
    fn from(activation: FfnActivation) -> Activation {
        match activation {
            FfnActivation::Gelu => Activation::Gelu,
            FfnActivation::GeluTanh => Activation::GeluTanh,
            FfnActivation::Relu => Activation::Relu,
        }
    }
}

/// The position encoding of the patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// One learned vector per position, as in the paper.
    Learned,
    /// Fixed sines and cosines (Vaswani et al., 2017).
    Sinusoidal,
}

impl PatchTstConfig {
    /// The small variant of `refrain bench`: pre-norm layers with layer norm and tanh-GELU, without dropout, RevIN
    /// and end padding.
    #[allow(clippy::too_many_arguments)] // The columns of a table, in the order of the table.
    pub fn small(
        context: usize,
        patch: usize,
        stride: usize,
        d_model: usize,
        heads: usize,
        layers: usize,
        ffn: usize,
        horizon: usize,
    ) -> Self {
        PatchTstConfig {
            channels: 1,
            context,
            horizon,
            patch,
            stride,
            end_padding: false,
            d_model,
            heads,
            layers,
            ffn,
            dropout: 0.0,
            attention_dropout: 0.0,
            head_dropout: 0.0,
            norm: NormKind::Layer,
            norm_position: NormPosition::Pre,
            activation: FfnActivation::GeluTanh,
            positions: Positions::Learned,
            residual_attention: false,
            revin: false,
            individual_head: false,
        }
    }

    /// The options of the encoder layers.
    pub(super) fn encoder_layer(&self) -> TransformerEncoderOptions {
        // Two dropouts in a row equal one: an element is kept with probability (1 - p)^2 and scaled by the inverse.
        let twice = 1.0 - (1.0 - self.dropout) * (1.0 - self.dropout);
        TransformerEncoderOptions {
            attention: AttentionOptions {
                residual_scores: self.residual_attention,
                dropout: self.attention_dropout,
                ..AttentionOptions::new(self.d_model, self.heads)
            },
            ffn: self.ffn,
            norm_first: self.norm_position == NormPosition::Pre,
            norm: self.norm,
            eps: 1e-5,
            activation: self.activation.into(),
            dropout: EncoderDropout { attention_output: twice, ..EncoderDropout::all(self.dropout) },
        }
    }

    /// The number of patches of a context: `(context - patch) / stride + 1`, plus one with end padding.
    pub fn patches(&self) -> usize {
        self.context.saturating_sub(self.patch) / self.stride.max(1) + 1 + usize::from(self.end_padding)
    }
}

impl ForecasterConfig for PatchTstConfig {
    fn about() -> About {
        About {
            title: "PatchTST",
            does: "forecasts series by attention among patches of each channel's past",
            presets: &[NYC_WEATHER, ETTH1],
            training: Values::new(),
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
            ("patch", self.patch),
            ("stride", self.stride),
            ("d_model", self.d_model),
            ("heads", self.heads),
            ("layers", self.layers),
            ("ffn", self.ffn),
        ])?;
        if self.patch > self.context {
            let problem =
                format!("a patch of {} rows is longer than the context of {}", self.patch, self.context);
            return refuse(problem, "choose a shorter patch or a longer context");
        }
        check_heads(self.d_model, self.heads)?;
        check_dropouts(&[
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("head_dropout", self.head_dropout),
        ])
    }

    fn channel_use(&self) -> ChannelUse {
        // RevIN has an affine map for each channel.
        match self.individual_head || (self.revin && self.channels > 1) {
            true => ChannelUse::Own,
            false => ChannelUse::Shared,
        }
    }

    fn size(&self) -> Result<ModelSize> {
        self.validate()?;
        let of = |layers| -> Result<ModelSize> {
            let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
            Layers::declare(&builder, &PatchTstConfig { layers, ..self.clone() })?;
            Ok(builder.size())
        };
        Ok(ModelSize::with_layers(self.layers, of(1)?, of(2)?))
    }

    fn layers(&self) -> usize {
        self.layers
    }

    // Fitted to what steps were seen to take.
    fn activations(&self, windows: usize) -> f64 {
        let of = |size: usize| size as f64;
        let rows = of(windows) * of(self.channels);
        let (patches, heads) = (of(self.patches()), of(self.heads));
        // Attention keeps the scores that it hands on, and no weights.
        let scores = if self.residual_attention { 1.25 } else { 0.0 };
        let layer = 7.75 * of(self.d_model) + 2.75 * of(self.ffn) + scores * heads * patches;
        let tokens = rows * patches * (of(self.layers) * layer + 4.0 * of(self.d_model));
        tokens + rows * (2.0 * of(self.context) + 3.0 * of(self.horizon))
    }

    fn summary(&self) -> String {
        let PatchTstConfig { patch, stride, d_model, heads, layers, ffn, .. } = self;
        format!(
            "{} patches of {patch} every {stride}, d_model {d_model}, {heads} heads, {layers} layers, FFN {ffn}",
            self.patches()
        )
    }

    fn build(&self, dtype: DType, device: &Device, seed: u64) -> Result<Box<dyn Forecaster>> {
        Ok(Box::new(PatchTst::new(self.clone(), dtype, device, seed)?))
    }
}

/// It has the name of the data that it is for, so it is taken for that data unless another is named.
const NYC_WEATHER: Preset = Preset {
    name: crate::data::NYC_WEATHER,
    help: "the bundled weather; taken for this data unless another preset is named",
    toml: include_str!("nyc-weather.toml"),
    data: None,
};

const ETTH1: Preset = Preset {
    name: "etth1",
    help: "ETTh1 with the settings of the PatchTST paper (Nie et al., ICLR 2023); needs --data ETTh1.csv",
    toml: include_str!("etth1.toml"),
    data: Some("download ETTh1.csv of https://github.com/zhouhaoyi/ETDataset and pass it with --data"),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_has_42_patches() {
        let mut config = PatchTstConfig::small(336, 16, 8, 16, 4, 3, 128, 96);
        assert_eq!(config.patches(), 41);
        config.end_padding = true;
        assert_eq!(config.patches(), 42);
    }

    #[test]
    fn impossible_models_are_refused_with_the_fix() {
        let good = PatchTstConfig::small(24, 8, 4, 64, 4, 2, 256, 1);
        good.validate().unwrap();
        type Spoil = fn(&mut PatchTstConfig);
        let cases: [(Spoil, &str); 6] = [
            (|c| c.patch = 25, "longer than the context of 24"),
            (|c| c.heads = 3, "3 heads do not divide d_model 64"),
            (|c| c.layers = 0, "layers is 0"),
            (|c| c.d_model = usize::MAX, "d_model is"),
            (|c| c.dropout = 1.0, "dropout is 1"),
            (|c| c.head_dropout = f64::NAN, "head_dropout is NaN"),
        ];
        for (spoil, expected) in cases {
            let mut config = good.clone();
            spoil(&mut config);
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("choose"), "{message}");
        }
    }
}
