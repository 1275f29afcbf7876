use crate::testing::{assert_close, devices, gradcheck, leaf, numbers, values};
use refrain::{DType, Error, Tensor};

#[test]
fn rows_are_normalised_scaled_and_shifted() {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f64, 2.0, 6.0, -1.0, -1.0, 5.0], [2, 3], &device).unwrap();
        let w = Tensor::from_slice(&[1.0f64, 2.0, -1.0], [3], &device).unwrap();
        let b = Tensor::from_slice(&[0.0f64, 0.5, 10.0], [3], &device).unwrap();
        let y = x.layer_norm(&w, &b, 1e-5).unwrap().to_vec::<f64>().unwrap();
        // Means 3 and 1, variances 14/3 and 8.
        let (r, s) = (1.0 / (14.0f64 / 3.0 + 1e-5).sqrt(), 1.0 / (8.0f64 + 1e-5).sqrt());
        let expected = [-2.0 * r, -2.0 * r + 0.5, -3.0 * r + 10.0, -2.0 * s, -4.0 * s + 0.5, -4.0 * s + 10.0];
        assert_close(&y, &expected, 1e-14);
        let y = x.rms_norm(&w, 0.25).unwrap().to_vec::<f64>().unwrap();
        let (r, s) = (1.0 / (41.0f64 / 3.0 + 0.25).sqrt(), 1.0 / (9.0f64 + 0.25).sqrt());
        let expected = [r, 4.0 * r, -6.0 * r, -s, -2.0 * s, -5.0 * s];
        assert_close(&y, &expected, 1e-14);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for (shape, d) in [(&[3, 5][..], 5), (&[2, 3, 4], 4), (&[1, 37], 37), (&[4, 1], 1), (&[7], 7)] {
            let t = [leaf(shape, &device), leaf(&[d], &device), leaf(&[d], &device)];
            gradcheck(|t| t[0].layer_norm(&t[1], &t[2], 1e-3), &t, 1e-6).unwrap();
            gradcheck(|t| t[0].rms_norm(&t[1], 1e-3), &t[..2], 1e-6).unwrap();
        }
        let t = [leaf(&[5, 3], &device), leaf(&[5], &device), leaf(&[5], &device)];
        gradcheck(|t| t[0].transpose(0, 1)?.layer_norm(&t[1], &t[2], 1e-3), &t, 1e-6).unwrap();
        // x also has another path, so that its gradient is added to.
        gradcheck(
            |t| t[0].transpose(0, 1)?.square()?.add(&t[0].transpose(0, 1)?.rms_norm(&t[1], 1e-3)?),
            &t[..2],
            1e-6,
        )
        .unwrap();
    }
}

/// Many rows: several tasks, several blocks per task, and parameter gradients that are sums of parts.
#[test]
fn parameter_gradients_sum_over_all_rows() {
    for device in devices() {
        let (rows, d) = (40_001, 32);
        let x = Tensor::from_slice(&numbers(rows * d), [rows, d], &device).unwrap();
        let (w, b) = (leaf(&[d], &device), leaf(&[d], &device));
        let y = x.layer_norm(&w, &b, 1e-5).unwrap();
        y.backward_with(&y.detach()).unwrap();
        let normed = x.sub(&x.mean_keepdim(1).unwrap()).unwrap();
        let normed = normed
            .div(&normed.square().unwrap().mean_keepdim(1).unwrap().add_scalar(1e-5).unwrap().sqrt().unwrap())
            .unwrap();
        let expected = [normed.mul(&y.detach()).unwrap().sum(0).unwrap(), y.detach().sum(0).unwrap()];
        for (t, e) in [&w, &b].into_iter().zip(expected) {
            let (g, e) = (t.grad().unwrap().to_vec::<f64>().unwrap(), e.to_vec::<f64>().unwrap());
            assert!(g.iter().zip(&e).all(|(g, e)| (g - e).abs() < 1e-8), "{g:?} {e:?}");
        }
        // The same in f32 with a fixed order of additions: two runs are equal bit for bit.
        let run = || {
            let t = [&x, &w, &b].map(|t| t.detach().to_dtype(DType::F32).unwrap());
            t.iter().for_each(|t| t.set_requires_grad(true).unwrap());
            let y = t[0].layer_norm(&t[1], &t[2], 1e-5).unwrap();
            y.backward_with(&y.detach()).unwrap();
            t.map(|t| t.grad().unwrap().to_vec::<f32>().unwrap())
        };
        let (one, two) = (run(), run());
        assert_eq!(one, two);
        let exact = w.grad().unwrap().to_vec::<f64>().unwrap();
        assert!(
            one[1].iter().zip(&exact).all(|(g, e)| (*g as f64 - e).abs() < 1e-5 * rows as f64),
            "{one:?}"
        );
    }
}

