//! Three training steps of each `refrain bench step` configuration (of a smaller one for cross-asset attention), and of
//! NLinear, beside PyTorch's in float64. What is stored and
//! how the initial weights and batches are computed is said at the head of `reference/make.py`.

#[allow(dead_code, unused_imports)] // Each program uses a part of it.
#[path = "../../refrain-cli/src/bench/mod.rs"]
mod bench;
mod common;

use std::collections::BTreeSet;
use std::path::Path;

use bench::StepSizes;
use common::sanitized;
use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Device, Tensor};
use refrain_forecast::models::cross_asset::{CrossAsset, CrossAssetConfig};
use refrain_forecast::models::nlinear::{NLinear, NLinearConfig};
use refrain_forecast::models::patchtst::PatchTst;
use refrain_forecast::models::{Forecaster, Mode};
use refrain_nn::{AdamW, Optimizer, Parameters};
use safetensors::SafeTensors;
use serde::Deserialize;

/// The largest allowed ratio of our error to the error of PyTorch's own f32 run, both against float64, as root mean
/// squares. Each sums in its own order, so both errors are samples of the same rounding noise.
const FACTOR: f64 = 4.0;

/// One element in so many may differ by more. For a tiny gradient, AdamW turns its noise into a full step, and one
/// such stored element would outweigh all others.
const OUTLIERS: usize = 256;

#[derive(Deserialize)]
struct About {
    params: Vec<Param>,
    f32_losses: Vec<f64>,
    f32_grad_norms: Vec<f64>,
}

#[derive(Deserialize)]
struct Param {
    name: String,
    shape: Vec<usize>,
    stream: u64,
    scale: f32,
    offset: f32,
    stride: usize,
    sum: f64,
    sum_sq: f64,
    grad_sum: f64,
    grad_sum_sq: f64,
    f32_weight_rms: f64,
    f32_grad_rms: f64,
}

/// Numbers of a stream, in [-1, 1).
fn generate(stream: u64, count: usize) -> Vec<f32> {
    let number = |i: u64| {
        let mut z = ((stream << 32) + i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 * 2f32.powi(-23) - 1.0
    };
    (0..count as u64).map(number).collect()
}

fn stored(file: &SafeTensors, name: &str) -> Vec<f64> {
    let view = file.tensor(name).unwrap();
    match view.dtype() {
        safetensors::Dtype::F64 => {
            view.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
        }
        _ => view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect(),
    }
}

/// Compares elements of a tensor with those stored, and sums over all of them.
#[track_caller]
fn compare(what: &str, values: &[f32], p: &Param, expected: &[f64], sums: (f64, f64), noise: f64) {
    let kept: Vec<f64> = values.iter().step_by(p.stride).map(|&v| f64::from(v)).collect();
    assert_eq!(kept.len(), expected.len(), "{what} {}", p.name);
    let mut squares: Vec<f64> = kept.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).collect();
    squares.sort_by(f64::total_cmp);
    let rms = (squares[..kept.len() - kept.len() / OUTLIERS].iter().sum::<f64>() / kept.len() as f64).sqrt();
    // If PyTorch's noise is tiny by chance, the noise of storing in f32 remains.
    let size = (sums.1 / values.len() as f64).sqrt();
    // A root mean square over few elements is a poor estimate of that noise; over one element, none.
    let spread = 1.0 + 3.0 / (expected.len() as f64).sqrt();
    let allowed = FACTOR * spread * noise.max(size * f64::from(f32::EPSILON));
    assert!(
        rms <= allowed,
        "{what} {}: differs by {rms:e} in the root mean square, {allowed:e} allowed",
        p.name
    );

    let all = || values.iter().map(|&v| f64::from(v));
    let (sum, sum_sq): (f64, f64) = (all().sum(), all().map(|v| v * v).sum());
    // |sum of differences| <= n rms, |sum of differences of squares| <= 2 sqrt(sum_sq) sqrt(n) rms.
    let n = values.len() as f64;
    assert!((sum - sums.0).abs() <= n * allowed, "{what} {}: sum {sum} for {}", p.name, sums.0);
    let bound = 2.0 * (sums.1 * n).sqrt() * allowed + n * allowed * allowed;
    assert!((sum_sq - sums.1).abs() <= bound, "{what} {}: sum of squares {sum_sq} for {}", p.name, sums.1);
}

/// Our parameter for one of PyTorch's, or the one that contains it as a third: queries, keys and values share one
/// projection here.
fn part(name: &str) -> (String, Option<usize>) {
    const APART: [&str; 3] = ["attn.q.", "attn.k.", "attn.v."];
    match APART.iter().position(|p| name.contains(p)) {
        None => (name.to_string(), None),
        Some(i) => (name.replace(APART[i], "attn.qkv."), Some(i)),
    }
}

/// PyTorch's AdamW decays norms and biases, too.
fn as_pytorch(parameters: &mut Parameters) {
    parameters.set_group(|_, _| true, |group| group.decay_factor = 1.0).unwrap();
}

