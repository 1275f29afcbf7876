//! Multi-head attention.

use refrain::{SdpaOptions, Tensor};

use super::{Dropout, KeyValueCache, Linear, Mode, Rotary, RotaryOptions};
use crate::error::{Error, Result, in_layer};
use crate::init::Init;
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::{Parameter, ParameterBuilder};

const LAYER: &str = "MultiHeadAttention";

/// The smallest length that queries and keys are divided by, as in `torch.nn.functional.normalize`.
const EPS: f64 = 1e-12;

/// The options of a [`MultiHeadAttention`]. [`AttentionOptions::new`] gives plain attention; change what differs:
///
/// ```
/// use refrain_nn::AttentionOptions;
/// let options = AttentionOptions { causal: true, dropout: 0.1, ..AttentionOptions::new(64, 4) };
/// assert_eq!(options.qk_norm, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOptions {
    /// Features per token.
    pub d_model: usize,
    /// Number of heads; must divide `d_model`.
    pub heads: usize,
    /// Whether a token attends only to itself and to earlier tokens.
    pub causal: bool,
    /// If set, queries and keys are scaled to length 1, and a learned temperature for each head replaces `1 /
    /// sqrt(dim)`. The temperature starts at this value; a larger one makes the attention sharper (Henry et al.,
    /// "Query-Key Normalization for Transformers", Findings of EMNLP 2020).
    pub qk_norm: Option<f64>,
    /// If set, queries and keys are turned by angles that grow with their positions ([`Rotary`]), so that a score depends on how far
    /// two tokens are apart. Positions count from the first token of the input or, with a [`KeyValueCache`], from its first token.
    /// The features of a head, `d_model / heads`, must be an even number.
    ///
    /// ```
    /// use refrain::{DType, Device, Generator};
    /// use refrain_nn::{AttentionOptions, Mode, MultiHeadAttention, ParameterBuilder, RotaryOptions};
    ///
    /// let device = Device::cpu();
    /// let builder = ParameterBuilder::new(&device, DType::F32);
    /// let rotary = Some(RotaryOptions::new(512)); // for up to 512 tokens
    /// let options = AttentionOptions { causal: true, rotary, ..AttentionOptions::new(64, 4) };
    /// let attention = MultiHeadAttention::new(&builder, &options)?;
    /// let random = Generator::new(&device, 0)?;
    /// builder.build(&random)?;
    /// let tokens = random.normal([2, 10, 64], DType::F32)?;
    /// assert_eq!(attention.forward(&tokens, Mode::Eval)?.dims(), [2, 10, 64]);
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    pub rotary: Option<RotaryOptions>,
    /// Whether the scores of the previous layer are added to the scores of this layer (RealFormer: He et al.,
    /// Findings of ACL 2021).
    pub residual_scores: bool,
    /// Probability that an attention weight is dropped.
    pub dropout: f64,
}

impl AttentionOptions {
    /// Plain attention: every token attends to all tokens.
    pub fn new(d_model: usize, heads: usize) -> AttentionOptions {
        AttentionOptions {
            d_model,
            heads,
            causal: false,
            qk_norm: None,
            rotary: None,
            residual_scores: false,
            dropout: 0.0,
        }
    }
}

/// Checks that each head gets equally many features.
pub(super) fn check_heads(layer: &'static str, d_model: usize, heads: usize) -> Result<()> {
    if heads > 0 && d_model.is_multiple_of(heads) {
        return Ok(());
    }
    let message = format!(
        "{heads} heads for d_model {d_model}; the number of heads must divide d_model without remainder"
    );
    Err(Error::invalid(layer, message))
}

