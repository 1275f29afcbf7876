//! Operations that are compositions, and activations: their values against f64 arithmetic of the host, in every float dtype,
//! their gradients against finite differences, and in a recorded step.

mod common;

use common::{FLOATS, devices, tensor, values};
use refrain::{DType, Device, Error, Result, Step, Tensor, gradcheck};

/// Each within `ulps` of the dtype's epsilon, relative to the expected value.
#[track_caller]
fn close(t: &Tensor, expected: &[f64], ulps: f64) {
    let epsilon = t.dtype().epsilon().unwrap();
    let found = values(t);
    assert_eq!(found.len(), expected.len());
    for (i, (&a, &e)) in found.iter().zip(expected).enumerate() {
        // The smallest numbers of a dtype have fewer digits.
        let least = if t.dtype() == DType::F16 { 1e-7 } else { 1e-40 };
        let bound = ulps * epsilon * e.abs() + least;
        assert!(
            a == e || (a - e).abs() <= bound || a.is_nan() && e.is_nan(),
            "{}, {i}: {a}, not {e}",
            t.dtype()
        );
    }
}

/// A function, what it is in f64, and its derivative.
type Function = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64, fn(f64) -> f64);

const FUNCTIONS: [Function; 3] = [
    ("softplus", Tensor::softplus, |v| v.max(0.0) + (-v.abs()).exp().ln_1p(), |v| 1.0 / (1.0 + (-v).exp())),
    (
        "elu",
        |x| x.elu(0.7),
        |v| if v > 0.0 { v } else { 0.7 * v.exp_m1() },
        |v| if v > 0.0 { 1.0 } else { 0.7 * v.exp() },
    ),
    (
        "leaky_relu",
        |x| x.leaky_relu(0.25),
        |v| if v > 0.0 { v } else { 0.25 * v },
        |v| if v > 0.0 { 1.0 } else { 0.25 },
    ),
];

#[test]
fn activations_are_exact_to_the_last_digits_in_every_dtype() {
    let points = [-60.0, -9.5, -1.0, -0.00390625, 0.0, 0.0009765625, 0.5, 3.0, 60.0, f64::NAN];
    for device in devices() {
        for dtype in FLOATS {
            for (name, function, value, slope) in FUNCTIONS {
                let x = tensor(&points, [10], dtype, &device);
                x.set_requires_grad(true).unwrap();
                let y = function(&x).unwrap();
                assert_eq!(y.dtype(), dtype, "{name}");
                let points = values(&x.detach());
                close(&y.detach(), &points.iter().map(|&v| value(v)).collect::<Vec<_>>(), 8.0);
                y.sum(()).unwrap().backward().unwrap();
                let slopes: Vec<f64> = points[..9].iter().map(|&v| slope(v)).collect();
                close(&x.grad().unwrap().narrow(0, 0, 9).unwrap(), &slopes, 8.0);
            }
        }
    }
}

