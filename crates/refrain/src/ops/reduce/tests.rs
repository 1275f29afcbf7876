use crate::testing::{assert_close, devices, gradcheck, leaf, values};
use refrain::{DType, Error, Step, Tensor};

#[test]
fn sums_over_any_axes_are_right_and_have_gradients() {
    for device in devices() {
        let x = Tensor::arange(0.0, 24.0, 1.0, DType::F64, &device).unwrap().reshape([2, 3, 4]).unwrap();
        assert_eq!(x.sum(()).unwrap().to_scalar::<f64>().unwrap(), 276.0);
        assert_eq!(x.sum([0, 2]).unwrap().to_vec::<f64>().unwrap(), [60.0, 92.0, 124.0]);
        assert_eq!(x.sum_keepdim(1).unwrap().dims(), [2, 1, 4]);
        assert_eq!(
            x.mean([1]).unwrap().to_vec::<f64>().unwrap(),
            [4.0, 5.0, 6.0, 7.0, 16.0, 17.0, 18.0, 19.0]
        );
        let leaf = x.detach();
        leaf.set_requires_grad(true).unwrap();
        for axes in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2], &[]] {
            gradcheck(|t| t[0].square()?.mean(axes), std::slice::from_ref(&leaf), 1e-6).unwrap();
            gradcheck(|t| t[0].transpose(0, 2)?.square()?.sum(axes), std::slice::from_ref(&leaf), 1e-6)
                .unwrap();
        }
    }
}

#[test]
fn a_long_sum_does_not_lose_small_terms() {
    for device in devices() {
        let x = Tensor::full([1 << 20], 0.1, DType::F32, &device).unwrap();
        let s = x.sum(()).unwrap().to_scalar::<f32>().unwrap();
        let exact = 0.1f32 as f64 * (1 << 20) as f64;
        assert!((s as f64 - exact).abs() < exact * f32::EPSILON as f64 * 8.0, "{s} {exact}");
        let columns = Tensor::ones([70_000, 3], DType::F32, &device).unwrap();
        assert_eq!(columns.sum(0).unwrap().to_vec::<f32>().unwrap(), [70_000.0; 3]);
        let ints = Tensor::ones([300], DType::U8, &device).unwrap();
        assert_eq!(ints.sum(()).unwrap().to_scalar::<i64>().unwrap(), 300);
    }
}

/// The sum of numbers in the order that `kernels::sums` documents.
fn in_order(x: &[f32]) -> f32 {
    if x.len() > 1024 {
        return in_order(&x.chunks(1024).map(in_order).collect::<Vec<_>>());
    }
    let mut lanes = [0.0; 16];
    x.iter().enumerate().for_each(|(i, v)| lanes[i % 16] += v);
    [8, 4, 2, 1].into_iter().for_each(|half| (0..half).for_each(|l| lanes[l] += lanes[l + half]));
    lanes[0]
}

#[test]
fn sums_of_floats_have_one_order_of_additions_in_every_layout() {
    let device = refrain::Device::cpu();
    for (rows, columns) in [(1, 1), (3, 15), (70, 90), (17, 130), (1025, 33), (5, 2100), (2500, 7)] {
        let wide = leaf(&[rows, columns + 9], &device).detach().to_dtype(DType::F32).unwrap();
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let wide = wide.to_dtype(dtype).unwrap();
            let narrow = wide.narrow(1, 4, columns).unwrap();
            let contiguous = narrow.copy().unwrap();
            let turned = narrow.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
            for axes in [&[0][..], &[1], &[0, 1]] {
                let expected = contiguous.sum(axes).unwrap();
                for x in [&narrow, &turned] {
                    assert_eq!(
                        values(&x.sum(axes).unwrap()),
                        values(&expected),
                        "{rows} x {columns}, {dtype}, axes {axes:?}, strides {:?}",
                        x.strides()
                    );
                }
            }
            if dtype == DType::F32 {
                let x = contiguous.to_vec::<f32>().unwrap();
                let by_row: Vec<f32> = x.chunks(columns).map(in_order).collect();
                assert_eq!(contiguous.sum(1).unwrap().to_vec::<f32>().unwrap(), by_row);
                let column = |c| x.iter().skip(c).step_by(columns).copied().collect::<Vec<_>>();
                let by_column: Vec<f32> = (0..columns).map(|c| in_order(&column(c))).collect();
                assert_eq!(contiguous.sum(0).unwrap().to_vec::<f32>().unwrap(), by_column);
                let all = if columns >= 64 { in_order(&by_row) } else { in_order(&x) };
                assert_eq!(contiguous.sum(()).unwrap().to_scalar::<f32>().unwrap(), all);
            }
        }
    }
}

