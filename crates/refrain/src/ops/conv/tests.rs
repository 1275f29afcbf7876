use crate::testing::{assert_close, devices, gradcheck, leaf, numbers, shortened, values};
use refrain::{
    Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, ConvTranspose2dOptions, DType, Device, Error,
    Precision, Result, Step, Tensor, on_one_thread, with_precision,
};

fn tensor(shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(&numbers(shape.iter().product()), shape, device).unwrap()
}

/// The sum by its definition: each element of each window times its weight.
fn direct(x: &Tensor, weight: &Tensor, o: &Conv2dOptions) -> Vec<f64> {
    let (&[n, c, h, w], &[out, in_group, kh, kw]) = (x.dims(), weight.dims()) else { unreachable!() };
    let (x, weight) = (values(x), values(weight));
    let count = |axis: usize, size: usize, k: usize| {
        (size + 2 * o.padding[axis] - o.dilation[axis] * (k - 1) - 1) / o.stride[axis] + 1
    };
    let (rows, columns) = (count(0, h, kh), count(1, w, kw));
    let mut y = Vec::new();
    for image in 0..n {
        for channel in 0..out {
            let first = channel / (out / o.groups) * in_group;
            for row in 0..rows {
                for column in 0..columns {
                    let mut sum = 0.0;
                    for (k, &v) in
                        weight[channel * in_group * kh * kw..][..in_group * kh * kw].iter().enumerate()
                    {
                        let i = (row * o.stride[0] + k / kw % kh * o.dilation[0]).checked_sub(o.padding[0]);
                        let j = (column * o.stride[1] + k % kw * o.dilation[1]).checked_sub(o.padding[1]);
                        if let (Some(i), Some(j)) = (i.filter(|&i| i < h), j.filter(|&j| j < w)) {
                            sum += v * x[((image * c + first + k / kw / kh) * h + i) * w + j];
                        }
                    }
                    y.push(sum);
                }
            }
        }
    }
    y
}

fn options(stride: [usize; 2], padding: [usize; 2], dilation: [usize; 2], groups: usize) -> Conv2dOptions {
    Conv2dOptions { stride, padding, dilation, groups }
}

fn cases() -> Vec<Sizes> {
    vec![
        ([2, 3, 5, 6], [4, 3, 3, 3], options([1, 1], [0, 0], [1, 1], 1)),
        ([2, 3, 5, 6], [4, 3, 3, 2], options([2, 1], [1, 1], [1, 1], 1)),
        ([1, 2, 7, 8], [3, 2, 3, 3], options([2, 3], [2, 1], [2, 1], 1)),
        ([2, 4, 5, 5], [6, 2, 3, 3], options([1, 1], [1, 1], [1, 1], 2)),
        ([2, 4, 6, 5], [4, 1, 2, 3], options([1, 2], [0, 2], [1, 2], 4)),
        ([3, 5, 4, 4], [2, 5, 1, 1], options([1, 1], [0, 0], [1, 1], 1)),
        ([1, 1, 1, 1], [1, 1, 3, 3], options([1, 1], [1, 1], [1, 1], 1)),
        // Groups of few channels: with strides, also above the kernel, and dilations; of several channels; with windows larger than
        // the image, images of one pixel, and long series.
        ([2, 4, 7, 6], [4, 1, 3, 3], options([2, 2], [1, 1], [1, 1], 4)),
        ([1, 8, 7, 8], [8, 1, 3, 2], options([3, 2], [1, 1], [1, 2], 8)),
        ([1, 8, 5, 7], [8, 1, 2, 1], options([3, 2], [1, 0], [1, 1], 8)),
        ([2, 8, 5, 6], [12, 2, 2, 3], options([1, 1], [1, 1], [2, 1], 4)),
        ([1, 8, 2, 3], [8, 1, 5, 4], options([1, 1], [2, 2], [1, 1], 8)),
        ([2, 4, 1, 1], [4, 1, 3, 3], options([1, 1], [1, 1], [1, 1], 4)),
        ([2, 4, 1, 40], [4, 1, 1, 33], options([1, 1], [0, 16], [1, 1], 4)),
        // More channels, which are multiplied as matrices on every device.
        ([1, 18, 5, 4], [10, 9, 2, 3], options([2, 1], [1, 1], [1, 1], 2)),
        ([1, 9, 5, 6], [10, 9, 2, 2], options([2, 3], [1, 0], [2, 1], 1)),
    ]
}

#[test]
fn each_result_is_the_sum_over_its_window() {
    for device in devices() {
        for (x, weight, o) in cases() {
            let (x, weight) = (tensor(&x, &device), tensor(&weight, &device));
            let y = x.conv2d(&weight, None, &o).unwrap();
            let expected = direct(&x, &weight, &o);
            assert_close(&values(&y), &expected, 1e-10);
            let bias = tensor(&[weight.dims()[0]], &device);
            let plane = y.dims()[2] * y.dims()[3];
            let shifted: Vec<f64> = (expected.iter().enumerate())
                .map(|(i, v)| v + values(&bias)[i / plane % bias.numel()])
                .collect();
            assert_close(&values(&x.conv2d(&weight, Some(&bias), &o).unwrap()), &shifted, 1e-10);
            // The channels last in memory.
            let turned = x.permute(&[0, 2, 3, 1]).unwrap().copy().unwrap().permute(&[0, 3, 1, 2]).unwrap();
            assert_close(&values(&turned.conv2d(&weight, None, &o).unwrap()), &expected, 1e-10);
        }
    }
}

