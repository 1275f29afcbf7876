//! The settings of a PatchTST model.

use super::{DropoutRate, Layers, PatchTst, RevinScale};
use crate::Result;
use crate::data::series::CovariateCounts;
use crate::models::checks::{check_dropouts, check_heads, check_sizes, refuse};
use crate::models::revin::RevIn;
use crate::models::{About, ChannelUse, CovariateKinds, Forecaster, ForecasterConfig, WindowShape};
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
        /// Number of past covariates: channels that are not forecast. The channels must [attend to each
        /// other](PatchTstConfig::channel_attention).
        #[serde(default, skip_serializing_if = "is_zero")]
        pub past: usize;
        /// Rows per patch.
        pub patch: usize = 24, "ROWS";
        /// Rows from one patch to the next.
        pub stride: usize = 24, "ROWS";
        /// Repeat the last value at the end of the context, which gives one more patch.
        ///
        /// It is repeated `stride` times.
        pub end_padding: bool = true, "BOOL";
        /// Where patches begin if they do not fill the context: start or end.
        ///
        /// From the start, the last rows may be in no patch; from the end, the first ones, and the newest row always is.
        #[serde(default)]
        pub patches_from: PatchesFrom = PatchesFrom::Start, "PLACE";
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
        /// Dropout of the embedding, a probability or `same` as dropout.
        #[serde(default)]
        pub positional_dropout: DropoutRate = DropoutRate::Same, "P";
        /// Dropout of the residual branches, once each, a probability or `same` as dropout.
        #[serde(default)]
        pub path_dropout: DropoutRate = DropoutRate::Same, "P";
        /// Dropout inside the feed-forward network, a probability or `same` as dropout.
        #[serde(default)]
        pub ffn_dropout: DropoutRate = DropoutRate::Same, "P";
        /// Dropout of the head's input.
        #[serde(default)]
        pub head_input_dropout: f64 = 0.0, "P";
        /// Dropout of the head's output.
        pub head_dropout: f64 = 0.0, "P";
        /// Normalisation of the encoder: batch or layer.
        ///
        /// Each feature over batch and patches as in the paper, or each patch over its features.
        pub norm: NormKind = NormKind::Batch, "KIND";
        /// Where the encoder normalises: pre (before attention and feed-forward network) or post (after them).
        pub norm_position: NormPosition = NormPosition::Post, "PLACE";
        /// What normalisation adds to the variance.
        #[serde(default = "norm_eps")]
        pub norm_eps: f64 = norm_eps(), "EPS";
        /// Activation of the feed-forward network: gelu, gelu-tanh, relu or silu.
        pub activation: FfnActivation = FfnActivation::Gelu, "NAME";
        /// Give the linear layers of the feed-forward network biases.
        #[serde(default = "yes")]
        pub ffn_bias: bool = true, "BOOL";
        /// Position encoding of the patches: learned, sinusoidal, or stored (small sines and cosines, kept with the weights).
        pub positions: Positions = Positions::Learned, "KIND";
        /// Attention among the channels, too, at each patch; then a channel is forecast from all channels.
        ///
        /// It uses the projections of the attention among the patches.
        #[serde(default)]
        pub channel_attention: bool = false, "BOOL";
        /// Add the attention scores of each layer to the scores of the next layer.
        ///
        /// They are added before the softmax (RealFormer, He et al., 2021).
        pub residual_attention: bool = false, "BOOL";
        /// Normalise each window by its own mean and standard deviation (RevIN).
        ///
        /// The forecast is brought back (Kim et al., ICLR 2022).
        pub revin: bool = true, "BOOL";
        /// What RevIN normalises a window by: std (mean and standard deviation) or mean (mean absolute value, no shift).
        #[serde(default)]
        pub revin_scale: RevinScale = RevinScale::Std, "KIND";
        /// Give each channel a learnable affine map after RevIN.
        #[serde(default = "yes")]
        pub revin_affine: bool = true, "BOOL";
        /// Give each channel its own embedding of patches.
        #[serde(default)]
        pub individual_embedding: bool = false, "BOOL";
        /// What the head gets: flatten (all patches), mean or max (over the patches), or cls (an additional, learned token).
        #[serde(default)]
        pub pooling: Pooling = Pooling::Flatten, "KIND";
        /// Give each channel its own head.
        pub individual_head: bool = false, "BOOL";
    }
}

