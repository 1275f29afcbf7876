use super::*;
use crate::models::testing::{check_gradients, device};

fn config() -> TsMixerConfig {
    TsMixerConfig { ffn: 6, dropout: 0.0, ..TsMixerConfig::new(3, 10, 4) }
}

fn build(config: TsMixerConfig) -> TsMixer {
    TsMixer::new(config, DType::F64, &device(), 7).unwrap()
}

/// `[2, 3, 10]`
fn contexts(seed: u64) -> Tensor {
    Generator::new(&device(), seed).unwrap().normal([2, 3, 10], DType::F64).unwrap()
}

fn forecast(model: &TsMixer, x: &Tensor) -> Vec<f64> {
    model.forward(x, Mode::Eval).unwrap().to_vec().unwrap()
}

fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn a_channel_is_forecast_from_all_channels_of_its_window() {
    let (model, x) = (build(config()), contexts(2));
    let other = x.copy().unwrap();
    other.narrow(1, 1, 1).unwrap().mul_scalar_assign(-1.0).unwrap();
    other.narrow(0, 1, 1).unwrap().mul_scalar_assign(0.5).unwrap();
    let (a, b) = (forecast(&model, &x), forecast(&model, &other));
    // The first channel of the first window.
    assert!(apart(&a[..4], &b[..4]) > 1e-6);
    // The first window, which does not see the second.
    let other = x.copy().unwrap();
    other.narrow(0, 1, 1).unwrap().mul_scalar_assign(0.5).unwrap();
    assert_eq!(forecast(&model, &other)[..12], a[..12]);
}

#[test]
fn the_default_settings_are_those_of_the_constructor() {
    let listed = super::super::ModelConfig::from_settings(
        "tsmixer",
        WindowShape { channels: 3, context: 10, horizon: 4 },
        &Values::new(),
    );
    assert_eq!(listed.unwrap(), TsMixerConfig::new(3, 10, 4).into());
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let (x, y) = (contexts(4), contexts(5).narrow(2, 0, 4).unwrap());
    let smooth = TsMixerConfig { activation: FfnActivation::Gelu, ..config() };
    for (norm, training) in [(MixerNorm::Layer, false), (MixerNorm::Batch, false), (MixerNorm::Batch, true)] {
        let model = build(TsMixerConfig { norm, ..smooth.clone() });
        let generator = Generator::new(&device(), 1).unwrap();
        let mode = || if training { Mode::Train(&generator) } else { Mode::Eval };
        check_gradients(model.parameters(), 1e-6, || {
            model.forward(&x, mode()).unwrap().mse_loss(&y).unwrap()
        });
    }
}

#[test]
fn dropout_is_for_training_only() {
    let x = contexts(6);
    let plain = forecast(&build(config()), &x);
    let model = build(TsMixerConfig { dropout: 0.3, ..config() });
    assert_eq!(forecast(&model, &x), plain);
    let generator = Generator::new(&device(), 1).unwrap();
    let trained = model.forward(&x, Mode::Train(&generator)).unwrap().to_vec::<f64>().unwrap();
    assert!(apart(&trained, &plain) > 1e-6);
}

#[test]
fn the_size_that_is_told_before_is_that_of_the_model() {
    let batch = TsMixerConfig { norm: MixerNorm::Batch, revin_affine: false, ..config() };
    let covariates =
        |layers| TsMixerConfig { layers, past: 1, future: 2, statics: 3, d_model: 5, ..config() };
    let all = [config(), batch, TsMixerConfig { layers: 1, revin: false, ..config() }];
    for config in all.into_iter().chain([1, 2, 3, 4].map(covariates)) {
        let (size, model) = (config.size().unwrap(), build(config));
        assert_eq!(size.parameters, model.parameter_count() as u128);
        let tensors = model.parameters().iter().count() + model.parameters().buffers().count();
        assert_eq!(size.tensors, tensors as u64);
    }
    let message = TsMixerConfig { dropout: 1.0, ..config() }.validate().unwrap_err().to_string();
    assert!(message.contains("dropout is 1"), "{message}");
}
