//! Models that forecast several steps of series.

use refrain::{Activation, DType, Generator, Pool1dOptions, SdpaOptions, Tensor};
use refrain_nn::{
    AvgPool1d, Dropout, Embedding, Gru, GruCell, LayerNorm, Linear, Lstm, LstmState, Mlp, Mode,
    ParameterBuilder, Result,
};

use crate::series::{circular, trend};
use crate::{Loss, ids};

/// The norm of a residual and of what a gate lets through.
struct GatedNorm {
    drop: Dropout,
    gate: Linear,
    norm: LayerNorm,
}

impl GatedNorm {
    fn new(b: &ParameterBuilder, inputs: usize, outputs: usize, dropout: f64) -> Result<GatedNorm> {
        Ok(GatedNorm {
            drop: Dropout::new(dropout)?,
            gate: Linear::new(&b.scope("gate"), inputs, 2 * outputs)?,
            norm: LayerNorm::new(&b.scope("norm"), outputs, 1e-5)?,
        })
    }

    fn forward(&self, x: &Tensor, residual: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let gated = self.gate.forward(&self.drop.forward(x, mode)?)?.glu(-1)?;
        self.norm.forward(&residual.add(&gated)?)
    }
}

/// A gated residual network.
struct Grn {
    up: Linear,
    context: Option<Linear>,
    down: Linear,
    skip: Option<Linear>,
    last: GatedNorm,
}

impl Grn {
    fn new(b: &ParameterBuilder, inputs: usize, width: usize, outputs: usize) -> Result<Grn> {
        let skip = (inputs != outputs).then(|| Linear::new(&b.scope("skip"), inputs, outputs));
        Ok(Grn {
            up: Linear::new(&b.scope("up"), inputs, width)?,
            context: None,
            down: Linear::new(&b.scope("down"), width, width)?,
            skip: skip.transpose()?,
            last: GatedNorm::new(&b.scope("last"), width, outputs, 0.1)?,
        })
    }

    fn with_context(b: &ParameterBuilder, inputs: usize, width: usize, outputs: usize) -> Result<Grn> {
        let context = Some(Linear::without_bias(&b.scope("context"), width, width)?);
        Ok(Grn { context, ..Grn::new(b, inputs, width, outputs)? })
    }

    fn forward(&self, x: &Tensor, context: Option<&Tensor>, mode: Mode<'_>) -> Result<Tensor> {
        let mut y = self.up.forward(x)?;
        if let (Some(layer), Some(context)) = (&self.context, context) {
            y = y.add(&layer.forward(context)?)?;
        }
        let y = self.down.forward(&y.elu(1.0)?)?;
        let residual = match &self.skip {
            Some(skip) => skip.forward(x)?,
            None => x.clone(),
        };
        self.last.forward(&y, &residual, mode)
    }
}

/// A sum of variables, each after a network of its own, with weights that depend on all of them.
struct Selection {
    variables: Vec<Grn>,
    weights: Grn,
}

impl Selection {
    fn new(b: &ParameterBuilder, count: usize, width: usize) -> Result<Selection> {
        let variable = |i| Grn::new(&b.scope("variables").scope(i), width, width, width);
        Ok(Selection {
            variables: (0..count).map(variable).collect::<Result<_>>()?,
            weights: Grn::with_context(&b.scope("weights"), count * width, width, count)?,
        })
    }

    fn forward(&self, variables: &[Tensor], context: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let all = Tensor::concat(variables, -1)?;
        let weights = self.weights.forward(&all, Some(context), mode)?.softmax(-1)?;
        let mut processed = Vec::new();
        for (network, x) in self.variables.iter().zip(variables) {
            processed.push(network.forward(x, None, mode)?);
        }
        let processed = Tensor::stack(&processed, 2)?;
        Ok(weights.unsqueeze(-1)?.mul(&processed)?.sum(2)?)
    }
}

