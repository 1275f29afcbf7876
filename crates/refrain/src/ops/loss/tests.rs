use crate::faults::{error_of, own_devices};
use crate::testing::{assert_close, devices, gradcheck, leaf, numbers, values};
use refrain::{DType, Device, DeviceKind, Error, Reduction, Result, Step, Tensor};

type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;

const LOSSES: [(Loss, fn(f64) -> f64); 3] = [
    (|x, t| x.mse_loss(t), |e| e * e),
    (|x, t| x.l1_loss(t), f64::abs),
    (|x, t| x.huber_loss(t, 0.75), |e| if e.abs() < 0.75 { e * e / 2.0 } else { 0.75 * (e.abs() - 0.375) }),
];

/// A second set of numbers.
fn targets(shape: &[usize], device: &Device) -> Tensor {
    let t = leaf(shape, device).detach().mul_scalar(-0.7).unwrap().add_scalar(0.31).unwrap();
    t.set_requires_grad(true).unwrap();
    t
}

#[test]
fn losses_are_means_in_every_dtype() {
    for device in devices() {
        for shape in [&[3, 5, 7][..], &[], &[1], &[40_000]] {
            let (x, t) = (leaf(shape, &device).detach(), targets(shape, &device).detach());
            for (loss, f) in LOSSES {
                for (dtype, tolerance) in
                    [(DType::F64, 1e-13), (DType::F32, 1e-6), (DType::F16, 4e-3), (DType::BF16, 2e-2)]
                {
                    let (x, t) = (x.to_dtype(dtype).unwrap(), t.to_dtype(dtype).unwrap());
                    let y = loss(&x, &t).unwrap();
                    assert_eq!((y.dims(), y.dtype()), (&[][..], dtype));
                    let e: f64 = values(&x).iter().zip(values(&t)).map(|(x, t)| f(x - t)).sum();
                    assert_close(&values(&y), &[e / x.numel() as f64], tolerance);
                }
            }
        }
    }
}

#[test]
fn gradients_of_both_sides_agree_with_finite_differences() {
    for device in devices() {
        let t = [leaf(&[3, 5], &device), targets(&[3, 5], &device)];
        for (loss, _) in LOSSES {
            gradcheck(|t| loss(&t[0], &t[1]), &t, 1e-6).unwrap();
            gradcheck(|t| loss(&t[0].transpose(0, 1)?, &t[1].transpose(0, 1)?)?.mul_scalar(3.0), &t, 1e-6)
                .unwrap();
        }
        let t = [leaf(&[4, 3], &device), targets(&[4], &device)];
        gradcheck(|t| t[0].quantile_loss(&t[1], &[0.1, 0.5, 0.8]), &t, 1e-6).unwrap();
        gradcheck(
            |t| t[0].quantile_loss(&t[0].select(1, 2)?.mul_scalar(1.5)?, &[0.1, 0.5, 0.8]),
            &t[..1],
            1e-6,
        )
        .unwrap();
        let ids = Tensor::from_slice(&[2i64, 0, 1, 2], [4], &device).unwrap();
        gradcheck(|t| t[0].cross_entropy(&ids), &t[..1], 1e-6).unwrap();
        gradcheck(|t| t[0].cross_entropy_smoothed(&ids, 0.1)?.mul_scalar(-2.0), &t[..1], 1e-6).unwrap();
        gradcheck(|t| t[0].reshape([2, 2, 3])?.cross_entropy(&ids.reshape([2, 2])?), &t[..1], 1e-6).unwrap();
    }
}

#[test]
fn at_a_kink_the_derivative_is_the_middle() {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f64, 2.0], [2], &device).unwrap();
        x.set_requires_grad(true).unwrap();
        let t = x.detach();
        x.l1_loss(&t).unwrap().backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [0.0, 0.0]);
        x.reshape([2, 1]).unwrap().quantile_loss(&t, &[0.9]).unwrap().backward().unwrap();
        assert_close(&values(&x.grad().unwrap()), &[-0.2, -0.2], 1e-15);
    }
}

