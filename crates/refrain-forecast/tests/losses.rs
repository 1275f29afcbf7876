//! The losses of forecasts beside PyTorch's in float64, eager and recorded. What is stored is said at the head of
//! `reference/losses.py`.

mod common;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use common::devices;
use refrain::{Device, DeviceKind, Step, Tensor};
use refrain_forecast::data::series::{Grid, Part, Split};
use refrain_forecast::data::windows::Windows;
use refrain_forecast::models::nlinear::NLinearConfig;
use refrain_forecast::tasks::forecasting::Forecasting;
use refrain_forecast::tasks::forecasting::loss::{Huber, Loss, Mae, Mse, Quantile, StudentT};
use refrain_forecast::training::{BatchNormStatistics, LrSchedule, Trainer, TrainingConfig};
use safetensors::SafeTensors;

fn losses() -> [(&'static str, Loss); 6] {
    [
        ("mse", Loss::Mse(Mse {})),
        ("mae", Loss::Mae(Mae {})),
        ("huber_0.5", Loss::Huber(Huber { delta: 0.5 })),
        ("huber_1", Loss::Huber(Huber { delta: 1.0 })),
        ("quantile_80_90", Loss::Quantile(Quantile { levels: "80,90".parse().unwrap() })),
        ("student_t", Loss::StudentT(StudentT { levels: "80,90".parse().unwrap() })),
    ]
}

fn stored(file: &SafeTensors, name: &str) -> Vec<f64> {
    let bytes = file.tensor(name).unwrap().data().chunks_exact(8);
    bytes.map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[track_caller]
fn close(what: &str, got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differences = got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let apart = differences.fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) });
    assert!(apart <= 4e-14, "{what}: {apart:e} apart");
}

/// Loss and gradient, eager and from the second replay of a recorded step.
fn both(
    loss: &Loss,
    forecast: &Tensor,
    truth: &Tensor,
    weights: Option<&Tensor>,
) -> [(Vec<f64>, Vec<f64>); 2] {
    let x = forecast.detach();
    x.set_requires_grad(true).unwrap();
    x.set_grad(&x.zeros_like().unwrap()).unwrap();
    let pass = |truth: &Tensor| -> refrain_forecast::Result<Tensor> {
        let value = loss.mean(&x, truth, weights)?;
        value.backward()?;
        Ok(value.detach())
    };
    let gradient = || {
        let gradient = x.grad().unwrap();
        let values = gradient.to_vec::<f64>().unwrap();
        gradient.fill(0.0).unwrap();
        values
    };
    let value = pass(truth).unwrap().to_vec::<f64>().unwrap();
    let eager = (value, gradient());
    let mut step = Step::new(x.device(), |inputs: &[Tensor]| Ok(vec![pass(&inputs[0])?]));
    let mut replay = || {
        let value = step.call(std::slice::from_ref(truth)).unwrap().to_vec::<f64>(0).unwrap();
        (value, gradient())
    };
    replay();
    let replayed = replay();
    step.finish().unwrap();
    [eager, replayed]
}

#[test]
fn losses_and_their_gradients_are_pytorchs_with_and_without_filled_values() {
    // Found when the test runs, since programs are also copied to other machines.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let bytes = std::fs::read(Path::new(&folder).join("tests/reference/losses.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for device in devices() {
        let read = |name: &str| Tensor::from_slice(&stored(&file, name), [4, 3, 5], &device).unwrap();
        let (truth, observed) = (read("truth"), read("observed"));
        for (name, loss) in &losses() {
            let forecast = match loss.values() {
                1 => read("forecast"),
                values => {
                    let of = if name == &"student_t" { "student_t" } else { "quantiles" };
                    let stored = stored(&file, &format!("forecast_of_{of}"));
                    Tensor::from_slice(&stored, [4, 3, values * 5], &device).unwrap()
                }
            };
            for (part, weights) in [("plain", None), ("observed", Some(&observed))] {
                let [eager, replayed] = both(loss, &forecast, &truth, weights);
                let what = format!("{name} of what is {part} on {device}");
                close(&what, &eager.0, &stored(&file, &format!("{name}/{part}")));
                close(&what, &eager.1, &stored(&file, &format!("{name}/{part}_gradient")));
                assert_eq!(replayed, eager, "{what}, recorded");
            }
        }
    }
}

#[test]
fn training_by_any_loss_is_the_same_recorded_and_eager() {
    let values: Vec<f64> = (0..160).map(|i| (i as f64 * 0.4).sin() + 0.01 * (i % 7) as f64).collect();
    let part = |rows: std::ops::Range<usize>| Part::all(rows, 16);
    let split = Split {
        context: 12,
        horizon: 4,
        train: part(0..100),
        validation: part(90..130),
        test: part(120..160),
    };
    let config = TrainingConfig {
        epochs: 3,
        batch_size: 16,
        accumulate: 1,
        lr: 1e-2,
        schedule: LrSchedule::Constant,
        weight_decay: 0.0,
        decay_all: false,
        clip: 0.0,
        patience: 3,
        seed: 1,
        batch_norm: BatchNormStatistics::Synchronised,
    };
    let history = |loss: &Loss, device: &Device, eager: bool| {
        let windows = Windows::new(&Grid::new(values.clone(), 1), 12, 4, device).unwrap();
        let model = NLinearConfig { channels: 1, context: 12, horizon: 4, individual: false };
        let task = Forecasting::new(model, loss.clone(), windows, &split, 1).unwrap();
        let trainer = Trainer::of(task, config.clone()).unwrap();
        let mut trainer = if eager { trainer.eager() } else { trainer };
        while !trainer.is_done() {
            trainer.epoch(Duration::MAX, |_| ControlFlow::Continue(())).unwrap();
        }
        trainer.history().iter().map(|r| (r.train_loss, r.validation.clone())).collect::<Vec<_>>()
    };
    for device in devices() {
        for (name, loss) in &losses() {
            let eager = history(loss, &device, true);
            assert_eq!(history(loss, &device, false), eager, "{name} on {device}");
            if device.kind() != DeviceKind::Cuda {
                assert_eq!(eager, history(loss, &Device::cpu(), true), "{name} on {device}");
            }
            assert!(eager[2].0 < eager[0].0, "{name} on {device}: {eager:?}");
            let validation = &eager[2].1;
            let expected = match loss {
                Loss::Mse(_) => None,
                Loss::Mae(_) => Some(validation.mae),
                Loss::Huber(_) => validation.loss.filter(|loss| *loss < validation.mse),
                // The errors of the median are twice its own loss, which is the largest of all quantiles.
                Loss::Quantile(_) => validation.loss.filter(|loss| *loss < validation.mae),
                // A likelihood has no place among errors; it fell.
                Loss::StudentT(_) => validation.loss.filter(|loss| Some(*loss) < eager[0].1.loss),
            };
            assert_eq!(validation.loss, expected, "{name}");
        }
    }
}
