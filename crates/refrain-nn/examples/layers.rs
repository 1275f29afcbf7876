//! The time of convolutions, a GRU, an LSTM, a filter of frequencies, linear algebra, and operations that sort, scan, transform or
//! resize: a line per operation, precision and way to run it, in microseconds.
//!
//! `cargo run --release -p refrain-nn --example layers -- cuda f32 bf16 GRU`; `bench/layers.py` sets it beside PyTorch. Arguments
//! after the device are precisions, and beginnings of the names of what is measured.

use std::time::Instant;

use refrain::{
    Conv2dOptions, DType, Device, Generator, Interpolation, PadMode, Precision, Step, Tensor, with_precision,
};
use refrain_nn::{
    BatchNorm, Conv2d, Gru, Init, Lstm, Mode, Module, Parameter, ParameterBuilder, Parameters, Result,
};

const REPEATS: usize = 7;
/// A repeat takes at least as many seconds.
const SHORTEST: f64 = 0.01;

/// A block of a residual network: two convolutions of 3 x 3, each with batch norm, and the input added.
struct Block {
    convs: [Conv2d; 2],
    norms: [BatchNorm; 2],
}

impl Block {
    fn new(builder: &ParameterBuilder, channels: usize) -> Result<Block> {
        let conv = |name| conv(&builder.scope(name), channels);
        let norm = |name| BatchNorm::new(&builder.scope(name), channels, 1, 1e-5, 0.1);
        Ok(Block { convs: [conv("conv1")?, conv("conv2")?], norms: [norm("bn1")?, norm("bn2")?] })
    }
}

impl Module for Block {
    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        let y = self.norms[0].forward(&self.convs[0].forward(x)?, mode)?.relu()?;
        let y = self.norms[1].forward(&self.convs[1].forward(&y)?, mode)?;
        Ok(y.add(&x.to_dtype(y.dtype())?)?.relu()?)
    }
}

/// A factor for each frequency and channel of series `[B, T, C]`, as models that learn in the frequency domain have it.
struct Filter {
    re: Parameter,
    im: Parameter,
    steps: usize,
}

impl Filter {
    fn new(builder: &ParameterBuilder, steps: usize, channels: usize) -> Result<Filter> {
        let part =
            |name| builder.parameter(name, [steps / 2 + 1, channels], Init::Normal { mean: 0.0, std: 0.02 });
        Ok(Filter { re: part("re")?, im: part("im")?, steps })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let ((re, im), (a, b)) = (x.rfft(1)?, (self.re.tensor()?, self.im.tensor()?));
        let (re, im) = (re.mul(a)?.sub(&im.mul(b)?)?, re.mul(b)?.add(&im.mul(a)?)?);
        Ok(re.irfft(&im, self.steps, 1)?)
    }
}

fn conv(builder: &ParameterBuilder, channels: usize) -> Result<Conv2d> {
    let options = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
    Conv2d::new(builder, channels, channels, [3, 3], options)
}

const PRECISIONS: [(&str, Precision); 3] =
    [("f32", Precision::F32), ("tf32", Precision::Tf32), ("bf16", Precision::Bf16)];

/// Whether one of those arguments that `of` selects is that of `is`, or there is none.
fn is_wanted(of: impl Fn(&str) -> bool, is: impl Fn(&str) -> bool) -> bool {
    let mut named = std::env::args().skip(2).filter(|a| of(a)).peekable();
    named.peek().is_none() || named.any(|a| is(&a))
}

fn is_precision(argument: &str) -> bool {
    PRECISIONS.iter().any(|(name, _)| *name == argument)
}

