//! The time of a training step of whole models, each written the way a user writes it: a line per model and precision, in
//! microseconds.
//!
//! `cargo run --release -p refrain-nn --example models -- cuda f32 bf16 gpt`; `bench/models.py` has the same models in PyTorch and
//! sets them side by side. Arguments after the device are precisions, and beginnings of the names of models.

use std::time::Instant;

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{
    Activation, Conv1dOptions, Conv2dOptions, ConvTranspose2dOptions, DType, Device, Generator, Precision,
    Step, Tensor, with_precision,
};
use refrain_nn::{
    AdamW, AttentionOptions, BatchNorm, Conv1d, Conv2d, ConvTranspose2d, Dropout, Embedding, EncoderDropout,
    Gru, Init, LayerNorm, Linear, Lstm, Mode, MultiHeadAttention, Optimizer, ParameterBuilder, Result,
    RmsNorm, RotaryOptions, TransformerEncoderLayer, TransformerEncoderOptions,
};

/// Asks for the launches of each step, on standard error.
const PROFILE: &str = "--profile";
const REPEATS: usize = 5;
/// A repeat takes at least as many seconds.
const SHORTEST: f64 = 0.1;

/// What computes the loss of a batch that it holds.
type Loss = Box<dyn Fn(Mode<'_>) -> Result<Tensor>>;

/// Declares the parameters of a model, and draws its batch.
type Model = fn(&ParameterBuilder, &Generator) -> Result<Loss>;

const MODELS: &[(&str, Model)] = &[
    ("gpt of characters", |b, g| {
        gpt(b, g, Gpt { vocabulary: 65, context: 256, width: 384, layers: 6, batch: 64 })
    }),
    ("gpt of words", |b, g| {
        gpt(b, g, Gpt { vocabulary: 50257, context: 256, width: 512, layers: 4, batch: 16 })
    }),
    ("llama", llama),
    ("vision transformer", vision_transformer),
    ("resnet-18", resnet),
    ("autoencoder", autoencoder),
    ("temporal convolutions", temporal_convolutions),
    ("lstm", lstm),
    ("gru", gru),
    ("mlp", mlp),
    ("two towers", two_towers),
];

struct Gpt {
    vocabulary: usize,
    context: usize,
    width: usize,
    layers: usize,
    batch: usize,
}

fn ids(g: &Generator, below: usize, shape: &[usize]) -> Result<Tensor> {
    Ok(g.randint(0, below as i64, shape)?)
}

/// A layer of a GPT or of a vision transformer, with heads of 64.
fn encoder(
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
fn gpt(b: &ParameterBuilder, g: &Generator, sizes: Gpt) -> Result<Loss> {
    let Gpt { vocabulary, context, width, layers, batch } = sizes;
    let tokens = Embedding::new(&b.scope("tokens"), vocabulary, width)?;
    let places = Embedding::new(&b.scope("places"), context, width)?;
    let drop = Dropout::new(0.1)?;
    let layers = (0..layers)
        .map(|i| encoder(&b.scope("layers").scope(i), width, true, 0.1))
        .collect::<Result<Vec<_>>>()?;
    let norm = LayerNorm::new(&b.scope("norm"), width, 1e-5)?;
    let head = Linear::with_init(&b.scope("head"), width, vocabulary, Init::torch_linear(), None)?;
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
fn llama(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (vocabulary, context, width, hidden, batch) = (32000, 512, 512, 1376, 8);
    let linear = |b: &ParameterBuilder, inputs, outputs| {
        Linear::with_init(b, inputs, outputs, Init::torch_linear(), None)
    };
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
            x = added(&x, &attention.forward(&norm1.forward(&x)?, mode)?)?;
            let y = norm2.forward(&x)?;
            let y = gate.forward(&y)?.silu()?.mul(&up.forward(&y)?)?;
            x = added(&x, &down.forward(&y)?)?;
        }
        Ok(head.forward(&norm.forward(&x)?)?.cross_entropy(&next)?)
    }))
}

/// The sum in the dtype of the residual, which stays f32 where layers compute in bf16.
fn added(residual: &Tensor, x: &Tensor) -> Result<Tensor> {
    Ok(residual.add(&x.to_dtype(residual.dtype())?)?)
}

