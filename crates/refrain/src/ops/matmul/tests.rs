use crate::testing::{devices, gradcheck, numbers};
use refrain::{DType, Device, Error, Tensor};

fn ramp(shape: &[usize], device: &Device) -> Tensor {
    let n = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|i| ((i as f64 + 0.3) * 1.7).sin()).collect();
    Tensor::from_slice(&v, shape, device).unwrap()
}

/// Three nested loops.
fn reference(a: &Tensor, b: &Tensor) -> Vec<f64> {
    let (m, k, n) = (a.dims()[0], a.dims()[1], b.dims()[1]);
    let (a, b) = (a.to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap());
    (0..m * n).map(|i| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum()).collect()
}

#[test]
fn operands_of_any_strides_give_the_product() {
    for device in devices() {
        for (m, k, n) in [(3, 5, 7), (1, 1, 1), (130, 70, 33), (2, 0, 3), (0, 4, 2), (5, 1, 9)] {
            let (a, b) = (ramp(&[m, k], &device), ramp(&[k, n], &device));
            let expected = reference(&a, &b);
            let (at, bt) =
                (a.transpose(0, 1).unwrap().copy().unwrap(), b.transpose(0, 1).unwrap().copy().unwrap());
            for a in [a, at.transpose(0, 1).unwrap()] {
                for b in [&b, &bt.transpose(0, 1).unwrap()] {
                    let c = a.matmul(b).unwrap();
                    assert_eq!(c.dims(), [m, n]);
                    let c = c.to_vec::<f64>().unwrap();
                    assert!(c.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-12), "{m} {k} {n}");
                }
            }
        }
    }
}

#[test]
fn batches_broadcast_and_have_gradients() {
    for device in devices() {
        let (a, b) = (ramp(&[2, 1, 3, 4], &device), ramp(&[3, 4, 2], &device));
        a.set_requires_grad(true).unwrap();
        b.set_requires_grad(true).unwrap();
        assert_eq!(a.matmul(&b).unwrap().dims(), [2, 3, 3, 2]);
        gradcheck(|t| t[0].matmul(&t[1]), &[a.clone(), b.clone()], 1e-6).unwrap();
        gradcheck(|t| t[1].transpose(1, 2)?.matmul(&t[0].transpose(2, 3)?), &[a, b], 1e-6).unwrap();
    }
}

#[test]
fn a_destination_may_be_a_window_and_not_an_operand() {
    for device in devices() {
        let (a, b) = (ramp(&[3, 3], &device), ramp(&[3, 3], &device));
        let wide = Tensor::zeros([3, 5], DType::F64, &device).unwrap();
        a.matmul_into(&b, &wide.narrow(1, 1, 3).unwrap()).unwrap();
        let c = wide.narrow(1, 1, 3).unwrap().to_vec::<f64>().unwrap();
        assert!(c.iter().zip(reference(&a, &b)).all(|(x, y)| (x - y).abs() < 1e-12));
        assert!(matches!(a.matmul_into(&b, &a), Err(Error::Aliased { op: "matmul", .. })));
        let e = a.matmul(&ramp(&[2, 3], &device)).unwrap_err();
        assert!(matches!(e, Error::ShapeMismatch { op: "matmul", .. }), "{e}");
    }
}

#[test]
fn products_of_f32_are_as_exact_as_f32_however_long_the_sums() {
    for device in devices() {
        for (m, k, n) in [(33, 4096, 17), (96, 500, 96), (40, 41, 24), (70, 300, 201), (2000, 67, 1020)] {
            let wide = |x: Tensor| x.to_dtype(DType::F32).unwrap();
            let (a, b) = (wide(ramp(&[m, k], &device)), wide(ramp(&[k, n], &device)));
            let (exact_a, exact_b) = (a.to_dtype(DType::F64).unwrap(), b.to_dtype(DType::F64).unwrap());
            let expected = reference(&exact_a, &exact_b);
            // The root of the sum of the squared terms (about 1/4 each), times the f32 rounding of each partial sum.
            let tolerance = f64::from(f32::EPSILON) * (k as f64 / 4.0).sqrt() * (k as f64).sqrt();
            let turned = |x: &Tensor| x.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
            for a in [&a, &turned(&a)] {
                for b in [&b, &turned(&b)] {
                    let c = a.matmul(b).unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                    let worst = c.iter().zip(&expected).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                    assert!(worst <= tolerance, "{m} {k} {n}: {worst:e} of {tolerance:e}");
                }
            }
        }
    }
}

