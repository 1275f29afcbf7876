//! The operations against arithmetic of the host and finite differences, and in training: eager and recorded, on the CPU and
//! on simulated GPUs, bit for bit.

use custom_op::{logsumexp, quantize, reverse_gradient};
use refrain::{DType, Device, Error, Generator, Result, Step, Tensor, gradcheck, no_grad};
use refrain_test::devices_of_equal_bits as devices;

fn leaf(values: &[f64], shape: &[usize], device: &Device) -> Tensor {
    let x = Tensor::from_slice(values, shape, device).unwrap();
    x.set_requires_grad(true).unwrap();
    x
}

#[test]
fn values_and_gradients_are_right() {
    for device in devices() {
        let x = leaf(&[-1.5, -0.6, 0.1, 0.4, 2.0], &[5], &device);
        let y = quantize(&x, 4).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        y.backward_with(&Tensor::full([5], 3.0, DType::F64, &device).unwrap()).unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f64>().unwrap(), [0.0, 3.0, 3.0, 3.0, 0.0]);

        let x = x.detach();
        assert_eq!(quantize(&x, 1).unwrap().to_vec::<f64>().unwrap(), [-1.0, -1.0, 1.0, 1.0, 1.0]);
        let thirds = quantize(&x, 3).unwrap().to_vec::<f64>().unwrap();
        let exact = [-1.0, -1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 1.0];
        assert!(thirds.iter().zip(exact).all(|(y, exact)| (y - exact).abs() < 1e-15), "{thirds:?}");
        assert!(quantize(&x, 0).is_err());

        let x = leaf(&[1.0, -2.0], &[2], &device);
        let y = reverse_gradient(&x, 0.5).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [1.0, -2.0]);
        y.sum(()).unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f64>().unwrap(), [-0.5, -0.5]);

        let values = [0.3, -1.0, 2.5, 1000.0, 999.0, 998.0];
        let x = leaf(&values, &[2, 3], &device);
        let y = logsumexp(&x).unwrap().to_vec::<f64>().unwrap();
        for (y, row) in y.iter().zip(values.chunks(3)) {
            let largest = row.iter().copied().fold(f64::MIN, f64::max);
            let exact = row.iter().map(|v| (v - largest).exp()).sum::<f64>().ln() + largest;
            assert!((y - exact).abs() <= 1e-12 * exact.abs(), "{device}: {y}, not {exact}");
        }
        gradcheck(|x| logsumexp(&x[0]), &[x], 1e-6).unwrap();
    }
}

#[test]
fn a_saved_value_that_is_overwritten_is_found() {
    for device in devices() {
        let x = leaf(&[0.5, 0.25], &[2], &device);
        let loss = logsumexp(&x).unwrap();
        no_grad(|| x.mul_scalar_assign(2.0)).unwrap();
        assert!(matches!(loss.backward(), Err(Error::SavedValueOverwritten { op: "logsumexp", .. })));
    }
}

#[test]
fn training_with_quantised_weights_is_the_same_eager_recorded_and_simulated() {
    let train = |device: &Device, recorded: bool| -> Result<Vec<u32>> {
        let generator = Generator::new(device, 1)?;
        let x = generator.normal([32, 8], DType::F32)?;
        // The targets follow from weights that four levels can hold.
        let truth = [1.0f32, -0.5, 0.0, 0.5, -1.0, 0.5, 0.0, -0.5];
        let y = x.matmul(&Tensor::from_slice(&truth, [8, 1], device)?)?;
        let w = Tensor::zeros([8, 1], DType::F32, device)?;
        let gradient = w.zeros_like()?;
        w.set_requires_grad(true)?;
        w.set_grad(&gradient)?;
        let run = |_: &[Tensor]| -> Result<Vec<Tensor>> {
            let loss = x.matmul(&quantize(&w, 4)?)?.mse_loss(&y)?;
            loss.backward()?;
            no_grad(|| {
                w.sub_into(&(&gradient * 0.05)?, &w)?;
                gradient.fill(0.0)
            })?;
            Ok(vec![loss.detach()])
        };
        let mut step = Step::new(device, |inputs| Ok(run(inputs)?));
        let mut bits = Vec::new();
        for _ in 0..200 {
            bits.push(match recorded {
                true => step.call(&[])?.to_scalar::<f32>(0)?.to_bits(),
                false => run(&[])?[0].to_scalar::<f32>()?.to_bits(),
            });
        }
        step.finish()?;
        assert_eq!(quantize(&w, 4)?.to_vec::<f32>()?, truth);
        Ok(bits)
    };
    for device in devices() {
        let eager = train(&device, false).unwrap();
        assert_eq!(eager, train(&device, true).unwrap(), "{device}");
        assert_eq!(f32::from_bits(*eager.last().unwrap()), 0.0);
    }
}