#[test]
fn activations_go_into_memory_that_exists_also_their_own() {
    type Into = fn(&Tensor, &Tensor) -> Result<()>;
    let into: [Into; 3] =
        [|x, to| x.softplus_into(to), |x, to| x.elu_into(0.7, to), |x, to| x.leaky_relu_into(0.25, to)];
    for device in devices() {
        for ((name, function, ..), into) in FUNCTIONS.into_iter().zip(into) {
            let x = tensor(&[-2.0, -0.5, 0.0, 3.0], [2, 2], DType::F32, &device);
            let (expected, to) = (values(&function(&x).unwrap()), x.zeros_like().unwrap());
            into(&x, &to.transpose(0, 1).unwrap()).unwrap();
            assert_eq!(values(&to.transpose(0, 1).unwrap()), expected, "{name} on {device}");
            into(&x, &x).unwrap();
            assert_eq!(values(&x), expected, "{name} in place on {device}");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let leaf = |values: &[f64], shape: &[usize]| {
            let x = tensor(values, shape, DType::F64, &device);
            x.set_requires_grad(true).unwrap();
            x
        };
        let numbers = [-1.4, -0.3, 0.2, 1.7, 0.9, -2.2];
        for (_, function, ..) in FUNCTIONS {
            gradcheck(|x| function(&x[0]), &[leaf(&numbers, &[6])], 1e-6).unwrap();
        }
        gradcheck(|x| x[0].std(1, 1), &[leaf(&numbers, &[2, 3])], 1e-6).unwrap();
        gradcheck(|x| x[0].prod(1), &[leaf(&numbers, &[2, 3])], 1e-6).unwrap();
        gradcheck(
            |x| x[0].transpose(0, 1)?.prod([0, 2]),
            &[leaf(&[numbers, [0.7; 6]].concat(), &[3, 2, 2])],
            1e-6,
        )
        .unwrap();
        // Beside one zero its gradient is the product of the others; beside two, all are 0.
        let x = leaf(&[2.0, 0.0, 5.0, 0.0, 0.0, 3.0], &[2, 3]);
        x.prod(1).unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [0.0, 10.0, 0.0, 0.0, 0.0, 0.0]);
    }
}

