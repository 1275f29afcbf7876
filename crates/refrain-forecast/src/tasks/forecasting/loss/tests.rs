use super::*;
use crate::settings::Values;
use refrain::{DType, Device, gradcheck};
use serde_json::json;

/// Errors on both sides of delta and of 0, away from where a loss has an edge.
const FORECAST: [f64; 6] = [0.3, -2.0, 1.75, 4.0, -0.9, 7.0];
const TRUTH: [f64; 6] = [0.1, -2.4, 0.0, 1.0, 1.6, -50.0];
/// The last value was filled.
const OBSERVED: [f64; 6] = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0];

fn every_loss() -> Vec<Loss> {
    let of = |(name, _): (&str, _)| {
        let values: Values = [("loss".to_owned(), json!(name))].into_iter().collect();
        Loss::from_settings(&values).unwrap()
    };
    list().into_iter().map(of).chain([Loss::Huber(Huber { delta: 0.5 })]).collect()
}

fn row(values: &[f64], device: &Device) -> Tensor {
    Tensor::from_slice(values, [1, 2, 3], device).unwrap()
}

fn devices() -> Vec<Device> {
    match std::env::var("REFRAIN_TEST_DEVICE") {
        Ok(name) => vec![name.parse().unwrap()],
        Err(_) => ["cpu", "sim", "sim:unified"].map(|name| name.parse().unwrap()).to_vec(),
    }
}

#[test]
fn a_filled_value_carries_no_weight_in_any_loss() {
    for device in devices() {
        let [forecast, truth, observed] = [FORECAST, TRUTH, OBSERVED].map(|values| row(&values, &device));
        let five = |values: &[f64; 6]| Tensor::from_slice(&values[..5], [1, 1, 5], &device).unwrap();
        for loss in every_loss() {
            let value = |x: &Tensor| x.to_scalar::<f64>().unwrap();
            let masked = value(&loss.mean(&forecast, &truth, Some(&observed)).unwrap());
            let alone = value(&loss.mean(&five(&FORECAST), &five(&TRUTH), None).unwrap());
            assert!((masked - alone).abs() < 1e-12, "{loss:?} on {device}: {masked} for {alone}");
            let errors = FORECAST.iter().zip(TRUTH).take(5).map(|(x, y)| loss.of_error(x - y));
            let on_host = errors.sum::<f64>() / 5.0;
            assert!((masked - on_host).abs() < 1e-12, "{loss:?} on {device}: {masked} for {on_host}");
        }
    }
}

#[test]
fn gradients_are_those_of_finite_differences_with_and_without_weights() {
    for device in devices() {
        let [truth, observed] = [TRUTH, OBSERVED].map(|values| row(&values, &device));
        for loss in every_loss() {
            for weights in [None, Some(&observed)] {
                let of = |x: &[Tensor]| {
                    loss.mean(&x[0], &truth, weights).map_err(|error| match error {
                        Error::Engine(error) => error,
                        other => panic!("{other}"),
                    })
                };
                let x = row(&FORECAST, &device);
                x.set_requires_grad(true).unwrap();
                gradcheck(of, &[x], 1e-7).unwrap_or_else(|e| panic!("{loss:?} on {device}: {e}"));
            }
        }
    }
}

#[test]
fn weights_of_one_change_no_loss() {
    let device = Device::cpu();
    let [forecast, truth] =
        [FORECAST, TRUTH].map(|values| row(&values, &device).to_dtype(DType::F32).unwrap());
    let ones = Tensor::ones([1, 2, 3], DType::F32, &device).unwrap();
    for loss in every_loss() {
        let value = |weights| loss.mean(&forecast, &truth, weights).unwrap().to_scalar::<f32>().unwrap();
        let (plain, masked) = (value(None), value(Some(&ones)));
        assert!((plain - masked).abs() <= 4.0 * f32::EPSILON * plain, "{loss:?}: {plain} and {masked}");
    }
}

#[test]
fn settings_of_another_loss_and_impossible_ones_are_refused() {
    let from = |pairs: &[(&str, Value)]| {
        let values = pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Loss::from_settings(&values)
    };
    assert_eq!(from(&[]).unwrap(), Loss::default());
    let huber = from(&[("loss", json!("huber")), ("huber-delta", json!(0.25))]).unwrap();
    assert_eq!(huber, Loss::Huber(Huber { delta: 0.25 }));
    assert_eq!(serde_json::to_value(&huber).unwrap(), json!({ "name": "huber", "delta": 0.25 }));
    for (pairs, expected) in [
        (&[("huber-delta", json!(0.25))][..], "a setting of the loss huber, and the loss is mse"),
        (&[("loss", json!("huber")), ("huber-delta", json!(0.0))], "delta of the Huber loss is 0"),
        (&[("loss", json!("huber")), ("huber-delta", json!("much"))], "huber-delta"),
        (&[("loss", json!("l3"))], "l3"),
    ] {
        let message = from(pairs).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
