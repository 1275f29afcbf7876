use crate::testing::{devices, gradcheck};
use refrain::{DType, Device, Tensor};

fn sample(device: &Device) -> Tensor {
    Tensor::from_slice(&[0.5f64, 1.0, 1.5, 2.0, 2.5, 3.0], [2, 3], device).unwrap()
}

#[test]
fn tiles_lie_side_by_side() {
    for device in devices() {
        let x = sample(&device);
        let y = x.repeat(&[2, 2]).unwrap();
        assert_eq!(y.dims(), [4, 6]);
        let (a, b) = ([0.5, 1.0, 1.5], [2.0, 2.5, 3.0]);
        assert_eq!(y.to_vec::<f64>().unwrap(), [a, a, b, b, a, a, b, b].concat());
        let t = x.transpose(0, 1).unwrap().repeat(&[1, 2]).unwrap();
        assert_eq!(t.to_vec::<f64>().unwrap(), [0.5, 2.0, 0.5, 2.0, 1.0, 2.5, 1.0, 2.5, 1.5, 3.0, 1.5, 3.0]);
        let column = x.narrow(1, 1, 1).unwrap().repeat(&[1, 1, 3]).unwrap();
        assert_eq!(column.dims(), [1, 2, 3]);
        assert_eq!(column.to_vec::<f64>().unwrap(), [1.0, 1.0, 1.0, 2.5, 2.5, 2.5]);
    }
}

#[test]
fn every_dtype_scalars_and_nothing_are_taken() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = Tensor::ones((), dtype, &device).unwrap();
            assert_eq!(x.repeat(&[]).unwrap().dims(), [0usize; 0]);
            let y = x.repeat(&[2, 3]).unwrap();
            assert_eq!((y.dims(), y.dtype()), (&[2, 3][..], dtype));
            assert_eq!(y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [1.0; 6]);
        }
        assert_eq!(sample(&device).repeat(&[0, 2]).unwrap().dims(), [0, 6]);
        assert_eq!(sample(&device).narrow(1, 0, 0).unwrap().repeat(&[3, 4]).unwrap().dims(), [6, 0]);
    }
}

#[test]
fn the_gradient_is_the_sum_over_the_tiles() {
    for device in devices() {
        let x = sample(&device);
        x.set_requires_grad(true).unwrap();
        for repeats in [&[2, 1][..], &[1, 3], &[2, 3, 2], &[1, 1], &[0, 2]] {
            gradcheck(|t| t[0].repeat(repeats)?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        }
        gradcheck(|t| t[0].transpose(0, 1)?.repeat(&[2, 2])?.square(), &[x], 1e-6).unwrap();
    }
}

#[test]
fn a_destination_is_written_in_place() {
    for device in devices() {
        let wide = Tensor::zeros([2, 8], DType::F64, &device).unwrap();
        sample(&device).repeat_into(&[1, 2], &wide.narrow(1, 1, 6).unwrap()).unwrap();
        assert_eq!(wide.to_vec::<f64>().unwrap()[..8], [0.0, 0.5, 1.0, 1.5, 0.5, 1.0, 1.5, 0.0]);
    }
}

#[test]
fn too_few_numbers_and_too_large_a_result_are_errors() {
    for device in devices() {
        let text = sample(&device).repeat(&[2]).unwrap_err().to_string();
        assert!(text.starts_with("repeat") && text.contains("[2]") && text.contains("[2, 3]"), "{text}");
        assert!(sample(&device).repeat(&[usize::MAX, 4]).unwrap_err().to_string().contains("address space"));
    }
}
