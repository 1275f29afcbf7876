//! What becomes of NaN, and of gradients beside it.

mod common;

use common::{FLOATS, devices, tensor, values};
use refrain::{Activation, DType, Device, Result, Tensor};

const NAN: f64 = f64::NAN;

fn leaf(numbers: &[f64], dtype: DType, device: &Device) -> Tensor {
    let t = tensor(numbers, [numbers.len()], dtype, device);
    t.set_requires_grad(true).unwrap();
    t
}

#[track_caller]
fn assert_same(is: &Tensor, expected: &[f64], what: &str) {
    let is = values(is);
    let same = is.iter().zip(expected).all(|(a, b)| a == b || a.is_nan() && b.is_nan());
    assert!(same && is.len() == expected.len(), "{what}: {is:?} instead of {expected:?}");
}

/// Of `f(a, b)` with a gradient of 2, 3, .., the gradients of both.
fn gradients(f: fn(&Tensor, &Tensor) -> Result<Tensor>, a: &Tensor, b: &Tensor) -> [Tensor; 2] {
    let y = f(a, b).unwrap();
    y.backward_with(&Tensor::arange(2.0, 2.0 + y.numel() as f64, 1.0, y.dtype(), y.device()).unwrap())
        .unwrap();
    [a, b].map(|t| t.grad().unwrap())
}

#[test]
fn where_an_operand_is_nan_both_get_the_gradient_of_the_maximum_and_the_minimum() {
    for device in devices() {
        for dtype in FLOATS {
            let operands = || {
                let a = leaf(&[NAN, 1.0, NAN, 5.0, 1.0, 4.0], dtype, &device);
                (a, leaf(&[0.0, NAN, NAN, 2.0, 3.0, 4.0], dtype, &device))
            };
            let what = format!("{dtype} on {device}");
            let (a, b) = operands();
            let [of_a, of_b] = gradients(Tensor::maximum, &a, &b);
            assert_same(&of_a, &[2.0, 3.0, 4.0, 5.0, 0.0, 3.5], &what);
            assert_same(&of_b, &[2.0, 3.0, 4.0, 0.0, 6.0, 3.5], &what);
            let (a, b) = operands();
            let [of_a, of_b] = gradients(Tensor::minimum, &a, &b);
            assert_same(&of_a, &[2.0, 3.0, 4.0, 0.0, 6.0, 3.5], &what);
            assert_same(&of_b, &[2.0, 3.0, 4.0, 5.0, 0.0, 3.5], &what);
            let x = leaf(&[NAN, 1.0, 3.0, 2.0], dtype, &device);
            x.maximum_scalar(2.0).unwrap().sum(()).unwrap().backward().unwrap();
            assert_same(&x.grad().unwrap(), &[1.0, 0.0, 1.0, 0.5], &what);
        }
    }
}

#[test]
fn relu_passes_the_gradient_of_nan_on() {
    for device in devices() {
        for dtype in FLOATS {
            let what = format!("{dtype} on {device}");
            let x = leaf(&[NAN, -1.0, 0.0, 2.0], dtype, &device);
            let y = x.relu().unwrap();
            assert_same(&y, &[NAN, 0.0, 0.0, 2.0], &what);
            y.sum(()).unwrap().backward().unwrap();
            assert_same(&x.grad().unwrap(), &[1.0, 0.0, 0.0, 1.0], &what);
            // As a part of a layer, too: y = relu(x I).
            let eye = tensor(&[1.0, 0.0, 0.0, 1.0], [2, 2], dtype, &device);
            let x = tensor(&[NAN, NAN, -1.0, 2.0], [2, 2], dtype, &device);
            let bias = leaf(&[0.0, 0.0], dtype, &device);
            let y = x.linear(&eye, Some(&bias), Activation::Relu, None).unwrap();
            y.sum(()).unwrap().backward().unwrap();
            assert_same(&bias.grad().unwrap(), &[1.0, 2.0], &what);
        }
    }
}

