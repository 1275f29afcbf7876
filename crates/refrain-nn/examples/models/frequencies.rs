//! Models of series that compute with their frequencies.

use refrain::{Activation, DType, Generator, Tensor};
use refrain_nn::{Conv1d, Init, LayerNorm, Linear, ParameterBuilder, Result};

use crate::Loss;
use crate::series::{circular, trend};

/// A linear layer of complex numbers, and ReLU. `real` has the real parts of its weight and bias, `imaginary` the imaginary parts.
struct FrequencyMlp {
    real: Linear,
    imaginary: Linear,
}

impl FrequencyMlp {
    fn new(b: &ParameterBuilder, width: usize) -> Result<FrequencyMlp> {
        let part = |name: &str| Linear::new(&b.scope(name), width, width);
        Ok(FrequencyMlp { real: part("real")?, imaginary: part("imaginary")? })
    }

    /// Applies the layer to each frequency along an axis of `[.., width]`.
    fn forward(&self, x: &Tensor, axis: isize) -> Result<Tensor> {
        let (re, im) = x.rfft(axis)?;
        let without_bias = |layer: &Linear, x: &Tensor| -> Result<Tensor> {
            Ok(x.linear(layer.weight().tensor()?, None, Activation::None, None)?)
        };
        let real = self.real.forward(&re)?.sub(&without_bias(&self.imaginary, &im)?)?.relu()?;
        let imaginary = self.imaginary.forward(&re)?.add(&without_bias(&self.real, &im)?)?.relu()?;
        Ok(real.irfft(&imaginary, x.size(axis)?, axis)?)
    }
}

/// An embedding of each number, and MLPs of the frequencies across channels and along time (FreTS: Yi et al., NeurIPS 2023).
pub fn frets(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, length, channels, width, hidden, horizon) = (32, 96, 8, 128, 256, 96);
    let embedding = b.parameter("embedding", [1, width], Init::Normal { mean: 0.0, std: 1.0 })?;
    let across = FrequencyMlp::new(&b.scope("across"), width)?;
    let along = FrequencyMlp::new(&b.scope("along"), width)?;
    let head = [
        Linear::new(&b.scope("head").scope(0), length * width, hidden)?,
        Linear::new(&b.scope("head").scope(1), hidden, horizon)?,
    ];
    let series = g.normal([batch, length, channels], DType::F32)?;
    let targets = g.normal([batch, horizon, channels], DType::F32)?;
    Ok(Box::new(move |_| {
        // [batch, channels, length, width]
        let x = series.transpose(1, 2)?.unsqueeze(-1)?.mul(embedding.tensor()?)?;
        let y = along.forward(&across.forward(&x, 1)?, 2)?;
        let y = head[0].forward(&x.add(&y)?.flatten(2, 3)?)?.leaky_relu(0.01)?;
        Ok(head[1].forward(&y)?.transpose(1, 2)?.mse_loss(&targets)?)
    }))
}

/// The seasonal part of series `[batch, length, width]`, and their trend.
fn decomposed(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let trend = trend(&x.transpose(1, 2)?)?.transpose(1, 2)?;
    Ok((x.sub(&trend)?, trend))
}

/// Attention to the delays at which queries and keys correlate most. A correlation is the mean over all heads and their channels, so
/// that heads make no difference.
struct AutoCorrelation {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
}

impl AutoCorrelation {
    fn new(b: &ParameterBuilder, width: usize) -> Result<AutoCorrelation> {
        let linear = |name: &str| Linear::new(&b.scope(name), width, width);
        Ok(AutoCorrelation {
            query: linear("query")?,
            key: linear("key")?,
            value: linear("value")?,
            out: linear("out")?,
        })
    }

    /// `memory` is as long as `x`, or shorter.
    fn forward(&self, x: &Tensor, memory: &Tensor) -> Result<Tensor> {
        let &[batch, length, width] = x.dims() else { unreachable!("series") };
        let (mut key, mut value) = (self.key.forward(memory)?, self.value.forward(memory)?);
        let missing = length - memory.size(1)?;
        if missing > 0 {
            key = key.pad(&[(0, 0), (0, missing), (0, 0)], 0.0)?;
            value = value.pad(&[(0, 0), (0, missing), (0, 0)], 0.0)?;
        }
        // The transform of the correlations: (a + ib) (c - id).
        let ((a, b), (c, d)) = (self.query.forward(x)?.rfft(1)?, key.rfft(1)?);
        let re = a.mul(&c)?.add(&b.mul(&d)?)?;
        let im = b.mul(&c)?.sub(&a.mul(&d)?)?;
        let correlations = re.irfft(&im, length, 1)?.mean(2)?; // [batch, length]
        let count = (length as f64).ln() as usize;
        let (_, delays) = correlations.mean(0)?.topk(count, 0, true)?;
        let weights = correlations.index_select(1, &delays)?.softmax(1)?;
        // Each roll of the values is a window of the values twice in a row.
        let steps = Tensor::arange(0.0, length as f64, 1.0, DType::I64, x.device())?;
        let places = delays.unsqueeze(1)?.add(&steps)?.flatten(0, 1)?;
        let rolled = Tensor::concat(&[&value, &value], 1)?.index_select(1, &places)?;
        let rolled = rolled.reshape([batch, count, length, width])?;
        self.out.forward(&rolled.mul(&weights.reshape([batch, count, 1, 1])?)?.sum(1)?)
    }
}