#[test]
fn the_sum_of_nothing_is_zero() {
    for device in devices() {
        let x = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap();
        assert_eq!(x.sum(1).unwrap().to_vec::<f32>().unwrap(), [0.0; 6]);
        assert_eq!(x.sum(()).unwrap().to_scalar::<f32>().unwrap(), 0.0);
        assert!(x.mean(()).unwrap().to_scalar::<f32>().unwrap().is_nan());
        assert_eq!(x.sum(0).unwrap().dims(), [0, 3]);
    }
}

/// Computes one result at a time, with `f` of the elements in row-major order.
fn by_hand(x: &Tensor, axes: &[usize], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let kept: Vec<isize> = (0..x.rank()).filter(|a| !axes.contains(a)).map(|a| a as isize).collect();
    let order: Vec<isize> = kept.iter().copied().chain(axes.iter().map(|&a| a as isize)).collect();
    let n: usize = axes.iter().map(|&a| x.dims()[a]).product();
    values(&x.permute(&order).unwrap()).chunks(n).map(f).collect()
}

fn most(row: &[f64]) -> f64 {
    row.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

fn variance(row: &[f64]) -> f64 {
    let mean = row.iter().sum::<f64>() / row.len() as f64;
    row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (row.len() - 1) as f64
}

/// Rows and columns: short ones and ones in pieces, of one task and of many.
#[test]
fn every_reduction_is_right_over_any_axes_in_every_dtype() {
    for device in devices() {
        let shapes: [(&[usize], &[&[usize]]); 4] = [
            (&[3, 5, 7], &[&[0], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]]),
            (&[2, 40_000], &[&[0], &[1], &[0, 1]]),
            (&[5000, 3, 2], &[&[0], &[1], &[0, 2]]),
            (&[1, 4, 1], &[&[0], &[1], &[2]]),
        ];
        for (shape, lists) in shapes {
            for (dtype, ulp) in
                [(DType::F64, 1e-15), (DType::F32, 1e-7), (DType::F16, 1e-3), (DType::BF16, 8e-3)]
            {
                let x = leaf(shape, &device).detach().to_dtype(dtype).unwrap();
                for &list in lists {
                    let n: usize = list.iter().map(|&a| shape[a]).product();
                    let axes: Vec<isize> = list.iter().map(|&a| a as isize).collect();
                    let axes = &axes[..];
                    let check = |y: refrain::Result<Tensor>, tolerance: f64, f: &dyn Fn(&[f64]) -> f64| {
                        assert_close(&values(&y.unwrap()), &by_hand(&x, list, f), tolerance);
                    };
                    check(x.max(axes), 0.0, &most);
                    check(x.min(axes), 0.0, &|r| -most(&r.iter().map(|v| -v).collect::<Vec<_>>()));
                    check(x.argmax(axes), 0.0, &|r| {
                        let most = most(r);
                        r.iter().position(|&v| v == most).unwrap() as f64
                    });
                    check(x.argmin(axes), 0.0, &|r| {
                        let least = r.iter().copied().fold(f64::INFINITY, f64::min);
                        r.iter().position(|&v| v == least).unwrap() as f64
                    });
                    let rounding = 8.0 + (n as f64).sqrt();
                    check(x.mean(axes), rounding * ulp, &|r| r.iter().sum::<f64>() / n as f64);
                    if n > 1 {
                        check(x.var(axes, 1), 2.0 * rounding * ulp, &variance);
                    }
                }
            }
        }
    }
}

