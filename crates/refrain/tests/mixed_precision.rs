//! Mixed precision: the dtypes that operations accept and return, and that f32 operations keep the precision of f32.

mod common;

use common::{devices, kernels, shortened, simulators, tensor, values};
use refrain::{
    Activation, DType, Device, DeviceKind, Error, Precision, Result, Step, Tensor, no_grad, with_precision,
};

use DType::{BF16, F16, F32, F64};

/// Numbers from -1 to 1 without a pattern.
fn numbers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + i * i % 613) % 2003) as f64 / 1001.0 - 1.0).collect()
}

/// A leaf of such numbers, rounded to a dtype.
fn leaf(shape: &[usize], seed: usize, dtype: DType, device: &Device) -> Tensor {
    let t = tensor(&numbers(shape.iter().product(), seed), shape, dtype, device);
    t.set_requires_grad(true).unwrap();
    t
}

/// The values that a product in `dtype` uses of a tensor, in f64.
fn factors(t: &Tensor, dtype: DType) -> Tensor {
    let rounded = t.detach().to_dtype(dtype).unwrap().to_dtype(F64).unwrap();
    rounded.set_requires_grad(true).unwrap();
    rounded
}

fn detached(t: &Tensor) -> Vec<f64> {
    values(&t.detach())
}

/// Each is within `relative` of the largest of `expected`, or of one of the numbers themselves.
#[track_caller]
fn assert_near(what: &str, actual: &Tensor, expected: &Tensor, relative: f64) {
    let (actual, expected) = (detached(actual), detached(expected));
    assert_eq!(actual.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
        assert!((a - e).abs() <= relative * scale, "{what}: {a} for {e} at {i}, of {scale} at most");
    }
}

/// For f32 sums of exact operands: nothing was rounded to 8 bits.
const EXACT: f64 = 1e-5;

fn close(dtype: DType) -> f64 {
    match dtype {
        BF16 => 1.0 / 128.0,
        F16 => 1.0 / 1024.0,
        _ => EXACT,
    }
}

/// The result is the sum of exact products, rounded once. All elements are equal, except the few whose sum is halfway
/// between two numbers.
#[track_caller]
fn assert_rounded_once(what: &str, actual: &Tensor, expected: &Tensor) {
    assert_near(what, actual, expected, close(actual.dtype()));
    let (actual, expected) = (actual.detach(), expected.detach().to_dtype(actual.dtype()).unwrap());
    let (actual, expected) = (values(&actual), values(&expected));
    let other = actual.iter().zip(&expected).filter(|(a, e)| a != e).count();
    assert!(other * 50 <= actual.len(), "{what}: {other} of {} are not the rounded sums", actual.len());
}

/// Dtypes of x, weight, bias and residual; the setting; the result's dtype.
const LINEARS: [(DType, DType, DType, DType, Precision, DType); 11] = [
    (F32, F32, F32, F32, Precision::Bf16, BF16),
    (F32, F32, F32, BF16, Precision::Bf16, BF16),
    (BF16, F32, F32, BF16, Precision::Bf16, BF16),
    (BF16, F32, F32, F32, Precision::Bf16, BF16),
    (BF16, BF16, F32, BF16, Precision::Bf16, BF16),
    (F32, BF16, BF16, BF16, Precision::Bf16, BF16),
    (BF16, F32, F32, BF16, Precision::F32, BF16),
    (BF16, F32, BF16, BF16, Precision::F32, BF16),
    (F16, F32, F32, F16, Precision::F32, F16),
    (F16, F32, F16, F16, Precision::Bf16, F16),
    (F64, F64, F64, F64, Precision::Bf16, F64),
];

