use crate::testing::{assert_close, devices, gradcheck, leaf, numbers, values};
use refrain::{DType, Tensor};

#[test]
fn the_result_is_the_logarithm_of_the_sum_for_any_length_and_axis() {
    for device in devices() {
        for [outer, n, inner] in [[2, 1, 1], [3, 40, 1], [2, 20_000, 1], [1, 300, 5], [2, 5000, 3]] {
            let x: Vec<f64> = numbers(outer * n * inner).iter().map(|v| v * 3.0).collect();
            let t = Tensor::from_slice(&x, [outer, n, inner], &device).unwrap();
            let expected: Vec<f64> = (0..outer * inner)
                .map(|i| (0..n).map(|k| x[(i / inner * n + k) * inner + i % inner].exp()).sum::<f64>().ln())
                .collect();
            assert_close(&t.logsumexp(1).unwrap().to_vec::<f64>().unwrap(), &expected, 1e-10);
            let kept = t.to_dtype(DType::F32).unwrap().logsumexp_keepdim(1).unwrap();
            assert_eq!(kept.dims(), [outer, 1, inner]);
            assert_close(&values(&kept), &expected, 1e-5);
        }
    }
}

#[test]
fn large_small_infinite_and_no_numbers_give_what_the_limit_is() {
    for device in devices() {
        let inf = f32::INFINITY;
        let cases: [(&[f32], f32); 7] = [
            (&[500.0, 500.0], 500.0 + std::f32::consts::LN_2),
            (&[-500.0, -500.0], -500.0 + std::f32::consts::LN_2),
            (&[-inf, -inf], -inf),
            (&[-inf, 3.0], 3.0),
            (&[inf, 3.0, inf], inf),
            (&[inf, -inf], inf),
            (&[], -inf),
        ];
        for (x, expected) in cases {
            let t = Tensor::from_slice(x, [x.len()], &device).unwrap();
            assert_eq!(t.logsumexp(()).unwrap().to_scalar::<f32>().unwrap(), expected, "{x:?}");
            let twice = Tensor::stack(&[&t, &t], 1).unwrap();
            assert_eq!(twice.logsumexp(0).unwrap().to_vec::<f32>().unwrap(), [expected; 2], "{x:?}");
        }
        let nan = Tensor::from_slice(&[inf, f32::NAN], [2], &device).unwrap();
        assert!(nan.logsumexp(0).unwrap().to_scalar::<f32>().unwrap().is_nan());
        // Pieces of a long row, each but one of negative infinity.
        let mut long = vec![-inf; 50_000];
        long[20_000] = 2.0;
        let t = Tensor::from_slice(&long, [50_000], &device).unwrap();
        assert_eq!(t.logsumexp(0).unwrap().to_scalar::<f32>().unwrap(), 2.0);
    }
}

#[test]
fn the_gradient_is_the_softmax() {
    for device in devices() {
        for axes in [&[0isize][..], &[1], &[2], &[0, 2], &[0, 1, 2]] {
            gradcheck(|t| t[0].logsumexp(axes)?.square(), &[leaf(&[3, 4, 2], &device)], 1e-6).unwrap();
        }
        let x = Tensor::full([3], f64::NEG_INFINITY, DType::F64, &device).unwrap();
        x.set_requires_grad(true).unwrap();
        x.logsumexp(0).unwrap().backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [0.0; 3]);
    }
}