/// Halves, ones and twos in turn, some of them negative: every dtype holds their products exactly, in any order.
#[test]
fn products_over_any_axes_are_exact_with_their_gradients_in_every_dtype() {
    for device in devices() {
        let shapes: [(&[usize], &[&[usize]]); 4] = [
            (&[2, 4001], &[&[0], &[1], &[0, 1]]),
            (&[5000, 2], &[&[0], &[1], &[0, 1]]),
            (&[7, 500, 4], &[&[0], &[1], &[2], &[0, 1], &[1, 2], &[0, 2]]),
            (&[1, 1], &[&[0], &[0, 1]]),
        ];
        for (shape, lists) in shapes {
            let n: usize = shape.iter().product();
            let sign = |i: usize| if i.is_multiple_of(7) { -1.0 } else { 1.0 };
            let numbers: Vec<f64> = (0..n).map(|i| [2.0, 0.5, 1.0][i % 3] * sign(i)).collect();
            let numbers = Tensor::from_slice(&numbers, shape, &device).unwrap();
            for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
                let x = numbers.to_dtype(dtype).unwrap().detach();
                x.set_requires_grad(true).unwrap();
                let turned = x.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
                for &list in lists {
                    let axes: Vec<isize> = list.iter().map(|&a| a as isize).collect();
                    let expected = by_hand(&x.detach(), list, |r| r.iter().product());
                    for x in [&x, &turned] {
                        assert_eq!(
                            values(&x.prod(&axes[..]).unwrap().detach()),
                            expected,
                            "{shape:?} {axes:?} {dtype}"
                        );
                    }
                    let y = x.prod_keepdim(&axes[..]).unwrap();
                    let others = y.detach().broadcast_to(shape).unwrap().div(&x.detach()).unwrap();
                    x.zero_grad().unwrap();
                    y.sum(()).unwrap().backward().unwrap();
                    assert_eq!(values(&x.grad().unwrap()), values(&others), "{shape:?} {axes:?} {dtype}");
                }
            }
        }
    }
}

#[test]
fn a_product_has_the_same_bits_in_every_layout() {
    let device = refrain::Device::cpu();
    for shape in [[32, 3], [130, 70], [3000, 5], [7, 2500]] {
        let numbers: Vec<f32> =
            (0..shape[0] * shape[1]).map(|i| 0.75 + (i as f32 * 0.618_034).fract() * 0.5).collect();
        let x = Tensor::from_slice(&numbers, shape, &device).unwrap();
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let x = x.to_dtype(dtype).unwrap();
            let turned = x.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
            for axes in [&[0][..], &[1], &[0, 1]] {
                let (a, b) = (x.prod(axes).unwrap(), turned.prod(axes).unwrap());
                assert_eq!(values(&a), values(&b), "{shape:?} {axes:?} {dtype}");
            }
        }
    }
}

#[test]
fn a_variance_does_not_lose_digits_to_a_large_mean() {
    for device in devices() {
        for shape in [[1, 60_000], [60_000, 1]] {
            let x: Vec<f32> = (0..60_000).map(|i| 4096.0 + (i % 2) as f32).collect();
            let x =
                Tensor::from_slice(&x, shape, &device).unwrap().broadcast_to([shape[0], shape[1]]).unwrap();
            assert_close(&values(&x.var((), 0).unwrap()), &[0.25], 1e-7);
            let columns = x.reshape([60_000, 1]).unwrap().broadcast_to([60_000, 2]).unwrap();
            assert_close(&values(&columns.var(0, 0).unwrap()), &[0.25; 2], 1e-6);
        }
    }
}

#[test]
fn gradients_of_extremes_and_variances_agree_with_finite_differences() {
    for device in devices() {
        let x = [leaf(&[3, 4, 5], &device)];
        for axes in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2], &[]] {
            gradcheck(|t| t[0].max(axes), &x, 1e-6).unwrap();
            gradcheck(|t| t[0].transpose(0, 2)?.min_keepdim(axes), &x, 1e-6).unwrap();
            gradcheck(|t| t[0].transpose(0, 1)?.var(axes, 0), &x, 1e-6).unwrap();
            gradcheck(|t| t[0].square()?.sum(axes), &x, 1e-6).unwrap();
        }
        gradcheck(|t| t[0].square()?.add(&t[0].var_keepdim([0, 2], 2)?), &x, 1e-6).unwrap();
    }
}

