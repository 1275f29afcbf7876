use crate::testing::{devices, gradcheck, leaf};
use refrain::{DType, Tensor};

#[test]
fn elements_beyond_the_diagonal_are_zero() {
    for device in devices() {
        for [rows, columns] in [[3, 3], [2, 5], [5, 2], [1, 1], [1, 4], [4, 1]] {
            let n = 2 * rows * columns;
            let x = Tensor::arange(1.0, n as f64 + 1.0, 1.0, DType::F64, &device).unwrap();
            let x = x.reshape([2, rows, columns]).unwrap();
            for diagonal in [0, 1, -1, 3, -4, i64::MAX, i64::MIN] {
                let expected = |lower: bool| -> Vec<f64> {
                    let kept = |r: usize, c: usize| {
                        let beyond = c as i128 - r as i128 - diagonal as i128;
                        if lower { beyond <= 0 } else { beyond >= 0 }
                    };
                    let place = |i: usize| (i / columns % rows, i % columns);
                    (0..n).map(|i| if kept(place(i).0, place(i).1) { i as f64 + 1.0 } else { 0.0 }).collect()
                };
                assert_eq!(
                    x.tril(diagonal).unwrap().to_vec::<f64>().unwrap(),
                    expected(true),
                    "tril {diagonal}"
                );
                assert_eq!(
                    x.triu(diagonal).unwrap().to_vec::<f64>().unwrap(),
                    expected(false),
                    "triu {diagonal}"
                );
            }
        }
    }
}

#[test]
fn every_dtype_and_nothing_are_taken_and_a_vector_is_not() {
    for device in devices() {
        for dtype in DType::ALL {
            let y = Tensor::ones([2, 2], dtype, &device).unwrap().tril(0).unwrap();
            assert_eq!(
                y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
                [1.0, 0.0, 1.0, 1.0],
                "{dtype}"
            );
        }
        let none = Tensor::zeros([0, 3, 3], DType::F32, &device).unwrap();
        assert_eq!(none.triu(0).unwrap().dims(), [0, 3, 3]);
        let text = Tensor::zeros([3], DType::F32, &device).unwrap().triu(0).unwrap_err().to_string();
        assert!(text.starts_with("triu") && text.contains("two axes"), "{text}");
    }
}

#[test]
fn what_is_cut_off_has_no_influence_and_no_gradient() {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f32, f32::NAN, f32::INFINITY, 2.0], [2, 2], &device).unwrap();
        assert_eq!(x.tril(0).unwrap().triu(0).unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0, 2.0]);
        gradcheck(|t| t[0].tril(1)?.square(), &[leaf(&[2, 3, 4], &device)], 1e-6).unwrap();
        gradcheck(|t| t[0].transpose(0, 1)?.triu(0)?.square(), &[leaf(&[3, 4], &device)], 1e-6).unwrap();
    }
}
