use crate::faults::{error_of, own_devices};
use crate::testing::{devices, gradcheck};
use refrain::{DType, Device, DeviceKind, Error, Tensor};

const DTYPES: [DType; 2] = [DType::F32, DType::F64];

fn sample(shape: &[usize], phase: f64, dtype: DType, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::arange(0.0, n as f64, 1.0, DType::F64, device).unwrap();
    let x = x.mul_scalar(0.7).unwrap().add_scalar(phase).unwrap().sin().unwrap();
    x.reshape(shape).unwrap().to_dtype(dtype).unwrap().detach()
}

fn eye(n: usize, dtype: DType, device: &Device) -> Tensor {
    Tensor::arange(0.0, n as f64, 1.0, DType::I64, device).unwrap().one_hot(n, dtype).unwrap()
}

/// Symmetric positive definite matrices.
fn definite(count: usize, n: usize, dtype: DType, device: &Device) -> Tensor {
    let x = sample(&[count, n, n], 0.3, DType::F64, device);
    let x = x.matmul(&x.transpose(-2, -1).unwrap()).unwrap().div_scalar(n.max(1) as f64).unwrap();
    x.add(&eye(n, DType::F64, device)).unwrap().to_dtype(dtype).unwrap()
}

/// A matrix with one triangle, a diagonal of about 2, and NaN in the other triangle.
fn triangle(count: usize, n: usize, upper: bool, dtype: DType, device: &Device) -> [Tensor; 2] {
    let x = sample(&[count, n, n], 0.9, dtype, device).div_scalar(n.max(1) as f64).unwrap();
    let x = x.add(&eye(n, dtype, device).mul_scalar(2.0).unwrap()).unwrap();
    let nan = x.mul_scalar(0.0).unwrap().add_scalar(f64::NAN).unwrap();
    let [own, other] = [x.clone(), x.ones_like().unwrap()].map(|x| match upper {
        true => x.triu(0).unwrap(),
        false => x.tril(0).unwrap(),
    });
    let with_nan = other.gt_scalar(0.0).unwrap().where_cond(&x, &nan).unwrap();
    [own, with_nan]
}

