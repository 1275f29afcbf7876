use crate::testing::{devices, gradcheck};
use refrain::{DType, Device, Tensor};

fn sample(device: &Device) -> Tensor {
    Tensor::from_slice(&[1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], device).unwrap()
}

#[test]
fn the_margin_lies_around_the_tensor() {
    for device in devices() {
        let y = sample(&device).pad(&[(1, 0), (2, 1)], 9.0).unwrap();
        assert_eq!(y.dims(), [3, 6]);
        let expected = [[9.0; 6], [9.0, 9.0, 1.0, 2.0, 3.0, 9.0], [9.0, 9.0, 4.0, 5.0, 6.0, 9.0]].concat();
        assert_eq!(y.to_vec::<f64>().unwrap(), expected);
        let t = sample(&device).transpose(0, 1).unwrap().pad(&[(0, 1), (0, 0)], -1.0).unwrap();
        assert_eq!(t.to_vec::<f64>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0, -1.0, -1.0]);
        let inner = sample(&device).reshape([1, 2, 3]).unwrap().pad(&[(0, 1), (1, 0), (0, 0)], 0.0).unwrap();
        assert_eq!(inner.to_vec::<f64>().unwrap()[..9], [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(inner.to_vec::<f64>().unwrap()[9..], [0.0; 9]);
    }
}

#[test]
fn every_dtype_scalars_and_nothing_are_taken() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = Tensor::zeros([1], dtype, &device).unwrap();
            let y = x.pad(&[(1, 1)], 3.0).unwrap();
            let value = if dtype == DType::Bool { 1.0 } else { 3.0 };
            assert_eq!(
                y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
                [value, 0.0, value],
                "{dtype}"
            );
            let none = x.narrow(0, 0, 0).unwrap().pad(&[(1, 1)], 0.0).unwrap();
            assert_eq!(none.dims(), [2]);
        }
        let scalar = Tensor::scalar(4.0f32, &device).unwrap();
        assert_eq!(scalar.pad(&[], 1.0).unwrap().to_vec::<f32>().unwrap(), [4.0]);
        let columns = sample(&device).narrow(1, 0, 0).unwrap().pad(&[(0, 0), (1, 0)], 2.0).unwrap();
        assert_eq!(columns.to_vec::<f64>().unwrap(), [2.0; 2]);
        let rows = sample(&device).narrow(0, 0, 0).unwrap().pad(&[(1, 0), (0, 1)], 2.0).unwrap();
        assert_eq!(rows.to_vec::<f64>().unwrap(), [2.0; 4]);
    }
}

#[test]
fn the_gradient_is_what_lies_within_the_margin() {
    for device in devices() {
        let x = sample(&device);
        x.set_requires_grad(true).unwrap();
        gradcheck(|t| t[0].pad(&[(1, 2), (0, 1)], 0.5)?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        gradcheck(|t| t[0].transpose(0, 1)?.pad(&[(1, 0), (0, 0)], 0.5)?.square(), &[x], 1e-6).unwrap();
    }
}

#[test]
fn a_destination_is_written_in_place() {
    for device in devices() {
        let wide = Tensor::zeros([2, 6], DType::F64, &device).unwrap();
        sample(&device).pad_into(&[(0, 0), (1, 0)], 8.0, &wide.narrow(1, 1, 4).unwrap()).unwrap();
        assert_eq!(wide.to_vec::<f64>().unwrap()[..6], [0.0, 8.0, 1.0, 2.0, 3.0, 0.0]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let text = sample(&device).pad(&[(1, 1)], 0.0).unwrap_err().to_string();
        assert!(text.starts_with("pad") && text.contains("[(1, 1)]") && text.contains("[2, 3]"), "{text}");
        let ints = sample(&device).to_dtype(DType::I32).unwrap();
        assert!(ints.pad(&[(0, 0), (1, 0)], 0.5).unwrap_err().to_string().contains("0.5"));
        assert!(ints.pad(&[(0, 0), (1, 0)], 3e9).unwrap_err().to_string().contains("range of i32"));
        let text = sample(&device).pad(&[(usize::MAX, usize::MAX), (0, 0)], 0.0).unwrap_err().to_string();
        assert!(text.contains("address space"), "{text}");
    }
}
