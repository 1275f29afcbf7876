//! A training step with all that moves from step to step: dropout, running statistics, clipping, AdamW, a schedule.

use refrain::optim::{
    AdamWBuffers, AdamWOptions, Schedule, Segment, SegmentTable, adamw, clip_coefficient_into,
    learning_rate_into,
};
use refrain::{Activation, DType, Device, Generator, Result, Step, Tensor, no_grad};

const TOKENS: usize = 6;
const WIDTH: usize = 16;
const SHAPES: [&[usize]; 9] = [
    &[WIDTH],
    &[WIDTH],
    &[3 * WIDTH, WIDTH],
    &[3 * WIDTH],
    &[WIDTH, WIDTH],
    &[4 * WIDTH, WIDTH],
    &[WIDTH, 4 * WIDTH],
    &[WIDTH],
    &[4, TOKENS * WIDTH],
];

/// A patch transformer of one layer with dropout and batch norm, and AdamW over flat buffers with clipping, warm-up
/// and cosine.
pub struct Model {
    pub parameters: Vec<Tensor>,
    /// Parameters, gradients, and both moments.
    flat: [Tensor; 4],
    /// Mean and variance of the batch norm, which training moves.
    running: [Tensor; 2],
    /// Steps done, i64 `[1]`.
    pub step: Tensor,
    learning_rate: Tensor,
    norm: Tensor,
    scale: Tensor,
    segments: SegmentTable,
    generator: Generator,
    schedule: Schedule,
}

impl Model {
    /// Before the first of so many steps.
    pub fn new(device: &Device, steps: u64) -> Model {
        let dtype = DType::F32;
        let sizes = SHAPES.map(|s| s.iter().product::<usize>());
        let n = sizes.iter().sum();
        let numbers: Vec<f64> = (0..n).map(|j| ((j * 17) % 101) as f64 / 400.0 - 0.125).collect();
        let zeros = || Tensor::zeros([n], dtype, device).unwrap();
        let flat = [super::tensor(&numbers, [n], dtype, device), zeros(), zeros(), zeros()];
        let (mut parameters, mut segments, mut offset) = (Vec::new(), Vec::new(), 0);
        for (shape, size) in SHAPES.iter().zip(sizes) {
            let part = |t: &Tensor| t.narrow(0, offset, size).unwrap().view(*shape).unwrap();
            let p = part(&flat[0]);
            p.set_requires_grad(true).unwrap();
            p.set_grad(&part(&flat[1])).unwrap();
            parameters.push(p);
            segments.push(Segment::new(offset, size));
            offset += size;
        }
        let one = |v: f64, dtype| Tensor::full([1], v, dtype, device).unwrap();
        Model {
            parameters,
            flat,
            running: [
                Tensor::zeros([WIDTH], dtype, device).unwrap(),
                Tensor::ones([WIDTH], dtype, device).unwrap(),
            ],
            step: one(0.0, DType::I64),
            learning_rate: one(0.0, DType::F64),
            norm: one(0.0, DType::F64),
            scale: one(1.0, DType::F64),
            segments: SegmentTable::new(&segments, device).unwrap(),
            generator: Generator::new(device, 3).unwrap(),
            schedule: Schedule::WarmupCosine {
                lr: 5e-3,
                warmup_steps: 20,
                total_steps: steps,
                start_factor: 0.1,
                eta_min: 1e-5,
            },
        }
    }

    pub fn loss(&self, series: &Tensor, target: &Tensor) -> Result<Tensor> {
        let [scale, shift, wqkv, bqkv, wo, w1, w2, shift2, head] = &self.parameters[..] else {
            unreachable!()
        };
        let batch = series.dims()[0];
        let x = series.unfold(1, WIDTH, WIDTH / 2)?;
        let h = x.layer_norm(scale, shift, 1e-5)?;
        let qkv = h.linear(wqkv, Some(bqkv), Activation::None, None)?;
        let part = |i: usize| {
            qkv.narrow(2, i * WIDTH, WIDTH)?.reshape([batch, TOKENS, 2, WIDTH / 2])?.transpose(1, 2)
        };
        let o = part(0)?.scaled_dot_product_attention(&part(1)?, &part(2)?, None, false)?;
        let o = o.transpose(1, 2)?.reshape([batch, TOKENS, WIDTH])?;
        let x = o.linear(wo, None, Activation::None, None)?.dropout(0.2, &self.generator)?.add(&x)?;
        let [mean, variance] = &self.running;
        let x = x.batch_norm(scale, shift2, mean, variance, 2, true, 0.1, 1e-5)?;
        let f = x.linear(w1, None, Activation::GeluTanh, None)?.dropout(0.2, &self.generator)?;
        let x = f.linear(w2, None, Activation::None, Some(&x))?;
        let y = x.reshape([batch, TOKENS * WIDTH])?.linear(head, None, Activation::None, None)?;
        y.mse_loss(target)
    }

