//! Maps the output of the encoder to the horizon.

use super::{Mode, PatchTstConfig, Pooling};
use crate::Result;
use crate::models::channel_linear::ChannelLinear;
use refrain::Tensor;
use refrain_nn::{Dropout, ParameterBuilder};

/// A linear map of the patches of a channel, or of what [`Pooling`] makes of them, to its horizon. All channels share it, or
/// each has its own.
pub(super) struct Head {
    pooling: Pooling,
    input_dropout: Dropout,
    linear: ChannelLinear,
    dropout: Dropout,
}

impl Head {
    pub(super) fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Head> {
        let sizes = [config.channels, config.pooled(), config.horizon];
        Ok(Head {
            pooling: config.pooling,
            input_dropout: Dropout::new(config.head_input_dropout)?,
            linear: ChannelLinear::new(builder, sizes, config.individual_head)?,
            dropout: Dropout::new(config.head_dropout)?,
        })
    }

    /// `[B C, T, D]` to `[B, C, H]`.
    pub(super) fn forward(&self, h: &Tensor, batch: usize, mode: Mode<'_>) -> Result<Tensor> {
        let h = match self.pooling {
            Pooling::Flatten => h.clone(),
            Pooling::Mean => h.mean(1)?,
            Pooling::Max => h.max(1)?,
            Pooling::Cls => h.select(1, 0)?,
        };
        let h = self.input_dropout.forward(&h, mode)?;
        Ok(self.dropout.forward(&self.linear.forward(&h, batch)?, mode)?)
    }
}
