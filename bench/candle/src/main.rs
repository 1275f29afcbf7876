//! One full PatchTST training step on the CPU in candle, in f32: forward, MSE, backward, clipping of the
//! global gradient norm at 1.0 and AdamW (lr 1e-3, weight decay 0.01) on random batches that rotate.
//!
//!     cargo run --release --manifest-path bench/candle/Cargo.toml -- seed 20 5
//!
//! Arguments: the configuration (seed, small or large), steps a repeat, repeats. Prints the median, smallest
//! and largest mean of a step over the repeats in milliseconds, and the last loss.

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor, Var, backprop::GradStore};
use candle_nn::{AdamW, Init, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, ops::softmax};

struct Config {
    context: usize,
    patch: usize,
    stride: usize,
    d: usize,
    heads: usize,
    layers: usize,
    ffn: usize,
    rows: usize,
    output: usize,
}

fn config(name: &str) -> Option<Config> {
    let c = |context, patch, stride, d, heads, layers, ffn, rows, output| {
        Some(Config { context, patch, stride, d, heads, layers, ffn, rows, output })
    };
    match name {
        "seed" => c(24, 8, 4, 64, 4, 2, 256, 64 * 20, 1),
        "small" => c(336, 16, 8, 16, 4, 3, 128, 128 * 7, 96),
        "large" => c(336, 16, 8, 128, 16, 3, 256, 32 * 21, 96),
        _ => None,
    }
}

/// candle's own layer norm has no backward pass on contiguous input; this one is of differentiable pieces.
struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    fn new(d: usize, vb: VarBuilder<'_>) -> Result<LayerNorm> {
        let weight = vb.get_with_hints(d, "weight", Init::Const(1.0))?;
        Ok(LayerNorm { weight, bias: vb.get_with_hints(d, "bias", Init::Const(0.0))? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = x.sqr()?.mean_keepdim(D::Minus1)?;
        let x = x.broadcast_div(&(variance + 1e-5)?.sqrt()?)?;
        x.broadcast_mul(&self.weight)?.broadcast_add(&self.bias)
    }
}

struct Encoder {
    norms: [LayerNorm; 2],
    qkvo: [Linear; 4],
    ffn: [Linear; 2],
    heads: usize,
}

impl Encoder {
    fn new(c: &Config, vb: VarBuilder<'_>) -> Result<Encoder> {
        let d = c.d;
        let square = |name| linear(d, d, vb.pp(name));
        Ok(Encoder {
            norms: [LayerNorm::new(d, vb.pp("norm1"))?, LayerNorm::new(d, vb.pp("norm2"))?],
            qkvo: [square("q")?, square("k")?, square("v")?, square("o")?],
            ffn: [linear(d, c.ffn, vb.pp("ffn1"))?, linear(c.ffn, d, vb.pp("ffn2"))?],
            heads: c.heads,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (b, n, d) = x.dims3()?;
        let h = self.norms[0].forward(x)?;
        let split = |l: &Linear| -> Result<Tensor> {
            l.forward(&h)?.reshape((b, n, self.heads, d / self.heads))?.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (split(&self.qkvo[0])?, split(&self.qkvo[1])?, split(&self.qkvo[2])?);
        let scores = (q.matmul(&k.t()?)? * ((d / self.heads) as f64).powf(-0.5))?;
        let a = softmax(&scores, D::Minus1)?.matmul(&v)?.transpose(1, 2)?.reshape((b, n, d))?;
        let x = (x + self.qkvo[3].forward(&a)?)?;
        let h = self.ffn[0].forward(&self.norms[1].forward(&x)?)?.gelu()?;
        &x + self.ffn[1].forward(&h)?
    }
}

struct PatchTst {
    embed: Linear,
    pos: Tensor,
    layers: Vec<Encoder>,
    head: Linear,
}

impl PatchTst {
    fn new(c: &Config, vb: VarBuilder<'_>) -> Result<PatchTst> {
        let n = (c.context - c.patch) / c.stride + 1;
        Ok(PatchTst {
            embed: linear(c.patch, c.d, vb.pp("embed"))?,
            pos: vb.get_with_hints((n, c.d), "pos", Init::Randn { mean: 0.0, stdev: 0.02 })?,
            layers: (0..c.layers).map(|i| Encoder::new(c, vb.pp(i))).collect::<Result<_>>()?,
            head: linear(n * c.d, c.output, vb.pp("head"))?,
        })
    }

    fn forward(&self, patches: &Tensor) -> Result<Tensor> {
        let mut x = self.embed.forward(patches)?.broadcast_add(&self.pos)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        self.head.forward(&x.flatten_from(1)?)
    }
}

fn clip(vars: &[Var], grads: &mut GradStore) -> Result<()> {
    let mut sum = 0f64;
    for var in vars {
        if let Some(g) = grads.get(var) {
            sum += g.sqr()?.sum_all()?.to_scalar::<f32>()? as f64;
        }
    }
    let scale = (1.0 / (sum.sqrt() + 1e-6)).min(1.0);
    for var in vars {
        if let Some(g) = grads.remove(var) {
            grads.insert(var, (g * scale)?);
        }
    }
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "seed".to_string());
    let c = config(&name).ok_or("configurations: seed, small, large")?;
    let mut number = |default: usize| args.next().map_or(Ok(default), |a| a.parse());
    let (steps, reps) = (number(20)?, number(5)?);
    let device = Device::Cpu;
    let map = VarMap::new();
    let model = PatchTst::new(&c, VarBuilder::from_varmap(&map, DType::F32, &device))?;
    let vars = map.all_vars();
    let mut optimizer = AdamW::new(vars.clone(), ParamsAdamW { lr: 1e-3, weight_decay: 0.01, ..Default::default() })?;
    let n = (c.context - c.patch) / c.stride + 1;
    let mut batches = Vec::new();
    for _ in 0..8 {
        let x = Tensor::randn(0f32, 1.0, (c.rows, c.context), &device)?;
        let y = Tensor::randn(0f32, 1.0, (c.rows, c.output), &device)?;
        // candle has no unfold: patches are stacked slices.
        let patches = (0..n).map(|i| x.narrow(1, i * c.stride, c.patch)).collect::<Result<Vec<_>>>()?;
        batches.push((Tensor::stack(&patches, 1)?, y));
    }
    let mut loss = f32::NAN;
    let mut step = |i: usize| -> Result<f32> {
        let (x, y) = &batches[i % batches.len()];
        let l = (model.forward(x)? - y)?.sqr()?.mean_all()?;
        let mut grads = l.backward()?;
        clip(&vars, &mut grads)?;
        optimizer.step(&grads)?;
        l.to_scalar()
    };
    for i in 0..3 {
        step(i)?;
    }
    let mut times = Vec::new();
    for _ in 0..reps.max(1) {
        let start = Instant::now();
        for i in 0..steps.max(1) {
            loss = step(i)?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e3 / steps.max(1) as f64);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{name:6} {:15} median {:9.2} ms  min {:9.2}  max {:9.2}  loss {loss:.4}",
        "candle",
        times[times.len() / 2],
        times[0],
        times[times.len() - 1]
    );
    Ok(())
}
