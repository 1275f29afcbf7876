use crate::ops::testing::device;
use crate::{DType, Error, Tensor, gradcheck};

fn ramp(shape: &[usize], step: f64) -> Tensor {
    let n = shape.iter().product();
    let v: Vec<f64> = (0..n).map(|i| ((i as f64 * step + 0.3) * 1.7).sin()).collect();
    let t = Tensor::from_slice(&v, shape, &device()).unwrap();
    t.set_requires_grad(true).unwrap();
    t
}

#[test]
fn gradients_agree_with_finite_differences() {
    let (q, k, v) = (ramp(&[2, 3, 5, 4], 0.7), ramp(&[2, 3, 6, 4], 1.3), ramp(&[2, 3, 6, 4], 0.4));
    let f = |t: &[Tensor]| t[0].scaled_dot_product_attention(&t[1], &t[2], None, false);
    gradcheck(f, &[q.clone(), k, v], 1e-6).unwrap();
    let causal = |t: &[Tensor]| t[0].scaled_dot_product_attention(&t[0], &t[0], Some(0.7), true);
    gradcheck(causal, &[q], 1e-6).unwrap();
    // As a layer has them: heads cut out of projections [batch, tokens, heads * dim].
    let x = ramp(&[2, 5, 12], 0.9);
    let split = |t: &Tensor| t.reshape([2, 5, 3, 4])?.transpose(1, 2);
    gradcheck(
        |t| {
            let (q, kv) = (split(&t[0])?, split(&t[1])?);
            q.scaled_dot_product_attention(&kv, &kv, None, false)?.transpose(1, 2)?.view([2, 5, 12])
        },
        &[x, ramp(&[2, 5, 12], 0.6)],
        1e-6,
    )
    .unwrap();
}

#[test]
fn it_is_softmax_between_two_products() {
    let (q, k, v) = (ramp(&[2, 70, 8], 0.7), ramp(&[2, 70, 8], 1.3), ramp(&[2, 70, 8], 0.4));
    let o = q.scaled_dot_product_attention(&k, &v, Some(0.5), false).unwrap().to_vec::<f64>().unwrap();
    let weights = q.matmul(&k.transpose(1, 2).unwrap()).unwrap().mul_scalar(0.5).unwrap().exp().unwrap();
    let sums = weights.sum_keepdim(2).unwrap();
    let expected = weights.matmul(&v).unwrap().div(&sums).unwrap().to_vec::<f64>().unwrap();
    assert!(o.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12));
}

#[test]
fn one_key_and_wrong_shapes() {
    let v = ramp(&[1, 2, 1, 3], 0.4);
    let o = v.scaled_dot_product_attention(&v, &v, None, true).unwrap();
    assert_eq!(o.to_vec::<f64>().unwrap(), v.to_vec::<f64>().unwrap());
    let d = device();
    let (q, wrong) = (ramp(&[1, 2, 4, 3], 0.1), Tensor::zeros([1, 2, 4, 5], DType::F64, &d).unwrap());
    assert!(matches!(
        q.scaled_dot_product_attention(&wrong, &wrong, None, false),
        Err(Error::ShapeMismatch { .. })
    ));
    let none = Tensor::zeros([1, 2, 0, 3], DType::F64, &d).unwrap();
    assert!(matches!(
        q.scaled_dot_product_attention(&none, &none, None, false),
        Err(Error::InvalidArgument { .. })
    ));
    assert_eq!(none.scaled_dot_product_attention(&q, &q, None, false).unwrap().dims(), [1, 2, 0, 3]);
}

/// `softmax(scale q k^T) v`, operation by operation.
fn composed(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Tensor {
    let scale = 1.0 / (q.dims()[3] as f64).sqrt();
    let mut scores = q.matmul(&k.transpose(-2, -1).unwrap()).unwrap().mul_scalar(scale).unwrap();
    if causal {
        let (n, m) = (q.dims()[2], k.dims()[2]);
        let mask: Vec<f64> = (0..n * m).map(|i| if i % m > i / m { -1e30 } else { 0.0 }).collect();
        scores = scores.add(&Tensor::from_slice(&mask, [n, m], &device()).unwrap()).unwrap();
    }
    scores.softmax(-1).unwrap().matmul(v).unwrap()
}

#[test]
fn sequences_of_every_length_agree_with_the_operations_that_it_is_made_of() {
    // Lengths at which kernels are cut into blocks and tiles differently, heads that are shared by lanes.
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
        // As projections leave them: the heads of a token follow each other.
        let projected = |tokens: usize, step| ramp(&[batch, tokens, heads, dim], step);
        let leaves = [projected(queries, 0.7), projected(keys, 1.3), projected(keys, 0.4)];
        let weight = ramp(&[batch, heads, queries, dim], 0.9).detach();
        let mut found = Vec::new();
        for fused in [true, false] {
            leaves.iter().for_each(|t| t.zero_grad().unwrap());
            let [q, k, v] = [0, 1, 2].map(|i| leaves[i].transpose(1, 2).unwrap());
            let o = match fused {
                true => q.scaled_dot_product_attention(&k, &v, None, causal).unwrap(),
                false => composed(&q, &k, &v, causal),
            };
            o.mul(&weight).unwrap().sum(()).unwrap().backward().unwrap();
            let gradients = leaves.iter().map(|t| t.grad().unwrap().copy().unwrap());
            let all = std::iter::once(o.detach()).chain(gradients);
            found.push(all.map(|t| t.contiguous().unwrap().to_vec::<f64>().unwrap()).collect::<Vec<_>>());
        }
        for (what, (a, b)) in ["o", "dq", "dk", "dv"].iter().zip(found[0].iter().zip(&found[1])) {
            let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            let case = format!("{what} of {queries} x {keys}, {heads} heads of {dim}, causal: {causal}");
            assert!(worst < 1e-11, "{case}: {worst}");
        }
    }
}