/// Widths that kernels divide over lanes and registers differently.
#[test]
fn gradients_of_rows_of_any_width_are_those_of_the_formula() {
    for device in devices() {
        for (width, dtype) in [24, 256, 300, 333, 512, 768, 1023, 1024, 1100]
            .into_iter()
            .flat_map(|width| [DType::F64, DType::F32, DType::BF16].map(|dtype| (width, dtype)))
        {
            let parameter = if dtype == DType::BF16 { DType::F32 } else { dtype };
            let t = [(&[70, width][..], dtype), (&[width], parameter), (&[width], parameter)]
                .map(|(shape, dtype)| leaf(shape, &device).detach().to_dtype(dtype).unwrap());
            let dy = leaf(&[70, width], &device).detach().sin().unwrap().to_dtype(dtype).unwrap();
            let wide = |t: &Tensor| t.detach().to_dtype(DType::F64).unwrap();
            let exact = [0, 1, 2].map(|i| wide(&t[i]));
            t.iter().chain(&exact).for_each(|t| t.set_requires_grad(true).unwrap());
            t[0].layer_norm(&t[1], &t[2], 1e-5).unwrap().backward_with(&dy).unwrap();

            let centred = exact[0].sub(&exact[0].mean_keepdim(1).unwrap()).unwrap();
            let variance = centred.square().unwrap().mean_keepdim(1).unwrap();
            let normed = centred.div(&variance.add_scalar(1e-5).unwrap().sqrt().unwrap()).unwrap();
            let y = normed.mul(&exact[1]).unwrap().add(&exact[2]).unwrap();
            y.backward_with(&wide(&dy)).unwrap();

            for (i, (found, expected)) in t.iter().zip(&exact).enumerate() {
                let [found, expected] = [found, expected].map(|t| values(&t.grad().unwrap()));
                // The gradients of the parameters have their dtype.
                let of = [dtype, parameter, parameter][i];
                let unit = match of {
                    DType::F64 => 1e-12,
                    DType::F32 => 1e-6,
                    _ => 4e-3,
                };
                let largest = expected.iter().fold(0.0f64, |most, e| most.max(e.abs()));
                let off = found.iter().zip(&expected).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
                assert!(
                    off <= 4.0 * unit * largest,
                    "gradient {i} of {width} {dtype}: {off} beside {largest}"
                );
            }
        }
    }
}

#[test]
fn halves_compute_in_f32() {
    for device in devices() {
        let (x, w, b) =
            (leaf(&[5, 24], &device).detach(), leaf(&[24], &device).detach(), leaf(&[24], &device).detach());
        for dtype in [DType::F16, DType::BF16] {
            let t = [&x, &w, &b].map(|t| t.to_dtype(dtype).unwrap());
            t.iter().for_each(|t| t.set_requires_grad(true).unwrap());
            let y = t[0].layer_norm(&t[1], &t[2], 1e-5).unwrap();
            y.backward_with(&y.detach()).unwrap();
            let s = [0, 1, 2].map(|i| t[i].detach().to_dtype(DType::F32).unwrap());
            s.iter().for_each(|t| t.set_requires_grad(true).unwrap());
            let z = s[0].layer_norm(&s[1], &s[2], 1e-5).unwrap();
            z.backward_with(&y.detach().to_dtype(DType::F32).unwrap()).unwrap();
            let same = |a: &Tensor, b: &Tensor| {
                let b = b.detach().to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
                assert_eq!(
                    a.detach().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap(),
                    b.to_vec::<f32>().unwrap()
                );
            };
            same(&y, &z);
            (0..3).for_each(|i| same(&t[i].grad().unwrap(), &s[i].grad().unwrap()));
        }
    }
}

