//! The layer of a transformer encoder.

use refrain::{Activation, Tensor};

use super::norm::Norm;
use super::{AttentionContext, AttentionOptions, Dropout, Linear, Mode, MultiHeadAttention, NormKind};
use crate::error::{Error, Result, in_layer};
use crate::init::Init;
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::ParameterBuilder;

const LAYER: &str = "TransformerEncoderLayer";

/// The dropout probabilities of a [`TransformerEncoderLayer`]. That of the attention weights is
/// [`AttentionOptions::dropout`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EncoderDropout {
    /// Of the output of the attention, before the residual is added.
    pub attention_output: f64,
    /// Of the hidden features of the feed-forward network.
    pub ffn_hidden: f64,
    /// Of the output of the feed-forward network, before the residual is added.
    pub ffn_output: f64,
}

impl EncoderDropout {
    /// The same probability everywhere.
    pub fn all(p: f64) -> EncoderDropout {
        EncoderDropout { attention_output: p, ffn_hidden: p, ffn_output: p }
    }
}

/// The options of a [`TransformerEncoderLayer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransformerEncoderOptions {
    /// The attention, with the number of features per token.
    pub attention: AttentionOptions,
    /// Hidden features of the feed-forward network.
    pub ffn: usize,
    /// Whether the two linear layers of the feed-forward network have biases.
    pub ffn_bias: bool,
    /// Whether the tokens at one position of several channels attend to each other, between attention and feed-forward
    /// network, with the same projections ([`TransformerEncoderLayer::forward_channels`]).
    pub channel_attention: bool,
    /// Whether attention and feed-forward network normalise their input (pre-norm), or the sum of their output and
    /// the residual (post-norm).
    pub norm_first: bool,
    /// The kind of normalisation.
    pub norm: NormKind,
    /// What the normalisation adds to the variance.
    pub eps: f64,
    /// The activation of the feed-forward network.
    pub activation: Activation,
    /// The dropout probabilities in training.
    pub dropout: EncoderDropout,
}

impl TransformerEncoderOptions {
    /// The defaults of `nn.TransformerEncoderLayer` of PyTorch, but without dropout: post-norm, [`NormKind::Layer`], ReLU, and biases.
    pub fn new(attention: AttentionOptions, ffn: usize) -> TransformerEncoderOptions {
        TransformerEncoderOptions {
            attention,
            ffn,
            ffn_bias: true,
            channel_attention: false,
            norm_first: false,
            norm: NormKind::Layer,
            eps: 1e-5,
            activation: Activation::Relu,
            dropout: EncoderDropout::default(),
        }
    }
}

/// One layer of a transformer encoder (Vaswani et al., NeurIPS 2017; pre-norm: Xiong et al., ICML 2020). Its parts
/// are named `norm1`, `attn`, `norm2`, `ffn.0` and `ffn.2`:
///
/// ```text
/// pre-norm   x + dropout(attn(norm1(x))),  then  x + dropout(ffn(norm2(x)))
/// post-norm  norm1(x + dropout(attn(x))),  then  norm2(x + dropout(ffn(x)))
/// ffn(x) = ffn.2(dropout(activation(ffn.0(x))))
/// ```
///
/// With channel attention, `attn` attends a second time between the two, along the channels, with the norm
/// `norm_channels`.
///
/// ```
/// use refrain::{DType, Device, Generator};
/// use refrain_nn::{
///     AttentionOptions, EncoderDropout, Mode, ParameterBuilder, RotaryOptions, TransformerEncoderLayer,
///     TransformerEncoderOptions,
/// };
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let rotary = Some(RotaryOptions::new(512)); // positions, for up to 512 tokens
/// let attention = AttentionOptions { rotary, dropout: 0.1, ..AttentionOptions::new(64, 4) };
/// let options = TransformerEncoderOptions {
///     norm_first: true,
///     dropout: EncoderDropout::all(0.1),
///     ..TransformerEncoderOptions::new(attention, 256)
/// };
/// let layer = TransformerEncoderLayer::new(&builder.scope("layers").scope(0), &options)?;
/// let random = Generator::new(&device, 0)?;
/// builder.build(&random)?;
/// let tokens = random.normal([2, 10, 64], DType::F32)?;
/// assert_eq!(layer.forward(&tokens, Mode::Train(&random))?.dims(), [2, 10, 64]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct TransformerEncoderLayer {
    norm1: Norm,
    attn: MultiHeadAttention,
    norm_channels: Option<Norm>,
    norm2: Norm,
    ffn0: Linear,
    ffn2: Linear,
    norm_first: bool,
    activation: Activation,
    attention_output: Dropout,
    ffn_hidden: Dropout,
    ffn_output: Dropout,
}