#[test]
fn linear_rounds_factors_once_and_keeps_the_gradients_of_f32_in_f32() {
    for device in kernels() {
        // Of whole tiles and vectors, of odd sizes, of few columns, and of a sum so long that it is cut.
        let sizes = [(70, 40, 24), (33, 19, 37), (50, 64, 3), (2500, 16, 64), (300, 256, 136)];
        for (turn, (m, k, n)) in sizes.into_iter().enumerate() {
            for (x, w, b, r, precision, y) in shortened(LINEARS, turn, 3) {
                let what = format!("{x} {w} {b} {r} under {precision:?}, {m} x {k} x {n}");
                let leaves = [
                    leaf(&[m, k], 1, x, &device),
                    leaf(&[n, k], 2, w, &device),
                    leaf(&[n], 3, b, &device),
                    leaf(&[m, n], 4, r, &device),
                ];
                let [x, w, b, r] = &leaves;
                let out = with_precision(precision, || x.linear(w, Some(b), Activation::None, Some(r)));
                let out = out.unwrap();
                assert_eq!(out.dtype(), y, "{what}");
                // As in autocast, a bias is rounded with the weight.
                let added = if precision == Precision::Bf16 && y == BF16 { BF16 } else { F64 };
                let exact = [factors(x, y), factors(w, y), factors(b, added), factors(r, F64)];
                let [ex, ew, eb, er] = &exact;
                let expected = ex.linear(ew, Some(eb), Activation::None, Some(er)).unwrap();
                match y {
                    F64 => assert_near(&what, &out, &expected, EXACT),
                    _ => assert_rounded_once(&what, &out, &expected),
                }

                let dy = tensor(&numbers(m * n, 5), [m, n], y, &device);
                out.backward_with(&dy).unwrap();
                expected.backward_with(&dy.to_dtype(F64).unwrap()).unwrap();
                for ((leaf, exact), name) in leaves.iter().zip(&exact).zip(["dx", "dw", "db", "dr"]) {
                    let (grad, expected) = (leaf.grad().unwrap(), exact.grad().unwrap());
                    assert_eq!(grad.dtype(), leaf.dtype(), "{name} of {what}");
                    assert_near(&format!("{name} of {what}"), &grad, &expected, close(leaf.dtype()));
                }
                // A second pass adds to the existing values.
                let out = with_precision(precision, || x.linear(w, Some(b), Activation::None, None)).unwrap();
                out.backward_with(&dy).unwrap();
                let twice = ew.grad().unwrap().mul_scalar(2.0).unwrap();
                assert_near(&what, &w.grad().unwrap(), &twice, close(w.dtype()));
            }
        }
    }
}

#[test]
fn an_activation_is_applied_before_the_one_rounding() {
    for device in kernels() {
        let (x, w) = (leaf(&[40, 32], 1, F32, &device), leaf(&[48, 32], 2, F32, &device));
        let (b, r) = (leaf(&[48], 3, F32, &device), leaf(&[40, 48], 4, BF16, &device));
        for activation in [Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu] {
            [&x, &w, &b, &r].iter().for_each(|t| t.zero_grad().unwrap());
            let y = with_precision(Precision::Bf16, || x.linear(&w, Some(&b), activation, Some(&r))).unwrap();
            let exact = [factors(&x, BF16), factors(&w, BF16), factors(&b, BF16), factors(&r, F64)];
            let [ex, ew, eb, er] = &exact;
            let expected = ex.linear(ew, Some(eb), activation, Some(er)).unwrap();
            assert_rounded_once(&format!("{activation:?}"), &y, &expected);
            y.backward_with(&y.detach().ones_like().unwrap()).unwrap();
            expected.backward_with(&expected.detach().ones_like().unwrap()).unwrap();
            for (leaf, exact) in [&x, &w, &b, &r].iter().zip(&exact) {
                let grad = leaf.grad().unwrap();
                assert_eq!(grad.dtype(), leaf.dtype());
                // The factor is the rounded gradient of the activation's input.
                assert_near(&format!("{activation:?}"), &grad, &exact.grad().unwrap(), 2.0 * close(BF16));
            }
        }
    }
}

/// Two weights and a bias in one storage, like the parameters of a model.
fn parameters(device: &Device) -> (Tensor, [Tensor; 3]) {
    let flat = tensor(&numbers(8 * 16 + 4 * 16 + 8, 9), [200], F32, device);
    let part = |from: usize, shape: &[usize]| {
        let t = flat.narrow(0, from, shape.iter().product()).unwrap().reshape(shape).unwrap().detach();
        t.set_requires_grad(true).unwrap();
        t
    };
    (flat.clone(), [part(0, &[8, 16]), part(128, &[4, 16]), part(192, &[8])])
}