#[test]
fn a_destination_takes_part_in_the_backward_pass() {
    for device in devices() {
        let t = [leaf(&[3, 4], &device), leaf(&[4], &device), leaf(&[4], &device)];
        let dst = Tensor::zeros([3, 4], DType::F64, &device).unwrap();
        let id = dst.storage_id();
        t[0].layer_norm_into(&t[1], &t[2], 1e-5, &dst).unwrap();
        assert_eq!(dst.storage_id(), id);
        let y = t[0].layer_norm(&t[1], &t[2], 1e-5).unwrap();
        assert_eq!(dst.to_vec::<f64>().unwrap(), y.to_vec::<f64>().unwrap());
        let weights = leaf(&[3, 4], &device).detach();
        dst.backward_with(&weights).unwrap();
        let first = [0, 1, 2].map(|i: usize| t[i].grad().unwrap().to_vec::<f64>().unwrap());
        t.iter().for_each(|t| t.zero_grad().unwrap());
        y.backward_with(&weights).unwrap();
        assert_eq!(first, [0, 1, 2].map(|i: usize| t[i].grad().unwrap().to_vec::<f64>().unwrap()));
        // A destination that is some columns of a larger tensor.
        let wide = Tensor::zeros([3, 6], DType::F64, &device).unwrap();
        t[0].detach().rms_norm_into(&t[1].detach(), 1e-5, &wide.narrow(1, 1, 4).unwrap()).unwrap();
        let y = t[0].rms_norm(&t[1], 1e-5).unwrap();
        assert_eq!(wide.narrow(1, 1, 4).unwrap().to_vec::<f64>().unwrap(), y.to_vec::<f64>().unwrap());
        assert!(matches!(
            t[1].detach().rms_norm_into(&t[1], 1e-5, &t[1].detach()),
            Err(Error::Aliased { .. })
        ));
    }
}

#[test]
fn no_rows_give_no_gradient_and_no_columns_no_values() {
    for device in devices() {
        for shape in [[0, 4], [3, 0]] {
            let t = [leaf(&shape, &device), leaf(&[shape[1]], &device), leaf(&[shape[1]], &device)];
            for y in [t[0].layer_norm(&t[1], &t[2], 1e-5), t[0].rms_norm(&t[1], 1e-5)] {
                let y = y.unwrap();
                assert_eq!(y.dims(), shape);
                y.sum(()).unwrap().backward().unwrap();
            }
            assert!(t[1].grad().unwrap().to_vec::<f64>().unwrap().iter().all(|&g| g == 0.0));
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let (x, w) = (leaf(&[3, 4], &device).detach(), leaf(&[4], &device).detach());
        let text = x.layer_norm(&w, &leaf(&[3], &device), 1e-5).unwrap_err().to_string();
        assert!(text.starts_with("layer_norm") && text.contains("[3]") && text.contains("[4]"), "{text}");
        let f32s = w.to_dtype(DType::F32).unwrap();
        assert!(matches!(x.rms_norm(&f32s, 1e-5), Err(Error::DTypeMismatch { op: "rms_norm", .. })));
        assert!(matches!(x.rms_norm(&w, -1.0), Err(Error::InvalidArgument { .. })));
        assert!(matches!(x.rms_norm(&w, f64::NAN), Err(Error::InvalidArgument { .. })));
        let ints = Tensor::ones([3, 4], DType::I64, &device).unwrap();
        assert!(matches!(ints.layer_norm(&w, &w, 1e-5), Err(Error::Unsupported { op: "layer_norm", .. })));
        let scalar = Tensor::scalar(1.0f64, &device).unwrap();
        assert!(matches!(scalar.layer_norm(&w, &w, 1e-5), Err(Error::InvalidArgument { .. })));
    }
}

#[test]
fn only_what_is_trained_gets_a_gradient_and_the_same_as_together() {
    for device in devices() {
        let gradients = |trained: [bool; 3]| {
            let t = [leaf(&[70, 24], &device), leaf(&[24], &device), leaf(&[24], &device)];
            t.iter().zip(trained).for_each(|(t, on)| t.set_requires_grad(on).unwrap());
            for y in [t[0].layer_norm(&t[1], &t[2], 1e-5), t[0].rms_norm(&t[1], 1e-5)] {
                let loss = y.unwrap().square().unwrap().sum(()).unwrap();
                if loss.requires_grad() {
                    loss.backward().unwrap();
                }
            }
            t.map(|t| t.grad().map(|g| g.to_vec::<f64>().unwrap()))
        };
        let together = gradients([true; 3]);
        for some in 1..7 {
            let trained = [0, 1, 2].map(|i| some >> i & 1 == 1);
            for (i, gradient) in gradients(trained).into_iter().enumerate() {
                assert_eq!(gradient, together[i].clone().filter(|_| trained[i]), "of {trained:?}");
            }
        }
    }
}
