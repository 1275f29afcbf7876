use super::*;
use refrain::{DType, Device, gradcheck};
use refrain_test::devices_of_equal_bits as devices;
use serde_json::json;

/// Errors on both sides of delta and of 0, away from where a loss has an edge.
const FORECAST: [f64; 6] = [0.3, -2.0, 1.75, 4.0, -0.9, 7.0];
const TRUTH: [f64; 6] = [0.1, -2.4, 0.0, 1.0, 1.6, -50.0];
/// The last value was filled.
const OBSERVED: [f64; 6] = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0];

fn every_loss() -> Vec<Loss> {
    let of = |loss: Listed| {
        let values = [("loss".to_owned(), json!(loss.name)), ("levels".to_owned(), json!("50,80"))];
        Loss::from_settings(&values.into_iter().collect()).unwrap()
    };
    list().into_iter().map(of).chain([Loss::Huber(Huber { delta: 0.5 })]).collect()
}

/// A forecast for each quantile, all different from one another.
fn forecasts(loss: &Loss, of: &[f64]) -> Vec<f64> {
    let middle = loss.values() as f64 / 2.0;
    (0..loss.values()).flat_map(|at| of.iter().map(move |x| x + 0.7 * (at as f64 + 0.5 - middle))).collect()
}

/// Forecasts `[1, values * n]` of n true values.
fn all_quantiles(loss: &Loss, of: &[f64], device: &Device) -> Tensor {
    let forecasts = forecasts(loss, of);
    Tensor::from_slice(&forecasts, [1, forecasts.len()], device).unwrap()
}

/// The loss of one error of the forecast with this number, by the formula of the paper.
fn by_hand(loss: &Loss, at: usize, error: f64) -> f64 {
    match loss {
        Loss::Mse(_) => error * error,
        Loss::Mae(_) => error.abs(),
        Loss::Huber(Huber { delta }) if error.abs() <= *delta => error * error / 2.0,
        Loss::Huber(Huber { delta }) => delta * (error.abs() - delta / 2.0),
        Loss::Quantile(Quantile { levels }) => {
            let quantile = levels.quantile(at);
            if error < 0.0 { -quantile * error } else { (1.0 - quantile) * error }
        }
        Loss::StudentT(_) => panic!("a loss of three errors together; PyTorch's are in `tests/losses.rs`"),
    }
}

fn row(values: &[f64], device: &Device) -> Tensor {
    Tensor::from_slice(values, [1, values.len()], device).unwrap()
}

#[test]
fn a_filled_value_carries_no_weight_in_any_loss() {
    for device in devices() {
        let [truth, observed] = [TRUTH, OBSERVED].map(|values| row(&values, &device));
        for loss in every_loss() {
            let value = |x: &Tensor| x.to_scalar::<f64>().unwrap();
            let forecast = all_quantiles(&loss, &FORECAST, &device);
            let masked = value(&loss.mean(&forecast, &truth, Some(&observed)).unwrap());
            let five = all_quantiles(&loss, &FORECAST[..5], &device);
            let alone = value(&loss.mean(&five, &row(&TRUTH[..5], &device), None).unwrap());
            assert!((masked - alone).abs() < 1e-12, "{loss:?} on {device}: {masked} for {alone}");
            if let Loss::StudentT(_) = loss {
                continue;
            }
            let each = forecasts(&loss, &FORECAST[..5]);
            let of_value = |(at, forecast): (usize, &[f64])| -> f64 {
                forecast.iter().zip(TRUTH).map(|(x, y)| by_hand(&loss, at, x - y)).sum()
            };
            let on_host = each.chunks(5).enumerate().map(of_value).sum::<f64>() / each.len() as f64;
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
                let x = all_quantiles(&loss, &FORECAST, &device);
                x.set_requires_grad(true).unwrap();
                gradcheck(of, &[x], 1e-7).unwrap_or_else(|e| panic!("{loss:?} on {device}: {e}"));
            }
        }
    }
}

#[test]
fn weights_of_one_change_no_loss() {
    let device = Device::cpu();
    let narrow = |x: Tensor| x.to_dtype(DType::F32).unwrap();
    let truth = narrow(row(&TRUTH, &device));
    let ones = Tensor::ones([1, 6], DType::F32, &device).unwrap();
    for loss in every_loss() {
        let forecast = narrow(all_quantiles(&loss, &FORECAST, &device));
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
    let quantile = from(&[("loss", json!("quantile")), ("levels", json!("90,80"))]).unwrap();
    assert_eq!(serde_json::to_value(&quantile).unwrap(), json!({ "name": "quantile", "levels": "80,90" }));
    assert_eq!((quantile.values(), Loss::default().values()), (5, 1));
    for (pairs, expected) in [
        (&[("huber-delta", json!(0.25))][..], "a setting of the loss huber, and the loss is mse"),
        (&[("loss", json!("huber")), ("huber-delta", json!(0.0))], "delta of the Huber loss is 0"),
        (&[("loss", json!("huber")), ("huber-delta", json!("much"))], "huber-delta"),
        (&[("loss", json!("l3"))], "l3"),
        (&[("loss", json!("quantile"))], "the quantile loss has no levels"),
        (&[("loss", json!("quantile")), ("levels", json!("100"))], "100 is not between"),
    ] {
        let message = from(pairs).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

/// The constant forecast with the least loss is the quantile of what came true, for every quantile of the levels.
#[test]
fn the_quantile_loss_is_least_at_the_quantiles() {
    let device = Device::cpu();
    let loss = Loss::Quantile(Quantile { levels: "50,80".parse().unwrap() });
    let truth: Vec<f64> = (0..1000).map(|i| f64::from(i * 7919 % 1000)).collect();
    let rows = Tensor::from_slice(&truth, [1, 1000], &device).unwrap();
    let at = |forecasts: &[f64]| {
        let forecast: Vec<f64> = forecasts.iter().flat_map(|&value| [value; 1000]).collect();
        let forecast = Tensor::from_slice(&forecast, [1, 5000], &device).unwrap();
        loss.mean(&forecast, &rows, None).unwrap().to_scalar::<f64>().unwrap()
    };
    let best = [99.5, 249.5, 499.5, 749.5, 899.5];
    for quantile in 0..5 {
        for by in [-20.0, 20.0] {
            let mut moved = best;
            moved[quantile] += by;
            assert!(at(&moved) > at(&best), "quantile {quantile} moved by {by}");
        }
    }
}
