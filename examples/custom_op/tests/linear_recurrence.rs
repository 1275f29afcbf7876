//! The operation with kernels of its own, against the recurrence written as a loop, finite differences and composed
//! operations.

use custom_op::{linear_recurrence, linear_recurrence_into};
use refrain::{DType, Device, Error, Generator, Result, Step, Tensor, gradcheck, no_grad};
use refrain_test::{devices, values};

/// Numbers of `[batch, time, channels]`: gates between 0 and 1, and values between -1 and 1.
fn operands(shape: [usize; 3], dtype: DType, device: &Device) -> [Tensor; 2] {
    let n: usize = shape.iter().product();
    let numbers = |f: fn(f64) -> f64| -> Vec<f64> { (0..n).map(|i| f((i as f64 * 0.7).sin())).collect() };
    [numbers(|v| 0.5 + 0.5 * v), numbers(|v| (v * 12.9).cos())]
        .map(|v| Tensor::from_slice(&v, shape, device).unwrap().to_dtype(dtype).unwrap())
}

/// The recurrence in f64, of the values of tensors.
fn expected(gate: &Tensor, x: &Tensor, start: f64) -> Vec<f64> {
    let dims = x.dims();
    let (time, channels) = (dims[1], dims[2]);
    let (gate, x) = (values(gate), values(x));
    let mut y = vec![0.0; x.len()];
    for i in 0..x.len() {
        let before = if i / channels % time > 0 { y[i - channels] } else { start };
        y[i] = gate[i] * before + x[i];
    }
    y
}

#[track_caller]
fn assert_close(actual: &Tensor, expected: &[f64], what: &str) {
    // A rounding of the result, and a few of the state, which is f32 at least.
    let own = actual.dtype().epsilon().unwrap();
    let state = if actual.dtype() == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
    let actual = values(actual);
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        let bound = own * e.abs() + 16.0 * state;
        assert!((a - e).abs() <= bound, "{what}, element {i}: {a}, not {e}");
    }
}

