use crate::testing::{devices, gradcheck, leaf, values};
use refrain::{DType, Device, Error, Precision, Result, Tensor, no_grad, with_precision};

use DType::{BF16, F32};

fn pair(device: &Device) -> (Tensor, Tensor) {
    let a = Tensor::from_slice(&[0.5f64, 1.5, 2.5, 0.7, 1.1, 3.0], [2, 1, 3], device).unwrap();
    let b = Tensor::from_slice(&[1.2f64, 0.4], [2, 1], device).unwrap();
    a.set_requires_grad(true).unwrap();
    b.set_requires_grad(true).unwrap();
    (a, b)
}

#[test]
fn gradients_agree_with_finite_differences_under_broadcasting() {
    for device in devices() {
        let (a, b) = pair(&device);
        let functions: [fn(&Tensor, &Tensor) -> Result<Tensor>; 11] = [
            Tensor::add,
            Tensor::sub,
            Tensor::mul,
            Tensor::div,
            Tensor::pow,
            Tensor::maximum,
            Tensor::minimum,
            Tensor::atan2,
            Tensor::hypot,
            Tensor::logaddexp,
            |a, b| a.add_scalar(0.01)?.remainder(b),
        ];
        for (i, f) in functions.into_iter().enumerate() {
            gradcheck(|t| f(&t[0], &t[1]), &[a.clone(), b.clone()], 1e-6)
                .unwrap_or_else(|e| panic!("{i}: {e}"));
            gradcheck(|t| f(&t[0], &t[0]), std::slice::from_ref(&a), 1e-6)
                .unwrap_or_else(|e| panic!("{i} of one: {e}"));
        }
        let scalar: [fn(&Tensor) -> Result<Tensor>; 13] = [
            |x| x.remainder_scalar(-0.4),
            |x| x.atan2_scalar(-0.4),
            |x| x.hypot_scalar(2.0),
            |x| x.logaddexp_scalar(0.5),
            |x| x.add_scalar(1.5),
            |x| x.sub_scalar(1.5),
            |x| x.mul_scalar(1.5),
            |x| x.div_scalar(1.5),
            |x| x.pow_scalar(2.5),
            |x| x.maximum_scalar(1.3),
            |x| x.scalar_sub(1.5),
            |x| x.scalar_div(1.5),
            |x| x.scalar_pow(1.5),
        ];
        for (i, f) in scalar.into_iter().enumerate() {
            gradcheck(|t| f(&t[0]), std::slice::from_ref(&a), 1e-6)
                .unwrap_or_else(|e| panic!("scalar {i}: {e}"));
        }
    }
}

/// Quotients of all sizes side by side, so that exact ones and quick ones meet in one row.
#[test]
fn remainders_have_the_sign_of_the_divisor_whatever_the_quotient() {
    let above =
        [5.0f32, -5.0, 0.3, -0.3, 1e30, -1e30, 7e-45, 3.0, -3.0, 1e38, 2.9999998, f32::INFINITY, f32::NAN];
    let below = [3.0f32, -3.0, 0.1, -0.1, 1e-30, 7.0, -1e30, 3e-45, 0.0, f32::INFINITY, f32::NEG_INFINITY];
    let exact = |a: f32, b: f32| {
        // Exact in any format (C's `fmod`).
        let rest = a % b;
        if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
    };
    let pairs = || above.iter().flat_map(|&a| below.iter().map(move |&b| (a, b)));
    for device in devices() {
        let a = Tensor::from_slice(&above, [above.len(), 1], &device).unwrap();
        let b = Tensor::from_slice(&below, [1, below.len()], &device).unwrap();
        let check = |found: Tensor| {
            let found = found.to_vec::<f32>().unwrap();
            for ((a, b), found) in pairs().zip(found) {
                let expected = exact(a, b);
                // Also the sign of zero.
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "the remainder of {a:e} / {b:e} on {device}: {found:e}, not {expected:e}");
            }
        };
        check(a.remainder(&b).unwrap());
        let columns: Vec<Tensor> = below.iter().map(|&b| a.remainder_scalar(b.into()).unwrap()).collect();
        check(Tensor::concat(&columns.iter().collect::<Vec<_>>(), 1).unwrap());
        let whole = Tensor::from_slice(&[7i64, -7, 7, -7, i64::MIN, 5], [6], &device).unwrap();
        let by = Tensor::from_slice(&[3i64, 3, -3, -3, -1, 0], [6], &device).unwrap();
        assert_eq!(whole.remainder(&by).unwrap().to_vec::<i64>().unwrap(), [1, 2, -2, -1, 0, 0]);
        assert_eq!(whole.remainder_scalar(4.0).unwrap().to_vec::<i64>().unwrap(), [3, 1, 3, 1, 0, 1]);
    }
}

