use crate::testing::{assert_close, devices, gradcheck, leaf, values};
use refrain::{DType, Error, Tensor};

#[test]
fn vectors_along_any_axis_have_length_one_in_every_dtype() {
    for device in devices() {
        for (shape, axis) in
            [([3, 5, 7], 0), ([3, 5, 7], 1), ([3, 5, 7], -1), ([2, 3000, 3], 1), ([700, 2, 40], 2)]
        {
            let x = leaf(&shape, &device).detach();
            for (dtype, tolerance) in
                [(DType::F64, 1e-14), (DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 1.6e-2)]
            {
                let x = x.to_dtype(dtype).unwrap();
                let y = x.l2_normalize(axis, 1e-12).unwrap().to_dtype(DType::F64).unwrap();
                let exact = x.to_dtype(DType::F64).unwrap();
                let norm = exact.square().unwrap().sum_keepdim(axis).unwrap().sqrt().unwrap();
                assert_close(&values(&y), &values(&exact.div(&norm).unwrap()), tolerance);
            }
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for (shape, axis) in
            [(&[3, 4, 5][..], 0), (&[3, 4, 5], 1), (&[3, 4, 5], 2), (&[2, 37], 1), (&[5, 1], 1)]
        {
            let x = [leaf(shape, &device)];
            for eps in [1e-12, 2.0, 100.0] {
                gradcheck(|t| t[0].l2_normalize(axis, eps), &x, 1e-6).unwrap();
            }
            gradcheck(|t| t[0].square()?.add(&t[0].l2_normalize(axis, 1e-12)?), &x, 1e-6).unwrap();
        }
        gradcheck(|t| t[0].transpose(0, 1)?.l2_normalize(1, 1e-12), &[leaf(&[3, 4], &device)], 1e-6).unwrap();
    }
}

#[test]
fn below_eps_a_vector_is_scaled() {
    for device in devices() {
        let x = Tensor::from_slice(&[0.0f64, 0.0, 0.25, 0.0, 3.0, -4.0], [3, 2], &device).unwrap();
        x.set_requires_grad(true).unwrap();
        let y = x.l2_normalize(1, 0.5).unwrap();
        assert_eq!(values(&y), [0.0, 0.0, 0.5, 0.0, 0.6, -0.8]);
        y.backward_with(&Tensor::ones([3, 2], DType::F64, &device).unwrap()).unwrap();
        // (1 - y * -0.2) / 5
        assert_close(&values(&x.grad().unwrap()), &[2.0, 2.0, 2.0, 2.0, 0.224, 0.168], 1e-15);
    }
}

#[test]
fn empty_shapes_destinations_and_bad_arguments() {
    for device in devices() {
        let x = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap();
        x.set_requires_grad(true).unwrap();
        for axis in 0..3 {
            x.l2_normalize(axis, 1e-12).unwrap().sum(()).unwrap().backward().unwrap();
        }
        let x = leaf(&[3, 2], &device).detach();
        assert!(matches!(x.l2_normalize(2, 1e-12), Err(Error::InvalidArgument { op: "l2_normalize", .. })));
        assert!(matches!(x.l2_normalize(1, -1.0), Err(Error::InvalidArgument { .. })));
        let ints = Tensor::ones([2], DType::I64, &device).unwrap();
        assert!(matches!(ints.l2_normalize(0, 1e-12), Err(Error::Unsupported { op: "l2_normalize", .. })));
        let dst = Tensor::zeros([2, 3], DType::F64, &device).unwrap();
        x.l2_normalize_into(0, 1e-12, &dst.transpose(0, 1).unwrap()).unwrap();
        let y = x.l2_normalize(0, 1e-12).unwrap().transpose(0, 1).unwrap();
        assert_eq!(values(&dst), values(&y));
    }
}