/// Patches of 4 x 4 of small images, and a token for the class before them.
fn vision_transformer(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, width, classes) = (128, 192, 10);
    let options = Conv2dOptions { stride: [4, 4], ..Conv2dOptions::default() };
    let patches = Conv2d::new(&b.scope("patches"), 3, width, [4, 4], options)?;
    let small = Init::Normal { mean: 0.0, std: 0.02 };
    let class = b.parameter("class", [1, 1, width], small)?;
    let places = b.parameter("places", [65, width], small)?;
    let layers = (0..6)
        .map(|i| encoder(&b.scope("layers").scope(i), width, false, 0.0))
        .collect::<Result<Vec<_>>>()?;
    let norm = LayerNorm::new(&b.scope("norm"), width, 1e-5)?;
    let head = Linear::new(&b.scope("head"), width, classes)?;
    let images = g.normal([batch, 3, 32, 32], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let x = patches.forward(&images)?.flatten(2, 3)?.transpose(1, 2)?;
        let class = class.tensor()?.broadcast_to([batch, 1, width])?;
        let mut x = Tensor::concat(&[&class, &x.to_dtype(class.dtype())?], 1)?.add(places.tensor()?)?;
        for layer in &layers {
            x = layer.forward(&x, mode)?;
        }
        let first = norm.forward(&x)?.i((.., 0))?;
        Ok(head.forward(&first)?.cross_entropy(&labels)?)
    }))
}

/// A convolution of 3 x 3 or 1 x 1 without bias, and batch norm.
struct ConvNorm(Conv2d, BatchNorm);

impl ConvNorm {
    fn new(
        b: &ParameterBuilder,
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
    ) -> Result<ConvNorm> {
        let options =
            Conv2dOptions { stride: [stride; 2], padding: [kernel / 2; 2], ..Conv2dOptions::default() };
        let conv = Conv2d::with_init(b, inputs, outputs, [kernel; 2], options, Init::torch_linear(), None)?;
        Ok(ConvNorm(conv, BatchNorm::new(&b.scope("norm"), outputs, 1, 1e-5, 0.1)?))
    }

    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.1.forward(&self.0.forward(x)?, mode)
    }
}

/// The residual network of eighteen layers, for images of 32 x 32.
fn resnet(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, classes) = (128, 10);
    let stem = ConvNorm::new(&b.scope("stem"), 3, 64, 3, 1)?;
    let mut blocks = Vec::new();
    let mut inputs = 64;
    for (i, outputs) in [64, 64, 128, 128, 256, 256, 512, 512].into_iter().enumerate() {
        let b = b.scope("blocks").scope(i);
        let stride = if outputs == inputs { 1 } else { 2 };
        let shortcut = (stride == 2).then(|| ConvNorm::new(&b.scope("shortcut"), inputs, outputs, 1, 2));
        let first = ConvNorm::new(&b.scope("first"), inputs, outputs, 3, stride)?;
        let second = ConvNorm::new(&b.scope("second"), outputs, outputs, 3, 1)?;
        blocks.push((first, second, shortcut.transpose()?));
        inputs = outputs;
    }
    let head = Linear::new(&b.scope("head"), 512, classes)?;
    let images = g.normal([batch, 3, 32, 32], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let mut x = stem.forward(&images, mode)?.relu()?;
        for (first, second, shortcut) in &blocks {
            let y = second.forward(&first.forward(&x, mode)?.relu()?, mode)?;
            let residual = match shortcut {
                Some(shortcut) => shortcut.forward(&x, mode)?,
                None => x,
            };
            x = added(&residual, &y)?.relu()?;
        }
        Ok(head.forward(&x.mean([2, 3])?)?.cross_entropy(&labels)?)
    }))
}

/// Convolutions with strides, and transposed ones back to images of 64 x 64.
fn autoencoder(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    const CHANNELS: [usize; 4] = [3, 32, 64, 128];
    let (mut down, mut up) = (Vec::new(), Vec::new());
    for (i, pair) in CHANNELS.windows(2).enumerate() {
        let options = Conv2dOptions { stride: [2, 2], padding: [1, 1], ..Conv2dOptions::default() };
        down.push(Conv2d::new(&b.scope("down").scope(i), pair[0], pair[1], [4, 4], options)?);
        let options =
            ConvTranspose2dOptions { stride: [2, 2], padding: [1, 1], ..ConvTranspose2dOptions::default() };
        up.push(ConvTranspose2d::new(&b.scope("up").scope(i), pair[1], pair[0], [4, 4], options)?);
    }
    let images = g.normal([64, 3, 64, 64], DType::F32)?;
    Ok(Box::new(move |_| {
        let mut x = images.clone();
        for conv in &down {
            x = conv.forward(&x)?.relu()?;
        }
        for (i, conv) in up.iter().enumerate().rev() {
            x = conv.forward(&x)?;
            if i > 0 {
                x = x.relu()?;
            }
        }
        Ok(x.mse_loss(&images)?)
    }))
}

/// Causal convolutions along time, each looking twice as far back as the one before (Bai et al., 2018).
fn temporal_convolutions(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
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
            x = if i == 0 { y } else { added(&x, &y)? };
        }
        let last = x.i((.., .., length - 1))?;
        Ok(head.forward(&last)?.mse_loss(&targets)?)
    }))
}

fn lstm(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let layers = Lstm::new(&b.scope("lstm"), 32, 128, 2)?;
    forecaster(b, g, 128, move |x| Ok(layers.forward(x, None)?.0))
}