#[test]
fn the_quantile_loss_weighs_both_sides() {
    for device in devices() {
        let (rows, levels) = (9001, [0.1, 0.5, 0.9, 0.99]);
        let x = Tensor::from_slice(&numbers(rows * 4), [rows, 4], &device).unwrap();
        let t = Tensor::from_slice(&numbers(rows + 1)[1..], [rows], &device).unwrap();
        let (xs, ts) = (values(&x), values(&t));
        let e = |i: usize| ts[i / 4] - xs[i];
        let expected: f64 =
            (0..rows * 4).map(|i| (levels[i % 4] * e(i)).max((levels[i % 4] - 1.0) * e(i))).sum();
        let y = x.quantile_loss(&t, &levels).unwrap();
        assert_close(&values(&y), &[expected / (rows * 4) as f64], 1e-13);
        let f32s =
            x.to_dtype(DType::F32).unwrap().quantile_loss(&t.to_dtype(DType::F32).unwrap(), &levels).unwrap();
        assert_close(&values(&f32s), &values(&y), 1e-6);
        let half = x
            .to_dtype(DType::BF16)
            .unwrap()
            .quantile_loss(&t.to_dtype(DType::BF16).unwrap(), &levels)
            .unwrap();
        assert_close(&values(&half), &values(&y), 2e-2);
    }
}

#[test]
fn cross_entropy_is_the_mean_of_the_ids_log_softmax() {
    for device in devices() {
        let (rows, classes) = (3001, 7);
        let x = Tensor::from_slice(&numbers(rows * classes), [rows, classes], &device).unwrap();
        let ids: Vec<i64> = (0..rows as i64).map(|i| i * i % 7).collect();
        let logs = values(&x.log_softmax(1).unwrap());
        let picked = ids.iter().enumerate().map(|(r, &id)| -logs[r * classes + id as usize]).sum::<f64>()
            / rows as f64;
        let even = -logs.iter().sum::<f64>() / (rows * classes) as f64;
        let ids = Tensor::from_slice(&ids, [rows], &device).unwrap();
        for (dtype, tolerance) in
            [(DType::F64, 1e-13), (DType::F32, 1e-6), (DType::F16, 4e-3), (DType::BF16, 2e-2)]
        {
            let x = x.to_dtype(dtype).unwrap().detach();
            x.set_requires_grad(true).unwrap();
            let y = x.cross_entropy(&ids).unwrap();
            assert_close(&values(&y), &[picked], tolerance);
            assert_close(
                &values(&x.cross_entropy_smoothed(&ids, 0.2).unwrap()),
                &[0.8 * picked + 0.2 * even],
                tolerance,
            );
            y.backward().unwrap();
            // Each row of the gradient sums to 0.
            let sums = x.grad().unwrap().to_dtype(DType::F64).unwrap().sum(1).unwrap();
            assert_close(&values(&sums), &vec![0.0; rows], tolerance / rows as f64);
        }
        // Logits far from 0.
        let x = Tensor::from_slice(&[1e4f32, 0.0, -1e4, -1e4], [2, 2], &device).unwrap();
        let ids = Tensor::from_slice(&[1i64, 0], [2], &device).unwrap();
        assert_close(&values(&x.cross_entropy(&ids).unwrap()), &[(1e4 + 2f64.ln()) / 2.0], 1e-3);
    }
}