#[test]
fn elements_that_are_nan_share_the_gradient_of_the_largest() {
    for device in devices() {
        for dtype in FLOATS {
            for f in [|x: &Tensor| x.max(()), |x: &Tensor| x.min(())] {
                let x = leaf(&[1.0, NAN, 3.0, NAN], dtype, &device);
                f(&x).unwrap().backward().unwrap();
                assert_same(&x.grad().unwrap(), &[0.0, 0.5, 0.0, 0.5], &format!("{dtype} on {device}"));
            }
        }
    }
}

#[test]
fn the_gradient_of_the_quantile_loss_is_nan_where_a_value_is() {
    for device in devices() {
        for dtype in FLOATS {
            let what = format!("{dtype} on {device}");
            let x = tensor(&[NAN, 1.0, 5.0, 1.0], [4, 1], dtype, &device);
            x.set_requires_grad(true).unwrap();
            let t = leaf(&[1.0, NAN, 1.0, 1.0], dtype, &device);
            let loss = x.quantile_loss(&t, &[0.25]).unwrap();
            assert!(values(&loss)[0].is_nan(), "{what}");
            loss.backward().unwrap();
            assert_same(&x.grad().unwrap(), &[NAN, NAN, 0.1875, 0.0625], &what);
            assert_same(&t.grad().unwrap(), &[NAN, NAN, -0.1875, -0.0625], &what);
        }
    }
}

#[test]
fn nan_becomes_the_integer_0_and_what_is_out_of_range_the_nearest_i64() {
    for device in devices() {
        for dtype in FLOATS {
            let x = tensor(&[NAN, f64::INFINITY, f64::NEG_INFINITY, -1.75, 3.5], [5], dtype, &device);
            let whole = |dtype| x.to_dtype(dtype).unwrap();
            let what = format!("{dtype} on {device}");
            let wide = whole(DType::I64).to_vec::<i64>().unwrap();
            assert_eq!(wide, [0, i64::MAX, i64::MIN, -1, 3], "{what}");
            assert_eq!(whole(DType::I32).to_vec::<i32>().unwrap(), [0, -1, 0, -1, 3], "{what}");
            assert_eq!(whole(DType::U8).to_vec::<u8>().unwrap(), [0, 255, 0, 255, 3], "{what}");
            assert_eq!(whole(DType::Bool).to_vec::<bool>().unwrap(), [true; 5], "{what}");
        }
    }
}

#[test]
fn rows_without_variance_are_nan_if_eps_is_0() {
    for device in devices() {
        for dtype in FLOATS {
            let what = format!("{dtype} on {device}");
            let rows = || {
                let x = tensor(&[3.0, 3.0, 1.0, 3.0, 0.0, 0.0], [3, 2], dtype, &device);
                x.set_requires_grad(true).unwrap();
                x
            };
            let (ones, zeros) =
                (tensor(&[1.0; 2], [2], dtype, &device), tensor(&[0.0; 2], [2], dtype, &device));
            let x = rows();
            let y = x.layer_norm(&ones, &zeros, 0.0).unwrap();
            assert_same(&y, &[NAN, NAN, -1.0, 1.0, NAN, NAN], &what);
            y.sum(()).unwrap().backward().unwrap();
            let nans: Vec<bool> = values(&x.grad().unwrap()).iter().map(|g| g.is_nan()).collect();
            assert_eq!(nans, [true, true, false, false, true, true], "{what}");
            let x = rows();
            let y = x.rms_norm(&ones, 0.0).unwrap();
            assert_same(&y.narrow(0, 2, 1).unwrap(), &[NAN, NAN], &what);
            y.sum(()).unwrap().backward().unwrap();
            let nans: Vec<bool> = values(&x.grad().unwrap()).iter().map(|g| g.is_nan()).collect();
            assert_eq!(nans, [false, false, false, false, true, true], "{what}");
        }
    }
}

#[test]
fn sum_to_gives_one_dtype_whether_anything_is_summed_or_not() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = tensor(&[1.0; 6], [2, 3], dtype, &device);
            let expected = if dtype.is_float() { dtype } else { DType::I64 };
            for shape in [&[2, 3][..], &[2, 1], &[1, 3], &[3], &[]] {
                let y = x.sum_to(shape).unwrap();
                assert_eq!((y.dtype(), y.dims()), (expected, shape), "{dtype} on {device}");
                assert_eq!(values(&y).iter().sum::<f64>(), 6.0);
            }
        }
    }
}