#[test]
fn parameters_of_one_storage_are_rounded_by_one_launch_for_as_long_as_they_stay_as_they_are() {
    for device in kernels() {
        let (flat, [first, second, bias]) = parameters(&device);
        let x = tensor(&numbers(6 * 16, 1), [6, 16], BF16, &device);
        let layers = || {
            let y = x.linear(&first, Some(&bias), Activation::None, None)?;
            x.linear(&second, None, Activation::None, None)?;
            Ok::<_, Error>(y)
        };
        let mut step = Step::new(&device, |_| {
            no_grad(|| {
                let before = [layers()?, layers()?];
                with_precision(Precision::F32, layers)?;
                let between = layers()?;
                flat.mul_scalar_assign(-3.0)?;
                Ok([before.to_vec(), vec![between, layers()?]].concat())
            })
        });
        let before = [&first, &bias].map(|t| factors(t, BF16));
        let outputs = with_precision(Precision::Bf16, || step.call(&[])).unwrap();
        let after = [&first, &bias].map(|t| factors(t, BF16));
        for (i, [w, b]) in [&before, &before, &before, &after].into_iter().enumerate() {
            let y = outputs.copy(i).unwrap();
            let expected = factors(&x, BF16).linear(w, Some(b), Activation::None, None).unwrap();
            assert_rounded_once(&format!("layer {i}"), &y, &expected);
        }
        let table = step.program().unwrap().to_string();
        // A fused launch names its parts once more on their own lines.
        let parts = table.lines().filter(|line| !line.contains("fused("));
        let rounded: usize = parts.map(|line| line.matches("to_dtype").count()).sum();
        assert_eq!(rounded, 2, "before and after the write\n{table}");
        step.finish().unwrap();
    }
}

#[test]
fn what_was_rounded_ends_with_the_setting() {
    // Devices of this test alone; otherwise allocations of other tests on the CPU would be counted too.
    for device in simulators() {
        let (flat, [w, ..]) = parameters(&device);
        let x = tensor(&numbers(6 * 16, 1), [6, 16], BF16, &device);
        let begun = device.stats().live_bytes;
        with_precision(Precision::Bf16, || {
            drop(x.linear(&w, None, Activation::None, None).unwrap());
            assert_eq!(device.stats().live_bytes - begun, flat.numel() * BF16.size());
        });
        assert_eq!(device.stats().live_bytes, begun);
    }
}

#[test]
fn a_backward_pass_reads_what_the_forward_pass_rounded() {
    for device in kernels() {
        let (flat, [w, ..]) = parameters(&device);
        let x = leaf(&[6, 16], 1, BF16, &device);
        let exact = [factors(&x, BF16), factors(&w, BF16)];
        let dy = tensor(&numbers(6 * 8, 2), [6, 8], BF16, &device);
        with_precision(Precision::Bf16, || {
            let y = x.linear(&w, None, Activation::None, None).unwrap();
            no_grad(|| flat.fill(7.0)).unwrap();
            y.backward_with(&dy).unwrap();
        });
        let expected = exact[0].linear(&exact[1], None, Activation::None, None).unwrap();
        expected.backward_with(&dy.to_dtype(F64).unwrap()).unwrap();
        for (leaf, exact) in [&x, &w].iter().zip(&exact) {
            assert_near("a gradient", &leaf.grad().unwrap(), &exact.grad().unwrap(), close(leaf.dtype()));
        }
    }
}

#[test]
fn matmul_gives_bf16_and_gradients_of_its_operands_dtypes() {
    let shapes: [([&[usize]; 2], bool); 5] = [
        ([&[3, 40, 24], &[3, 24, 32]], false),
        ([&[5, 7], &[7, 9]], false),
        ([&[2, 3, 17, 8], &[2, 3, 17, 8]], true),
        ([&[4, 20, 16], &[16, 30]], false),
        ([&[1, 64], &[64, 2]], false),
    ];
    for device in kernels() {
        for ([a_shape, b_shape], transposed) in shapes {
            for (a, b, precision) in [
                (F32, F32, Precision::Bf16),
                (BF16, F32, Precision::Bf16),
                (F32, BF16, Precision::Bf16),
                (BF16, BF16, Precision::F32),
            ] {
                let what = format!("{a_shape:?} of {a} by {b_shape:?} of {b}");
                let (a, b) = (leaf(a_shape, 1, a, &device), leaf(b_shape, 2, b, &device));
                let product = |a: &Tensor, b: &Tensor| match transposed {
                    true => a.matmul(&b.transpose(-2, -1)?),
                    false => a.matmul(b),
                };
                let y = with_precision(precision, || product(&a, &b)).unwrap();
                assert_eq!(y.dtype(), BF16, "{what}");
                let (ea, eb) = (factors(&a, BF16), factors(&b, BF16));
                let expected = product(&ea, &eb).unwrap();
                assert_rounded_once(&what, &y, &expected);
                let dy = tensor(&numbers(y.numel(), 3), y.shape().clone(), BF16, &device);
                y.backward_with(&dy).unwrap();
                expected.backward_with(&dy.to_dtype(F64).unwrap()).unwrap();
                for (leaf, exact) in [(&a, &ea), (&b, &eb)] {
                    let grad = leaf.grad().unwrap();
                    assert_eq!(grad.dtype(), leaf.dtype(), "{what}");
                    assert_near(&what, &grad, &exact.grad().unwrap(), close(leaf.dtype()));
                }
            }
        }
    }
}