/// Compares a model's three steps with those stored under a name; `loss` computes the loss of a step. Under the sanitizer the
/// first step alone.
fn three_steps(name: &str, parameters: &Parameters, loss: impl Fn(u64) -> Tensor) {
    // Found when the test runs, since programs are also copied to other machines.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let path = Path::new(&folder).join(format!("tests/reference/steps_{name}.safetensors"));
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let about: About = serde_json::from_str(&metadata.metadata().as_ref().unwrap()["steps"]).unwrap();

    let names: BTreeSet<String> = parameters.names().map(String::from).collect();
    assert_eq!(names, about.params.iter().map(|p| part(&p.name).0).collect());
    let cut = |p: &Param, of: &dyn Fn(&Tensor) -> Tensor| {
        let (whole, part) = part(&p.name);
        let tensor = of(parameters.get(&whole).unwrap());
        part.map_or_else(|| tensor.clone(), |i| tensor.chunk(3, 0).unwrap()[i].clone())
    };
    for p in &about.params {
        let tensor = cut(p, &Tensor::detach);
        assert_eq!(tensor.dims(), p.shape, "{}", p.name);
        let values = generate(p.stream, tensor.numel());
        tensor.write_from(&values.iter().map(|u| p.offset + p.scale * u).collect::<Vec<_>>()).unwrap();
    }
    let options = AdamWOptions { weight_decay: 0.01, ..AdamWOptions::default() };
    let optimizer = AdamW::new(parameters, options, Schedule::Constant { lr: 1e-3 }).unwrap();
    let optimizer = optimizer.clip_grad_norm(1.0).unwrap();

    let (losses, norms) = (stored(&file, "losses"), stored(&file, "grad_norms"));
    let steps = if sanitized() { 1 } else { 3 };
    for t in 0..steps {
        let loss = loss(t as u64);
        loss.backward().unwrap();
        if t == 0 {
            for p in &about.params {
                let grad = cut(p, &|t| t.grad().unwrap()).to_vec::<f32>().unwrap();
                let expected = stored(&file, &format!("grad/{}", p.name));
                compare("gradient of", &grad, p, &expected, (p.grad_sum, p.grad_sum_sq), p.f32_grad_rms);
            }
        }
        optimizer.step().unwrap();
        let norm: f64 = optimizer.step_state().gradient_norm().to_scalar().unwrap();
        let close = |got: f64, expected: f64, f32_run: f64| {
            let allowed = FACTOR * (f32_run - expected).abs().max(expected * f64::from(f32::EPSILON));
            assert!((got - expected).abs() <= allowed, "step {t}: {got} for {expected}, {allowed:e} allowed");
        };
        close(f64::from(loss.to_scalar::<f32>().unwrap()), losses[t], about.f32_losses[t]);
        close(norm, norms[t], about.f32_grad_norms[t]);
    }
    if sanitized() {
        return;
    }
    // The gradient of attn.k.bias is only noise, and AdamW turns any noise into steps.
    for p in about.params.iter().filter(|p| !p.name.ends_with("attn.k.bias")) {
        let weight = cut(p, &Tensor::detach).to_vec::<f32>().unwrap();
        let expected = stored(&file, &format!("weight/{}", p.name));
        compare("weight", &weight, p, &expected, (p.sum, p.sum_sq), p.f32_weight_rms);
    }
}

/// Twice the numbers of a stream.
fn batch(stream: u64, shape: [usize; 3], device: &Device) -> Tensor {
    let values: Vec<f32> = generate(stream, shape.iter().product()).iter().map(|u| 2.0 * u).collect();
    Tensor::from_slice(&values, shape, device).unwrap()
}

fn patchtst(name: &str, sizes: &StepSizes) {
    let device = common::device();
    let mut model = PatchTst::new(sizes.model.clone(), DType::F32, &device, 0).unwrap();
    as_pytorch(model.parameters_mut());
    three_steps(name, model.parameters(), |t| {
        let x = batch(1000 + 2 * t, [sizes.rows, 1, sizes.model.context], &device);
        let y = batch(1001 + 2 * t, [sizes.rows, 1, sizes.model.horizon], &device);
        model.forward(&x, Mode::Eval).unwrap().mse_loss(&y).unwrap()
    });
}

#[test]
fn seed_agrees_with_pytorch_in_float64() {
    patchtst("seed", &StepSizes::seed());
}

#[test]
fn small_agrees_with_pytorch_in_float64() {
    patchtst("small", &StepSizes::small());
}

#[test]
fn large_agrees_with_pytorch_in_float64() {
    patchtst("large", &StepSizes::large());
}

#[test]
fn cross_asset_attention_agrees_with_pytorch_in_float64() {
    let (device, count) = (common::device(), 24);
    let sizes = CrossAssetConfig { sources: 5, features: 6, d_model: 32, ffn: 64, ..Default::default() };
    let mut model = CrossAsset::new(sizes, DType::F32, &device, 0).unwrap();
    as_pytorch(model.parameters_mut());
    three_steps("cross", model.parameters(), |t| {
        let x = batch(1000 + 2 * t, [count, 5, 6], &device);
        let class = |&u: &f32| (1.5 * (f64::from(u) + 1.0)) as i64;
        let classes: Vec<i64> = generate(1001 + 2 * t, count * 5).iter().map(class).collect();
        let classes = Tensor::from_slice(&classes, [count, 5], &device).unwrap();
        model.loss(&x, &classes, Mode::Eval).unwrap()
    });
}

fn nlinear(name: &str, individual: bool) {
    let device = common::device();
    let config = NLinearConfig { channels: 5, context: 48, horizon: 12, individual };
    let mut model = NLinear::new(config, DType::F32, &device, 0).unwrap();
    as_pytorch(model.parameters_mut());
    three_steps(name, model.parameters(), |t| {
        let x = batch(1000 + 2 * t, [16, 5, 48], &device);
        let y = batch(1001 + 2 * t, [16, 5, 12], &device);
        model.forward(&x, Mode::Eval).unwrap().mse_loss(&y).unwrap()
    });
}

#[test]
fn nlinear_agrees_with_pytorch_in_float64() {
    nlinear("nlinear", false);
}

#[test]
fn nlinear_of_individual_channels_agrees_with_pytorch_in_float64() {
    nlinear("nlinear_individual", true);
}