impl TransformerEncoderLayer {
    /// # Errors
    /// If the heads do not divide `d_model`, a dropout is not in `[0, 1)`, the names are used already in this scope, or
    /// rotary positions are asked for together with channel attention, where they have no meaning.
    pub fn new(
        builder: &ParameterBuilder,
        options: &TransformerEncoderOptions,
    ) -> Result<TransformerEncoderLayer> {
        let TransformerEncoderOptions { attention, ffn, norm, eps, dropout, .. } = *options;
        let d_model = attention.d_model;
        if options.channel_attention && attention.rotary.is_some() {
            let message = "channels have no positions; use channel attention without rotary positions";
            return Err(Error::invalid(LAYER, message));
        }
        let a_norm = |name| Norm::new(&builder.scope(name), norm, d_model, eps);
        let linear = |name, inputs, outputs| {
            let bias = options.ffn_bias.then(|| Init::torch_bias(inputs));
            let builder = builder.scope("ffn").scope(name);
            Linear::with_init(&builder, inputs, outputs, Init::torch_linear(), bias)
        };
        Ok(TransformerEncoderLayer {
            norm1: a_norm("norm1")?,
            attn: MultiHeadAttention::new(&builder.scope("attn"), &attention)?,
            norm_channels: options.channel_attention.then(|| a_norm("norm_channels")).transpose()?,
            norm2: a_norm("norm2")?,
            ffn0: linear(0, d_model, ffn)?,
            ffn2: linear(2, ffn, d_model)?,
            norm_first: options.norm_first,
            activation: options.activation,
            attention_output: Dropout::new(dropout.attention_output)?,
            ffn_hidden: Dropout::new(dropout.ffn_hidden)?,
            ffn_output: Dropout::new(dropout.ffn_output)?,
        })
    }