/// A norm of `x` with its parameters.
type Norm = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

#[test]
fn norms_of_halves_keep_parameters_and_statistics_in_f32() {
    fn batch(x: &Tensor, weight: &Tensor, bias: &Tensor, training: bool) -> Result<Tensor> {
        let (mean, var) = (weight.detach().zeros_like()?, weight.detach().ones_like()?);
        x.batch_norm(weight, bias, &mean, &var, -1, training, 0.1, 1e-5)
    }
    let norms: [(&str, Norm); 4] = [
        ("layer_norm", |x, w, b| x.layer_norm(w, b, 1e-5)),
        ("rms_norm", |x, w, _| x.rms_norm(w, 1e-5)),
        ("batch_norm", |x, w, b| batch(x, w, b, true)),
        ("batch_norm in evaluation", |x, w, b| batch(x, w, b, false)),
    ];
    for device in kernels() {
        for (name, norm) in norms {
            for (half, width) in [(BF16, 16), (BF16, 128), (F16, 24), (BF16, 37), (BF16, 1500)] {
                let what = format!("{name} of {half}, {width} wide");
                let x = leaf(&[3, 50, width], 1, half, &device);
                let (w, b) = (leaf(&[width], 2, F32, &device), leaf(&[width], 3, F32, &device));
                let (ex, ew, eb) = (factors(&x, half), factors(&w, F64), factors(&b, F64));
                let (y, expected) = (norm(&x, &w, &b).unwrap(), norm(&ex, &ew, &eb).unwrap());
                assert_eq!(y.dtype(), half, "{what}");
                assert_near(&what, &y, &expected, close(half));
                let dy = tensor(&numbers(y.numel(), 4), y.shape().clone(), half, &device);
                y.backward_with(&dy).unwrap();
                expected.backward_with(&dy.to_dtype(F64).unwrap()).unwrap();
                for (leaf, exact) in [(&x, &ex), (&w, &ew), (&b, &eb)] {
                    let Some(grad) = leaf.grad() else {
                        assert_eq!(name, "rms_norm");
                        continue;
                    };
                    assert_eq!(grad.dtype(), leaf.dtype(), "{what}");
                    assert_near(&what, &grad, &exact.grad().unwrap(), 4.0 * close(leaf.dtype()));
                }
            }
        }
        // Running statistics change as those of the same elements in f64 do, also for channels in the middle.
        let x = leaf(&[6, 5, 70], 1, BF16, &device);
        let run = |x: &Tensor, dtype: DType| {
            let of = |v: f64| Tensor::full([5], v, dtype, &device).unwrap();
            let (mean, var) = (of(0.25), of(2.0));
            x.detach().batch_norm(&of(1.0), &of(0.0), &mean, &var, 1, true, 0.1, 1e-5).unwrap();
            [mean, var]
        };
        for (actual, expected) in run(&x, F32).iter().zip(&run(&factors(&x, F64), F64)) {
            assert_near("running statistics", actual, expected, EXACT);
        }
    }
}

/// A loss of a prediction and a target.
type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;

