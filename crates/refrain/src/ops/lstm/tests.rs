use crate::testing::{assert_close, devices, gradcheck, leaf, shortened, values};
use refrain::{DType, Device, DeviceKind, Error, Precision, Result, Tensor, with_precision};

/// Which of the results a loss depends on.
#[derive(Clone, Copy, PartialEq)]
enum Loss {
    Both,
    States,
    Cells,
}

/// The same states and cell states from single operations, step by step.
fn composed([x, weight, bias, first, first_cell]: &[Tensor; 5]) -> (Tensor, Tensor) {
    let hidden = first.dims()[1];
    let (mut h, mut c) = (first.clone(), first_cell.clone());
    let (mut states, mut cells) = (Vec::new(), Vec::new());
    for t in 0..x.dims()[1] {
        let of_h = h.matmul(&weight.transpose(0, 1).unwrap()).unwrap().add(bias).unwrap();
        let all = x.select(1, t).unwrap().add(&of_h).unwrap();
        let gate = |g: usize| all.narrow(-1, g * hidden, hidden).unwrap();
        let (i, f, o) = (gate(0).sigmoid().unwrap(), gate(1).sigmoid().unwrap(), gate(3).sigmoid().unwrap());
        c = f.mul(&c).unwrap().add(&i.mul(&gate(2).tanh().unwrap()).unwrap()).unwrap();
        h = o.mul(&c.tanh().unwrap()).unwrap();
        states.push(h.clone());
        cells.push(c.clone());
    }
    let stack = |all: Vec<Tensor>| Tensor::stack(&all.iter().collect::<Vec<_>>(), 1).unwrap();
    (stack(states), stack(cells))
}

/// The operands for these sizes; the weight is so small that states stay in range.
fn operands(batch: usize, steps: usize, hidden: usize, device: &Device) -> [Tensor; 5] {
    let weight = leaf(&[4 * hidden, hidden], device).detach().mul_scalar(1.0 / hidden as f64).unwrap();
    let x = leaf(&[batch, steps, 4 * hidden], device).detach();
    let first = leaf(&[batch, hidden], device).detach();
    // Other numbers than those of the first state.
    let first_cell = first.mul_scalar(-0.7).unwrap().add_scalar(0.4).unwrap();
    [x, weight, leaf(&[4 * hidden], device).detach(), first, first_cell]
}

/// Both results, and the gradients of all operands, in a dtype. `mixed`: with weight and bias in f32.
fn run(
    operands: &[Tensor; 5],
    (dtype, mixed): (DType, bool),
    loss: Loss,
    f: impl Fn(&[Tensor; 5]) -> (Tensor, Tensor),
    device: &Device,
) -> Vec<Vec<f64>> {
    let parameters = if mixed { DType::F32 } else { dtype };
    let leaves = [0, 1, 2, 3, 4].map(|i| {
        let stored = if i == 1 || i == 2 { parameters } else { dtype };
        let t = operands[i].to_dtype(dtype).unwrap().to_dtype(stored).unwrap().copy().unwrap();
        t.set_requires_grad(true).unwrap();
        t
    });
    let (h, c) = f(&leaves);
    assert_eq!((h.dtype(), c.dtype()), (dtype, dtype));
    let dh = leaf(h.dims(), device).detach().to_dtype(dtype).unwrap();
    let dc = dh.neg().unwrap().add_scalar(0.5).unwrap();
    let (of_h, of_c) = (h.mul(&dh).unwrap().sum(()).unwrap(), c.mul(&dc).unwrap().sum(()).unwrap());
    match loss {
        Loss::Both => of_h.add(&of_c).unwrap().backward().unwrap(),
        Loss::States => of_h.backward().unwrap(),
        Loss::Cells => of_c.backward().unwrap(),
    }
    for leaf in &leaves {
        assert_eq!(leaf.grad().unwrap().dtype(), leaf.dtype());
    }
    [values(&h), values(&c)].into_iter().chain(leaves.iter().map(|t| values(&t.grad().unwrap()))).collect()
}

fn lstm(x: &[Tensor; 5]) -> (Tensor, Tensor) {
    x[0].lstm(&x[1], &x[2], &x[3], &x[4]).unwrap()
}