#[test]
fn gradients_of_images_weight_and_bias_agree_with_finite_differences() {
    for device in devices() {
        for (x, weight, o) in cases() {
            let bias = leaf(&[weight[0]], &device);
            let f = |t: &[Tensor]| t[0].conv2d(&t[1], Some(&t[2]), &o)?.square();
            gradcheck(f, &[leaf(&x, &device), leaf(&weight, &device), bias], 1e-4).unwrap();
        }
        let o = Conv1dOptions { stride: 2, padding: 1, dilation: 2, groups: 2 };
        let f = |t: &[Tensor]| t[0].conv1d(&t[1], Some(&t[2]), &o)?.square();
        gradcheck(f, &[leaf(&[2, 4, 9], &device), leaf(&[6, 2, 3], &device), leaf(&[6], &device)], 1e-4)
            .unwrap();
    }
}

#[test]
fn a_transposed_convolution_is_the_adjoint() {
    for device in devices() {
        for (x, weight, o) in cases() {
            let (x, weight) = (leaf(&x, &device), tensor(&weight, &device));
            let y = x.conv2d(&weight, None, &o).unwrap();
            let d = tensor(y.dims(), &device);
            y.backward_with(&d).unwrap();
            let size = |axis: usize| {
                let reach = o.dilation[axis] * (weight.dims()[2 + axis] - 1) + 1;
                x.dims()[2 + axis] + 2 * o.padding[axis] - (y.dims()[2 + axis] - 1) * o.stride[axis] - reach
            };
            let transposed = ConvTranspose2dOptions {
                stride: o.stride,
                padding: o.padding,
                output_padding: [size(0), size(1)],
                dilation: o.dilation,
                groups: o.groups,
            };
            let back = d.conv_transpose2d(&weight, None, &transposed).unwrap();
            assert_eq!(back.dims(), x.dims());
            assert_close(&values(&back), &values(&x.grad().unwrap()), 1e-10);
        }
    }
}

#[test]
fn gradients_of_a_transposed_convolution_agree_with_finite_differences() {
    for device in devices() {
        let base = ConvTranspose2dOptions::default();
        for (x, weight, o) in [
            ([2, 3, 3, 2], [3, 2, 3, 3], base),
            (
                [1, 2, 3, 3],
                [2, 2, 3, 2],
                ConvTranspose2dOptions { stride: [2, 3], padding: [1, 0], output_padding: [1, 2], ..base },
            ),
            ([1, 4, 2, 3], [4, 1, 2, 2], ConvTranspose2dOptions { dilation: [2, 1], groups: 2, ..base }),
        ] {
            let bias = leaf(&[weight[1] * o.groups], &device);
            let f = |t: &[Tensor]| t[0].conv_transpose2d(&t[1], Some(&t[2]), &o)?.square();
            gradcheck(f, &[leaf(&x, &device), leaf(&weight, &device), bias], 1e-4).unwrap();
        }
        let o = ConvTranspose1dOptions { stride: 2, padding: 1, ..ConvTranspose1dOptions::default() };
        let f = |t: &[Tensor]| t[0].conv_transpose1d(&t[1], None, &o)?.square();
        gradcheck(f, &[leaf(&[2, 3, 4], &device), leaf(&[3, 2, 3], &device)], 1e-4).unwrap();
    }
}

#[test]
fn operands_that_repeat_an_element_are_read_as_their_copies() {
    for device in devices() {
        for (x, weight, o) in cases() {
            let gradients = |backward: &dyn Fn(&Tensor)| {
                let (x, weight) = (leaf(&x, &device), leaf(&weight, &device));
                backward(&x.conv2d(&weight, None, &o).unwrap());
                [x, weight].map(|t| values(&t.grad().unwrap()))
            };
            // The gradient of a sum is a one that is repeated.
            let found = gradients(&|y| y.sum(()).unwrap().backward().unwrap());
            let ones = |y: &Tensor| Tensor::ones(y.shape(), y.dtype(), y.device()).unwrap();
            let expected = gradients(&|y| y.backward_with(&ones(y)).unwrap());
            found.iter().zip(&expected).for_each(|(found, expected)| assert_close(found, expected, 1e-12));
            for repeated in [[1, 1, 1, 1], [x[0], x[1], x[2], 1], [x[0], 1, 1, x[3]]] {
                let (x, weight) =
                    (tensor(&repeated, &device).broadcast_to(x).unwrap(), tensor(&weight, &device));
                let [y, copied] = [x.conv2d(&weight, None, &o), x.copy().unwrap().conv2d(&weight, None, &o)];
                assert_eq!(values(&y.unwrap()), values(&copied.unwrap()));
            }
        }
    }
}

