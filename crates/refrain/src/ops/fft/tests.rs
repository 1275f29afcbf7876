use std::f64::consts::PI;

use crate::testing::{devices, gradcheck};
use refrain::{DType, Device, Error, Step, Tensor};

/// Numbers without a pattern, the same on each device.
fn sample(shape: &[usize], seed: f64, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::arange(0.0, n as f64, 1.0, DType::F64, device).unwrap();
    let x = x.mul_scalar(1.7 + seed).unwrap().sin().unwrap().mul_scalar(91.7).unwrap().sin().unwrap();
    x.reshape(shape).unwrap().detach()
}

/// By the definition, `[outer, n, inner]`.
fn by_definition(re: &[f64], im: &[f64], [outer, n, inner]: [usize; 3], sign: f64) -> [Vec<f64>; 2] {
    let mut y = [vec![0.0; re.len()], vec![0.0; re.len()]];
    let roots: Vec<(f64, f64)> = (0..n).map(|e| (sign * 2.0 * PI * e as f64 / n as f64).sin_cos()).collect();
    for o in 0..outer {
        for i in 0..inner {
            let at = |j: usize| (o * n + j) * inner + i;
            for k in 0..n {
                for j in 0..n {
                    let (s, c) = roots[j * k % n];
                    y[0][at(k)] += re[at(j)] * c - im[at(j)] * s;
                    y[1][at(k)] += re[at(j)] * s + im[at(j)] * c;
                }
            }
        }
    }
    y
}

