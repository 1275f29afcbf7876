//! What a norm's gradient depends on, and what not.

use refrain::{DType, Tensor};

use crate::common::{FLOATS, devices, tensor, values};
use crate::{leaf, numbers};

#[test]
fn in_evaluation_nothing_of_x_reaches_the_gradient_by_x() {
    // Channels in the middle, at the end, at the beginning.
    for (shape, axis) in [([3, 4, 5], 1), ([3, 5, 4], 2), ([4, 3, 5], 0)] {
        for dtype in FLOATS {
            for device in devices() {
                let channel = |i: usize| (i / shape[axis + 1..].iter().product::<usize>()) % 4;
                let n: usize = shape.iter().product();
                let of_channels = |f: fn(f64) -> f64, seed| {
                    tensor(&numbers(4, seed).iter().map(|&v| f(v)).collect::<Vec<_>>(), 4, dtype, &device)
                };
                let (weight, bias) = (of_channels(|v| v + 2.0, 1), of_channels(|v| v, 2));
                let (mean, var) = (of_channels(|v| v, 3), of_channels(|v| v + 2.0, 4));
                let dy = tensor(&numbers(n, 5), shape, dtype, &device);
                let gradient = |x: &[f64]| {
                    let x = leaf(x, shape, dtype, &device);
                    let y = x.batch_norm(&weight, &bias, &mean, &var, axis as isize, false, 0.1, 1e-5);
                    y.unwrap().backward_with(&dy).unwrap();
                    values(&x.grad().unwrap())
                };
                let plain = numbers(n, 6);
                let expected = gradient(&plain);
                let (w, v, d) = (values(&weight), values(&var), values(&dy));
                for i in 0..n {
                    let exact = w[channel(i)] / (v[channel(i)] + 1e-5).sqrt() * d[i];
                    let off = (expected[i] - exact).abs();
                    assert!(off <= 4.0 * crate::epsilon(dtype) * exact.abs(), "{} for {exact}", expected[i]);
                }
                for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                    let mut x = plain.clone();
                    (x[1], x[7]) = (bad, bad);
                    assert_eq!(gradient(&x), expected, "{bad} in {dtype}, axis {axis}, on {device}");
                }
            }
        }
    }
}

#[test]
fn parameters_of_f32_beside_halves_do_not_change_that() {
    for device in devices() {
        let ones = Tensor::ones([2], DType::F32, &device).unwrap();
        let zeros = ones.zeros_like().unwrap();
        let x = leaf(&[f64::NAN, 1.0, 2.0, f64::INFINITY], [2, 2], DType::BF16, &device);
        let y = x.batch_norm(&ones, &zeros, &zeros, &ones, 1, false, 0.1, 0.0).unwrap();
        y.backward_with(&tensor(&[1.0, 2.0, 3.0, 4.0], [2, 2], DType::BF16, &device)).unwrap();
        assert_eq!(values(&x.grad().unwrap()), [1.0, 2.0, 3.0, 4.0], "{device}");
    }
}

#[test]
fn a_channel_that_is_not_finite_keeps_its_running_statistics() {
    for device in devices() {
        for (dtype, huge) in [(DType::F16, 6e4), (DType::BF16, 3e38), (DType::F32, 3e38), (DType::F64, 1e308)]
        {
            // Channels at the end and in the middle.
            for (shape, axis) in [([4, 2, 3], 2), ([2, 3, 4], 1)] {
                let inner = if axis == 2 { 1 } else { 4 };
                let statistics = |bad: Option<f64>| {
                    let mut x = numbers(24, 7);
                    x[inner] = bad.unwrap_or(x[inner]); // of channel 1
                    let x = tensor(&x, shape, dtype, &device);
                    let parameter = |v: f64| tensor(&[v; 3], 3, dtype, &device);
                    // One statistic in memory of its own, one strided.
                    let mean = tensor(&[0.25; 6], [3, 2], dtype, &device).select(1, 1).unwrap();
                    let var = parameter(2.0);
                    x.batch_norm(&parameter(1.0), &parameter(0.0), &mean, &var, axis, true, 0.5, 1e-3)
                        .unwrap();
                    [values(&mean), values(&var)]
                };
                let mut expected = statistics(None);
                assert!(expected[0][1] != 0.25 && expected[1][1] != 2.0, "{expected:?}");
                (expected[0][1], expected[1][1]) = (0.25, 2.0);
                for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, huge, -huge] {
                    assert_eq!(statistics(Some(bad)), expected, "{bad} in {dtype}, axis {axis}, on {device}");
                }
            }
        }
    }
}
