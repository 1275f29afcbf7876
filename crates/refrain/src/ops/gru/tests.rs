use crate::testing::{assert_close, devices, gradcheck, leaf, shortened, values};
use refrain::{DType, Device, DeviceKind, Error, Precision, Tensor, with_precision};

/// The same states from single operations, step by step.
fn composed(x: &Tensor, weight: &Tensor, bias: &Tensor, first: &Tensor) -> Tensor {
    let hidden = first.dims()[1];
    let part = |t: &Tensor, gate: usize| t.narrow(-1, gate * hidden, hidden).unwrap();
    let mut h = first.clone();
    let mut states = Vec::new();
    for t in 0..x.dims()[1] {
        let x = x.select(1, t).unwrap();
        let of_h = h.matmul(&weight.transpose(0, 1).unwrap()).unwrap().add(bias).unwrap();
        let gate = |g: usize| part(&x, g).add(&part(&of_h, g)).unwrap().sigmoid().unwrap();
        let new = part(&x, 2).add(&gate(0).mul(&part(&of_h, 2)).unwrap()).unwrap().tanh().unwrap();
        h = new.add(&gate(1).mul(&h.sub(&new).unwrap()).unwrap()).unwrap();
        states.push(h.clone());
    }
    Tensor::stack(&states.iter().collect::<Vec<_>>(), 1).unwrap()
}

/// The operands for these sizes; the weight is so small that states stay in range.
fn operands(batch: usize, steps: usize, hidden: usize, device: &Device) -> [Tensor; 4] {
    let weight = leaf(&[3 * hidden, hidden], device).detach().mul_scalar(1.0 / hidden as f64).unwrap();
    let x = leaf(&[batch, steps, 3 * hidden], device).detach();
    [x, weight, leaf(&[3 * hidden], device).detach(), leaf(&[batch, hidden], device).detach()]
}

/// The states and the gradients of all operands, in a dtype. `mixed`: with weight and bias in f32.
fn run(
    operands: &[Tensor; 4],
    dtype: DType,
    mixed: bool,
    f: impl Fn(&[Tensor; 4]) -> Tensor,
    device: &Device,
) -> Vec<Vec<f64>> {
    let parameters = if mixed { DType::F32 } else { dtype };
    let leaves = [0, 1, 2, 3].map(|i| {
        let stored = if i == 1 || i == 2 { parameters } else { dtype };
        let t = operands[i].to_dtype(dtype).unwrap().to_dtype(stored).unwrap().copy().unwrap();
        t.set_requires_grad(true).unwrap();
        t
    });
    let y = f(&leaves);
    assert_eq!(y.dtype(), dtype);
    let dy = leaf(y.dims(), device).detach().to_dtype(dtype).unwrap();
    y.backward_with(&dy).unwrap();
    for leaf in &leaves {
        assert_eq!(leaf.grad().unwrap().dtype(), leaf.dtype());
    }
    std::iter::once(values(&y)).chain(leaves.iter().map(|t| values(&t.grad().unwrap()))).collect()
}

fn gru(x: &[Tensor; 4]) -> Tensor {
    x[0].gru(&x[1], &x[2], &x[3]).unwrap()
}

/// Compares states and gradients with those of the parts, relative to the largest.
fn compare(
    sizes: impl IntoIterator<Item = [usize; 3]>,
    dtype: DType,
    mixed: bool,
    tolerance: f64,
    device: &Device,
) {
    for [batch, steps, hidden] in sizes {
        let all = operands(batch, steps, hidden, device);
        let exact = run(&all, DType::F64, false, |x| composed(&x[0], &x[1], &x[2], &x[3]), device);
        for (got, exact) in run(&all, dtype, mixed, gru, device).iter().zip(&exact) {
            let largest = exact.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
            let near = |v: &Vec<f64>| v.iter().map(|v| v / largest).collect::<Vec<_>>();
            assert_close(&near(got), &near(exact), tolerance);
        }
    }
}

/// Batches, time steps and hidden features.
const SIZES: [[usize; 3]; 13] = [
    [1, 1, 1],
    [3, 4, 1],
    [2, 7, 5],
    [50, 3, 16],
    [1, 9, 48],
    [7, 5, 64],
    [2, 3, 96],
    [3, 2, 128],
    [4, 2, 129],
    [3, 3, 200],
    [130, 2, 256],
    [2, 2, 300],
    [2, 2, 600],
];

/// Under the sanitizer some, among them one for each place where a GPU keeps the weight.
fn sizes() -> impl Iterator<Item = [usize; 3]> {
    shortened(SIZES, 0, 3)
}

#[test]
fn states_and_gradients_are_those_of_the_parts_in_f64() {
    for device in devices() {
        compare(sizes(), DType::F64, false, 1e-13, &device);
    }
}

#[test]
fn states_and_gradients_are_those_of_the_parts_in_f32() {
    for device in devices() {
        compare(sizes(), DType::F32, false, 1e-5, &device);
    }
}

#[test]
fn states_and_gradients_are_those_of_the_parts_in_f16() {
    for device in devices() {
        compare(sizes(), DType::F16, false, 4e-3, &device);
    }
}

#[test]
fn states_and_gradients_are_those_of_the_parts_in_bf16() {
    for device in devices() {
        compare(sizes(), DType::BF16, false, 3e-2, &device);
    }
}

