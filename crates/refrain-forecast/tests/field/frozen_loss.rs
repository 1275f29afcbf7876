//! **Seen:** PatchTST trained without an error, but its loss stayed constant to the last digit. Gradients were
//! written to buffers that the parameters did not own, and the parameters' own gradients stayed zero. Only some of
//! the 37 gradient tensors were computed.
//!
//! **Found here:** a gradient of the model that is not finite, is all zeros, or is at another address after a step
//! than before, eager or replayed; an update that leaves a parameter unchanged; a loss that does not fall. The model
//! gives the number of tensors, since projections may be packed.

use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Device, Generator, Step, Tensor};
use refrain_forecast::models::Forecaster;
use refrain_forecast::models::patchtst::{Mode, PatchTst, PatchTstConfig};
use refrain_nn::{AdamW, Optimizer};

use crate::common::devices;

/// The field's model: context 24, patch 8, stride 4, d_model 64, 4 heads, 2 layers, FFN 256, of 5 channels.
fn model(device: &Device) -> PatchTst {
    let config = PatchTstConfig { channels: 5, ..PatchTstConfig::small(24, 8, 4, 64, 4, 2, 256, 1) };
    PatchTst::new(config, DType::F32, device, 42).unwrap()
}

fn batch(device: &Device) -> [Tensor; 2] {
    let x = Generator::new(device, 7).unwrap().normal([8, 5, 24], DType::F32).unwrap();
    let y = x.mean(2).unwrap().unsqueeze(-1).unwrap();
    [x, y]
}

fn loss(model: &PatchTst, x: &Tensor, y: &Tensor) -> refrain_forecast::Result<Tensor> {
    let loss = model.forward(x, Mode::Eval)?.mse_loss(y)?;
    loss.backward()?;
    Ok(loss.detach())
}

fn values(t: &Tensor) -> Vec<f32> {
    t.detach().to_vec().unwrap()
}

/// The name and address of each gradient.
fn gradients(model: &PatchTst) -> Vec<(String, Tensor)> {
    let gradient = |(name, p): (&str, &Tensor)| (name.to_owned(), p.grad().expect(name));
    model.parameters().iter().map(gradient).collect()
}

#[track_caller]
fn assert_arrived(model: &PatchTst, when: &str) {
    for (name, gradient) in gradients(model) {
        let values = values(&gradient);
        assert!(values.iter().all(|g| g.is_finite()), "{when}: the gradient of {name} is not finite");
        assert!(values.iter().any(|&g| g != 0.0), "{when}: the gradient of {name} is zero");
    }
}

#[test]
fn every_gradient_of_the_model_arrives_where_it_was() {
    for device in devices() {
        let model = model(&device);
        let optimizer =
            AdamW::new(model.parameters(), AdamWOptions::default(), Schedule::Constant { lr: 1e-3 }).unwrap();
        let [x, y] = batch(&device);
        let names = model.parameters().names().count();
        assert!(names >= 20, "{names} parameters");
        let before = gradients(&model);
        assert_eq!(before.len(), names, "a parameter has no gradient");

        loss(&model, &x, &y).unwrap();
        assert_arrived(&model, &format!("eager on {device}"));
        let eager: Vec<Vec<f32>> = gradients(&model).iter().map(|(_, g)| values(g)).collect();
        let parameters: Vec<Vec<f32>> = model.parameters().iter().map(|(_, p)| values(p)).collect();
        model.parameters().zero_gradients().unwrap();

        // The same batch in a replay gives the same bits.
        let mut backward = Step::new(&device, |b| Ok(vec![loss(&model, &b[0], &b[1])?]));
        for replay in 0..2 {
            backward.call(&[x.clone(), y.clone()]).unwrap();
            assert_arrived(&model, &format!("replay {replay} on {device}"));
            let replayed: Vec<Vec<f32>> = gradients(&model).iter().map(|(_, g)| values(g)).collect();
            assert_eq!(replayed, eager, "replay {replay} on {device}");
            model.parameters().zero_gradients().unwrap();
        }
        backward.finish().unwrap();

        loss(&model, &x, &y).unwrap();
        optimizer.step().unwrap();
        for ((name, p), old) in model.parameters().iter().zip(parameters) {
            assert_ne!(values(p), old, "{name} was not updated on {device}");
        }
        for ((name, gradient), (_, old)) in gradients(&model).iter().zip(&before) {
            assert_eq!(gradient.storage_id(), old.storage_id(), "{name} on {device}");
            assert_eq!(
                gradient.storage_id(),
                model.parameters().gradients().storage_id(),
                "{name} on {device}"
            );
            assert!(values(gradient).iter().all(|&g| g == 0.0), "{name} was not zeroed for the next step");
            // It is also at the same address.
            old.detach().fill(2.5).unwrap();
            assert!(values(gradient).iter().all(|&g| g == 2.5), "{name} has moved on {device}");
        }
    }
}

#[test]
fn the_loss_of_a_batch_falls_from_step_to_step() {
    for device in devices() {
        for recorded in [false, true] {
            let model = model(&device);
            let schedule = Schedule::Constant { lr: 1e-3 };
            let optimizer = AdamW::new(model.parameters(), AdamWOptions::default(), schedule).unwrap();
            let [x, y] = batch(&device);
            let train = |x: &Tensor, y: &Tensor| -> refrain_forecast::Result<Tensor> {
                let loss = loss(&model, x, y)?;
                optimizer.step()?;
                Ok(loss)
            };
            let mut step = Step::new(&device, |b| Ok(vec![train(&b[0], &b[1])?]));
            let losses: Vec<f32> = (0..12)
                .map(|_| match recorded {
                    true => step.call(&[x.clone(), y.clone()]).unwrap().to_scalar(0).unwrap(),
                    false => train(&x, &y).unwrap().to_scalar().unwrap(),
                })
                .collect();
            assert!(losses.windows(2).all(|l| l[0] != l[1]), "frozen on {device}: {losses:?}");
            assert!(losses[11] < 0.5 * losses[0], "on {device}: {losses:?}");
        }
    }
}
