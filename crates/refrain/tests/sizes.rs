//! Operations along an axis at sizes that kernels treat differently (rows of a few elements, of a warp, of a block;
//! few rows and many; sums in one pass and in two), forward and backward, on every device. Results are compared with
//! f64 on the CPU, and two runs must give the same bits.

mod common;

use common::{kernels, tensor, values};
use refrain::{Conv2dOptions, DType, Device, Result, Tensor};

type Function = fn(&[Tensor]) -> Result<Tensor>;

/// Numbers from -1 to 2 without a pattern, no two alike.
fn numbers(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i + 7 * seed) as f64 * 0.618_033_988_75).fract() * 3.0 - 1.0).collect()
}

fn inputs(shapes: &[&[usize]], dtype: DType, device: &Device) -> Vec<Tensor> {
    let of = |(seed, shape): (usize, &&[usize])| {
        tensor(&numbers(shape.iter().product(), seed), *shape, dtype, device)
    };
    shapes.iter().enumerate().map(of).collect()
}

/// The result and the gradients of all operands.
fn run(f: Function, operands: &[Tensor]) -> Vec<Vec<f64>> {
    let operands: Vec<Tensor> = operands.iter().map(|t| t.detach().copy().unwrap()).collect();
    operands.iter().for_each(|t| t.set_requires_grad(true).unwrap());
    let y = f(&operands).unwrap();
    if !y.requires_grad() {
        return vec![values(&y)];
    }
    let dy = tensor(&numbers(y.numel(), 5), y.shape(), y.dtype(), y.device());
    y.backward_with(&dy).unwrap();
    let gradients = operands.iter().filter_map(|t| t.grad()).map(|g| values(&g));
    std::iter::once(values(&y.detach())).chain(gradients).collect()
}

/// Each number is correct within `tolerance` of the largest. Where all are 0 because terms of about 1 cancel, the
/// rounding of those terms is left.
fn compare(got: &[f64], expected: &[f64], tolerance: f64) -> std::result::Result<(), String> {
    let scale = expected.iter().fold(1e-2f64, |m, v| m.max(v.abs()));
    let close = |a: f64, b: f64| (a - b).abs() <= tolerance * scale;
    match got.iter().zip(expected).position(|(&a, &b)| !close(a, b)) {
        _ if got.len() != expected.len() => Err(format!("{} elements, not {}", got.len(), expected.len())),
        Some(i) => Err(format!("element {i} is {}, not {} (the largest is {scale})", got[i], expected[i])),
        None => Ok(()),
    }
}

