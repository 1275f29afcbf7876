//! Group normalisation.

use refrain::Tensor;

use crate::error::{Error, Result, in_layer};
use crate::init::Init;
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::{Parameter, ParameterBuilder};

const LAYER: &str = "GroupNorm";

/// Group normalisation (Wu and He, ECCV 2018): the channels are split into groups, and each group of each sample is
/// normalised over its channels and all positions. The parameters `weight` and `bias` `[channels]` start at 1 and 0.
pub struct GroupNorm {
    weight: Parameter,
    bias: Parameter,
    groups: usize,
    channels: usize,
    eps: f64,
}

impl GroupNorm {
    /// For `channels` channels in `groups` groups; `eps` (PyTorch: 1e-5) is added to the variance.
    ///
    /// # Errors
    /// If `groups` does not divide `channels`, or the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, groups: usize, channels: usize, eps: f64) -> Result<GroupNorm> {
        if groups == 0 || !channels.is_multiple_of(groups) {
            let message = format!(
                "{groups} groups for {channels} channels; their number must divide that of the channels"
            );
            return Err(Error::invalid(LAYER, message));
        }
        let (weight, bias) = (Init::Constant(1.0), Init::Constant(0.0));
        Ok(GroupNorm {
            weight: builder.parameter("weight", channels, weight)?,
            bias: builder.parameter("bias", channels, bias)?,
            groups,
            channels,
            eps,
        })
    }

    /// `[batch, channels, ..]` to the same shape.
    ///
    /// # Errors
    /// If `x` has another number of channels, or its dtype is not a float that goes with the parameters (see
    /// [`Tensor::layer_norm`]).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(self, || {
            let dims = x.dims();
            if dims.len() < 2 || dims[1] != self.channels {
                let message =
                    format!("the input has shape {}; it must be [batch, {}, ..]", x.shape(), self.channels);
                return Err(Error::invalid(LAYER, message));
            }
            let size = self.channels / self.groups * dims[2..].iter().product::<usize>();
            let rows = x.reshape([dims[0], self.groups, size])?;
            let (weight, bias) = (self.weight.tensor()?, self.bias.tensor()?);
            // A normalisation without parameters of its own: they are for channels, which a group has several of.
            let ones = Tensor::ones(size, weight.dtype(), x.device())?;
            let y = rows.layer_norm(&ones, &ones.zeros_like()?, self.eps)?.reshape(x.shape())?;
            let of_channels = |parameter: &Tensor| {
                let mut shape = vec![1; dims.len() - 1];
                shape[0] = self.channels;
                parameter.to_dtype(y.dtype())?.reshape(shape)
            };
            Ok((y.mul(&of_channels(weight)?)? + of_channels(bias)?)?)
        })
    }
}

impl Layers for GroupNorm {
    fn layers(&self) -> LayerTree {
        let tree =
            LayerTree::new("GroupNorm").setting("groups", self.groups).setting("channels", self.channels);
        tree.setting("eps", self.eps).parameter(&self.weight).parameter(&self.bias)
    }
}