#[test]
fn equal_extremes_share_the_gradient() {
    for device in devices() {
        let x = Tensor::from_slice(&[2.0f32, 1.0, 2.0, 2.0, 0.0, 2.0, 1.0, 1.0], [2, 4], &device).unwrap();
        x.set_requires_grad(true).unwrap();
        x.max(1).unwrap().sum(()).unwrap().backward().unwrap();
        let third = 1.0f32 / 3.0;
        let mut expected = [third, 0.0, third, third, 0.0, 1.0, 0.0, 0.0];
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), expected);
        // Added to an existing gradient: column minima.
        x.min(0).unwrap().sum(()).unwrap().backward().unwrap();
        for (at, d) in [(1, 1.0), (4, 1.0), (6, 1.0), (7, 1.0)] {
            expected[at] += d;
        }
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), expected);
        // Counted in pieces.
        let x = Tensor::ones([50_000, 2], DType::F64, &device).unwrap();
        x.set_requires_grad(true).unwrap();
        x.max(0).unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f64>().unwrap(), [1.0 / 50_000.0; 100_000]);
    }
}

#[test]
fn the_first_extreme_is_found_and_nan_wins() {
    for device in devices() {
        let nan = f64::NAN;
        let x = [1.0, nan, nan, 2.0, 2.0, 1.0, 0.0, f64::INFINITY, f64::NEG_INFINITY];
        let x = Tensor::from_slice(&x, [3, 3], &device).unwrap();
        for (x, axis) in [(x.clone(), 1), (x.transpose(0, 1).unwrap().copy().unwrap(), 0)] {
            assert_eq!(x.argmax(axis).unwrap().to_vec::<i64>().unwrap(), [1, 0, 1]);
            assert_eq!(x.argmin(axis).unwrap().to_vec::<i64>().unwrap(), [1, 2, 2]);
            assert_close(&values(&x.max(axis).unwrap()), &[nan, 2.0, f64::INFINITY], 0.0);
            assert_close(&values(&x.min(axis).unwrap()), &[nan, 1.0, f64::NEG_INFINITY], 0.0);
        }
        // Equal elements in different pieces.
        let zeros = Tensor::zeros([40_000], DType::BF16, &device).unwrap();
        assert_eq!(zeros.argmax(()).unwrap().to_scalar::<i64>().unwrap(), 0);
        let columns = Tensor::zeros([40_000, 2], DType::I32, &device).unwrap();
        assert_eq!(columns.argmin_keepdim(0).unwrap().to_vec::<i64>().unwrap(), [0, 0]);
        assert_eq!(columns.argmin_keepdim(0).unwrap().dims(), [1, 2]);
        let ints = Tensor::from_slice(&[3i64, -9, i64::MAX, i64::MAX - 1], [4], &device).unwrap();
        assert_eq!(ints.max(()).unwrap().to_scalar::<i64>().unwrap(), i64::MAX);
        assert_eq!(ints.argmax(()).unwrap().to_scalar::<i64>().unwrap(), 2);
    }
}

#[test]
fn destinations_say_whether_axes_are_kept() {
    for device in devices() {
        let x = leaf(&[3, 4], &device);
        let dst = Tensor::zeros([3, 1], DType::F64, &device).unwrap();
        x.var_into(1, 1, &dst).unwrap();
        assert_eq!(values(&dst), values(&x.var(1, 1).unwrap()));
        dst.sum(()).unwrap().backward().unwrap();
        let into = values(&x.grad().unwrap());
        x.zero_grad().unwrap();
        x.var(1, 1).unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(into, values(&x.grad().unwrap()));
        let positions = Tensor::zeros([4], DType::I64, &device).unwrap();
        x.argmax_into(0, &positions).unwrap();
        assert_eq!(positions.to_vec::<i64>().unwrap(), x.argmax(0).unwrap().to_vec::<i64>().unwrap());
        assert!(matches!(x.argmax_into(0, &dst), Err(Error::ShapeMismatch { op: "argmax", .. })));
    }
}

