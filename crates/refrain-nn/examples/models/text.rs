//! Models of text.

use refrain::{Activation, CrossEntropyOptions, DType, Generator, Tensor};
use refrain_nn::{
    AttentionContext, AttentionOptions, CrossAttention, CrossAttentionOptions, Dropout, Embedding,
    EncoderDropout, Init, LayerNorm, Linear, MultiHeadAttention, Parameter, ParameterBuilder, Result,
    RmsNorm, RotaryOptions, TransformerEncoderLayer, TransformerEncoderOptions,
};

use crate::{Loss, ids};

pub struct Gpt {
    pub vocabulary: usize,
    pub context: usize,
    pub width: usize,
    pub layers: usize,
    pub batch: usize,
}

/// A layer of a GPT or of a vision transformer, with heads of 64.
pub fn encoder(
    b: &ParameterBuilder,
    width: usize,
    causal: bool,
    dropout: f64,
) -> Result<TransformerEncoderLayer> {
    let attention = AttentionOptions { causal, ..AttentionOptions::new(width, width / 64) };
    let options = TransformerEncoderOptions {
        norm_first: true,
        activation: Activation::Gelu,
        dropout: EncoderDropout::all(dropout),
        ..TransformerEncoderOptions::new(attention, 4 * width)
    };
    TransformerEncoderLayer::new(b, &options)
}

/// Learned positions, GELU, biases, dropout of 0.1.
pub fn gpt(b: &ParameterBuilder, g: &Generator, sizes: Gpt) -> Result<Loss> {
    let Gpt { vocabulary, context, width, layers, batch } = sizes;
    let tokens = Embedding::new(&b.scope("tokens"), vocabulary, width)?;
    let places = Embedding::new(&b.scope("places"), context, width)?;
    let drop = Dropout::new(0.1)?;
    let layers = (0..layers)
        .map(|i| encoder(&b.scope("layers").scope(i), width, true, 0.1))
        .collect::<Result<Vec<_>>>()?;
    let norm = LayerNorm::new(&b.scope("norm"), width, 1e-5)?;
    let head = Linear::without_bias(&b.scope("head"), width, vocabulary)?;
    let text = ids(g, vocabulary, &[batch, context + 1])?;
    let (input, next) = (text.i((.., ..context))?.copy()?, text.i((.., 1..))?.copy()?);
    let positions = Tensor::arange(0.0, context as f64, 1.0, DType::I64, g.device())?;
    Ok(Box::new(move |mode| {
        let x = tokens.forward(&input)?.add(&places.forward(&positions)?)?;
        let mut x = drop.forward(&x, mode)?;
        for layer in &layers {
            x = layer.forward(&x, mode)?;
        }
        Ok(head.forward(&norm.forward(&x)?)?.cross_entropy(&next)?)
    }))
}

/// Rotary positions, RMS norm, gated feed-forward halves, no biases but those of the attention.
pub fn llama(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (vocabulary, context, width, hidden, batch) = (32000, 512, 512, 1376, 8);
    let linear = Linear::without_bias;
    let options = AttentionOptions {
        causal: true,
        rotary: Some(RotaryOptions::new(context)),
        ..AttentionOptions::new(width, width / 64)
    };
    let tokens = Embedding::new(&b.scope("tokens"), vocabulary, width)?;
    let mut blocks = Vec::new();
    for i in 0..4 {
        let b = b.scope("blocks").scope(i);
        blocks.push((
            RmsNorm::new(&b.scope("norm1"), width, 1e-5)?,
            MultiHeadAttention::new(&b.scope("attention"), &options)?,
            RmsNorm::new(&b.scope("norm2"), width, 1e-5)?,
            [linear(&b.scope("gate"), width, hidden)?, linear(&b.scope("up"), width, hidden)?],
            linear(&b.scope("down"), hidden, width)?,
        ));
    }
    let norm = RmsNorm::new(&b.scope("norm"), width, 1e-5)?;
    let head = linear(&b.scope("head"), width, vocabulary)?;
    let text = ids(g, vocabulary, &[batch, context + 1])?;
    let (input, next) = (text.i((.., ..context))?.copy()?, text.i((.., 1..))?.copy()?);
    Ok(Box::new(move |mode| {
        let mut x = tokens.forward(&input)?;
        for (norm1, attention, norm2, [gate, up], down) in &blocks {
            x = x.add(&attention.forward(&norm1.forward(&x)?, mode)?)?;
            let y = norm2.forward(&x)?;
            let y = gate.forward(&y)?.silu()?.mul(&up.forward(&y)?)?;
            x = x.add(&down.forward(&y)?)?;
        }
        Ok(head.forward(&norm.forward(&x)?)?.cross_entropy(&next)?)
    }))
}

