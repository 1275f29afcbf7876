use crate::testing::{devices, gradcheck, leaf, values};
use refrain::{DType, Device, Error, Tensor};

fn condition(values: &[bool], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(values, shape, device).unwrap()
}

fn floats(values: &[f64], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(values, shape, device).unwrap()
}

#[test]
fn every_dtype_is_chosen_from_bit_for_bit() {
    for device in devices() {
        let c = condition(&[true, false, true], &[3], &device);
        for dtype in DType::ALL {
            let a = floats(&[1.0, 1.0, 0.0], &[3], &device).to_dtype(dtype).unwrap();
            let b = floats(&[0.0, 0.0, 1.0], &[3], &device).to_dtype(dtype).unwrap();
            let bytes = Tensor::from_slice(&[1u8, 0, 255], [3], &device).unwrap();
            for c in [&c, &bytes] {
                let y = c.where_cond(&a, &b).unwrap();
                assert_eq!(y.dtype(), dtype);
                assert_eq!(
                    y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
                    [1.0, 0.0, 0.0],
                    "{dtype}"
                );
            }
        }
        let big = Tensor::from_slice(&[i64::MAX - 1, i64::MIN + 1, 3], [3], &device).unwrap();
        let y = c.where_cond(&big, &big).unwrap();
        assert_eq!(y.to_vec::<i64>().unwrap(), big.to_vec::<i64>().unwrap());
    }
}

#[test]
fn what_is_not_chosen_has_no_influence() {
    for device in devices() {
        let c = condition(&[true, false], &[2], &device);
        let (a, b) = (floats(&[1.0, f64::NAN], &[2], &device), floats(&[f64::INFINITY, 2.0], &[2], &device));
        a.set_requires_grad(true).unwrap();
        let y = c.where_cond(&a, &b).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [1.0, 2.0]);
        y.backward_with(&floats(&[3.0, f64::NAN], &[2], &device)).unwrap();
        assert_eq!(a.grad().unwrap().to_vec::<f64>().unwrap(), [3.0, 0.0]);
    }
}

#[test]
fn gradients_go_to_the_chosen_one_under_broadcasting() {
    for device in devices() {
        let c = condition(&[true, false, false, true, true, false], &[2, 3], &device);
        let (a, b) = (floats(&[0.5, 1.5, 2.5], &[3], &device), floats(&[0.3, 0.9], &[2, 1], &device));
        a.set_requires_grad(true).unwrap();
        b.set_requires_grad(true).unwrap();
        gradcheck(|t| c.where_cond(&t[0], &t[1])?.square(), &[a.clone(), b.clone()], 1e-6).unwrap();
        gradcheck(|t| c.where_cond(&t[0], &t[0].square()?), std::slice::from_ref(&a), 1e-6).unwrap();
        let one = condition(&[true], &[1], &device);
        assert_eq!(one.where_cond(&a, &b).unwrap().dims(), [2, 3]);
    }
}

#[test]
fn a_destination_may_be_an_operand() {
    for device in devices() {
        let c = condition(&[true, false, true], &[3], &device);
        let (a, b) = (floats(&[1.0, 2.0, 3.0], &[3], &device), floats(&[4.0, 5.0, 6.0], &[3], &device));
        c.where_cond_into(&a, &b, &b).unwrap();
        assert_eq!(b.to_vec::<f64>().unwrap(), [1.0, 5.0, 3.0]);
        c.where_cond_into(&b, &b, &b).unwrap();
        assert_eq!(b.to_vec::<f64>().unwrap(), [1.0, 5.0, 3.0]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let c = condition(&[true, false, true], &[3], &device);
        let a = floats(&[1.0, 2.0, 3.0], &[3], &device);
        let other = a.to_dtype(DType::F32).unwrap();
        assert!(matches!(c.where_cond(&a, &other), Err(Error::DTypeMismatch { op: "where_cond", .. })));
        assert!(matches!(a.where_cond(&a, &a), Err(Error::DTypeMismatch { op: "where_cond", .. })));
        let pair = floats(&[1.0, 2.0], &[2], &device);
        assert!(matches!(c.where_cond(&pair, &pair), Err(Error::ShapeMismatch { op: "where_cond", .. })));
    }
}

#[test]
fn every_dtype_is_filled_and_the_value_is_rounded_once() {
    for device in devices() {
        let mask = Tensor::from_slice(&[true, false, true], [3], &device).unwrap();
        for dtype in DType::ALL {
            let x = Tensor::ones([2, 3], dtype, &device).unwrap();
            let y = x.masked_fill(&mask, 0.0).unwrap();
            assert_eq!(y.dtype(), dtype);
            let y = y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(y, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0], "{dtype}");
        }
        // Above the middle of two bf16 numbers by less than an f32 can tell.
        let x = Tensor::zeros([1], DType::BF16, &device).unwrap();
        let y = x.masked_fill(&mask.narrow(0, 0, 1).unwrap(), 1.0 + 2f64.powi(-8) + 2f64.powi(-40)).unwrap();
        assert_eq!(values(&y), [1.0 + 2f64.powi(-7)]);
    }
}

#[test]
fn what_is_filled_has_no_influence_and_no_gradient() {
    for device in devices() {
        let mask = Tensor::from_slice(&[1u8, 0, 2], [3, 1], &device).unwrap();
        gradcheck(|t| t[0].masked_fill(&mask, 2.0)?.square(), &[leaf(&[3, 4], &device)], 1e-6).unwrap();
        gradcheck(|t| t[0].masked_fill(&mask, 2.0)?.square(), &[leaf(&[4], &device)], 1e-6).unwrap();
        let x = Tensor::from_slice(&[f32::NAN, 1.0, f32::NAN], [3, 1], &device).unwrap();
        x.masked_fill_into(&mask, -1.0, &x).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [-1.0, 1.0, -1.0]);
    }
}

#[test]
fn a_mask_of_numbers_and_a_value_that_does_not_fit_are_refused() {
    for device in devices() {
        let x = Tensor::zeros([3], DType::I32, &device).unwrap();
        let e = x.masked_fill(&x, 1.0).unwrap_err();
        assert!(matches!(e, Error::DTypeMismatch { op: "masked_fill", .. }), "{e}");
        let mask = x.eq(&x).unwrap();
        assert!(x.masked_fill(&mask, 0.5).unwrap_err().to_string().contains("whole number"));
        assert!(x.masked_fill(&mask, 3e9).unwrap_err().to_string().contains("range of i32"));
        let short = mask.narrow(0, 0, 2).unwrap();
        assert!(x.masked_fill(&short, 1.0).unwrap_err().to_string().starts_with("masked_fill"));
    }
}
