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
