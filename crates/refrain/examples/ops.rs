//! The time of everyday operations on the CPU: a line per operation, dtype and layout of the operand, in microseconds.
//!
//! `RAYON_NUM_THREADS=1 cargo run --release -p refrain --example ops -- f32 bf16`; `bench/ops.py` sets it beside PyTorch.

use std::time::Instant;

use refrain::{Activation, DType, Device, Generator, Result, Tensor};

/// Rows and columns of an operand.
const N: usize = 512;
const REPEATS: usize = 15;
/// A repeat takes at least as many seconds.
const SHORTEST: f64 = 100e-6;

/// Prints the median time of one call.
fn time(name: &str, dtype: DType, layout: &str, f: impl Fn() -> Result<Tensor>) -> Result<()> {
    f()?;
    let begun = Instant::now();
    f()?;
    let calls = (SHORTEST / begun.elapsed().as_secs_f64().max(1e-9)).ceil().clamp(1.0, 1000.0) as usize;
    let mut times = [0.0; REPEATS];
    for time in &mut times {
        let begun = Instant::now();
        for _ in 0..calls {
            f()?;
        }
        *time = begun.elapsed().as_secs_f64() / calls as f64 * 1e6;
    }
    times.sort_by(f64::total_cmp);
    println!("{name}\t{dtype}\t{layout}\t{:.3}", times[REPEATS / 2]);
    Ok(())
}

type Unary = fn(&Tensor) -> Result<Tensor>;
type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Operations on numbers of all dtypes.
const UNARY: &[(&str, Unary)] = &[
    ("square", |x| x.square()),
    ("relu", |x| x.relu()),
    ("clamp", |x| x.clamp(1.0, 3.0)),
    ("logical_not", |x| x.logical_not()),
    ("add_scalar", |x| x.add_scalar(2.0)),
    ("mul_scalar", |x| x.mul_scalar(3.0)),
    ("lt_scalar", |x| x.lt_scalar(1.0)),
    ("maximum_scalar", |x| x.maximum_scalar(2.0)),
    ("remainder_scalar", |x| x.remainder_scalar(2.0)),
    ("copy", |x| x.copy()),
    ("sum", |x| x.sum(())),
    ("sum 0", |x| x.sum(0)),
    ("sum 1", |x| x.sum(1)),
    ("max", |x| x.max(())),
    ("max 0", |x| x.max(0)),
    ("max 1", |x| x.max(1)),
    ("argmax 0", |x| x.argmax(0)),
    ("argmax 1", |x| x.argmax(1)),
    ("prod 0", |x| x.prod(0)),
    ("any 1", |x| x.any(1)),
    ("to f32", |x| x.to_dtype(DType::F32)),
    ("to bf16", |x| x.to_dtype(DType::BF16)),
    ("to f64", |x| x.to_dtype(DType::F64)),
    ("to i64", |x| x.to_dtype(DType::I64)),
    ("to u8", |x| x.to_dtype(DType::U8)),
];

