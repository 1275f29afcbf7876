use crate::testing::{assert_close, devices, gradcheck, leaf, numbers, values};
use refrain::{DType, Device, Error, Interpolation, Step, Tensor};

const LINEAR: Interpolation = Interpolation::Linear { align_corners: false };
const CORNERS: Interpolation = Interpolation::Linear { align_corners: true };

fn all() -> [Interpolation; 7] {
    let cubic = |align_corners| Interpolation::Cubic { align_corners };
    [
        Interpolation::Nearest,
        Interpolation::NearestExact,
        LINEAR,
        CORNERS,
        cubic(false),
        cubic(true),
        Interpolation::Area,
    ]
}

/// The convolution kernel of cubic interpolation with coefficient -0.75 (Keys, 1981).
fn keys(d: f64) -> f64 {
    let (a, d) = (-0.75, d.abs());
    match d {
        _ if d <= 1.0 => (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0,
        _ if d < 2.0 => a * d.powi(3) - 5.0 * a * d.powi(2) + 8.0 * a * d - 4.0 * a,
        _ => 0.0,
    }
}

/// The weight of each of `n` elements for each of `m`, by spans and distances: `m` rows.
fn weights(mode: Interpolation, n: usize, m: usize) -> Vec<Vec<f64>> {
    let row = |i: usize| -> Vec<f64> {
        // Spans in parts of n m, so that they are whole.
        let (begin, end) = (i * n, (i + 1) * n);
        let middle = |align_corners: bool| match align_corners {
            true if m == 1 => 0.0,
            true => (i * (n - 1)) as f64 / (m - 1) as f64,
            false => (i as f64 + 0.5) * n as f64 / m as f64 - 0.5,
        };
        let spread = |reach: isize, kernel: &dyn Fn(f64) -> f64, at: f64| {
            let mut row = vec![0.0; n];
            for j in -reach..n as isize + reach {
                row[j.clamp(0, n as isize - 1) as usize] += kernel(at - j as f64);
            }
            row
        };
        let covers = |j: usize, at: usize, parts: usize| (j * m * parts..(j + 1) * m * parts).contains(&at);
        match mode {
            Interpolation::Nearest => (0..n).map(|j| covers(j, begin, 1) as u8 as f64).collect(),
            Interpolation::NearestExact => (0..n).map(|j| covers(j, begin + end, 2) as u8 as f64).collect(),
            Interpolation::Linear { align_corners } => {
                spread(1, &|d| (1.0 - d.abs()).max(0.0), middle(align_corners).max(0.0))
            }
            Interpolation::Cubic { align_corners } => spread(3, &keys, middle(align_corners)),
            Interpolation::Area => {
                let touched = |j: usize| j * m < end && (j + 1) * m > begin;
                let count = (0..n).filter(|&j| touched(j)).count() as f64;
                (0..n).map(|j| touched(j) as u8 as f64 / count).collect()
            }
        }
    };
    (0..m).map(row).collect()
}

/// Blocks of sizes `from` resized to sizes `to`, each element by all weights.
fn resized(x: &[f64], from: &[usize], to: &[usize], mode: Interpolation) -> Vec<f64> {
    let (Some((&n, from)), Some((&m, to))) = (from.split_first(), to.split_first()) else {
        return x.to_vec();
    };
    let width: usize = from.iter().product();
    let mut y = Vec::new();
    for block in x.chunks(n * width) {
        for row in weights(mode, n, m) {
            let mut sum = vec![0.0; width];
            for (weight, x) in row.iter().zip(block.chunks(width)) {
                sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += weight * x);
            }
            y.extend(resized(&sum, from, to, mode));
        }
    }
    y
}

/// Sizes of axes and what they become, larger, smaller, by whole factors and not.
fn cases() -> Vec<(Vec<usize>, Vec<usize>)> {
    vec![
        (vec![7], vec![14]),
        (vec![96], vec![31]),
        (vec![5], vec![5]),
        (vec![1], vec![4]),
        (vec![6], vec![1]),
        (vec![3], vec![100]),
        (vec![4, 6], vec![8, 12]),
        (vec![9, 5], vec![4, 11]),
        (vec![7, 7], vec![1, 1]),
        (vec![3, 4, 5], vec![6, 2, 7]),
    ]
}