#[test]
fn beside_f16_and_bf16_weight_and_bias_may_be_f32() {
    for device in devices() {
        let sizes = || shortened([[2, 7, 5], [7, 5, 64], [70, 2, 256]], 0, 2);
        compare(sizes(), DType::F16, true, 4e-3, &device);
        compare(sizes(), DType::BF16, true, 3e-2, &device);
    }
}

#[test]
fn under_bf16_precision_states_are_those_of_rounded_operands() {
    for device in devices() {
        let single = operands(3, 4, 16, &device).map(|t| t.to_dtype(DType::F32).unwrap());
        let rounded = single.each_ref().map(|t| t.to_dtype(DType::BF16).unwrap());
        single.iter().for_each(|t| t.set_requires_grad(true).unwrap());
        let y = with_precision(Precision::Bf16, || gru(&single));
        assert_eq!((y.dtype(), values(&y)), (DType::BF16, values(&gru(&rounded))));
        y.sum(()).unwrap().backward().unwrap();
        assert!(single.iter().all(|t| t.grad().unwrap().dtype() == DType::F32));
    }
}

#[test]
fn states_too_large_for_shared_memory_are_those_of_the_parts() {
    for device in devices() {
        // Only a GPU has another path for them, and the weight has 226 MB.
        if device.kind() != DeviceKind::Cuda {
            continue;
        }
        let all = operands(2, 2, 3080, &device);
        let exact = run(&all, DType::F64, false, |x| composed(&x[0], &x[1], &x[2], &x[3]), &device);
        for (got, exact) in run(&all, DType::F64, false, gru, &device).iter().zip(&exact) {
            assert_close(got, exact, 1e-9);
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for (batch, steps, hidden) in [(1, 1, 1), (2, 3, 2), (3, 4, 5)] {
            let all = operands(batch, steps, hidden, &device).map(|t| {
                t.set_requires_grad(true).unwrap();
                t
            });
            gradcheck(|t| t[0].gru(&t[1], &t[2], &t[3]), &all, 1e-6).unwrap();
            // The gradient is added to one that is there already.
            let twice = |t: &[Tensor]| {
                t[0].gru(&t[1], &t[2], &t[3])?.sum(())?.add(&t[0].square()?.sum(())?)?.mul(&t[1].sum(())?)
            };
            gradcheck(twice, &all, 1e-6).unwrap();
        }
    }
}

#[test]
fn a_sequence_has_the_same_bits_in_every_batch_and_step_by_step() {
    for device in devices() {
        for hidden in [5, 64, 150] {
            let [x, w, b, h] = operands(70, 3, hidden, &device).map(|t| t.to_dtype(DType::F32).unwrap());
            let all = x.gru(&w, &b, &h).unwrap();
            let one = x.narrow(0, 9, 1).unwrap().gru(&w, &b, &h.narrow(0, 9, 1).unwrap()).unwrap();
            assert_eq!(values(&all.narrow(0, 9, 1).unwrap()), values(&one));
            let mut state = h;
            for t in 0..3 {
                state = x.narrow(1, t, 1).unwrap().gru(&w, &b, &state).unwrap().select(1, 0).unwrap();
                assert_eq!(values(&all.select(1, t).unwrap()), values(&state));
            }
        }
    }
}

#[test]
fn empty_batches_destinations_and_bad_arguments() {
    for device in devices() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F64, &device).unwrap();
        let [x, w, b, h] = operands(2, 3, 4, &device);
        w.set_requires_grad(true).unwrap();
        zeros(&[0, 3, 12]).gru(&w, &b, &zeros(&[0, 4])).unwrap().sum(()).unwrap().backward().unwrap();
        assert!(values(&w.grad().unwrap()).iter().all(|&g| g == 0.0));
        let w = w.detach();
        let dst = zeros(&[3, 2, 4]);
        x.gru_into(&w, &b, &h, &dst.transpose(0, 1).unwrap()).unwrap();
        assert_eq!(values(&dst.transpose(0, 1).unwrap()), values(&x.gru(&w, &b, &h).unwrap()));

        let refused = |x: &Tensor, w: &Tensor, b: &Tensor, h: &Tensor, expected: &str| {
            let message = x.gru(w, b, h).unwrap_err().to_string();
            assert!(message.contains("gru") && message.contains(expected), "{message}");
        };
        refused(&x, &zeros(&[12, 3]), &b, &h, "weight must be [3 hidden, hidden]");
        refused(&x, &zeros(&[0, 0]), &b, &h, "one hidden feature or more");
        refused(&x.select(0, 0).unwrap(), &w, &b, &h, "input must be [batch, time, 3 hidden]");
        refused(&x.narrow(2, 0, 9).unwrap(), &w, &b, &h, "input must be [batch, time, 3 hidden]");
        refused(&zeros(&[2, 0, 12]), &w, &b, &h, "one time step or more");
        refused(&x, &w, &zeros(&[4]), &h, "bias must be [3 hidden]");
        refused(&x, &w, &b, &zeros(&[2, 3]), "initial state must be [batch, hidden]");
        let other = h.to_dtype(DType::F32).unwrap();
        assert!(matches!(x.gru(&w, &b, &other), Err(Error::DTypeMismatch { op: "gru", .. })));
    }
}
