use crate::testing::{assert_close, devices, gradcheck, leaf, numbers, values};
use refrain::{DType, Device, Error, Tensor};

/// The running sums and products in f64, one after the other.
fn expected(x: &[f64], [outer, n, inner]: [usize; 3], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut y = x.to_vec();
    for o in 0..outer {
        for i in 1..n {
            for c in 0..inner {
                let at = (o * n + i) * inner + c;
                y[at] = f(y[at - inner], x[at]);
            }
        }
    }
    y
}

#[test]
fn elements_hold_all_up_to_them_whatever_the_length_and_the_axis() {
    for device in devices() {
        // Around the sizes at which a GPU cuts lines, and with few and many lines.
        let shapes = [
            [1, 1, 1],
            [3, 31, 1],
            [9, 256, 1],
            [2, 257, 1],
            [1, 2048, 1],
            [2, 2049, 1],
            [5, 700, 1],
            [1, 600_001, 1],
            [2, 700_000, 1],
            [2, 33, 3],
            [3, 70, 5],
            [1, 5000, 2],
            [2, 4097, 7],
            [1, 40, 300],
        ];
        for shape in shapes {
            let x: Vec<f64> = numbers(shape.iter().product()).iter().map(|v| v * 0.5).collect();
            let t = Tensor::from_slice(&x, &shape[..], &device).unwrap();
            let sums = expected(&x, shape, |a, b| a + b);
            assert_close(&t.cumsum(1).unwrap().to_vec::<f64>().unwrap(), &sums, 1e-7);
            // Near 1, so that long products stay in range.
            let near: Vec<f64> = x.iter().map(|v| 1.0 + (v - 0.3) * 1e-3).collect();
            let t = Tensor::from_slice(&near, &shape[..], &device).unwrap();
            let products = expected(&near, shape, |a, b| a * b);
            let got = t.cumprod(1).unwrap().to_vec::<f64>().unwrap();
            let ratios: Vec<f64> = got.iter().zip(&products).map(|(a, b)| a / b).collect();
            assert_close(&ratios, &vec![1.0; ratios.len()], 1e-9);
        }
    }
}

/// Around the sizes at which a GPU cuts lines, and the number of lines that the CPU computes side by side.
#[test]
fn recurrences_are_those_of_one_step_after_the_other() {
    let shapes = [
        [1, 1, 1],
        [3, 31, 1],
        [9, 256, 1],
        [17, 300, 1],
        [1, 2049, 1],
        [1, 300_001, 1],
        [2, 33, 3],
        [3, 70, 5],
        [1, 5000, 2],
        [2, 4097, 7],
        // So wide that several threads share the columns.
        [1, 40, 300],
    ];
    for device in devices() {
        for shape @ [outer, n, inner] in shapes {
            let len: usize = shape.iter().product();
            let (x, first) = (numbers(len), numbers(outer * inner));
            let decay: Vec<f64> = numbers(len).iter().map(|v| 0.75 + 0.25 * v.sin()).collect();
            let tensor = |v: &[f64], dims: &[usize]| Tensor::from_slice(v, dims, &device).unwrap();
            let (tx, td) = (tensor(&x, &shape), tensor(&decay, &shape));
            let tf = tensor(&first, &[outer, inner]);
            let dy = numbers(len + 1)[1..].to_vec();
            for before in [false, true] {
                let at = |o: usize, t: usize, c: usize| (o * n + t) * inner + c;
                let (mut y, mut previous, mut g) = (x.clone(), vec![0.0; len], dy.clone());
                for (o, c) in (0..outer).flat_map(|o| (0..inner).map(move |c| (o, c))) {
                    let mut state = if before { first[o * inner + c] } else { 0.0 };
                    for t in 0..n {
                        previous[at(o, t, c)] = state;
                        y[at(o, t, c)] += decay[at(o, t, c)] * state;
                        state = y[at(o, t, c)];
                    }
                    for t in (1..n).rev() {
                        g[at(o, t - 1, c)] += decay[at(o, t, c)] * g[at(o, t, c)];
                    }
                }
                [&tx, &td, &tf].iter().for_each(|t| t.set_requires_grad(true).unwrap());
                // Twice, so that the gradients of the second time are added to those of the first.
                for times in [1.0, 2.0] {
                    let found = tx.linear_recurrence(&td, 1, before.then_some(&tf)).unwrap();
                    assert_close(&found.detach().to_vec::<f64>().unwrap(), &y, 1e-9);
                    found.backward_with(&tensor(&dy, &shape)).unwrap();
                    let check = |leaf: &Tensor, expected: Vec<f64>| {
                        let expected: Vec<f64> = expected.iter().map(|v| v * times).collect();
                        assert_close(&leaf.grad().unwrap().to_vec::<f64>().unwrap(), &expected, 1e-8);
                    };
                    check(&tx, g.clone());
                    check(&td, g.iter().zip(&previous).map(|(g, y)| g * y).collect());
                    if before {
                        let lines = (0..outer).flat_map(|o| (0..inner).map(move |c| at(o, 0, c)));
                        check(&tf, lines.map(|at| g[at] * decay[at]).collect());
                    }
                }
                [&tx, &td, &tf].iter().for_each(|t| t.zero_grad().unwrap());
            }
        }
    }
}

