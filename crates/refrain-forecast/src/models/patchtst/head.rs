//! Maps the output of the encoder to the horizon.

use super::{Mode, PatchTstConfig};
use crate::Result;
use crate::models::channel_linear::ChannelLinear;
use refrain::Tensor;
use refrain_nn::{Dropout, ParameterBuilder};

/// A linear map of all patches of a channel to its horizon. All channels share it, or each has its own.
pub(super) struct Head {
    linear: ChannelLinear,
    dropout: Dropout,
}

impl Head {
    pub(super) fn new(builder: &ParameterBuilder, config: &PatchTstConfig) -> Result<Head> {
        let sizes = [config.channels, config.patches() * config.d_model, config.horizon];
        let linear = ChannelLinear::new(builder, sizes, config.individual_head)?;
        Ok(Head { linear, dropout: Dropout::new(config.head_dropout)? })
    }

    /// `[B C, N, D]` to `[B, C, H]`.
    pub(super) fn forward(&self, h: &Tensor, batch: usize, mode: Mode<'_>) -> Result<Tensor> {
        Ok(self.dropout.forward(&self.linear.forward(h, batch)?, mode)?)
    }
}
