use crate::testing::{devices, gradcheck, leaf, sanitized, shortened};
use refrain::{DType, Tensor};

/// Numbers without a pattern, of which several are equal.
fn sample(n: usize) -> Vec<f64> {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f64 % (n as f64 / 2.0 + 3.0)).floor() - 7.0
    };
    (0..n).map(|_| next()).collect()
}

/// Positions in order, by a stable sort of the standard library.
fn order(x: &[f64], descending: bool) -> Vec<i64> {
    let mut order: Vec<i64> = (0..x.len() as i64).collect();
    let key = |i: i64| if x[i as usize] == 0.0 { 0.0 } else { x[i as usize] };
    order.sort_by(|&a, &b| match descending {
        false => key(a).total_cmp(&key(b)),
        true => key(b).total_cmp(&key(a)),
    });
    order
}

fn line(x: &[f64], [n, inner]: [usize; 2], at: usize) -> Vec<f64> {
    (0..n).map(|i| x[(at / inner * n + i) * inner + at % inner]).collect()
}

fn f64s(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

#[test]
fn lines_are_in_order_and_equal_elements_keep_theirs() {
    for device in devices() {
        // Around the sizes at which a GPU takes another way, with one and with many lines.
        let sizes = [
            [1, 1, 1],
            [300, 7, 1],
            [5, 64, 1],
            [3, 65, 2],
            [2, 2048, 1],
            [1, 2049, 1],
            [2, 5000, 3],
            [3, 20_000, 1],
            [1, 300_001, 1],
        ];
        let sizes = sizes.into_iter().filter(|[_, n, _]| !sanitized() || *n < 100_000);
        for (turn, [outer, n, inner]) in sizes.enumerate() {
            let x = sample(outer * n * inner);
            for dtype in shortened([DType::F64, DType::F32, DType::I64, DType::I32], turn, 2) {
                let t = Tensor::from_slice(&x, [outer, n, inner], &device).unwrap().to_dtype(dtype).unwrap();
                for descending in [false, true] {
                    let (values, positions) = t.sort(1, descending).unwrap();
                    let (values, positions) = (f64s(&values), positions.to_vec::<i64>().unwrap());
                    let found = t.argsort(1, descending).unwrap().to_vec::<i64>().unwrap();
                    assert_eq!(found, positions);
                    for at in 0..outer * inner {
                        let own = line(&x, [n, inner], at);
                        let expected = order(&own, descending);
                        let told = format!("[{outer}, {n}, {inner}] {dtype} {descending} line {at}");
                        let got: Vec<i64> =
                            (0..n).map(|i| positions[(at / inner * n + i) * inner + at % inner]).collect();
                        assert_eq!(got, expected, "{told}");
                        let sorted: Vec<f64> = expected.iter().map(|&i| own[i as usize]).collect();
                        assert_eq!(line(&values, [n, inner], at), sorted, "{told}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_first_elements_are_those_of_the_sort() {
    for device in devices() {
        for ([outer, n, inner], ks) in [
            ([3, 50, 1], &[1, 7, 50][..]),
            ([2, 3000, 2], &[1, 5, 256, 257, 3000]),
            ([1, 300_000, 1], &[3, 256]),
        ] {
            let t = Tensor::from_slice(&sample(outer * n * inner), [outer, n, inner], &device).unwrap();
            for dtype in [DType::F32, DType::F64] {
                let t = t.to_dtype(dtype).unwrap();
                for largest in [false, true] {
                    let (values, positions) = t.sort(1, largest).unwrap();
                    for &k in ks {
                        let (first, at) = t.topk(k, 1, largest).unwrap();
                        assert_eq!(first.dims(), [outer, k, inner]);
                        assert_eq!(f64s(&first), f64s(&values.narrow(1, 0, k).unwrap()), "{n} {k} {largest}");
                        let expected = positions.narrow(1, 0, k).unwrap().to_vec::<i64>().unwrap();
                        assert_eq!(at.to_vec::<i64>().unwrap(), expected, "{n} {k} {largest}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_first_elements_are_found_in_lines_of_any_order() {
    for device in devices() {
        // Of such lines the CPU keeps all, some or no elements while it searches; the last has no line that is whole blocks.
        for [outer, n, inner] in [[4, 1000, 1], [1, 100_000, 1], [2, 700, 37], [3, 129, 1]] {
            let at = |i: usize| i / inner % n;
            let orders: [&dyn Fn(usize) -> f64; 4] =
                [&|i| at(i) as f64, &|i| -(at(i) as f64), &|_| 7.0, &|i| (at(i) % 3) as f64];
            for (order, value) in orders.into_iter().enumerate() {
                let x: Vec<f64> = (0..outer * n * inner).map(value).collect();
                let t = Tensor::from_slice(&x, [outer, n, inner], &device).unwrap();
                for (dtype, largest) in [(DType::F32, true), (DType::F32, false), (DType::I64, true)] {
                    let t = t.to_dtype(dtype).unwrap();
                    let k = 8;
                    let (values, positions) = t.topk(k, 1, largest).unwrap();
                    let (values, positions) = (f64s(&values), positions.to_vec::<i64>().unwrap());
                    for l in 0..outer * inner {
                        let own = line(&x, [n, inner], l);
                        let expected = &self::order(&own, largest)[..k];
                        let got = |i: usize| (l / inner * k + i) * inner + l % inner;
                        let told =
                            format!("[{outer}, {n}, {inner}] order {order} {dtype} {largest} line {l}");
                        assert_eq!((0..k).map(|i| positions[got(i)]).collect::<Vec<_>>(), expected, "{told}");
                        let taken = (0..k).map(|i| values[got(i)]);
                        assert!(taken.eq(expected.iter().map(|&i| own[i as usize])), "{told}");
                    }
                }
            }
        }
    }
}

#[test]
fn nan_is_largest_and_both_zeros_are_equal_in_every_dtype() {
    for device in devices() {
        let x = [f64::NAN, 0.0, -0.0, f64::INFINITY, -1.5, f64::NEG_INFINITY, -f64::NAN, 2.0];
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let t = Tensor::from_slice(&x, [8], &device).unwrap().to_dtype(dtype).unwrap();
            assert_eq!(
                t.argsort(0, false).unwrap().to_vec::<i64>().unwrap(),
                [5, 4, 1, 2, 7, 3, 0, 6],
                "{dtype}"
            );
            assert_eq!(
                t.argsort(0, true).unwrap().to_vec::<i64>().unwrap(),
                [0, 6, 3, 7, 1, 2, 4, 5],
                "{dtype}"
            );
            // On the way of long lines, too.
            let long = Tensor::concat(&[&t, &Tensor::zeros([3000], dtype, &device).unwrap()], 0).unwrap();
            let ends = long.argsort(0, false).unwrap().to_vec::<i64>().unwrap();
            assert_eq!((&ends[..4], &ends[3004..]), (&[5, 4, 1, 2][..], &[7, 3, 0, 6][..]), "{dtype}");
            // Behind so many zeros that they are searched, and not sorted.
            let late = Tensor::concat(&[&Tensor::zeros([3000], dtype, &device).unwrap(), &t], 0).unwrap();
            for (largest, expected) in [(true, [3000, 3006, 3003, 3007]), (false, [3005, 3004, 0, 1])] {
                let (_, first) = late.topk(4, 0, largest).unwrap();
                assert_eq!(first.to_vec::<i64>().unwrap(), expected, "{dtype} {largest}");
            }
        }
        for dtype in [DType::U8, DType::Bool] {
            let t = Tensor::from_slice(&[1.0, 0.0, 1.0, 0.0], [4], &device).unwrap().to_dtype(dtype).unwrap();
            assert_eq!(t.argsort(0, false).unwrap().to_vec::<i64>().unwrap(), [1, 3, 0, 2], "{dtype}");
        }
        let ends = [i64::MAX, -1, i64::MIN, 0, 1 << 40];
        let t = Tensor::from_slice(&ends, [5], &device).unwrap();
        assert_eq!(t.argsort(0, false).unwrap().to_vec::<i64>().unwrap(), [2, 1, 3, 4, 0]);
    }
}

#[test]
fn gradients_go_back_to_where_elements_came_from() {
    for device in devices() {
        let weights = leaf(&[3, 4], &device).detach();
        for axis in [0, 1] {
            for descending in [false, true] {
                gradcheck(|t| t[0].sort(axis, descending)?.0.mul(&weights), &[leaf(&[3, 4], &device)], 1e-6)
                    .unwrap();
            }
        }
        gradcheck(|t| t[0].topk(2, 1, true)?.0.square(), &[leaf(&[3, 4], &device)], 1e-6).unwrap();
        // Added to what another use of the tensor gave.
        gradcheck(
            |t| t[0].square()?.sum(0)?.add(&t[0].topk(1, 0, false)?.0),
            &[leaf(&[3, 4], &device)],
            1e-6,
        )
        .unwrap();
    }
}

#[test]
fn nothing_is_taken_and_what_does_not_fit_is_named() {
    for device in devices() {
        let none = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap();
        assert_eq!(none.sort(1, false).unwrap().0.dims(), [2, 0, 3]);
        assert_eq!(none.sort(2, false).unwrap().1.dims(), [2, 0, 3]);
        let x = Tensor::zeros([2, 3], DType::F32, &device).unwrap();
        assert_eq!(x.topk(0, 1, true).unwrap().0.dims(), [2, 0]);
        let text = x.topk(4, 1, true).unwrap_err().to_string();
        assert!(text.starts_with("topk") && text.contains("4 elements") && text.contains("size 3"), "{text}");
        assert!(x.argsort(2, false).unwrap_err().to_string().starts_with("argsort"));
    }
}