/// Auto-correlation and a feed-forward net. Each takes the trend out of its sum with the residual.
struct EncoderLayer {
    attention: AutoCorrelation,
    ffn: [Linear; 2],
}

impl EncoderLayer {
    fn new(b: &ParameterBuilder, width: usize) -> Result<EncoderLayer> {
        let linear = |name: &str, inputs, outputs| Linear::without_bias(&b.scope(name), inputs, outputs);
        Ok(EncoderLayer {
            attention: AutoCorrelation::new(&b.scope("attention"), width)?,
            ffn: [linear("up", width, 2 * width)?, linear("down", 2 * width, width)?],
        })
    }

    fn attend(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        decomposed(&x.add(&self.attention.forward(x, x)?)?)
    }

    fn feed_forward(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let y = self.ffn[0].forward(x)?.gelu()?;
        decomposed(&x.add(&self.ffn[1].forward(&y)?)?)
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (x, _) = self.attend(x)?;
        Ok(self.feed_forward(&x)?.0)
    }
}

/// A layer that also attends to the encoder. Its second result is the sum of the trends, in the channels of the series.
struct DecoderLayer {
    layer: EncoderLayer,
    cross: AutoCorrelation,
    trend: Conv1d,
}

impl DecoderLayer {
    fn new(b: &ParameterBuilder, width: usize, channels: usize) -> Result<DecoderLayer> {
        Ok(DecoderLayer {
            layer: EncoderLayer::new(b, width)?,
            cross: AutoCorrelation::new(&b.scope("cross"), width)?,
            trend: circular(&b.scope("trend"), width, channels)?,
        })
    }

    fn forward(&self, x: &Tensor, memory: &Tensor) -> Result<(Tensor, Tensor)> {
        let (x, first) = self.layer.attend(x)?;
        let (x, second) = decomposed(&x.add(&self.cross.forward(&x, memory)?)?)?;
        let (x, third) = self.layer.feed_forward(&x)?;
        Ok((x, along_time(&self.trend, &first.add(&second)?.add(&third)?)?))
    }
}

/// The convolution of series `[batch, length, channels]`.
fn along_time(conv: &Conv1d, x: &Tensor) -> Result<Tensor> {
    Ok(conv.forward(&x.transpose(1, 2)?)?.transpose(1, 2)?)
}

/// Layer norm, minus the mean over time.
fn seasonal_norm(norm: &LayerNorm, x: &Tensor) -> Result<Tensor> {
    let x = norm.forward(x)?;
    Ok(x.sub(&x.mean_keepdim(1)?)?)
}

/// An encoder and a decoder of seasons, with auto-correlation in place of attention; trends are added up beside them (Autoformer: Wu
/// et al., NeurIPS 2021).
pub fn autoformer(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, length, label, horizon, channels, width) = (32, 96, 48, 96, 7, 128);
    let embeddings = [
        circular(&b.scope("embeddings").scope(0), channels, width)?,
        circular(&b.scope("embeddings").scope(1), channels, width)?,
    ];
    let norms = [
        LayerNorm::new(&b.scope("norms").scope(0), width, 1e-5)?,
        LayerNorm::new(&b.scope("norms").scope(1), width, 1e-5)?,
    ];
    let encoder = [
        EncoderLayer::new(&b.scope("encoder").scope(0), width)?,
        EncoderLayer::new(&b.scope("encoder").scope(1), width)?,
    ];
    let decoder = DecoderLayer::new(&b.scope("decoder"), width, channels)?;
    let head = Linear::new(&b.scope("head"), width, channels)?;
    let series = g.normal([batch, length, channels], DType::F32)?;
    let targets = g.normal([batch, horizon, channels], DType::F32)?;
    Ok(Box::new(move |_| {
        let (seasonal, trend) = decomposed(&series)?;
        // The decoder gets the last steps of the input, then zeros as seasonal part and the mean as trend of the forecast.
        let seasonal = seasonal.i((.., length - label..))?.pad(&[(0, 0), (0, horizon), (0, 0)], 0.0)?;
        let mean = series.mean_keepdim(1)?.broadcast_to([batch, horizon, channels])?;
        let trend = Tensor::concat(&[&trend.i((.., length - label..))?, &mean], 1)?;

        let mut memory = along_time(&embeddings[0], &series)?;
        for layer in &encoder {
            memory = layer.forward(&memory)?;
        }
        let memory = seasonal_norm(&norms[0], &memory)?;
        let (x, trends) = decoder.forward(&along_time(&embeddings[1], &seasonal)?, &memory)?;
        let seasonal = head.forward(&seasonal_norm(&norms[1], &x)?)?;
        let y = trend.add(&trends)?.add(&seasonal)?;
        Ok(y.i((.., label..))?.mse_loss(&targets)?)
    }))
}