#[test]
fn reductions_are_those_of_the_host() {
    for device in devices() {
        for dtype in FLOATS {
            let numbers: Vec<f64> = (0..30).map(|i| f64::from(i % 7) * 0.25 + 0.5).collect();
            let x = tensor(&numbers, [2, 5, 3], dtype, &device);
            // Over the middle axis.
            let line = |o: usize, i: usize| (0..5).map(move |m| (o * 5 + m) * 3 + i);
            let each = |f: &dyn Fn(Vec<f64>) -> f64| -> Vec<f64> {
                (0..6).map(|at| f(line(at / 3, at % 3).map(|i| numbers[i]).collect())).collect()
            };
            close(&x.prod(1).unwrap(), &each(&|v| v.iter().product()), 4.0);
            let std = each(&|v| {
                let mean = v.iter().sum::<f64>() / 5.0;
                (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4.0).sqrt()
            });
            close(&x.std(1, 1).unwrap(), &std, 8.0);
            assert_eq!(x.prod_keepdim(1).unwrap().dims(), [2, 1, 3]);
            assert_eq!(x.std_keepdim([0, 2], 0).unwrap().dims(), [1, 5, 1]);
            // Of powers of two, which every dtype has.
            let powers: Vec<f64> = (0..30).map(|i| [2.0, 0.5, 1.0, -2.0, 1.0][i % 5]).collect();
            let all = tensor(&powers, [2, 5, 3], dtype, &device).prod(()).unwrap();
            assert_eq!((all.dtype(), values(&all)), (dtype, vec![powers.iter().product()]));
        }
        let ids = tensor(&[3.0, -2.0, 7.0, 0.0, 1.0, 9.0], [2, 3], DType::I32, &device);
        let product = ids.prod(1).unwrap();
        assert_eq!((product.dtype(), values(&product)), (DType::I64, vec![-42.0, 0.0]));
        let single = tensor(&[2.0, 3.0], [2, 1], DType::F32, &device);
        assert!(
            !single.prod(1).unwrap().shares_storage(&single),
            "a product of one number is a tensor of its own"
        );
        let empty = tensor(&[], [2, 0], DType::F32, &device);
        assert_eq!(values(&empty.prod(1).unwrap()), [1.0, 1.0]);
        assert_eq!(values(&empty.any(1).unwrap()), [0.0, 0.0]);
        assert_eq!(values(&empty.all(1).unwrap()), [1.0, 1.0]);
        for dtype in DType::ALL {
            let x = tensor(&[0.0, 1.0, 0.0, 0.0, 1.0, 1.0], [3, 2], dtype, &device);
            assert_eq!(values(&x.any(1).unwrap()), [1.0, 0.0, 1.0], "{dtype}");
            assert_eq!(values(&x.all(1).unwrap()), [0.0, 0.0, 1.0], "{dtype}");
            assert_eq!(x.any_keepdim(0).unwrap().dims(), [1, 2]);
            assert_eq!(
                (x.all_keepdim(()).unwrap().dims(), x.all(()).unwrap().dtype()),
                (&[1, 1][..], DType::Bool)
            );
            assert_eq!(
                values(&Tensor::eye(3, dtype, &device).unwrap()),
                [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
            );
            assert!(values(&x.isnan().unwrap()).iter().all(|&v| v == 0.0));
        }
        for dtype in FLOATS {
            let x = tensor(&[f64::NAN, f64::INFINITY, 0.0], [3], dtype, &device);
            assert_eq!(values(&x.isnan().unwrap()), [1.0, 0.0, 0.0]);
            assert_eq!(values(&x.any(()).unwrap()), [1.0]);
        }
    }
}

#[test]
fn numbers_at_equal_distances_begin_and_end_where_they_should() {
    for device in devices() {
        for dtype in FLOATS {
            for (start, end, count) in
                [(0.0, 1.0, 50), (3.0, -2.0, 8), (0.1, 0.7, 1), (1.0, 2.0, 0), (-1.0, 1.0, 2)]
            {
                let x = Tensor::linspace(start, end, count, dtype, &device).unwrap();
                let part = |i: usize| i as f64 / (count.max(2) - 1) as f64;
                let bound = 2.0 * dtype.epsilon().unwrap() * f64::max(start.abs(), end.abs());
                for (i, &found) in values(&x).iter().enumerate() {
                    let expected = start + (end - start) * part(i);
                    assert!(
                        (found - expected).abs() <= bound,
                        "{dtype}, {i} of {count}: {found}, not {expected}"
                    );
                }
                assert_eq!(x.dims(), [count]);
                if count > 1 {
                    let ends = tensor(&[start, end], [2], dtype, &device);
                    assert_eq!([values(&x)[0], values(&x)[count - 1]], values(&ends)[..]);
                }
            }
        }
    }
    let device = Device::cpu();
    let refused = Tensor::linspace(0.0, 1.0, 3, DType::I64, &device);
    assert!(matches!(refused, Err(Error::Unsupported { op: "linspace", .. })));
    for (start, end) in [(f64::NAN, 1.0), (0.0, f64::INFINITY), (-1e308, 1e308)] {
        let refused = Tensor::linspace(start, end, 3, DType::F32, &device);
        assert!(matches!(refused, Err(Error::InvalidArgument { op: "linspace", .. })));
    }
    let ids = Tensor::ones([2], DType::I64, &device).unwrap();
    let named: [(&str, Result<Tensor>); 4] = [
        ("softplus", ids.softplus()),
        ("elu", ids.elu(1.0)),
        ("leaky_relu", ids.leaky_relu(0.1)),
        ("std", ids.std((), 0)),
    ];
    for (name, result) in named {
        assert!(matches!(&result, Err(Error::Unsupported { op, .. }) if *op == name), "{name}: {result:?}");
    }
}

#[test]
fn recorded_compositions_have_the_bits_of_eager_ones() {
    for device in devices() {
        let run = |x: &Tensor| -> Result<Vec<Tensor>> {
            let x = x.detach();
            x.set_requires_grad(true)?;
            let sum = (x.softplus()? + x.elu(0.3)?)?.add(&x.leaky_relu(0.1)?)?;
            let loss = (sum.prod(1)?.sum(())? + sum.std((), 1)?)?;
            loss.backward()?;
            let grad = x.grad().expect("a gradient").copy()?;
            let line = Tensor::linspace(0.0, 2.0, 6, DType::F32, x.device())?;
            let marked = x.isnan()?.any(0)?.to_dtype(DType::F32)?;
            Ok(vec![loss.detach(), grad, line, marked, Tensor::eye(2, DType::F32, x.device())?])
        };
        let mut step = Step::new(&device, |x| Ok(run(&x[0])?));
        for i in 0..4 {
            let x = tensor(&[-0.7, 0.2, 1.9, -2.0 + f64::from(i), 0.4, 1.1], [2, 3], DType::F32, &device);
            let eager: Vec<Vec<u64>> =
                run(&x).unwrap().iter().map(|t| values(t).iter().map(|v| v.to_bits()).collect()).collect();
            let outputs = step.call(&[x]).unwrap();
            for (o, expected) in eager.iter().enumerate() {
                let found: Vec<u64> =
                    outputs.to_vec::<f32>(o).unwrap().iter().map(|&v| f64::from(v).to_bits()).collect();
                assert_eq!(&found, expected, "{device}, output {o}");
            }
        }
        step.finish().unwrap();
    }
}

#[test]
fn quantiles_lie_at_or_between_sorted_elements() {
    for device in devices() {
        let x = tensor(&[4.0, 1.0, 3.0, 9.0, -2.0, 8.0], [2, 3], DType::F64, &device);
        assert_eq!(values(&x.median(1).unwrap()), [3.0, 8.0]);
        assert_eq!(values(&x.median(0).unwrap()), [4.0, -2.0, 3.0]);
        assert_eq!(values(&x.quantile(0.0, -1).unwrap()), [1.0, -2.0]);
        assert_eq!(values(&x.quantile(1.0, 1).unwrap()), [4.0, 9.0]);
        close(&x.quantile(0.25, 0).unwrap(), &[5.25, -1.25, 4.25], 2.0);
        close(&x.quantile(0.9, 1).unwrap(), &[3.8, 8.8], 2.0);
        assert_eq!(values(&x.to_dtype(DType::I32).unwrap().median(1).unwrap()), [3.0, 8.0]);
        for dtype in FLOATS {
            // Between two elements, of 16 bits too, a quantile is rounded once.
            let y = tensor(&[257.0, 1.0], [2], DType::F64, &device).to_dtype(dtype).unwrap();
            let top = values(&y)[0];
            let expected =
                tensor(&[1.0 + (top - 1.0) * 0.3], [], DType::F64, &device).to_dtype(dtype).unwrap();
            close(&y.quantile(0.3, 0).unwrap(), &values(&expected), 1.0);
            let y = tensor(&[1.0, f64::NAN, 2.0, 3.0], [2, 2], dtype, &device);
            let (median, quantile) = (values(&y.median(1).unwrap()), values(&y.quantile(0.0, 1).unwrap()));
            assert!(median[0].is_nan() && median[1] == 2.0, "{median:?}");
            assert!(quantile[0].is_nan() && quantile[1] == 2.0, "{quantile:?}");
        }
        x.set_requires_grad(true).unwrap();
        gradcheck(|t| t[0].quantile(0.4, 0)?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        gradcheck(|t| t[0].median(1)?.square(), &[x.clone()], 1e-6).unwrap();
        for q in [-0.1, 1.5, f64::NAN] {
            let error = x.quantile(q, 0).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("from 0 to 1"), "{error}");
        }
        let infinite = tensor(&[3.0, f64::INFINITY, f64::INFINITY], [3], DType::F32, &device);
        assert_eq!(values(&infinite.quantile(0.25, 0).unwrap()), [f64::INFINITY]);
        assert_eq!(values(&infinite.quantile(0.75, 0).unwrap()), [f64::INFINITY]);
        let far = tensor(&[-3e38, 3e38], [2], DType::F32, &device);
        assert_eq!(values(&far.quantile(0.5, 0).unwrap()), [0.0]);
        // Equal elements share the gradient.
        let equal = tensor(&[1.0, 1.0], [2], DType::F64, &device);
        equal.set_requires_grad(true).unwrap();
        equal.quantile(0.5, 0).unwrap().backward().unwrap();
        assert_eq!(values(&equal.grad().unwrap()), [0.5, 0.5]);
        let none = x.detach().narrow(1, 0, 0).unwrap();
        assert!(none.median(1).unwrap_err().to_string().contains("no elements"));
        assert_eq!(none.median(0).unwrap().dims(), [0]);
        assert!(x.median(2).is_err());
    }
}