/// Compares results and gradients with those of the parts, relative to the largest.
fn compare(
    sizes: impl IntoIterator<Item = [usize; 3]>,
    (dtype, mixed): (DType, bool),
    loss: Loss,
    tolerance: f64,
    device: &Device,
) {
    for [batch, steps, hidden] in sizes {
        let all = operands(batch, steps, hidden, device);
        let exact = run(&all, (DType::F64, false), loss, composed, device);
        for (got, exact) in run(&all, (dtype, mixed), loss, lstm, device).iter().zip(&exact) {
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
    [130, 2, 128],
    [3, 2, 110],
    [4, 2, 129],
    [3, 3, 200],
    [2, 2, 300],
    [2, 2, 600],
];

/// Under the sanitizer some, among them one for each place where a GPU keeps the weight.
fn sizes() -> impl Iterator<Item = [usize; 3]> {
    shortened(SIZES, 0, 3)
}

#[test]
fn results_and_gradients_are_those_of_the_parts_in_f64() {
    for device in devices() {
        compare(sizes(), (DType::F64, false), Loss::Both, 1e-13, &device);
    }
}

#[test]
fn results_and_gradients_are_those_of_the_parts_in_f32() {
    for device in devices() {
        compare(sizes(), (DType::F32, false), Loss::Both, 1e-5, &device);
    }
}

#[test]
fn results_and_gradients_are_those_of_the_parts_in_f16() {
    for device in devices() {
        compare(sizes(), (DType::F16, false), Loss::Both, 4e-3, &device);
    }
}

#[test]
fn results_and_gradients_are_those_of_the_parts_in_bf16() {
    for device in devices() {
        compare(sizes(), (DType::BF16, false), Loss::Both, 3e-2, &device);
    }
}

#[test]
fn a_loss_may_depend_on_one_of_the_results() {
    for device in devices() {
        let sizes = || shortened([[2, 7, 5], [7, 5, 64], [9, 3, 129], [3, 2, 600]], 0, 2);
        compare(sizes(), (DType::F64, false), Loss::States, 1e-13, &device);
        compare(sizes(), (DType::F64, false), Loss::Cells, 1e-13, &device);
        compare(sizes(), (DType::BF16, false), Loss::States, 3e-2, &device);
    }
}

#[test]
fn beside_f16_and_bf16_weight_and_bias_may_be_f32() {
    for device in devices() {
        let sizes = || shortened([[2, 7, 5], [7, 5, 64], [70, 2, 256]], 0, 2);
        compare(sizes(), (DType::F16, true), Loss::Both, 4e-3, &device);
        compare(sizes(), (DType::BF16, true), Loss::Both, 3e-2, &device);
    }
}

#[test]
fn under_bf16_precision_results_are_those_of_rounded_operands() {
    for device in devices() {
        let single = operands(3, 4, 16, &device).map(|t| t.to_dtype(DType::F32).unwrap());
        let rounded = single.each_ref().map(|t| t.to_dtype(DType::BF16).unwrap());
        single.iter().for_each(|t| t.set_requires_grad(true).unwrap());
        let (h, c) = with_precision(Precision::Bf16, || lstm(&single));
        assert_eq!((h.dtype(), c.dtype()), (DType::BF16, DType::BF16));
        let (of_h, of_c) = lstm(&rounded);
        assert_eq!((values(&h), values(&c)), (values(&of_h), values(&of_c)));
        h.add(&c).unwrap().sum(()).unwrap().backward().unwrap();
        assert!(single.iter().all(|t| t.grad().unwrap().dtype() == DType::F32));
    }
}

#[test]
fn in_bf16_the_cell_state_is_carried_in_f32() {
    for device in devices() {
        // Each cell state begins at 1 and grows by sigmoid(-5.54), 1/256, which bf16 cannot add to 1.
        for hidden in [4, 128, 130, 600] {
            let part = |v: f64| Tensor::full([1, 64, hidden], v, DType::BF16, &device).unwrap();
            let x = Tensor::concat(&[&part(-5.54), &part(100.0), &part(100.0), &part(100.0)], 2).unwrap();
            let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::BF16, &device).unwrap();
            let ones = Tensor::ones([1, hidden], DType::BF16, &device).unwrap();
            let (_, c) = x.lstm(&zeros(&[4 * hidden, hidden]), &zeros(&[4 * hidden]), &ones, &ones).unwrap();
            let last = values(&c.select(1, 63).unwrap());
            assert!(last.iter().all(|c| (c - 1.25).abs() < 0.01), "{last:?}");
        }
    }
}

#[test]
fn states_too_large_for_shared_memory_are_those_of_the_parts() {
    for device in devices() {
        // Only a GPU has another path for them, and the weight has 135 MB.
        if device.kind() != DeviceKind::Cuda {
            continue;
        }
        let all = operands(2, 2, 2056, &device);
        let exact = run(&all, (DType::F64, false), Loss::Both, composed, &device);
        for (got, exact) in run(&all, (DType::F64, false), Loss::Both, lstm, &device).iter().zip(&exact) {
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
            // The squares tell the two results apart.
            let both = |t: &[Tensor]| -> Result<Tensor> {
                let (h, c) = t[0].lstm(&t[1], &t[2], &t[3], &t[4])?;
                h.add(&c.square()?)
            };
            gradcheck(both, &all, 1e-6).unwrap();
            // The gradient is added to one that is there already.
            let twice = |t: &[Tensor]| both(t)?.sum(())?.add(&t[0].square()?.sum(())?)?.mul(&t[1].sum(())?);
            gradcheck(twice, &all, 1e-6).unwrap();
        }
    }
}

#[test]
fn the_last_states_may_be_handed_on() {
    for device in devices() {
        for hidden in [5, 64, 120, 150] {
            let all = operands(3, 5, hidden, &device);
            let in_two = |x: &[Tensor; 5]| {
                let [x, w, b, h, c] = x;
                let (h1, c1) = x.narrow(1, 0, 2).unwrap().lstm(w, b, h, c).unwrap();
                let (h, c) = (h1.select(1, 1).unwrap(), c1.select(1, 1).unwrap());
                let (h2, c2) = x.narrow(1, 2, 3).unwrap().lstm(w, b, &h, &c).unwrap();
                (Tensor::concat(&[&h1, &h2], 1).unwrap(), Tensor::concat(&[&c1, &c2], 1).unwrap())
            };
            let exact = run(&all, (DType::F64, false), Loss::Both, lstm, &device);
            let got = run(&all, (DType::F64, false), Loss::Both, in_two, &device);
            // The same values, and gradients that are added up in another order.
            assert_eq!(got[..2], exact[..2]);
            got.iter().zip(&exact).for_each(|(got, exact)| assert_close(got, exact, 1e-11));
        }
    }
}

#[test]
fn a_sequence_has_the_same_bits_in_every_batch_and_step_by_step() {
    for device in devices() {
        for hidden in [5, 64, 120, 150] {
            let [x, w, b, h, c] = operands(70, 3, hidden, &device).map(|t| t.to_dtype(DType::F32).unwrap());
            let (all, cells) = x.lstm(&w, &b, &h, &c).unwrap();
            let one = |t: &Tensor| t.narrow(0, 9, 1).unwrap();
            let (of_one, cells_of_one) = one(&x).lstm(&w, &b, &one(&h), &one(&c)).unwrap();
            assert_eq!(values(&one(&all)), values(&of_one));
            assert_eq!(values(&one(&cells)), values(&cells_of_one));
            let (mut h, mut c) = (h, c);
            for t in 0..3 {
                let (states, of_cell) = x.narrow(1, t, 1).unwrap().lstm(&w, &b, &h, &c).unwrap();
                (h, c) = (states.select(1, 0).unwrap(), of_cell.select(1, 0).unwrap());
                assert_eq!(values(&all.select(1, t).unwrap()), values(&h));
                assert_eq!(values(&cells.select(1, t).unwrap()), values(&c));
            }
        }
    }
}

#[test]
fn empty_batches_and_bad_arguments() {
    for device in devices() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F64, &device).unwrap();
        let [x, w, b, h, c] = operands(2, 3, 4, &device);
        w.set_requires_grad(true).unwrap();
        let none = zeros(&[0, 4]);
        let (states, cells) = zeros(&[0, 3, 16]).lstm(&w, &b, &none, &none).unwrap();
        states.add(&cells).unwrap().sum(()).unwrap().backward().unwrap();
        assert!(values(&w.grad().unwrap()).iter().all(|&g| g == 0.0));
        let w = w.detach();

        let refused = |[x, w, b, h, c]: [&Tensor; 5], expected: &str| {
            let message = x.lstm(w, b, h, c).unwrap_err().to_string();
            assert!(message.contains("lstm") && message.contains(expected), "{message}");
        };
        let one = x.select(0, 0).unwrap();
        refused([&x, &zeros(&[16, 3]), &b, &h, &c], "weight must be [4 hidden, hidden]");
        refused([&x, &zeros(&[0, 0]), &b, &h, &c], "one hidden feature or more");
        refused([&one, &w, &b, &h, &c], "input must be [batch, time, 4 hidden]");
        refused([&x.narrow(2, 0, 12).unwrap(), &w, &b, &h, &c], "input must be [batch, time, 4 hidden]");
        refused([&zeros(&[2, 0, 16]), &w, &b, &h, &c], "one time step or more");
        refused([&x, &w, &zeros(&[4]), &h, &c], "bias must be [4 hidden]");
        refused([&x, &w, &b, &zeros(&[2, 3]), &c], "initial state must be [batch, hidden]");
        refused([&x, &w, &b, &h, &zeros(&[1, 4])], "initial state must be [batch, hidden]");
        for (h, c) in
            [(h.to_dtype(DType::F32).unwrap(), c.clone()), (h.clone(), c.to_dtype(DType::F32).unwrap())]
        {
            assert!(matches!(x.lstm(&w, &b, &h, &c), Err(Error::DTypeMismatch { op: "lstm", .. })));
        }
    }
}