#[test]
fn a_loss_of_nothing_is_nan() {
    for device in devices() {
        let x = Tensor::zeros([0, 3], DType::F32, &device).unwrap();
        x.set_requires_grad(true).unwrap();
        let ids = Tensor::zeros([0], DType::I64, &device).unwrap();
        let t = Tensor::zeros([0], DType::F32, &device).unwrap();
        for y in [x.mse_loss(&x.detach()), x.cross_entropy(&ids), x.quantile_loss(&t, &[0.1, 0.5, 0.9])] {
            let y = y.unwrap();
            assert!(y.to_scalar::<f32>().unwrap().is_nan());
            y.backward().unwrap();
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let (x, t) = (leaf(&[3, 2], &device).detach(), leaf(&[3], &device).detach());
        let text = x.mse_loss(&t).unwrap_err().to_string();
        assert!(text.starts_with("mse_loss") && text.contains("[3, 2]") && text.contains("[3]"), "{text}");
        let f32s = x.to_dtype(DType::F32).unwrap();
        assert!(matches!(x.l1_loss(&f32s), Err(Error::DTypeMismatch { op: "l1_loss", .. })));
        assert!(matches!(x.huber_loss(&x, 0.0), Err(Error::InvalidArgument { op: "huber_loss", .. })));
        assert!(matches!(x.quantile_loss(&t, &[0.5]), Err(Error::ShapeMismatch { op: "quantile_loss", .. })));
        assert!(matches!(x.quantile_loss(&t, &[]), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(x.quantile_loss(&t, &[0.5, 1.0]), Err(Error::InvalidArgument { .. })));
        assert!(matches!(x.cross_entropy(&t), Err(Error::DTypeMismatch { op: "cross_entropy", .. })));
        let ids = |ids: [i64; 3]| Tensor::from_slice(&ids, [3], &device).unwrap();
        assert!(matches!(x.cross_entropy_smoothed(&ids([0, 1, 1]), 1.5), Err(Error::InvalidArgument { .. })));
        assert!(matches!(
            x.reshape([6]).unwrap().cross_entropy(&ids([0, 1, 1])),
            Err(Error::ShapeMismatch { .. })
        ));
        let dst = Tensor::zeros((), DType::F64, &device).unwrap();
        x.cross_entropy_into(&ids([0, 1, 1]), &dst).unwrap();
        assert_eq!(values(&dst), values(&x.cross_entropy(&ids([0, 1, 1])).unwrap()));
        x.huber_loss_into(&x, 1.0, &dst).unwrap();
        assert_eq!(values(&dst), [0.0]);
    }
}

#[test]
fn a_class_id_out_of_range_is_named() {
    for own in own_devices() {
        // Rows that fit into registers, and wider ones.
        for classes in [2, 5000] {
            let x = Tensor::zeros([3, classes], DType::F32, &own).unwrap();
            for bad in [classes as i64, -1] {
                let ids = Tensor::from_slice(&[0, bad, 1], [3], &own).unwrap();
                let dst = Tensor::full((), 7.0, DType::F32, &own).unwrap();
                let text = error_of(&own, x.cross_entropy_into(&ids, &dst)).to_string();
                let after = dst.to_scalar::<f32>().unwrap();
                assert!(text.starts_with(&format!("cross_entropy: index {bad} ")), "{text}");
                assert!(text.contains(&format!("0..{classes}")), "{text}");
                assert_eq!(text.contains("at [1]"), own.kind() != DeviceKind::Cuda, "{text}");
                if own.kind() == DeviceKind::Cpu {
                    assert_eq!(after, 7.0);
                    continue;
                }
                assert!(after.is_nan(), "{after}");
                // In the gradient, the row is NaN.
                let leaf = x.detach();
                leaf.set_requires_grad(true).unwrap();
                let back = leaf.cross_entropy(&ids).and_then(|loss| loss.backward());
                error_of(&own, back);
                // The error of the forward pass may be reported before the backward pass.
                if let Some(gradient) = leaf.grad() {
                    let nans: Vec<bool> = values(&gradient).iter().map(|g| g.is_nan()).collect();
                    assert!(nans.chunks(classes).map(|row| row.iter().all(|&n| n)).eq([false, true, false]));
                }
            }
            let none = Tensor::zeros([3, 0], DType::F32, &own).unwrap();
            assert!(none.cross_entropy(&Tensor::from_slice(&[0i64; 3], [3], &own).unwrap()).is_err());
        }
    }
}

/// A loss with a reduction, and the loss of an element.
type Reduced = (fn(&Tensor, &Tensor, Reduction) -> Result<Tensor>, fn(f64, f64) -> f64);

const REDUCED: [Reduced; 5] = [
    (|x, t, r| x.mse_loss_reduced(t, r), |x, t| (x - t) * (x - t)),
    (|x, t, r| x.l1_loss_reduced(t, r), |x, t| (x - t).abs()),
    (
        |x, t, r| x.huber_loss_reduced(t, 0.75, r),
        |x, t| match (x - t).abs() {
            e if e < 0.75 => e * e / 2.0,
            e => 0.75 * (e - 0.375),
        },
    ),
    (|x, t, r| x.bce_with_logits_reduced(t, r), |x, t| x.max(0.0) - x * t + (-x.abs()).exp().ln_1p()),
    (
        |x, t, r| x.kl_div_reduced(&t.square()?, r),
        |x, t| match t * t {
            0.0 => 0.0,
            p => p * (p.ln() - x),
        },
    ),
];

#[test]
fn losses_of_elements_and_their_sum_are_the_formula_in_every_dtype() {
    for device in devices() {
        // The same at 0, and large ones.
        let xs = [0.0, 0.5, -0.25, 30.0, -30.0, 1.5];
        let ts = [0.0, 1.0, 1.0, 1.0, 0.0, 0.5];
        for (dtype, tolerance) in
            [(DType::F64, 1e-13), (DType::F32, 1e-6), (DType::F16, 4e-3), (DType::BF16, 2e-2)]
        {
            let tensor = |v: &[f64]| Tensor::from_slice(v, [2, 3], &device).unwrap().to_dtype(dtype).unwrap();
            let (x, t) = (tensor(&xs), tensor(&ts));
            for (k, (loss, f)) in REDUCED.iter().enumerate() {
                let expected: Vec<f64> = xs.iter().zip(ts).map(|(&x, t)| f(x, t)).collect();
                let sum: f64 = expected.iter().sum();
                let y = loss(&x, &t, Reduction::None).unwrap();
                assert_eq!((y.dims(), y.dtype()), (&[2, 3][..], dtype));
                // Each is as exact as its own size allows: of 30 and 1 the binary cross entropy is 1e-13.
                for (y, e) in values(&y).iter().zip(&expected) {
                    assert!(
                        (y - e).abs() <= tolerance * e.abs().max(1e-3),
                        "loss {k}, {dtype}: {y}, not {e}"
                    );
                }
                let y = loss(&x, &t, Reduction::Sum).unwrap();
                assert_eq!((y.dims(), y.dtype()), (&[][..], dtype));
                assert_close(&values(&y), &[sum], tolerance * sum.abs());
                assert_close(
                    &values(&loss(&x, &t, Reduction::Mean).unwrap()),
                    &[sum / 6.0],
                    tolerance * sum.abs(),
                );
            }
            let levels = [0.1, 0.75];
            let y = tensor(&xs).reshape([3, 2]).unwrap();
            let t = tensor(&ts).flatten(0, 1).unwrap().narrow(0, 1, 3).unwrap();
            let e = |i: usize| ts[1 + i / 2] - xs[i];
            let expected: Vec<f64> =
                (0..6).map(|i| (levels[i % 2] * e(i)).max((levels[i % 2] - 1.0) * e(i))).collect();
            let none = y.quantile_loss_reduced(&t, &levels, Reduction::None).unwrap();
            assert_eq!((none.dims(), none.dtype()), (&[3, 2][..], dtype));
            assert_close(&values(&none), &expected, tolerance * 30.0);
            let sum = y.quantile_loss_reduced(&t, &levels, Reduction::Sum).unwrap();
            assert_close(&values(&sum), &[expected.iter().sum()], tolerance * 100.0);
            let mean = y.quantile_loss_reduced(&t, &levels, Reduction::Mean).unwrap();
            assert_eq!(values(&mean), values(&y.quantile_loss(&t, &levels).unwrap()));
        }
    }
}

#[test]
fn gradients_of_losses_of_elements_agree_with_finite_differences_and_with_those_of_the_mean() {
    for device in devices() {
        let operands = [leaf(&[3, 5], &device), targets(&[3, 5], &device)];
        let weights = leaf(&[3, 5], &device).detach();
        for (loss, _) in REDUCED {
            gradcheck(|t| loss(&t[0], &t[1], Reduction::None)?.mul(&weights), &operands, 1e-6).unwrap();
            gradcheck(|t| loss(&t[0], &t[1], Reduction::Sum), &operands, 1e-6).unwrap();
        }
        let predictions = [leaf(&[4, 3], &device), targets(&[4], &device)];
        gradcheck(
            |t| t[0].quantile_loss_reduced(&t[1], &[0.1, 0.5, 0.8], Reduction::None)?.square(),
            &predictions,
            1e-6,
        )
        .unwrap();
        // At 0, where finite differences say nothing.
        let gradient = |loss: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| {
            let x = Tensor::from_slice(&[0.0f64, 2.0, -3.0], [3], &device).unwrap();
            x.set_requires_grad(true).unwrap();
            let t = Tensor::from_slice(&[0.0f64, 2.0, 1.0], [3], &device).unwrap();
            loss(&x, &t).unwrap().backward().unwrap();
            values(&x.grad().unwrap())
        };
        for (loss, _) in &REDUCED[..4] {
            let mean: Vec<f64> =
                gradient(&|x, t| loss(x, t, Reduction::Mean)).iter().map(|g| g * 3.0).collect();
            assert_close(&gradient(&|x, t| loss(x, t, Reduction::Sum)), &mean, 1e-15);
        }
        let quantile = |r| gradient(&move |x, t| x.unsqueeze(-1)?.quantile_loss_reduced(t, &[0.9], r));
        let mean: Vec<f64> = quantile(Reduction::Mean).iter().map(|g| g * 3.0).collect();
        assert_close(&quantile(Reduction::Sum), &mean, 1e-15);
    }
}

#[test]
fn losses_of_elements_refuse_what_the_mean_refuses_and_nothing_has_the_sum_0() {
    for device in devices() {
        let (x, t) = (leaf(&[2, 3], &device).detach(), leaf(&[3], &device).detach());
        for (loss, _) in REDUCED {
            assert!(matches!(loss(&x, &t, Reduction::None), Err(Error::ShapeMismatch { .. })));
            let none = Tensor::zeros([0, 3], DType::F32, &device).unwrap();
            assert_eq!(values(&loss(&none, &none, Reduction::Sum).unwrap()), [0.0]);
            assert_eq!(loss(&none, &none, Reduction::None).unwrap().dims(), [0, 3]);
        }
        let text = x.huber_loss_reduced(&x, -1.0, Reduction::None).unwrap_err().to_string();
        assert!(text.starts_with("huber_loss") && text.contains("-1"), "{text}");
        assert!(x.quantile_loss_reduced(&t, &[0.5], Reduction::None).is_err());
    }
}

#[test]
fn a_target_may_be_a_part_of_each_window() {
    for device in devices() {
        for (width, start, len) in [(432, 336, 96), (100, 3, 64), (9, 2, 5)] {
            let windows = targets(&[6, 3, width], &device).detach().to_dtype(DType::F32).unwrap();
            let target = windows.narrow(2, start, len).unwrap();
            let x = leaf(&[6, 3, len], &device).detach().to_dtype(DType::F32).unwrap();
            for (loss, _) in LOSSES {
                let (y, expected) = (loss(&x, &target).unwrap(), loss(&x, &target.copy().unwrap()).unwrap());
                assert_close(&values(&y), &values(&expected), 1e-6);
            }
            let mut step = Step::new(&device, |x| Ok(vec![x[0].mse_loss(&x[1].narrow(2, start, len)?)?]));
            step.call(&[x, windows]).unwrap();
            let copies = step.program().unwrap().recorded_launches() - 1;
            // For a GPU, short rows are copied first, also where its kernels are only written down.
            let is_for_gpu =
                device.kind() != DeviceKind::Cpu || std::env::var_os("REFRAIN_KERNELS").is_some();
            assert_eq!(copies, usize::from(len < 64 && is_for_gpu), "{len} {device}");
        }
    }
}

/// Whatever the strides of prediction and target, in one part and in several. CUDA adds rows where they lie in another order than
/// adjacent ones.
#[test]
fn losses_have_the_same_bits_in_every_layout() {
    for device in devices() {
        let is_same = device.kind() != DeviceKind::Cuda;
        for (rows, columns) in [(3, 5), (129, 260)] {
            let (x, t) =
                (leaf(&[rows, columns + 3], &device).detach(), targets(&[columns, rows], &device).detach());
            for (dtype, place) in
                [(DType::F64, 1e-12), (DType::F32, 1e-6), (DType::F16, 4e-3), (DType::BF16, 3e-2)]
            {
                let tolerance = if is_same { 0.0 } else { place };
                let x = x.to_dtype(dtype).unwrap().narrow(1, 2, columns).unwrap();
                let t = t.to_dtype(dtype).unwrap().transpose(0, 1).unwrap();
                let row = x.narrow(0, 1, 1).unwrap().broadcast_to([rows, columns]).unwrap();
                for (loss, _) in LOSSES {
                    for (a, b) in [(&x, &t), (&t, &x), (&row, &t), (&t, &row)] {
                        let found = values(&loss(a, b).unwrap());
                        let copies = (a.copy().unwrap(), b.copy().unwrap());
                        assert_close(&found, &values(&loss(&copies.0, &copies.1).unwrap()), tolerance);
                    }
                }
            }
        }
    }
}

#[test]
fn cross_entropy_over_many_classes_is_its_formula_wherever_rows_begin() {
    // Rows of 1,201 begin anywhere. The second is far from zero, and the third has classes that cannot be.
    let (rows, classes, ids) = (5, 1201, [0i64, 1200, 900, 7, 600]);
    let mut logits = numbers(rows * classes);
    logits[classes..2 * classes].iter_mut().for_each(|x| *x += 512.0);
    for device in devices() {
        for (dtype, tolerance) in
            [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::BF16, 1e-2), (DType::F16, 1e-3)]
        {
            for smoothing in [0.0, 0.1] {
                let masked = |i: usize| smoothing == 0.0 && i / classes == 2 && i % classes < 700;
                let x: Vec<f64> = logits
                    .iter()
                    .enumerate()
                    .map(|(i, &x)| if masked(i) { f64::NEG_INFINITY } else { x })
                    .collect();
                let x = Tensor::from_slice(&x, [rows, classes], &device).unwrap().to_dtype(dtype).unwrap();
                x.set_requires_grad(true).unwrap();
                let ids_on = Tensor::from_slice(&ids, rows, &device).unwrap();
                let loss = x.cross_entropy_smoothed(&ids_on, smoothing).unwrap();
                loss.backward().unwrap();
                let (mut total, mut gradient) = (0.0, Vec::new());
                for (row, &id) in values(&x.detach()).chunks(classes).zip(&ids) {
                    let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
                    let of = |x: f64| largest + sum.ln() - x;
                    let mean = if smoothing > 0.0 {
                        row.iter().map(|&x| of(x)).sum::<f64>() / classes as f64
                    } else {
                        0.0
                    };
                    total += (1.0 - smoothing) * of(row[id as usize]) + smoothing * mean;
                    gradient.extend(row.iter().enumerate().map(|(i, x)| {
                        let wanted =
                            f64::from(i as i64 == id) * (1.0 - smoothing) + smoothing / classes as f64;
                        ((x - largest).exp() / sum - wanted) / rows as f64
                    }));
                }
                // The loss has the dtype of the logits.
                let close = if dtype == DType::F64 { 1e-11 } else { 5.0 * f64::max(tolerance, 2e-4) };
                assert_close(&values(&loss.detach()), &[total / rows as f64], close);
                let found = values(&x.grad().unwrap());
                assert!(
                    found.iter().zip(&gradient).all(|(a, b)| (a - b).abs() <= tolerance * (b.abs() + 1e-3)),
                    "{dtype} {smoothing}"
                );
            }
        }
    }
}