    fn update(&self) -> Result<()> {
        no_grad(|| {
            let [parameters, gradients, exp_avg, exp_avg_sq] = &self.flat;
            clip_coefficient_into(gradients, 0.5, &self.norm, &self.scale)?;
            learning_rate_into(self.schedule, &self.step, &self.learning_rate)?;
            let (step, learning_rate, segments) = (&self.step, &self.learning_rate, &self.segments);
            let gradient_scale = &self.scale;
            let buffers = AdamWBuffers {
                parameters,
                gradients,
                exp_avg,
                exp_avg_sq,
                step,
                learning_rate,
                gradient_scale,
                segments,
            };
            adamw(AdamWOptions::default(), buffers)?;
            self.step.add_scalar_assign(1.0)
        })
    }

    /// A whole step; the loss before it.
    pub fn train(&self, series: &Tensor, target: &Tensor) -> Result<Tensor> {
        let loss = self.loss(series, target)?;
        loss.backward()?;
        self.update()?;
        Ok(loss)
    }

    /// Takes over the state of another one.
    pub fn copy_from(&self, other: &Model) -> Result<()> {
        let tensors = self.flat.iter().chain(&self.running).chain([&self.step]);
        let others = other.flat.iter().chain(&other.running).chain([&other.step]);
        no_grad(|| tensors.zip(others).try_for_each(|(to, from)| to.copy_from(from)))?;
        let (seed, offset) = other.generator.state()?;
        self.generator.set_state(seed, offset)
    }

    /// The bits of all state that training moves.
    pub fn state(&self) -> Vec<u64> {
        let mut bits = Vec::new();
        for t in self.flat.iter().chain(&self.running) {
            bits.extend(t.to_vec::<f32>().unwrap().iter().map(|v| u64::from(v.to_bits())));
        }
        for t in [&self.learning_rate, &self.norm, &self.scale] {
            bits.extend(t.to_vec::<f64>().unwrap().iter().map(|v| v.to_bits()));
        }
        bits.extend(self.step.to_vec::<i64>().unwrap().iter().map(|&v| v as u64));
        let (seed, offset) = self.generator.state().unwrap();
        bits.extend([seed, offset]);
        bits
    }
}

/// Batch `i` of a series, with what follows.
pub fn batch(i: usize, size: usize, device: &Device) -> [Tensor; 2] {
    let length = (TOKENS + 1) * WIDTH / 2;
    let wave = |j: usize| ((j + 31 * i) as f32 * 0.21).sin() + 0.3 * ((j * (i % 7 + 1)) as f32 * 0.05).cos();
    let x: Vec<f32> = (0..size * length).map(wave).collect();
    let y: Vec<f32> = (0..size * 4).map(|j| wave(j * 3 + 1)).collect();
    [
        Tensor::from_slice(&x, [size, length], device).unwrap(),
        Tensor::from_slice(&y, [size, 4], device).unwrap(),
    ]
}

/// Trains a copy of `start` for 12 steps on the sum of the squares of what `forward` makes of it and of an input, eager or
/// recorded. Returns the bits of the losses and of the end, and the text of the program if there is one.
pub fn trained(
    start: &Tensor,
    rate: f64,
    recorded: bool,
    forward: impl Fn(&Tensor, &Tensor) -> Result<Vec<Tensor>>,
) -> (Vec<u32>, String) {
    let device = start.device();
    let w = start.copy().unwrap();
    w.set_requires_grad(true).unwrap();
    let gradient = w.zeros_like().unwrap();
    w.set_grad(&gradient).unwrap();
    let run = |x: &[Tensor]| -> Result<Vec<Tensor>> {
        let y = forward(&w, &x[0])?;
        let loss = (y[0].square()? + y[1].square()?)?.sum(())?;
        loss.backward()?;
        no_grad(|| {
            w.sub_into(&gradient.mul_scalar(rate)?, &w)?;
            gradient.fill(0.0)
        })?;
        Ok(vec![loss])
    };
    let mut step = Step::new(device, |x| Ok(run(x)?));
    let mut numbers = Vec::new();
    for i in 0..12 {
        let x = Tensor::full(w.shape(), 0.1 * f64::from(i), DType::F32, device).unwrap();
        numbers.push(match recorded {
            true => step.call(&[x]).unwrap().to_scalar::<f32>(0).unwrap(),
            false => run(&[x]).unwrap()[0].to_scalar::<f32>().unwrap(),
        });
    }
    let program = step.program().map(|program| program.to_string()).unwrap_or_default();
    step.finish().unwrap();
    numbers.extend(w.to_vec::<f32>().unwrap());
    assert!(numbers.iter().all(|number| number.is_finite()), "{numbers:?}");
    (numbers.into_iter().map(f32::to_bits).collect(), program)
}
