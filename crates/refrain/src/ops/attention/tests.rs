use crate::testing::{assert_close, devices, gradcheck, shortened, values};
use refrain::{DType, Device, Error, Precision, Tensor, no_grad, with_precision};

fn ramp(shape: &[usize], step: f64, device: &Device) -> Tensor {
    let n = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|i| ((i as f64 * step + 0.3) * 1.7).sin()).collect();
    let t = Tensor::from_slice(&v, shape, device).unwrap();
    t.set_requires_grad(true).unwrap();
    t
}

/// The largest difference; infinite if one is not a number.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, |most, d| if d.is_nan() { f64::INFINITY } else { most.max(d) })
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let (q, k, v) = (
            ramp(&[2, 3, 5, 4], 0.7, &device),
            ramp(&[2, 3, 6, 4], 1.3, &device),
            ramp(&[2, 3, 6, 4], 0.4, &device),
        );
        let f = |t: &[Tensor]| t[0].scaled_dot_product_attention(&t[1], &t[2], None, false);
        gradcheck(f, &[q.clone(), k, v], 1e-6).unwrap();
        let causal = |t: &[Tensor]| t[0].scaled_dot_product_attention(&t[0], &t[0], Some(0.7), true);
        gradcheck(causal, &[q], 1e-6).unwrap();
        // As in a layer: heads are slices of projections [batch, tokens, heads * dim].
        let x = ramp(&[2, 5, 12], 0.9, &device);
        let split = |t: &Tensor| t.reshape([2, 5, 3, 4])?.transpose(1, 2);
        gradcheck(
            |t| {
                let (q, kv) = (split(&t[0])?, split(&t[1])?);
                q.scaled_dot_product_attention(&kv, &kv, None, false)?.transpose(1, 2)?.view([2, 5, 12])
            },
            &[x, ramp(&[2, 5, 12], 0.6, &device)],
            1e-6,
        )
        .unwrap();
    }
}