#[test]
fn losses_of_bf16_are_f32() {
    let losses: [(&str, Loss); 4] = [
        ("mse", |x, t| x.mse_loss(t)),
        ("mae", |x, t| x.l1_loss(t)),
        ("huber", |x, t| x.huber_loss(t, 0.5)),
        ("quantile", |x, t| x.reshape([300, 3])?.quantile_loss(&t.narrow(0, 0, 300)?, &[0.1, 0.5, 0.9])),
    ];
    for device in kernels() {
        for (name, loss) in losses {
            for (x, t) in [(BF16, F32), (BF16, BF16), (F32, BF16)] {
                let what = format!("{name} of {x} and {t}");
                let (x, t) = (leaf(&[900], 1, x, &device), leaf(&[900], 2, t, &device));
                let (ex, et) = (factors(&x, F64), factors(&t, F64));
                let y = with_precision(Precision::Bf16, || loss(&x, &t)).unwrap();
                let expected = loss(&ex, &et).unwrap();
                assert_eq!(y.dtype(), F32, "{what}");
                assert_near(&what, &y, &expected, EXACT);
                y.backward().unwrap();
                expected.backward().unwrap();
                for (leaf, exact) in [(&x, &ex), (&t, &et)] {
                    let grad = leaf.grad().unwrap();
                    assert_eq!(grad.dtype(), leaf.dtype(), "{what}");
                    assert_near(&what, &grad, &exact.grad().unwrap(), close(leaf.dtype()));
                }
            }
        }
        for classes in [3, 1200] {
            let x = leaf(&[20, classes], 1, BF16, &device);
            let ids: Vec<i64> = (0..20).map(|i| i * 7 % classes as i64).collect();
            let ids = Tensor::from_slice(&ids, [20], &device).unwrap();
            let exact = factors(&x, F64);
            let y = with_precision(Precision::Bf16, || x.cross_entropy_smoothed(&ids, 0.1)).unwrap();
            let expected = exact.cross_entropy_smoothed(&ids, 0.1).unwrap();
            assert_eq!(y.dtype(), F32);
            assert_near("cross entropy", &y, &expected, EXACT);
            y.backward().unwrap();
            expected.backward().unwrap();
            let grad = x.grad().unwrap();
            assert_eq!(grad.dtype(), BF16);
            assert_near("gradient of cross entropy", &grad, &exact.grad().unwrap(), close(BF16));
        }
    }
}

#[test]
fn attention_of_f32_gives_bf16() {
    for device in kernels() {
        let [q, k, v] = [1, 2, 3].map(|seed| leaf(&[2, 3, 9, 8], seed, F32, &device));
        let y = with_precision(Precision::Bf16, || q.scaled_dot_product_attention(&k, &v, None, false));
        let y = y.unwrap();
        assert_eq!(y.dtype(), BF16);
        let exact = [&q, &k, &v].map(|t| factors(t, BF16));
        let expected = exact[0].scaled_dot_product_attention(&exact[1], &exact[2], None, false).unwrap();
        assert_near("attention", &y, &expected, close(BF16));
        y.backward_with(&y.detach().ones_like().unwrap()).unwrap();
        assert!([&q, &k, &v].iter().all(|t| t.grad().is_some_and(|g| g.dtype() == F32)));
    }
}

#[test]
fn other_mixtures_remain_errors() {
    let device = Device::cpu();
    let zeros = |dtype: DType, shape: &[usize]| Tensor::zeros(shape, dtype, &device).unwrap();
    let (f, b, h) = (zeros(F32, &[4, 4]), zeros(BF16, &[4, 4]), zeros(F16, &[4, 4]));
    let linear = |x: &Tensor, w: &Tensor, r: Option<&Tensor>| x.linear(w, None, Activation::None, r);
    #[track_caller]
    fn refused(result: Result<Tensor>, op: &str, dtypes: [DType; 2]) {
        match result {
            Err(Error::DTypeMismatch { op: by, lhs, rhs, .. }) => assert_eq!((by, [lhs, rhs]), (op, dtypes)),
            other => panic!("{op}: {other:?}"),
        }
    }
    refused(linear(&f, &b, None), "linear", [F32, BF16]);
    refused(linear(&b, &h, None), "linear", [BF16, F16]);
    refused(linear(&b, &f, Some(&f)), "linear", [BF16, F32]);
    refused(f.matmul(&b), "matmul", [F32, BF16]);
    refused(b.mse_loss(&f), "mse_loss", [BF16, F32]);
    refused(b.add(&f), "add", [BF16, F32]);
    refused(f.layer_norm(&zeros(BF16, &[4]), &zeros(BF16, &[4]), 1e-5), "layer_norm", [F32, BF16]);
    refused(b.layer_norm(&zeros(F32, &[4]), &zeros(BF16, &[4]), 1e-5), "layer_norm", [F32, BF16]);
    refused(b.layer_norm(&zeros(F64, &[4]), &zeros(F64, &[4]), 1e-5), "layer_norm", [BF16, F64]);
    let (q, k) = (zeros(F32, &[1, 2, 4]), zeros(BF16, &[1, 2, 4]));
    refused(q.scaled_dot_product_attention(&k, &k, None, false), "scaled_dot_product_attention", [F32, BF16]);
    with_precision(Precision::Bf16, || {
        refused(h.add(&f), "add", [F16, F32]);
        refused(linear(&h, &b, None), "linear", [F16, BF16]);
        refused(h.matmul(&f), "matmul", [F16, F32]);
        refused(h.mse_loss(&f), "mse_loss", [F16, F32]);
        refused(zeros(F64, &[4, 4]).matmul(&f), "matmul", [F64, F32]);
        let into = f.matmul_into(&f, &zeros(F32, &[4, 4]));
        assert!(matches!(into, Err(Error::DTypeMismatch { op: "matmul", .. })), "{into:?}");
    });
}