const FLOAT_UNARY: &[(&str, Unary)] = &[
    ("neg", |x| x.neg()),
    ("abs", |x| x.abs()),
    ("sign", |x| x.sign()),
    ("exp", |x| x.exp()),
    ("log", |x| x.log()),
    ("sqrt", |x| x.sqrt()),
    ("rsqrt", |x| x.rsqrt()),
    ("reciprocal", |x| x.reciprocal()),
    ("sin", |x| x.sin()),
    ("cos", |x| x.cos()),
    ("tanh", |x| x.tanh()),
    ("sigmoid", |x| x.sigmoid()),
    ("gelu", |x| x.gelu()),
    ("gelu_tanh", |x| x.gelu_tanh()),
    ("silu", |x| x.silu()),
    ("erf", |x| x.erf()),
    ("floor", |x| x.floor()),
    ("round", |x| x.round()),
    ("softplus", |x| x.softplus()),
    ("exp2", |x| x.exp2()),
    ("log2", |x| x.log2()),
    ("log10", |x| x.log10()),
    ("tan", |x| x.tan()),
    ("asin", |x| x.asin()),
    ("atan", |x| x.atan()),
    ("sinh", |x| x.sinh()),
    ("cosh", |x| x.cosh()),
    ("asinh", |x| x.asinh()),
    ("acosh", |x| x.acosh()),
    ("atanh", |x| x.atanh()),
    ("trunc", |x| x.trunc()),
    ("log_sigmoid", |x| x.log_sigmoid()),
    ("mish", |x| x.mish()),
    ("hardswish", |x| x.hardswish()),
    ("hardsigmoid", |x| x.hardsigmoid()),
    ("isfinite", |x| x.isfinite()),
    ("elu", |x| x.elu(1.0)),
    ("leaky_relu", |x| x.leaky_relu(0.1)),
    ("isnan", |x| x.isnan()),
    ("pow_scalar", |x| x.pow_scalar(2.5)),
    ("div_scalar", |x| x.div_scalar(3.0)),
    ("mean 0", |x| x.mean(0)),
    ("mean 1", |x| x.mean(1)),
    ("var 0", |x| x.var(0, 1)),
    ("var 1", |x| x.var(1, 1)),
    ("softmax 0", |x| x.softmax(0)),
    ("softmax 1", |x| x.softmax(1)),
    ("log_softmax 1", |x| x.log_softmax(1)),
    ("l2_normalize", |x| x.l2_normalize(1, 1e-6)),
];

const BINARY: &[(&str, Binary)] = &[
    ("add", |a, b| a.add(b)),
    ("sub", |a, b| a.sub(b)),
    ("mul", |a, b| a.mul(b)),
    ("div", |a, b| a.div(b)),
    ("maximum", |a, b| a.maximum(b)),
    ("lt", |a, b| a.lt(b)),
    ("eq", |a, b| a.eq(b)),
    ("logical_and", |a, b| a.logical_and(b)),
    ("remainder", |a, b| a.remainder(b)),
];

const FLOAT_BINARY: &[(&str, Binary)] = &[
    ("pow", |a, b| a.pow(b)),
    ("atan2", |a, b| a.atan2(b)),
    ("hypot", |a, b| a.hypot(b)),
    ("logaddexp", |a, b| a.logaddexp(b)),
    ("mse_loss", |a, b| a.mse_loss(b)),
];

