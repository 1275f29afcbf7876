//! Attention in f16 and bf16 is as exact as its documentation says, for operands that make it difficult.

mod common;

use common::{devices, tensor, values};
use refrain::{DType, Device, Generator, Tensor};

/// Queries, keys and values, `[n, dim]`, `[m, dim]`, `[m, dim]`, in f64.
struct Operands {
    name: &'static str,
    dim: usize,
    causal: bool,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
}

/// Numbers between -1 and 1.
fn numbers(seed: u64, n: usize) -> Vec<f64> {
    let x = Generator::new(&Device::cpu(), seed).unwrap().uniform([n], DType::F64).unwrap();
    x.to_vec::<f64>().unwrap().into_iter().map(|u| 2.0 * u - 1.0).collect()
}

fn scaled(by: f64, numbers: Vec<f64>) -> Vec<f64> {
    numbers.into_iter().map(|v| v * by).collect()
}

fn operands() -> Vec<Operands> {
    let mut all = Vec::new();
    for dim in [16, 64, 128] {
        for (keys, causal) in [(1, false), (7, false), (33, true), (64, false), (130, false), (300, true)] {
            let queries = if causal { keys } else { 5 };
            let (nq, nk) = (queries * dim, keys * dim);
            let mut add = |name, q, k, v| all.push(Operands { name, dim, causal, q, k, v });
            add("plain", numbers(1, nq), numbers(2, nk), numbers(3, nk));
            // Weights from 1 down to 0, including all that are subnormal in f16.
            add("large scores", scaled(8.0, numbers(4, nq)), scaled(8.0, numbers(5, nk)), numbers(6, nk));
            // Adjacent values that nearly cancel, under weights that are nearly equal.
            let signs = |i: usize| if (i / dim).is_multiple_of(2) { 100.0 } else { -100.0 };
            let cancel = numbers(9, nk).into_iter().enumerate().map(|(i, v)| signs(i) + v).collect();
            add("cancelling values", scaled(0.1, numbers(7, nq)), scaled(0.1, numbers(8, nk)), cancel);
            // The first key has the largest weight, but its value is 0: the result comes from the small weights of
            // the others.
            let mut one = scaled(0.3, numbers(11, nk));
            let mut value = scaled(50.0, numbers(12, nk));
            one[..dim].fill(3.0);
            value[..dim].fill(0.0);
            let towards = numbers(10, nq).into_iter().map(|q| 1.0 + 0.05 * q).collect();
            add("one key that takes most", towards, one, value);
        }
        let (nq, nk) = (2 * dim, 4000 * dim);
        all.push(Operands {
            name: "many keys",
            dim,
            causal: false,
            q: scaled(2.0, numbers(13, nq)),
            k: scaled(2.0, numbers(14, nk)),
            v: scaled(30.0, numbers(15, nk)),
        });
    }
    all
}

/// The exact result for the operands as they are stored, and its tolerance.
fn exact(o: &Operands, q: &[f64], k: &[f64], v: &[f64], dtype: DType) -> (Vec<f64>, Vec<f64>) {
    let dim = o.dim;
    let scale = 1.0 / (dim as f64).sqrt();
    // The unit of rounding of the dtype, and half of its smallest subnormal number.
    let (unit, tiny) = match dtype {
        DType::F16 => (2f64.powi(-11), 2f64.powi(-25)),
        _ => (2f64.powi(-8), 0.0),
    };
    // Sums in f32, which tensor cores truncate instead of rounding.
    let sums = 2f64.powi(-22);
    let (mut out, mut bound) = (Vec::new(), Vec::new());
    for (i, q) in q.chunks(dim).enumerate() {
        let keys: Vec<&[f64]> = k.chunks(dim).take(if o.causal { i + 1 } else { usize::MAX }).collect();
        let dot = |k: &[f64]| scale * q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>();
        let scores: Vec<f64> = keys.iter().map(|k| dot(k)).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        // The relative error of each weight, since its score is a sum in f32.
        let off = |k: &[f64], s: f64| {
            let terms = scale * q.iter().zip(k).map(|(a, b)| (a * b).abs()).sum::<f64>();
            sums * ((dim as f64).sqrt() * terms + 2.0 * (s - most).abs() + 4.0)
        };
        let off: Vec<f64> = keys.iter().zip(&scores).map(|(k, &s)| off(k, s)).collect();
        let mean_off: f64 = weights.iter().zip(&off).map(|(w, o)| w / total * o).sum();
        for c in 0..dim {
            let (mut sum, mut spread, mut all, mut scores_off) = (0.0, 0.0, 0.0, 0.0);
            for ((w, v), off) in weights.iter().zip(v.chunks(dim)).zip(&off) {
                let p = w / total;
                sum += p * v[c];
                spread += p * v[c].abs();
                all += v[c].abs();
                scores_off += p * v[c].abs() * (off + mean_off);
            }
            let documented = unit * spread + tiny * all;
            let f32_sums = scores_off + sums * (keys.len() as f64).sqrt() * spread;
            let rounding = unit * sum.abs() + tiny;
            out.push(sum);
            // The parts of the error add up in the last rounding.
            bound.push((documented + f32_sums + rounding) * (1.0 + 2.0 * unit));
        }
    }
    (out, bound)
}

#[test]
fn halves_are_as_exact_as_the_documentation_says() {
    let mut failures = Vec::new();
    for device in devices() {
        for o in operands() {
            for dtype in [DType::F16, DType::BF16] {
                let of = |x: &[f64]| tensor(x, [1, x.len() / o.dim, o.dim], dtype, &device);
                let [q, k, v] = [&o.q, &o.k, &o.v].map(|x| of(x));
                let y = values(&q.scaled_dot_product_attention(&k, &v, None, o.causal).unwrap());
                let mut results = vec![("in three", y)];
                if q.shape() == k.shape() {
                    // [1, n, 3, 1, dim]
                    let parts = [&q, &k, &v].map(|t| t.unsqueeze(2).unwrap());
                    let packed = Tensor::stack(&[&parts[0], &parts[1], &parts[2]], 2).unwrap();
                    let y = packed.scaled_dot_product_attention_qkvpacked(None, o.causal).unwrap();
                    results.push(("packed", values(&y)));
                }
                let (expected, bound) = exact(&o, &values(&q), &values(&k), &values(&v), dtype);
                for (form, y) in results {
                    let mut worst = 0.0f64;
                    for ((y, e), b) in y.iter().zip(&expected).zip(&bound) {
                        let off = if y == e { 0.0 } else { (y - e).abs() / b };
                        worst = if off.is_nan() { f64::INFINITY } else { worst.max(off) };
                    }
                    if worst > 1.0 {
                        let (n, m) = (o.q.len() / o.dim, o.k.len() / o.dim);
                        failures.push(format!(
                            "{}, {form}, {n} queries, {m} keys of {}, {dtype} on {device}: {worst:.2} times the bound",
                            o.name, o.dim
                        ));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