#[test]
fn rows_of_halves_are_those_of_f32_rounded_once() {
    type Rows = fn(&Tensor) -> Result<Tensor>;
    let along_rows: [(&str, Rows); 4] = [
        ("softmax", |x| x.softmax(1)),
        ("log_softmax", |x| x.log_softmax(1)),
        ("softmax of columns", |x| x.softmax(0)),
        ("layer_norm", |x| {
            let ones = Tensor::full([x.dims()[1]], 1.0, x.dtype(), x.device())?;
            x.layer_norm(&ones, &ones, 1e-5)
        }),
    ];
    // Several rows are converted at a time, or one that is longer than that.
    for (rows, width) in [(600, 7), (3, 3000)] {
        for (dtype, (name, f)) in [BF16, F16].into_iter().flat_map(|dtype| along_rows.map(|f| (dtype, f))) {
            let whole = leaf(&[rows, width + 3], 1, dtype, &Device::cpu()).detach();
            for x in [whole.narrow(1, 2, width).unwrap(), whole.narrow(1, 2, width).unwrap().copy().unwrap()]
            {
                let expected = f(&x.to_dtype(F32).unwrap()).unwrap().to_dtype(dtype).unwrap();
                let what = format!("{name} of {rows} x {width} in {dtype}");
                assert_eq!(values(&f(&x).unwrap()), values(&expected), "{what}");
            }
        }
    }
}

#[test]
fn functions_of_halves_are_those_of_f32_rounded_once() {
    type Function = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let functions: [(&str, Function); 18] = [
        ("add", |a, b| a.add(b)),
        ("sub", |a, b| a.sub(b)),
        ("mul", |a, b| a.mul(b)),
        ("div", |a, b| a.div(b)),
        ("maximum", |a, b| a.maximum(b)),
        ("minimum", |a, b| b.minimum(a)),
        ("scalar_sub", |_, b| b.scalar_sub(1.5)),
        ("div_scalar", |_, b| b.div_scalar(3.0)),
        ("maximum_scalar", |_, b| b.maximum_scalar(0.75)),
        ("relu", |_, b| b.relu()),
        ("clamp", |_, b| b.clamp(-0.5, 2.0)),
        ("leaky_relu", |_, b| b.leaky_relu(0.25)),
        ("sqrt", |_, b| b.sqrt()),
        ("rsqrt", |_, b| b.rsqrt()),
        ("reciprocal", |_, b| b.reciprocal()),
        ("round", |_, b| b.round()),
        ("exp", |_, b| b.exp()),
        ("sigmoid", |_, b| b.sigmoid()),
    ];
    let device = Device::cpu();
    let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
    for dtype in [BF16, F16] {
        // Every number, and a last register that is not full.
        let bits = (0..=u16::MAX).chain(0..37);
        let number = |bits: u16| match dtype {
            F16 => half::f16::from_bits(bits).to_f32(),
            _ => half::bf16::from_bits(bits).to_f32(),
        };
        let all: Vec<f32> = bits.map(number).collect();
        let all = Tensor::from_slice(&all, [all.len()], &device).unwrap().to_dtype(dtype).unwrap();
        let whole = leaf(&[70, 150], 1, dtype, &device).detach();
        let other = leaf(&[70, 150], 2, dtype, &device).detach();
        let square = leaf(&[70, 70], 3, dtype, &device).detach();
        let operands = [
            ("all numbers", all.flip(0).unwrap(), all.clone()),
            ("a matrix", other.clone(), whole.clone()),
            ("narrowed", other.narrow(1, 3, 133).unwrap(), whole.narrow(1, 5, 133).unwrap()),
            ("a row", whole.narrow(0, 3, 1).unwrap(), whole.clone()),
            ("a column", whole.narrow(1, 3, 1).unwrap(), whole.clone()),
            ("a column first", whole.clone(), whole.narrow(1, 3, 1).unwrap()),
            ("transposed", square.transpose(0, 1).unwrap(), square.clone()),
        ];
        for ((what, a, b), (name, f)) in operands.iter().flat_map(|o| functions.map(|f| (o, f))) {
            let wide = |x: &Tensor| x.to_dtype(F32).unwrap();
            let expected = f(&wide(a), &wide(b)).unwrap().to_dtype(dtype).unwrap();
            let (actual, expected) = (values(&f(a, b).unwrap()), values(&expected));
            let differs = actual.iter().zip(&expected).position(|(&a, &e)| !same(a, e));
            assert_eq!(differs, None, "{name} of {what} in {dtype}");
        }
    }
}