#[test]
fn images_that_begin_anywhere_in_memory_are_read_as_their_copies() {
    for device in devices() {
        for (shape, weight, groups) in [([2, 4, 5, 12], [4, 1, 3, 3], 4), ([2, 12, 4, 8], [9, 12, 1, 1], 1)] {
            let n = shape.iter().product::<usize>();
            let weight = whole(&weight, 1, &device).to_dtype(DType::BF16).unwrap();
            let padding = [weight.dims()[2] / 2; 2];
            let o = options([1, 1], padding, [1, 1], groups);
            for first in [0, 1, 2, 4] {
                let memory = whole(&[n + first], 3, &device).to_dtype(DType::BF16).unwrap();
                let x = memory.narrow(0, first, n).unwrap().view(shape).unwrap();
                let y = x.conv2d(&weight, None, &o).unwrap();
                assert_eq!(values(&y), values(&x.copy().unwrap().conv2d(&weight, None, &o).unwrap()));
            }
        }
    }
}

#[test]
fn nothing_comes_of_columns_that_no_window_has() {
    for device in devices() {
        let o = Conv2dOptions { stride: [1, 2], ..Conv2dOptions::default() };
        let mut numbers = vec![1.0; 6];
        numbers[5] = f64::INFINITY;
        let x = Tensor::from_slice(&numbers, [1, 1, 1, 6], &device).unwrap();
        let weight = leaf(&[1, 1, 1, 3], &device);
        x.conv2d(&weight, None, &o)
            .unwrap()
            .square()
            .unwrap()
            .backward_with(&tensor(&[1, 1, 1, 2], &device))
            .unwrap();
        assert!(values(&weight.grad().unwrap()).iter().all(|value| value.is_finite()));
        // Padding alone.
        let o = Conv2dOptions { padding: [0, 1], ..Conv2dOptions::default() };
        for empty in [tensor(&[1, 1, 3, 0], &device), tensor(&[2, 1, 3, 2], &device).narrow(3, 0, 0).unwrap()]
        {
            assert!(
                values(&empty.conv2d(&tensor(&[1, 1, 1, 1], &device), None, &o).unwrap())
                    .iter()
                    .all(|&y| y == 0.0)
            );
        }
    }
}

/// The weight's gradient by its definition: each element of each window times the gradient of the window's result.
fn direct_weight_gradient(x: &Tensor, dy: &Tensor, kernel: [usize; 2], o: &Conv2dOptions) -> Vec<f64> {
    let (&[n, c, h, w], &[_, out, rows, columns]) = (x.dims(), dy.dims()) else { unreachable!() };
    let (x, dy) = (values(x), values(dy));
    let mut dw = vec![0.0; out * c * kernel[0] * kernel[1]];
    for (k, dw) in dw.iter_mut().enumerate() {
        let (row_of_kernel, column_of_kernel) = (k / kernel[1] % kernel[0], k % kernel[1]);
        let (channel, of) = (k / kernel[1] / kernel[0] % c, k / kernel[1] / kernel[0] / c);
        for at in 0..n * rows * columns {
            let (image, row, column) = (at / columns / rows, at / columns % rows, at % columns);
            let i = (row * o.stride[0] + row_of_kernel * o.dilation[0]).checked_sub(o.padding[0]);
            let j = (column * o.stride[1] + column_of_kernel * o.dilation[1]).checked_sub(o.padding[1]);
            if let (Some(i), Some(j)) = (i.filter(|&i| i < h), j.filter(|&j| j < w)) {
                let dy = dy[((image * out + of) * rows + row) * columns + column];
                *dw += dy * x[((image * c + channel) * h + i) * w + j];
            }
        }
    }
    dw
}

#[test]
fn an_infinity_or_nan_in_an_image_reaches_only_elements_of_a_weights_gradient_whose_window_has_it() {
    let device = Device::cpu();
    let sizes = [
        ([2, 2, 5, 6], [3, 3]),
        ([1, 3, 6, 7], [2, 2]),
        ([1, 1, 7, 9], [3, 4]),
        ([8, 2, 5, 6], [3, 3]),
        ([8, 2, 4, 4], [2, 2]),
        ([8, 2, 3, 3], [1, 1]),
    ];
    // Strides and dilations.
    let steps = [([1, 1], [1, 1]), ([2, 2], [1, 1]), ([1, 2], [1, 1]), ([1, 1], [2, 2]), ([1, 1], [2, 1])];
    let dtypes = [DType::F64, DType::F32, DType::BF16, DType::F16];
    for ((shape, kernel), (stride, dilation)) in sizes.into_iter().flat_map(|s| steps.map(|step| (s, step))) {
        for (padding, dtype) in [[0, 0], [1, 1]].into_iter().flat_map(|p| dtypes.map(|dtype| (p, dtype))) {
            let o = options(stride, padding, dilation, 1);
            let [n, c, h, w] = shape;
            for (column, value) in (0..w).flat_map(|j| [f64::INFINITY, f64::NAN].map(|v| (j, v))) {
                let mut numbers: Vec<f64> = (0..n * c * h * w).map(|i| (i * 3 % 7) as f64 - 3.0).collect();
                // In the last channel of the first image.
                let row = column % h;
                numbers[((c - 1) * h + row) * w + column] = value;
                let x = Tensor::from_slice(&numbers, shape, &device).unwrap().to_dtype(dtype).unwrap();
                let weight = Tensor::ones([4, c, kernel[0], kernel[1]], dtype, &device).unwrap();
                weight.set_requires_grad(true).unwrap();
                let y = x.conv2d(&weight, None, &o).unwrap();
                // Without zeros: zero times an infinity is NaN also by definition.
                let dy: Vec<f64> = (0..y.numel()).map(|i| (i * 5 % 3) as f64 + 1.0).collect();
                let dy = Tensor::from_slice(&dy, y.dims(), &device).unwrap().to_dtype(dtype).unwrap();
                y.backward_with(&dy).unwrap();
                let expected = direct_weight_gradient(&x, &dy, kernel, &o);
                let expected = Tensor::from_slice(&expected, weight.dims(), &device).unwrap();
                let expected = values(&expected.to_dtype(dtype).unwrap());
                let found = values(&weight.grad().unwrap());
                let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
                assert!(
                    found.iter().zip(&expected).all(same),
                    "{value} at [{row}, {column}] of {shape:?}, kernel {kernel:?}, {o:?}, {dtype}: {found:?}, not {expected:?}"
                );
            }
        }
    }
}

