//! Operators on tensors, indexing, and reshapes that leave a size to compute.

mod common;

use common::{counting, devices, leaf, values};
use refrain::{DType, Error, Result, Tensor};

#[test]
fn an_operator_is_the_method_of_its_name_for_every_kind_of_operand() {
    for device in devices() {
        let a = Tensor::from_slice(&[8.0f32, -2.0], [2], &device).unwrap();
        let b = Tensor::from_slice(&[4.0f32, 0.5], [2], &device).unwrap();
        let is = |result: Result<Tensor>, expected: [f64; 2]| assert_eq!(values(&result.unwrap()), expected);
        is(&a + &b, [12.0, -1.5]);
        is(&a - &b, [4.0, -2.5]);
        is(&a * &b, [32.0, -1.0]);
        is(&a / &b, [2.0, -4.0]);
        is(a.clone() + b.clone(), [12.0, -1.5]);
        is(a.clone() - &b, [4.0, -2.5]);
        is(&a * b.clone(), [32.0, -1.0]);
        is(a.clone() / b.clone(), [2.0, -4.0]);
        is(&a + 1.0, [9.0, -1.0]);
        is(1.0 - &a, [-7.0, 3.0]);
        is(a.clone() * 3.0, [24.0, -6.0]);
        is(16.0 / a.clone(), [2.0, -8.0]);
        is(&a / 2.0, [4.0, -1.0]);
        is(0.5 * &a, [4.0, -1.0]);
        is(&a - 1.0, [7.0, -3.0]);
        is(2.0 + &a, [10.0, 0.0]);
        is(-&a, [-8.0, 2.0]);
        is(-a.clone(), [-8.0, 2.0]);
        // The result of one operator as the second operand of the next.
        is(&a - (&a + &b), [-4.0, -0.5]);
        is(&b * (&a / &b), [8.0, -2.0]);
    }
}

#[test]
fn an_operator_returns_the_error_of_its_operands() {
    for device in devices() {
        let a = counting(2, &device);
        let b = counting(3, &device);
        assert!(matches!(&a + &b, Err(Error::ShapeMismatch { op: "add", .. })));
        let ids = a.to_dtype(DType::I64).unwrap();
        assert!(matches!(&a * &ids, Err(Error::DTypeMismatch { op: "mul", .. })));
        assert!(matches!(&ids + 0.5, Err(Error::InvalidArgument { op: "add", .. })));
        assert!(matches!(&a - (&a / &b), Err(Error::ShapeMismatch { op: "div", .. })));
    }
}

#[test]
fn gradients_pass_through_operators_and_indices() {
    for device in devices() {
        let x = leaf(&[1.0, 2.0, 3.0], &device);
        let y = (2.0 * &x).and_then(|y| &y * &x).unwrap();
        y.i(1..).unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [0.0, 8.0, 12.0]);
    }
}