#[test]
fn products_of_small_integers_are_exact() {
    for device in devices() {
        for (m, k, n) in [(64, 64, 64), (100, 333, 70), (300, 40, 130), (20, 50, 9)] {
            let tensor =
                |values: Vec<f32>, shape: [usize; 2]| Tensor::from_slice(&values, shape, &device).unwrap();
            let integers = |n: usize| (0..n).map(|i| (i * 7919 % 2001) as f32 - 1000.0).collect::<Vec<_>>();
            let (a, units) = (integers(m * k), (0..k * n).map(|i| f32::from(i / n == i % n % k)).collect());
            let c = tensor(a.clone(), [m, k]).matmul(&tensor(units, [k, n])).unwrap();
            // Repeated columns of the unit matrix pick columns.
            let picked: Vec<f32> = (0..m * n).map(|i| a[i / n * k + i % n % k]).collect();
            assert_eq!(c.to_vec::<f32>().unwrap(), picked, "{m} {k} {n}");
            let ones = tensor(vec![1.0; k * n], [k, n]);
            let sums = tensor(a.clone(), [m, k]).matmul(&ones).unwrap().to_vec::<f32>().unwrap();
            let rows: Vec<f32> = (0..m * n).map(|i| a[i / n * k..][..k].iter().sum()).collect();
            assert_eq!(sums, rows, "{m} {k} {n}");
        }
    }
}

#[test]
fn batches_of_f32_and_bf16_agree_with_f64() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (batch, m, k, n) in [(3, 72, 96, 136), (5, 40, 33, 65), (2, 64, 0, 64), (2, 130, 512, 70)] {
                let of = |shape: [usize; 3]| ramp(&shape, &device).to_dtype(dtype).unwrap();
                let (a, b) = (of([batch, m, k]), of([batch, k, n]));
                let turned = b.transpose(1, 2).unwrap().copy().unwrap().transpose(1, 2).unwrap();
                let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
                let exact = wide(&a).matmul(&wide(&b)).unwrap().to_vec::<f64>().unwrap();
                let largest = exact.iter().fold(1.0f64, |l, x| l.max(x.abs()));
                for b in [&b, &turned] {
                    let c = wide(&a.matmul(b).unwrap()).to_vec::<f64>().unwrap();
                    let worst = c.iter().zip(&exact).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                    // The rounding of the result, and the f32 rounding of as many partial sums.
                    let partial = f64::from(f32::EPSILON) * k as f64 / 4.0;
                    let tolerance = dtype.epsilon().unwrap() * largest + partial;
                    assert!(worst <= tolerance, "{dtype} {batch} {m} {k} {n}: {worst:e} of {tolerance:e}");
                }
            }
        }
    }
}

#[test]
fn products_of_f32_are_smaller_by_less_than_a_last_bit() {
    for device in devices() {
        let waves = |n: usize| (0..n).map(|i| (i as f64 * 1.7).sin()).collect();
        let kinds: [fn(usize) -> Vec<f64>; 2] = [numbers, waves];
        for (k, numbers) in [32, 256, 1024].into_iter().flat_map(|k| kinds.map(|numbers| (k, numbers))) {
            let of = |shape: [usize; 2]| {
                let numbers = numbers(shape[0] * shape[1]);
                Tensor::from_slice(&numbers, shape, &device).unwrap().to_dtype(DType::F32).unwrap()
            };
            let (a, b) = (of([256, k]), of([k, 250]));
            let exact = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
            let expected = reference(&exact(&a), &exact(&b));
            let c = exact(&a.matmul(&b).unwrap()).to_vec::<f64>().unwrap();
            // The relative bias of the whole product: rounding errors cancel, truncation errors do not.
            let along: f64 = c.iter().zip(&expected).map(|(c, r)| (c - r) * r).sum();
            let off = along / expected.iter().map(|r| r * r).sum::<f64>();
            // Tensor cores truncate the sum of 8 products at the last bit. So the 16 products that are added without
            // rounding are truncated twice. Each time this costs half of the last bit of a number that is 1.4 times the
            // power of two below it.
            assert!(off.abs() < 8.5e-8, "k {k}: off by {off:e}");
        }
    }
}

/// Of numbers of 16 bits, which are converted row by row.
#[test]
fn a_matrix_of_halves_times_a_vector_is_the_rounded_sum_of_products() {
    for device in devices() {
        for (m, k) in [(1, 1), (3, 17), (5, 512), (70, 1500), (4, 0)] {
            for (dtype, unit) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
                let halves = |shape: &[usize]| ramp(shape, &device).to_dtype(dtype).unwrap();
                let (a, x) = (halves(&[m, k + 3]).narrow(1, 2, k).unwrap(), halves(&[k, 1]));
                let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap().copy().unwrap();
                let exact = reference(&wide(&a), &wide(&x));
                let found = wide(&a.matmul(&x).unwrap()).to_vec::<f64>().unwrap();
                assert_eq!(found.len(), m);
                for (found, exact) in found.iter().zip(&exact) {
                    let bound = exact.abs() * unit + k as f64 * 1e-6;
                    assert!((found - exact).abs() <= bound, "{m} {k} {dtype}: {found}, not {exact}");
                }
            }
        }
    }
}
