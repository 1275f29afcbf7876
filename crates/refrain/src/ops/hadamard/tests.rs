use crate::testing::{devices, gradcheck};
use refrain::{DType, Device, Error, Tensor};

fn sample(shape: &[usize], device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::arange(0.0, n as f64, 1.0, DType::F64, device).unwrap();
    x.mul_scalar(0.7).unwrap().sin().unwrap().reshape(shape).unwrap().detach()
}

/// By the definition: the sign of element (i, j) is the parity of the common bits of i and j.
fn by_definition(x: &[f64], n: usize) -> Vec<f64> {
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let row = |x: &[f64], j: usize| (0..n).map(|i| x[i] * sign(i, j)).sum::<f64>() / (n as f64).sqrt();
    x.chunks(n).flat_map(|x| (0..n).map(move |j| row(x, j))).collect()
}

#[test]
fn the_fast_transform_is_the_product_with_the_matrix() {
    for device in devices() {
        for (rows, n) in [(3, 1), (5, 2), (7, 8), (2, 64), (40, 1024), (1, 8192)] {
            let x = sample(&[rows, n], &device);
            let expected = by_definition(&x.to_vec::<f64>().unwrap(), n);
            let check = |x: &Tensor, bound: f64| {
                let y = x.hadamard_transform().unwrap();
                assert_eq!((y.dims(), y.dtype()), (x.dims(), x.dtype()));
                let y = y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                let worst = y.iter().zip(&expected).map(|(y, e)| (y - e).abs()).fold(0.0, f64::max);
                assert!(worst <= bound, "{rows} x {n} {}: {worst}", x.dtype());
            };
            // The rounding of the operand, of log2(n) + 1 steps and of the result, with sum |x| / sqrt(n) <= sqrt(n).
            let (size, steps) = ((n as f64).sqrt(), (n as f64).log2() + 4.0);
            check(&x, size * steps * f64::EPSILON);
            check(&x.to_dtype(DType::F32).unwrap(), size * steps * f32::EPSILON as f64);
            for dtype in [DType::F16, DType::BF16] {
                // Computed in f32; rounded only on input and output.
                check(&x.to_dtype(dtype).unwrap(), 2.0 * size * dtype.epsilon().unwrap());
            }
        }
    }
}

#[test]
fn twice_is_the_identity_and_in_place_is_the_same() {
    for device in devices() {
        let x = sample(&[6, 32], &device);
        let y = x.hadamard_transform().unwrap();
        let once = y.to_vec::<f64>().unwrap();
        y.hadamard_transform_into(&y).unwrap();
        for (a, b) in y.to_vec::<f64>().unwrap().iter().zip(x.to_vec::<f64>().unwrap()) {
            assert!((a - b).abs() < 1e-14);
        }
        let wide = Tensor::zeros([6, 40], DType::F64, &device).unwrap();
        x.hadamard_transform_into(&wide.narrow(1, 4, 32).unwrap()).unwrap();
        assert_eq!(wide.narrow(1, 4, 32).unwrap().to_vec::<f64>().unwrap(), once);
        let columns = x.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
        assert_eq!(columns.hadamard_transform().unwrap().to_vec::<f64>().unwrap(), once);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let x = sample(&[2, 8], &device);
        x.set_requires_grad(true).unwrap();
        gradcheck(|t| t[0].hadamard_transform()?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        gradcheck(
            |t| t[0].transpose(0, 1)?.hadamard_transform()?.square()?.mul(&t[0].transpose(0, 1)?),
            &[x],
            1e-6,
        )
        .unwrap();
    }
}

#[test]
fn other_sizes_are_refused() {
    for device in devices() {
        assert_eq!(sample(&[0, 4], &device).hadamard_transform().unwrap().dims(), [0, 4]);
        for shape in [&[3, 6][..], &[3, 0], &[]] {
            let text = sample(shape, &device).hadamard_transform().unwrap_err().to_string();
            assert!(text.starts_with("hadamard_transform") && text.contains("power of two"), "{text}");
        }
        let ints = Tensor::zeros([4], DType::I32, &device).unwrap();
        assert!(matches!(
            ints.hadamard_transform(),
            Err(Error::Unsupported { op: "hadamard_transform", .. })
        ));
    }
}