/// What a self-attention takes besides its tokens. The default is nothing.
///
/// ```
/// use refrain::{DType, Device, Generator, Tensor};
/// use refrain_nn::{AttentionContext, AttentionOptions, Mode, MultiHeadAttention, ParameterBuilder};
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let attention = MultiHeadAttention::new(&builder, &AttentionOptions::new(8, 2))?;
/// let generator = Generator::new(&device, 0)?;
/// builder.build(&generator)?;
/// let x = generator.normal([2, 5, 8], DType::F32)?;
/// // The second sequence has three tokens; the others are padding, which no token sees.
/// let lengths = Tensor::from_slice(&[5i64, 3], 2, &device)?;
/// let mask = lengths.sequence_mask(5)?.reshape([2, 1, 1, 5])?;
/// let context = AttentionContext { mask: Some(&mask), ..AttentionContext::default() };
/// let y = attention.forward_with(&x, context, Mode::Eval)?;
/// // The three tokens alone give the same.
/// let alone = attention.forward(&x.i((1..2, ..3))?, Mode::Eval)?.to_vec::<f32>()?;
/// let padded = y.i((1..2, ..3))?.to_vec::<f32>()?;
/// assert!(alone.iter().zip(&padded).all(|(a, b)| (a - b).abs() < 1e-5));
/// # Ok::<(), refrain_nn::Error>(())
/// ```
#[derive(Default)]
pub struct AttentionContext<'a> {
    /// Which tokens a token sees: bool (true where it does), or float, which is added to the scores. It broadcasts to `[batch,
    /// heads, tokens, tokens]`; with a cache, the last axis has the tokens of the cache first. See [`SdpaOptions::mask`].
    pub mask: Option<&'a Tensor>,
    /// With [`AttentionOptions::residual_scores`]: the scores of the previous layer, `[batch, heads, tokens, tokens]` (`None` in
    /// the first layer). Afterwards it has those of this layer, 0 where a token does not see another.
    pub scores: Option<&'a mut Option<Tensor>>,
    /// Keys and values of the tokens before. Those of these tokens are added.
    pub cache: Option<&'a mut KeyValueCache>,
}

/// Multi-head self-attention (Vaswani et al., NeurIPS 2017). Its parameters are:
///
/// - `qkv`: a [`Linear`] with bias from `d_model` features to queries, keys and values, in this order, `d_model`
///   features each. Head `h` takes the `h`-th run of `d_model / heads` features of each.
/// - `o`: a [`Linear`] with bias from `d_model` to `d_model`, after the heads.
/// - `temperature` `[heads]`, only with normalised queries and keys.
///
/// ```text
/// softmax(q . k / sqrt(dim)) v                    plain
/// softmax(t_h * (q / |q|) . (k / |k|)) v          with normalised queries and keys
/// ```
pub struct MultiHeadAttention {
    qkv: Linear,
    o: Linear,
    temperature: Option<Parameter>,
    rotary: Option<Rotary>,
    options: AttentionOptions,
    dropout: Dropout,
}

impl MultiHeadAttention {
    /// # Errors
    /// If `heads` does not divide `d_model`, `dropout` is not in `[0, 1)`, the names are used already in this scope, or rotary
    /// positions are for heads of an odd number of features.
    pub fn new(builder: &ParameterBuilder, options: &AttentionOptions) -> Result<MultiHeadAttention> {
        let AttentionOptions { d_model, heads, .. } = *options;
        check_heads(LAYER, d_model, heads)?;
        let temperature = |value| builder.parameter("temperature", heads, Init::Constant(value));
        let rotary = |RotaryOptions { positions, base }| {
            Rotary::new(d_model / heads, positions, base, builder.dtype(), builder.device())
        };
        Ok(MultiHeadAttention {
            qkv: Linear::new(&builder.scope("qkv"), d_model, 3 * d_model)?,
            o: Linear::new(&builder.scope("o"), d_model, d_model)?,
            temperature: options.qk_norm.map(temperature).transpose()?,
            rotary: options.rotary.map(rotary).transpose()?,
            options: *options,
            dropout: Dropout::new(options.dropout)?,
        })
    }

