use crate::faults::{error_of, own_devices};
use crate::testing::{devices, gradcheck};
use refrain::{DType, Device, DeviceKind, Error, Tensor};

fn series(time: usize, channels: usize, dtype: DType, device: &Device) -> Tensor {
    let x = Tensor::arange(0.0, (time * channels) as f64, 1.0, DType::F64, device).unwrap();
    x.reshape([time, channels]).unwrap().to_dtype(dtype).unwrap()
}

fn starts(s: &[i64], device: &Device) -> Tensor {
    Tensor::from_slice(s, [s.len()], device).unwrap()
}

#[test]
fn a_window_holds_what_stands_in_the_series() {
    for device in devices() {
        for (time, channels, length) in [(9, 2, 4), (5, 1, 5), (40, 37, 7), (6, 3, 1)] {
            let x = series(time, channels, DType::F64, &device);
            let first: Vec<i64> = vec![0, (time - length) as i64, (time - length) as i64 / 2];
            let expected: Vec<f64> = first
                .iter()
                .flat_map(|&s| (0..channels).map(move |c| (s, c)))
                .flat_map(|(s, c)| (0..length).map(move |l| ((s as usize + l) * channels + c) as f64))
                .collect();
            let columns = x.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
            let wide = Tensor::zeros([time, channels + 2], DType::F64, &device).unwrap();
            let part = wide.narrow(1, 1, channels).unwrap();
            part.copy_from(&x).unwrap();
            for x in [x, columns, part] {
                let y = x.windows(&starts(&first, &device), length).unwrap();
                assert_eq!(y.dims(), [3, channels, length]);
                assert_eq!(y.to_vec::<f64>().unwrap(), expected);
            }
        }
    }
}

#[test]
fn every_dtype_has_windows() {
    for device in devices() {
        for dtype in DType::ALL {
            let y = series(6, 2, dtype, &device).windows(&starts(&[3], &device), 3).unwrap();
            let expected = if dtype == DType::Bool { [1.0; 6] } else { [6.0, 8.0, 10.0, 7.0, 9.0, 11.0] };
            assert_eq!(y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), expected, "{dtype}");
        }
    }
}

#[test]
fn the_series_gets_the_sum_of_its_windows_gradients() {
    for device in devices() {
        let x = series(7, 3, DType::F64, &device);
        x.set_requires_grad(true).unwrap();
        let s = starts(&[0, 2, 3, 2], &device);
        gradcheck(|t| t[0].windows(&s, 4)?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        gradcheck(|t| t[0].windows(&s, 4)?.add(&t[0].windows(&s, 4)?.square()?), &[x], 1e-6).unwrap();
        let half = Tensor::ones([3, 1], DType::BF16, &device).unwrap();
        half.set_requires_grad(true).unwrap();
        // 300 ones that are added one by one in bf16 would stop at 256.
        half.windows(&starts(&[1; 300], &device), 1).unwrap().sum(()).unwrap().backward().unwrap();
        let grad = half.grad().unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(grad, [0.0, 300.0, 0.0]);
    }
}

#[test]
fn a_window_that_reaches_beyond_the_series_is_named() {
    for own in own_devices() {
        let series = series(6, 2, DType::F32, &own);
        let starts = |at: &[i64]| starts(at, &own);
        for bad in [3, -1, i64::MAX, i64::MIN] {
            let dst = Tensor::full([2, 2, 4], 7.0, DType::F32, &own).unwrap();
            let starts = starts(&[0, bad]);
            let text = error_of(&own, series.windows_into(&starts, 4, &dst)).to_string();
            assert!(text.starts_with(&format!("windows: index {bad} ")) && text.contains("0..3"), "{text}");
            assert_eq!(text.contains("at [1]"), own.kind() != DeviceKind::Cuda, "{text}");
            let after = dst.to_vec::<f32>().unwrap();
            match own.kind() {
                DeviceKind::Cpu => assert_eq!(after, [7.0; 16]),
                _ => {
                    assert_eq!(after[..8], [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
                    assert!(after[8..].iter().all(|v| v.is_nan()), "{after:?}");
                    // The gradient of the series ignores that window.
                    let leaf = series.detach();
                    leaf.set_requires_grad(true).unwrap();
                    let back = leaf.windows(&starts, 4).and_then(|y| y.sum(())?.backward());
                    assert!(error_of(&own, back).to_string().starts_with("windows: index"));
                    // If each launch is waited for, the forward pass fails already.
                    if let Some(gradient) = leaf.grad() {
                        let gradient = gradient.to_vec::<f32>().unwrap();
                        assert_eq!(gradient[..], [[1.0; 8].as_slice(), &[0.0; 4]].concat()[..]);
                    }
                }
            }
        }
        let text = series.windows(&starts(&[0]), 7).unwrap_err().to_string();
        assert!(text.contains("longer than the series, which has 6"), "{text}");
        assert!(matches!(series.windows(&series, 2), Err(Error::InvalidArgument { op: "windows", .. })));
        assert!(matches!(starts(&[0]).windows(&starts(&[0]), 1), Err(Error::InvalidArgument { .. })));
        let floats = Tensor::zeros([1], DType::F32, &own).unwrap();
        assert!(matches!(series.windows(&floats, 2), Err(Error::DTypeMismatch { op: "windows", .. })));
    }
}

#[test]
fn empty_windows_have_their_shape() {
    for device in devices() {
        let x = series(4, 2, DType::F32, &device);
        assert_eq!(x.windows(&starts(&[], &device), 3).unwrap().dims(), [0, 2, 3]);
        assert_eq!(x.windows(&starts(&[4, 0], &device), 0).unwrap().dims(), [2, 2, 0]);
        assert_eq!(x.narrow(1, 0, 0).unwrap().windows(&starts(&[1], &device), 3).unwrap().dims(), [1, 0, 3]);
    }
}
