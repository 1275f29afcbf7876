use crate::testing::{assert_close, devices, gradcheck, leaf, shortened, values};
use refrain::{DType, Device, Error, Result, Tensor};

/// Weight, bias, running mean and running variance of some channels.
fn parameters(channels: usize, dtype: DType, device: &Device) -> [Tensor; 4] {
    let x = leaf(&[4, channels], device).detach();
    [0, 1, 2, 3].map(|i| {
        let p = x.select(0, i).unwrap();
        if i == 3 { p.square().unwrap().add_scalar(0.5) } else { p.copy() }
            .unwrap()
            .to_dtype(dtype)
            .unwrap()
            .detach()
    })
}

fn normalise(x: &Tensor, p: &[Tensor], axis: isize, training: bool) -> Result<Tensor> {
    x.batch_norm(&p[0], &p[1], &p[2], &p[3], axis, training, 0.125, 1e-3)
}

/// A vector of channels, shaped to broadcast along the others of three axes.
fn along(t: &Tensor, axis: usize) -> Tensor {
    let mut shape = [1; 3];
    shape[axis] = t.numel();
    t.to_dtype(DType::F64).unwrap().reshape(shape).unwrap()
}

#[test]
fn channels_are_normalised_and_running_statistics_move() {
    for device in devices() {
        // Few values and many; lines of one channel, of all channels and of one element.
        for shape in
            [[4, 3, 5], [6, 3, 1], [1, 4, 300], [70, 40, 11], [3000, 8, 2], [120, 1, 600], [900, 1, 700]]
        {
            for axis in 0..3 {
                let others: Vec<isize> = (0..3).filter(|&a| a != axis as isize).collect();
                let count = shape.iter().product::<usize>() / shape[axis];
                for (dtype, tolerance) in
                    [(DType::F64, 1e-11), (DType::F32, 1e-4), (DType::F16, 8e-3), (DType::BF16, 6e-2)]
                {
                    let x = leaf(&shape, &device).detach().to_dtype(dtype).unwrap();
                    let exact = x.to_dtype(DType::F64).unwrap();
                    let p = parameters(shape[axis], dtype, &device);
                    let before = [2, 3].map(|i: usize| values(&p[i]));
                    let formula = |mean: &Tensor, var: &Tensor| {
                        let inv = var.add_scalar(1e-3).unwrap().rsqrt().unwrap();
                        let y = exact.sub(mean).unwrap().mul(&inv).unwrap().mul(&along(&p[0], axis)).unwrap();
                        values(&y.add(&along(&p[1], axis)).unwrap())
                    };
                    let y = normalise(&x, &p, axis as isize, false).unwrap();
                    assert_close(&values(&y), &formula(&along(&p[2], axis), &along(&p[3], axis)), tolerance);
                    assert_eq!(before, [2, 3].map(|i: usize| values(&p[i])), "evaluation changes nothing");

                    let ids = [p[2].storage_id(), p[3].storage_id()];
                    let y = normalise(&x, &p, axis as isize, true).unwrap();
                    let mean = exact.mean_keepdim(&others[..]).unwrap();
                    let var = exact.var_keepdim(&others[..], 0).unwrap();
                    assert_close(&values(&y), &formula(&mean, &var), tolerance);
                    let unbiased =
                        values(&var).iter().map(|v| v * count as f64 / (count - 1) as f64).collect();
                    for (i, new) in [values(&mean), unbiased].into_iter().enumerate() {
                        let expected: Vec<f64> =
                            before[i].iter().zip(&new).map(|(b, n)| 0.875 * b + 0.125 * n).collect();
                        assert_close(&values(&p[i + 2]), &expected, tolerance);
                    }
                    assert_eq!(ids, [p[2].storage_id(), p[3].storage_id()]);
                }
            }
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for (shape, axis) in
            [(&[4, 3, 5][..], 1), (&[4, 3, 5], 0), (&[4, 3, 5], -1), (&[6, 3], 1), (&[5, 1], 1), (&[7], 0)]
        {
            let channels = leaf(shape, &device).size(axis).unwrap();
            let p = parameters(channels, DType::F64, &device);
            let t = [leaf(shape, &device), leaf(&[channels], &device), leaf(&[channels], &device)];
            for training in [true, false] {
                // A channel with one value has no variance.
                if shape == [7] && training {
                    continue;
                }
                let f = |t: &[Tensor]| {
                    normalise(
                        &t[0],
                        &[t[1].clone(), t[2].clone(), p[2].clone(), p[3].clone()],
                        axis,
                        training,
                    )
                };
                gradcheck(f, &t, 1e-6).unwrap();
                // The gradient is added to that of another path.
                gradcheck(|t| t[0].square()?.add(&f(t)?), &t, 1e-6).unwrap();
            }
        }
    }
}

#[test]
fn gradients_of_many_values_are_those_of_the_formula() {
    // Lines of one channel and of all channels, few channels and many.
    let cases = [
        ([50, 7, 100], 1, [0, 2]),
        ([60, 100, 7], 2, [0, 1]),
        ([60, 100, 16], 2, [0, 1]),
        ([9, 40, 600], 2, [0, 1]),
        ([40, 120, 8], 1, [0, 2]),
        // Many neighbouring channels, of which threads keep some in registers: a block has whole rows, or 25 of them together have.
        ([30, 100, 512], 2, [0, 1]),
        ([25, 300, 100], 2, [0, 1]),
    ];
    let dtypes = [(DType::F64, 1e-12), (DType::F32, 1e-5), (DType::F16, 2e-3), (DType::BF16, 2e-2)];
    for device in devices() {
        let cases = cases.into_iter().enumerate();
        for ((shape, axis, others), (dtype, tolerance)) in
            cases.flat_map(|(turn, case)| shortened(dtypes, turn, 2).map(move |dtype| (case, dtype)))
        {
            let x = leaf(&shape, &device).detach().to_dtype(dtype).unwrap();
            let parameter_dtype = if dtype == DType::BF16 { DType::F32 } else { dtype };
            let p = parameters(shape[axis], parameter_dtype, &device);
            let dy = x.sin().unwrap();
            let count = (x.numel() / shape[axis]) as f64;
            let gradients = |x: &Tensor, y: &Tensor, p: [&Tensor; 2], dy: &Tensor| {
                y.backward_with(dy).unwrap();
                let [w, b] = p.map(|p| values(&p.grad().unwrap().mul_scalar(1.0 / count).unwrap()));
                [values(&x.grad().unwrap()), w, b]
            };
            let [x, w, b] = [&x, &p[0], &p[1]].map(|t| t.detach());
            [&x, &w, &b].iter().for_each(|t| t.set_requires_grad(true).unwrap());
            let y = x.batch_norm(&w, &b, &p[2], &p[3], axis as isize, true, 0.125, 1e-3).unwrap();
            let fused = gradients(&x, &y, [&w, &b], &dy);
            let exact = [&x, &w, &b].map(|t| t.detach().to_dtype(DType::F64).unwrap().detach());
            exact.iter().for_each(|t| t.set_requires_grad(true).unwrap());
            let [x, w, b] = exact;
            let inv = x.var_keepdim(others, 0).unwrap().add_scalar(1e-3).unwrap().rsqrt().unwrap();
            let n = x.sub(&x.mean_keepdim(others).unwrap()).unwrap().mul(&inv).unwrap();
            let y = n.mul(&along(&w, axis)).unwrap().add(&along(&b, axis)).unwrap();
            let formula = gradients(&x, &y, [&w, &b], &dy.to_dtype(DType::F64).unwrap());
            for (a, b) in fused.iter().zip(&formula) {
                assert_close(a, b, tolerance);
            }
        }
    }
}

/// In one pass or in several, with columns that fill registers and others.
#[test]
fn halves_are_normalised_as_f32_and_rounded_once() {
    let device = Device::cpu();
    for (dtype, channels) in [(DType::F16, 37), (DType::F16, 7), (DType::F16, 600), (DType::BF16, 37)] {
        let x = leaf(&[70, channels], &device).detach().to_dtype(dtype).unwrap();
        for training in [true, false] {
            let of = |dtype: DType| {
                let p =
                    parameters(channels, DType::BF16, &device).map(|t| t.to_dtype(dtype).unwrap().detach());
                normalise(&x.to_dtype(dtype).unwrap(), &p, 1, training).unwrap()
            };
            let wide = of(DType::F32).to_dtype(dtype).unwrap();
            assert_eq!(values(&of(dtype)), values(&wide), "{channels} channels, {dtype}, {training}");
        }
    }
}

#[test]
fn destinations_and_statistics_may_be_parts_of_larger_tensors() {
    for device in devices() {
        let x = leaf(&[6, 3], &device).detach();
        let p = parameters(3, DType::F64, &device);
        let q = parameters(3, DType::F64, &device);
        // Every second element, so the statistics are strided.
        let holes = Tensor::zeros([3, 2], DType::F64, &device).unwrap();
        let mean = holes.select(1, 1).unwrap();
        mean.copy_from(&q[2]).unwrap();
        let dst = Tensor::zeros([6, 5], DType::F64, &device).unwrap();
        let part = dst.narrow(1, 1, 3).unwrap();
        x.batch_norm_into(&q[0], &q[1], &mean, &q[3], 1, true, 0.125, 1e-3, &part).unwrap();
        assert_eq!(values(&part), values(&normalise(&x, &p, 1, true).unwrap()));
        assert_eq!((values(&mean), values(&q[3])), (values(&p[2]), values(&p[3])));
        assert_eq!(values(&holes.select(1, 0).unwrap()), [0.0; 3]);
        let same = x.batch_norm_into(&q[0], &q[1], &q[2], &q[3], 1, true, 0.1, 1e-3, &x);
        assert!(matches!(same, Err(Error::Aliased { op: "batch_norm", .. })));
        let same = x.batch_norm(&q[0], &q[1], &q[0], &q[3], 1, true, 0.1, 1e-3);
        assert!(matches!(same, Err(Error::Aliased { op: "batch_norm", .. })));
        // The running statistics are separate, or next to each other in one tensor.
        let both = Tensor::ones([4, 2], DType::F64, &device).unwrap();
        let column = |i| both.narrow(0, 0, 3).unwrap().select(1, i).unwrap();
        let next = both.narrow(0, 1, 3).unwrap().select(1, 0).unwrap();
        for (mean, var) in [(&q[2], &q[2]), (&column(0), &next)] {
            let e = x.batch_norm(&q[0], &q[1], mean, var, 1, true, 0.1, 1e-3).unwrap_err();
            assert!(matches!(e, Error::Aliased { op: "batch_norm", .. }), "{e}");
            assert!(e.to_string().contains("a tensor of its own"), "{e}");
            x.batch_norm(&q[0], &q[1], mean, var, 1, false, 0.1, 1e-3).unwrap();
        }
        x.batch_norm(&q[0], &q[1], &column(0), &column(1), 1, true, 0.1, 1e-3).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let x = leaf(&[1, 3], &device).detach();
        let p = parameters(3, DType::F64, &device);
        let text = normalise(&x, &p, 1, true).unwrap_err().to_string();
        assert!(
            text.starts_with("batch_norm") && text.contains("[1, 3]") && text.contains("larger batch"),
            "{text}"
        );
        assert_eq!(normalise(&x, &p, 1, false).unwrap().dims(), [1, 3]);
        let empty = Tensor::zeros([0, 3], DType::F64, &device).unwrap();
        assert_eq!(normalise(&empty, &p, 1, false).unwrap().dims(), [0, 3]);
        assert!(matches!(normalise(&empty, &p, 1, true), Err(Error::InvalidArgument { .. })));
        let x = leaf(&[4, 3], &device).detach();
        assert!(matches!(normalise(&x, &p, 0, true), Err(Error::ShapeMismatch { op: "batch_norm", .. })));
        assert!(matches!(normalise(&x, &p, 2, true), Err(Error::InvalidArgument { .. })));
        assert!(matches!(
            normalise(&x, &parameters(3, DType::F32, &device), 1, true),
            Err(Error::DTypeMismatch { .. })
        ));
        assert!(matches!(
            x.batch_norm(&p[0], &p[1], &p[2], &p[3], 1, true, 1.5, 1e-3),
            Err(Error::InvalidArgument { .. })
        ));
        p[2].set_requires_grad(true).unwrap();
        assert!(matches!(normalise(&x, &p, 1, true), Err(Error::Autograd { op: "batch_norm", .. })));
    }
}

/// More than is converted at a time, with channels last and not.
#[test]
fn halves_are_normalised_in_f32() {
    for device in devices() {
        for (shape, axis) in [(&[130, 70][..], 1), (&[4, 3, 50, 30], 1), (&[300, 2], 1)] {
            let x = leaf(shape, &device).detach();
            for (dtype, ulp) in [(DType::F16, 2f64.powi(-10)), (DType::BF16, 2f64.powi(-7))] {
                let x = x.to_dtype(dtype).unwrap();
                let of = |dtype| {
                    let p = parameters(shape[1], DType::F32, &device);
                    values(&normalise(&x.to_dtype(dtype).unwrap(), &p, axis, true).unwrap())
                };
                let expected = of(DType::F32);
                let scale = expected.iter().fold(1.0f64, |most, v| most.max(v.abs()));
                assert_close(&of(dtype), &expected, ulp * scale);
            }
        }
    }
}