#[test]
fn gradients_of_recurrences_agree_with_finite_differences() {
    for device in devices() {
        for (shape, axis) in [([3usize, 5, 4], 1isize), ([2, 3, 9], -1), ([7, 2, 1], 0), ([2, 1, 3], 1)] {
            let at = axis.rem_euclid(3) as usize;
            let before: Vec<usize> = (0..3).filter(|i| *i != at).map(|i| shape[i]).collect();
            let (x, decay) = (leaf(&shape, &device), leaf(&shape, &device));
            let first = leaf(&before, &device);
            let of = |t: &[Tensor]| t[0].linear_recurrence(&t[1], axis, t.get(2));
            gradcheck(of, &[x.clone(), decay.clone()], 1e-6).unwrap();
            gradcheck(of, &[x.clone(), decay.clone(), first.clone()], 1e-6).unwrap();
            // One decay for all, and a constant one.
            let one = leaf(&[], &device);
            gradcheck(of, &[x.clone(), one.clone(), first.clone()], 1e-6).unwrap();
            gradcheck(|t| t[0].linear_recurrence(&one.detach(), axis, t.get(1)), &[x.clone(), first], 1e-6)
                .unwrap();
            // The gradients are added to those of another use.
            gradcheck(|t| &of(t)? + &(&(&t[0] * 2.0)? * &t[1])?, &[x, decay], 1e-6).unwrap();
        }
    }
}

/// On a CPU with several threads, each has some of the columns.
#[test]
fn gradients_of_wide_lines_are_those_of_narrow_ones() {
    for device in devices() {
        let tensors: Vec<Tensor> = [vec![60, 200], vec![60, 200], vec![200]]
            .into_iter()
            .enumerate()
            .map(|(i, dims)| {
                let values: Vec<f64> = numbers(dims.iter().product::<usize>() + i)[i..].to_vec();
                Tensor::from_slice(&values, &dims[..], &device).unwrap()
            })
            .collect();
        let gradients = |from: usize, count: usize| -> Vec<Vec<f64>> {
            let leaves: Vec<Tensor> =
                tensors.iter().map(|t| t.narrow(-1, from, count).unwrap().copy().unwrap()).collect();
            leaves.iter().for_each(|leaf| leaf.set_requires_grad(true).unwrap());
            let decay = leaves[1].mul_scalar(0.5).unwrap();
            let y = leaves[0].linear_recurrence(&decay, 0, Some(&leaves[2])).unwrap();
            let product = leaves[0].mul_scalar(0.1).unwrap().cumprod(0).unwrap();
            (y.square().unwrap().sum(()).unwrap() + product.sum(()).unwrap()).unwrap().backward().unwrap();
            leaves.iter().map(|leaf| leaf.grad().unwrap().to_vec::<f64>().unwrap()).collect()
        };
        let wide = gradients(0, 200);
        for from in (0..200).step_by(20) {
            for (wide, narrow) in wide.iter().zip(gradients(from, 20)) {
                let rows = wide.chunks_exact(200).flat_map(|row| row[from..from + 20].iter().copied());
                assert_eq!(rows.collect::<Vec<f64>>(), narrow, "columns from {from} on {device}");
            }
        }
    }
}