#[test]
fn values_are_those_of_the_loop_in_every_float_dtype_and_layout() {
    for device in devices() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let [gate, x] = operands([3, 40, 50], dtype, &device);
            let layouts: [fn(&Tensor) -> Result<Tensor>; 5] = [
                |t| Ok(t.clone()),
                |t| t.transpose(0, 2),
                |t| t.narrow(1, 5, 9),
                |t| t.narrow(2, 0, 1)?.broadcast_to([3, 40, 7]),
                |t| t.narrow(1, 0, 0),
            ];
            for (n, layout) in layouts.iter().enumerate() {
                let (gate, x) = (layout(&gate).unwrap(), layout(&x).unwrap());
                let y = linear_recurrence(&gate, &x, 0.25).unwrap();
                assert_eq!((y.shape(), y.dtype()), (x.shape(), dtype));
                assert_close(&y, &expected(&gate, &x, 0.25), &format!("{device} {dtype}, layout {n}"));
            }
            // Operands of different strides.
            let turned = gate.transpose(1, 2).unwrap().copy().unwrap().transpose(1, 2).unwrap();
            let y = linear_recurrence(&turned, &x, -1.0).unwrap();
            assert_close(&y, &expected(&gate, &x, -1.0), &format!("{device} {dtype}, transposed gate"));
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences_and_with_composed_operations() {
    for device in devices() {
        let [gate, x] = operands([2, 3, 2], DType::F64, &device);
        [&gate, &x].into_iter().for_each(|t| t.set_requires_grad(true).unwrap());
        gradcheck(|t| linear_recurrence(&t[0], &t[1].transpose(0, 2)?, 0.5), &[gate, x], 1e-6).unwrap();

        let composed = |gate: &Tensor, x: &Tensor| -> Result<Tensor> {
            let mut states = vec![Tensor::full([4, 1, 5], 0.5, DType::F32, &device)?];
            for t in 0..6 {
                let before = &states[t];
                states.push(((gate.narrow(1, t, 1)? * before)? + x.narrow(1, t, 1)?)?);
            }
            Tensor::concat(&states[1..], 1)
        };
        let gradients = |own: bool| {
            let [gate, x] = operands([4, 6, 5], DType::F32, &device);
            [&gate, &x].into_iter().for_each(|t| t.set_requires_grad(true).unwrap());
            let y = if own { linear_recurrence(&gate, &x, 0.5) } else { composed(&gate, &x) };
            y.unwrap().square().unwrap().sum(()).unwrap().backward().unwrap();
            [gate.grad().unwrap(), x.grad().unwrap()]
        };
        for (own, composed) in gradients(true).iter().zip(gradients(false)) {
            assert_close(own, &values(&composed), &format!("{device}"));
        }
    }
}

#[test]
fn operands_and_destinations_that_do_not_fit_are_refused() {
    for device in devices() {
        let [gate, x] = operands([2, 3, 4], DType::F32, &device);
        let shape = linear_recurrence(&gate, &x.narrow(1, 0, 2).unwrap(), 0.0);
        assert!(matches!(shape, Err(Error::ShapeMismatch { op: "linear_recurrence", .. })), "{shape:?}");
        let dtype = linear_recurrence(&gate, &x.to_dtype(DType::F64).unwrap(), 0.0);
        assert!(matches!(dtype, Err(Error::DTypeMismatch { op: "linear_recurrence", .. })), "{dtype:?}");
        let whole = gate.to_dtype(DType::I64).unwrap();
        for (gate, x) in [(&whole, &whole), (&gate.reshape([6, 4]).unwrap(), &x.reshape([6, 4]).unwrap())] {
            let error = linear_recurrence(gate, x, 0.0);
            assert!(
                matches!(error, Err(Error::InvalidArgument { op: "linear_recurrence", .. })),
                "{error:?}"
            );
        }
        for overlapping in [&gate, &x] {
            let error = linear_recurrence_into(&gate, &x, 0.0, overlapping);
            assert!(matches!(error, Err(Error::Aliased { op: "linear_recurrence", .. })), "{error:?}");
        }
        let dst = Tensor::zeros([2, 3, 4], DType::F32, &device).unwrap();
        linear_recurrence_into(&gate, &x, 0.0, &dst).unwrap();
        assert_close(&dst, &expected(&gate, &x, 0.0), &format!("{device}"));
    }
}

/// Learns the decay of a leaky sum from its output.
#[test]
fn training_is_the_same_eager_and_recorded_bit_for_bit() {
    let train = |device: &Device, recorded: bool| -> Result<(Vec<u32>, f32)> {
        let generator = Generator::new(device, 1)?;
        let x = generator.normal([4, 16, 3], DType::F32)?;
        let decay = Tensor::full([1, 1, 1], 0.2, DType::F32, device)?;
        let gates = |decay: &Tensor| decay.broadcast_to([4, 16, 3]);
        let target = linear_recurrence(&gates(&Tensor::full([1, 1, 1], 0.8, DType::F32, device)?)?, &x, 0.5)?;
        let gradient = decay.zeros_like()?;
        decay.set_requires_grad(true)?;
        decay.set_grad(&gradient)?;
        let run = |_: &[Tensor]| -> Result<Vec<Tensor>> {
            let loss = linear_recurrence(&gates(&decay)?, &x, 0.5)?.mse_loss(&target)?;
            loss.backward()?;
            no_grad(|| {
                decay.sub_into(&(&gradient * 0.02)?, &decay)?;
                gradient.fill(0.0)
            })?;
            Ok(vec![loss.detach()])
        };
        let mut step = Step::new(device, |inputs| Ok(run(inputs)?));
        let mut bits = Vec::new();
        for _ in 0..100 {
            bits.push(match recorded {
                true => step.call(&[])?.to_scalar::<f32>(0)?.to_bits(),
                false => run(&[])?[0].to_scalar::<f32>()?.to_bits(),
            });
        }
        if recorded {
            let program = step.program().map(ToString::to_string).unwrap_or_default();
            assert!(program.contains("linear_recurrence_backward"), "{program}");
        }
        step.finish()?;
        Ok((bits, decay.to_vec::<f32>()?[0]))
    };
    for device in devices() {
        let eager = train(&device, false).unwrap();
        assert_eq!(eager, train(&device, true).unwrap(), "{device}");
        assert!((eager.1 - 0.8).abs() < 1e-3, "{device}: {}", eager.1);
    }
}