#[test]
fn angles_and_lengths_at_the_origin_and_far_away_have_gradients() {
    type Function = fn(&Tensor, &Tensor) -> Result<Tensor>;
    // Operands, and the gradients of both.
    let cases: [(&str, Function, [f32; 2], [f32; 2]); 17] = [
        ("atan2", Tensor::atan2, [0.0, 0.0], [0.0, 0.0]),
        ("hypot", Tensor::hypot, [0.0, 0.0], [0.0, 0.0]),
        ("atan2", Tensor::atan2, [0.0, 1e-30], [1e30, 0.0]),
        ("atan2", Tensor::atan2, [3e25, 4e25], [1.6e-26, -1.2e-26]),
        ("atan2", Tensor::atan2, [1e-40, 0.0], [0.0, -f32::INFINITY]),
        ("atan2", Tensor::atan2, [f32::INFINITY, 1.0], [0.0, 0.0]),
        ("remainder", Tensor::remainder, [6.3119693, 1.0519949], [1.0, -5.0]),
        ("remainder", Tensor::remainder, [28.897175, 0.444_571_94], [1.0, -64.0]),
        ("remainder", Tensor::remainder, [-1e-30, 1e30], [1.0, 1.0]),
        ("remainder", Tensor::remainder, [-1.0, f32::INFINITY], [1.0, 1.0]),
        ("remainder", Tensor::remainder, [3.4e38, -3e38], [1.0, 2.0]),
        ("remainder", Tensor::remainder, [f32::NAN, f32::INFINITY], [1.0, f32::NAN]),
        ("atan2", Tensor::atan2, [f32::NAN, 0.0], [f32::NAN, f32::NAN]),
        ("hypot", Tensor::hypot, [3e30, -4e30], [0.6, -0.8]),
        ("hypot", Tensor::hypot, [0.0, -2.0], [0.0, -1.0]),
        ("logaddexp", Tensor::logaddexp, [500.0, 500.0], [0.5, 0.5]),
        ("logaddexp", Tensor::logaddexp, [f32::NEG_INFINITY, -3e4], [0.0, 1.0]),
    ];
    for device in devices() {
        for (name, function, at, expected) in cases {
            let [a, b] = at.map(|v| Tensor::from_slice(&[v], [1], &device).unwrap());
            a.set_requires_grad(true).unwrap();
            b.set_requires_grad(true).unwrap();
            function(&a, &b).unwrap().sum(()).unwrap().backward().unwrap();
            let found = [&a, &b].map(|t| t.grad().unwrap().to_scalar::<f32>().unwrap());
            for (found, expected) in found.into_iter().zip(expected) {
                let close = (found - expected).abs() <= 1e-5 * expected.abs()
                    || found == expected
                    || found.is_nan() && expected.is_nan();
                assert!(close, "{name} at {at:?}: {found:e}");
            }
        }
        let whole = Tensor::ones([2], DType::I64, &device).unwrap();
        assert!(matches!(whole.atan2(&whole), Err(Error::Unsupported { op: "atan2", .. })));
        assert!(matches!(whole.hypot_scalar(1.0), Err(Error::Unsupported { op: "hypot", .. })));
    }
}

#[test]
fn a_destination_that_is_an_operand_holds_the_right_result() {
    for device in devices() {
        let x = Tensor::arange(0.0, 5000.0, 1.0, DType::F32, &device).unwrap();
        x.mul_into(&x, &x).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap()[70], 4900.0);
        // Interleaved windows of one tensor do not overlap.
        let t = Tensor::arange(0.0, 12.0, 1.0, DType::F32, &device).unwrap().reshape([3, 4]).unwrap();
        let (left, right) = (t.narrow(1, 0, 2).unwrap(), t.narrow(1, 2, 2).unwrap());
        left.add_into(&right, &left).unwrap();
        assert_eq!(
            t.to_vec::<f32>().unwrap(),
            [2.0, 4.0, 2.0, 3.0, 10.0, 12.0, 6.0, 7.0, 18.0, 20.0, 10.0, 11.0]
        );
        // Any overlap other than element for element would make the result undefined.
        for dst in [t.narrow(1, 1, 2).unwrap(), left.transpose(0, 1).unwrap().narrow(1, 0, 2).unwrap()] {
            let src = t.narrow(1, 0, 2).unwrap().narrow(0, 0, dst.dims()[0]).unwrap();
            assert!(matches!(src.add_into(&src, &dst), Err(Error::Aliased { op: "add", .. })));
        }
        let row = t.narrow(0, 0, 1).unwrap();
        assert!(matches!(t.add_into(&row, &t), Err(Error::Aliased { .. })));
        assert!(matches!(t.add_into(&t, &row.broadcast_to([3, 4]).unwrap()), Err(Error::Aliased { .. })));
    }
}