/// A constant decay needs neither the results nor what was before, so both may be overwritten.
#[test]
fn a_recurrence_with_a_constant_decay_keeps_no_results() {
    for device in devices() {
        let x = leaf(&[3, 4], &device);
        let decay = Tensor::full((), 0.5, DType::F64, &device).unwrap();
        let first = Tensor::ones([4], DType::F64, &device).unwrap();
        let y = x.linear_recurrence(&decay, 0, Some(&first)).unwrap();
        let loss = y.sum(()).unwrap();
        refrain::no_grad(|| {
            y.detach().fill(0.0).unwrap();
            first.fill(0.0).unwrap();
        });
        loss.backward().unwrap();
        let expected: Vec<f64> = [1.75, 1.5, 1.0].iter().flat_map(|&v| [v; 4]).collect();
        assert_eq!(x.grad().unwrap().to_vec::<f64>().unwrap(), expected);
    }
}

/// Where nothing was before, an infinite decay makes nothing of it; NaN shows.
#[test]
fn infinite_and_missing_decays_are_the_same_on_every_device() {
    const INF: f64 = f64::INFINITY;
    for device in devices() {
        let tensor = |v: &[f64]| {
            let t = Tensor::from_slice(v, [v.len()], &device).unwrap();
            t.set_requires_grad(true).unwrap();
            t
        };
        let (x, decay) = (tensor(&[0.0, 0.0, 2.0]), tensor(&[INF, 1.0, INF]));
        let first = Tensor::full((), 0.0, DType::F64, &device).unwrap();
        first.set_requires_grad(true).unwrap();
        let y = x.linear_recurrence(&decay, 0, Some(&first)).unwrap();
        assert_eq!(y.detach().to_vec::<f64>().unwrap(), [0.0, 0.0, 2.0]);
        y.narrow(0, 0, 2).unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f64>().unwrap(), [2.0, 1.0, 0.0]);
        assert_eq!(first.grad().unwrap().to_scalar::<f64>().unwrap(), INF);
        let y = tensor(&[1.0]).linear_recurrence(&tensor(&[f64::NAN]), 0, Some(&first)).unwrap();
        assert!(y.detach().to_vec::<f64>().unwrap()[0].is_nan());
    }
}

#[test]
fn recurrences_without_a_step_ignore_what_is_before() {
    for device in devices() {
        let (x, first) = (leaf(&[2, 0, 3], &device), leaf(&[2, 3], &device));
        let y = x.linear_recurrence(&x.detach(), 1, Some(&first)).unwrap();
        assert_eq!(y.dims(), [2, 0, 3]);
        y.sum(()).unwrap().backward().unwrap();
        assert!(first.grad().is_none());
    }
}

#[test]
fn recurrences_of_16_bits_keep_their_state_in_f32() {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            // 1 + 1/2 + 1/4 + ..: in 16 bits each step would be rounded.
            let x = Tensor::ones([2, 40], dtype, &device).unwrap();
            let decay = Tensor::full((), 1.0 - 1.0 / 128.0, dtype, &device).unwrap();
            let y = values(&x.linear_recurrence(&decay, 1, None).unwrap());
            let decay = values(&decay)[0];
            for (t, y) in y[..40].iter().enumerate() {
                let exact = (1.0 - decay.powi(t as i32 + 1)) / (1.0 - decay);
                assert!(
                    (y - exact).abs() <= exact * dtype.epsilon().unwrap() * 0.51,
                    "{dtype}, {t}: {y}, not {exact}"
                );
            }
        }
    }
}

#[test]
fn operands_of_a_recurrence_that_do_not_fit_are_refused() {
    let d = Device::cpu();
    let x = Tensor::ones([2, 3, 4], DType::F32, &d).unwrap();
    let refused = |decay: &[usize], first: &[usize], axis| {
        let [decay, first] = [decay, first].map(|dims| Tensor::ones(dims, DType::F32, &d).unwrap());
        x.linear_recurrence(&decay, axis, Some(&first)).unwrap_err().to_string()
    };
    assert!(refused(&[4], &[2, 4], 3).contains("axis"), "{}", refused(&[4], &[2, 4], 3));
    assert!(refused(&[5], &[2, 4], 1).contains("[5]"));
    assert!(refused(&[2, 2, 3, 4], &[2, 4], 1).contains("decay must broadcast"));
    assert!(refused(&[4], &[2, 3], 1).contains("without the axis"));
    let whole = Tensor::ones([3], DType::I64, &d).unwrap();
    let error = whole.linear_recurrence(&whole, 0, None).unwrap_err();
    assert!(matches!(error, Error::Unsupported { op: "linear_recurrence", .. }), "{error}");
}

