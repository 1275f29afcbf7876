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
}