fn measure(dtype: DType, device: &Device) -> Result<()> {
    let g = Generator::new(device, 1)?;
    let random = |shape: &[usize]| match dtype.is_float() {
        // Positive, so that logarithms and powers exist.
        true => g.uniform(shape, DType::F32)?.add_scalar(0.5)?.to_dtype(dtype),
        false => g.randint(1, 7, shape)?.to_dtype(dtype),
    };
    let (x, y) = (random(&[N, N])?, random(&[N, N])?);
    let layouts =
        [("contiguous", x.clone()), ("transposed", x.transpose(0, 1)?), ("narrow", x.narrow(1, 64, 384)?)];
    let (unary, binary) = match dtype.is_float() {
        true => (FLOAT_UNARY, FLOAT_BINARY),
        false => (&[][..], &[][..]),
    };
    for (layout, x) in &layouts {
        for (name, f) in UNARY.iter().chain(unary) {
            time(name, dtype, layout, || f(x))?;
        }
    }
    let operands = [
        ("contiguous", x.clone(), y.clone()),
        ("transposed", x.clone(), y.transpose(0, 1)?),
        ("narrow", x.narrow(1, 64, 384)?, y.narrow(1, 32, 384)?),
        ("row", x.clone(), random(&[N])?),
        ("column", x.clone(), random(&[N, 1])?),
    ];
    for (layout, a, b) in &operands {
        for (name, f) in BINARY.iter().chain(binary) {
            if *name != "mse_loss" || a.shape() == b.shape() {
                time(name, dtype, layout, || f(a, b))?;
            }
        }
    }

    let rows = g.randint(0, N as i64, [N])?;
    let places = g.randint(0, N as i64, [N, N])?;
    let (heads, image) = (random(&[8, N, 8, 16])?, random(&[64, 8, 12, 12])?);
    let condition = random(&[N, N])?.lt(&y)?;
    let contiguous = |name, f: &dyn Fn() -> Result<Tensor>| time(name, dtype, "contiguous", f);
    contiguous("concat 0", &|| Tensor::concat(&[&x, &y], 0))?;
    contiguous("concat 1", &|| Tensor::concat(&[&x, &y], 1))?;
    contiguous("stack 0", &|| Tensor::stack(&[&x, &y], 0))?;
    contiguous("pad", &|| x.pad(&[(3, 5), (7, 9)], 0.0))?;
    contiguous("repeat", &|| x.repeat(&[2, 2]))?;
    contiguous("unfold", &|| x.unfold(1, 16, 8)?.copy())?;
    contiguous("unfold 2x2", &|| image.unfold(2, 2, 2)?.unfold(3, 2, 2)?.copy())?;
    contiguous("permute", &|| heads.permute(&[0, 2, 1, 3])?.copy())?;
    contiguous("index_select 0", &|| x.index_select(0, &rows))?;
    contiguous("index_select 1", &|| x.index_select(1, &rows))?;
    contiguous("gather 1", &|| x.gather(1, &places))?;
    contiguous("scatter_add 1", &|| x.scatter_add(1, &places, &y))?;
    contiguous("where_cond", &|| condition.where_cond(&x, &y))?;
    contiguous("zeros", &|| Tensor::zeros([N, N], dtype, device))?;
    contiguous("one_hot", &|| rows.one_hot(N, dtype))?;
    if !dtype.is_float() {
        return Ok(());
    }
    let (weight, bias) = (random(&[N])?, random(&[N])?);
    let vector = random(&[N, 1])?;
    let (p, q) = (random(&[16, 128, 64])?, random(&[16, 64, 128])?);
    let qkv = [random(&[8, 8, 64, 32])?, random(&[8, 8, 64, 32])?, random(&[8, 8, 64, 32])?];
    let (mean, var) = (random(&[N])?, random(&[N])?);
    contiguous("matmul", &|| x.matmul(&y))?;
    time("matmul", dtype, "transposed", || x.matmul(&y.transpose(0, 1)?))?;
    contiguous("matmul vector", &|| x.matmul(&vector))?;
    contiguous("matmul batch", &|| p.matmul(&q))?;
    contiguous("linear", &|| x.linear(&y, Some(&bias), Activation::None, None))?;
    contiguous("linear gelu", &|| x.linear(&y, Some(&bias), Activation::GeluTanh, None))?;
    contiguous("layer_norm", &|| x.layer_norm(&weight, &bias, 1e-5))?;
    contiguous("rms_norm", &|| x.rms_norm(&weight, 1e-5))?;
    contiguous("batch_norm", &|| x.batch_norm(&weight, &bias, &mean, &var, 1, true, 0.1, 1e-5))?;
    contiguous("cross_entropy", &|| x.cross_entropy(&rows))?;
    contiguous("attention", &|| qkv[0].scaled_dot_product_attention(&qkv[1], &qkv[2], None, false))?;
    contiguous("dropout", &|| x.dropout(0.3, &g))?;
    contiguous("normal", &|| g.normal([N, N], dtype))?;
    contiguous("uniform", &|| g.uniform([N, N], dtype))
}

fn main() -> Result<()> {
    let device = Device::cpu();
    let dtypes = [DType::F32, DType::BF16, DType::F16, DType::F64, DType::I64, DType::U8];
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for dtype in dtypes {
        if wanted.is_empty() || wanted.contains(&dtype.to_string()) {
            measure(dtype, &device)?;
        }
    }
    Ok(())
}
