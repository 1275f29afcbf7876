//! Models of series.

use refrain::{Conv1dOptions, DType, Generator, Interpolation, PadMode, Pool1dOptions, Tensor};
use refrain_nn::{
    Conv1d, Dropout, Embedding, Gru, Init, Linear, Lstm, MaxPool1d, Parameter, ParameterBuilder, Result,
    RmsNorm,
};

use crate::{Loss, ids};

/// Causal convolutions along time, each looking twice as far back as the one before (Bai et al., 2018).
pub fn temporal_convolutions(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, inputs, channels, length, kernel) = (64, 16, 64, 256, 3);
    let mut levels = Vec::new();
    for i in 0..6 {
        let dilation = 1 << i;
        let options = Conv1dOptions { dilation, ..Conv1dOptions::default() };
        let before = if i == 0 { inputs } else { channels };
        levels.push((
            Conv1d::new(&b.scope("levels").scope(i), before, channels, kernel, options)?,
            (kernel - 1) * dilation,
        ));
    }
    let drop = Dropout::new(0.1)?;
    let head = Linear::new(&b.scope("head"), channels, 1)?;
    let series = g.normal([batch, inputs, length], DType::F32)?;
    let targets = g.normal([batch, 1], DType::F32)?;
    Ok(Box::new(move |mode| {
        let mut x = series.clone();
        for (i, (conv, past)) in levels.iter().enumerate() {
            let y = conv.forward(&x.pad(&[(0, 0), (0, 0), (*past, 0)], 0.0)?)?.relu()?;
            let y = drop.forward(&y, mode)?;
            x = if i == 0 { y } else { x.add(&y)? };
        }
        let last = x.i((.., .., length - 1))?;
        Ok(head.forward(&last)?.mse_loss(&targets)?)
    }))
}

/// Means of 25 steps of series `[.., time]`, with the ends repeated.
pub fn trend(x: &Tensor) -> Result<Tensor> {
    let options = Pool1dOptions { stride: 1, ..Pool1dOptions::new(25) };
    Ok(x.pad(&[(0, 0), (0, 0), (12, 12)], PadMode::Replicate)?.avg_pool1d(&options)?)
}

/// A circular convolution of 3 steps, without bias.
pub fn circular(b: &ParameterBuilder, inputs: usize, outputs: usize) -> Result<Conv1d> {
    let options = Conv1dOptions { padding: 1, ..Conv1dOptions::default() };
    let conv = Conv1d::without_bias(b, inputs, outputs, 3, options)?;
    Ok(conv.padding_mode(PadMode::Circular))
}

pub fn lstm(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let layers = Lstm::new(&b.scope("lstm"), 32, 128, 2)?;
    forecaster(b, g, 128, move |x| Ok(layers.forward(x, None)?.0))
}

pub fn gru(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let layers = Gru::new(&b.scope("gru"), 32, 128, 2)?;
    forecaster(b, g, 128, move |x| Ok(layers.forward(x, None)?.0))
}

/// A forecast of 24 steps from 96 steps of 32 series, by the last state of a recurrent layer.
fn forecaster(
    b: &ParameterBuilder,
    g: &Generator,
    hidden: usize,
    layers: impl Fn(&Tensor) -> Result<Tensor> + 'static,
) -> Result<Loss> {
    let (batch, length, horizon) = (128, 96, 24);
    let head = Linear::new(&b.scope("head"), hidden, horizon)?;
    let series = g.normal([batch, length, 32], DType::F32)?;
    let targets = g.normal([batch, horizon], DType::F32)?;
    Ok(Box::new(move |_| {
        let last = layers(&series)?.i((.., length - 1))?;
        Ok(head.forward(&last)?.mse_loss(&targets)?)
    }))
}