#[test]
fn each_element_is_the_weighted_sum_of_those_around_it() {
    for device in devices() {
        for mode in all() {
            for (from, to) in cases() {
                for blocks in [1, 6] {
                    let n = blocks * from.iter().product::<usize>();
                    let x: Vec<f64> = numbers(n).iter().map(|v| v + 1.0).collect();
                    let shape: Vec<usize> = [blocks].iter().chain(&from).copied().collect();
                    let t = Tensor::from_slice(&x, &shape[..], &device).unwrap();
                    let y = t.interpolate(&to, mode).unwrap();
                    assert_eq!(y.dims()[1..], to);
                    assert_close(&values(&y), &resized(&x, &from, &to, mode), 1e-9);
                    let y = t.to_dtype(DType::F32).unwrap().interpolate(&to, mode).unwrap();
                    assert_close(&values(&y), &resized(&x, &from, &to, mode), 1e-4);
                }
            }
        }
    }
}

#[test]
fn images_are_resized_as_the_documentation_of_pytorch_has_it() {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [1, 1, 2, 2], &device).unwrap();
        let y = x.interpolate(&[4, 4], LINEAR).unwrap();
        let row = |first: f64| [first, first + 0.25, first + 0.75, first + 1.0];
        assert_close(&values(&y), &[1.0, 1.5, 2.5, 3.0].map(row).concat(), 1e-6);
        let y = x.interpolate(&[4, 4], CORNERS).unwrap();
        let row = |first: f64| [first, first + 1.0 / 3.0, first + 2.0 / 3.0, first + 1.0];
        assert_close(&values(&y), &[1.0, 5.0 / 3.0, 7.0 / 3.0, 3.0].map(row).concat(), 1e-6);
        let y = x.interpolate(&[3, 3], Interpolation::Nearest).unwrap();
        assert_eq!(values(&y), [1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
        let y = x.interpolate(&[3, 3], Interpolation::NearestExact).unwrap();
        assert_eq!(values(&y), [1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 3.0, 4.0, 4.0]);
        assert_eq!(values(&x.adaptive_avg_pool2d([1, 2]).unwrap()), [2.0, 3.0]);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for mode in all() {
            for (from, to) in cases().into_iter().filter(|(from, _)| from[0] < 50) {
                let shape: Vec<usize> = [2].iter().chain(&from).copied().collect();
                gradcheck(|t| t[0].interpolate(&to, mode)?.square(), &[leaf(&shape, &device)], 1e-5).unwrap();
            }
        }
        // Added to what another use gave.
        let f =
            |t: &[Tensor]| t[0].square()?.sum(())?.add(&t[0].adaptive_avg_pool2d([2, 3])?.square()?.sum(())?);
        gradcheck(f, &[leaf(&[2, 5, 7], &device)], 1e-6).unwrap();
    }
}

#[test]
fn long_axes_have_exact_places() {
    let (n, m) = (40_000usize, 40_001usize);
    for device in devices() {
        // Each element is its own place.
        let x = Tensor::arange(0.0, n as f64, 1.0, DType::F64, &device).unwrap().unsqueeze(0).unwrap();
        x.set_requires_grad(true).unwrap();
        for mode in all() {
            x.zero_grad().unwrap();
            let y = x.interpolate(&[m], mode).unwrap();
            let place = |i: usize| match mode {
                Interpolation::Nearest => (i * n / m) as f64,
                Interpolation::NearestExact => ((2 * i + 1) * n / (2 * m)) as f64,
                Interpolation::Area => (i * n / m + ((i + 1) * n).div_ceil(m) - 1) as f64 / 2.0,
                Interpolation::Linear { align_corners: true } => i as f64 * (n - 1) as f64 / (m - 1) as f64,
                _ => ((i as f64 + 0.5) * n as f64 / m as f64 - 0.5).clamp(0.0, (n - 1) as f64),
            };
            // Cubic weights do not keep a straight line.
            if !matches!(mode, Interpolation::Cubic { .. }) {
                assert_close(&values(&y), &(0..m).map(place).collect::<Vec<_>>(), 1e-7);
            }
            y.sum(()).unwrap().backward().unwrap();
            let total: f64 = values(&x.grad().unwrap()).iter().sum();
            assert!((total - m as f64).abs() < 1e-6, "{mode:?} {device}: {total}");
        }
    }
}