#[test]
fn a_destination_keeps_its_storage_or_is_refused() {
    for device in devices() {
        let a = Tensor::ones([2, 3], DType::F32, &device).unwrap();
        let wide = Tensor::zeros([2, 5], DType::F32, &device).unwrap();
        let (id, before) = (wide.storage_id(), device.stats().system_allocations);
        a.add_into(&a, &wide.narrow(1, 1, 3).unwrap()).unwrap();
        assert_eq!(wide.storage_id(), id);
        assert_eq!(wide.to_vec::<f32>().unwrap(), [0.0, 2.0, 2.0, 2.0, 0.0, 0.0, 2.0, 2.0, 2.0, 0.0]);
        let _ = before;
        assert!(matches!(a.add_into(&a, &wide), Err(Error::ShapeMismatch { op: "add", .. })));
        let other = Tensor::zeros([2, 3], DType::F64, &device).unwrap();
        assert!(matches!(a.add_into(&a, &other), Err(Error::DTypeMismatch { op: "add", .. })));
        assert!(matches!(a.add(&other), Err(Error::DTypeMismatch { op: "add", .. })));
        let text = a.add(&Tensor::zeros([4], DType::F32, &device).unwrap()).unwrap_err().to_string();
        assert!(text.contains("[2, 3]") && text.contains("[4]") && text.starts_with("add"), "{text}");
    }
}

#[test]
fn in_place_work_on_a_leaf_needs_no_grad() {
    for device in devices() {
        let (a, b) = pair(&device);
        assert!(matches!(b.add_assign(&b), Err(Error::Autograd { .. })));
        assert!(matches!(b.add_into(&b, &b), Err(Error::Autograd { .. })));
        no_grad(|| b.add_assign(&b)).unwrap();
        assert_eq!(b.to_vec::<f64>().unwrap(), [2.4, 0.8]);
        drop(a);
    }
}

#[test]
fn comparisons_give_bools_for_every_dtype() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = Tensor::arange(0.0, 2.0, 1.0, DType::F64, &device).unwrap().to_dtype(dtype).unwrap();
            let y = x.eq_scalar(1.0).unwrap();
            assert_eq!(y.to_vec::<bool>().unwrap(), [false, true], "{dtype}");
            assert_eq!(
                y.logical_xor(&y.logical_not().unwrap()).unwrap().to_vec::<bool>().unwrap(),
                [true, true]
            );
        }
    }
}

#[test]
fn arithmetic_of_bytes_is_that_of_wide_integers_cut_to_their_low_byte() {
    for device in devices() {
        let all: Vec<u8> = (0..=255).collect();
        let a = Tensor::from_slice(&all, [256, 1], &device).unwrap();
        let b = Tensor::from_slice(&all, [1, 256], &device).unwrap();
        let wide = |x: &Tensor| x.to_dtype(DType::I64).unwrap();
        let functions: [fn(&Tensor, &Tensor) -> Result<Tensor>; 11] = [
            Tensor::add,
            Tensor::sub,
            Tensor::mul,
            Tensor::div,
            Tensor::remainder,
            Tensor::pow,
            Tensor::maximum,
            Tensor::minimum,
            Tensor::lt,
            Tensor::eq,
            Tensor::logical_xor,
        ];
        for (i, f) in functions.into_iter().enumerate() {
            let narrow = f(&a, &b).unwrap().to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap();
            let wide =
                f(&wide(&a), &wide(&b)).unwrap().to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
            let low: Vec<u8> = wide.iter().map(|&v| v as u8).collect();
            assert_eq!(narrow, low, "function {i}");
        }
        let scalar: [fn(&Tensor) -> Result<Tensor>; 4] =
            [|x| x.add_scalar(200.0), |x| x.scalar_sub(7.0), |x| x.mul_scalar(77.0), |x| x.div_scalar(255.0)];
        for (i, f) in scalar.into_iter().enumerate() {
            let low: Vec<u8> =
                f(&wide(&a)).unwrap().to_vec::<i64>().unwrap().iter().map(|&v| v as u8).collect();
            assert_eq!(f(&a).unwrap().to_vec::<u8>().unwrap(), low, "scalar {i}");
        }
        let (chosen, other) = (b.gt_scalar(100.0).unwrap(), a.broadcast_to([256, 256]).unwrap());
        let got = chosen.where_cond(&other, &b).unwrap().to_vec::<u8>().unwrap();
        let want = (0..=255u8).flat_map(|a| (0..=255u8).map(move |b| if b > 100 { a } else { b }));
        assert_eq!(got, want.collect::<Vec<u8>>());
    }
}