#[test]
fn integers_wrap_around_and_become_i64() {
    for device in devices() {
        let x = Tensor::from_slice(&[100i32, i32::MAX, -5, 3], [2, 2], &device).unwrap();
        assert_eq!(
            x.cumsum(0).unwrap().to_vec::<i64>().unwrap(),
            [100, i32::MAX as i64, 95, i32::MAX as i64 + 3]
        );
        let x = Tensor::from_slice(&[true, true, false, true], [4], &device).unwrap();
        assert_eq!(x.cumsum(-1).unwrap().to_vec::<i64>().unwrap(), [1, 2, 2, 3]);
        assert_eq!(x.cumprod(0).unwrap().to_vec::<i64>().unwrap(), [1, 1, 0, 0]);
        let x = Tensor::from_slice(&[i64::MAX, 2, 3], [3], &device).unwrap();
        assert_eq!(x.cumsum(0).unwrap().to_vec::<i64>().unwrap(), [i64::MAX, i64::MIN + 1, i64::MIN + 4]);
    }
}

#[test]
fn gradients_agree_with_finite_differences_also_beside_zeros() {
    for device in devices() {
        for axis in [0, 1, -1] {
            gradcheck(|t| t[0].cumsum(axis)?.square(), &[leaf(&[3, 4, 2], &device)], 1e-6).unwrap();
            gradcheck(|t| t[0].cumprod(axis)?.square(), &[leaf(&[3, 4, 2], &device)], 1e-6).unwrap();
        }
        for zeros in [&[0usize][..], &[2], &[5], &[1, 3], &[0, 1, 5]] {
            let mut v = numbers(6);
            zeros.iter().for_each(|&i| v[i] = 0.0);
            let x = Tensor::from_slice(&v, [6], &device).unwrap();
            x.set_requires_grad(true).unwrap();
            gradcheck(|t| t[0].cumprod(0)?.mul_scalar(1.5), &[x], 1e-6).unwrap();
        }
    }
}

#[test]
fn the_gradient_of_a_long_sum_is_the_sum_from_the_end() {
    for device in devices() {
        for shape in [[3, 15, 1], [2, 16, 1], [1, 1040, 1], [2, 2500, 1], [1, 2500, 3]] {
            let x = Tensor::zeros(&shape[..], DType::F64, &device).unwrap();
            x.set_requires_grad(true).unwrap();
            let weights = numbers(shape.iter().product());
            let t = Tensor::from_slice(&weights, &shape[..], &device).unwrap();
            x.cumsum(1).unwrap().mul(&t).unwrap().sum(()).unwrap().backward().unwrap();
            let backwards = |v: &[f64]| -> Vec<f64> {
                let [_, n, inner] = shape;
                v.chunks(n * inner).flat_map(|slab| slab.chunks(inner).rev().flatten().copied()).collect()
            };
            let sums = backwards(&expected(&backwards(&weights), shape, |a, b| a + b));
            assert_close(&values(&x.grad().unwrap()), &sums, 1e-9);
        }
    }
}

#[test]
fn on_the_cpu_no_product_overflows_whose_results_are_in_range() {
    let x: Vec<f32> = (0..64).map(|i| if i % 4 < 2 { 1e30 } else { 1e-30 }).collect();
    let x = Tensor::from_slice(&[&[1e-30f32, 1e-8], &x[..]].concat(), [66], &refrain::Device::cpu()).unwrap();
    let y = x.cumprod(0).unwrap().to_vec::<f32>().unwrap();
    // 10^30 times 10^30 is beyond f32, but comes upon 10^-38.
    for (i, y) in y.iter().enumerate().skip(2) {
        let want = [1e-8f64, 1e22, 1e-8, 1e-38][(i - 2) % 4];
        assert!((f64::from(*y) / want - 1.0).abs() < 1e-4, "element {i}: {y:e}, not {want:e}");
    }
}