/// Which of `length` tokens belong to each of `batch` sequences, which have half of them and more: `[batch, 1, 1, length]`.
fn padding(g: &Generator, batch: usize, length: usize) -> Result<Tensor> {
    let lengths = g.randint(length as i64 / 2, length as i64 + 1, [batch])?;
    Ok(lengths.sequence_mask(length)?.reshape([batch, 1, 1, length])?)
}

/// A layer of a decoder, which attends to its own tokens and to those of the encoder.
struct DecoderLayer {
    norms: [LayerNorm; 3],
    attention: MultiHeadAttention,
    cross: CrossAttention,
    ffn: [Linear; 2],
}

/// Encoder and decoder, three layers each, for sentences of different lengths; label smoothing, dropout of 0.1.
pub fn translation(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (vocabulary, length, width, batch) = (8000, 64, 256, 64);
    let source = Embedding::new(&b.scope("source"), vocabulary, width)?;
    let target = Embedding::new(&b.scope("target"), vocabulary, width)?;
    let places = Embedding::new(&b.scope("places"), length, width)?;
    let drop = Dropout::new(0.1)?;
    let encoders = (0..3)
        .map(|i| encoder(&b.scope("encoder").scope(i), width, false, 0.1))
        .collect::<Result<Vec<_>>>()?;
    let norm_of = |b: &ParameterBuilder, i: usize| LayerNorm::new(&b.scope("norms").scope(i), width, 1e-5);
    let own = AttentionOptions { causal: true, ..AttentionOptions::new(width, width / 64) };
    let mut decoders = Vec::new();
    for i in 0..3 {
        let b = b.scope("decoder").scope(i);
        decoders.push(DecoderLayer {
            norms: [norm_of(&b, 0)?, norm_of(&b, 1)?, norm_of(&b, 2)?],
            attention: MultiHeadAttention::new(&b.scope("attention"), &own)?,
            cross: CrossAttention::new(&b.scope("cross"), &CrossAttentionOptions::new(width, width / 64))?,
            ffn: [
                Linear::new(&b.scope("up"), width, 4 * width)?,
                Linear::new(&b.scope("down"), 4 * width, width)?,
            ],
        });
    }
    let norms = [norm_of(&b.scope("encoder"), 0)?, norm_of(&b.scope("decoder"), 0)?];
    let head = Linear::without_bias(&b.scope("head"), width, vocabulary)?;
    let sentences = ids(g, vocabulary, &[batch, length])?;
    let mask = padding(g, batch, length)?;
    let text = ids(g, vocabulary, &[batch, length + 1])?;
    // What lies behind a sentence's end does not count.
    let (input, next) = (text.i((.., ..length))?.copy()?, text.i((.., 1..))?.copy()?);
    let behind = padding(g, batch, length)?.reshape([batch, length])?.logical_not()?;
    let next = next.masked_fill(&behind, -1.0)?;
    let positions = Tensor::arange(0.0, length as f64, 1.0, DType::I64, g.device())?;
    Ok(Box::new(move |mode| {
        let places = places.forward(&positions)?;
        let mut memory = drop.forward(&source.forward(&sentences)?.add(&places)?, mode)?;
        for layer in &encoders {
            let context = AttentionContext { mask: Some(&mask), ..AttentionContext::default() };
            memory = layer.forward_with(&memory, context, mode)?;
        }
        let memory = norms[0].forward(&memory)?;
        let mut x = drop.forward(&target.forward(&input)?.add(&places)?, mode)?;
        for DecoderLayer { norms, attention, cross, ffn: [up, down] } in &decoders {
            let y = attention.forward(&norms[0].forward(&x)?, mode)?;
            x = x.add(&drop.forward(&y, mode)?)?;
            let y = cross.forward(&norms[1].forward(&x)?, &memory, Some(&mask), mode)?;
            x = x.add(&drop.forward(&y, mode)?)?;
            let y = drop.forward(&up.forward(&norms[2].forward(&x)?)?.relu()?, mode)?;
            x = x.add(&drop.forward(&down.forward(&y)?, mode)?)?;
        }
        let logits = head.forward(&norms[1].forward(&x)?)?;
        let options = CrossEntropyOptions {
            label_smoothing: 0.1,
            ignore_index: Some(-1),
            ..CrossEntropyOptions::default()
        };
        Ok(logits.cross_entropy_with(&next, &options)?)
    }))
}