/// A waveform's next of 256 levels, by gated causal convolutions that look twice as far back each (van den Oord et al., 2016).
pub fn wavenet(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, channels, length, levels) = (16, 64, 1024, 256);
    let point =
        |b: &ParameterBuilder, inputs, outputs| Conv1d::new(b, inputs, outputs, 1, Conv1dOptions::default());
    let sounds = Embedding::new(&b.scope("sounds"), levels, channels)?;
    let mut layers = Vec::new();
    for i in 0..10 {
        let (b, dilation) = (b.scope("layers").scope(i), 1 << i);
        let options = Conv1dOptions { dilation, ..Conv1dOptions::default() };
        layers.push((
            dilation,
            Conv1d::new(&b.scope("gate"), channels, 2 * channels, 2, options)?,
            point(&b.scope("residual"), channels, channels)?,
            point(&b.scope("skip"), channels, 2 * channels)?,
        ));
    }
    let last = [
        point(&b.scope("last").scope(0), 2 * channels, 2 * channels)?,
        point(&b.scope("last").scope(1), 2 * channels, levels)?,
    ];
    let sound = ids(g, levels, &[batch, length + 1])?;
    let (input, next) = (sound.i((.., ..length))?.copy()?, sound.i((.., 1..))?.copy()?);
    Ok(Box::new(move |_| {
        let mut x = sounds.forward(&input)?.transpose(1, 2)?;
        let mut sum: Option<Tensor> = None;
        for (past, gate, residual, skip) in &layers {
            let halves = gate.forward(&x.pad(&[(0, 0), (0, 0), (*past, 0)], 0.0)?)?.chunk(2, 1)?;
            let y = halves[0].tanh()?.mul(&halves[1].sigmoid()?)?;
            x = x.add(&residual.forward(&y)?)?;
            let y = skip.forward(&y)?;
            sum = Some(match sum {
                Some(sum) => sum.add(&y)?,
                None => y,
            });
        }
        let y = last[0].forward(&sum.expect("ten layers").relu()?)?.relu()?;
        Ok(last[1].forward(&y)?.transpose(1, 2)?.cross_entropy(&next)?)
    }))
}

/// Blocks of fully connected layers, each of which explains a part of what the ones before left (N-BEATS: Oreshkin et al., ICLR 2020).
pub fn n_beats(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, context, horizon, hidden) = (1024, 96, 24, 256);
    let mut blocks = Vec::new();
    for i in 0..8 {
        let b = b.scope("blocks").scope(i);
        let mut layers = Vec::new();
        for j in 0..4 {
            let inputs = if j == 0 { context } else { hidden };
            layers.push(Linear::new(&b.scope("layers").scope(j), inputs, hidden)?);
        }
        let back = Linear::new(&b.scope("back"), hidden, context)?;
        blocks.push((layers, back, Linear::new(&b.scope("ahead"), hidden, horizon)?));
    }
    let series = g.normal([batch, context], DType::F32)?;
    let targets = g.normal([batch, horizon], DType::F32)?;
    Ok(Box::new(move |_| {
        let mut left = series.clone();
        let mut forecast = targets.zeros_like()?;
        for (layers, back, ahead) in &blocks {
            let mut x = left.clone();
            for layer in layers {
                x = layer.forward(&x)?.relu()?;
            }
            let explained = back.forward(&x)?;
            left = left.sub(&explained)?;
            forecast = forecast.add(&ahead.forward(&x)?)?;
        }
        Ok(forecast.sub(&targets)?.abs()?.mean(())?)
    }))
}

/// Blocks that see the series less and less pooled, and interpolate more and more coefficients (N-HiTS: Challu et al., AAAI 2023).
pub fn n_hits(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, context, horizon, hidden) = (1024, 192, 48, 512);
    let mut blocks = Vec::new();
    // The steps of a window, and of a coefficient.
    for (i, (window, steps)) in [(8, 24), (4, 4), (1, 1)].into_iter().enumerate() {
        let b = b.scope("blocks").scope(i);
        let pool = MaxPool1d(Pool1dOptions::new(window));
        let layers = [
            Linear::new(&b.scope("layers").scope(0), context / window, hidden)?,
            Linear::new(&b.scope("layers").scope(1), hidden, hidden)?,
        ];
        let back = Linear::new(&b.scope("back"), hidden, context / steps)?;
        blocks.push((pool, layers, back, Linear::new(&b.scope("ahead"), hidden, horizon / steps)?));
    }
    let linear = Interpolation::Linear { align_corners: false };
    let series = g.normal([batch, context], DType::F32)?;
    let targets = g.normal([batch, horizon], DType::F32)?;
    Ok(Box::new(move |_| {
        let mut left = series.clone();
        let mut forecast = series.i((.., -1..))?;
        for (pool, layers, back, ahead) in &blocks {
            let mut x = pool.forward(&left.unsqueeze(1)?)?.squeeze(1)?;
            for layer in layers {
                x = layer.forward(&x)?.relu()?;
            }
            let explained = back.forward(&x)?.interpolate(&[context], linear)?;
            left = left.sub(&explained)?;
            forecast = forecast.add(&ahead.forward(&x)?.interpolate(&[horizon], linear)?)?;
        }
        Ok(forecast.l1_loss(&targets)?)
    }))
}

