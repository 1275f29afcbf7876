//! A linear map of each channel's features, shared by the channels or one for each.

use crate::Result;
use refrain::Tensor;
use refrain_nn::{Init, Linear, Parameter, ParameterBuilder};

pub(super) struct ChannelLinear {
    map: Map,
    channels: usize,
    inputs: usize,
    outputs: usize,
}

enum Map {
    Shared(Linear),
    /// `weight` `[C, inputs, outputs]` and `bias` `[C, 1, outputs]`.
    Individual {
        weight: Parameter,
        bias: Parameter,
    },
}

impl ChannelLinear {
    /// Weights begin as those of PyTorch's linear layers.
    pub(super) fn new(
        builder: &ParameterBuilder,
        [channels, inputs, outputs]: [usize; 3],
        individual: bool,
    ) -> Result<ChannelLinear> {
        let map = if individual {
            let init = Init::torch_bias(inputs);
            Map::Individual {
                weight: builder.parameter("weight", [channels, inputs, outputs], init)?,
                bias: builder.parameter("bias", [channels, 1, outputs], init)?,
            }
        } else {
            Map::Shared(Linear::new(builder, inputs, outputs)?)
        };
        Ok(ChannelLinear { map, channels, inputs, outputs })
    }

    /// `batch * channels * inputs` features, the last of them fastest, to `[B, C, outputs]`.
    pub(super) fn forward(&self, features: &Tensor, batch: usize) -> Result<Tensor> {
        let ChannelLinear { channels, inputs, outputs, .. } = *self;
        Ok(match &self.map {
            Map::Shared(linear) => {
                let rows = features.reshape([batch * channels, inputs])?;
                linear.forward(&rows)?.reshape([batch, channels, outputs])?
            }
            Map::Individual { weight, bias } => {
                let by_channel = features.reshape([batch, channels, inputs])?.transpose(0, 1)?;
                let (weight, bias) = (weight.tensor()?, bias.tensor()?);
                by_channel.matmul(weight)?.to_dtype(bias.dtype())?.add(bias)?.transpose(0, 1)?
            }
        })
    }

    /// `[B C, N, inputs]`, several rows of features a channel, to `[B C, N, outputs]`.
    pub(super) fn forward_rows(&self, features: &Tensor) -> Result<Tensor> {
        let ChannelLinear { channels, inputs, outputs, .. } = *self;
        match &self.map {
            Map::Shared(linear) => Ok(linear.forward(features)?),
            Map::Individual { weight, bias } => {
                let (batch, rows) = (features.dims()[0] / channels, features.dims()[1]);
                let by_channel = features.reshape([batch, channels, rows, inputs])?.transpose(0, 1)?;
                let by_channel = by_channel.reshape([channels, batch * rows, inputs])?;
                let (weight, bias) = (weight.tensor()?, bias.tensor()?);
                let mapped = by_channel.matmul(weight)?;
                let mapped = mapped.add(&bias.to_dtype(mapped.dtype())?)?;
                let mapped = mapped.reshape([channels, batch, rows, outputs])?.transpose(0, 1)?;
                Ok(mapped.reshape([batch * channels, rows, outputs])?)
            }
        }
    }
}