/// The value for runs that were saved before it could be chosen, and the default.
fn norm_eps() -> f64 {
    1e-5
}

/// The value for runs that were saved before it could be chosen.
fn yes() -> bool {
    true
}

/// Where patches begin if they do not fill the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatchesFrom {
    /// With the first row of the context.
    #[default]
    Start,
    /// So that the last patch ends with the last row of the context.
    End,
}

/// What the head gets of the encoded patches of a channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// All of them, one after another, as in the paper.
    #[default]
    Flatten,
    /// Their mean.
    Mean,
    /// The largest value of each feature.
    Max,
    /// An additional token before the patches, with a learned vector.
    Cls,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
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
    /// SiLU, also named swish.
    Silu,
}

impl From<FfnActivation> for Activation {
    fn from(activation: FfnActivation) -> Activation {
        match activation {
            FfnActivation::Gelu => Activation::Gelu,
            FfnActivation::GeluTanh => Activation::GeluTanh,
            FfnActivation::Relu => Activation::Relu,
            FfnActivation::Silu => Activation::Silu,
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
    /// Fixed sines and cosines with mean 0 and standard deviation 0.1, which are kept with the weights: those of the
    /// checkpoint that a model was imported from.
    Stored,
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
            past: 0,
            patch,
            stride,
            end_padding: false,
            d_model,
            heads,
            layers,
            ffn,
            patches_from: PatchesFrom::Start,
            dropout: 0.0,
            attention_dropout: 0.0,
            positional_dropout: DropoutRate::Same,
            path_dropout: DropoutRate::Same,
            ffn_dropout: DropoutRate::Same,
            head_input_dropout: 0.0,
            head_dropout: 0.0,
            norm: NormKind::Layer,
            norm_position: NormPosition::Pre,
            norm_eps: norm_eps(),
            activation: FfnActivation::GeluTanh,
            ffn_bias: true,
            positions: Positions::Learned,
            channel_attention: false,
            residual_attention: false,
            revin: false,
            revin_scale: RevinScale::Std,
            revin_affine: true,
            individual_embedding: false,
            pooling: Pooling::Flatten,
            individual_head: false,
        }
    }

    /// RevIN, if the model has it.
    pub(super) fn revin(&self, builder: &ParameterBuilder) -> Result<Option<RevIn>> {
        let new = || RevIn::new(&builder.scope("revin"), self.channels, self.revin_scale, self.revin_affine);
        self.revin.then(new).transpose()
    }

    /// The same model with its past covariates as channels like any.
    pub(super) fn with_past_as_channels(&self) -> PatchTstConfig {
        PatchTstConfig { channels: self.channels + self.past, past: 0, ..self.clone() }
    }

    /// The options of the encoder layers.
    pub(super) fn encoder_layer(&self) -> TransformerEncoderOptions {
        // Two dropouts in a row equal one: an element is kept with probability (1 - p)^2 and scaled by the inverse.
        let twice = 1.0 - (1.0 - self.dropout) * (1.0 - self.dropout);
        let dropout = EncoderDropout {
            attention_output: self.path_dropout.or(twice),
            ffn_hidden: self.ffn_dropout.or(self.dropout),
            ffn_output: self.path_dropout.or(self.dropout),
        };
        TransformerEncoderOptions {
            attention: AttentionOptions {
                residual_scores: self.residual_attention,
                dropout: self.attention_dropout,
                ..AttentionOptions::new(self.d_model, self.heads)
            },
            ffn: self.ffn,
            ffn_bias: self.ffn_bias,
            channel_attention: self.channel_attention,
            norm_first: self.norm_position == NormPosition::Pre,
            norm: self.norm,
            eps: self.norm_eps,
            activation: self.activation.into(),
            dropout,
        }
    }

    /// The number of patches of a context: `(context - patch) / stride + 1`, plus one with end padding.
    pub fn patches(&self) -> usize {
        self.context.saturating_sub(self.patch) / self.stride.max(1) + 1 + usize::from(self.end_padding)
    }

