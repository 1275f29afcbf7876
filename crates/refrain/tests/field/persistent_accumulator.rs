//! **Seen:** a model's gradients were accumulated over many samples in persistent buffers. Each backward pass
//! allocated new buffers, or overwrote the old values, and the optimiser used the gradient of the last sample only,
//! or zeros.
//!
//! **Found here:** a sample that is not added, eager or replayed; an accumulator that moves or allocates memory; a
//! sum over samples that differs from the gradient of all samples at once.

use refrain::{DType, Device, Result, Step, Tensor, no_grad};

use crate::common::{devices, tensor, turn, values};

const SAMPLES: usize = 240;
/// Samples per update.
const WINDOW: usize = 40;
const IN: usize = 5;
const OUT: usize = 3;
const RATE: f64 = 1.0 / 1024.0;

/// Samples that differ.
const PERIOD: usize = 15;

/// Sample `i`: small whole numbers, so that the sums of the first window are exact.
fn sample(i: usize) -> ([f64; IN], [f64; OUT]) {
    let x = std::array::from_fn(|k| ((i * 7 + k * 3) % 5) as f64 - 2.0);
    (x, std::array::from_fn(|k| x[k] - x[k + 1] + ((i + k) % 3) as f64 - 1.0))
}

/// A linear layer whose gradients accumulate in a part of a flat buffer.
struct Layer {
    weight: Tensor,
    gradients: Tensor,
}

impl Layer {
    fn new(device: &Device) -> Layer {
        let weight = Tensor::zeros([OUT, IN], DType::F32, device).unwrap();
        weight.set_requires_grad(true).unwrap();
        let gradients = Tensor::zeros([64 + OUT * IN], DType::F32, device).unwrap();
        let part = gradients.narrow(0, 64, OUT * IN).unwrap().view([OUT, IN]).unwrap();
        weight.set_grad(&part).unwrap();
        Layer { weight, gradients }
    }

    /// Adds the gradient of one sample's squared error.
    fn gather(&self, x: &Tensor, y: &Tensor) -> Result<()> {
        let error = x.matmul(&self.weight.transpose(0, 1)?)?.sub(y)?;
        error.square()?.sum(())?.backward()
    }

    fn update(&self) -> Result<()> {
        no_grad(|| {
            let gradient = self.gradients.narrow(0, 64, OUT * IN)?.view([OUT, IN])?;
            self.weight.sub_assign(&gradient.mul_scalar(RATE)?)?;
            self.gradients.fill(0.0)
        })
    }
}

/// The weights after each update, in f64, from the gradient of all samples of a window at once.
fn expected() -> Vec<Vec<f64>> {
    let mut weight = vec![0.0; OUT * IN];
    let mut states = Vec::new();
    for window in 0..SAMPLES / WINDOW {
        let mut gradient = [0.0; OUT * IN];
        for (x, y) in (window * WINDOW..(window + 1) * WINDOW).map(sample) {
            for o in 0..OUT {
                let error = (0..IN).map(|k| weight[o * IN + k] * x[k]).sum::<f64>() - y[o];
                (0..IN).for_each(|k| gradient[o * IN + k] += 2.0 * error * x[k]);
            }
        }
        weight.iter_mut().zip(gradient).for_each(|(w, g)| *w -= RATE * g);
        states.push(weight.clone());
    }
    states
}

#[test]
fn gradients_of_many_samples_gather_in_one_place() {
    let _turn = turn();
    let expected = expected();
    for device in devices() {
        let samples: Vec<[Tensor; 2]> = (0..PERIOD)
            .map(|i| {
                let (x, y) = sample(i);
                [tensor(&x, [1, IN], DType::F32, &device), tensor(&y, [1, OUT], DType::F32, &device)]
            })
            .collect();
        for recorded in [false, true] {
            let layer = Layer::new(&device);
            let mut gather = Step::new(&device, |b| {
                layer.gather(&b[0], &b[1])?;
                Ok(vec![])
            });
            let mut update = Step::new(&device, |_| {
                layer.update()?;
                Ok(vec![])
            });
            let place = layer.weight.grad().unwrap();
            let mut steady = None;
            for (i, b) in samples.iter().cycle().take(SAMPLES).enumerate() {
                match recorded {
                    true => drop(gather.call(b).unwrap()),
                    false => layer.gather(&b[0], &b[1]).unwrap(),
                }
                if i == 0 {
                    // Exactly the first sample's.
                    let (x, y) = sample(0);
                    let first: Vec<f64> = y.iter().flat_map(|y| x.map(|x| -2.0 * y * x)).collect();
                    assert_eq!(values(&place), first, "{device}");
                }
                if (i + 1) % WINDOW == 0 {
                    match recorded {
                        true => drop(update.call(&[]).unwrap()),
                        false => layer.update().unwrap(),
                    }
                    let expected = &expected[i / WINDOW];
                    for (w, e) in values(&layer.weight.detach()).iter().zip(expected) {
                        assert!((w - e).abs() < 1e-5, "{w} and {e} after sample {i} on {device}");
                    }
                    assert!(values(&layer.gradients).iter().all(|&g| g == 0.0));
                }
                let now = layer.weight.grad().unwrap();
                assert!(now.shares_storage(&place) && now.shares_storage(&layer.gradients));
                let stats = device.stats();
                if i == WINDOW {
                    steady = Some(stats);
                }
                if let Some(steady) = steady {
                    assert_eq!(stats.live_bytes, steady.live_bytes, "after sample {i} on {device}");
                    assert!(!recorded || stats.allocations == steady.allocations, "a replay allocated");
                }
            }
            gather.finish().unwrap();
            update.finish().unwrap();
        }
    }
}

#[test]
fn a_running_sum_takes_up_every_sample() {
    let _turn = turn();
    for device in devices() {
        let sum = Tensor::zeros([4], DType::F64, &device).unwrap();
        let counted = Tensor::zeros((), DType::I64, &device).unwrap();
        let mut step = Step::new(&device, |x| {
            sum.add_assign(&x[0].to_dtype(DType::F64)?)?;
            counted.add_scalar_assign(1.0)?;
            Ok(vec![])
        });
        let x = tensor(&[0.5, -1.0, 2.0, 0.1], [4], DType::F32, &device);
        step.repeat(std::slice::from_ref(&x), 1000).unwrap();
        let expected = [500.0, -1000.0, 2000.0, 1000.0 * f64::from(0.1f32)];
        for (s, e) in values(&sum).iter().zip(expected) {
            assert!((s - e).abs() < 1e-9 * e.abs(), "{s} and {e} on {device}");
        }
        assert_eq!(values(&counted), [1000.0]);
        step.finish().unwrap();
    }
}
