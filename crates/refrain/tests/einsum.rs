//! Sums of products in Einstein's notation against loops over all subscripts on the host, in every float dtype; their gradients
//! against finite differences; and equations that do not fit.

mod common;

use std::collections::BTreeMap;

use common::{FLOATS, devices, tensor, values};
use refrain::{DType, Device, Step, Tensor, gradcheck};

/// An equation with an arrow, written without an ellipsis for the oracle; the equation to try; and the shapes.
struct Case {
    plain: &'static str,
    equation: &'static str,
    shapes: &'static [&'static [usize]],
}

const CASES: &[Case] = &[
    case("ij->ij", &[&[2, 3]]),
    case("ij->ji", &[&[2, 3]]),
    case("ij->j", &[&[2, 3]]),
    case("ij->", &[&[2, 3]]),
    case("ii->i", &[&[3, 3]]),
    case("ii->", &[&[3, 3]]),
    case("iaibi->ab", &[&[3, 2, 3, 4, 3]]),
    case("ij,jk->ik", &[&[2, 3], &[3, 4]]),
    case("ij,jk->ki", &[&[2, 3], &[3, 4]]),
    case("ij,kj->ik", &[&[2, 3], &[4, 3]]),
    case("i,j->ij", &[&[2], &[3]]),
    case("i,i->", &[&[5], &[5]]),
    case("ij,j->ij", &[&[2, 3], &[3]]),
    case("ij,ij->i", &[&[2, 3], &[2, 3]]),
    case("bqhd,bkhd->bhqk", &[&[2, 3, 2, 4], &[2, 5, 2, 4]]),
    case("bhqk,bkhd->bqhd", &[&[2, 2, 3, 5], &[2, 5, 2, 4]]),
    case("ijk,jil->kl", &[&[2, 3, 4], &[3, 2, 5]]),
    case("ab,cd->ac", &[&[2, 3], &[4, 2]]),
    case(",i->i", &[&[], &[3]]),
    case("ij,jk,kl->il", &[&[2, 3], &[3, 4], &[4, 2]]),
    case("i,i,i->i", &[&[4], &[4], &[4]]),
    case("ab,bc,ca->", &[&[2, 3], &[3, 4], &[4, 2]]),
    Case { plain: "xij,xjk->xik", equation: "...ij,...jk->...ik", shapes: &[&[2, 3, 4], &[2, 4, 2]] },
    Case { plain: "xyij,jk->xyik", equation: "... i j, j k -> ... i k", shapes: &[&[2, 2, 3, 4], &[4, 2]] },
    Case { plain: "xij->ijx", equation: "...ij->ij...", shapes: &[&[2, 3, 4]] },
    Case { plain: "xi->i", equation: "...i->i", shapes: &[&[2, 3]] },
    Case { plain: "bi,ij->bj", equation: "bi,ij", shapes: &[&[2, 3], &[3, 4]] },
    Case { plain: "ba->ab", equation: "ba", shapes: &[&[2, 3]] },
    Case { plain: "xji->xij", equation: "...ji", shapes: &[&[2, 3, 4]] },
];

const fn case(equation: &'static str, shapes: &'static [&'static [usize]]) -> Case {
    Case { plain: equation, equation, shapes }
}

fn numbers(count: usize, start: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 5 + start * 3) % 11) as f64 * 0.25 - 1.0).collect()
}

/// All values of the result, by loops over all values of all subscripts.
fn expected(equation: &str, shapes: &[&[usize]], data: &[Vec<f64>]) -> (Vec<usize>, Vec<f64>) {
    let (inputs, output) = equation.split_once("->").unwrap();
    let inputs: Vec<Vec<char>> = inputs.split(',').map(|s| s.chars().collect()).collect();
    let output: Vec<char> = output.chars().collect();
    let mut sizes = BTreeMap::new();
    for (labels, shape) in inputs.iter().zip(shapes) {
        sizes.extend(labels.iter().copied().zip(shape.iter().copied()));
    }
    let dims: Vec<usize> = output.iter().map(|c| sizes[c]).collect();
    let mut result = vec![0.0; dims.iter().product()];
    let letters: Vec<char> = sizes.keys().copied().collect();
    for mut at in 0..sizes.values().product::<usize>() {
        let mut place = BTreeMap::new();
        for c in &letters {
            place.insert(*c, at % sizes[c]);
            at /= sizes[c];
        }
        let index = |labels: &[char]| labels.iter().fold(0, |i, c| i * sizes[c] + place[c]);
        let factors = inputs.iter().zip(data).map(|(labels, data)| data[index(labels)]);
        result[index(&output)] += factors.product::<f64>();
    }
    (dims, result)
}

#[test]
fn every_equation_is_the_sum_over_its_subscripts_in_every_dtype() {
    for device in devices() {
        for case in CASES {
            let data: Vec<Vec<f64>> =
                case.shapes.iter().enumerate().map(|(i, s)| numbers(s.iter().product(), i)).collect();
            let (dims, expected) = expected(case.plain, case.shapes, &data);
            for dtype in FLOATS.into_iter().chain([DType::I64]) {
                // Integers are four times as large.
                let factor = if dtype == DType::I64 { 4.0 } else { 1.0 };
                let operands: Vec<Tensor> = case
                    .shapes
                    .iter()
                    .zip(&data)
                    .map(|(shape, data)| {
                        let scaled: Vec<f64> = data.iter().map(|x| x * factor).collect();
                        tensor(&scaled, *shape, dtype, &device)
                    })
                    .collect();
                let result = Tensor::einsum(case.equation, &operands.iter().collect::<Vec<_>>()).unwrap();
                let context = format!("{} in {dtype} on {device}", case.equation);
                assert_eq!(result.dims(), dims, "{context}");
                let scale = factor.powi(case.shapes.len() as i32);
                let tolerance = 8.0 * dtype.epsilon().unwrap_or(0.0);
                for (a, b) in values(&result.contiguous().unwrap()).iter().zip(&expected) {
                    let (a, b) = (a / scale, b);
                    assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{a}, not {b}: {context}");
                }
            }
        }
    }
}