#[track_caller]
fn check(name: &str, shapes: &[&[usize]], f: Function) {
    let mut failures = Vec::new();
    for device in kernels() {
        for (dtype, tolerance) in [(DType::F64, 1e-11), (DType::F32, 2e-5), (DType::BF16, 2e-2)] {
            let operands = inputs(shapes, dtype, &device);
            let got = run(f, &operands);
            let exact: Vec<Tensor> =
                operands.iter().map(|t| tensor(&values(t), t.shape(), DType::F64, &Device::cpu())).collect();
            for (i, (got, expected)) in got.iter().zip(run(f, &exact)).enumerate() {
                let result = if i == 0 { "result".to_string() } else { format!("gradient {}", i - 1) };
                let told = |e| format!("{name} of {shapes:?} in {dtype} on {device}, {result}: {e}");
                failures.extend(compare(got, &expected, tolerance).err().map(told));
            }
            let bits = |v: &[Vec<f64>]| v.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
            if bits(&got) != bits(&run(f, &operands)) {
                failures
                    .push(format!("{name} of {shapes:?} in {dtype} on {device}: other bits the second time"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn reductions() {
    let kinds: [(&str, Function, Function, Function); 6] = [
        ("sum", |t| t[0].sum(0), |t| t[0].sum(1), |t| t[0].sum(())),
        ("mean", |t| t[0].mean(0), |t| t[0].mean(1), |t| t[0].mean(())),
        ("var", |t| t[0].var(0, 1), |t| t[0].var(1, 1), |t| t[0].var((), 0)),
        ("max", |t| t[0].max(0), |t| t[0].max(1), |t| t[0].max(())),
        ("min", |t| t[0].min(0), |t| t[0].min(1), |t| t[0].min(())),
        ("argmax", |t| t[0].argmax(0), |t| t[0].argmax(1), |t| t[0].argmax(())),
    ];
    for (name, first, second, all) in kinds {
        for shape in [&[27_001, 16][..], &[3_001, 128], &[2_100, 264], &[9_000, 3], &[17, 1], &[70, 33]] {
            check(name, &[shape], first);
        }
        for shape in [
            &[5_001, 7][..],
            &[4_200, 1_100],
            &[2_100, 1_016],
            &[70, 5_000],
            &[3, 9_001],
            &[5, 2_049, 3],
            &[2, 300_000],
        ] {
            check(name, &[shape], second);
        }
        for shape in [&[1][..], &[7], &[4_097], &[100_003]] {
            check(name, &[shape], all);
        }
    }
}

/// Without images there are no results, and gradients of weight and bias are zeros; without channels the results are the bias.
#[test]
fn convolutions_of_nothing() {
    for device in kernels() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            for [images, channels] in [[0, 2], [1, 0]] {
                let of = |shape: &[usize]| {
                    let t = Tensor::ones(shape, dtype, &device).unwrap();
                    t.set_requires_grad(true).unwrap();
                    t
                };
                let (x, weight) = (of(&[images, channels, 4, 5]), of(&[3, channels, 3, 3]));
                let bias = of(&[3]);
                let y = x.conv2d(&weight, Some(&bias), &Conv2dOptions::default()).unwrap();
                assert_eq!(
                    values(&y),
                    vec![1.0; images * 3 * 2 * 3],
                    "{images} images in {dtype} on {device}"
                );
                y.backward_with(&Tensor::ones(y.dims(), dtype, &device).unwrap()).unwrap();
                let [dx, dw, db] = [&x, &weight, &bias].map(|t| values(&t.grad().unwrap()));
                assert_eq!(dx, vec![0.0; 0]);
                assert_eq!(dw, vec![0.0; 3 * channels * 9]);
                assert_eq!(db, vec![6.0 * images as f64; 3]);
            }
        }
    }
}

/// Whole numbers, which every dtype holds and adds exactly; so each element is known from the places of its operands.
/// Of tensors without elements, over every choice of axes.
#[test]
fn reductions_of_nothing() {
    const SHAPES: [&[usize]; 6] = [&[0], &[3, 0], &[0, 3], &[2, 0, 4], &[0, 70, 3], &[2, 70, 2, 0]];
    for device in kernels() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::U8] {
            for shape in SHAPES {
                let rank = shape.len();
                let reversed: Vec<isize> = (0..rank as isize).rev().collect();
                let x = Tensor::zeros(shape, dtype, &device).unwrap();
                let larger: Vec<usize> = shape.iter().map(|size| size + 2).collect();
                let larger = Tensor::zeros(larger, dtype, &device).unwrap();
                let narrow = (0..rank).fold(larger, |x, i| x.narrow(i as isize, 1, shape[i]).unwrap());
                for x in [x.permute(&reversed).unwrap(), x, narrow] {
                    for choice in 1..1 << rank {
                        let (reduced, kept): (Vec<usize>, Vec<usize>) =
                            (0..rank).partition(|axis| choice >> axis & 1 == 1);
                        let dims: Vec<usize> = kept.iter().map(|&i| x.dims()[i]).collect();
                        let is_empty = reduced.iter().any(|&i| x.dims()[i] == 0);
                        let axes: Vec<isize> = reduced.iter().map(|&i| i as isize).collect();
                        let check = |name: &str, y: Result<Tensor>, of_nothing: Option<f64>| {
                            let what =
                                format!("{name} of {:?} over {axes:?} in {dtype} on {device}", x.dims());
                            match (y, of_nothing) {
                                (y, None) if is_empty => assert!(y.is_err(), "{what}"),
                                (y, of_nothing) => {
                                    let y = y.unwrap_or_else(|error| panic!("{what}: {error}"));
                                    assert_eq!(y.dims(), dims, "{what}");
                                    let expected = of_nothing.unwrap_or_default();
                                    let is_expected =
                                        |v: &f64| *v == expected || v.is_nan() && expected.is_nan();
                                    assert!(values(&y).iter().all(is_expected), "{what}: {:?}", values(&y));
                                }
                            }
                        };
                        let axes = &axes[..];
                        check("sum", x.sum(axes), Some(0.0));
                        check("prod", x.prod(axes), Some(1.0));
                        check("max", x.max(axes), None);
                        check("min", x.min(axes), None);
                        if dtype.is_float() {
                            check("mean", x.mean(axes), Some(f64::NAN));
                            check("var", x.var(axes, 1), Some(f64::NAN));
                            check("logsumexp", x.logsumexp(axes), Some(f64::NEG_INFINITY));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn operands_and_results_of_any_layout() {
    let (m, n) = (37, 530);
    let whole = |count: usize, by: usize| (0..count).map(|i| (i * by % 19) as f64).collect::<Vec<f64>>();
    let (a, b, row, column) = (whole(m * n, 7), whole(n * m, 11), whole(n, 5), whole(m, 13));
    let frame = whole((m + 9) * (n + 6), 3);
    for device in kernels() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8] {
            let of = |values: &[f64], shape: &[usize]| tensor(values, shape, dtype, &device);
            let (x, turned) = (of(&a, &[m, n]), of(&b, &[n, m]).transpose(0, 1).unwrap());
            let is = |name: &str, got: &Tensor, expected: &dyn Fn(usize, usize) -> f64| {
                let (got, cols) = (values(got), got.dims()[1]);
                let wrong = (0..got.len()).find(|&at| got[at] != expected(at / cols, at % cols));
                assert_eq!(wrong, None, "{name} in {dtype} on {device}");
            };
            is("transposed", &x.add(&turned).unwrap(), &|i, j| a[i * n + j] + b[j * m + i]);
            is("a copy of a transposed", &turned.copy().unwrap(), &|i, j| b[j * m + i]);
            is("a row", &x.add(&of(&row, &[n])).unwrap(), &|i, j| a[i * n + j] + row[j]);
            is("a column", &x.add(&of(&column, &[m, 1])).unwrap(), &|i, j| a[i * n + j] + column[i]);
            let outside = of(&frame, &[m + 9, n + 6]);
            let window = outside.narrow(0, 4, m).unwrap().narrow(1, 5, n).unwrap();
            window.add_assign(&x).unwrap();
            is("a window of itself", &outside, &|i, j| {
                let inside = (4..4 + m).contains(&i) && (5..5 + n).contains(&j);
                frame[i * (n + 6) + j] + if inside { a[(i - 4) * n + j - 5] } else { 0.0 }
            });
            let upright = of(&b, &[n, m]);
            x.add_into(&x, &upright.transpose(0, 1).unwrap()).unwrap();
            is("a transposed result", &upright, &|j, i| 2.0 * a[i * n + j]);
            let pairs = of(&a[..8 * 24], &[8, 24]).unfold(1, 3, 2).unwrap().copy().unwrap();
            is("short rows that overlap", &pairs.reshape([8, 33]).unwrap(), &|i, j| {
                a[i * 24 + j / 3 * 2 + j % 3]
            });
        }
    }
}

#[test]
fn copies_to_another_order_of_axes() {
    for shape in [
        [3, 200, 136],
        [1, 1_096, 72],
        [2, 80, 1_160],
        [1, 1_103, 33],
        [2, 64, 32],
        [4, 300, 7],
        [2, 130, 258],
    ] {
        check("transpose", &[&shape], |t| t[0].transpose(1, 2)?.copy());
        check("permute", &[&shape], |t| t[0].permute(&[2, 0, 1])?.copy());
        check("added through a transpose", &[&shape], |t| {
            t[0].transpose(1, 2)?.copy()?.add(&t[0].square()?.transpose(1, 2)?.copy()?)
        });
        check("transpose of bools", &[&shape], |t| {
            t[0].detach().relu()?.to_dtype(DType::Bool)?.transpose(1, 2)?.copy()?.to_dtype(DType::F64)
        });
    }
}

/// Sizes that use larger tiles; with sides that end within a tile, once also within the 16 bytes that are moved at a
/// time.
#[test]
fn large_copies_to_another_order_of_axes() {
    for device in kernels() {
        for (dtype, [rows, width]) in [
            (DType::BF16, [2_064, 2_040]),
            (DType::F16, [136, 31_000]),
            (DType::F16, [33_000, 128]),
            (DType::BF16, [2_052, 2_050]),
            (DType::F32, [1_100, 1_036]),
        ] {
            let told = format!("of [{rows}, {width}] in {dtype} on {device}");
            // Whole numbers that even bf16 holds exactly, and twice them.
            let numbers: Vec<f64> = (0..rows * width).map(|i| (i * 31 % 127) as f64 - 63.0).collect();
            let turned = |x: &[f64], rows: usize, width: usize| -> Vec<f64> {
                (0..rows * width).map(|i| x[i % rows * width + i / rows]).collect()
            };
            let x = tensor(&numbers, [rows, width], dtype, &device);
            x.set_requires_grad(true).unwrap();
            let copy = || x.transpose(0, 1).unwrap().copy().unwrap();
            let (once, twice) = (copy(), copy());
            assert!(values(&once.detach()) == turned(&numbers, rows, width), "transpose {told}");
            // Both add their gradient, through a transpose, to the gradient.
            let dy = tensor(&numbers, [width, rows], dtype, &device);
            once.add(&twice).unwrap().backward_with(&dy).unwrap();
            let expected: Vec<f64> = turned(&numbers, width, rows).iter().map(|v| 2.0 * v).collect();
            assert!(values(&x.grad().unwrap()) == expected, "gradient through a transpose {told}");
        }
    }
}

#[test]
fn softmax() {
    for width in [1, 5, 8, 42, 64, 300, 1_024, 1_025, 3_000] {
        check("softmax", &[&[33, width]], |t| t[0].softmax(1));
        check("log_softmax", &[&[33, width]], |t| t[0].log_softmax(1));
        check("softmax", &[&[3, width, 5]], |t| t[0].softmax(1));
        check("log_softmax", &[&[2, width, 40]], |t| t[0].log_softmax(1));
    }
}

#[test]
fn normalisations_of_rows() {
    for (rows, width) in [
        (6_001, 64),
        (3_000, 16),
        (1_001, 128),
        (257, 5),
        (1, 1),
        (70, 256),
        (65, 300),
        (33, 1_000),
        (9, 1_500),
        (1_500, 1_030),
    ] {
        let shapes: [&[usize]; 3] = [&[rows, width], &[width], &[width]];
        check("layer_norm", &shapes, |t| t[0].layer_norm(&t[1], &t[2], 1e-3));
        check("rms_norm", &shapes[..2], |t| t[0].rms_norm(&t[1], 1e-3));
        check("l2_normalize", &shapes[..1], |t| t[0].l2_normalize(1, 1e-6));
        check("l2_normalize", &shapes[..1], |t| t[0].l2_normalize(0, 1e-6));
        // Two heads, of vectors as wide as the rows.
        if width <= 1_024 {
            let packed: &[usize] = &[rows.div_ceil(6), 3, 2, width];
            check("qk_norm", &[packed, &[2]], |t| t[0].qk_norm(&t[1], 1e-6));
        }
    }
}

#[test]
fn batch_norm() {
    for shape in [
        &[2_001, 64][..],
        &[37_632, 16],
        &[300_000, 3],
        &[700, 600],
        &[20_000, 7],
        &[9, 7, 130],
        &[33, 5, 1],
        &[2, 3, 5_000],
        &[300, 130, 8],
        &[20, 64, 56],
    ] {
        let channels: &[usize] = &shape[1..2];
        check("batch_norm", &[shape, channels, channels], |t| {
            let (mean, var) = (t[1].detach().zeros_like()?, t[1].detach().ones_like()?);
            let y = t[0].batch_norm(&t[1], &t[2], &mean, &var, 1, true, 0.1, 1e-3)?;
            // The output includes the running statistics, so that they are compared as well.
            y.add(&t[0].batch_norm(&t[1], &t[2], &mean, &var, 1, false, 0.1, 1e-3)?)
        });
    }
}

#[test]
fn losses() {
    for n in [1, 7, 1_030, 5_000, 90_003] {
        check("mse_loss", &[&[n], &[n]], |t| t[0].mse_loss(&t[1]));
        check("l1_loss", &[&[n], &[n]], |t| t[0].l1_loss(&t[1]));
        check("huber_loss", &[&[n], &[n]], |t| t[0].huber_loss(&t[1], 0.7));
        check("quantile_loss", &[&[n, 3], &[n]], |t| t[0].quantile_loss(&t[1], &[0.1, 0.5, 0.9]));
    }
    for (rows, classes) in [(1, 1), (3_001, 10), (70, 129), (40, 1_024), (40, 1_500)] {
        for smoothed in [false, true] {
            check(
                "cross_entropy",
                &[&[rows, classes]],
                match smoothed {
                    false => |t| t[0].cross_entropy(&classes_of(&t[0])),
                    true => |t| t[0].cross_entropy_smoothed(&classes_of(&t[0]), 0.1),
                },
            );
        }
    }
}

/// A class for each row of logits.
fn classes_of(logits: &Tensor) -> Tensor {
    let (rows, classes) = (logits.dims()[0], logits.dims()[1]);
    let ids: Vec<i64> = (0..rows).map(|i| (i * 37 % classes) as i64).collect();
    Tensor::from_slice(&ids, [rows], logits.device()).unwrap()
}