/// Also where a row ends within a register, and where there are gaps between rows.
#[test]
fn bytes_of_rows_of_any_length_are_computed_as_numbers() {
    for device in devices() {
        let bytes = |seed: u32, n: usize| -> Vec<u8> {
            (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
        };
        for width in [1, 31, 63, 64, 65, 127, 200, 384] {
            let (a, b) = (bytes(1, 3 * (width + 7)), bytes(99, 3 * (width + 7)));
            let tensor = |v: &[u8]| Tensor::from_slice(v, [3, width + 7], &device).unwrap();
            let (ta, tb) = (tensor(&a).narrow(1, 5, width).unwrap(), tensor(&b).narrow(1, 2, width).unwrap());
            let pairs: Vec<(u8, u8)> = (0..3 * width)
                .map(|i| (i / width * (width + 7), i % width))
                .map(|(row, i)| (a[row + 5 + i], b[row + 2 + i]))
                .collect();
            let is = |t: Result<Tensor>, f: fn(u8, u8) -> u8| {
                let of: Vec<u8> = pairs.iter().map(|&(a, b)| f(a, b)).collect();
                assert_eq!(t.unwrap().to_dtype(DType::U8).unwrap().to_vec::<u8>().unwrap(), of, "{width}");
            };
            is(ta.add(&tb), u8::wrapping_add);
            is(ta.maximum(&tb), u8::max);
            is(ta.div(&tb), |a, b| a.checked_div(b).unwrap_or(0));
            is(ta.lt(&tb), |a, b| u8::from(a < b));
            is(ta.scalar_sub(9.0), |a, _| 9u8.wrapping_sub(a));
            is(ta.minimum_scalar(100.0), |a, _| a.min(100));
            is(ta.eq_scalar(7.0), |a, _| u8::from(a == 7));
            is(ta.square(), |a, _| a.wrapping_mul(a));
            is(ta.clamp(3.0, 200.0), |a, _| a.clamp(3, 200));
        }
    }
}

#[test]
fn what_a_product_made_bf16_may_meet_f32_and_gives_f32() {
    for device in devices() {
        let of = |shape: &[usize], dtype| {
            let x = leaf(shape, &device).detach().to_dtype(dtype).unwrap();
            x.set_requires_grad(true).unwrap();
            x
        };
        let (narrow, wide) = (of(&[3, 4], BF16), of(&[4], F32));
        let mask = Tensor::from_slice(&[true, false, true, true], [4], &device).unwrap();
        type Mixed = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
        let operations: [(&str, Mixed); 6] = [
            ("add", |a, b, _| a.add(b)),
            ("div", |a, b, _| b.div(&a.square()?.add_scalar(1.0)?)),
            ("maximum", |a, b, _| a.maximum(b)),
            ("where_cond", |a, b, mask| mask.where_cond(a, b)),
            ("concat", |a, b, _| Tensor::concat(&[a, &b.broadcast_to([2, 4])?, a], 0)),
            ("stack", |a, b, _| Tensor::stack(&[&a.select(0, 1)?, b], 1)),
        ];
        for (name, run) in operations {
            let gradients = |narrow: &Tensor, wide: &Tensor| {
                [narrow, wide].iter().for_each(|t| t.zero_grad().unwrap());
                let y = run(narrow, wide, &mask).unwrap();
                assert_eq!(y.dtype(), F32, "{name}, {device}");
                y.square().unwrap().sum(()).unwrap().backward().unwrap();
                [&y, &narrow.grad().unwrap(), &wide.grad().unwrap()].map(Tensor::copy).map(Result::unwrap)
            };
            let mixed = with_precision(Precision::Bf16, || gradients(&narrow, &wide));
            assert_eq!([1, 2].map(|i| mixed[i].dtype()), [BF16, F32], "{name}, {device}");
            let converted = narrow.detach().to_dtype(F32).unwrap();
            converted.set_requires_grad(true).unwrap();
            // `div` squares in bf16 before the operands meet.
            if name != "div" {
                let expected = gradients(&converted, &wide);
                for (mixed, expected) in mixed.iter().zip(&expected) {
                    let expected = expected.to_dtype(mixed.dtype()).unwrap();
                    assert_eq!(values(mixed), values(&expected), "{name}, {device}");
                }
            }
            for precision in [Precision::F32, Precision::Tf32] {
                let error = with_precision(precision, || run(&narrow, &wide, &mask)).unwrap_err();
                assert!(matches!(error, Error::DTypeMismatch { .. }), "{name}, {device}: {error}");
            }
        }
        let sum = Tensor::zeros([3, 4], F32, &device).unwrap();
        with_precision(Precision::Bf16, || sum.add_assign(&narrow.detach())).unwrap();
        assert_eq!(values(&sum), values(&narrow));
        let half = narrow.detach().to_dtype(DType::F16).unwrap();
        assert!(with_precision(Precision::Bf16, || half.add(&wide)).is_err(), "only bf16 is promoted");
    }
}