/// The mean and the deviation of each next value of 500 series, by an LSTM (DeepAR: Salinas et al., 2020).
pub fn deep_ar(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, length, count, covariates, of_series, hidden) = (256, 72, 500, 4, 16, 64);
    let series = Embedding::new(&b.scope("series"), count, of_series)?;
    let layers = Lstm::new(&b.scope("lstm"), 1 + covariates + of_series, hidden, 2)?;
    let mean = Linear::new(&b.scope("mean"), hidden, 1)?;
    let deviation = Linear::new(&b.scope("deviation"), hidden, 1)?;
    let which = ids(g, count, &[batch])?;
    let values = g.normal([batch, length + 1, 1], DType::F32)?;
    let known = g.normal([batch, length, covariates], DType::F32)?;
    let (before, next) = (values.i((.., ..length))?.copy()?, values.i((.., 1..))?.copy()?);
    Ok(Box::new(move |_| {
        let series = series.forward(&which)?.unsqueeze(1)?.broadcast_to([batch, length, of_series])?;
        let x = Tensor::concat(&[&before, &known, &series], 2)?;
        let (y, _) = layers.forward(&x, None)?;
        let mean = mean.forward(&y)?.to_dtype(DType::F32)?;
        let deviation = deviation.forward(&y)?.to_dtype(DType::F32)?.softplus()?.add_scalar(1e-3)?;
        let distance = next.sub(&mean)?.div(&deviation)?;
        Ok(distance.square()?.mul_scalar(0.5)?.add(&deviation.log()?)?.mean(())?)
    }))
}

/// Blocks whose state decays as fast as the input says (Mamba: Gu and Dao, 2023). A forecast of 24 steps from 192.
pub fn mamba(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, inputs, length, horizon, width) = (32, 8, 192, 24, 64);
    let (inner, state, kernel, rank) = (2 * width, 16, 4, 4);
    let mut blocks = Vec::new();
    for i in 0..2 {
        let b = b.scope("blocks").scope(i);
        let options = Conv1dOptions { groups: inner, ..Conv1dOptions::default() };
        blocks.push(MambaBlock {
            norm: RmsNorm::new(&b.scope("norm"), width, 1e-5)?,
            inputs: Linear::without_bias(&b.scope("inputs"), width, 2 * inner)?,
            conv: Conv1d::new(&b.scope("conv"), inner, inner, kernel, options)?,
            choice: Linear::without_bias(&b.scope("choice"), inner, rank + 2 * state)?,
            step: Linear::new(&b.scope("step"), rank, inner)?,
            rate: b.parameter("rate", [inner, state], Init::Constant(0.0))?,
            direct: b.parameter("direct", [inner], Init::Constant(1.0))?,
            outputs: Linear::without_bias(&b.scope("outputs"), inner, width)?,
        });
    }
    let embed = Linear::new(&b.scope("embed"), inputs, width)?;
    let head = Linear::new(&b.scope("head"), width, horizon)?;
    let series = g.normal([batch, length, inputs], DType::F32)?;
    let targets = g.normal([batch, horizon], DType::F32)?;
    Ok(Box::new(move |_| {
        let mut x = embed.forward(&series)?;
        for block in &blocks {
            x = x.add(&block.forward(&block.norm.forward(&x)?)?)?;
        }
        Ok(head.forward(&x.i((.., -1))?)?.mse_loss(&targets)?)
    }))
}

struct MambaBlock {
    norm: RmsNorm,
    inputs: Linear,
    conv: Conv1d,
    /// The step's size, and what goes into the state and comes out of it.
    choice: Linear,
    step: Linear,
    rate: Parameter,
    direct: Parameter,
    outputs: Linear,
}

impl MambaBlock {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rate, direct) = (self.rate.tensor()?, self.direct.tensor()?);
        let [rank, state] = [self.step.weight().tensor()?.dims()[1], rate.dims()[1]];
        let parts = self.inputs.forward(x)?.chunk(2, -1)?;
        let past = self.conv.weight().tensor()?.dims()[2] - 1;
        let x = self.conv.forward(&parts[0].transpose(1, 2)?.pad(&[(0, 0), (0, 0), (past, 0)], 0.0)?)?;
        let x = x.transpose(1, 2)?.silu()?;
        let choice = self.choice.forward(&x)?.split_with_sizes(&[rank, state, state], -1)?;
        // At first, a step lasts for 0.02.
        let step = self.step.forward(&choice[0])?.to_dtype(DType::F32)?.add_scalar(-4.0)?.softplus()?;
        let x = x.to_dtype(DType::F32)?;
        let wide = |t: &Tensor| t.to_dtype(DType::F32)?.unsqueeze(2);
        let (into, out) = (wide(&choice[1])?, wide(&choice[2])?);
        // [batch, time, channels, state]
        let decay = step.unsqueeze(3)?.mul(&rate.exp()?.neg()?)?.exp()?;
        let added = step.mul(&x)?.unsqueeze(3)?.mul(&into)?;
        let states = added.linear_recurrence(&decay, 1, None)?;
        let y = states.mul(&out)?.sum(-1)?.add(&x.mul(direct)?)?;
        self.outputs.forward(&y.mul(&parts[1].to_dtype(DType::F32)?.silu()?)?)
    }
}
