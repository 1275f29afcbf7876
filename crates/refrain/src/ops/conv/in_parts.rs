//! Tests of images that are laid out in several parts, which are this small in unit tests only.

use super::Conv2dOptions;
use crate::device::Device;
use crate::ops::testing::{devices, values};
use crate::precision::with_precision;
use crate::tensor::{DType, Tensor};
use crate::types::Precision;

/// Whole numbers, whose sums are exact.
fn whole(shape: &[usize], step: usize, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    // No plane or image is a multiple of 11, so they differ.
    let numbers: Vec<f32> = (0..n).map(|i| (i * step % 11) as f32 - 5.0).collect();
    Tensor::from_slice(&numbers, shape, device).unwrap()
}

/// The result of a convolution and the gradients by its images, weight and bias.
fn all_of([x, dy, weight, bias]: [&Tensor; 4], precision: Precision) -> [Vec<f64>; 4] {
    let leaves = [x, weight, bias].map(Tensor::detach);
    leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
    let [x, weight, bias] = &leaves;
    let o = Conv2dOptions { padding: [1, 1], ..Default::default() };
    let y = with_precision(precision, || x.conv2d(weight, Some(bias), &o)).unwrap();
    y.backward_with(dy).unwrap();
    let [dx, dw, db] = leaves.each_ref().map(|t| values(&t.grad().unwrap()));
    [values(&y), dx, dw, db]
}

#[test]
fn images_in_several_parts_have_the_bits_of_each_image_by_itself() {
    // Planes of 35 pixels have no whole pieces. Those with their channels last are read where they lie, or laid out.
    let cases = [
        ([37, 24, 12, 14], 70, DType::F32, Precision::Tf32, false),
        ([83, 20, 5, 7], 70, DType::F32, Precision::Tf32, false),
        ([37, 24, 12, 14], 70, DType::BF16, Precision::Bf16, false),
        ([83, 20, 5, 7], 70, DType::BF16, Precision::Bf16, false),
        ([37, 24, 12, 14], 72, DType::BF16, Precision::Bf16, true),
        ([83, 20, 5, 7], 70, DType::BF16, Precision::Bf16, true),
        ([27, 104, 12, 14], 100, DType::F32, Precision::F32, false),
    ];
    for device in devices() {
        for (images, out, dtype, precision, last) in cases {
            let [n, channels, height, width] = images;
            let of = |channels, step| whole(&[n, channels, height, width], step, &device);
            let in_order = |t: Tensor| if last { t.channels_last().unwrap() } else { t };
            let [x, dy] = [of(channels, 3), of(out, 5)].map(|t| in_order(t.to_dtype(dtype).unwrap()));
            let (weight, bias) = (whole(&[out, channels, 3, 3], 2, &device), whole(&[out], 1, &device));
            let together = all_of([&x, &dy, &weight, &bias], precision);
            let mut apart = [const { Vec::new() }; 4];
            for image in 0..n {
                let [x, dy] = [&x, &dy].map(|t| in_order(t.narrow(0, image, 1).unwrap().copy().unwrap()));
                let [y, dx, dw, db] = all_of([&x, &dy, &weight, &bias], precision);
                apart[0].extend(y);
                apart[1].extend(dx);
                for (sum, of_image) in apart[2..].iter_mut().zip([dw, db]) {
                    sum.resize(of_image.len(), 0.0);
                    sum.iter_mut().zip(of_image).for_each(|(sum, x)| *sum += x);
                }
            }
            for (i, (together, apart)) in together.iter().zip(&apart).enumerate() {
                assert!(together == apart, "{device} {images:?} {dtype} {precision:?} {last} {i}");
            }
        }
    }
}
