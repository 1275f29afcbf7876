use super::*;
use crate::models::testing::{check_gradients, device};

fn config() -> ITransformerConfig {
    ITransformerConfig {
        channels: 3,
        context: 10,
        horizon: 4,
        d_model: 8,
        heads: 2,
        layers: 2,
        ffn: 12,
        dropout: 0.0,
        revin: true,
    }
}

fn build(config: ITransformerConfig) -> ITransformer {
    ITransformer::new(config, DType::F64, &device(), 7).unwrap()
}

/// `[2, 3, 10]`
fn contexts(seed: u64) -> Tensor {
    Generator::new(&device(), seed).unwrap().normal([2, 3, 10], DType::F64).unwrap()
}

fn forecast(model: &ITransformer, x: &Tensor) -> Vec<f64> {
    model.forward(x, Mode::Eval).unwrap().to_vec().unwrap()
}

fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn the_order_of_the_channels_has_no_influence() {
    let (model, x) = (build(config()), contexts(1));
    let channel = |x: &Tensor, at: usize| x.narrow(1, at, 1).unwrap();
    let turned = Tensor::concat(&[&channel(&x, 2), &channel(&x, 0), &channel(&x, 1)], 1).unwrap();
    let y = model.forward(&x, Mode::Eval).unwrap();
    let expected = Tensor::concat(&[&channel(&y, 2), &channel(&y, 0), &channel(&y, 1)], 1).unwrap();
    assert!(apart(&forecast(&model, &turned), &expected.to_vec::<f64>().unwrap()) < 1e-12);
}

#[test]
fn a_channel_is_forecast_from_all_channels() {
    let (model, x) = (build(config()), contexts(2));
    let other = x.copy().unwrap();
    other.narrow(1, 1, 1).unwrap().mul_scalar_assign(-1.0).unwrap();
    let (a, b) = (forecast(&model, &x), forecast(&model, &other));
    // The first channel of the first window.
    assert!(apart(&a[..4], &b[..4]) > 1e-6);
}

/// A window in other units is forecast in those units.
#[test]
fn revin_carries_units_through() {
    let (model, x) = (build(config()), contexts(3));
    let base = forecast(&model, &x);
    let moved = forecast(&model, &x.mul_scalar(40.0).unwrap().add_scalar(1000.0).unwrap());
    let expected: Vec<f64> = base.iter().map(|value| value * 40.0 + 1000.0).collect();
    // Only approximately, because eps is added to the variance.
    assert!(apart(&moved, &expected) < 1e-2);
    let without = build(ITransformerConfig { revin: false, ..config() });
    assert!(apart(&forecast(&without, &x), &base) > 1e-6);
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let model = build(config());
    let (x, y) = (contexts(4), contexts(5).narrow(2, 0, 4).unwrap());
    check_gradients(model.parameters(), 1e-7, || {
        model.forward(&x, Mode::Eval).unwrap().mse_loss(&y).unwrap()
    });
}

#[test]
fn dropout_is_for_training_only() {
    let x = contexts(6);
    let plain = forecast(&build(config()), &x);
    let model = build(ITransformerConfig { dropout: 0.3, ..config() });
    assert_eq!(forecast(&model, &x), plain);
    let generator = Generator::new(&device(), 1).unwrap();
    let trained = model.forward(&x, Mode::Train(&generator)).unwrap().to_vec::<f64>().unwrap();
    assert!(apart(&trained, &plain) > 1e-6);
}

#[test]
fn the_size_that_is_told_before_is_that_of_the_model() {
    for config in [config(), ITransformerConfig { layers: 1, ..config() }] {
        let (size, model) = (config.size().unwrap(), build(config));
        assert_eq!(size.parameters, model.parameter_count() as u128);
        assert_eq!(size.tensors, model.parameters().iter().count() as u64);
    }
    let message = ITransformerConfig { heads: 3, ..config() }.validate().unwrap_err().to_string();
    assert!(message.contains("3 heads do not divide d_model 8"), "{message}");
}