/// Guesses a seventh of the words of padded texts, as BERT does: post-norm, GELU, dropout of 0.1 also of the attention.
pub fn masked_words(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (vocabulary, length, width, batch, guessed) = (30522, 128, 256, 32, 18);
    let tokens = Embedding::new(&b.scope("tokens"), vocabulary, width)?;
    let places = Embedding::new(&b.scope("places"), length, width)?;
    let norm = LayerNorm::new(&b.scope("norm"), width, 1e-5)?;
    let drop = Dropout::new(0.1)?;
    let attention = AttentionOptions { dropout: 0.1, ..AttentionOptions::new(width, width / 64) };
    let options = TransformerEncoderOptions {
        activation: Activation::Gelu,
        dropout: EncoderDropout { ffn_hidden: 0.0, ..EncoderDropout::all(0.1) },
        ..TransformerEncoderOptions::new(attention, 4 * width)
    };
    let layers = (0..4)
        .map(|i| TransformerEncoderLayer::new(&b.scope("layers").scope(i), &options))
        .collect::<Result<Vec<_>>>()?;
    let transform = Linear::new(&b.scope("transform"), width, width)?;
    let last_norm = LayerNorm::new(&b.scope("last_norm"), width, 1e-5)?;
    let head = Linear::new(&b.scope("head"), width, vocabulary)?;
    let text = ids(g, vocabulary, &[batch, length])?;
    let mask = padding(g, batch, length)?;
    let which = ids(g, batch * length, &[batch * guessed])?;
    let words = ids(g, vocabulary, &[batch * guessed])?;
    let positions = Tensor::arange(0.0, length as f64, 1.0, DType::I64, g.device())?;
    Ok(Box::new(move |mode| {
        let x = tokens.forward(&text)?.add(&places.forward(&positions)?)?;
        let mut x = drop.forward(&norm.forward(&x)?, mode)?;
        for layer in &layers {
            let context = AttentionContext { mask: Some(&mask), ..AttentionContext::default() };
            x = layer.forward_with(&x, context, mode)?;
        }
        let chosen = x.flatten(0, 1)?.index_select(0, &which)?;
        let y = last_norm.forward(&transform.forward(&chosen)?.gelu()?)?;
        Ok(head.forward(&y)?.cross_entropy(&words)?)
    }))
}