fn values(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

fn check(what: &str, y: &Tensor, expected: &[f64], bound: f64) {
    let y = values(y);
    assert_eq!(y.len(), expected.len(), "{what}");
    let worst = y.iter().zip(expected).map(|(y, e)| (y - e).abs()).fold(0.0, f64::max);
    assert!(worst <= bound, "{what}: {worst} > {bound}");
}

/// The bins that a real transform returns.
fn bins(x: &[f64], [outer, n, inner]: [usize; 3]) -> Vec<f64> {
    (0..outer).flat_map(|o| x[o * n * inner..][..(n / 2 + 1) * inner].to_vec()).collect()
}

/// Each radix, products of them, primes, a half that is a prime, and prime factors too large for a plan.
const SIZES: [usize; 15] = [1, 2, 3, 5, 6, 8, 9, 30, 48, 77, 127, 131, 262, 336, 720];

#[test]
fn transforms_are_the_sums_of_their_definition() {
    compare_with_the_definition(&SIZES, DType::F32);
}

#[test]
fn transforms_in_f64_are_the_sums_of_their_definition() {
    compare_with_the_definition(&SIZES, DType::F64);
}

#[test]
fn transforms_of_16_bits_are_computed_in_f32() {
    for dtype in [DType::F16, DType::BF16] {
        compare_with_the_definition(&[9, 48, 131], dtype);
    }
}

fn compare_with_the_definition(sizes: &[usize], dtype: DType) {
    for device in devices() {
        for &n in sizes {
            // Few of the long ones, because the sums take long.
            let extents =
                if n > 100 { vec![[2, n, 1], [1, n, 9]] } else { vec![[3, n, 1], [2, n, 3], [1, n, 40]] };
            for extent in extents {
                let (re, im) = (sample(&extent, 0.0, &device), sample(&extent, 0.3, &device));
                let (r, i) = (values(&re), values(&im));
                let none = vec![0.0; r.len()];
                let forward = by_definition(&r, &i, extent, -1.0);
                let inverse = by_definition(&r, &i, extent, 1.0)
                    .map(|x| x.iter().map(|v| v / n as f64).collect::<Vec<_>>());
                let real = by_definition(&r, &none, extent, -1.0).map(|x| bins(&x, extent));
                let what = |name| format!("{name} of {extent:?} {dtype} on {}", device.name());
                // Numbers of size sqrt(n), rounded in log n steps, and once more where they are stored.
                let step = if dtype == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
                let size = (n as f64).sqrt();
                let mut bound = size * step * (8.0 + 4.0 * (n as f64).log2());
                // The definition is rounded in n steps.
                bound += n as f64 * f64::EPSILON;
                if dtype.size() == 2 {
                    bound += 4.0 * size * dtype.epsilon().unwrap();
                }
                let (re, im) = (re.to_dtype(dtype).unwrap(), im.to_dtype(dtype).unwrap());
                let y = re.fft(&im, 1).unwrap();
                assert_eq!((y.0.dims(), y.1.dtype()), (&extent[..], dtype));
                check(&what("fft"), &y.0, &forward[0], bound);
                check(&what("fft"), &y.1, &forward[1], bound);
                let y = re.ifft(&im, 1).unwrap();
                check(&what("ifft"), &y.0, &inverse[0], bound / n as f64);
                check(&what("ifft"), &y.1, &inverse[1], bound / n as f64);
                let y = re.rfft(1).unwrap();
                assert_eq!((y.0.dims(), y.1.dims()[1]), (&[extent[0], n / 2 + 1, extent[2]][..], n / 2 + 1));
                check(&what("rfft"), &y.0, &real[0], bound);
                check(&what("rfft"), &y.1, &real[1], bound);
                let back = y.0.irfft(&y.1, n, 1).unwrap();
                check(&what("irfft"), &back, &r, 2.0 * bound / if dtype.size() == 2 { 1.0 } else { size });
            }
        }
    }
}

/// Too long for the shared memory of a block, and for the definition: a few bins are compared with their sums.
#[test]
fn long_lines_have_the_same_sums() {
    for device in devices() {
        for n in [6_561, 16_384, 22_000, 40_009] {
            let x = sample(&[2, n], 0.0, &device);
            let r = values(&x);
            for dtype in [DType::F64, DType::F32] {
                let (re, im) = x.to_dtype(dtype).unwrap().rfft(-1).unwrap();
                let back = re.irfft(&im, n, -1).unwrap();
                let (re, im) = (values(&re), values(&im));
                let step = if dtype == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
                let bound = (n as f64).sqrt() * step * 64.0;
                check(
                    &format!("irfft of {n} {dtype} on {}", device.name()),
                    &back,
                    &r,
                    bound / (n as f64).sqrt(),
                );
                for line in 0..2 {
                    for k in [0, 1, 2, 17, n / 3, n / 2 - 1, n / 2] {
                        let (mut a, mut b) = (0.0, 0.0);
                        for j in 0..n {
                            let (s, c) = (-2.0 * PI * (j * k % n) as f64 / n as f64).sin_cos();
                            a += r[line * n + j] * c;
                            b += r[line * n + j] * s;
                        }
                        let at = line * (n / 2 + 1) + k;
                        let error = (re[at] - a).abs().max((im[at] - b).abs());
                        assert!(
                            error <= bound,
                            "bin {k} of {n} {dtype} on {}: {error} > {bound}",
                            device.name()
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn long_columns_are_transformed_as_long_rows() {
    for device in devices() {
        let n = 16_384;
        let rows = sample(&[3, n], 0.0, &device).to_dtype(DType::F32).unwrap();
        let bound = (n as f64).sqrt() * f64::from(f32::EPSILON) * 64.0;
        let run = |x: &Tensor, axis| {
            let leaf = x.detach();
            leaf.set_requires_grad(true)?;
            let (re, im) = leaf.rfft(axis)?;
            let back = re.irfft(&im, n, axis)?;
            back.mul(&x.square()?)?.sum(())?.backward()?;
            let gradient = leaf
                .grad()
                .ok_or_else(|| Error::InvalidArgument { op: "test", message: "no gradient".into() })?;
            Ok(vec![re.detach(), im.detach(), back.detach(), gradient.copy()?])
        };
        let of_rows: Vec<Tensor> = run(&rows, 1).unwrap();
        let columns = rows.transpose(0, 1).unwrap().copy().unwrap();
        let of_columns = run(&columns, 0).unwrap();
        for (of_row, of_column) in of_rows.iter().zip(&of_columns) {
            let of_column = of_column.transpose(0, 1).unwrap();
            check(&format!("columns on {}", device.name()), &of_column, &values(of_row), bound);
        }
        // The gradient of x by way of its transform and back is that of x.
        check(
            &format!("gradient on {}", device.name()),
            &of_columns[3],
            &values(&columns.square().unwrap()),
            1e-5,
        );
        let mut step = Step::new(&device, |x| run(&x[0], 0));
        for _ in 0..2 {
            let found = step.call(std::slice::from_ref(&columns)).unwrap();
            for (i, eager) in of_columns.iter().enumerate() {
                assert_eq!(
                    found.to_vec::<f32>(i).unwrap(),
                    eager.to_vec::<f32>().unwrap(),
                    "{i} on {}",
                    device.name()
                );
            }
        }
        step.finish().unwrap();
    }
}

#[test]
fn a_line_does_not_depend_on_those_beside_it() {
    for device in devices() {
        for (n, axis) in [(9, 1), (24, 1), (262, 1), (9, 0), (24, 0), (262, 0)] {
            // Lines are rows, or columns.
            let lay = |x: &Tensor| if axis == 1 { x.copy() } else { x.transpose(0, 1)?.copy() };
            let transform = |x: &Tensor| -> refrain::Result<Vec<Tensor>> {
                let x = lay(x)?;
                let ((re, im), both) = (x.rfft(axis)?, x.fft(&x, axis)?);
                let back = re.irfft(&im, n, axis)?;
                [re, im, both.0, both.1, back].iter().map(lay).collect()
            };
            let x = sample(&[5, n], 0.0, &device).to_dtype(DType::F32).unwrap();
            let expected = transform(&x).unwrap();
            // A NaN in one line stays there.
            let nan = Tensor::full([1, n], f64::NAN, DType::F32, &device).unwrap();
            let spoilt =
                transform(&Tensor::concat(&[&x.narrow(0, 0, 4).unwrap(), &nan], 0).unwrap()).unwrap();
            // A single column is a row.
            let few = if axis == 1 { 1 } else { 2 };
            let alone = transform(&x.narrow(0, 2, few).unwrap()).unwrap();
            for ((x, spoilt), alone) in expected.iter().zip(&spoilt).zip(&alone) {
                let lines =
                    |x: &Tensor, first, count| x.narrow(0, first, count).unwrap().to_vec::<f32>().unwrap();
                assert_eq!(lines(x, 0, 4), lines(spoilt, 0, 4), "{n} along {axis} on {}", device.name());
                assert!(lines(spoilt, 4, 1)[..n / 2].iter().all(|v| v.is_nan()));
                assert_eq!(lines(alone, 0, few), lines(x, 2, few), "{n} along {axis} on {}", device.name());
            }
        }
    }
}

#[test]
fn gradients_are_added_to_what_is_there() {
    for device in devices() {
        // Rows, columns, and a long line.
        for (lines, n, axis) in [(3, 12, 1), (3, 15, 0), (1, 16_384, 1)] {
            let shape = |n| if axis == 1 { [lines, n] } else { [n, lines] };
            let leaves = |n, seed| {
                let x = sample(&shape(n), seed, &device).to_dtype(DType::F32).unwrap();
                x.set_requires_grad(true).unwrap();
                x
            };
            let [a, b] = [leaves(n, 0.0), leaves(n, 0.2)];
            let [re, im] = [leaves(n / 2 + 1, 0.0), leaves(n / 2 + 1, 0.2)];
            let weighted = |x: Tensor| x.mul(&x.detach().square()?)?.sum(());
            let sum = |(re, im): (Tensor, Tensor)| weighted(re)?.add(&weighted(im)?);
            let losses: [(&str, Box<dyn Fn() -> refrain::Result<Tensor>>, &[Tensor]); 3] = [
                ("rfft", Box::new(|| sum(a.rfft(axis)?)), &[a.clone()]),
                ("fft", Box::new(|| sum(a.fft(&b, axis)?)), &[a.clone(), b.clone()]),
                ("irfft", Box::new(|| weighted(re.irfft(&im, n, axis)?)), &[re.clone(), im.clone()]),
            ];
            for (name, loss, leaves) in &losses {
                let gradients = || {
                    loss().unwrap().backward().unwrap();
                    leaves.iter().map(|x| x.grad().unwrap().to_vec::<f32>().unwrap()).collect::<Vec<_>>()
                };
                leaves.iter().for_each(|x| x.zero_grad().unwrap());
                let once = gradients();
                assert!(once.iter().all(|g| g.iter().any(|&g| g != 0.0)));
                for (once, twice) in once.iter().flatten().zip(gradients().iter().flatten()) {
                    // A GPU may round the sum alone.
                    let close = (twice - 2.0 * once).abs() <= f32::EPSILON * twice.abs();
                    assert!(close, "{name} of {n} along {axis} on {}: {once} becomes {twice}", device.name());
                }
            }
        }
    }
}

#[test]
fn imaginary_parts_at_the_edges_count_as_zero() {
    for device in devices() {
        for n in [1, 2, 7, 12, 131, 262] {
            let (re, im) = (sample(&[2, n / 2 + 1], 0.0, &device), sample(&[2, n / 2 + 1], 0.4, &device));
            let expected = re.irfft(&im, n, 1).unwrap().to_vec::<f64>().unwrap();
            let mut spoilt = im.to_vec::<f64>().unwrap();
            for line in spoilt.chunks_mut(n / 2 + 1) {
                line[0] = f64::NAN;
                if n % 2 == 0 {
                    line[n / 2] = f64::INFINITY;
                }
            }
            let im = Tensor::from_slice(&spoilt, [2, n / 2 + 1], &device).unwrap();
            assert_eq!(
                re.irfft(&im, n, 1).unwrap().to_vec::<f64>().unwrap(),
                expected,
                "{n} on {}",
                device.name()
            );
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for n in [1, 2, 5, 6, 8, 131] {
            let lines = if n > 100 { 1 } else { 2 };
            let leaf = |shape: &[usize], seed| {
                let x = sample(shape, seed, &device);
                x.set_requires_grad(true).unwrap();
                x
            };
            let weight = |x: &Tensor, seed| x.mul(&sample(x.dims(), seed, &device));
            let whole = [leaf(&[lines, n], 0.0), leaf(&[lines, n], 0.2)];
            let half = [leaf(&[n / 2 + 1, lines], 0.0), leaf(&[n / 2 + 1, lines], 0.2)];
            let sum = |(re, im): (Tensor, Tensor)| weight(&re, 0.5)?.add(&weight(&im, 0.6)?);
            gradcheck(|t| sum(t[0].fft(&t[1], 1)?), &whole, 1e-6).unwrap();
            gradcheck(|t| sum(t[0].ifft(&t[1], 1)?), &whole, 1e-6).unwrap();
            gradcheck(|t| sum(t[0].rfft(-1)?), &whole[..1], 1e-6).unwrap();
            // Of one part alone.
            gradcheck(|t| weight(&t[0].rfft(-1)?.1, 0.5), &whole[..1], 1e-6).unwrap();
            gradcheck(|t| weight(&t[0].irfft(&t[1], n, 0)?, 0.5), &half, 1e-6).unwrap();
        }
    }
}

#[test]
fn a_recorded_step_filters_a_series_as_eager_code_does() {
    for device in devices() {
        for n in [24, 131] {
            let x = sample(&[3, n, 2], 0.0, &device).to_dtype(DType::F32).unwrap();
            let filter = sample(&[n / 2 + 1, 2], 0.1, &device).to_dtype(DType::F32).unwrap();
            filter.set_requires_grad(true).unwrap();
            let run = |x: &Tensor| -> refrain::Result<Tensor> {
                let (re, im) = x.rfft(1)?;
                let y = re.mul(&filter)?.irfft(&im.mul(&filter)?, n, 1)?;
                y.square()?.mean(())?.backward()?;
                Ok(y.detach())
            };
            let eager = run(&x).unwrap().to_vec::<f32>().unwrap();
            let gradient = filter.grad().unwrap().to_vec::<f32>().unwrap();
            filter.zero_grad().unwrap();
            let mut step = Step::new(&device, |x| Ok(vec![run(&x[0])?]));
            for _ in 0..3 {
                filter.zero_grad().unwrap();
                assert_eq!(step.call(&[x.clone()]).unwrap().to_vec::<f32>(0).unwrap(), eager);
                assert_eq!(
                    filter.grad().unwrap().to_vec::<f32>().unwrap(),
                    gradient,
                    "{n} on {}",
                    device.name()
                );
            }
            step.finish().unwrap();
        }
    }
}

#[test]
fn what_cannot_be_transformed_is_refused() {
    for device in devices() {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &device).unwrap();
        let x = zeros(&[2, 5], DType::F32);
        for (shape, axis, bins) in [([0, 6], 1, [0, 4]), ([0, 131], 1, [0, 66]), ([6, 0], 0, [4, 0])] {
            let x = zeros(&shape, DType::F32);
            x.set_requires_grad(true).unwrap();
            let (re, im) = x.rfft(axis).unwrap();
            assert_eq!(re.dims(), bins);
            let back = re.irfft(&im, shape[axis as usize], axis).unwrap();
            assert_eq!(back.dims(), shape);
            back.sum(()).unwrap().backward().unwrap();
            assert_eq!(x.grad().unwrap().dims(), shape);
        }
        let text =
            zeros(&[2, 1], DType::F32).irfft(&zeros(&[2, 1], DType::F32), 5, 1).unwrap_err().to_string();
        assert!(text.contains("that of 1 number"), "{text}");
        let text = zeros(&[3, 0], DType::F32).rfft(1).unwrap_err().to_string();
        assert!(text.starts_with("rfft") && text.contains("[3, 0]"), "{text}");
        assert!(matches!(zeros(&[4], DType::I32).rfft(0), Err(Error::Unsupported { op: "rfft", .. })));
        assert!(matches!(x.fft(&zeros(&[2, 4], DType::F32), 1), Err(Error::ShapeMismatch { op: "fft", .. })));
        assert!(matches!(
            x.ifft(&zeros(&[2, 5], DType::F64), 1),
            Err(Error::DTypeMismatch { op: "ifft", .. })
        ));
        assert!(x.rfft(2).is_err());
        for n in [0, 7, 10, 11] {
            let text = x.irfft(&x, n, 1).unwrap_err().to_string();
            assert!(text.starts_with("irfft") && text.contains("8 or 9 numbers"), "{text}");
        }
        assert_eq!(x.irfft(&x, 9, 1).unwrap().dims(), [2, 9]);
    }
}