#[test]
fn narrow_floats_are_summed_in_f32_and_no_images_are_taken() {
    for device in devices() {
        let o = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
        for dtype in [DType::BF16, DType::F16] {
            let x = Tensor::ones([1, 64, 6, 6], dtype, &device).unwrap();
            let weight = Tensor::ones([2, 64, 3, 3], dtype, &device).unwrap();
            let y = values(&x.conv2d(&weight, None, &o).unwrap());
            // One by one, bf16 would stop at 256.
            assert_eq!((y[0], y[7]), (256.0, 576.0), "{dtype}");
        }
        let none = Tensor::zeros([0, 2, 4, 4], DType::F32, &device).unwrap();
        let weight = Tensor::ones([3, 2, 3, 3], DType::F32, &device).unwrap();
        assert_eq!(none.conv2d(&weight, None, &o).unwrap().dims(), [0, 3, 4, 4]);
    }
}

/// Small whole numbers, whose products and sums every dtype and precision has exactly.
fn whole(shape: &[usize], step: usize, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let numbers: Vec<f64> = (0..n).map(|i| (i * step % 7) as f64 - 3.0).collect();
    Tensor::from_slice(&numbers, shape, device).unwrap()
}

/// The result and the gradients by images, weight and bias of two passes, with their dtypes.
fn all_of([x, weight, bias]: [&Tensor; 3], o: &Conv2dOptions, transposed: bool) -> Vec<(DType, Vec<f64>)> {
    let leaves = [x, weight, bias].map(|t| {
        let t = t.detach();
        t.set_requires_grad(true).unwrap();
        t
    });
    let [x, weight, bias] = &leaves;
    let forward = || match transposed {
        false => x.conv2d(weight, Some(bias), o).unwrap(),
        true => {
            let o = ConvTranspose2dOptions {
                stride: o.stride,
                padding: o.padding,
                dilation: o.dilation,
                groups: o.groups,
                output_padding: o.stride.map(|stride| stride - 1),
            };
            x.conv_transpose2d(weight, Some(bias), &o).unwrap()
        }
    };
    let y = forward();
    // On a GPU, they keep the order of images that have their channels last.
    let is_last = |t: &Tensor| t.permute(&[0, 2, 3, 1]).unwrap().is_contiguous();
    assert!(x.is_contiguous() && y.is_contiguous() || is_last(x) && is_last(&y), "{:?}", y.strides());
    let mut dy = whole(y.dims(), 5, y.device()).to_dtype(y.dtype()).unwrap();
    // The second pass adds to the gradients of the first.
    y.backward_with(&dy).unwrap();
    if !y.is_contiguous() {
        dy = dy.channels_last().unwrap();
    }
    forward().backward_with(&dy).unwrap();
    let gradients = leaves.iter().map(|t| t.grad().unwrap());
    [y.detach()].into_iter().chain(gradients).map(|t| (t.dtype(), values(&t))).collect()
}

