//! The Informer.

use refrain::{Conv1dOptions, DType, Generator, PadMode, Pool1dOptions, SdpaOptions, Tensor, no_grad};
use refrain_nn::{
    BatchNorm, Conv1d, CrossAttention, CrossAttentionOptions, Dropout, LayerNorm, Linear, MaxPool1d, Mode,
    ParameterBuilder, Result,
};

use crate::{Loss, ids};

const WIDTH: usize = 128;
const HEADS: usize = 8;
const FACTOR: usize = 5;

/// Attention of those queries that stand out: whose largest product with some of the keys is far above the mean of these.
struct ProbAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    masked: bool,
    /// How many queries attend, and how many keys are sampled for each of all queries.
    count: usize,
    /// `[queries * count]`
    sample: Tensor,
    steps: Tensor,
}

impl ProbAttention {
    fn new(b: &ParameterBuilder, g: &Generator, length: usize, masked: bool) -> Result<ProbAttention> {
        let linear = |name: &str| Linear::new(&b.scope(name), WIDTH, WIDTH);
        let count = length.min(FACTOR * (length as f64).ln().ceil() as usize);
        Ok(ProbAttention {
            query: linear("query")?,
            key: linear("key")?,
            value: linear("value")?,
            out: linear("out")?,
            masked,
            count,
            sample: ids(g, length, &[length * count])?,
            steps: Tensor::arange(0.0, length as f64, 1.0, DType::I64, g.device())?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let &[batch, length, _] = x.dims() else { unreachable!("series") };
        let (count, dim) = (self.count, WIDTH / HEADS);
        let heads = |layer: &Linear| -> Result<Tensor> {
            Ok(layer.forward(x)?.reshape([batch, length, HEADS, dim])?.transpose(1, 2)?)
        };
        let (query, key, value) = (heads(&self.query)?, heads(&self.key)?, heads(&self.value)?);
        let top = no_grad(|| -> Result<Tensor> {
            let sampled = key.index_select(2, &self.sample)?.reshape([batch, HEADS, length, count, dim])?;
            let products = query.unsqueeze(3)?.matmul(&sampled.transpose(-2, -1)?)?.squeeze(3)?;
            Ok(products.max(-1)?.sub(&products.mean(-1)?)?.topk(count, -1, true)?.1)
        })?;
        let top = top.unsqueeze(3)?;
        let places = top.broadcast_to([batch, HEADS, count, dim])?;
        let mask = if self.masked { Some(self.steps.le(&top)?) } else { None };
        let options = SdpaOptions { mask: mask.as_ref(), ..SdpaOptions::default() };
        let (chosen, _) =
            query.gather(2, &places)?.scaled_dot_product_attention_with(&key, &value, &options)?;
        let others = match self.masked {
            true => value.cumsum(2)?,
            false => value.mean_keepdim(2)?.broadcast_to(value.shape())?,
        };
        let y = others.scatter(2, &places, &chosen)?;
        self.out.forward(&y.transpose(1, 2)?.reshape([batch, length, WIDTH])?)
    }
}

/// A layer of the encoder, or one of the decoder, which also attends to the encoder's steps.
struct Layer {
    attention: ProbAttention,
    cross: Option<(CrossAttention, LayerNorm)>,
    norms: [LayerNorm; 2],
    ffn: [Linear; 2],
    drop: Dropout,
}

impl Layer {
    fn new(b: &ParameterBuilder, g: &Generator, length: usize, decodes: bool) -> Result<Layer> {
        let norm = |i: usize| LayerNorm::new(&b.scope("norms").scope(i), WIDTH, 1e-5);
        let options = CrossAttentionOptions { dropout: 0.05, ..CrossAttentionOptions::new(WIDTH, HEADS) };
        let cross = match decodes {
            true => Some((CrossAttention::new(&b.scope("cross"), &options)?, norm(2)?)),
            false => None,
        };
        Ok(Layer {
            attention: ProbAttention::new(&b.scope("attention"), g, length, decodes)?,
            cross,
            norms: [norm(0)?, norm(1)?],
            ffn: [
                Linear::new(&b.scope("up"), WIDTH, 2 * WIDTH)?,
                Linear::new(&b.scope("down"), 2 * WIDTH, WIDTH)?,
            ],
            drop: Dropout::new(0.05)?,
        })
    }

    fn forward(&self, x: &Tensor, memory: Option<&Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let residual =
            |norm: &LayerNorm, x: &Tensor, y: &Tensor| norm.forward(&x.add(&self.drop.forward(y, mode)?)?);
        let mut x = residual(&self.norms[0], x, &self.attention.forward(x)?)?;
        if let (Some((cross, norm)), Some(memory)) = (&self.cross, memory) {
            x = residual(norm, &x, &cross.forward(&x, memory, None, mode)?)?;
        }
        let y = self.drop.forward(&self.ffn[0].forward(&x)?.gelu()?, mode)?;
        residual(&self.norms[1], &x, &self.ffn[1].forward(&y)?)
    }
}

/// A circular convolution of 3 steps.
fn circular(b: &ParameterBuilder, inputs: usize, outputs: usize) -> Result<Conv1d> {
    let options = Conv1dOptions { padding: 1, ..Conv1dOptions::default() };
    Ok(Conv1d::new(b, inputs, outputs, 3, options)?.padding_mode(PadMode::Circular))
}

/// An embedding of the values, the place and the time (its hour, day and so on) of each step.
struct Embedding {
    values: Conv1d,
    times: Linear,
    places: Tensor,
    drop: Dropout,
}

impl Embedding {
    fn new(b: &ParameterBuilder, length: usize, channels: usize, marks: usize) -> Result<Embedding> {
        let numbers =
            |end: usize, step: usize| Tensor::arange(0.0, end as f64, step as f64, DType::F32, b.device());
        let rates = numbers(WIDTH, 2)?.mul_scalar(-(10000f64.ln()) / WIDTH as f64)?.exp()?;
        let angles = numbers(length, 1)?.unsqueeze(1)?.mul(&rates)?;
        Ok(Embedding {
            values: circular(&b.scope("values"), channels, WIDTH)?,
            times: Linear::new(&b.scope("times"), marks, WIDTH)?,
            places: Tensor::stack(&[&angles.sin()?, &angles.cos()?], -1)?.flatten(1, 2)?,
            drop: Dropout::new(0.05)?,
        })
    }

    fn forward(&self, x: &Tensor, times: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let x = self.values.forward(&x.transpose(1, 2)?)?.transpose(1, 2)?;
        let x = x.add(&self.times.forward(times)?)?;
        self.drop.forward(&self.places.add(&x)?, mode)
    }
}

/// Sparse attention, and half as many steps after each layer of the encoder (Informer: Zhou et al., AAAI 2021).
pub fn informer(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, length, label, horizon, channels, marks) = (32, 96, 48, 24, 7, 4);
    let norm = |name: &str| LayerNorm::new(&b.scope(name), WIDTH, 1e-5);
    let embeddings = [
        Embedding::new(&b.scope("embeddings").scope(0), length, channels, marks)?,
        Embedding::new(&b.scope("embeddings").scope(1), label + horizon, channels, marks)?,
    ];
    let encoder = [
        Layer::new(&b.scope("encoder").scope(0), g, length, false)?,
        Layer::new(&b.scope("encoder").scope(1), g, length / 2, false)?,
    ];
    let distil = circular(&b.scope("distil").scope("conv"), WIDTH, WIDTH)?;
    let distil_norm = BatchNorm::new(&b.scope("distil").scope("norm"), WIDTH, 1, 1e-5, 0.1)?;
    let distil_pool = MaxPool1d(Pool1dOptions { stride: 2, padding: 1, ..Pool1dOptions::new(3) });
    let decoder = Layer::new(&b.scope("decoder"), g, label + horizon, true)?;
    let norms = [norm("encoder_norm")?, norm("decoder_norm")?];
    let head = Linear::new(&b.scope("head"), WIDTH, channels)?;
    let series = g.normal([batch, length, channels], DType::F32)?;
    let times = g.normal([batch, length + horizon, marks], DType::F32)?;
    let targets = g.normal([batch, horizon, channels], DType::F32)?;
    Ok(Box::new(move |mode| {
        let x = embeddings[0].forward(&series, &times.i((.., ..length))?, mode)?;
        let x = distil.forward(&encoder[0].forward(&x, None, mode)?.transpose(1, 2)?)?;
        let x = distil_pool.forward(&distil_norm.forward(&x, mode)?.elu(1.0)?)?.transpose(1, 2)?;
        let memory = norms[0].forward(&encoder[1].forward(&x, None, mode)?)?;
        // The decoder gets the last steps of the input, then zeros.
        let begin = series.i((.., length - label..))?.pad(&[(0, 0), (0, horizon), (0, 0)], 0.0)?;
        let x = embeddings[1].forward(&begin, &times.i((.., length - label..))?, mode)?;
        let x = decoder.forward(&x, Some(&memory), mode)?;
        let y = head.forward(&norms[1].forward(&x)?)?;
        Ok(y.i((.., label..))?.mse_loss(&targets)?)
    }))
}
