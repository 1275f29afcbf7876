use crate::testing::{assert_close, devices, gradcheck, leaf, numbers, values};
use refrain::{DType, Pool1dOptions, Pool2dOptions, Tensor};

fn cases() -> [([usize; 4], Pool2dOptions); 9] {
    let plain = Pool2dOptions::new([2, 2]);
    [
        ([2, 3, 4, 6], plain),
        ([1, 2, 5, 7], plain),
        ([2, 1, 6, 5], Pool2dOptions { stride: [1, 2], padding: [1, 1], kernel: [3, 3], ..plain }),
        ([1, 2, 5, 5], Pool2dOptions { stride: [2, 3], padding: [1, 0], count_include_pad: false, ..plain }),
        ([1, 1, 3, 4], Pool2dOptions { stride: [3, 3], ..plain }),
        // Many windows in a row, and windows wider than the image.
        ([2, 1, 2, 40], Pool2dOptions { stride: [1, 1], kernel: [1, 25], ..plain }),
        ([1, 2, 3, 37], Pool2dOptions { stride: [2, 3], padding: [1, 2], kernel: [2, 5], ..plain }),
        (
            [1, 1, 4, 30],
            Pool2dOptions { stride: [1, 2], padding: [0, 4], kernel: [3, 9], count_include_pad: false },
        ),
        ([1, 2, 1, 1], Pool2dOptions { stride: [1, 2], padding: [1, 1], kernel: [3, 3], ..plain }),
    ]
}

/// The elements of each window that lie in the image, window by window.
fn windows(x: &[f64], [n, c, h, w]: [usize; 4], o: &Pool2dOptions) -> Vec<Vec<f64>> {
    let count = |axis: usize, size: usize| (size + 2 * o.padding[axis] - o.kernel[axis]) / o.stride[axis] + 1;
    let (rows, columns) = (count(0, h), count(1, w));
    let mut all = Vec::new();
    for at in 0..n * c * rows * columns {
        let (plane, row, column) = (at / columns / rows, at / columns % rows, at % columns);
        let mut own = Vec::new();
        for k in 0..o.kernel[0] * o.kernel[1] {
            let i = (row * o.stride[0] + k / o.kernel[1]).checked_sub(o.padding[0]).filter(|&i| i < h);
            let j = (column * o.stride[1] + k % o.kernel[1]).checked_sub(o.padding[1]).filter(|&j| j < w);
            if let (Some(i), Some(j)) = (i, j) {
                own.push(x[(plane * h + i) * w + j]);
            }
        }
        all.push(own);
    }
    all
}

#[test]
fn each_result_is_the_largest_or_the_mean_of_its_window() {
    for device in devices() {
        for (shape, o) in cases() {
            // Below 0, where zeros in the padding would be the largest.
            let x: Vec<f64> = numbers(shape.iter().product()).iter().map(|v| v - 3.0).collect();
            let t = Tensor::from_slice(&x, shape, &device).unwrap();
            let windows = windows(&x, shape, &o);
            let largest: Vec<f64> =
                windows.iter().map(|w| w.iter().copied().fold(f64::MIN, f64::max)).collect();
            assert_eq!(values(&t.max_pool2d(&o).unwrap()), largest);
            let by = |w: &Vec<f64>| if o.count_include_pad { o.kernel.iter().product() } else { w.len() };
            let means: Vec<f64> = windows.iter().map(|w| w.iter().sum::<f64>() / by(w) as f64).collect();
            assert_close(&values(&t.avg_pool2d(&o).unwrap()), &means, 1e-12);
        }
        let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0, 5.0, 4.0], [1, 1, 5], &device).unwrap();
        assert_eq!(x.max_pool1d(&Pool1dOptions::new(2)).unwrap().to_vec::<f32>().unwrap(), [3.0, 5.0]);
        assert_eq!(x.avg_pool1d(&Pool1dOptions::new(2)).unwrap().to_vec::<f32>().unwrap(), [2.0, 3.5]);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        for (shape, o) in cases() {
            gradcheck(|t| t[0].max_pool2d(&o)?.square(), &[leaf(&shape, &device)], 1e-6).unwrap();
            gradcheck(|t| t[0].avg_pool2d(&o)?.square(), &[leaf(&shape, &device)], 1e-6).unwrap();
        }
        // Added to what another use of the images gave.
        let o = Pool2dOptions::new([2, 2]);
        let f = |t: &[Tensor]| t[0].square()?.sum(())?.add(&t[0].max_pool2d(&o)?.sum(())?);
        gradcheck(f, &[leaf(&[1, 2, 4, 4], &device)], 1e-6).unwrap();
        let f = |t: &[Tensor]| t[0].square()?.sum(())?.add(&t[0].avg_pool2d(&o)?.square()?.sum(())?);
        gradcheck(f, &[leaf(&[1, 2, 4, 20], &device)], 1e-6).unwrap();
    }
}