#[test]
fn odd_sizes_have_the_bits_of_the_exact_sums_in_each_dtype_and_precision() {
    for device in devices() {
        let sizes = [
            ([2, 1, 5, 9], [5, 1, 7, 7], options([1, 1], [3, 3], [1, 1], 1)),
            ([1, 130, 5, 9], [3, 130, 3, 3], options([1, 1], [1, 1], [1, 1], 1)),
            ([3, 5, 5, 9], [130, 5, 1, 1], options([1, 1], [0, 0], [1, 1], 1)),
            ([2, 130, 5, 9], [130, 1, 3, 3], options([1, 1], [1, 1], [1, 1], 130)),
            ([2, 3, 9, 5], [70, 3, 7, 7], options([2, 2], [3, 3], [1, 1], 1)),
            ([1, 6, 17, 16], [20, 3, 3, 2], options([3, 2], [2, 0], [2, 1], 2)),
            ([3, 20, 8, 8], [40, 20, 3, 3], options([1, 1], [1, 1], [1, 1], 1)),
            ([1, 2, 4, 4], [3, 2, 2, 2], options([4, 3], [0, 0], [1, 1], 1)),
            ([3, 34, 9, 7], [36, 17, 3, 3], options([1, 2], [1, 1], [1, 1], 2)),
            // More terms and rows than stay in the cache while the windows pass, in so many images that threads do not share their rows,
            // and rows of windows that end in a panel.
            ([8, 113, 6, 11], [65, 113, 3, 3], options([1, 1], [1, 1], [1, 1], 1)),
            ([9, 6, 40, 3], [4, 3, 3, 1], options([2, 1], [1, 0], [1, 1], 2)),
            // Small images, whose windows are packed side by side, and strides whose results have different taps or none.
            ([33, 10, 6, 5], [12, 10, 3, 3], options([2, 2], [1, 1], [1, 1], 1)),
            ([35, 9, 7, 8], [17, 9, 1, 1], options([2, 3], [0, 0], [1, 1], 1)),
            // Planes narrower than the stride.
            ([2, 9, 6, 1], [17, 9, 2, 1], options([1, 3], [2, 0], [2, 2], 1)),
            // Groups of few channels: more windows than all taps pass at a time, several channels, and many taps.
            ([3, 6, 33, 70], [6, 1, 3, 3], options([1, 1], [1, 1], [1, 1], 6)),
            ([2, 8, 9, 11], [12, 2, 3, 3], options([2, 3], [1, 2], [1, 1], 4)),
            ([2, 5, 4, 4], [5, 1, 7, 7], options([1, 1], [3, 3], [1, 1], 5)),
            ([9, 1, 1, 700], [1, 1, 1, 65], options([1, 2], [0, 32], [1, 1], 1)),
            // Rows of whole pieces, which a GPU loads at once; single pixels, which it multiplies where they lie.
            ([3, 6, 7, 12], [6, 1, 3, 3], options([1, 1], [1, 1], [1, 1], 6)),
            ([2, 9, 6, 16], [6, 3, 3, 5], options([2, 2], [1, 2], [1, 1], 3)),
            ([3, 34, 4, 8], [40, 34, 1, 1], options([1, 1], [0, 0], [1, 1], 1)),
            // Groups of many channels in planes of whole pieces.
            ([3, 34, 8, 8], [36, 17, 3, 3], options([1, 1], [1, 1], [1, 1], 2)),
            // Taps far apart; parts of wide and of high windows; strides whose results have few taps, and one of too many for a strip.
            ([2, 9, 1, 50], [9, 1, 1, 3], options([1, 1], [0, 16], [1, 16], 9)),
            ([2, 3, 1, 60], [3, 1, 1, 11], options([1, 1], [0, 10], [1, 2], 3)),
            ([2, 4, 10, 12], [4, 1, 9, 9], options([1, 1], [4, 4], [1, 1], 4)),
            ([2, 3, 1, 30], [3, 1, 1, 7], options([1, 5], [0, 3], [1, 1], 3)),
            ([1, 2, 1, 90], [2, 1, 1, 20], options([1, 12], [0, 0], [1, 1], 2)),
            // One weight for each channel of the gradient of the images, and strides whose results have none.
            ([1, 2, 5, 5], [2, 1, 1, 1], options([2, 2], [0, 0], [1, 1], 2)),
            ([1, 32, 5, 5], [1, 32, 1, 1], options([2, 2], [0, 0], [1, 1], 1)),
        ];
        let settings = [
            (DType::F64, DType::F64, Precision::F32),
            (DType::F32, DType::F32, Precision::F32),
            (DType::F32, DType::F32, Precision::Tf32),
            (DType::F32, DType::F32, Precision::Bf16),
            (DType::BF16, DType::BF16, Precision::F32),
            (DType::BF16, DType::F32, Precision::F32),
            (DType::F16, DType::F16, Precision::F32),
        ];
        assert_both_ways(&device, &sizes, &settings, |images| images);
    }
}

/// The dtypes of images and of parameters, and a precision.
type Setting = (DType, DType, Precision);

/// Everything that [`all_of`] computes is the exact sum, rounded once.
#[track_caller]
fn assert_rounded_sums(
    operands: [Tensor; 3],
    o: &Conv2dOptions,
    transposed: bool,
    (dtype, parameters, precision): Setting,
    exact: &[(DType, Vec<f64>)],
) {
    let [x, w, b] = operands;
    let sizes = (x.shape().clone(), w.shape().clone());
    let [x, w, b] = [(x, dtype), (w, parameters), (b, parameters)].map(|(t, d)| t.to_dtype(d).unwrap());
    let found = with_precision(precision, || all_of([&x, &w, &b], o, transposed));
    for (i, ((dtype, found), (_, exact))) in found.iter().zip(exact).enumerate() {
        let exact = Tensor::from_slice(exact, [exact.len()], &Device::cpu()).unwrap();
        let rounded = values(&exact.to_dtype(*dtype).unwrap());
        assert!(found == &rounded, "{sizes:?} {o:?} {transposed} {dtype} {precision:?} {i}");
    }
}

/// Sizes of images and of a weight, and how they meet.
type Sizes = ([usize; 4], [usize; 4], Conv2dOptions);