/// Prints the median time of a call of the step, as eager code and replayed.
fn time(name: &str, precision: &str, device: &Device, f: &dyn Fn() -> Result<Vec<Tensor>>) -> Result<()> {
    if !is_wanted(|a| !is_precision(a), |a| name.starts_with(a)) {
        return Ok(());
    }
    let mut step = Step::new(device, |_| Ok(f()?));
    let mut run = |recorded: bool, calls: usize| -> Result<f64> {
        device.synchronize()?;
        let begun = Instant::now();
        if recorded {
            step.repeat(&[], calls)?;
        } else {
            for _ in 0..calls {
                f()?;
            }
        }
        device.synchronize()?;
        Ok(begun.elapsed().as_secs_f64())
    };
    for recorded in [false, true] {
        run(recorded, 3)?;
        let once = run(recorded, 4)? / 4.0;
        let calls = (SHORTEST / once).ceil().clamp(1.0, 1000.0) as usize;
        let mut times = Vec::with_capacity(REPEATS);
        for _ in 0..REPEATS {
            times.push(run(recorded, calls)? / calls as f64 * 1e6);
        }
        times.sort_by(f64::total_cmp);
        let way = if recorded { "recorded" } else { "eager" };
        println!("{name}\t{precision}\t{way}\t{:.3}", times[REPEATS / 2]);
    }
    step.finish()?;
    Ok(())
}

/// The result alone, and with the gradients by the input and by all parameters.
fn layer(
    name: &str,
    precision: &str,
    x: &Tensor,
    parameters: &Parameters,
    forward: &dyn Fn(&Tensor) -> Result<Tensor>,
) -> Result<()> {
    let device = x.device();
    time(name, precision, device, &|| refrain::no_grad(|| Ok(vec![forward(x)?])))?;
    let y = refrain::no_grad(|| forward(x))?;
    let dy = Generator::new(device, 5)?.normal(y.shape(), DType::F32)?.to_dtype(y.dtype())?;
    time(&format!("{name}, with gradients"), precision, device, &|| {
        let x = x.detach();
        x.set_requires_grad(true)?;
        parameters.zero_gradients()?;
        let y = forward(&x)?;
        y.backward_with(&dy)?;
        Ok(vec![y.detach(), x.grad().unwrap_or(y)])
    })
}

fn layers(precision: &str, device: &Device) -> Result<()> {
    let g = Generator::new(device, 1)?;
    let images = g.normal([32, 64, 32, 32], DType::F32)?;
    let series = g.normal([128, 24, 64], DType::F32)?;
    let builder = ParameterBuilder::new(device, DType::F32);
    let one = conv(&builder, 64)?;
    layer("conv2d", precision, &images, &builder.build(&g)?, &|x| one.forward(x))?;
    let builder = ParameterBuilder::new(device, DType::F32);
    let block = Block::new(&builder, 64)?;
    layer("ResNet block", precision, &images, &builder.build(&g)?, &|x| block.forward(x, Mode::Train(&g)))?;
    let builder = ParameterBuilder::new(device, DType::F32);
    let gru = Gru::new(&builder, 64, 64, 1)?;
    layer("GRU", precision, &series, &builder.build(&g)?, &|x| Ok(gru.forward(x, None)?.0))?;
    let builder = ParameterBuilder::new(device, DType::F32);
    let lstm = Lstm::new(&builder, 64, 128, 2)?;
    layer("LSTM", precision, &series, &builder.build(&g)?, &|x| Ok(lstm.forward(x, None)?.0))?;
    let builder = ParameterBuilder::new(device, DType::F32);
    let filter = Filter::new(&builder, 336, 64)?;
    let series = g.normal([128, 336, 64], DType::F32)?;
    layer("filter", precision, &series, &builder.build(&g)?, &|x| filter.forward(x))
}

type Operation = fn(&Tensor) -> refrain::Result<Tensor>;

/// Operations on f32.
const OF_ALL: &[(&str, Operation)] = &[
    ("sort of 1M", |x| Ok(x.sort(0, false)?.0)),
    ("argsort of 1M", |x| x.argsort(0, false)),
    ("topk, 10 of 1M", |x| Ok(x.topk(10, 0, true)?.0)),
    ("topk, 1000 of 1M", |x| Ok(x.topk(1000, 0, true)?.0)),
    ("cumsum of 1M", |x| x.cumsum(0)),
    ("cumprod of 1M", |x| x.cumprod(0)),
    ("FFT of 1M", |x| Ok(x.rfft(0)?.0)),
];
const OF_ROWS: &[(&str, Operation)] = &[
    ("sort of rows", |x| Ok(x.sort(1, false)?.0)),
    ("topk, 10 of each row", |x| Ok(x.topk(10, 1, true)?.0)),
    ("topk, 10 of each column", |x| Ok(x.topk(10, 0, true)?.0)),
    ("cumsum of rows", |x| x.cumsum(1)),
    ("cumsum of columns", |x| x.cumsum(0)),
    ("cumprod of rows", |x| x.cumprod(1)),
    ("FFT of rows", |x| Ok(x.rfft(1)?.0)),
    ("FFT of columns", |x| Ok(x.rfft(0)?.0)),
];