fn gru(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
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

/// For tables: batch norm, ReLU and dropout behind each layer.
fn mlp(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, sizes, classes) = (1024, [100, 512, 512, 512], 10);
    let mut layers = Vec::new();
    for (i, pair) in sizes.windows(2).enumerate() {
        let b = b.scope("layers").scope(i);
        layers.push((
            Linear::new(&b, pair[0], pair[1])?,
            BatchNorm::new(&b.scope("norm"), pair[1], -1, 1e-5, 0.1)?,
        ));
    }
    let drop = Dropout::new(0.1)?;
    let head = Linear::new(&b.scope("head"), 512, classes)?;
    let table = g.normal([batch, sizes[0]], DType::F32)?;
    let labels = ids(g, classes, &[batch])?;
    Ok(Box::new(move |mode| {
        let mut x = table.clone();
        for (linear, norm) in &layers {
            x = drop.forward(&norm.forward(&linear.forward(&x)?, mode)?.relu()?, mode)?;
        }
        Ok(head.forward(&x)?.cross_entropy(&labels)?)
    }))
}

/// Ratings of items by users, each an embedding and an MLP.
fn two_towers(b: &ParameterBuilder, g: &Generator) -> Result<Loss> {
    let (batch, width) = (4096, 64);
    let mut towers = Vec::new();
    for (name, count) in [("users", 100_000), ("items", 20_000)] {
        let b = b.scope(name);
        let table = Embedding::new(&b.scope("table"), count, width)?;
        let layers =
            [Linear::new(&b.scope("first"), width, 128)?, Linear::new(&b.scope("second"), 128, width)?];
        towers.push((table, layers, ids(g, count, &[batch])?));
    }
    let ratings = g.normal([batch], DType::F32)?;
    Ok(Box::new(move |_| {
        let mut sides = Vec::with_capacity(2);
        for (table, [first, second], ids) in &towers {
            sides.push(second.forward(&first.forward(&table.forward(ids)?)?.relu()?)?);
        }
        Ok(sides[0].mul(&sides[1])?.sum(-1)?.mse_loss(&ratings)?)
    }))
}

const PRECISIONS: [(&str, Precision); 3] =
    [("f32", Precision::F32), ("tf32", Precision::Tf32), ("bf16", Precision::Bf16)];

/// Prints the median time of a recorded training step: forward and backward pass, clipping of the gradients' norm at 1, AdamW.
fn time(name: &str, precision: &str, device: &Device, model: Model) -> Result<()> {
    let builder = ParameterBuilder::new(device, DType::F32);
    let loss = model(&builder, &Generator::new(device, 1)?)?;
    let parameters = builder.build(&Generator::new(device, 2)?)?;
    let options = AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() };
    let optimizer = AdamW::new(&parameters, options, Schedule::Constant { lr: 1e-3 })?.clip_grad_norm(1.0)?;
    let generator = Generator::new(device, 3)?;
    let mut step = Step::new(device, |_| {
        let loss = loss(Mode::Train(&generator))?;
        loss.backward()?;
        optimizer.step()?;
        Ok(vec![loss.detach()])
    });
    let mut run = |calls: usize| -> Result<f64> {
        device.synchronize()?;
        let begun = Instant::now();
        step.repeat(&[], calls)?;
        device.synchronize()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    run(3)?;
    let calls = (SHORTEST / (run(4)? / 4.0)).ceil().clamp(1.0, 1000.0) as usize;
    let mut times = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        times.push(run(calls)? / calls as f64 * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!("{name}\t{precision}\t{:.3}", times[REPEATS / 2]);
    if std::env::args().any(|a| a == PROFILE) {
        eprintln!("{name}, {precision}:\n{}", step.profile(&[], 10)?);
    }
    Ok(step.finish()?)
}

/// Whether one of those arguments that `of` selects is that of `is`, or there is none.
fn is_wanted(of: impl Fn(&str) -> bool, is: impl Fn(&str) -> bool) -> bool {
    let mut named = std::env::args().skip(2).filter(|a| a != PROFILE && of(a)).peekable();
    named.peek().is_none() || named.any(|a| is(&a))
}

fn is_precision(argument: &str) -> bool {
    PRECISIONS.iter().any(|(name, _)| *name == argument)
}

fn main() -> Result<()> {
    let device: Device = std::env::args().nth(1).unwrap_or("cpu".to_string()).parse()?;
    for (name, model) in MODELS {
        for (precision, of) in PRECISIONS {
            let wanted = is_wanted(is_precision, |a| a == precision)
                && is_wanted(|a| !is_precision(a), |a| name.starts_with(a));
            if wanted && let Err(error) = with_precision(of, || time(name, precision, &device, *model)) {
                eprintln!("{name}, {precision}: {error}");
            }
        }
    }
    Ok(())
}