/// [`assert_rounded_sums`] of convolutions and of transposed ones of such sizes, of images that lie as `in_order` lays them.
#[track_caller]
fn assert_both_ways(device: &Device, sizes: &[Sizes], settings: &[Setting], in_order: fn(Tensor) -> Tensor) {
    let sizes = sizes.iter().flat_map(|&s| [(s, false), (s, true)]);
    for (turn, ((images, weight, o), transposed)) in sizes.enumerate() {
        // The source of a transposed convolution has the channels of the other one's result.
        let (channels, bias) = match transposed {
            false => (images[1], weight[0]),
            true => (weight[0], weight[1] * o.groups),
        };
        let operands = |device: &Device| {
            let x = whole(&[images[0], channels, images[2], images[3]], 3, device);
            [x, whole(&weight, 1, device), whole(&[bias], 1, device)]
        };
        let exact = all_of(operands(&Device::cpu()).each_ref(), &o, transposed);
        for setting in shortened(settings.iter().copied(), turn, 3) {
            let [x, weight, bias] = operands(device);
            assert_rounded_sums([in_order(x), weight, bias], &o, transposed, setting, &exact);
        }
    }
}

#[test]
fn images_with_their_channels_last_have_the_bits_of_the_exact_sums() {
    let sizes = [
        // Read where they lie: channels of whole pieces, also in groups, in one tile and in several, with all kinds of steps.
        ([3, 32, 8, 9], [40, 32, 3, 3], options([1, 1], [1, 1], [1, 1], 1)),
        ([2, 72, 9, 10], [136, 72, 3, 2], options([2, 1], [1, 0], [1, 2], 1)),
        ([3, 32, 7, 8], [48, 16, 3, 3], options([1, 1], [1, 1], [1, 1], 2)),
        ([3, 32, 7, 9], [48, 16, 3, 3], options([2, 2], [1, 1], [1, 1], 2)),
        ([3, 40, 5, 7], [32, 40, 1, 1], options([1, 1], [0, 0], [1, 1], 1)),
        ([3, 40, 5, 7], [32, 40, 1, 1], options([2, 2], [0, 0], [1, 1], 1)),
        ([27, 104, 12, 14], [104, 104, 3, 3], options([1, 1], [1, 1], [1, 1], 1)),
        // Laid out: fewer or more.
        ([2, 3, 9, 5], [70, 3, 7, 7], options([2, 2], [3, 3], [1, 1], 1)),
        ([3, 34, 9, 7], [36, 17, 3, 3], options([1, 2], [1, 1], [1, 1], 2)),
        ([33, 10, 6, 5], [12, 10, 3, 3], options([2, 3], [1, 1], [1, 1], 1)),
        ([1, 130, 5, 9], [3, 130, 3, 3], options([1, 1], [1, 1], [1, 1], 1)),
    ];
    let settings = [
        (DType::BF16, DType::F32, Precision::Bf16),
        (DType::F32, DType::F32, Precision::Bf16),
        (DType::F16, DType::F16, Precision::F32),
    ];
    for device in devices() {
        assert_both_ways(&device, &sizes, &settings, |images| images.channels_last().unwrap());
    }
}

#[test]
fn convolutions_of_many_channels_have_the_bits_of_the_exact_sums() {
    // A GPU lays windows of f32 out as a matrix, and images of bf16 and TF32 with their channels last. Planes of 49 pixels have no whole
    // pieces.
    let sizes = [
        ([27, 104, 12, 14], options([1, 1], [1, 1], [1, 1], 1)),
        ([27, 104, 24, 14], options([2, 1], [1, 2], [1, 2], 1)),
        ([59, 105, 7, 7], options([1, 1], [1, 2], [1, 2], 1)),
        // On the CPU, tasks share the channels of this weight's gradient.
        ([37, 147, 4, 5], options([1, 1], [1, 1], [1, 1], 1)),
    ];
    let settings = [
        (DType::F32, DType::F32, Precision::F32),
        (DType::F32, DType::F32, Precision::Tf32),
        (DType::BF16, DType::F32, Precision::Bf16),
        (DType::F32, DType::F32, Precision::Bf16),
    ];
    for device in devices() {
        for (turn, (images, o)) in sizes.into_iter().enumerate() {
            let operands = |device: &Device| {
                [
                    whole(&images, 3, device),
                    whole(&[100, images[1], 3, 3], 1, device),
                    whole(&[100], 1, device),
                ]
            };
            // These sums are exact in f32, too.
            let narrow = operands(&Device::cpu()).map(|t| t.to_dtype(DType::F32).unwrap());
            let exact = all_of(narrow.each_ref(), &o, false);
            for setting in shortened(settings, turn, 1) {
                assert_rounded_sums(operands(&device), &o, false, setting, &exact);
            }
        }
    }
}