fn operations(device: &Device) -> Result<()> {
    // Around 1, so that products stay in range.
    let x = Generator::new(device, 1)?.normal([1024, 1024], DType::F32)?.mul_scalar(1e-3)?.add_scalar(1.0)?;
    let all = x.flatten(0, 1)?;
    for (name, f) in OF_ALL {
        time(name, "f32", device, &|| Ok(vec![f(&all)?]))?;
    }
    for (name, f) in OF_ROWS {
        time(name, "f32", device, &|| Ok(vec![f(&x)?]))?;
    }
    Ok(())
}

/// Images and series that become larger or smaller.
const RESIZED: &[(&str, Operation)] = &[
    ("resize: bilinear to 64", |x| x.interpolate(&[64, 64], Interpolation::Linear { align_corners: false })),
    ("resize: bicubic to 50", |x| x.interpolate(&[50, 50], Interpolation::Cubic { align_corners: false })),
    ("resize: nearest to 64", |x| x.interpolate(&[64, 64], Interpolation::Nearest)),
    ("resize: adaptive pooling to 7", |x| x.adaptive_avg_pool2d([7, 7])),
    ("resize: linear, 1024 to 96", |x| {
        x.flatten(2, 3)?.interpolate(&[96], Interpolation::Linear { align_corners: false })
    }),
    ("resize: circular padding", |x| x.pad(&[(0, 0), (0, 0), (3, 3), (3, 3)], PadMode::Circular)),
    ("resize: reflected padding", |x| x.pad(&[(0, 0), (0, 0), (3, 3), (3, 3)], PadMode::Reflect)),
];

fn resizing(device: &Device) -> Result<()> {
    let g = Generator::new(device, 1)?;
    let images = g.normal([32, 64, 32, 32], DType::F32)?;
    let none = ParameterBuilder::new(device, DType::F32).build(&g)?;
    for (name, f) in RESIZED {
        layer(name, "f32", &images, &none, &|x| Ok(f(x)?))?;
    }
    Ok(())
}

/// Batches of small matrices, and a large one: symmetric positive definite, with 8 right sides.
fn linear_algebra(device: &Device) -> Result<()> {
    let g = Generator::new(device, 1)?;
    let none = ParameterBuilder::new(device, DType::F32).build(&g)?;
    for (count, n) in [(512, 32), (1, 1024)] {
        let x = g.normal([count, n, n], DType::F32)?;
        let x = x.matmul(&x.transpose(-2, -1)?)?.div_scalar(n as f64)?;
        let x = x.add(&Tensor::eye(n, DType::F32, device)?)?;
        let (l, b) = (x.cholesky()?, g.normal([count, n, 8], DType::F32)?);
        let sizes = format!("{count} x {n} x {n}");
        layer(&format!("cholesky of {sizes}"), "f32", &x, &none, &|x| Ok(x.cholesky()?))?;
        layer(&format!("triangular solve of {sizes}"), "f32", &l, &none, &|l| {
            Ok(l.solve_triangular(&b, false)?)
        })?;
        layer(&format!("solve of {sizes}"), "f32", &x, &none, &|x| Ok(x.solve(&b)?))?;
    }
    Ok(())
}

fn main() -> Result<()> {
    let device: Device = std::env::args().nth(1).unwrap_or("cpu".to_string()).parse()?;
    for (name, precision) in PRECISIONS {
        if is_wanted(is_precision, |a| a == name) {
            with_precision(precision, || layers(name, &device))?;
        }
    }
    operations(&device)?;
    resizing(&device)?;
    linear_algebra(&device)
}