#[test]
#[allow(clippy::reversed_empty_ranges)] // They are not empty if an end counts from the end.
fn an_index_takes_numbers_and_ranges_of_each_axis() {
    for device in devices() {
        let x = counting(24, &device).reshape([2, 3, 4]).unwrap();
        let is = |part: Result<Tensor>, dims: &[usize], expected: &[f64]| {
            let part = part.unwrap();
            assert!(part.shares_storage(&x));
            assert_eq!((part.dims(), values(&part)), (dims, expected.to_vec()));
        };
        is(x.i((1, 2, 3)), &[], &[23.0]);
        let (class, end) = (1i64, -2i64); // as they are read from a tensor
        is(x.i((class, end, 3)), &[], &[19.0]);
        is(x.i((0, class.., ..end)), &[2, 2], &[4.0, 5.0, 8.0, 9.0]);
        is(x.reshape((2 * class, -class)).and_then(|x| x.i((.., 0))), &[2], &[0.0, 12.0]);
        assert!(x.i(i64::MIN).is_err() && x.i(i64::MAX).is_err() && x.reshape((i64::MAX, 24)).is_err());
        is(x.i((.., 0, 2..4)), &[2, 2], &[2.0, 3.0, 14.0, 15.0]);
        is(x.i((0, .., ..1)), &[3, 1], &[0.0, 4.0, 8.0]);
        is(x.i((1.., 1, 3..)), &[1, 1], &[19.0]);
        is(x.i((.., ..=1, 0)), &[2, 2], &[0.0, 4.0, 12.0, 16.0]);
        is(x.i((0, 1..=1, 2)), &[1], &[6.0]);
        // Negative numbers count from the end.
        is(x.i((-1, -3, -4)), &[], &[12.0]);
        is(x.i((0, .., -1)), &[3], &[3.0, 7.0, 11.0]);
        is(x.i((0, 0, 1..-1)), &[2], &[1.0, 2.0]);
        is(x.i((0, 0, -2..)), &[2], &[2.0, 3.0]);
        is(x.i((0, 0, ..-3)), &[1], &[0.0]);
        is(x.i((0, 0, -3..=-2)), &[2], &[1.0, 2.0]);
        is(x.i((0, 0, ..=-1)), &[4], &[0.0, 1.0, 2.0, 3.0]);
        let (last, size) = (-1isize, 4usize);
        is(x.i((last, size - 2, 0..size - 3)), &[1], &[20.0]);
        is(x.i((1, last - 1..last, 0)), &[1], &[16.0]);
        is(
            x.i((0,)),
            &[3, 4],
            &counting(12, &device).to_vec::<f32>().unwrap().iter().map(|&v| v.into()).collect::<Vec<_>>(),
        );
        assert_eq!(x.i(1).unwrap().dims(), [3, 4]);
        assert_eq!(x.i(..).unwrap().dims(), [2, 3, 4]);
        assert_eq!(x.i(2..2).unwrap().dims(), [0, 3, 4]);
        let says = |part: Result<Tensor>, expected: &str| {
            let error = part.unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { op: "i", .. }));
            assert!(error.to_string().contains(expected), "{error}");
        };
        says(x.i((0, 3)), "index 3 is out of range for axis 1 of size 3");
        says(x.i((0, -4)), "index -4 is out of range for axis 1 of size 3");
        says(x.i((.., -4..)), "the range -4.. is out of range for axis 1 of size 3");
        says(x.i((.., ..-4)), "the range ..-4 is out of range for axis 1 of size 3");
        says(x.i((.., -1..-2)), "the range -1..-2 is out of range for axis 1 of size 3");
        says(x.i(usize::MAX), "out of range for axis 0 of size 2");
        says(x.i((.., .., 2..5)), "the range 2..5 is out of range for axis 2 of size 4");
        says(x.i((0, 0, 0, 0)), "4 entries for a tensor of shape [2, 3, 4]");
        says(x.i(2..1), "2..1");
        says(x.i(..=usize::MAX), "out of range");
    }
}

#[test]
fn a_reshape_computes_the_size_that_is_left_open() {
    for device in devices() {
        let x = counting(24, &device);
        let rows = 6usize;
        let dims = |shape: Result<Tensor>| shape.unwrap().dims().to_vec();
        assert_eq!(dims(x.reshape([2, -1, 3])), [2, 4, 3]);
        assert_eq!(dims(x.reshape((rows, -1))), [6, 4]);
        assert_eq!(dims(x.reshape((-1, rows, 2usize))), [2, 6, 2]);
        assert_eq!(dims(x.view([-1])), [24]);
        assert_eq!(dims(x.view(-1)), [24]);
        assert_eq!(dims(x.view([4, 6])), [4, 6]);
        assert_eq!(dims(x.reshape([4isize, -1])), [4, 6]);
        assert_eq!(dims(x.reshape(vec![rows, 4])), [6, 4]);
        assert_eq!(dims(x.narrow(0, 0, 0).unwrap().reshape([3, -1])), [3, 0]);
        // As with any other shape, the gradient has the shape of the operand.
        let w = leaf(&[1.0, 2.0, 3.0, 4.0], &device);
        w.reshape([2, -1]).unwrap().square().unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(values(&w.grad().unwrap()), [2.0, 4.0, 6.0, 8.0]);
        let says = |shape: Result<Tensor>, expected: &str| {
            let error = shape.unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { op: "reshape", .. }), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        };
        says(x.reshape([5, -1]), "do not divide");
        says(x.reshape([-1, -1]), "only one size may be -1");
        says(x.reshape([-2, 12]), "only one size may be -1");
        says(x.reshape([0, -1]), "write the number");
        says(x.reshape((usize::MAX, -1, 2)), "do not divide");
        assert!(matches!(x.reshape([5, 5]), Err(Error::ShapeMismatch { op: "reshape", .. })));
    }
}
