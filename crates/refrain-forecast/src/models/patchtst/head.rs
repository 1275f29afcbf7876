//! From the encoder's output to the horizon.

use super::{Mode, PatchTstConfig};
use crate::Result;
use refrain::Tensor;
use refrain_nn::{Declared, Dropout, Init, Linear, ParameterBuilder};

/// A linear map of all patches of a channel to its horizon, shared by the channels or one for each.
pub(super) struct Head {
    map: Map,
    dropout: Dropout,
    channels: usize,
    features: usize, // N D
    horizon: usize,
}

enum Map {
    Shared(Linear),
    /// `weight` `[C, N D, H]` and `bias` `[C, 1, H]`.
    Individual {
        weight: Declared,
        bias: Declared,
    },
}

impl Head {
    pub(super) fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Head> {
        let (channels, features, horizon) =
            (config.channels, config.patches() * config.d_model, config.horizon);
        let map = if config.individual_head {
            // As a linear layer of so many inputs begins.
            let init = Init::torch_bias(features);
            Map::Individual {
                weight: builder.parameter("weight", [channels, features, horizon], init)?,
                bias: builder.parameter("bias", [channels, 1, horizon], init)?,
            }
        } else {
            Map::Shared(Linear::new(builder, features, horizon)?)
        };
        Ok(Head { map, dropout: Dropout::new(config.head_dropout)?, channels, features, horizon })
    }

    /// `[B C, N, D]` to `[B, C, H]`.
    pub(super) fn forward(&self, h: &Tensor, batch: usize, mode: Mode<'_>) -> Result<Tensor> {
        let y = match &self.map {
            Map::Shared(linear) => {
                let flat = h.reshape([batch * self.channels, self.features])?;
                linear.forward(&flat)?.reshape([batch, self.channels, self.horizon])?
            }
            Map::Individual { weight, bias } => {
                let flat = h.reshape([batch, self.channels, self.features])?.transpose(0, 1)?;
                let (weight, bias) = (weight.tensor()?, bias.tensor()?);
                flat.matmul(weight)?.to_dtype(bias.dtype())?.add(bias)?.transpose(0, 1)?
            }
        };
        Ok(self.dropout.forward(&y, mode)?)
    }
}
