//! A layer of TSMixer: it mixes the rows of each feature, then the features of each row.

use super::TsMixerConfig;
use crate::Result;
use refrain::{Activation, Tensor};
use refrain_nn::{BatchNorm, Dropout, LayerNorm, Linear, Mode, ParameterBuilder};
use serde::{Deserialize, Serialize};

/// What the norms add to the variance, as in the reference implementation.
const EPS: f64 = 1e-3;
/// The weight of a new batch in the running statistics, likewise.
const MOMENTUM: f64 = 0.01;

/// What the norms of TSMixer normalise over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MixerNorm {
    /// Over all rows and features of a window.
    #[default]
    Layer,
    /// Over the windows of a batch, for each row and feature. A batch of one window cannot be trained on.
    Batch,
}

/// A norm over the rows and features of a window.
pub(super) enum Norm {
    Layer(LayerNorm),
    Batch(BatchNorm),
}

impl Norm {
    /// For so many rows times features.
    pub(super) fn new(builder: &ParameterBuilder, kind: MixerNorm, size: usize) -> Result<Norm> {
        Ok(match kind {
            MixerNorm::Layer => Norm::Layer(LayerNorm::new(builder, size, EPS)?),
            MixerNorm::Batch => Norm::Batch(BatchNorm::new(builder, size, -1, EPS, MOMENTUM)?),
        })
    }

    /// Normalises `[B, F, T]` or `[B, T, F]` over rows and features at once.
    pub(super) fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let &[batch, features, rows] = x.dims() else { return Ok(x.clone()) };
        let flat = x.reshape([batch, features * rows])?;
        let normal = match self {
            Norm::Layer(norm) => norm.forward(&flat)?,
            Norm::Batch(norm) => norm.forward(&flat, mode)?,
        };
        Ok(normal.reshape([batch, features, rows])?)
    }
}

/// Two residual branches: a linear layer along the rows, shared by the features, and a feed-forward network along the features,
/// shared by the rows.
pub(super) struct Block {
    time_norm: Norm,
    time: Linear,
    feature_norm: Norm,
    features: FeatureMixing,
    activation: Activation,
    dropout: Dropout,
}

/// The feed-forward network of the features of a row.
struct FeatureMixing {
    up: Linear,
    down: Linear,
}

impl Block {
    /// For `[B, features, rows]`.
    pub(super) fn new(
        builder: &ParameterBuilder,
        config: &TsMixerConfig,
        features: usize,
        rows: usize,
    ) -> Result<Block> {
        let linear = |name, inputs, outputs| Linear::new(&builder.scope(name), inputs, outputs);
        Ok(Block {
            time_norm: Norm::new(&builder.scope("time_norm"), config.norm, features * rows)?,
            time: linear("time", rows, rows)?,
            feature_norm: Norm::new(&builder.scope("feature_norm"), config.norm, features * rows)?,
            features: FeatureMixing {
                up: linear("features.0", features, config.ffn)?,
                down: linear("features.2", config.ffn, features)?,
            },
            activation: config.activation.into(),
            dropout: Dropout::new(config.dropout)?,
        })
    }

    /// `[B, F, T]` to the same shape.
    pub(super) fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let normal = self.time_norm.forward(x, mode)?;
        let mixed = self.dropout.forward(&self.time.forward_with(&normal, self.activation, None)?, mode)?;
        // In mixed precision the branches are bf16, and so is what they are added to.
        let x = mixed.add(&x.to_dtype(mixed.dtype())?)?;
        let rows = self.feature_norm.forward(&x, mode)?.transpose(1, 2)?; // [B, T, F]
        let hidden = self.features.up.forward_with(&rows, self.activation, None)?;
        let mixed = self.features.down.forward(&self.dropout.forward(&hidden, mode)?)?;
        Ok(self.dropout.forward(&mixed, mode)?.transpose(1, 2)?.add(&x)?)
    }
}
