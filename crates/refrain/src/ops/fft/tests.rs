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
fn a_line_does_not_depend_on_those_beside_it() {
    for device in devices() {
        for n in [9, 24, 262] {
            let x = sample(&[5, n], 0.0, &device).to_dtype(DType::F32).unwrap();
            let (re, im) = x.rfft(1).unwrap();
            // A NaN in one line stays there.
            let spoilt = Tensor::concat(
                &[&x.narrow(0, 0, 4).unwrap(), &Tensor::full([1, n], f64::NAN, DType::F32, &device).unwrap()],
                0,
            );
            let (spoilt_re, spoilt_im) = spoilt.unwrap().rfft(1).unwrap();
            for (x, y) in [(&re, &spoilt_re), (&im, &spoilt_im)] {
                let first = |x: &Tensor| x.narrow(0, 0, 4).unwrap().to_vec::<f32>().unwrap();
                assert_eq!(first(x), first(y), "{n} on {}", device.name());
                assert!(
                    y.narrow(0, 4, 1).unwrap().to_vec::<f32>().unwrap()[..n / 2].iter().all(|v| v.is_nan())
                );
            }
            let alone = x.narrow(0, 2, 1).unwrap().rfft(1).unwrap();
            assert_eq!(
                alone.0.to_vec::<f32>().unwrap(),
                re.narrow(0, 2, 1).unwrap().to_vec::<f32>().unwrap()
            );
            assert_eq!(
                alone.1.to_vec::<f32>().unwrap(),
                im.narrow(0, 2, 1).unwrap().to_vec::<f32>().unwrap()
            );
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
        assert_eq!(zeros(&[0, 6], DType::F32).rfft(1).unwrap().0.dims(), [0, 4]);
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