fn f64s(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

fn worst(got: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!((got.dims(), got.dtype()), (expected.dims(), expected.dtype()));
    // NaN is worst.
    let distance = |(a, b): (f64, f64)| if a == b { 0.0 } else { (a - b).abs() };
    f64s(got).into_iter().zip(f64s(expected)).map(distance).fold(0.0, |a, b| if a >= b { a } else { b })
}

/// Sizes below, at and above those of blocks, which are powers of two up to 64, and 256.
const SIZES: [(usize, usize); 8] = [(3, 1), (2, 5), (4, 32), (2, 33), (1, 64), (3, 97), (1, 200), (1, 400)];

#[test]
fn a_cholesky_factor_times_its_transpose_is_the_matrix() {
    for device in devices() {
        for dtype in DTYPES {
            for (count, n) in SIZES {
                let x = definite(count, n, dtype, &device);
                let l = x.cholesky().unwrap();
                assert_eq!(worst(&l.tril(0).unwrap(), &l), 0.0, "above the diagonal of {count} x {n}");
                let product = l.matmul(&l.transpose(-2, -1).unwrap()).unwrap();
                let bound = 8.0 * dtype.epsilon().unwrap() * (n as f64).sqrt().max(2.0);
                assert!(worst(&product, &x) <= bound, "{count} x {n} {dtype}: {}", worst(&product, &x));
                // What is above the diagonal does not count.
                let ones = x.ones_like().unwrap().tril(0).unwrap();
                let nan = x.mul_scalar(0.0).unwrap().add_scalar(f64::NAN).unwrap();
                let half = ones.gt_scalar(0.0).unwrap().where_cond(&x, &nan).unwrap();
                assert_eq!(worst(&half.cholesky().unwrap(), &l), 0.0);
                let into = l.zeros_like().unwrap();
                x.cholesky_into(&into).unwrap();
                assert_eq!(worst(&into, &l), 0.0);
            }
        }
    }
}

#[test]
fn triangular_systems_are_solved_whichever_triangle_and_layout_the_matrix_has() {
    for device in devices() {
        for dtype in DTYPES {
            for ((count, n), k) in SIZES.into_iter().zip([1, 3, 64, 5, 1, 70, 130, 2]) {
                for upper in [false, true] {
                    let [a, with_nan] = triangle(count, n, upper, dtype, &device);
                    let b = sample(&[count, n, k], 2.0, dtype, &device);
                    let y = with_nan.solve_triangular(&b, upper).unwrap();
                    let product = a.matmul(&y).unwrap();
                    let bound = 16.0 * dtype.epsilon().unwrap() * (n as f64).sqrt().max(2.0);
                    let case = format!("{count} x {n} x {k} {dtype}, upper {upper}");
                    assert!(worst(&product, &b) <= bound, "{case}: {}", worst(&product, &b));
                    // The same matrix, stored as its transpose.
                    let turned =
                        with_nan.transpose(-2, -1).unwrap().copy().unwrap().transpose(-2, -1).unwrap();
                    assert!(!turned.is_contiguous() || n == 1 || count * n == 1);
                    assert!(worst(&turned.solve_triangular(&b, upper).unwrap(), &y) <= bound, "{case}");
                    let place = b.copy().unwrap();
                    with_nan.solve_triangular_into(&place, upper, &place).unwrap();
                    assert_eq!(worst(&place, &y), 0.0, "{case}, in place");
                }
            }
        }
    }
}

#[test]
fn systems_are_solved_with_a_cholesky_factor_and_batches_broadcast() {
    for device in devices() {
        for dtype in DTYPES {
            let x = definite(3, 70, dtype, &device);
            let l = x.cholesky().unwrap();
            let b = sample(&[2, 1, 70, 4], 1.0, dtype, &device);
            let y = b.cholesky_solve(&l).unwrap();
            assert_eq!(y.dims(), [2, 3, 70, 4]);
            let product = x.broadcast_to([2, 3, 70, 70]).unwrap().matmul(&y).unwrap();
            let bound = 100.0 * dtype.epsilon().unwrap();
            assert!(worst(&product, &b.broadcast_to([2, 3, 70, 4]).unwrap()) <= bound);
            // One matrix for all right sides.
            let first = l.narrow(0, 0, 1).unwrap().squeeze(0).unwrap();
            let one = first.solve_triangular(&b, false).unwrap();
            let all = first.broadcast_to([2, 1, 70, 70]).unwrap().copy().unwrap();
            assert_eq!(worst(&one, &all.solve_triangular(&b, false).unwrap()), 0.0);
        }
    }
}

#[test]
fn equations_are_solved_and_matrices_inverted() {
    for device in devices() {
        for dtype in DTYPES {
            for ((count, n), k) in SIZES.into_iter().zip([1, 3, 64, 5, 300, 70, 130, 2]) {
                // With zeros on the diagonal, so that rows must be swapped.
                let x = sample(&[count, n, n], 0.9, dtype, &device);
                let diagonal =
                    eye(n, dtype, &device).gt_scalar(0.0).unwrap().broadcast_to(x.shape()).unwrap();
                let far = eye(n, dtype, &device).roll(&[(n / 2) as isize], &[1]).unwrap();
                let a = x.div_scalar(n as f64).unwrap().masked_fill(&diagonal, 0.0).unwrap();
                let a = a.add(&far.mul_scalar(3.0).unwrap()).unwrap();
                let b = sample(&[count, n, k], 2.0, dtype, &device);
                let y = a.solve(&b).unwrap();
                let bound = 200.0 * dtype.epsilon().unwrap();
                let case = format!("{count} x {n} x {k} {dtype}");
                let product = a.matmul(&y).unwrap();
                assert!(worst(&product, &b) <= bound, "{case}: {}", worst(&product, &b));
                let turned = a.transpose(-2, -1).unwrap();
                let product = turned.matmul(&turned.solve(&b).unwrap()).unwrap();
                assert!(worst(&product, &b) <= bound, "{case}, transposed: {}", worst(&product, &b));
                let place = b.copy().unwrap();
                a.solve_into(&place, &place).unwrap();
                assert_eq!(worst(&place, &y), 0.0, "{case}, in place");
                let one = a.matmul(&a.inverse().unwrap()).unwrap();
                let expected = eye(n, dtype, &device).broadcast_to(a.shape()).unwrap();
                assert!(worst(&one, &expected) <= bound, "{case}: {}", worst(&one, &expected));
            }
            // Rows in another order are put in theirs, exactly.
            let b = sample(&[4, 100, 3], 0.1, dtype, &device);
            let one = eye(100, dtype, &device);
            assert_eq!(worst(&one.flip(0).unwrap().solve(&b).unwrap(), &b.flip(1).unwrap()), 0.0);
            for by in [1, 5, 37, 99] {
                let y = one.roll(&[by], &[0]).unwrap().solve(&b).unwrap();
                assert_eq!(worst(&y, &b.roll(&[-by], &[1]).unwrap()), 0.0, "by {by}");
            }
        }
    }
}

/// So large that a thread of a GPU has several rows of a panel, which has fewer columns then.
#[test]
fn large_systems_are_solved() {
    for device in devices() {
        let more: &[usize] = if device.kind() == DeviceKind::Cuda { &[1030, 2100, 4100] } else { &[1030] };
        for dtype in DTYPES {
            for &n in more {
                let far = eye(n, dtype, &device).roll(&[(n / 3) as isize], &[1]).unwrap();
                let a = sample(&[n, n], 0.9, dtype, &device).div_scalar(n as f64).unwrap();
                let a = a.add(&far.mul_scalar(3.0).unwrap()).unwrap();
                let b = sample(&[n, 3], 2.0, dtype, &device);
                let product = a.matmul(&a.solve(&b).unwrap()).unwrap();
                let bound = 200.0 * dtype.epsilon().unwrap();
                assert!(worst(&product, &b) <= bound, "{n} {dtype}: {}", worst(&product, &b));
            }
        }
    }
}

#[test]
fn a_singular_matrix_is_named() {
    for device in own_devices() {
        for (n, column) in [(3, 2), (90, 80)] {
            let x = eye(n, DType::F64, &device).broadcast_to([4, n, n]).unwrap();
            for (wrong, second) in [(0.0, 3), (f64::NAN, 3), (0.0, 2)] {
                let mut x = f64s(&x);
                for matrix in [second, 3] {
                    x[(matrix * n + column) * n + column] = wrong;
                }
                let x = Tensor::from_slice(&x, [4, n, n], &device).unwrap();
                let text = error_of(&device, x.solve(&x)).to_string();
                let of = |matrix| {
                    format!("solve: matrix {matrix} of the batch is singular, which shows at column {column}")
                };
                // Matrices are looked at side by side.
                assert!(text.starts_with(&of(second)) || text.starts_with(&of(3)), "{n}, {wrong}: {text}");
                assert!(error_of(&device, x.inverse()).to_string().starts_with("inverse: matrix "));
            }
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let x = sample(&[2, 4, 4], 0.4, DType::F64, &device);
        let b = sample(&[2, 4, 3], 1.1, DType::F64, &device);
        for t in [&x, &b] {
            t.set_requires_grad(true).unwrap();
        }
        // A definite matrix of any one.
        let matrix = |x: &Tensor| x.matmul(&x.transpose(-2, -1)?)?.add(&eye(4, DType::F64, x.device()));
        gradcheck(|t| matrix(&t[0])?.cholesky()?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        let both = [x.clone(), b.clone()];
        gradcheck(|t| t[1].cholesky_solve(&matrix(&t[0])?.cholesky()?)?.square(), &both, 1e-6).unwrap();
        for upper in [false, true] {
            let full = |x: &Tensor| x.add(&eye(4, DType::F64, x.device()).mul_scalar(3.0)?);
            gradcheck(|t| full(&t[0])?.solve_triangular(&t[1], upper)?.square(), &both, 1e-6).unwrap();
            gradcheck(
                |t| full(&t[0])?.transpose(-2, -1)?.solve_triangular(&t[1], upper)?.square(),
                &both,
                1e-6,
            )
            .unwrap();
        }
        let full = |x: &Tensor| x.add(&eye(4, DType::F64, x.device()).mul_scalar(3.0)?);
        gradcheck(|t| full(&t[0])?.solve(&t[1])?.square(), &both, 1e-6).unwrap();
        gradcheck(|t| full(&t[0])?.inverse()?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        // The gradient of a symmetric matrix is symmetric.
        let s = definite(1, 5, DType::F64, &device).detach();
        s.set_requires_grad(true).unwrap();
        s.cholesky().unwrap().sum(()).unwrap().backward().unwrap();
        let g = s.grad().unwrap();
        assert!(worst(&g.transpose(-2, -1).unwrap(), &g) <= 1e-15);
    }
}

#[test]
fn a_matrix_that_is_not_positive_definite_is_named() {
    for device in own_devices() {
        for (n, row) in [(3, 1), (80, 70)] {
            let x = f64s(&definite(3, n, DType::F64, &device));
            for wrong in [-5.0, f64::NAN, 0.0] {
                let mut x = x.clone();
                // Of the second matrix.
                x[n * n + row * n..][..n].fill(0.0);
                x[n * n + row * (n + 1)] = wrong;
                let x = Tensor::from_slice(&x, [3, n, n], &device).unwrap();
                let error = error_of(&device, x.cholesky());
                let text = error.to_string();
                let expected = format!(
                    "cholesky: matrix 1 of the batch is not positive definite, which shows at row {row};"
                );
                assert!(text.starts_with(&expected) && text.contains("the identity"), "{n}, {wrong}: {text}");
                assert!(matches!(error, Error::InvalidArgument { .. }));
            }
        }
    }
}

#[test]
fn other_operands_are_refused_and_empty_ones_are_not() {
    for device in devices() {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &device).unwrap();
        let f = |shape: &[usize]| zeros(shape, DType::F32);
        assert_eq!(f(&[0, 4, 4]).cholesky().unwrap().dims(), [0, 4, 4]);
        assert_eq!(f(&[2, 0, 0]).cholesky().unwrap().dims(), [2, 0, 0]);
        assert_eq!(f(&[4, 4]).solve_triangular(&f(&[4, 0]), true).unwrap().dims(), [4, 0]);
        assert_eq!(f(&[3, 0, 0]).solve(&f(&[0, 5])).unwrap().dims(), [3, 0, 5]);
        assert_eq!(f(&[2, 0, 0]).inverse().unwrap().dims(), [2, 0, 0]);
        assert_eq!(f(&[3, 0, 0]).solve_triangular(&f(&[0, 5]), true).unwrap().dims(), [3, 0, 5]);
        for x in [f(&[3, 4]), f(&[4]), f(&[])] {
            let text = x.cholesky().unwrap_err().to_string();
            assert!(text.starts_with("cholesky") && text.contains("square"), "{text}");
            assert!(x.inverse().unwrap_err().to_string().starts_with("inverse"));
            let text = x.solve_triangular(&f(&[4, 1]), false).unwrap_err().to_string();
            assert!(text.starts_with("solve_triangular") && text.contains("square"), "{text}");
        }
        for dtype in [DType::F16, DType::BF16, DType::I64] {
            let text = zeros(&[4, 4], dtype).cholesky().unwrap_err().to_string();
            assert!(text.contains("to_dtype"), "{text}");
        }
        for b in [f(&[4]), f(&[3, 1]), f(&[])] {
            let text = f(&[4, 4]).solve_triangular(&b, false).unwrap_err().to_string();
            assert!(text.contains("unsqueeze"), "{text}");
            assert!(f(&[4, 4]).solve(&b).unwrap_err().to_string().contains("unsqueeze"));
            assert!(b.cholesky_solve(&f(&[4, 4])).unwrap_err().to_string().starts_with("cholesky_solve"));
        }
        assert!(f(&[4, 4]).solve_triangular(&zeros(&[4, 1], DType::F64), false).is_err());
        assert!(f(&[2, 4, 4]).solve_triangular(&f(&[3, 4, 1]), false).is_err());
    }
}
