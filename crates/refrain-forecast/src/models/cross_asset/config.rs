//! The settings of a cross-asset model.

use super::EPS;
use crate::Result;
use crate::models::checks::{check_dropouts, check_heads, check_sizes, refuse};
use crate::models::{About, CovariateKinds};
use crate::settings::settings;
use refrain::Activation;
use refrain_nn::{AttentionOptions, EncoderDropout, NormKind, TransformerEncoderOptions};
use serde_json::json;

/// The number of classes: up, down, flat.
pub const CLASSES: usize = 3;

settings! {
    /// The settings of a [`super::CrossAsset`].
    pub struct CrossAssetConfig {
        /// Number of sources (assets, stations, ...).
        pub sources: usize;
        /// Features per source.
        pub features: usize;
        /// Width of the encoder (features per token).
        pub d_model: usize = 256, "N";
        /// Number of attention heads; must divide the width.
        pub heads: usize = 4, "N";
        /// Number of encoder layers.
        pub layers: usize = 2, "N";
        /// Width of the feed-forward network.
        pub ffn: usize = 1024, "N";
        /// Dropout inside the feed-forward network and on both residual branches.
        pub dropout: f64 = 0.2, "P";
        /// Initial temperature, by which the cosine of query and key is multiplied.
        ///
        /// Each head learns its own.
        pub temperature: f64 = 10.0, "N";
    }
}

/// 12 sources of 32 features, two layers of width 256 with 4 heads, FFN 1024, no dropout, temperature 10.
impl Default for CrossAssetConfig {
    fn default() -> Self {
        CrossAssetConfig {
            sources: 12,
            features: 32,
            d_model: 256,
            heads: 4,
            layers: 2,
            ffn: 1024,
            dropout: 0.0,
            temperature: 10.0,
        }
    }
}

impl CrossAssetConfig {
    /// What a user should know to choose it.
    pub fn about() -> About {
        let training = [("batch-size", json!(256)), ("lr", json!(3e-4)), ("patience", json!(3))];
        About {
            title: "cross-asset",
            does: "classifies the sources of a panel by attention among them",
            presets: &[],
            training: training.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(),
            covariates: CovariateKinds::NONE,
        }
    }

    /// The options of the encoder layers.
    pub(super) fn encoder_layer(&self) -> TransformerEncoderOptions {
        TransformerEncoderOptions {
            attention: AttentionOptions {
                qk_norm: Some(self.temperature),
                ..AttentionOptions::new(self.d_model, self.heads)
            },
            ffn: self.ffn,
            ffn_bias: true,
            channel_attention: false,
            norm_first: true,
            norm: NormKind::Layer,
            eps: EPS,
            activation: Activation::GeluTanh,
            dropout: EncoderDropout::all(self.dropout),
        }
    }

    /// The number of values that a training step over this many samples keeps for its backward pass and as scratch,
    /// fitted to measured steps.
    pub(crate) fn activations(&self, samples: usize) -> f64 {
        let of = |size: usize| size as f64;
        let layer = 9.75 * of(self.d_model) + 2.75 * of(self.ffn);
        let token = of(self.layers) * layer + 6.5 * of(self.d_model) + 2.0 * of(self.features);
        of(samples) * of(self.sources) * token
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`crate::Error::Model`], which says what to change.
    pub fn validate(&self) -> Result<()> {
        check_sizes(&[
            ("sources", self.sources),
            ("features", self.features),
            ("d_model", self.d_model),
            ("heads", self.heads),
            ("layers", self.layers),
            ("ffn", self.ffn),
        ])?;
        check_heads(self.d_model, self.heads)?;
        check_dropouts(&[("dropout", self.dropout)])?;
        if !self.temperature.is_finite() {
            return refuse(format!("temperature is {}", self.temperature), "choose a number such as 10");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_models_are_refused_with_the_fix() {
        CrossAssetConfig::default().validate().unwrap();
        type Spoil = fn(&mut CrossAssetConfig);
        let cases: [(Spoil, &str); 5] = [
            (|c| c.sources = 0, "sources is 0"),
            (|c| c.ffn = usize::MAX, "ffn is"),
            (|c| c.heads = 3, "3 heads do not divide d_model 256"),
            (|c| c.dropout = 1.0, "dropout is 1"),
            (|c| c.temperature = f64::NAN, "temperature is NaN"),
        ];
        for (spoil, expected) in cases {
            let mut config = CrossAssetConfig::default();
            spoil(&mut config);
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("choose"), "{message}");
        }
    }
}