#[test]
fn it_is_softmax_between_two_products() {
    for device in devices() {
        let (q, k, v) = (
            ramp(&[2, 70, 8], 0.7, &device),
            ramp(&[2, 70, 8], 1.3, &device),
            ramp(&[2, 70, 8], 0.4, &device),
        );
        let o = q.scaled_dot_product_attention(&k, &v, Some(0.5), false).unwrap().to_vec::<f64>().unwrap();
        let weights = q.matmul(&k.transpose(1, 2).unwrap()).unwrap().mul_scalar(0.5).unwrap().exp().unwrap();
        let sums = weights.sum_keepdim(2).unwrap();
        let expected = weights.matmul(&v).unwrap().div(&sums).unwrap().to_vec::<f64>().unwrap();
        assert!(o.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
    }
}

#[test]
fn a_result_that_is_written_to_has_no_gradient() {
    for device in devices() {
        let (q, k) = (ramp(&[2, 5, 4], 0.7, &device), ramp(&[2, 6, 4], 1.3, &device));
        let o = q.scaled_dot_product_attention(&k, &k, None, false).unwrap();
        let loss = o.sum(()).unwrap();
        no_grad(|| o.fill(0.0)).unwrap();
        let error = loss.backward().unwrap_err();
        assert!(matches!(error, Error::SavedValueOverwritten { by: "fill", .. }), "{error}");
    }
}

#[test]
fn one_key_and_wrong_shapes() {
    for device in devices() {
        let v = ramp(&[1, 2, 1, 3], 0.4, &device);
        let o = v.scaled_dot_product_attention(&v, &v, None, true).unwrap();
        assert_eq!(o.to_vec::<f64>().unwrap(), v.to_vec::<f64>().unwrap());
        let (q, wrong) =
            (ramp(&[1, 2, 4, 3], 0.1, &device), Tensor::zeros([1, 2, 4, 5], DType::F64, &device).unwrap());
        assert!(matches!(
            q.scaled_dot_product_attention(&wrong, &wrong, None, false),
            Err(Error::ShapeMismatch { .. })
        ));
        let none = Tensor::zeros([1, 2, 0, 3], DType::F64, &device).unwrap();
        assert!(matches!(
            q.scaled_dot_product_attention(&none, &none, None, false),
            Err(Error::InvalidArgument { .. })
        ));
        assert_eq!(none.scaled_dot_product_attention(&q, &q, None, false).unwrap().dims(), [1, 2, 0, 3]);
    }
}

/// `softmax(scale q k^T) v`, composed of single operations.
fn composed(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool, device: &Device) -> Tensor {
    let scale = 1.0 / (q.dims()[3] as f64).sqrt();
    let mut scores = q.matmul(&k.transpose(-2, -1).unwrap()).unwrap().mul_scalar(scale).unwrap();
    if causal {
        let (n, m) = (q.dims()[2], k.dims()[2]);
        let mask: Vec<f64> = (0..n * m).map(|i| if i % m > i / m { -1e30 } else { 0.0 }).collect();
        scores = scores.add(&Tensor::from_slice(&mask, [n, m], device).unwrap()).unwrap();
    }
    scores.softmax(-1).unwrap().matmul(v).unwrap()
}

#[test]
fn sequences_of_every_length_agree_with_the_operations_that_it_is_made_of() {
    for device in devices() {
        // Lengths that kernels divide into blocks and tiles differently, and heads that several lanes share.
        let cases = [
            ([3, 2, 5, 5], 16, false),
            ([2, 3, 41, 41], 8, false),
            ([2, 3, 41, 41], 8, true),
            ([1, 2, 17, 70], 20, false),
            ([1, 3, 70, 17], 33, false),
            ([1, 2, 150, 150], 40, true),
            ([9, 30, 6, 6], 4, true),
        ];
        for ([batch, heads, queries, keys], dim, causal) in cases {
            // As projections leave them: the heads of a token are contiguous.
            let projected = |tokens: usize, step| ramp(&[batch, tokens, heads, dim], step, &device);
            let leaves = [projected(queries, 0.7), projected(keys, 1.3), projected(keys, 0.4)];
            let weight = ramp(&[batch, heads, queries, dim], 0.9, &device).detach();
            let mut found = Vec::new();
            for fused in [true, false] {
                leaves.iter().for_each(|t| t.zero_grad().unwrap());
                let [q, k, v] = [0, 1, 2].map(|i| leaves[i].transpose(1, 2).unwrap());
                let o = match fused {
                    true => q.scaled_dot_product_attention(&k, &v, None, causal).unwrap(),
                    false => composed(&q, &k, &v, causal, &device),
                };
                o.mul(&weight).unwrap().sum(()).unwrap().backward().unwrap();
                let gradients = leaves.iter().map(|t| t.grad().unwrap().copy().unwrap());
                let all = std::iter::once(o.detach()).chain(gradients);
                found.push(all.map(|t| t.contiguous().unwrap().to_vec::<f64>().unwrap()).collect::<Vec<_>>());
            }
            for (what, (a, b)) in ["o", "dq", "dk", "dv"].iter().zip(found[0].iter().zip(&found[1])) {
                let worst = apart(a, b);
                let case = format!("{what} of {queries} x {keys}, {heads} heads of {dim}, causal: {causal}");
                assert!(worst < 1e-11, "{case}: {worst}");
            }
        }
    }
}

#[test]
fn sequences_agree_with_f64_in_every_dtype_and_precision() {
    for device in devices() {
        // Lengths, widths and strides that do and do not fill the fragments, blocks and tiles of tensor cores.
        let cases = [
            ([2, 3, 41, 41], 8, false, None),
            ([2, 3, 41, 41], 8, true, Some(-0.6)),
            ([3, 4, 41, 41], 4, false, None),
            ([5, 4, 5, 5], 16, false, None),
            ([2, 2, 12, 12], 64, false, None),
            ([3, 5, 17, 33], 24, true, None),
            ([1, 5, 64, 64], 16, false, Some(0.0)),
            ([2, 3, 1, 1], 3, false, None),
            ([2, 2, 7, 50], 12, true, None),
            ([1, 2, 63, 9], 33, false, None),
            ([1, 3, 30, 64], 64, false, None),
            ([2, 3, 63, 63], 64, false, None),
            ([2, 3, 64, 64], 32, false, None),
            ([2, 2, 42, 42], 30, true, None),
            ([1, 2, 64, 40], 32, false, Some(-0.4)),
            ([1, 2, 20, 64], 24, true, None),
            ([1, 2, 20, 30], 64, false, None),
            ([1, 3, 83, 83], 20, false, None),
            ([1, 2, 70, 150], 64, true, None),
            ([1, 2, 130, 130], 40, true, Some(-0.3)),
            ([1, 2, 200, 65], 128, false, None),
            ([1, 1, 90, 90], 33, true, None),
            ([1, 2, 20, 300], 96, false, None),
            ([2, 1, 300, 20], 16, true, Some(0.0)),
        ];
        let kinds = [
            (DType::F32, Precision::F32, 4e-6),
            (DType::F32, Precision::Tf32, 4e-3),
            (DType::F32, Precision::Bf16, 3e-2),
            (DType::F16, Precision::F32, 4e-3),
            (DType::BF16, Precision::F32, 3e-2),
        ];
        for (turn, ([batch, heads, queries, keys], dim, causal, scale)) in cases.into_iter().enumerate() {
            for (dtype, precision, tolerance) in shortened(kinds, turn, 3) {
                let projected = |tokens: usize, step| {
                    let x = ramp(&[batch, tokens, heads, dim], step, &device).detach();
                    x.to_dtype(dtype).unwrap()
                };
                let inputs = [projected(queries, 0.7), projected(keys, 1.3), projected(keys, 0.4)];
                let weight = projected(queries, 0.9).transpose(1, 2).unwrap();
                let run = |dtype: DType| {
                    let leaves = inputs.each_ref().map(|t| t.to_dtype(dtype).unwrap().detach());
                    leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
                    let [q, k, v] = leaves.each_ref().map(|t| t.transpose(1, 2).unwrap());
                    let o =
                        with_precision(precision, || q.scaled_dot_product_attention(&k, &v, scale, causal));
                    let o = o.unwrap();
                    let loss = o.mul(&weight.to_dtype(o.dtype()).unwrap()).unwrap().sum(()).unwrap();
                    loss.backward().unwrap();
                    let gradients = leaves.iter().map(|t| t.grad().unwrap().copy().unwrap());
                    let all = std::iter::once(o.detach()).chain(gradients);
                    all.map(|t| {
                        t.to_dtype(DType::F64).unwrap().contiguous().unwrap().to_vec::<f64>().unwrap()
                    })
                    .collect::<Vec<_>>()
                };
                for (what, (a, b)) in
                    ["o", "dq", "dk", "dv"].iter().zip(run(dtype).iter().zip(run(DType::F64)))
                {
                    let worst = apart(a, &b);
                    let most = b.iter().fold(1.0, |most: f64, b| most.max(b.abs()));
                    let case = format!(
                        "{what} of {queries} x {keys}, {heads} heads of {dim}, {dtype} {precision:?}"
                    );
                    assert!(worst < tolerance * most, "{case}: off by {worst} of {most}");
                }
            }
        }
    }
}

#[test]
fn a_query_that_is_not_a_number_spoils_its_own_output_only() {
    for device in devices() {
        for (dtype, tokens, dim) in [(DType::F32, 9, 8), (DType::BF16, 9, 8), (DType::BF16, 140, 40)] {
            let x: Vec<f32> = (0..2 * tokens * dim).map(|i| (i as f32 * 0.7).sin()).collect();
            let mut spoilt = x.clone();
            spoilt[3 * dim + 5] = f32::NAN;
            let [x, spoilt] = [x, spoilt].map(|x| {
                let x = Tensor::from_slice(&x, [1, 2, tokens, dim], &device).unwrap();
                x.to_dtype(dtype).unwrap()
            });
            let o = spoilt.scaled_dot_product_attention(&x, &x, None, false).unwrap();
            let o = o.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            for (row, o) in o.chunks(dim).enumerate() {
                assert!(o.iter().all(|x| x.is_nan() == (row == 3)), "{dtype}, row {row}: {o:?}");
            }
        }
    }
}

#[test]
fn packed_queries_keys_and_values_are_attended_to_as_apart() {
    for device in devices() {
        for (dtype, tolerance) in [(DType::F64, 0.0), (DType::F32, 1e-6), (DType::BF16, 2e-2)] {
            for ([batch, tokens, heads, dim], causal) in
                [([2, 41, 3, 8], false), ([3, 5, 4, 16], true), ([1, 70, 2, 5], true)]
            {
                let leaf =
                    ramp(&[batch, tokens, 3, heads, dim], 0.7, &device).detach().to_dtype(dtype).unwrap();
                let weight =
                    ramp(&[batch, tokens, heads, dim], 0.9, &device).detach().to_dtype(dtype).unwrap();
                let run = |packed: bool| {
                    let leaf = leaf.copy().unwrap();
                    leaf.set_requires_grad(true).unwrap();
                    let o = if packed {
                        leaf.scaled_dot_product_attention_qkvpacked(Some(0.5), causal).unwrap()
                    } else {
                        let part = |i| leaf.select(2, i).unwrap().transpose(1, 2).unwrap();
                        let (q, k, v) = (part(0), part(1), part(2));
                        let o = q.scaled_dot_product_attention(&k, &v, Some(0.5), causal).unwrap();
                        o.transpose(1, 2).unwrap()
                    };
                    o.mul(&weight).unwrap().sum(()).unwrap().backward().unwrap();
                    [values(&o), values(&leaf.grad().unwrap())]
                };
                for (a, b) in run(true).iter().zip(run(false)) {
                    assert_close(a, &b, tolerance);
                }
            }
        }
        let qkv = ramp(&[1, 3, 3, 2, 4], 0.7, &device);
        gradcheck(
            |t| t[0].scaled_dot_product_attention_qkvpacked(None, true),
            std::slice::from_ref(&qkv),
            1e-6,
        )
        .unwrap();
        let none = ramp(&[2, 0, 3, 2, 4], 0.7, &device);
        let o = none.scaled_dot_product_attention_qkvpacked(None, false).unwrap();
        assert_eq!(o.dims(), [2, 0, 2, 4]);
        o.sum(()).unwrap().backward().unwrap();
        let wrong = ramp(&[1, 3, 2, 4], 0.7, &device)
            .scaled_dot_product_attention_qkvpacked(None, false)
            .unwrap_err();
        let message = wrong.to_string();
        assert!(message.contains("[batch, tokens, 3, heads, dim]"), "{message}");
    }
}
