//! Forecasters beside PyTorch in float64, eager and recorded. What is stored is said at the head of `reference/forecasters.py`.

mod common;

use std::path::Path;

use common::devices;
use refrain::{DType, Device, Generator, Step, Tensor};
use refrain_forecast::data::windows::WindowCovariates;
use refrain_forecast::models::dlinear::DLinearConfig;
use refrain_forecast::models::itransformer::ITransformerConfig;
use refrain_forecast::models::patchtst::FfnActivation;
use refrain_forecast::models::tsmixer::{MixerNorm, TsMixerConfig};
use refrain_forecast::models::{Mode, ModelConfig};
use safetensors::SafeTensors;

/// The forecasters; a case of the name `.._batch` is in training mode, so that its norms use the statistics of the batch.
fn cases() -> Vec<(&'static str, ModelConfig)> {
    let dlinear = |individual| {
        DLinearConfig { channels: 3, context: 12, horizon: 5, moving_average: 7, individual }.into()
    };
    let itransformer = |revin| {
        let (channels, context, horizon) = (3, 12, 5);
        let (d_model, heads, layers, ffn, dropout) = (8, 2, 2, 6, 0.1);
        ITransformerConfig { channels, context, horizon, d_model, heads, layers, ffn, dropout, revin }.into()
    };
    let tsmixer = TsMixerConfig { ffn: 6, dropout: 0.0, ..TsMixerConfig::new(3, 12, 5) };
    let batch = TsMixerConfig {
        norm: MixerNorm::Batch,
        activation: FfnActivation::Gelu,
        revin: false,
        ..tsmixer.clone()
    };
    let covariates =
        TsMixerConfig { past: 2, future: 1, statics: 2, d_model: 4, revin_affine: false, ..tsmixer.clone() };
    vec![
        ("dlinear", dlinear(false)),
        ("dlinear_individual", dlinear(true)),
        ("itransformer", itransformer(true)),
        ("itransformer_plain", itransformer(false)),
        ("tsmixer", tsmixer.into()),
        ("tsmixer_batch", batch.into()),
        ("tsmixer_covariates", covariates.into()),
    ]
}

fn stored(file: &SafeTensors, name: &str) -> Vec<f64> {
    let bytes = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}")).data().chunks_exact(8);
    bytes.map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[track_caller]
fn close(what: &str, got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differences = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let apart = differences.fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) });
    let largest = expected.iter().fold(1.0, |most: f64, value| most.max(value.abs()));
    assert!(apart <= 1e-12 * largest, "{what}: {apart:e} apart, of {largest:e}");
}

fn compare(case: &str, config: &ModelConfig, file: &SafeTensors, device: &Device) {
    let model = config.build(DType::F64, device, 1).unwrap();
    let names: Vec<String> = model.parameters().iter().map(|(name, _)| name.to_owned()).collect();
    let held = file.names().iter().filter(|name| name.starts_with(&format!("{case}/weight/"))).count();
    assert_eq!(names.len(), held, "{case} has other parameters: {names:?}");
    for (name, parameter) in model.parameters().iter() {
        parameter.detach().write_from(&stored(file, &format!("{case}/weight/{name}"))).unwrap();
    }
    let shape = file.tensor(&format!("{case}/x")).unwrap().shape().to_vec();
    let x = Tensor::from_slice(&stored(file, &format!("{case}/x")), shape, device).unwrap();
    let covariate = |name: &str| {
        let found = file.tensor(&format!("{case}/{name}")).ok()?;
        let values = stored(file, &format!("{case}/{name}"));
        Some(Tensor::from_slice(&values, found.shape().to_vec(), device).unwrap())
    };
    let [past, future, statics] = ["past", "future", "statics"].map(covariate);
    let covariates = WindowCovariates { past, future, statics };
    let generator = Generator::new(device, 1).unwrap();
    let mode = || if case.ends_with("_batch") { Mode::Train(&generator) } else { Mode::Eval };
    let pass = |x: &Tensor| -> refrain_forecast::Result<Tensor> {
        let forecast = model.forward_with(x, &covariates, mode())?;
        forecast.square()?.mean(())?.backward()?;
        Ok(forecast.detach())
    };
    let gradients = || -> Vec<Vec<f64>> {
        let read = |parameter: &Tensor| {
            let gradient = parameter.grad().unwrap();
            let values = gradient.to_vec::<f64>().unwrap();
            gradient.fill(0.0).unwrap();
            values
        };
        model.parameters().iter().map(|(_, parameter)| read(parameter)).collect()
    };
    let eager = (pass(&x).unwrap().to_vec::<f64>().unwrap(), gradients());
    close(&format!("{case} on {device}"), &eager.0, &stored(file, &format!("{case}/forecast")));
    for (name, gradient) in names.iter().zip(&eager.1) {
        let what = format!("{name} of {case} on {device}");
        close(&what, gradient, &stored(file, &format!("{case}/gradient/{name}")));
    }
    let mut step = Step::new(device, |inputs: &[Tensor]| Ok(vec![pass(&inputs[0])?]));
    let mut replay = || step.call(std::slice::from_ref(&x)).unwrap().to_vec::<f64>(0).unwrap();
    replay();
    gradients();
    let replayed = replay();
    assert_eq!((replayed, gradients()), eager, "{case} on {device}, recorded");
    step.finish().unwrap();
}

#[test]
fn forecasts_and_gradients_are_pytorchs_in_float64() {
    // Found when the test runs, since programs are also copied to other machines.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let bytes = std::fs::read(Path::new(&folder).join("tests/reference/forecasters.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for device in devices() {
        for (case, config) in cases() {
            compare(case, &config, &file, &device);
        }
    }
}