#[test]
fn pooling_of_series_is_that_of_images_of_height_1_also_into_a_tensor() {
    for device in devices() {
        let o = Pool1dOptions { stride: 2, padding: 1, ..Pool1dOptions::new(3) };
        let two = Pool2dOptions { stride: [1, 2], padding: [0, 1], ..Pool2dOptions::new([1, 3]) };
        let x = leaf(&[2, 3, 7], &device);
        let gradient = |y: &Tensor| {
            x.zero_grad().unwrap();
            y.square().unwrap().sum(()).unwrap().backward().unwrap();
            values(&x.grad().unwrap())
        };
        for largest in [true, false] {
            let images = x.unsqueeze(2).unwrap();
            let (expected, y) = match largest {
                true => (images.max_pool2d(&two).unwrap(), x.max_pool1d(&o).unwrap()),
                false => (images.avg_pool2d(&two).unwrap(), x.avg_pool1d(&o).unwrap()),
            };
            let dst = Tensor::full([2, 3, 4], 9.0, DType::F64, &device).unwrap();
            match largest {
                true => x.max_pool1d_into(&o, &dst).unwrap(),
                false => x.avg_pool1d_into(&o, &dst).unwrap(),
            }
            assert_eq!(y.dims(), dst.dims());
            assert_eq!((values(&y), values(&dst)), (values(&expected), values(&expected)));
            let expected = gradient(&expected);
            assert_eq!((gradient(&y), gradient(&dst)), (expected.clone(), expected));
        }
    }
}

#[test]
fn equal_elements_give_the_gradient_to_the_first_and_nan_wins() {
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f32, 1.0, 0.0, 1.0, f32::NAN, 2.0, 3.0, 1.0], [1, 2, 2, 2], &device)
            .unwrap();
        x.set_requires_grad(true).unwrap();
        let y = x.max_pool2d(&Pool2dOptions::new([2, 2])).unwrap();
        let got = y.to_vec::<f32>().unwrap();
        assert!(got[0] == 1.0 && got[1].is_nan());
        y.sum(()).unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let x = Tensor::zeros([1, 1, 3, 3], DType::F32, &device).unwrap();
        let o = Pool2dOptions::new([2, 2]);
        let text = x.max_pool2d(&Pool2dOptions { padding: [2, 0], ..o }).unwrap_err().to_string();
        assert!(text.starts_with("max_pool2d") && text.contains("half"), "{text}");
        assert!(x.avg_pool2d(&Pool2dOptions::new([4, 1])).unwrap_err().to_string().contains("does not fit"));
        assert!(
            x.avg_pool2d(&Pool2dOptions { stride: [0, 1], ..o })
                .unwrap_err()
                .to_string()
                .contains("stride 0")
        );
        assert!(x.squeeze(0).unwrap().max_pool2d(&o).unwrap_err().to_string().contains("[N, C, H, W]"));
        // A window of which hardly any element is in the series takes no longer than the series.
        let wide = Pool1dOptions { kernel: 1 << 40, stride: 1, padding: 1 << 39, count_include_pad: false };
        let ones = Tensor::ones([1, 1, 9], DType::F32, &device).unwrap();
        assert_eq!(values(&ones.avg_pool1d(&wide).unwrap()), [1.0; 10]);
        let none = Tensor::zeros([0, 2, 4, 4], DType::F32, &device).unwrap();
        assert_eq!(none.max_pool2d(&o).unwrap().dims(), [0, 2, 2, 2]);
    }
}
