//! Attention to the tokens of another sequence.

use refrain::{SdpaOptions, Tensor};

use super::{Dropout, Linear, Mode};
use crate::error::{Error, Result, in_layer};
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::ParameterBuilder;

const LAYER: &str = "CrossAttention";

/// The options of a [`CrossAttention`].
///
/// ```
/// use refrain_nn::CrossAttentionOptions;
/// let options = CrossAttentionOptions { memory: 96, ..CrossAttentionOptions::new(64, 4) };
/// assert_eq!((options.d_model, options.dropout), (64, 0.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossAttentionOptions {
    /// Features per token that attends.
    pub d_model: usize,
    /// Features per token that is attended to.
    pub memory: usize,
    /// Number of heads; must divide `d_model`.
    pub heads: usize,
    /// Probability that an attention weight is dropped.
    pub dropout: f64,
}

impl CrossAttentionOptions {
    /// Without dropout, between tokens of `d_model` features each.
    pub fn new(d_model: usize, heads: usize) -> CrossAttentionOptions {
        CrossAttentionOptions { d_model, memory: d_model, heads, dropout: 0.0 }
    }
}

/// Multi-head attention to another sequence, as the decoder of a transformer attends to what its encoder made (Vaswani et al.,
/// NeurIPS 2017). Its parameters are:
///
/// - `q`: a [`Linear`] with bias from `d_model` features to the queries, `d_model` features.
/// - `kv`: a [`Linear`] with bias from the features of the other sequence to keys and values, in this order, `d_model` features
///   each.
/// - `o`: a [`Linear`] with bias from `d_model` to `d_model`, after the heads.
///
/// ```
/// use refrain::{DType, Device, Generator, Tensor};
/// use refrain_nn::{CrossAttention, CrossAttentionOptions, Mode, ParameterBuilder};
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let options = CrossAttentionOptions { memory: 6, ..CrossAttentionOptions::new(8, 2) };
/// let attention = CrossAttention::new(&builder, &options)?;
/// let generator = Generator::new(&device, 0)?;
/// builder.build(&generator)?;
/// let x = generator.normal([2, 3, 8], DType::F32)?;
/// let memory = generator.normal([2, 5, 6], DType::F32)?;
/// // The second sequence has three tokens; the others are padding.
/// let lengths = Tensor::from_slice(&[5i64, 3], 2, &device)?;
/// let mask = lengths.sequence_mask(5)?.reshape([2, 1, 1, 5])?;
/// let y = attention.forward(&x, &memory, Some(&mask), Mode::Eval)?;
/// assert_eq!(y.dims(), [2, 3, 8]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct CrossAttention {
    q: Linear,
    kv: Linear,
    o: Linear,
    heads: usize,
    dropout: Dropout,
}

impl CrossAttention {
    /// # Errors
    /// If `heads` does not divide `d_model`, `dropout` is not in `[0, 1)`, or the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, options: &CrossAttentionOptions) -> Result<CrossAttention> {
        let CrossAttentionOptions { d_model, memory, heads, dropout } = *options;
        super::attention::check_heads(LAYER, d_model, heads)?;
        Ok(CrossAttention {
            q: Linear::new(&builder.scope("q"), d_model, d_model)?,
            kv: Linear::new(&builder.scope("kv"), memory, 2 * d_model)?,
            o: Linear::new(&builder.scope("o"), d_model, d_model)?,
            heads,
            dropout: Dropout::new(dropout)?,
        })
    }

    /// Tokens `[batch, n, d_model]` attend to `memory`, `[batch, m, features]`; the result is `[batch, n, d_model]`. `mask` says
    /// which tokens they see, as [`SdpaOptions::mask`]: it broadcasts to `[batch, heads, n, m]`.
    ///
    /// # Errors
    /// If a tensor has another shape, dtype or device.
    pub fn forward(
        &self,
        x: &Tensor,
        memory: &Tensor,
        mask: Option<&Tensor>,
        mode: Mode<'_>,
    ) -> Result<Tensor> {
        in_layer(self, || {
            let (&[batch, n, d_model], &[of_memory, m, _]) = (x.dims(), memory.dims()) else {
                let message = format!(
                    "the inputs have shapes {} and {}; they must be [batch, n, d_model] and [batch, m, features]",
                    x.shape(),
                    memory.shape()
                );
                return Err(Error::invalid(LAYER, message));
            };
            if batch != of_memory {
                let message = format!("{batch} sequences attend to {of_memory}; there must be equally many");
                return Err(Error::invalid(LAYER, message));
            }
            let dim = d_model / self.heads;
            let q = self.q.forward(x)?.view([batch, n, self.heads, dim])?.transpose(1, 2)?;
            let kv = self.kv.forward(memory)?.view([batch, m, 2, self.heads, dim])?;
            let [k, v] = [kv.select(2, 0)?.transpose(1, 2)?, kv.select(2, 1)?.transpose(1, 2)?];
            let options = SdpaOptions { mask, dropout: self.dropout.draws(mode), ..SdpaOptions::default() };
            let (y, _) = q.scaled_dot_product_attention_with(&k, &v, &options)?;
            self.o.forward(&y.transpose(1, 2)?.view([batch, n, d_model])?)
        })
    }
}

impl Layers for CrossAttention {
    fn layers(&self) -> LayerTree {
        let tree = LayerTree::new("CrossAttention").setting("heads", self.heads);
        tree.part("q", &self.q).part("kv", &self.kv).part("o", &self.o).part("dropout", &self.dropout)
    }
}