#[test]
fn means_of_many_elements_are_exact_and_infinities_stay_where_they_are() {
    for device in devices() {
        let ones = Tensor::ones([1, 300, 1000], DType::F32, &device).unwrap();
        assert_eq!(values(&ones.adaptive_avg_pool2d([1, 1]).unwrap()), [1.0]);
        assert_eq!(values(&ones.flatten(1, 2).unwrap().adaptive_avg_pool1d(2).unwrap()), [1.0; 2]);
        let x = Tensor::from_slice(&[1.0, 2.0, f64::INFINITY], [1, 1, 1, 3], &device).unwrap();
        for mode in all() {
            let y = values(&x.interpolate(&[1, 1, 3], mode).unwrap());
            assert_eq!(y, [1.0, 2.0, f64::INFINITY], "{mode:?} {device}");
        }
        // The middle one of five is the middle one of three, alone.
        let x = Tensor::zeros([1, 3], DType::F64, &device).unwrap();
        let dy = Tensor::from_slice(&[0.0, 0.0, f64::INFINITY, 0.0, 0.0], [1, 5], &device).unwrap();
        for align_corners in [true, false] {
            for mode in [Interpolation::Linear { align_corners }, Interpolation::Cubic { align_corners }] {
                x.set_requires_grad(true).unwrap();
                x.zero_grad().unwrap();
                x.interpolate(&[5], mode).unwrap().backward_with(&dy).unwrap();
                let gradient = values(&x.grad().unwrap());
                assert_eq!(gradient, [0.0, f64::INFINITY, 0.0], "{mode:?} {device}");
            }
        }
    }
}

#[test]
fn narrow_dtypes_are_summed_in_f32_and_rounded_once() {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            for mode in all() {
                let x = Tensor::from_slice(&numbers(6 * 8 * 9), [6, 8, 9], &device).unwrap();
                let x = x.to_dtype(dtype).unwrap();
                let wide = x.to_dtype(DType::F32).unwrap();
                let of = |x: &Tensor| {
                    x.set_requires_grad(true).unwrap();
                    let y = x.interpolate(&[5, 20], mode).unwrap();
                    let gradient = Tensor::full([6, 5, 20], 0.75, x.dtype(), &device).unwrap();
                    y.backward_with(&gradient).unwrap();
                    [y.detach(), x.grad().unwrap()].map(|t| values(&t.to_dtype(dtype).unwrap()))
                };
                assert_eq!(of(&x), of(&wide), "{mode:?} {dtype} {device}");
            }
        }
    }
}

#[test]
fn a_view_a_destination_and_a_recorded_step_give_the_same() {
    for device in devices() {
        let x = Tensor::from_slice(&numbers(2 * 6 * 4), [2, 6, 4], &device).unwrap();
        let turned = x.transpose(1, 2).unwrap();
        let plain = turned.copy().unwrap().interpolate(&[9], LINEAR).unwrap();
        assert_eq!(values(&turned.interpolate(&[9], LINEAR).unwrap()), values(&plain));
        let wide = Tensor::zeros([2, 4, 12], DType::F64, &device).unwrap();
        turned.interpolate_into(&[9], LINEAR, &wide.narrow(2, 1, 9).unwrap()).unwrap();
        assert_eq!(values(&wide.narrow(2, 1, 9).unwrap()), values(&plain));
        x.set_requires_grad(true).unwrap();
        let run = |input: &Tensor| -> refrain::Result<Vec<Tensor>> {
            let y = input.mul(&x)?.interpolate(&[11], CORNERS)?;
            y.square()?.sum(())?.backward()?;
            Ok(vec![y.detach()])
        };
        let input = Tensor::full([2, 6, 4], 0.5, DType::F64, &device).unwrap();
        let eager = values(&run(&input).unwrap()[0]);
        let gradient = values(&x.grad().unwrap());
        let mut step = Step::new(&device, |inputs| Ok(run(&inputs[0])?));
        for _ in 0..3 {
            x.zero_grad().unwrap();
            assert_eq!(step.call(std::slice::from_ref(&input)).unwrap().to_vec::<f64>(0).unwrap(), eager);
            assert_eq!(values(&x.grad().unwrap()), gradient);
        }
        step.finish().unwrap();
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let x = Tensor::zeros([2, 3, 4], DType::F32, &Device::cpu()).unwrap();
    let text = |result: refrain::Result<Tensor>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        error.to_string()
    };
    for sizes in [&[][..], &[1, 2, 3, 4]] {
        let text = text(x.interpolate(sizes, LINEAR));
        assert!(text.starts_with("interpolate") && text.contains("[2, 3, 4]"), "{text}");
    }
    assert!(text(x.interpolate(&[0], LINEAR)).contains("at least 1"));
    assert!(text(x.adaptive_avg_pool2d([2, 0])).starts_with("adaptive_avg_pool2d"));
    assert!(text(x.narrow(2, 0, 0).unwrap().adaptive_avg_pool1d(2)).contains("[2, 3, 0]"));
    assert!(text(x.interpolate(&[usize::MAX], LINEAR)).contains("smaller sizes"));
    let integers = x.to_dtype(DType::I32).unwrap();
    assert!(integers.interpolate(&[8], Interpolation::Nearest).is_err());
    let none = Tensor::zeros([0, 4], DType::F32, &Device::cpu()).unwrap();
    assert_eq!(none.interpolate(&[8], LINEAR).unwrap().dims(), [0, 8]);
}