    /// The tokens of a channel that attend to each other: its patches, and the token of [`Pooling::Cls`].
    pub fn tokens(&self) -> usize {
        self.patches() + usize::from(self.pooling == Pooling::Cls)
    }

    /// The features of a channel that the head gets.
    pub(super) fn pooled(&self) -> usize {
        match self.pooling {
            Pooling::Flatten => self.patches() * self.d_model,
            Pooling::Mean | Pooling::Max | Pooling::Cls => self.d_model,
        }
    }

    /// The first row of the context that is in a patch.
    pub(super) fn first_row(&self) -> usize {
        match self.patches_from {
            PatchesFrom::Start => 0,
            PatchesFrom::End => self.context.saturating_sub(self.patch) % self.stride.max(1),
        }
    }
}

impl ForecasterConfig for PatchTstConfig {
    fn about() -> About {
        About {
            title: "PatchTST",
            does: "forecasts series by attention among patches of each channel's past",
            presets: &[NYC_WEATHER, ETTH1],
            training: Values::new(),
            covariates: CovariateKinds { past: true, ..CovariateKinds::NONE },
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
        check_sizes(&[("channels and past covariates", self.channels.saturating_add(self.past))])?;
        if self.past > 0 && !self.channel_attention {
            let problem = format!(
                "the channels of this PatchTST do not see each other, so its {} past covariates would change nothing",
                self.past
            );
            return refuse(problem, "choose --channel-attention, or leave --past out");
        }
        if !(self.norm_eps > 0.0 && self.norm_eps.is_finite()) {
            return refuse(format!("norm_eps is {}", self.norm_eps), "choose a positive number such as 1e-5");
        }
        if self.positions == Positions::Stored && !self.d_model.is_multiple_of(2) {
            let problem =
                format!("stored positions are pairs of sines and cosines, d_model is {}", self.d_model);
            return refuse(problem, "choose an even d_model, or learned positions");
        }
        check_dropouts(&[
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("positional_dropout", self.positional_dropout.or(0.0)),
            ("path_dropout", self.path_dropout.or(0.0)),
            ("ffn_dropout", self.ffn_dropout.or(0.0)),
            ("head_input_dropout", self.head_input_dropout),
            ("head_dropout", self.head_dropout),
        ])
    }

    fn covariates(&self) -> CovariateCounts {
        CovariateCounts { past: self.past, ..CovariateCounts::default() }
    }

    fn channel_use(&self) -> ChannelUse {
        // RevIN may have an affine map for each channel.
        let affine = self.revin && self.revin_affine && self.channels > 1;
        match self.individual_head || self.individual_embedding || affine {
            _ if self.channel_attention => ChannelUse::Mixed,
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
        let rows = of(windows) * of(self.channels + self.past);
        let (patches, heads) = (of(self.tokens()), of(self.heads));
        // Attention keeps the scores that it hands on, and no weights.
        let scores = if self.residual_attention { 1.25 } else { 0.0 };
        let across = if self.channel_attention { 6.0 * of(self.d_model) } else { 0.0 };
        let layer = 7.75 * of(self.d_model) + across + 2.75 * of(self.ffn) + scores * heads * patches;
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
        let cases: [(Spoil, &str); 9] = [
            (|c| c.patch = 25, "longer than the context of 24"),
            (|c| c.heads = 3, "3 heads do not divide d_model 64"),
            (|c| c.layers = 0, "layers is 0"),
            (|c| c.d_model = usize::MAX, "d_model is"),
            (|c| c.dropout = 1.0, "dropout is 1"),
            (|c| c.head_dropout = f64::NAN, "head_dropout is NaN"),
            (|c| c.path_dropout = DropoutRate::Of(1.0), "path_dropout is 1"),
            (|c| c.norm_eps = 0.0, "norm_eps is 0"),
            (|c| (c.d_model, c.heads, c.positions) = (63, 3, Positions::Stored), "d_model is 63"),
        ];
        for (spoil, expected) in cases {
            let mut config = good.clone();
            spoil(&mut config);
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("choose"), "{message}");
        }
    }
}
