use crate::testing::{assert_close, devices, gradcheck, leaf, values};
use refrain::{DType, Error, Tensor};

/// The same result from single operations on unpacked tensors.
fn composed(x: &Tensor, temperature: &Tensor, eps: f64) -> Tensor {
    let part = |i: usize| x.select(-3, i).unwrap();
    let q = part(0).l2_normalize(-1, eps).unwrap().mul(&temperature.unsqueeze(1).unwrap()).unwrap();
    Tensor::stack(&[&q, &part(1).l2_normalize(-1, eps).unwrap(), &part(2)], -3).unwrap()
}

#[test]
fn queries_and_keys_are_normalised_and_values_stay_in_every_dtype() {
    for device in devices() {
        for shape in [
            &[2, 3, 3, 2, 5][..],
            &[3, 1, 1],
            &[700, 3, 4, 16],
            &[5, 3, 3, 64],
            &[2, 3, 1, 300],
            &[2, 3, 2, 1000],
        ] {
            let heads = shape[shape.len() - 2];
            let (x, temperature) =
                (leaf(shape, &device).detach(), leaf(&[heads], &device).detach().add_scalar(3.0).unwrap());
            for (dtype, tolerance) in
                [(DType::F64, 1e-14), (DType::F32, 2e-6), (DType::F16, 8e-3), (DType::BF16, 6e-2)]
            {
                let (x, temperature) = (x.to_dtype(dtype).unwrap(), temperature.to_dtype(dtype).unwrap());
                let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
                let expected = composed(&wide(&x), &wide(&temperature), 1e-12);
                let y = x.qk_norm(&temperature, 1e-12).unwrap();
                assert_eq!((y.dtype(), y.dims()), (dtype, shape));
                assert_close(&values(&y), &values(&expected), tolerance);
                // f16 and bf16 may have f32 temperatures, as parameters do in mixed precision.
                if dtype.size() == 2 {
                    let wide = temperature.to_dtype(DType::F32).unwrap();
                    assert_eq!(values(&x.qk_norm(&wide, 1e-12).unwrap()), values(&y));
                }
            }
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for shape in [&[2, 3, 3, 2, 4][..], &[3, 1, 5], &[4, 3, 2, 1], &[70, 3, 1, 3]] {
            let heads = shape[shape.len() - 2];
            for eps in [1e-12, 2.0, 100.0] {
                gradcheck(
                    |t| t[0].qk_norm(&t[1], eps),
                    &[leaf(shape, &device), leaf(&[heads], &device)],
                    1e-6,
                )
                .unwrap();
            }
            // The gradient is added to one that is there already.
            let twice = |t: &[Tensor]| t[0].square()?.add(&t[0].qk_norm(&t[1], 1e-12)?)?.mul(&t[1].sum(())?);
            gradcheck(twice, &[leaf(shape, &device), leaf(&[heads], &device)], 1e-6).unwrap();
        }
        let transposed = |t: &[Tensor]| t[0].transpose(1, 2)?.qk_norm(&t[1], 1e-12);
        gradcheck(transposed, &[leaf(&[2, 2, 3, 4], &device), leaf(&[2], &device)], 1e-6).unwrap();
    }
}

#[test]
fn gradients_of_many_tokens_are_those_of_the_parts_in_every_dtype() {
    for device in devices() {
        // More tokens than fit in one task, one block and one part of a sum.
        let (x, temperature, dy) =
            (leaf(&[3000, 3, 4, 8], &device), leaf(&[4], &device), leaf(&[3000, 3, 4, 8], &device).detach());
        let gradients = |dtype: DType, packed: bool| {
            let as_leaf = |t: &Tensor| {
                let t = t.detach().to_dtype(dtype).unwrap().copy().unwrap();
                t.set_requires_grad(true).unwrap();
                t
            };
            let (x, temperature) = (as_leaf(&x), as_leaf(&temperature));
            let y = if packed {
                x.qk_norm(&temperature, 1e-12).unwrap()
            } else {
                composed(&x, &temperature, 1e-12)
            };
            y.backward_with(&dy.to_dtype(dtype).unwrap()).unwrap();
            [x, temperature].map(|t| values(&t.grad().unwrap()))
        };
        for (dtype, tolerance) in
            [(DType::F64, 1e-11), (DType::F32, 1e-3), (DType::F16, 0.1), (DType::BF16, 0.8)]
        {
            let exact = gradients(DType::F64, false);
            let got = gradients(dtype, true);
            // Vectors of length at least 0.3, whose gradients are at most 10; sums over 3000 tokens.
            assert_close(&got[0], &exact[0], tolerance);
            let sum: f64 = exact[1].iter().map(|s| s.abs()).sum();
            assert_close(&got[1], &exact[1], tolerance * (1.0 + sum));
        }
    }
}

#[test]
fn below_eps_a_vector_is_scaled() {
    for device in devices() {
        let x = Tensor::from_slice(&[0.25f64, 0.0, 0.0, 0.0, 9.0, 9.0], [3, 1, 2], &device).unwrap();
        x.set_requires_grad(true).unwrap();
        let temperature = Tensor::from_slice(&[3.0f64], 1, &device).unwrap();
        temperature.set_requires_grad(true).unwrap();
        let y = x.qk_norm(&temperature, 0.5).unwrap();
        assert_eq!(values(&y), [1.5, 0.0, 0.0, 0.0, 9.0, 9.0]);
        y.backward_with(&Tensor::ones([3, 1, 2], DType::F64, &device).unwrap()).unwrap();
        assert_eq!(values(&x.grad().unwrap()), [6.0, 6.0, 2.0, 2.0, 1.0, 1.0]);
        assert_eq!(values(&temperature.grad().unwrap()), [0.5]);
        // The inverse of this eps is larger than the largest f32.
        let nothing = Tensor::zeros([1, 3, 1, 2], DType::F32, &device).unwrap();
        let y = nothing.qk_norm(&Tensor::ones(1, DType::F32, &device).unwrap(), 1e-40).unwrap();
        assert_eq!(values(&y), [0.0; 6]);
    }
}

#[test]
fn empty_shapes_destinations_and_bad_arguments() {
    for device in devices() {
        for shape in [&[0, 3, 2, 4][..], &[2, 3, 2, 0], &[2, 3, 0, 4]] {
            let x = Tensor::zeros(shape, DType::F32, &device).unwrap();
            let temperature = Tensor::ones(shape[2], DType::F32, &device).unwrap();
            [&x, &temperature].into_iter().for_each(|t| t.set_requires_grad(true).unwrap());
            x.qk_norm(&temperature, 1e-12).unwrap().sum(()).unwrap().backward().unwrap();
            assert!(values(&temperature.grad().unwrap()).iter().all(|&g| g == 0.0), "{shape:?}");
        }
        let (x, temperature) = (leaf(&[2, 3, 2, 4], &device).detach(), leaf(&[2], &device).detach());
        let dst = Tensor::zeros([3, 2, 2, 4], DType::F64, &device).unwrap();
        x.qk_norm_into(&temperature, 1e-12, &dst.transpose(0, 1).unwrap()).unwrap();
        let y = x.qk_norm(&temperature, 1e-12).unwrap().transpose(0, 1).unwrap();
        assert_eq!(values(&dst), values(&y));

        let refused = |x: &Tensor, temperature: &Tensor, eps: f64, expected: &str| {
            let message = x.qk_norm(temperature, eps).unwrap_err().to_string();
            assert!(message.contains("qk_norm") && message.contains(expected), "{message}");
        };
        refused(&x, &temperature, -1.0, "eps is -1");
        refused(
            &x.narrow(1, 0, 2).unwrap(),
            &temperature,
            1e-12,
            "[2, 2, 2, 4]; it must be [.., 3, heads, dim]",
        );
        refused(&temperature, &temperature, 1e-12, "it must be [.., 3, heads, dim]");
        refused(&x, &leaf(&[3], &device).detach(), 1e-12, "a temperature for each head");
        let wide = Tensor::zeros([3, 2, 1025], DType::F64, &device).unwrap();
        refused(&wide, &temperature, 1e-12, "at most 1024");
        let ints = Tensor::ones([3, 2, 4], DType::I64, &device).unwrap();
        assert!(matches!(
            ints.qk_norm(&temperature, 1e-12),
            Err(Error::Unsupported { .. } | Error::DTypeMismatch { .. })
        ));
        let other = temperature.to_dtype(DType::F32).unwrap();
        assert!(matches!(x.qk_norm(&other, 1e-12), Err(Error::DTypeMismatch { op: "qk_norm", .. })));
    }
}
