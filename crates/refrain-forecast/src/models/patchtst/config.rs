//! What a PatchTST model is made of.

use crate::{Error, Result};
use refrain::Activation;
use refrain_nn::{AttentionOptions, EncoderDropout, NormKind, TransformerEncoderOptions};
use serde::{Deserialize, Serialize};

/// The settings of a [`super::PatchTst`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchTstConfig {
    /// Number of channels; each is forecast from its own past.
    pub channels: usize,
    /// Rows that a forecast is made from.
    pub context: usize,
    /// Rows of a forecast.
    pub horizon: usize,
    /// Rows of a patch.
    pub patch: usize,
    /// Rows from the beginning of one patch to that of the next.
    pub stride: usize,
    /// Whether the last value is repeated `stride` times after the context, so that it makes one patch more.
    pub end_padding: bool,
    /// Width of the encoder.
    pub d_model: usize,
    /// Heads of attention; they divide `d_model`.
    pub heads: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Width of the feed-forward network.
    pub ffn: usize,
    /// Dropout after the position embedding, inside the feed-forward network and on both residual branches. That of
    /// the attention drops twice, as in the reference implementation (once in the attention's projection, once in
    /// the encoder layer).
    pub dropout: f64,
    /// Dropout of the attention weights.
    pub attention_dropout: f64,
    /// Dropout of the head's output.
    pub head_dropout: f64,
    /// How the encoder normalises: each feature over batch and patches as in the paper, or each patch over its
    /// features.
    pub norm: NormKind,
    /// Where the encoder normalises.
    pub norm_position: NormPosition,
    /// The activation of the feed-forward network.
    pub activation: FfnActivation,
    /// How a patch knows its place.
    pub positions: Positions,
    /// Whether the attention scores of a layer are added to those of the next, before the softmax (RealFormer,
    /// He et al., 2021).
    pub residual_attention: bool,
    /// Whether every window is normalised by its own mean and standard deviation, and the forecast brought back
    /// (RevIN, Kim et al., ICLR 2022), with a learnable affine map a channel.
    pub revin: bool,
    /// Whether every channel has a head of its own.
    pub individual_head: bool,
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

/// How a patch knows its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// A learned vector a place, as in the paper.
    Learned,
    /// Fixed sines and cosines (Vaswani et al., 2017).
    Sinusoidal,
}

impl PatchTstConfig {
    /// The small variant of `refrain bench`: pre-norm layers with layer norm and tanh-GELU, no dropout, no RevIN,
    /// no end padding.
    #[allow(clippy::too_many_arguments)] // A table's columns, in the table's order.
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

    /// What the layers of the encoder are like.
    pub(super) fn encoder_layer(&self) -> TransformerEncoderOptions {
        // Two dropouts in a row are one: an element stays with probability (1 - p)^2 and is scaled by its inverse.
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

    /// Numbers that a training step over so many samples keeps for its backward pass and works with: fitted to what steps
    /// were seen to take.
    pub(crate) fn activations(&self, samples: usize) -> f64 {
        let of = |size: usize| size as f64;
        let rows = of(samples) * of(self.channels);
        let (patches, heads) = (of(self.patches()), of(self.heads));
        // Scores that are handed on or dropped from lie in memory; else attention keeps none.
        let scores = match (self.attention_dropout > 0.0, self.residual_attention) {
            (true, _) => 2.75,
            (false, true) => 1.75,
            (false, false) => 0.0,
        };
        let layer = 7.75 * of(self.d_model) + 2.75 * of(self.ffn) + scores * heads * patches;
        let tokens = rows * patches * (of(self.layers) * layer + 4.0 * of(self.d_model));
        tokens + rows * (2.0 * of(self.context) + 3.0 * of(self.horizon))
    }

    /// Number of patches of a context, `(context - patch) / stride + 1`, and one more by end padding.
    pub fn patches(&self) -> usize {
        self.context.saturating_sub(self.patch) / self.stride.max(1) + 1 + usize::from(self.end_padding)
    }

    /// Whether such a model exists.
    ///
    /// # Errors
    /// [`Error::Model`], which says what to change.
    pub fn validate(&self) -> Result<()> {
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
}

pub(crate) fn refuse<T>(problem: String, fix: &'static str) -> Result<T> {
    Err(Error::Model { problem, fix })
}

pub(crate) fn check_sizes(sizes: &[(&str, usize)]) -> Result<()> {
    // Products of two sizes stay far from overflow; memory is the nearer limit.
    match sizes.iter().find(|(_, size)| *size == 0 || *size > 1 << 24) {
        Some((name, size)) => refuse(format!("{name} is {size}"), "choose a size from 1 to 16777216"),
        None => Ok(()),
    }
}

pub(crate) fn check_heads(d_model: usize, heads: usize) -> Result<()> {
    if d_model.is_multiple_of(heads) {
        return Ok(());
    }
    let problem = format!("{heads} heads do not divide d_model {d_model}");
    refuse(problem, "choose a d_model that is a multiple of heads")
}

pub(crate) fn check_dropouts(rates: &[(&str, f64)]) -> Result<()> {
    match rates.iter().find(|(_, rate)| !(0.0..1.0).contains(rate)) {
        Some((name, rate)) => refuse(format!("{name} is {rate}"), "choose a probability from 0 to below 1"),
        None => Ok(()),
    }
}

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