    /// `[batch, tokens, d_model]` to the same shape. Under [`Precision::Bf16`](refrain::Precision::Bf16) the result
    /// is bf16.
    ///
    /// # Errors
    /// If `x` has another rank, last size or dtype.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.forward_with(x, AttentionContext::default(), mode)
    }

    /// [`TransformerEncoderLayer::forward`] with a mask, a key-value cache, or scores, which layers of a stack pass on: begin with
    /// `None` and pass the same variable to every layer. Each layer needs a cache of its own.
    ///
    /// # Errors
    /// As for [`MultiHeadAttention::forward_with`].
    pub fn forward_with(&self, x: &Tensor, context: AttentionContext<'_>, mode: Mode<'_>) -> Result<Tensor> {
        self.forward_channels(x, 1, context, mode)
    }

    /// Like [`TransformerEncoderLayer::forward_with`], for `[batch * channels, tokens, d_model]`, the channels of a
    /// sample one after another. With channel attention, the tokens at one position attend to each other along the
    /// channels; without, `channels` has no influence. What `context` has is for the attention among tokens.
    ///
    /// # Errors
    /// As for `forward_with`, and if `channels` does not divide the first size.
    pub fn forward_channels(
        &self,
        x: &Tensor,
        channels: usize,
        context: AttentionContext<'_>,
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        in_layer(self, || {
            let mut x = self.attend(&self.norm1, x, context, mode)?;
            if let Some(norm) = &self.norm_channels {
                x = self.attend_channels(norm, &x, channels, mode)?;
            }
            if self.norm_first {
                self.feed_forward(&self.norm2.forward(&x, mode)?, &x, mode)
            } else {
                self.norm2.forward(&self.feed_forward(&x, &x, mode)?, mode)
            }
        })
    }

    /// Attention with its residual branch and its norm.
    fn attend(
        &self,
        norm: &Norm,
        x: &Tensor,
        context: AttentionContext<'_>,
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        if self.norm_first {
            self.add_attention(&norm.forward(x, mode)?, x, context, mode)
        } else {
            norm.forward(&self.add_attention(x, x, context, mode)?, mode)
        }
    }

    /// Attention along the channels, at each position of its own.
    fn attend_channels(&self, norm: &Norm, x: &Tensor, channels: usize, mode: Mode<'_>) -> Result<Tensor> {
        let &[rows, tokens, d_model] = x.dims() else {
            let message =
                format!("the input has shape {}; it must be [batch * channels, tokens, d_model]", x.shape());
            return Err(Error::invalid(LAYER, message));
        };
        if channels == 0 || !rows.is_multiple_of(channels) {
            let message = format!(
                "{rows} rows of {channels} channels; the number of channels must divide that of the rows"
            );
            return Err(Error::invalid(LAYER, message));
        }
        let batch = rows / channels;
        let across = x.reshape([batch, channels, tokens, d_model])?.transpose(1, 2)?;
        let across = across.reshape([batch * tokens, channels, d_model])?;
        let y = self.attend(norm, &across, AttentionContext::default(), mode)?;
        Ok(y.reshape([batch, tokens, channels, d_model])?
            .transpose(1, 2)?
            .reshape([rows, tokens, d_model])?)
    }

    /// `residual + dropout(attn(x))`.
    fn add_attention(
        &self,
        x: &Tensor,
        residual: &Tensor,
        context: AttentionContext<'_>,
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        let heads = self.attn.attend(x, context, mode)?;
        add_branch(self.attn.output(), &heads, residual, &self.attention_output, mode)
    }

    /// `residual + dropout(ffn(x))`.
    fn feed_forward(&self, x: &Tensor, residual: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let hidden = self.ffn0.forward_with(x, self.activation, None)?;
        let hidden = self.ffn_hidden.forward(&hidden, mode)?;
        add_branch(&self.ffn2, &hidden, residual, &self.ffn_output, mode)
    }
}

/// `residual + dropout(linear(x))`. Dropout or, without it, the linear layer itself adds the residual. In mixed precision an
/// f32 residual is converted to bf16, the dtype of the branch.
fn add_branch(
    linear: &Linear,
    x: &Tensor,
    residual: &Tensor,
    dropout: &Dropout,
    mode: Mode<'_>,
) -> Result<Tensor> {
    let Some((p, generator)) = dropout.draws(mode) else {
        return linear.forward_with(x, Activation::None, Some(residual));
    };
    let branch = linear.forward(x)?;
    Ok(branch.dropout_add(p, generator, &residual.to_dtype(branch.dtype())?)?)
}

impl Layers for TransformerEncoderLayer {
    fn layers(&self) -> LayerTree {
        LayerTree::new("TransformerEncoderLayer")
            .setting("norm_first", self.norm_first)
            .part("norm1", &self.norm1)
            .part("attn", &self.attn)
            .part("attention_output", &self.attention_output)
            .part("norm_channels", &self.norm_channels)
            .part("norm2", &self.norm2)
            .part("ffn.0", &self.ffn0)
            .part("activation", &self.activation)
            .part("ffn_hidden", &self.ffn_hidden)
            .part("ffn.2", &self.ffn2)
            .part("ffn_output", &self.ffn_output)
    }
}
