//! Normalisation layers.

use refrain::{Communicator, DType, ReduceOp, Tensor, no_grad};

use super::Mode;
use crate::error::{Error, Result, in_layer};
use crate::init::Init;
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::{BatchRanks, Parameter, ParameterBuilder};

/// Layer normalisation over the last dimension (Ba et al., 2016). The parameters `weight` and `bias` have the size of
/// that dimension and start at 1 and 0.
pub struct LayerNorm {
    scale: Scale,
    eps: f64,
}

/// What normalised rows are multiplied by, and what is added to them.
enum Scale {
    Learned { weight: Parameter, bias: Parameter },
    Fixed { ones: Tensor, zeros: Tensor },
}

impl LayerNorm {
    /// For a last dimension of `size`; `eps` (PyTorch: 1e-5) is added to the variance.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, size: usize, eps: f64) -> Result<LayerNorm> {
        let weight = builder.parameter("weight", size, Init::Constant(1.0))?;
        let bias = builder.parameter("bias", size, Init::Constant(0.0))?;
        Ok(LayerNorm { scale: Scale::Learned { weight, bias }, eps })
    }

    /// Without parameters (`elementwise_affine=False` in PyTorch): rows have the mean 0 and the variance 1. The scale and the shift then
    /// come from elsewhere, as in a diffusion transformer.
    ///
    /// # Errors
    /// If the device has no memory for two rows.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// use refrain_nn::{LayerNorm, ParameterBuilder};
    /// let device = Device::cpu();
    /// let norm = LayerNorm::without_parameters(&ParameterBuilder::new(&device, DType::F32), 2, 0.0)?;
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [1, 2], &device)?;
    /// assert_eq!(norm.forward(&x)?.to_vec::<f32>()?, [-1.0, 1.0]);
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    pub fn without_parameters(builder: &ParameterBuilder, size: usize, eps: f64) -> Result<LayerNorm> {
        let ones = Tensor::ones(size, builder.dtype(), builder.device())?;
        Ok(LayerNorm { scale: Scale::Fixed { zeros: ones.zeros_like()?, ones }, eps })
    }

    /// `[.., size]` to the same shape.
    ///
    /// # Errors
    /// If the last size differs from that of the parameters, or the dtypes do not match (see [`Tensor::layer_norm`]).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(self, || match &self.scale {
            Scale::Learned { weight, bias } => {
                Ok(x.layer_norm(weight.tensor()?, bias.tensor()?, self.eps)?)
            }
            Scale::Fixed { ones, zeros } => Ok(x.layer_norm(ones, zeros, self.eps)?),
        })
    }
}

/// Batch normalisation of the channels along one axis (Ioffe and Szegedy, ICML 2015). The parameters `weight` and
/// `bias` start at 1 and 0, the buffers `running_mean` and `running_var` at 0 and 1.
///
/// Of several ranks, each uses the statistics of its own batch, unless [`Parameters::share_batches`] was called.
///
/// [`Parameters::share_batches`]: crate::Parameters::share_batches
pub struct BatchNorm {
    weight: Parameter,
    bias: Parameter,
    running_mean: Parameter,
    running_var: Parameter,
    axis: isize,
    eps: f64,
    momentum: f64,
    ranks: BatchRanks,
}

impl BatchNorm {
    /// For `channels` channels along `axis`. A negative axis counts from the last one; in PyTorch the axis is 1.
    /// `momentum` (PyTorch: 0.1) is the weight of a new statistic in the running one. `eps` (PyTorch: 1e-5) is added
    /// to the variance.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(
        builder: &ParameterBuilder,
        channels: usize,
        axis: isize,
        eps: f64,
        momentum: f64,
    ) -> Result<BatchNorm> {
        Ok(BatchNorm {
            weight: builder.parameter("weight", channels, Init::Constant(1.0))?,
            bias: builder.parameter("bias", channels, Init::Constant(0.0))?,
            running_mean: builder.buffer("running_mean", channels, Init::Constant(0.0))?,
            running_var: builder.buffer("running_var", channels, Init::Constant(1.0))?,
            axis,
            eps,
            momentum,
            ranks: builder.batch_ranks(),
        })
    }

    /// Any shape with `channels` channels along the axis. Training updates the running statistics, except of a channel
    /// where they would not be finite.
    ///
    /// # Errors
    /// If the number of channels differs from that of the parameters, or the dtypes do not match (see
    /// [`Tensor::batch_norm`]).
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        in_layer(self, || {
            if let (true, Some(ranks)) = (mode.is_training(), self.ranks.get()) {
                return self.over_ranks(x, ranks);
            }
            Ok(x.batch_norm(
                self.weight.tensor()?,
                self.bias.tensor()?,
                self.running_mean.tensor()?,
                self.running_var.tensor()?,
                self.axis,
                mode.is_training(),
                self.momentum,
                self.eps,
            )?)
        })
    }
}

