//! Tensors print as NumPy prints arrays (with commas between the elements, as in its `repr`), then
//! dtype and shape.

mod common;

use common::{devices, tensor};
use refrain::{DType, Tensor};

fn shows(t: &Tensor, expected: &str) {
    let text = t.to_string();
    assert_eq!(text, expected, "\n{text}\n  expected\n{expected}");
}

#[test]
fn values_are_aligned_with_as_many_digits_as_they_need() {
    for device in devices() {
        let t = |v: &[f64], shape: &[usize], dtype| tensor(v, shape, dtype, &device);
        shows(&t(&[1.5], &[], DType::F32), "1.5 f32 []");
        shows(&t(&[3.0], &[], DType::I64), "3 i64 []");
        shows(&t(&[1.0, 2.0, 3.0], &[3], DType::F64), "[1., 2., 3.] f64 [3]");
        shows(&t(&[1.0, -2.0, 30.0], &[3], DType::I32), "[ 1, -2, 30] i32 [3]");
        shows(&t(&[1.0, 0.0], &[2], DType::Bool), "[ true, false] bool [2]");
        shows(&t(&[0.25, -10.0], &[2], DType::BF16), "[  0.25, -10.00] bf16 [2]");
        shows(&t(&[0.1, 1.0 / 3.0], &[2], DType::F32), "[0.1000, 0.3333] f32 [2]");
        shows(&t(&[0.0, -0.0], &[2], DType::F32), "[ 0., -0.] f32 [2]");
        shows(&t(&[255.0], &[1], DType::U8), "[255] u8 [1]");
    }
}

#[test]
fn what_is_no_number_or_not_finite_is_aligned_too() {
    for device in devices() {
        let t = tensor(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1.5], &[2, 2][..], DType::F32, &device);
        shows(&t, "[[ nan,  inf],\n [-inf,  1.5]] f32 [2, 2]");
        shows(&tensor(&[f64::NAN; 2], [2], DType::F64, &device), "[nan, nan] f64 [2]");
    }
}

#[test]
fn very_large_and_very_small_values_get_an_exponent() {
    for device in devices() {
        let t = |v: &[f64]| tensor(v, [v.len()], DType::F64, &device);
        shows(&t(&[1e10, 1.0]), "[1.e+10, 1.e+00] f64 [2]");
        shows(&t(&[1e-5, 0.5]), "[1.e-05, 5.e-01] f64 [2]");
        shows(&t(&[-1e-300, f64::NAN]), "[-1.e-300,      nan] f64 [2]");
        shows(&t(&[1.25e-5, 1.0 / 3.0]), "[1.2500e-05, 3.3333e-01] f64 [2]");
        // Their largest value has no more than eight digits, their smallest no fewer than 1e-4.
        shows(&t(&[12345678.0, 0.5]), "[12345678.0,        0.5] f64 [2]");
    }
}

#[test]
fn integers_are_shown_to_the_last_digit() {
    for device in devices() {
        let t = Tensor::from_slice(&[i64::MAX, i64::MIN, (1 << 53) + 1], [3], &device).unwrap();
        shows(&t, "[ 9223372036854775807, -9223372036854775808,     9007199254740993] i64 [3]");
    }
}

#[test]
fn matrices_and_stacks_of_them_break_lines_as_numpy_does() {
    for device in devices() {
        let t = Tensor::arange(0.0, 12.0, 1.0, DType::I64, &device).unwrap();
        shows(
            &t.reshape([2, 3, 2]).unwrap(),
            "[[[ 0,  1],\n  [ 2,  3],\n  [ 4,  5]],\n\n [[ 6,  7],\n  [ 8,  9],\n  [10, 11]]] i64 [2, 3, 2]",
        );
        shows(
            &t.reshape([3, 4]).unwrap().transpose(0, 1).unwrap().narrow(0, 0, 2).unwrap(),
            "[[0, 4, 8],\n [1, 5, 9]] i64 [2, 3]",
        );
    }
}

#[test]
fn empty_tensors_and_views_of_them_print() {
    for device in devices() {
        shows(&Tensor::zeros([0], DType::F32, &device).unwrap(), "[] f32 [0]");
        shows(&Tensor::zeros([0, 3], DType::F32, &device).unwrap(), "[] f32 [0, 3]");
        shows(&Tensor::zeros([2, 0], DType::F32, &device).unwrap(), "[] f32 [2, 0]");
        shows(&Tensor::zeros([5, 0], DType::I64, &device).unwrap().narrow(0, 3, 2).unwrap(), "[] i64 [2, 0]");
    }
}

#[test]
fn long_tensors_are_shortened_to_their_edges_and_lines_to_76_columns() {
    for device in devices() {
        let t = Tensor::arange(0.0, 2000.0, 1.0, DType::F32, &device).unwrap();
        shows(&t, "[   0.,    1.,    2., ..., 1997., 1998., 1999.] f32 [2000]");
        let m = t.reshape([40, 50]).unwrap();
        let text = m.to_string();
        assert!(text.contains("..."), "{text}");
        assert!(text.starts_with("[[   0.,    1.,    2., ...,   47.,   48.,   49.],\n"), "{text}");
        assert!(text.contains("\n ...,\n"), "{text}");
        assert_eq!(text.lines().count(), 7, "{text}");
        let wide = Tensor::arange(0.0, 60.0, 1.0, DType::I64, &device).unwrap().to_string();
        assert!(wide.lines().all(|l| l.len() <= 78 && !l.ends_with(' ')), "{wide}");
        assert!(wide.lines().nth(1).unwrap().starts_with(" 1"), "{wide}");
    }
}

#[test]
fn printing_changes_nothing() {
    for device in devices() {
        let t = Tensor::ones([3], DType::F32, &device).unwrap();
        t.set_requires_grad(true).unwrap();
        let y = t.exp().unwrap();
        let _ = (y.to_string(), format!("{y:?}"));
        y.sum(()).unwrap().backward().unwrap();
        assert!(t.grad().is_some());
        assert!(format!("{t:?}").contains("f32 [3]"));
    }
}
