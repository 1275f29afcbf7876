use crate::testing::{assert_close, devices, gradcheck, leaf, numbers, values};
use refrain::{DType, Error, Tensor};

/// The softmax of one row, or its logarithm, as the formula says.
fn formula(x: &[f64], log: bool) -> Vec<f64> {
    let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - largest).exp()).sum();
    x.iter().map(|x| if log { x - largest - sum.ln() } else { (x - largest).exp() / sum }).collect()
}

#[test]
fn every_axis_follows_the_formula_in_every_dtype() {
    for device in devices() {
        // Large enough for several tasks, and for columns whose sums are computed in pieces.
        for (shape, axis) in [
            ([3, 5, 7], 0),
            ([3, 5, 7], 1),
            ([3, 5, 7], 2),
            ([2, 3000, 3], 1),
            ([2, 2, 20_000], 2),
            ([2, 5, 9000], 1),
        ] {
            let x = Tensor::from_slice(&numbers(shape.iter().product()), shape, &device).unwrap();
            for (dtype, ulp) in [
                (DType::F64, f64::EPSILON),
                (DType::F32, f32::EPSILON as f64),
                (DType::F16, 2f64.powi(-10)),
                (DType::BF16, 2f64.powi(-7)),
            ] {
                let x = x.to_dtype(dtype).unwrap();
                let rows = x.to_dtype(DType::F64).unwrap().transpose(axis, 2).unwrap();
                for log in [false, true] {
                    let y = if log { x.log_softmax(axis) } else { x.softmax(axis) }.unwrap();
                    let expected: Vec<f64> = rows
                        .to_vec::<f64>()
                        .unwrap()
                        .chunks(shape[axis as usize])
                        .flat_map(|r| formula(r, log))
                        .collect();
                    let scale = expected.iter().fold(0.0f64, |m, e| m.max(e.abs()));
                    // The rounding of the exponentials, and of sums in different orders (both here and there).
                    let ulps = 8.0 + (shape[axis as usize] as f64).sqrt();
                    assert_close(&values(&y.transpose(axis, 2).unwrap()), &expected, ulps * ulp * scale);
                }
            }
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for (shape, axis) in
            [(&[3, 4, 5][..], 0), (&[3, 4, 5], 1), (&[3, 4, 5], -1), (&[2, 37], 1), (&[4, 1], 1), (&[6], 0)]
        {
            let x = [leaf(shape, &device)];
            gradcheck(|t| t[0].softmax(axis), &x, 1e-6).unwrap();
            gradcheck(|t| t[0].log_softmax(axis), &x, 1e-6).unwrap();
            // Added to the gradient of another path.
            gradcheck(|t| t[0].square()?.add(&t[0].log_softmax(axis)?), &x, 1e-6).unwrap();
        }
        gradcheck(|t| t[0].transpose(0, 1)?.softmax(1), &[leaf(&[3, 4], &device)], 1e-6).unwrap();
    }
}

/// Compares sums over columns in pieces, forward and backward, with sums over rows.
#[test]
fn long_columns_have_the_gradients_of_long_rows() {
    for device in devices() {
        let x = leaf(&[2, 3000, 3], &device);
        let weights = Tensor::from_slice(&numbers(18_000), [2, 3000, 3], &device).unwrap();
        for log in [false, true] {
            let f = |t: &Tensor, axis| if log { t.log_softmax(axis) } else { t.softmax(axis) }.unwrap();
            x.set_grad(&x.zeros_like().unwrap()).unwrap();
            f(&x, 1).backward_with(&weights).unwrap();
            let columns = values(&x.grad().unwrap());
            x.zero_grad().unwrap();
            f(&x.transpose(1, 2).unwrap(), 2).backward_with(&weights.transpose(1, 2).unwrap()).unwrap();
            assert_close(&columns, &values(&x.grad().unwrap()), 1e-11);
        }
    }
}

#[test]
fn masked_and_special_values_give_what_the_formula_gives() {
    for device in devices() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let x = [1.0, -inf, 1.0, -inf, -inf, -inf, 1.0, nan, 0.0, inf, 0.0, 0.0];
        let x = Tensor::from_slice(&x, [4, 3], &device).unwrap();
        let bad = [f64::NAN; 3];
        let expected = [&[0.5, 0.0, 0.5][..], &bad, &bad, &[f64::NAN; 3]].concat();
        for y in
            [x.softmax(1).unwrap(), x.transpose(0, 1).unwrap().softmax(0).unwrap().transpose(0, 1).unwrap()]
        {
            assert_close(&values(&y), &expected, 0.0);
        }
        let y = x.narrow(0, 0, 1).unwrap().log_softmax(1).unwrap();
        assert_close(&values(&y), &[-(2f64.ln()), f64::NEG_INFINITY, -(2f64.ln())], 1e-7);
        // A piece of a long column that is all negative infinity.
        let mut column = vec![-inf; 5000];
        column[4000..].fill(2.0);
        let x = Tensor::from_slice(&column, [5000, 1], &device).unwrap().broadcast_to([5000, 2]).unwrap();
        assert_close(
            &values(&x.softmax(0).unwrap().narrow(0, 3999, 2).unwrap()),
            &[0.0, 0.0, 1e-3, 1e-3],
            1e-9,
        );
    }
}

#[test]
fn empty_shapes_and_bad_arguments() {
    for device in devices() {
        let x = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap();
        for axis in 0..3 {
            assert_eq!(x.softmax(axis).unwrap().dims(), [2, 0, 3]);
        }
        let text = x.softmax(3).unwrap_err().to_string();
        assert!(text.starts_with("softmax") && text.contains('3'), "{text}");
        let ints = Tensor::ones([2], DType::I64, &device).unwrap();
        assert!(matches!(ints.log_softmax(0), Err(Error::Unsupported { op: "log_softmax", .. })));
        let scalar = Tensor::scalar(1.0f32, &device).unwrap();
        assert!(matches!(scalar.softmax(0), Err(Error::InvalidArgument { .. })));
        let y = Tensor::ones([3], DType::F32, &device).unwrap();
        assert!(matches!(y.softmax_into(0, &y), Err(Error::Aliased { op: "softmax", .. })));
        let dst = y.zeros_like().unwrap();
        y.log_softmax_into(0, &dst).unwrap();
        assert_close(&values(&dst), &[-(3f64.ln()); 3], 1e-6);
    }
}