#[test]
fn gradients_of_rows_of_halves_are_those_of_f32_rounded_once() {
    for (dtype, (rows, width)) in [(BF16, (600, 7)), (F16, (600, 7)), (BF16, (3, 3000)), (F16, (3, 3000))] {
        let device = Device::cpu();
        let ids: Vec<i64> = (0..rows as i64).map(|i| i * 5 % width as i64).collect();
        let ids = Tensor::from_slice(&ids, [rows], &device).unwrap();
        let (halves, weights) =
            (leaf(&[rows, width], 2, dtype, &device), leaf(&[rows, width], 3, dtype, &device));
        let gradients = |dtype: DType| {
            let leaf = || {
                let x = halves.detach().to_dtype(dtype).unwrap().copy().unwrap();
                x.set_requires_grad(true).unwrap();
                x
            };
            let (normed, logits) = (leaf(), leaf());
            let ones = Tensor::full([width], 1.0, dtype, &device).unwrap();
            let weighted = normed.layer_norm(&ones, &ones, 1e-5).unwrap();
            let weights = weights.detach().to_dtype(dtype).unwrap();
            weighted.mul(&weights).unwrap().sum(()).unwrap().backward().unwrap();
            logits.cross_entropy(&ids).unwrap().backward().unwrap();
            [normed.grad().unwrap(), logits.grad().unwrap()]
        };
        for (half, whole) in gradients(dtype).iter().zip(gradients(F32)) {
            assert_eq!(values(half), values(&whole.to_dtype(dtype).unwrap()), "{rows} x {width} in {dtype}");
        }
    }
}

#[test]
fn in_tf32_the_activation_of_a_less_wide_layer_with_long_sums_is_an_operation_of_its_own_too() {
    for device in devices().filter(|device| device.kind() != DeviceKind::Cpu) {
        let launches = |dtype: DType, rows: usize, [outputs, inputs]: [usize; 2]| {
            let [x, w] = [[rows, inputs], [outputs, inputs]]
                .map(|shape| Tensor::full(shape, 0.01, dtype, &device).unwrap());
            let mut step = Step::new(&device, |_| {
                Ok(vec![with_precision(Precision::Tf32, || x.linear(&w, None, Activation::Gelu, None))?])
            });
            step.call(&[]).unwrap();
            step.program().unwrap().recorded_launches()
        };
        assert_eq!([launches(F32, 2048, [1024, 256]), launches(F32, 2047, [1024, 256])], [2, 1], "{device}");
        assert_eq!(launches(F32, 4096, [1024, 128]), 1, "short sums: {device}");
        assert_eq!(launches(F32, 2100, [1026, 256]), 1, "rows that are not for the library: {device}");
        assert_eq!(launches(BF16, 2048, [1024, 256]), 1, "not rounded to TF32: {device}");
    }
}

/// Small whole numbers, whose products and sums every dtype and precision has exactly.
fn whole(shape: &[usize], step: usize, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..n).map(|i| (i * step % 7) as f64 - 3.0).collect();
    tensor(&numbers, shape, F32, device)
}

#[test]
fn wide_layers_whose_rows_begin_anywhere_have_the_bits_of_exact_sums() {
    // Rows of 1,025 and 1,027 numbers, whose sums are long enough for a GPU to copy them to rows of whole pieces.
    let results = |device: &Device, dtype: DType, precision: Precision| {
        let [x, w] = [([1100, 1025], 3), ([1027, 1025], 5)].map(|(shape, step)| {
            let t = whole(&shape, step, device);
            t.set_requires_grad(true).unwrap();
            t
        });
        with_precision(precision, || {
            let y = x.to_dtype(dtype).unwrap().linear(&w, None, Activation::None, None).unwrap();
            y.backward_with(&whole(&[1100, 1027], 2, device).to_dtype(y.dtype()).unwrap()).unwrap();
            [y.detach(), x.grad().unwrap(), w.grad().unwrap()]
        })
    };
    let exact = results(&Device::cpu(), F32, Precision::F32);
    let settings =
        [(F32, Precision::F32), (F32, Precision::Tf32), (F32, Precision::Bf16), (BF16, Precision::Bf16)];
    for device in devices() {
        for (dtype, precision) in shortened(settings, 2, 1) {
            let found = results(&device, dtype, precision);
            let dx = if dtype == BF16 { BF16 } else { F32 };
            for (i, ((found, exact), rounds)) in
                found.iter().zip(&exact).zip([found[0].dtype(), dx, F32]).enumerate()
            {
                let rounded = exact.to_dtype(rounds).unwrap();
                assert!(values(found) == values(&rounded), "{dtype} {precision:?} {i}");
            }
        }
    }
}

