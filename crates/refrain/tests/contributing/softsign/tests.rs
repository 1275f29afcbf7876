//! The example of CONTRIBUTING is an operation like any other.

use crate::ops::testing::{assert_close, devices, gradcheck, leaf, numbers, values};
use crate::{DType, Error, Tensor};

#[test]
fn the_page_shows_this_code() {
    let page = include_str!("../../../../../CONTRIBUTING.md");
    let own = include_str!("tests.rs");
    let shown = own.find("#[test]\nfn its_gradient_agrees").unwrap();
    let (test, _) = own[shown..].split_once("\n}\n").unwrap();
    for code in [
        format!("\n```rust\n{test}\n}}\n```\n"),
        format!("\n```rust\n{}```\n", include_str!("mod.rs")),
        format!("\n```c++\n{}```\n", include_str!("kernel.cu")),
    ] {
        assert!(page.contains(&code), "CONTRIBUTING.md does not show:\n{code}");
    }
    // The entry of a unary function, without the indent of the table.
    let start = page.find("/// The square root. For floats.").unwrap();
    let entry: Vec<&str> = page[start..].lines().take_while(|line| *line != "```").collect();
    let table = include_str!("../../../src/ops/unary/functions.rs");
    assert!(entry.len() == 5 && table.contains(&entry.join("\n    ")), "{entry:?}");
}

#[test]
fn it_computes_its_formula_in_every_float_dtype_layout_and_destination() {
    for device in devices() {
        let x = Tensor::from_slice(&numbers(24), [4, 6], &device).unwrap();
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_float()) {
            let x = x.to_dtype(dtype).unwrap();
            let tolerance = dtype.epsilon().unwrap();
            for view in [x.clone(), x.transpose(0, 1).unwrap(), x.narrow(1, 1, 3).unwrap()] {
                let expected: Vec<f64> = values(&view).iter().map(|x| x / (1.0 + x.abs())).collect();
                assert_close(&values(&view.softsign().unwrap()), &expected, tolerance);
                let block = Tensor::zeros([view.dims()[0], view.dims()[1] + 2], dtype, &device).unwrap();
                let dst = block.narrow(1, 1, view.dims()[1]).unwrap();
                view.softsign_into(&dst).unwrap();
                assert_close(&values(&dst), &expected, tolerance);
                let own = view.copy().unwrap();
                own.softsign_into(&own).unwrap();
                assert_close(&values(&own), &expected, tolerance);
            }
        }
        let whole = x.to_dtype(DType::I64).unwrap();
        assert!(matches!(whole.softsign(), Err(Error::Unsupported { op: "softsign", .. })));
    }
}

#[test]
fn its_gradient_agrees_with_finite_differences() {
    for device in devices() {
        gradcheck(|x| x[0].softsign(), &[leaf(&[3, 4], &device)], 1e-6).unwrap();
    }
}

#[test]
fn its_gradient_does_not_overflow() {
    for device in devices() {
        let x = Tensor::from_slice(&[1000.0], [1], &device).unwrap().to_dtype(DType::F16).unwrap();
        x.set_requires_grad(true).unwrap();
        x.softsign().unwrap().backward_with(&x.detach().ones_like().unwrap()).unwrap();
        assert_close(&values(&x.grad().unwrap()), &[1.0 / (1001.0 * 1001.0)], 1e-7);
    }
}
