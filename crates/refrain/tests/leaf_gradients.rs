//! A leaf's gradient is the same numbers whether it gathers in memory of its own or in a buffer of the caller's, whatever
//! the buffer's layout.

mod common;
#[allow(dead_code)] // Bounds and places are for the comparison of values.
mod reference_support;

use std::collections::BTreeSet;

use common::{devices, folder, kernels, sanitized, shortened, tensor, values};
use reference_support::case::{Case, load};
use reference_support::{Entry, entries, run};
use refrain::{Activation, DType, Device, Generator, Result, Tensor};

/// Dtypes in which a sum in another order or rounded once more is seen.
const ROUNDED: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The destination of the gradient of a leaf.
#[derive(Clone, Copy, Debug)]
enum Buffer {
    /// The leaf makes it.
    None,
    RowMajor,
    /// Axes in reverse order in memory.
    Reversed,
    /// A part of a wider tensor.
    Window,
}

impl Buffer {
    fn of(self, leaf: &Tensor) -> Option<Tensor> {
        let zeros = |dims: &[usize]| Tensor::zeros(dims, leaf.dtype(), leaf.device()).unwrap();
        let (dims, rank) = (leaf.dims(), leaf.rank() as isize);
        match self {
            Buffer::None => None,
            Buffer::RowMajor => Some(zeros(dims)),
            Buffer::Reversed => {
                let reversed: Vec<usize> = dims.iter().rev().copied().collect();
                Some(zeros(&reversed).permute(&(0..rank).rev().collect::<Vec<_>>()).unwrap())
            }
            Buffer::Window => {
                let wider: Vec<usize> = dims.iter().map(|d| d + 2).collect();
                let narrow = |t: Tensor, (axis, &d)| t.narrow(axis as isize, 1, d).unwrap();
                Some(dims.iter().enumerate().fold(zeros(&wider), narrow))
            }
        }
    }
}

/// The gradients of the leaves after two uses of the operation, each with a backward pass, and then two in one pass. Under the
/// sanitizer the two in one pass alone.
fn gradients(case: &Case, entry: &Entry, dtype: DType, device: &Device, buffer: Buffer) -> Vec<Vec<f64>> {
    let operands: Vec<Tensor> = case.inputs.iter().map(|input| input.tensor(dtype, device)).collect();
    let mut leaves = Vec::new();
    for (i, leaf) in operands.iter().enumerate() {
        if case.gradients[i].is_some() {
            leaf.set_requires_grad(true).unwrap();
            if let Some(buffer) = buffer.of(leaf) {
                leaf.set_grad(&buffer).unwrap();
            }
            leaves.push(leaf);
        }
    }
    let term = |scale: f64| {
        let views: Vec<Tensor> =
            case.layout.iter().zip(&operands).map(|(layout, t)| layout.of(t).unwrap()).collect();
        let outs = (entry.run)(case, &views).unwrap();
        let wanted = outs.iter().zip(&case.cotangents).filter_map(|(o, c)| Some((o, c.as_ref()?)));
        let products = wanted.map(|(o, c)| {
            let c = tensor(&c.data, o.shape(), o.dtype(), device).mul_scalar(scale).unwrap();
            o.mul(&c).unwrap().sum(()).unwrap()
        });
        products.reduce(|a, b| a.add(&b).unwrap()).unwrap()
    };
    if !sanitized() {
        term(0.3).backward().unwrap();
        term(1.7).backward().unwrap();
    }
    term(0.9).add(&term(-0.6)).unwrap().backward().unwrap();
    leaves.iter().map(|l| l.grad().map_or(Vec::new(), |g| values(&g))).collect()
}

#[test]
fn a_gradient_is_the_same_numbers_with_a_buffer_and_without() {
    let entries = entries();
    let mut failures = Vec::new();
    let mut operations = BTreeSet::new();
    for name in ["unary", "binary", "reduce", "shape", "norm", "matmul", "index", "attention", "loss"] {
        for case in load(&folder().join(format!("tests/reference/{name}.safetensors"))) {
            let entry = entries.iter().find(|e| e.op == case.op).unwrap();
            if case.gradients.iter().all(Option::is_none) {
                continue;
            }
            // Under the sanitizer the first case of each operation, in one dtype and with one buffer.
            if !operations.insert(case.op.clone()) && sanitized() {
                continue;
            }
            let turn = operations.len();
            for device in devices() {
                for dtype in shortened(ROUNDED, turn, 3).filter(|&d| run::applies(&case, d)) {
                    let of = |buffer| gradients(&case, entry, dtype, &device, buffer);
                    let expected = of(Buffer::RowMajor);
                    for buffer in shortened([Buffer::None, Buffer::Reversed, Buffer::Window], turn / 3, 3) {
                        let is = of(buffer);
                        for (i, (is, expected)) in is.iter().zip(&expected).enumerate() {
                            let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
                            // A gradient that is 0 everywhere need not be stored.
                            let none = is.is_empty() && expected.iter().all(|&v| v == 0.0);
                            if !none && !is.iter().zip(expected).all(same) {
                                let name = &case.name;
                                failures.push(format!("{name} on {device} in {dtype}, {buffer:?}, leaf {i}"));
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} differ:\n{}",
        failures.len(),
        failures[..failures.len().min(60)].join("\n")
    );
}

/// Operations over more elements than a block, a tile or a task takes.
const LARGE: [(&str, fn(&Tensor, &Tensor) -> Result<Tensor>); 7] = [
    ("matmul, the left operand", |w, x| w.matmul(&x.transpose(0, 1)?)),
    ("matmul, the right operand", |w, x| x.transpose(0, 1)?.matmul(w)),
    ("linear", |w, x| x.linear(&w.narrow(0, 0, 40)?, None, Activation::None, None)),
    ("a bias", |w, x| x.add(&w.select(0, 0)?)),
    ("layer_norm", |w, x| x.layer_norm(&w.select(0, 0)?, &w.select(0, 1)?, 1e-5)),
    ("embedding", |w, x| {
        let ids = x.narrow(1, 0, 8)?.abs()?.mul_scalar(16.0)?.to_dtype(DType::I64)?;
        w.embedding(&ids)
    }),
    ("cross_entropy", |w, _| w.cross_entropy(&Tensor::zeros([w.dims()[0]], DType::I64, w.device())?)),
];

#[test]
fn so_it_is_over_more_elements_than_a_block_takes() {
    for device in kernels() {
        for dtype in ROUNDED {
            let numbers =
                |seed: u64| Generator::new(&device, seed)?.uniform([700, 60], dtype)?.sub_scalar(0.3);
            let x = numbers(1).unwrap();
            for (turn, (name, run)) in LARGE.into_iter().enumerate() {
                let of = |buffer: Buffer| {
                    let w = numbers(2).unwrap();
                    w.set_requires_grad(true).unwrap();
                    if let Some(buffer) = buffer.of(&w) {
                        w.set_grad(&buffer).unwrap();
                    }
                    for scale in shortened([0.3, -1.7], 0, 2) {
                        let term = |scale| run(&w, &x)?.mul_scalar(scale)?.square()?.mean(());
                        term(scale).unwrap().add(&term(0.5).unwrap()).unwrap().backward().unwrap();
                    }
                    values(&w.grad().unwrap())
                };
                let expected = of(Buffer::RowMajor);
                assert!(expected.iter().any(|&g| g != 0.0), "{name}");
                for buffer in shortened([Buffer::None, Buffer::Reversed, Buffer::Window], turn, 3) {
                    assert!(of(buffer) == expected, "{name} on {device} in {dtype}, {buffer:?}");
                }
            }
        }
    }
}