/// A language model whose feed-forward halves are experts: each token goes to two of eight (Mixtral: Jiang et al., 2024), and an expert
/// takes at most 1.25 times its share (GShard: Lepikhin et al., ICLR 2021).
pub fn experts(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, context, width, hidden, vocabulary) = (16, 256, 512, 1024, 8000);
    let tokens = Embedding::new(&b.scope("tokens"), vocabulary, width)?;
    let mut layers = Vec::new();
    for i in 0..2 {
        let b = b.scope("layers").scope(i);
        let attention = AttentionOptions {
            causal: true,
            rotary: Some(RotaryOptions::new(context)),
            ..AttentionOptions::new(width, width / 64)
        };
        layers.push((
            RmsNorm::new(&b.scope("norm1"), width, 1e-5)?,
            MultiHeadAttention::new(&b.scope("attention"), &attention)?,
            RmsNorm::new(&b.scope("norm2"), width, 1e-5)?,
            Experts::new(&b.scope("experts"), 8, width, hidden)?,
        ));
    }
    let norm = RmsNorm::new(&b.scope("norm"), width, 1e-5)?;
    let head = Linear::without_bias(&b.scope("head"), width, vocabulary)?;
    let text = ids(g, vocabulary, &[batch, context + 1])?;
    let (input, next) = (text.i((.., ..context))?.copy()?, text.i((.., 1..))?.copy()?);
    Ok(Box::new(move |mode| {
        let mut x = tokens.forward(&input)?;
        for (norm1, attention, norm2, experts) in &layers {
            let y = attention.forward(&norm1.forward(&x)?, mode)?;
            x = x.add(&y)?;
            let y = experts.forward(&norm2.forward(&x)?.flatten(0, 1)?)?;
            x = x.add(&y.reshape(x.dims())?)?;
        }
        Ok(head.forward(&norm.forward(&x)?)?.cross_entropy(&next)?)
    }))
}

struct Experts {
    count: usize,
    router: Linear,
    gate: Parameter,
    up: Parameter,
    down: Parameter,
}

impl Experts {
    fn new(b: &ParameterBuilder, count: usize, width: usize, hidden: usize) -> Result<Experts> {
        let init = Init::Normal { mean: 0.0, std: 0.02 };
        Ok(Experts {
            count,
            router: Linear::without_bias(&b.scope("router"), width, count)?,
            gate: b.parameter("gate", [count, width, hidden], init)?,
            up: b.parameter("up", [count, width, hidden], init)?,
            down: b.parameter("down", [count, hidden, width], init)?,
        })
    }

    /// `x`: `[tokens, width]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let [tokens, width] = [x.dims()[0], x.dims()[1]];
        let room = tokens * 2 * 5 / (4 * self.count);
        let scores = self.router.forward(x)?.to_dtype(DType::F32)?;
        let (best, experts) = scores.topk(2, -1, true)?;
        let weights = best.softmax(-1)?.flatten(0, 1)?;
        let experts = experts.flatten(0, 1)?;
        // How many came to the same expert before.
        let chosen = experts.one_hot(self.count, DType::I64)?;
        let place = chosen.cumsum(0)?.mul(&chosen)?.sum(1)?.add_scalar(-1.0)?;
        let slot = experts.mul_scalar(room as f64)?.add(&place)?;
        let none = Tensor::full(slot.dims(), (self.count * room) as f64, DType::I64, x.device())?;
        let slot = place.lt_scalar(room as f64)?.where_cond(&slot, &none)?;
        let slots = self.count * room + 1;
        let twice = x.unsqueeze(1)?.broadcast_to([tokens, 2, width])?.flatten(0, 1)?;
        let inputs = Tensor::zeros([slots, width], x.dtype(), x.device())?.index_add(0, &slot, &twice)?;
        let inputs = inputs.narrow(0, 0, slots - 1)?.reshape([self.count, room, width])?;
        let gate = inputs.matmul(self.gate.tensor()?)?.silu()?;
        let y = gate.mul(&inputs.matmul(self.up.tensor()?)?)?.matmul(self.down.tensor()?)?;
        let y = y.reshape([slots - 1, width])?.pad(&[(0, 1), (0, 0)], 0.0)?.index_select(0, &slot)?;
        let y = y.mul(&weights.unsqueeze(1)?.to_dtype(y.dtype())?)?;
        Ok(y.reshape([tokens, 2, width])?.sum(1)?)
    }
}
