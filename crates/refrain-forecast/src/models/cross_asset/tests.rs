use super::*;
use crate::models::testing::device;
use refrain::{Precision, gradcheck, with_precision};

fn config() -> CrossAssetConfig {
    let small =
        CrossAssetConfig { sources: 4, features: 3, d_model: 8, heads: 2, ffn: 12, ..Default::default() };
    CrossAssetConfig { temperature: 2.0, ..small }
}

fn build(config: CrossAssetConfig) -> CrossAsset {
    CrossAsset::new(config, DType::F64, &device(), 7).unwrap()
}

/// `[2, 4, 3]`
fn features(seed: u64) -> Tensor {
    Generator::new(&device(), seed).unwrap().normal([2, 4, 3], DType::F64).unwrap()
}

fn logits(model: &CrossAsset, x: &Tensor) -> Vec<f64> {
    model.forward(x, Mode::Eval).unwrap().to_vec().unwrap()
}

/// The logits of sample `s`, by source.
fn of_sample(logits: &[f64], s: usize) -> Vec<&[f64]> {
    logits[s * 4 * CLASSES..(s + 1) * 4 * CLASSES].chunks_exact(CLASSES).collect()
}

#[test]
fn a_source_is_judged_in_the_light_of_all_sources_of_its_sample_and_of_no_other() {
    let model = build(config());
    let x = features(1);
    let before = logits(&model, &x);
    x.select(0, 0).unwrap().select(0, 2).unwrap().fill(0.5).unwrap();
    let after = logits(&model, &x);
    let pairs = of_sample(&before, 0).into_iter().zip(of_sample(&after, 0)).collect::<Vec<_>>();
    assert!(pairs.iter().all(|(before, after)| before != after), "{pairs:?}");
    assert_eq!(of_sample(&before, 1), of_sample(&after, 1));
}

#[test]
fn every_source_has_a_projection_of_its_own() {
    let model = build(config());
    let x = Tensor::ones([1, 4, 3], DType::F64, &device()).unwrap();
    let logits = logits(&model, &x);
    let sources = of_sample(&logits, 0);
    assert!((1..4).all(|s| sources[s] != sources[0]), "{sources:?}");
}

#[test]
fn the_length_of_queries_and_keys_means_nothing_and_the_temperature_much() {
    let model = build(config());
    let x = features(2);
    let before = logits(&model, &x);
    for name in ["layers.1.attn.qkv.weight", "layers.1.attn.qkv.bias"] {
        let qk = model.parameters().get(name).unwrap().detach().narrow(0, 0, 16).unwrap();
        qk.mul_scalar_assign(3.0).unwrap();
    }
    let longer = logits(&model, &x);
    assert!(before.iter().zip(&longer).all(|(a, b)| (a - b).abs() < 1e-12), "{before:?} and {longer:?}");
    model.parameters().get("layers.1.attn.temperature").unwrap().detach().fill(8.0).unwrap();
    let sharper = logits(&model, &x);
    assert!(before.iter().zip(&sharper).any(|(a, b)| (a - b).abs() > 1e-3), "{before:?} and {sharper:?}");
}

#[test]
fn gradients_of_all_parameters_agree_with_finite_differences() {
    let model = build(config());
    let x = features(3);
    let parameters: Vec<Tensor> = model.parameters().iter().map(|(_, tensor)| tensor.clone()).collect();
    gradcheck(|_| Ok(model.forward(&x, Mode::Eval).unwrap()), &parameters, 1e-6).unwrap();
}

#[test]
fn dropout_drops_in_training_alone() {
    let model = build(CrossAssetConfig { dropout: 0.5, ..config() });
    let x = features(4);
    let generator = Generator::new(&device(), 1).unwrap();
    let train = || model.forward(&x, Mode::Train(&generator)).unwrap().to_vec::<f64>().unwrap();
    assert_ne!(train(), train());
    let still = build(config());
    assert_eq!(logits(&model, &x), logits(&still, &x));
    let without = still.forward(&x, Mode::Train(&generator)).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(without, logits(&still, &x));
}

#[test]
fn features_of_other_sizes_are_refused_with_both_sizes() {
    let model = build(config());
    for shape in [&[2, 3, 4][..], &[4, 3], &[2, 4, 3, 1]] {
        let x = Tensor::zeros(shape, DType::F64, &device()).unwrap();
        let message = model.forward(&x, Mode::Eval).unwrap_err().to_string();
        assert!(message.contains("4 sources of 3") && message.contains("[batch, sources"), "{message}");
    }
}

#[test]
fn the_loss_of_an_undecided_model_is_that_of_a_guess() {
    let model = build(config());
    let head = model.parameters();
    head.get("head.weight").unwrap().detach().fill(0.0).unwrap();
    head.get("head.bias").unwrap().detach().fill(0.0).unwrap();
    let classes = Tensor::from_slice(&[0i64, 1, 2, 0, 1, 2, 0, 1], [2, 4], &device()).unwrap();
    let loss: f64 = model.loss(&features(5), &classes, Mode::Eval).unwrap().to_scalar().unwrap();
    assert!((loss - 3f64.ln()).abs() < 1e-12, "{loss}");
}

#[test]
fn a_loss_is_f32_whatever_the_logits_are() {
    let classes = Tensor::from_slice(&[0i64, 1, 2, 0, 1, 2, 0, 1], [2, 4], &device()).unwrap();
    for (dtype, precision) in [(DType::F32, Precision::Bf16), (DType::BF16, Precision::F32)] {
        let model = CrossAsset::new(config(), dtype, &device(), 7).unwrap();
        let x = features(6).to_dtype(dtype).unwrap();
        let losses = with_precision(precision, || {
            let logits = model.forward(&x, Mode::Eval).unwrap().to_dtype(DType::F32).unwrap();
            [model.loss(&x, &classes, Mode::Eval), logits.cross_entropy(&classes).map_err(Into::into)]
        });
        let [loss, of_logits] = losses.map(|loss| loss.unwrap().to_scalar::<f32>().unwrap().to_bits());
        assert_eq!(loss, of_logits, "{dtype}");
    }
}

#[test]
fn the_size_that_is_told_before_is_that_of_the_model() {
    for layers in [1, 2, 5] {
        let config = CrossAssetConfig { layers, ..config() };
        let size = config.size().unwrap();
        let model = build(config);
        let expected = (model.parameters().iter().count() as u64, model.parameter_count() as u128, 0);
        assert_eq!((size.tensors, size.parameters, size.buffers), expected);
    }
}