#[test]
fn a_recorded_step_multiplies_with_what_a_weight_is_at_that_moment() {
    for device in devices() {
        for precision in [Precision::Bf16, Precision::Tf32, Precision::F32] {
            let x = whole(&[2, 16, 5, 6], 3, &device).to_dtype(DType::F32).unwrap();
            let o = options([1, 1], [1, 1], [1, 1], 1);
            let weight = || whole(&[24, 16, 3, 3], 2, &device).to_dtype(DType::F32).unwrap();
            let run = |weight: &Tensor| -> Result<Vec<Tensor>> {
                let first = x.conv2d(weight, None, &o)?;
                let again = x.conv2d(weight, None, &o)?;
                weight.add_scalar_assign(1.0)?;
                Ok(vec![first, again, x.conv2d(weight, None, &o)?])
            };
            let [eager, recorded] = [weight(), weight()];
            with_precision(precision, || {
                let mut step = Step::new(&device, |_| Ok(run(&recorded)?));
                for i in 0..3 {
                    let expected: Vec<_> = run(&eager).unwrap().iter().map(values).collect();
                    let found = step.call(&[]).unwrap();
                    let found: Vec<_> = (0..3).map(|o| values(&found.copy(o).unwrap())).collect();
                    assert_eq!(found, expected, "{device} {precision:?} {i}");
                    assert_ne!(expected[0], expected[2]);
                }
                step.finish().unwrap();
            });
        }
    }
}

#[test]
fn the_gradient_of_a_bias_is_the_sum_in_f32_also_in_tf32() {
    // TF32 would round it to 1.
    let number = 1.0 + 2f32.powi(-12);
    for device in devices() {
        let x = Tensor::ones([4, 20, 8, 8], DType::F32, &device).unwrap();
        let weight = Tensor::ones([70, 20, 3, 3], DType::F32, &device).unwrap();
        let bias = Tensor::zeros([70], DType::F32, &device).unwrap();
        [&weight, &bias].iter().for_each(|t| t.set_requires_grad(true).unwrap());
        let o = options([1, 1], [1, 1], [1, 1], 1);
        let y = with_precision(Precision::Tf32, || x.conv2d(&weight, Some(&bias), &o)).unwrap();
        y.backward_with(&Tensor::full(y.dims(), f64::from(number), DType::F32, &device).unwrap()).unwrap();
        assert_eq!(bias.grad().unwrap().to_vec::<f32>().unwrap(), [number * 256.0; 70], "{device}");
    }
}

#[test]
fn images_have_the_same_bits_on_one_thread_and_where_a_gradient_is_added_to_another() {
    for (device, dtype) in devices().flat_map(|d| [(d.clone(), DType::F32), (d, DType::BF16)]) {
        for (n, [height, width], o) in [
            (1, [19, 23], options([1, 1], [1, 1], [1, 1], 1)),
            (9, [19, 23], options([1, 1], [2, 1], [2, 1], 2)),
            (9, [19, 23], options([1, 1], [1, 1], [1, 1], 40)),
            (9, [19, 23], options([1, 1], [1, 1], [1, 1], 8)),
            (35, [5, 6], options([1, 1], [1, 1], [1, 1], 1)),
        ] {
            let of = |shape: &[usize]| {
                let t = tensor(shape, &device).to_dtype(dtype).unwrap();
                t.set_requires_grad(true).unwrap();
                t
            };
            let (x, weight, bias) = (of(&[n, 40, height, width]), of(&[40, 40 / o.groups, 3, 3]), of(&[40]));
            let dy = of(&[n, 40, height, width]).detach();
            let bits = |t: &Tensor| t.detach().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            let run = |adds: bool| {
                [&x, &weight, &bias].iter().for_each(|t| t.zero_grad().unwrap());
                let y = x.conv2d(&weight, Some(&bias), &o).unwrap();
                let all = if adds { y.add(&x).unwrap() } else { y.add_scalar(0.0).unwrap() };
                all.backward_with(&dy).unwrap();
                [
                    bits(&y),
                    bits(&x.grad().unwrap()),
                    bits(&weight.grad().unwrap()),
                    bits(&bias.grad().unwrap()),
                ]
            };
            let alone = run(false);
            assert!(on_one_thread(|| run(false)) == alone, "{n} images of {dtype} on one thread");
            let [y, dx, dw, db] = run(true);
            assert!([&y, &dw, &db] == [&alone[0], &alone[2], &alone[3]], "{n} images");
            // In bf16 the sum is rounded once, and here one of its terms, too.
            let slack = if dtype == DType::BF16 { 1.0 / 128.0 } else { 0.0 };
            let is_sum = |dx: f32, a: f32, d: f32| (dx - (a + d)).abs() <= slack * (a.abs() + d.abs());
            let added = dx.iter().zip(&alone[1]).zip(bits(&dy)).all(|((&dx, &a), d)| is_sum(dx, a, d));
            assert!(added, "{n} images of {dtype}");
            assert!(on_one_thread(|| run(true)) == [y, dx, dw, db], "{n} images on one thread");
        }
    }
}

/// A call with a new result, and one with a destination.
type Forms<'a> = (&'a dyn Fn() -> Result<Tensor>, &'a dyn Fn(&Tensor) -> Result<()>);