#[test]
fn dimensions_of_an_ellipsis_broadcast() {
    for device in devices() {
        let a = tensor(&numbers(12, 0), [2, 1, 2, 3], DType::F32, &device);
        let b = tensor(&numbers(24, 1), [4, 3, 2], DType::F32, &device);
        let found = Tensor::einsum("...ij,...jk->...ik", &[&a, &b]).unwrap();
        assert_eq!(found.dims(), [2, 4, 2, 2]);
        assert_eq!(values(&found), values(&a.matmul(&b).unwrap()));
    }
}

#[test]
fn a_product_of_matrices_has_the_bits_of_matmul() {
    for device in devices() {
        for dtype in FLOATS {
            let [a, b] = [0, 1].map(|i| tensor(&numbers(37 * 37, i), [37, 37], dtype, &device));
            let found = Tensor::einsum("ij,jk->ik", &[&a, &b]).unwrap();
            assert_eq!(values(&found), values(&a.matmul(&b).unwrap()), "{dtype} on {device}");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for case in CASES {
            let leaves: Vec<Tensor> = case
                .shapes
                .iter()
                .enumerate()
                .map(|(i, shape)| {
                    let x = tensor(&numbers(shape.iter().product(), i), *shape, DType::F64, &device);
                    x.set_requires_grad(true).unwrap();
                    x
                })
                .collect();
            let f = |x: &[Tensor]| Tensor::einsum(case.equation, &x.iter().collect::<Vec<_>>())?.square();
            gradcheck(f, &leaves, 1e-6).unwrap_or_else(|e| panic!("{} on {device}: {e}", case.equation));
        }
    }
}

#[test]
fn a_recorded_step_has_the_bits_of_eager_code() {
    for device in devices() {
        let inputs = [0, 1].map(|i| tensor(&numbers(24, i), [2, 3, 4], DType::F32, &device));
        let run = |x: &[Tensor]| {
            let leaf = x[0].detach();
            leaf.set_requires_grad(true)?;
            let scores = Tensor::einsum("bqd,bkd->bqk", &[&leaf, &x[1]])?;
            Tensor::einsum("bqk,bqk->", &[&scores, &scores])?.backward()?;
            Ok(vec![scores.detach(), leaf.grad().expect("a leaf").copy()?])
        };
        let eager: Vec<Vec<f64>> = run(&inputs).unwrap().iter().map(values).collect();
        let mut step = Step::new(&device, run);
        for _ in 0..3 {
            let outputs = step.call(&inputs).unwrap();
            for (o, eager) in eager.iter().enumerate() {
                assert_eq!(values(&outputs.copy(o).unwrap()), *eager, "{device}");
            }
        }
        step.finish().unwrap();
    }
}

#[test]
fn equations_that_do_not_fit_say_which_subscript() {
    let device = Device::cpu();
    let x = |shape: &[usize]| Tensor::ones(shape, DType::F32, &device).unwrap();
    let [matrix, vector, other] = [x(&[2, 3]), x(&[2]), x(&[4, 5])];
    let cases: &[(&str, &[&Tensor], &str)] = &[
        ("ij,jk->ik", &[&matrix, &other], "'j'"),
        ("ii->i", &[&matrix], "'i'"),
        ("ij->ik", &[&matrix], "'k'"),
        ("ij->ii", &[&matrix], "'i' twice"),
        ("ijk->i", &[&matrix], "names 3 dimensions of an operand that has 2"),
        ("i->i", &[&matrix], "names 1 dimensions of an operand that has 2"),
        ("ij...k->i", &[&matrix], "names 3"),
        ("ij,j->i", &[&matrix], "2 operands; 1 were given"),
        ("i1->i", &[&matrix], "'1'"),
        ("...i...->i", &[&matrix], "'.'"),
        ("i->i->i", &[&vector], "'-'"),
        ("...i,...i->...", &[&matrix, &other], "sizes"),
        ("i->...i", &[&x(&[0])], ""),
        ("", &[], "1 operands; 0 were given"),
    ];
    for &(equation, operands, part) in cases {
        match Tensor::einsum(equation, operands) {
            // An ellipsis may stand for no dimensions.
            Ok(result) => assert_eq!((equation, result.dims()), ("i->...i", &[0][..])),
            Err(e) => assert!(e.to_string().contains(part) && !part.is_empty(), "{equation}: {e}"),
        }
    }
    let error =
        Tensor::einsum("ij,jk->ik", &[&matrix, &x(&[3, 2]).to_dtype(DType::F64).unwrap()]).unwrap_err();
    assert!(matches!(error, refrain::Error::DTypeMismatch { .. }), "{error}");
    for dtype in [DType::I32, DType::U8, DType::Bool] {
        let narrow = matrix.to_dtype(dtype).unwrap();
        let error = Tensor::einsum("ij,kj->ik", &[&matrix, &narrow]).unwrap_err();
        assert!(matches!(error, refrain::Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(&format!("not supported for {dtype}")), "{error}");
    }
}