#[test]
fn there_is_no_extreme_of_nothing() {
    for device in devices() {
        let x = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap();
        let text = x.max(1).unwrap_err().to_string();
        assert!(text.starts_with("max") && text.contains("[2, 0, 3]"), "{text}");
        assert!(matches!(x.argmin(()), Err(Error::InvalidArgument { op: "argmin", .. })));
        assert_eq!(x.min(0).unwrap().dims(), [0, 3]);
        assert!(x.var(1, 0).unwrap().to_vec::<f32>().unwrap().iter().all(|v| v.is_nan()));
        assert!(
            Tensor::ones([1], DType::F32, &device)
                .unwrap()
                .var((), 1)
                .unwrap()
                .to_scalar::<f32>()
                .unwrap()
                .is_nan()
        );
        let bools = Tensor::ones([2], DType::Bool, &device).unwrap();
        assert!(matches!(bools.max(()), Err(Error::Unsupported { op: "max", .. })));
        let ints = Tensor::ones([2], DType::I64, &device).unwrap();
        assert!(matches!(ints.var((), 1), Err(Error::Unsupported { op: "var", .. })));
    }
}

/// In rows and columns that take several steps at a time and leave some over, with numbers, infinities and NaN of both signs at
/// their ends.
#[test]
fn an_extreme_is_found_wherever_it_is() {
    let device = refrain::Device::cpu();
    for (n, inner) in [(1, 3), (4, 1), (5, 2), (7, 300), (66, 17), (130, 1)] {
        for place in [0, n / 2, n - 1] {
            for special in [9.0, -9.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN] {
                let mut x: Vec<f64> = (0..n * inner).map(|i| (i * 7 % 11) as f64 * 0.5 - 2.0).collect();
                x[place * inner + inner / 2] = special;
                for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::U8] {
                    let t = Tensor::from_slice(&x, [n, inner], &device).unwrap().to_dtype(dtype).unwrap();
                    let x = values(&t);
                    let columns = (0..inner).map(|c| x.iter().skip(c).step_by(inner).copied());
                    let most = |max: bool| {
                        let more = |a: f64, b: f64| match max {
                            _ if a.is_nan() || b.is_nan() => f64::NAN,
                            true => a.max(b),
                            false => a.min(b),
                        };
                        columns.clone().map(|c| c.reduce(more).unwrap()).collect::<Vec<_>>()
                    };
                    for t in [t.clone(), t.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap()]
                    {
                        for (max, y) in [(true, t.max(0).unwrap()), (false, t.min(0).unwrap())] {
                            let (y, expected) = (values(&y), most(max));
                            let is_same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
                            assert!(
                                y.iter().zip(&expected).all(is_same),
                                "{special} at {place} of {n} x {inner}, {dtype}, max {max}: {y:?}, not {expected:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Zeros of both signs, and beside them only numbers that are less extreme.
#[test]
fn a_zero_with_a_sign_is_the_lesser_one() {
    let device = refrain::Device::cpu();
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for (n, inner) in [(2, 1), (5, 300), (40, 3), (70, 1)] {
            for place in [0, n - 1] {
                for sign in [1.0, -1.0] {
                    // The largest ones of -1, -0 and 0; the smallest ones of 1, 0 and -0.
                    let mut x: Vec<f64> =
                        (0..n * inner).map(|i| if i % 3 == 0 { -sign } else { -0.0 * sign }).collect();
                    x[place * inner..][..inner].fill(0.0 * sign);
                    let t = Tensor::from_slice(&x, [n, inner], &device).unwrap().to_dtype(dtype).unwrap();
                    for t in [t.clone(), t.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap()]
                    {
                        let y = if sign > 0.0 { t.max(0) } else { t.min(0) };
                        let is_it = |y: f64| y == 0.0 && y.is_sign_negative() == (sign < 0.0);
                        assert!(
                            values(&y.unwrap()).into_iter().all(is_it),
                            "{dtype}, {n} x {inner}, {place}"
                        );
                    }
                }
            }
        }
    }
}

/// Read where they lie, in the order of memory.
#[test]
fn sums_over_axes_on_both_sides_of_another_have_the_bits_of_their_copy() {
    let device = refrain::Device::cpu();
    for shape in [[3, 5, 9, 8], [2, 3, 1, 70], [7, 2, 11, 13], [1100, 2, 8, 8]] {
        let x = leaf(&shape, &device).detach();
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let x = x.to_dtype(dtype).unwrap();
            let copy = x.permute(&[1, 0, 2, 3]).unwrap().copy().unwrap();
            let narrow = x.narrow(3, 1, shape[3] - 1).unwrap();
            let narrow_copy = narrow.permute(&[1, 0, 2, 3]).unwrap().copy().unwrap();
            for (x, copy) in [(&x, &copy), (&narrow, &narrow_copy)] {
                let (y, expected) = (x.sum([0, 2, 3]).unwrap(), copy.sum([1, 2, 3]).unwrap());
                assert_eq!(values(&y), values(&expected), "{shape:?} {dtype}");
            }
            // With more axes than kernels read where they lie.
            let [a, b, c, d] = shape;
            let deep = x.reshape([1, a, b, c, 1, d, 1]).unwrap();
            let deep = values(&deep.sum([0, 1, 3, 4, 5, 6]).unwrap());
            assert_eq!(deep, values(&x.sum([0, 2, 3]).unwrap()), "{shape:?} {dtype}");
            let exact: f64 = values(&x).iter().sum();
            let sum: f64 = values(&x.to_dtype(DType::F64).unwrap().sum([0, 2, 3]).unwrap()).iter().sum();
            assert!((sum - exact).abs() < 1e-6, "{sum}, not {exact}");
        }
    }
}

/// On a GPU, long rows are not copied first.
#[test]
fn rows_with_gaps_and_rows_on_both_sides_of_a_result_are_reduced_like_their_copy() {
    for device in devices() {
        for (shape, start, width) in
            [([7, 5, 160], 32, 96), ([7, 5, 161], 33, 67), ([3, 70, 80], 0, 80), ([300, 2, 66], 1, 64)]
        {
            let numbers: Vec<f32> =
                (0..shape.iter().product()).map(|i| ((i * 7919) % 11) as f32 - 5.0).collect();
            let x = Tensor::from_slice(&numbers, shape, &device).unwrap();
            for dtype in [DType::F32, DType::F64, DType::BF16, DType::I64] {
                let x = x.to_dtype(dtype).unwrap().narrow(2, start, width).unwrap();
                let copy = x.copy().unwrap();
                let middle = x.permute(&[1, 0, 2]).unwrap();
                let middle_copy = middle.copy().unwrap();
                let mut both: Vec<(Tensor, Tensor)> = Vec::new();
                for (x, copy, axes) in [(&x, &copy, &[2][..]), (&middle, &middle_copy, &[1, 2])] {
                    both.push((x.sum(axes).unwrap(), copy.sum(axes).unwrap()));
                    both.push((x.max(axes).unwrap(), copy.max(axes).unwrap()));
                    both.push((x.argmin(axes).unwrap(), copy.argmin(axes).unwrap()));
                }
                both.push((x.sum([0, 2]).unwrap(), copy.sum([0, 2]).unwrap()));
                for (y, expected) in &both {
                    assert_eq!(values(y), values(expected), "{shape:?} from {start} on {dtype} {device}");
                }
                let mut step = Step::new(&device, |x| Ok(vec![x[0].narrow(2, start, width)?.sum([0, 2])?]));
                let whole = Tensor::from_slice(&numbers, shape, &device).unwrap().to_dtype(dtype).unwrap();
                step.call(&[whole]).unwrap();
                assert_eq!(
                    step.program().unwrap().recorded_launches(),
                    1,
                    "{shape:?} {dtype} {device}: a copy"
                );
                if dtype.is_float() {
                    for (x, copy, axes) in [(&x, &copy, &[2][..]), (&middle, &middle_copy, &[1, 2])] {
                        let (var, expected) = (x.var(axes, 1).unwrap(), copy.var(axes, 1).unwrap());
                        assert_close(&values(&var), &values(&expected), 1e-2);
                        let n = (x.numel() / var.numel()) as f64;
                        let (mean, sum) = (x.mean(axes).unwrap(), copy.sum(axes).unwrap());
                        let expected: Vec<f64> = values(&sum).iter().map(|sum| sum / n).collect();
                        assert_close(&values(&mean), &expected, 1e-2);
                    }
                }
            }
        }
    }
}