#[test]
fn a_convolution_into_a_tensor_has_the_gradients_of_one_with_a_new_result() {
    for device in devices() {
        for dtype in [DType::F64, DType::BF16] {
            let leaf = |shape: &[usize]| {
                let t = tensor(shape, &device).to_dtype(dtype).unwrap();
                t.set_requires_grad(true).unwrap();
                t
            };
            let (images, of_images) = (leaf(&[2, 4, 5, 6]), leaf(&[4, 2, 3, 2]));
            let (series, of_series) = (leaf(&[2, 4, 7]), leaf(&[4, 2, 3]));
            let bias = leaf(&[4]);
            let leaves = [&images, &of_images, &series, &of_series, &bias];
            let two = Conv2dOptions { padding: [1, 0], groups: 2, ..Conv2dOptions::default() };
            let one = Conv1dOptions { stride: 2, padding: 1, groups: 2, ..Conv1dOptions::default() };
            let back_two = ConvTranspose2dOptions { stride: [2, 1], groups: 2, ..Default::default() };
            let back_one = ConvTranspose1dOptions { stride: 2, groups: 2, ..Default::default() };
            let bias = Some(&bias);
            let forms: [Forms<'_>; 4] = [
                (&|| images.conv2d(&of_images, bias, &two), &|y| {
                    images.conv2d_into(&of_images, bias, &two, y)
                }),
                (&|| series.conv1d(&of_series, bias, &one), &|y| {
                    series.conv1d_into(&of_series, bias, &one, y)
                }),
                (&|| images.conv_transpose2d(&of_images, bias, &back_two), &|y| {
                    images.conv_transpose2d_into(&of_images, bias, &back_two, y)
                }),
                (&|| series.conv_transpose1d(&of_series, bias, &back_one), &|y| {
                    series.conv_transpose1d_into(&of_series, bias, &back_one, y)
                }),
            ];
            let gradients = |y: &Tensor| {
                leaves.iter().for_each(|t| t.zero_grad().unwrap());
                y.square().unwrap().sum(()).unwrap().backward().unwrap();
                leaves.map(|t| t.grad().map(|g| values(&g)))
            };
            for (new, into) in forms {
                let y = new().unwrap();
                let dst = Tensor::full(y.dims(), 9.0, dtype, &device).unwrap();
                let place = dst.storage_id();
                into(&dst).unwrap();
                assert!(dst.requires_grad() && dst.storage_id() == place);
                assert_eq!(values(&dst), values(&y));
                assert_eq!(gradients(&dst), gradients(&y));

                // Half of the images have memory for no more than half of the result.
                let short = Tensor::zeros([&[1], &y.dims()[1..]].concat(), dtype, &device).unwrap();
                assert!(matches!(into(&short), Err(Error::ShapeMismatch { .. })));
            }
            let x = images.detach();
            let same = Conv2dOptions::default();
            let weight = tensor(&[4, 4, 1, 1], &device).to_dtype(dtype).unwrap();
            assert!(matches!(x.conv2d_into(&weight, None, &same, &x), Err(Error::Aliased { .. })));
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let (x, weight) = (tensor(&[1, 4, 5, 5], &device), tensor(&[2, 4, 3, 3], &device));
        let o = Conv2dOptions::default();
        let message = |o: &Conv2dOptions| x.conv2d(&weight, None, o).unwrap_err().to_string();
        assert!(message(&Conv2dOptions { groups: 2, ..o }).contains("for 8 channels"));
        assert!(message(&Conv2dOptions { groups: 3, ..o }).contains("3 groups"));
        assert!(message(&Conv2dOptions { groups: 0, ..o }).contains("0 groups"));
        assert!(message(&Conv2dOptions { stride: [0, 1], ..o }).contains("stride 0"));
        assert!(message(&Conv2dOptions { dilation: [3, 1], ..o }).contains("does not fit"));
        assert!(
            x.conv2d(&weight, Some(&tensor(&[3], &device)), &o)
                .unwrap_err()
                .to_string()
                .contains("must be [2]")
        );
        assert!(
            x.conv1d(&weight, None, &Conv1dOptions::default()).unwrap_err().to_string().starts_with("conv1d")
        );
        // Series are computed as images of height 1, but an error shows their shapes.
        let (series, weight) = (tensor(&[1, 4, 5], &device), tensor(&[2, 3, 2], &device));
        let shapes = |y: Result<Tensor>| match y.unwrap_err() {
            Error::ShapeMismatch { lhs, rhs, .. } => (lhs, rhs),
            other => panic!("{other}"),
        };
        let error = x.conv1d(&weight, None, &Conv1dOptions::default()).unwrap_err().to_string();
        assert!(error.contains("[N, C, L]"), "{error}");
        let expected = (vec![1, 4, 5], vec![2, 3, 2]);
        assert_eq!(shapes(series.conv1d(&weight, None, &Conv1dOptions::default())), expected);
        let back = ConvTranspose1dOptions::default();
        assert_eq!(shapes(series.conv_transpose1d(&weight, None, &back)), expected);
        let t = ConvTranspose2dOptions { padding: [9, 0], ..ConvTranspose2dOptions::default() };
        let weight = tensor(&[4, 2, 3, 3], &device);
        assert!(x.conv_transpose2d(&weight, None, &t).unwrap_err().to_string().contains("leave nothing"));
        let t = ConvTranspose2dOptions { output_padding: [1, 0], ..ConvTranspose2dOptions::default() };
        assert!(x.conv_transpose2d(&weight, None, &t).unwrap_err().to_string().contains("output_padding 1"));
    }
}