impl BatchNorm {
    /// Training with the statistics of the batches of all ranks, which have the same size. Composed of operations, so that the
    /// gradients go back through the collectives.
    fn over_ranks(&self, x: &Tensor, ranks: &Communicator) -> Result<Tensor> {
        let rank = x.rank() as isize;
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
        let [weight, bias, mean, var] =
            [&self.weight, &self.bias, &self.running_mean, &self.running_var].map(Parameter::tensor);
        let (weight, bias, running_mean, running_var) = (weight?, bias?, mean?, var?);
        let channels = weight.numel();
        if !(0..rank).contains(&axis) || x.dims()[axis as usize] != channels {
            let message = format!(
                "the input has shape {}, but the layer is for {channels} channels along axis {}",
                x.shape(),
                self.axis
            );
            return Err(Error::invalid("BatchNorm", message));
        }
        let count = (x.numel() / channels.max(1) * ranks.size()) as f64;
        if count < 2.0 {
            let message = "there are fewer than two values for each channel; use a larger batch";
            return Err(Error::invalid("BatchNorm", message));
        }
        let wide = if x.dtype() == DType::F64 { x.clone() } else { x.to_dtype(DType::F32)? };
        let others: Vec<isize> = (0..rank).filter(|&other| other != axis).collect();
        let over_all = |x: &Tensor| ranks.all_reduce(&x.mean_keepdim(&others[..])?, ReduceOp::Mean); // 1 but for the channels
        let mean = over_all(&wide)?;
        let centred = wide.sub(&mean)?;
        let var = over_all(&centred.square()?)?;
        no_grad(|| -> Result<()> {
            let unbiased = var.detach().mul_scalar(count / (count - 1.0))?;
            let moved = |running: &Tensor, new: &Tensor| -> Result<Tensor> {
                let new = new.mul_scalar(self.momentum)?.reshape([channels])?.to_dtype(running.dtype())?;
                Ok(running.mul_scalar(1.0 - self.momentum)?.add(&new)?)
            };
            let (mean, var) = (moved(running_mean, &mean.detach())?, moved(running_var, &unbiased)?);
            // Like `Tensor::batch_norm`: only of finite numbers is the difference with themselves 0.
            let finite = mean.sub(&mean)?.add(&var.sub(&var)?)?.eq_scalar(0.0)?;
            finite.where_cond_into(&mean, running_mean, running_mean)?;
            finite.where_cond_into(&var, running_var, running_var)?;
            Ok(())
        })?;
        let by_channel =
            |of: &Tensor| -> Result<Tensor> { Ok(of.to_dtype(wide.dtype())?.reshape(mean.dims())?) };
        let scale = var.add_scalar(self.eps)?.rsqrt()?.mul(&by_channel(weight)?)?;
        Ok(centred.mul(&scale)?.add(&by_channel(bias)?)?.to_dtype(x.dtype())?)
    }
}

/// Root-mean-square normalisation over the last dimension (Zhang and Sennrich, NeurIPS 2019). The parameter `weight`
/// has the size of that dimension and starts at 1.
pub struct RmsNorm {
    weight: Parameter,
    eps: f64,
}

impl RmsNorm {
    /// For a last dimension of `size`; `eps` is added to the mean of the squares.
    ///
    /// # Errors
    /// If the name is used already in this scope.
    pub fn new(builder: &ParameterBuilder, size: usize, eps: f64) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: builder.parameter("weight", size, Init::Constant(1.0))?, eps })
    }

    /// `[.., size]` to the same shape.
    ///
    /// # Errors
    /// As for [`LayerNorm::forward`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_layer(self, || Ok(x.rms_norm(self.weight.tensor()?, self.eps)?))
    }
}

/// The kind of normalisation in a transformer layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormKind {
    /// Over the features of each token: [`LayerNorm`].
    #[default]
    Layer,
    /// Over batch and tokens for each feature, as in PatchTST: [`BatchNorm`] with momentum 0.1.
    Batch,
    /// By the root mean square of the features of each token: [`RmsNorm`].
    Rms,
}

/// The normalisation of tokens `[.., d_model]`.
pub(super) enum Norm {
    Layer(LayerNorm),
    Batch(BatchNorm),
    Rms(RmsNorm),
}

impl Norm {
    pub(super) fn new(builder: &ParameterBuilder, kind: NormKind, d_model: usize, eps: f64) -> Result<Norm> {
        const MOMENTUM: f64 = 0.1;
        Ok(match kind {
            NormKind::Layer => Norm::Layer(LayerNorm::new(builder, d_model, eps)?),
            NormKind::Batch => Norm::Batch(BatchNorm::new(builder, d_model, -1, eps, MOMENTUM)?),
            NormKind::Rms => Norm::Rms(RmsNorm::new(builder, d_model, eps)?),
        })
    }

    pub(super) fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::Batch(norm) => norm.forward(x, mode),
            Norm::Rms(norm) => norm.forward(x),
        }
    }
}

impl Layers for LayerNorm {
    fn layers(&self) -> LayerTree {
        let tree = LayerTree::new("LayerNorm");
        match &self.scale {
            Scale::Learned { weight, bias } => {
                let tree = tree.setting("size", weight.shape().numel()).setting("eps", self.eps);
                tree.parameter(weight).parameter(bias)
            }
            Scale::Fixed { ones, .. } => {
                let tree = tree.setting("size", ones.numel()).setting("eps", self.eps);
                tree.setting("parameters", false)
            }
        }
    }
}

impl Layers for BatchNorm {
    fn layers(&self) -> LayerTree {
        let tree = LayerTree::new("BatchNorm").setting("channels", self.weight.shape().numel());
        let tree =
            tree.setting("axis", self.axis).setting("eps", self.eps).setting("momentum", self.momentum);
        let all = [&self.weight, &self.bias, &self.running_mean, &self.running_var];
        all.into_iter().fold(tree, LayerTree::parameter)
    }
}

impl Layers for RmsNorm {
    fn layers(&self) -> LayerTree {
        let tree = LayerTree::new("RmsNorm").setting("size", self.weight.shape().numel());
        tree.setting("eps", self.eps).parameter(&self.weight)
    }
}

impl Layers for Norm {
    fn layers(&self) -> LayerTree {
        match self {
            Norm::Layer(norm) => norm.layers(),
            Norm::Batch(norm) => norm.layers(),
            Norm::Rms(norm) => norm.layers(),
        }
    }
}