    /// `[batch, tokens, d_model]` to the same shape.
    ///
    /// # Errors
    /// If `x` has another rank, last size or dtype.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.forward_with(x, AttentionContext::default(), mode)
    }

    /// [`MultiHeadAttention::forward`] with a mask, scores or a key-value cache.
    ///
    /// # Errors
    /// As for `forward`; if the mask or the scores have another shape or dtype; if the cache is full or belongs to another layer,
    /// or outside of `no_grad` with a cache; if there are more tokens than rotary positions.
    pub fn forward_with(&self, x: &Tensor, context: AttentionContext<'_>, mode: Mode<'_>) -> Result<Tensor> {
        self.o.forward(&self.attend(x, context, mode)?)
    }

    /// The concatenated results of the heads, `[batch, tokens, d_model]`, before the projection
    /// [`MultiHeadAttention::output`].
    ///
    /// # Errors
    /// As for [`MultiHeadAttention::forward_with`].
    pub fn attend(&self, x: &Tensor, context: AttentionContext<'_>, mode: Mode<'_>) -> Result<Tensor> {
        in_layer(self, || self.heads(x, context, mode))
    }

    fn heads(&self, x: &Tensor, context: AttentionContext<'_>, mode: Mode<'_>) -> Result<Tensor> {
        let &[batch, tokens, d_model] = x.dims() else {
            let message = format!("the input has shape {}; it must be [batch, tokens, d_model]", x.shape());
            return Err(Error::invalid(LAYER, message));
        };
        let AttentionOptions { heads, causal, residual_scores, .. } = self.options;
        let dim = d_model / heads;
        let mut qkv = self.qkv.forward(x)?.view([batch, tokens, 3, heads, dim])?;
        if let Some(temperature) = &self.temperature {
            qkv = qkv.qk_norm(temperature.tensor()?, EPS)?;
        }
        let AttentionContext { mask, scores, cache } = context;
        let past = cache.as_ref().map_or(0, |cache| cache.len());
        let options = SdpaOptions {
            scale: self.temperature.as_ref().map(|_| 1.0),
            causal,
            dropout: self.dropout.draws(mode),
            scores: scores.as_deref().and_then(Option::as_ref).filter(|_| residual_scores),
            returns_scores: residual_scores,
            mask,
            past,
        };
        let (y, sum) = if cache.is_none() && self.rotary.is_none() {
            qkv.scaled_dot_product_attention_qkvpacked_with(&options)?
        } else {
            let [q, k, v] = self.unpack(&qkv, past)?;
            let (k, v, cache) = match cache {
                None => (k, v, None),
                Some(cache) => {
                    let [k, v] = cache.append(&k, &v)?;
                    (k, v, Some(cache))
                }
            };
            let [q, k, v] = [q, k, v].map(|t| t.transpose(1, 2));
            let attended = q?.scaled_dot_product_attention_with(&k?, &v?, &options);
            if let (Err(_), Some(cache)) = (&attended, cache) {
                // Tokens that got no answer are not kept: the call may be repeated.
                cache.forget_from(past);
            }
            let (y, sum) = attended?;
            (y.transpose(1, 2)?, sum)
        };
        if let Some(scores) = scores.filter(|_| residual_scores) {
            *scores = sum;
        }
        Ok(y.view([batch, tokens, d_model])?)
    }

    /// Queries, keys and values, `[batch, tokens, heads, dim]`, of `[batch, tokens, 3, heads, dim]`. With rotary positions, queries
    /// and keys are turned; the first token has the position `start`.
    fn unpack(&self, qkv: &Tensor, start: usize) -> Result<[Tensor; 3]> {
        let [q, k, v] = [0, 1, 2].map(|part| qkv.select(2, part));
        let Some(rotary) = &self.rotary else { return Ok([q?, k?, v?]) };
        let turned =
            |t: Tensor| Ok::<_, Error>(rotary.forward_mixed(&t.transpose(1, 2)?, start)?.transpose(1, 2)?);
        Ok([turned(q?)?, turned(k?)?, v?])
    }

    /// The projection after the heads.
    pub fn output(&self) -> &Linear {
        &self.o
    }
}

impl Layers for MultiHeadAttention {
    fn layers(&self) -> LayerTree {
        let AttentionOptions { heads, causal, .. } = self.options;
        let tree = LayerTree::new("MultiHeadAttention").setting("heads", heads).setting("causal", causal);
        let tree = tree.part("qkv", &self.qkv).part("o", &self.o).part("temperature", &self.temperature);
        tree.part("rotary", &self.rotary).part("dropout", &self.dropout)
    }
}