/// Three quantiles of 24 steps, from series of the past, series known ahead and a category (Lim et al., 2021).
pub fn temporal_fusion(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, past, future, width, heads) = (256, 96, 24, 64, 4);
    let (of_observed, of_known, categories) = (8, 4, 100);
    let grn = |name: &str| Grn::new(&b.scope(name), width, width, width);
    let gated = |name: &str, dropout| GatedNorm::new(&b.scope(name), width, width, dropout);
    let linear = |name: &str, inputs, outputs| Linear::without_bias(&b.scope(name), inputs, outputs);
    let embeddings = |name: &str, count: usize| {
        (0..count).map(|i| Linear::new(&b.scope(name).scope(i), 1, width)).collect::<Result<Vec<_>>>()
    };
    let category = Embedding::new(&b.scope("category"), categories, width)?;
    let of_category = grn("static")?;
    let contexts = [grn("contexts.0")?, grn("contexts.1")?, grn("contexts.2")?, grn("contexts.3")?];
    let embed_observed = embeddings("embed_observed", of_observed)?;
    let embed_known = embeddings("embed_known", of_known)?;
    let select_past = Selection::new(&b.scope("select_past"), of_observed + of_known, width)?;
    let select_future = Selection::new(&b.scope("select_future"), of_known, width)?;
    let encoder = Lstm::new(&b.scope("encoder"), width, width, 1)?;
    let decoder = Lstm::new(&b.scope("decoder"), width, width, 1)?;
    let after_lstm = gated("after_lstm", 0.1)?;
    let enrich = Grn::with_context(&b.scope("enrich"), width, width, width)?;
    let (query, key) = (linear("query", width, width)?, linear("key", width, width)?);
    let (value, out) = (linear("value", width, width / heads)?, linear("out", width / heads, width)?);
    let after_attention = gated("after_attention", 0.1)?;
    let feed_forward = grn("feed_forward")?;
    let last = gated("last", 0.0)?;
    let head = Linear::new(&b.scope("head"), width, 3)?;
    let which = ids(g, categories, &[batch])?;
    let observed = g.normal([batch, past, of_observed], DType::F32)?;
    let known = g.normal([batch, past + future, of_known], DType::F32)?;
    let targets = g.normal([batch, future], DType::F32)?;
    Ok(Box::new(move |mode| {
        let of_category = of_category.forward(&category.forward(&which)?, None, mode)?;
        let context = |i: usize| contexts[i].forward(&of_category, None, mode);
        let selection = context(0)?.unsqueeze(1)?;
        let (mut before, mut ahead) = (Vec::new(), Vec::new());
        for (embed, x) in embed_observed.iter().zip(observed.split(1, -1)?) {
            before.push(embed.forward(&x)?);
        }
        for (embed, x) in embed_known.iter().zip(known.split(1, -1)?) {
            let x = embed.forward(&x)?;
            before.push(x.i((.., ..past))?);
            ahead.push(x.i((.., past..))?);
        }
        let before = select_past.forward(&before, &selection, mode)?;
        let ahead = select_future.forward(&ahead, &selection, mode)?;
        let begin = LstmState { h: context(1)?, c: context(2)? };
        let (encoded, state) = encoder.forward(&before, Some(&[begin]))?;
        let (decoded, _) = decoder.forward(&ahead, Some(&state))?;
        let selected = Tensor::concat(&[&before, &ahead], 1)?;
        let temporal = after_lstm.forward(&Tensor::concat(&[&encoded, &decoded], 1)?, &selected, mode)?;

        let x = enrich.forward(&temporal, Some(&context(3)?.unsqueeze(1)?), mode)?;
        let ahead = x.i((.., past..))?;
        let query = query.forward(&ahead)?.reshape([batch, future, heads, width / heads])?.transpose(1, 2)?;
        let key = key.forward(&x)?.reshape([batch, past + future, heads, width / heads])?.transpose(1, 2)?;
        let value = value.forward(&x)?.unsqueeze(1)?.broadcast_to(key.shape())?;
        let options = SdpaOptions { causal: true, past, ..SdpaOptions::default() };
        let (y, _) = query.scaled_dot_product_attention_with(&key, &value, &options)?;
        let y = after_attention.forward(&out.forward(&y.mean(1)?)?, &ahead, mode)?;
        let y = feed_forward.forward(&y, None, mode)?;
        let y = head.forward(&last.forward(&y, &temporal.i((.., past..))?, mode)?)?;
        Ok(y.quantile_loss(&targets, &[0.1, 0.5, 0.9])?)
    }))
}

/// The seasonal part of series `[.., time]`, and their trend.
fn decomposed(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let trend = trend(x)?;
    Ok((x.sub(&trend)?, trend))
}

/// Adds seasons to those of the next coarser scale, and trends to those of the next finer one.
struct Mixing {
    seasons: Vec<Mlp>,
    trends: Vec<Mlp>,
    ffn: Mlp,
}

impl Mixing {
    fn new(b: &ParameterBuilder, lengths: &[usize], width: usize) -> Result<Mixing> {
        let mlp = |name: &str, i: usize, sizes: &[usize]| {
            Mlp::new(&b.scope(name).scope(i), sizes, Activation::Gelu)
        };
        let (mut seasons, mut trends) = (Vec::new(), Vec::new());
        for (i, pair) in lengths.windows(2).enumerate() {
            let (fine, coarse) = (pair[0], pair[1]);
            seasons.push(mlp("seasons", i, &[fine, coarse, coarse])?);
            trends.push(mlp("trends", i, &[coarse, fine, fine])?);
        }
        Ok(Mixing { seasons, trends, ffn: mlp("ffn", 0, &[width, 2 * width, width])? })
    }