#[test]
fn the_gradient_of_a_long_product_is_right() {
    for device in devices() {
        for shape in [[1, 5000, 1], [1, 3000, 2]] {
            let n = shape.iter().product();
            let x: Vec<f64> = numbers(n).iter().map(|v| 1.0 + (v - 0.7) * 1e-3).collect();
            let t = Tensor::from_slice(&x, &shape[..], &device).unwrap();
            t.set_requires_grad(true).unwrap();
            t.cumprod(1).unwrap().sum(()).unwrap().backward().unwrap();
            // The derivative by x[k] is the sum of the products from k on, over x[k].
            let y = expected(&x, shape, |a, b| a * b);
            let inner = shape[2];
            let mut sums = vec![0.0; n];
            for at in (0..n).rev() {
                sums[at] = y[at] + if at + inner < n { sums[at + inner] } else { 0.0 };
            }
            let ratios: Vec<f64> =
                values(&t.grad().unwrap()).iter().zip(&sums).zip(&x).map(|((g, s), x)| g * x / s).collect();
            assert_close(&ratios, &vec![1.0; n], 1e-9);
        }
    }
}

#[test]
fn narrow_floats_are_summed_in_f32() {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            // Ones that are added one by one would stop at 256 in bf16 and at 2048 in f16.
            let x = Tensor::ones([4000, 2], dtype, &device).unwrap();
            let last = x.cumsum(0).unwrap().narrow(0, 3999, 1).unwrap();
            assert_close(&values(&last), &[4000.0; 2], 8.0);
            let last = x.transpose(0, 1).unwrap().cumsum(1).unwrap().narrow(1, 3999, 1).unwrap();
            assert_close(&values(&last), &[4000.0; 2], 8.0);
        }
    }
}

#[test]
fn nothing_and_one_element_are_taken_and_a_wrong_axis_is_named() {
    for device in devices() {
        let x = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap();
        assert_eq!(x.cumsum(1).unwrap().dims(), [2, 0, 3]);
        assert_eq!(x.cumprod(2).unwrap().dims(), [2, 0, 3]);
        let text = x.cumsum(3).unwrap_err().to_string();
        assert!(text.starts_with("cumsum") && text.contains("axis 3"), "{text}");
    }
}

/// In every register size: blocks of 16 on top of what was before. In a block, sums are made in steps of doubled distances, and
/// products one after the other.
#[test]
fn on_the_cpu_lines_have_one_order() {
    fn scanned(x: &[f64], sum: bool) -> Vec<f64> {
        let both = |a: f64, b: f64| if sum { f64::from(a as f32 + b as f32) } else { a * b };
        let none = if sum { 0.0 } else { 1.0 };
        let (mut groups, mut own, mut y) = (none, none, Vec::new());
        for (i, block) in x.chunks(16).enumerate() {
            if sum && i % 64 == 0 {
                (groups, own) = (both(groups, own), none);
            }
            let mut v = vec![none; 16];
            v[..block.len()].copy_from_slice(block);
            if sum {
                for distance in [1, 2, 4, 8] {
                    let from = v.clone();
                    (distance..16).for_each(|l| v[l] = both(from[l - distance], from[l]));
                }
            } else {
                (1..16).for_each(|l| v[l] = both(v[l - 1], v[l]));
            }
            y.extend(v.iter().take(block.len()).map(|&v| both(groups, both(own, v))));
            own = both(own, v[15]);
        }
        y
    }
    for n in [1, 15, 16, 17, 255, 256, 257, 1023, 1024, 1025, 2600] {
        let x = numbers(2 * n).iter().map(|v| 1.0 + v * 0.01).collect::<Vec<f64>>();
        let exact = Tensor::from_slice(&x, [2, n], &refrain::Device::cpu()).unwrap();
        let rounded = exact.to_dtype(DType::F32).unwrap();
        // Products are computed in f64 in any case.
        for (sum, x, y) in [(true, &rounded, rounded.cumsum(1)), (false, &exact, exact.cumprod(1))] {
            let expected: Vec<f64> = values(x).chunks(n).flat_map(|row| scanned(row, sum)).collect();
            assert_eq!(values(&y.unwrap()), expected, "{n} elements, sum {sum}");
        }
    }
}