#[test]
fn the_f32_input_of_wide_layers_is_rounded_once_for_all_of_them() {
    for device in simulators().take(2) {
        let [x, a, b] =
            [(1024, 3), (512, 5), (640, 2)].map(|(rows, step)| whole(&[rows, 1024], step, &device));
        let rounded = |x: &Tensor| {
            let mut step = Step::new(&device, |_| {
                no_grad(|| {
                    let of = |w: &Tensor| x.linear(w, None, Activation::None, None);
                    Ok(vec![of(&a)?, of(&b)?])
                })
            });
            with_precision(Precision::Bf16, || step.call(&[]).map(drop)).unwrap();
            let table = step.program().unwrap().to_string();
            step.finish().unwrap();
            let lines = table.lines().filter(|line| !line.contains("fused("));
            lines.map(|line| line.matches("to_dtype").count()).sum::<usize>()
        };
        assert_eq!(rounded(&x), 3, "both weights, and the input once");
        assert_eq!(rounded(&x.i(..16).unwrap()), 2, "few rows are not worth a launch");
    }
}

/// A weight that stays f32 is rounded before a large product, and by the kernel of a smaller one. Both name the dtypes that were given.
#[test]
fn large_products_of_f32_operands_have_the_bits_of_rounded_ones() {
    for device in devices() {
        let large = |dtype: DType| Tensor::zeros([1024, 1024], dtype, &device).unwrap();
        for other in [F16, F64] {
            let error = with_precision(Precision::Bf16, || large(F32).matmul(&large(other))).unwrap_err();
            assert!(matches!(error, Error::DTypeMismatch { lhs: F32, rhs, .. } if rhs == other), "{error}");
        }
        // What is repeated is not copied as often.
        let repeated = leaf(&[1024, 1024], 3, F32, &device);
        let many = repeated.unsqueeze(0).unwrap().broadcast_to([8, 1024, 1024]).unwrap();
        let x = leaf(&[8, 64, 1024], 4, BF16, &device).detach();
        let [y, expected] = [&many, &repeated.unsqueeze(0).unwrap()]
            .map(|w| values(&with_precision(Precision::Bf16, || x.matmul(w)).unwrap().detach()));
        assert!(y == expected, "{device}");
        // 2^29 multiplications, and one row less.
        for m in [64, 63] {
            let (batch, k, n) = (8, 1024, 1024);
            let a = leaf(&[batch, m, k], 1, F32, &device);
            let b = leaf(&[k, n], 2, F32, &device);
            let run = |a: &Tensor, b: &Tensor| {
                [a, b].iter().for_each(|t| t.zero_grad().unwrap());
                let y = with_precision(Precision::Bf16, || a.matmul(&b.unsqueeze(0)?)).unwrap();
                y.sum(()).unwrap().backward().unwrap();
                [&y, &a.grad().unwrap(), &b.grad().unwrap()].map(values)
            };
            let mixed = run(&a, &b);
            let [a, b] = [&a, &b].map(|t| {
                let t = t.detach().to_dtype(BF16).unwrap();
                t.set_requires_grad(true).unwrap();
                t
            });
            let rounded = run(&a, &b);
            // Smaller ones are rounded by kernels that add in another order.
            assert!(m == 63 || mixed[0] == rounded[0], "{device}, {m}");
            // Gradients of f32 operands are not rounded, nor are the sums of those of a weight that all share.
            for (mixed, rounded) in mixed.iter().zip(&rounded) {
                let scale = mixed.iter().fold(0.0f64, |most, m| most.max(m.abs()));
                let far = mixed.iter().zip(rounded).find(|(m, r)| (*m - *r).abs() > 1e-2 * scale);
                assert!(far.is_none(), "{device}, {m}: {far:?}");
            }
        }
    }
}