    /// Each scale is `[series, width, time]`.
    fn forward(&self, scales: &[Tensor]) -> Result<Vec<Tensor>> {
        let (mut seasons, mut trends) = (Vec::new(), Vec::new());
        for x in scales {
            let (season, trend) = decomposed(x)?;
            seasons.push(season);
            trends.push(trend);
        }
        for (i, mix) in self.seasons.iter().enumerate() {
            seasons[i + 1] = seasons[i + 1].add(&mix.forward(&seasons[i])?)?;
        }
        for (i, mix) in self.trends.iter().enumerate().rev() {
            trends[i] = trends[i].add(&mix.forward(&trends[i + 1])?)?;
        }
        let mut mixed = Vec::new();
        for ((x, season), trend) in scales.iter().zip(&seasons).zip(&trends) {
            let y = self.ffn.forward(&season.add(trend)?.transpose(1, 2)?)?;
            mixed.push(x.add(&y.transpose(1, 2)?)?);
        }
        Ok(mixed)
    }
}

/// A forecast of 96 steps from seasons and trends of four scales (TimeMixer: Wang et al., ICLR 2024).
pub fn timemixer(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, channels, length, horizon, width) = (128, 7, 96, 96, 16);
    let lengths = [length, length / 2, length / 4, length / 8];
    let embedding = circular(&b.scope("embedding"), 1, width)?;
    let drop = Dropout::new(0.1)?;
    let pool = AvgPool1d(Pool1dOptions::new(2));
    let blocks = [
        Mixing::new(&b.scope("blocks").scope(0), &lengths, width)?,
        Mixing::new(&b.scope("blocks").scope(1), &lengths, width)?,
    ];
    let mut predictors = Vec::new();
    for (i, &steps) in lengths.iter().enumerate() {
        predictors.push(Linear::new(&b.scope("predictors").scope(i), steps, horizon)?);
    }
    let head = Linear::new(&b.scope("head"), width, 1)?;
    let series = g.normal([batch, length, channels], DType::F32)?;
    let targets = g.normal([batch, horizon, channels], DType::F32)?;
    Ok(Box::new(move |mode| {
        let mut x = series.transpose(1, 2)?.reshape([batch * channels, 1, length])?;
        let (mut scales, mut moments) = (Vec::new(), Vec::new());
        for i in 0..lengths.len() {
            if i > 0 {
                x = pool.forward(&x)?;
            }
            let mean = x.mean_keepdim(2)?;
            let deviation = x.var_keepdim(2, 0)?.add_scalar(1e-5)?.sqrt()?;
            scales.push(drop.forward(&embedding.forward(&x.sub(&mean)?.div(&deviation)?)?, mode)?);
            moments.push((mean, deviation));
        }
        for block in &blocks {
            scales = block.forward(&scales)?;
        }
        let mut y = Tensor::zeros([batch * channels, horizon, 1], DType::F32, series.device())?;
        for (predict, x) in predictors.iter().zip(&scales) {
            y = y.add(&head.forward(&predict.forward(x)?.transpose(1, 2)?)?)?;
        }
        let (mean, deviation) = &moments[0];
        let y = y.mul(deviation)?.add(mean)?.reshape([batch, channels, horizon])?;
        Ok(y.transpose(1, 2)?.mse_loss(&targets)?)
    }))
}

/// A decoder that looks at all states of the encoder before each of its 24 steps (Bahdanau et al., ICLR 2015).
pub fn attention_decoder(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, length, horizon, features, hidden) = (128, 96, 24, 8, 128);
    let encoder = Gru::new(&b.scope("encoder"), features, hidden, 1)?;
    let cell = GruCell::new(&b.scope("cell"), 1 + hidden, hidden)?;
    let begin = Linear::new(&b.scope("begin"), hidden, hidden)?;
    let head = Linear::new(&b.scope("head"), 1 + 2 * hidden, 1)?;
    let query = Linear::without_bias(&b.scope("query"), hidden, hidden)?;
    let key = Linear::without_bias(&b.scope("key"), hidden, hidden)?;
    let score = Linear::without_bias(&b.scope("score"), hidden, 1)?;
    let series = g.normal([batch, length, features], DType::F32)?;
    let values = g.normal([batch, horizon + 1, 1], DType::F32)?;
    let (before, next) = (values.i((.., ..horizon))?.copy()?, values.i((.., 1..))?.copy()?);
    Ok(Box::new(move |_| {
        let (memory, last) = encoder.forward(&series, None)?;
        let keys = key.forward(&memory)?;
        let mut state = begin.forward(&last[0])?.tanh()?;
        let (mut states, mut contexts) = (Vec::new(), Vec::new());
        for before in &before.unbind(1)? {
            let sums = query.forward(&state)?.unsqueeze(1)?.add(&keys)?;
            let weights = score.forward(&sums.tanh()?)?.softmax(1)?;
            let context = weights.transpose(1, 2)?.matmul(&memory)?.squeeze(1)?;
            state = cell.forward(&Tensor::concat(&[before, &context], 1)?, &state)?;
            states.push(state.clone());
            contexts.push(context);
        }
        let states = Tensor::stack(&states, 1)?;
        let contexts = Tensor::stack(&contexts, 1)?;
        Ok(head.forward(&Tensor::concat(&[&before, &states, &contexts], 2)?)?.mse_loss(&next)?)
    }))
}
