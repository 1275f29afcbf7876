use crate::testing::{devices, gradcheck};
use refrain::{DType, Device, Error, Tensor};

fn range(start: f64, shape: &[usize], device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::arange(start, start + n as f64, 1.0, DType::F64, device).unwrap();
    x.reshape(shape).unwrap().detach()
}

#[test]
fn parts_lie_one_after_the_other_along_any_axis() {
    for device in devices() {
        let (a, b) = (range(0.0, &[2, 2], &device), range(10.0, &[2, 2], &device));
        let rows = Tensor::concat(&[&a, &b], 0).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(rows, [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]);
        let columns = Tensor::concat(&[&a, &b.transpose(0, 1).unwrap()], -1).unwrap();
        assert_eq!(columns.to_vec::<f64>().unwrap(), [0.0, 1.0, 10.0, 12.0, 2.0, 3.0, 11.0, 13.0]);
        let last = Tensor::stack(&[&a, &b], -1).unwrap();
        assert_eq!(last.dims(), [2, 2, 2]);
        assert_eq!(last.to_vec::<f64>().unwrap(), [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 3.0, 13.0]);
        let scalars = Tensor::stack(&[&range(1.0, &[], &device), &range(5.0, &[], &device)], 0).unwrap();
        assert_eq!(scalars.to_vec::<f64>().unwrap(), [1.0, 5.0]);
    }
}

#[test]
fn every_dtype_and_empty_parts_are_taken() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = range(0.0, &[2, 3], &device).to_dtype(dtype).unwrap();
            let none = x.narrow(0, 0, 0).unwrap();
            let y = Tensor::concat(&[&none, &x, &none, &x], 0).unwrap();
            assert_eq!((y.dims(), y.dtype()), (&[4, 3][..], dtype));
            let twice = y.narrow(0, 2, 2).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(twice, x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap());
            assert_eq!(Tensor::concat(&[&none, &none], 1).unwrap().dims(), [0, 6]);
        }
    }
}

#[test]
fn parts_of_a_large_result_are_in_place() {
    for device in devices() {
        let (a, b) = (range(0.0, &[200, 90], &device), range(-1.0, &[200, 35], &device));
        let y = Tensor::concat(&[&a, &b], 1).unwrap();
        let parts = [y.narrow(1, 0, 90).unwrap(), y.narrow(1, 90, 35).unwrap()];
        assert_eq!(parts[0].to_vec::<f64>().unwrap(), a.to_vec::<f64>().unwrap());
        assert_eq!(parts[1].to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap());
    }
}

#[test]
fn gradients_are_the_parts_of_the_gradient() {
    for device in devices() {
        let (a, b) = (range(0.5, &[2, 3, 2], &device), range(0.1, &[2, 1, 2], &device));
        a.set_requires_grad(true).unwrap();
        b.set_requires_grad(true).unwrap();
        gradcheck(|t| Tensor::concat(&[&t[0], &t[1], &t[0]], 1)?.square(), &[a.clone(), b], 1e-6).unwrap();
        gradcheck(|t| Tensor::stack(&[&t[0], &t[0].square()?], 2)?.square(), &[a], 1e-6).unwrap();
    }
}

#[test]
fn any_number_of_parts_has_gradients() {
    for device in devices() {
        let parts: Vec<Tensor> = (0..100).map(|i| range(f64::from(i), &[1], &device)).collect();
        parts.iter().for_each(|t| t.set_requires_grad(true).unwrap());
        let all = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0).unwrap();
        all.square().unwrap().sum(()).unwrap().backward().unwrap();
        for (i, t) in parts.iter().enumerate() {
            assert_eq!(t.grad().unwrap().to_vec::<f64>().unwrap(), [2.0 * i as f64]);
        }
    }
}

#[test]
fn a_destination_is_written_in_place() {
    for device in devices() {
        let (a, b) = (range(0.0, &[2, 1], &device), range(5.0, &[2, 1], &device));
        let wide = Tensor::zeros([2, 4], DType::F64, &device).unwrap();
        Tensor::concat_into(&[&a, &b], 1, &wide.narrow(1, 1, 2).unwrap()).unwrap();
        assert_eq!(wide.to_vec::<f64>().unwrap(), [0.0, 0.0, 5.0, 0.0, 0.0, 1.0, 6.0, 0.0]);
        Tensor::stack_into(&[&a, &b], 0, &wide.reshape([2, 2, 2]).unwrap().narrow(2, 0, 1).unwrap()).unwrap();
        assert_eq!(wide.to_vec::<f64>().unwrap(), [0.0, 0.0, 1.0, 0.0, 5.0, 1.0, 6.0, 0.0]);
        let overlap = Tensor::concat_into(&[&wide, &wide], 0, &wide.broadcast_to([2, 2, 4]).unwrap());
        assert!(overlap.is_err());
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let (a, b) = (range(0.0, &[2, 3], &device), range(0.0, &[3, 2], &device));
        let text = Tensor::concat(&[&a, &b], 0).unwrap_err().to_string();
        assert!(text.starts_with("concat") && text.contains("[2, 3]") && text.contains("[3, 2]"), "{text}");
        let text = Tensor::stack(&[&a, &b], 0).unwrap_err().to_string();
        assert!(text.starts_with("stack") && text.contains("[3, 2]"), "{text}");
        let ints = a.to_dtype(DType::I64).unwrap();
        assert!(matches!(Tensor::concat(&[&a, &ints], 0), Err(Error::DTypeMismatch { op: "concat", .. })));
        assert!(matches!(Tensor::concat::<Tensor>(&[], 0), Err(Error::InvalidArgument { op: "concat", .. })));
        assert!(matches!(Tensor::stack::<Tensor>(&[], 0), Err(Error::InvalidArgument { op: "stack", .. })));
        assert!(Tensor::concat(&[&a], 2).is_err() && Tensor::stack(&[&a], 3).is_err());
        assert!(
            Tensor::concat(&[&range(0.0, &[], &device)], 0).unwrap_err().to_string().contains("use stack")
        );
    }
}
