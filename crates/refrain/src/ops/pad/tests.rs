use crate::testing::{devices, gradcheck, leaf};
use refrain::{DType, Device, PadMode, Tensor};

fn sample(device: &Device) -> Tensor {
    Tensor::from_slice(&[1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], device).unwrap()
}

#[test]
fn the_margin_lies_around_the_tensor() {
    for device in devices() {
        let y = sample(&device).pad(&[(1, 0), (2, 1)], 9.0).unwrap();
        assert_eq!(y.dims(), [3, 6]);
        let expected = [[9.0; 6], [9.0, 9.0, 1.0, 2.0, 3.0, 9.0], [9.0, 9.0, 4.0, 5.0, 6.0, 9.0]].concat();
        assert_eq!(y.to_vec::<f64>().unwrap(), expected);
        let t = sample(&device).transpose(0, 1).unwrap().pad(&[(0, 1), (0, 0)], -1.0).unwrap();
        assert_eq!(t.to_vec::<f64>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0, -1.0, -1.0]);
        let inner = sample(&device).reshape([1, 2, 3]).unwrap().pad(&[(0, 1), (1, 0), (0, 0)], 0.0).unwrap();
        assert_eq!(inner.to_vec::<f64>().unwrap()[..9], [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(inner.to_vec::<f64>().unwrap()[9..], [0.0; 9]);
    }
}

#[test]
fn every_dtype_scalars_and_nothing_are_taken() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = Tensor::zeros([1], dtype, &device).unwrap();
            let y = x.pad(&[(1, 1)], 3.0).unwrap();
            let value = if dtype == DType::Bool { 1.0 } else { 3.0 };
            assert_eq!(
                y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
                [value, 0.0, value],
                "{dtype}"
            );
            let none = x.narrow(0, 0, 0).unwrap().pad(&[(1, 1)], 0.0).unwrap();
            assert_eq!(none.dims(), [2]);
        }
        let scalar = Tensor::scalar(4.0f32, &device).unwrap();
        assert_eq!(scalar.pad(&[], 1.0).unwrap().to_vec::<f32>().unwrap(), [4.0]);
        let columns = sample(&device).narrow(1, 0, 0).unwrap().pad(&[(0, 0), (1, 0)], 2.0).unwrap();
        assert_eq!(columns.to_vec::<f64>().unwrap(), [2.0; 2]);
        let rows = sample(&device).narrow(0, 0, 0).unwrap().pad(&[(1, 0), (0, 1)], 2.0).unwrap();
        assert_eq!(rows.to_vec::<f64>().unwrap(), [2.0; 4]);
    }
}

#[test]
fn the_gradient_is_what_lies_within_the_margin() {
    for device in devices() {
        let x = sample(&device);
        x.set_requires_grad(true).unwrap();
        gradcheck(|t| t[0].pad(&[(1, 2), (0, 1)], 0.5)?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        gradcheck(|t| t[0].transpose(0, 1)?.pad(&[(1, 0), (0, 0)], 0.5)?.square(), &[x], 1e-6).unwrap();
    }
}

#[test]
fn a_destination_is_written_in_place() {
    for device in devices() {
        let wide = Tensor::zeros([2, 6], DType::F64, &device).unwrap();
        sample(&device).pad_into(&[(0, 0), (1, 0)], 8.0, &wide.narrow(1, 1, 4).unwrap()).unwrap();
        assert_eq!(wide.to_vec::<f64>().unwrap()[..6], [0.0, 8.0, 1.0, 2.0, 3.0, 0.0]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let text = sample(&device).pad(&[(1, 1)], 0.0).unwrap_err().to_string();
        assert!(text.starts_with("pad") && text.contains("[(1, 1)]") && text.contains("[2, 3]"), "{text}");
        let ints = sample(&device).to_dtype(DType::I32).unwrap();
        assert!(ints.pad(&[(0, 0), (1, 0)], 0.5).unwrap_err().to_string().contains("0.5"));
        assert!(ints.pad(&[(0, 0), (1, 0)], 3e9).unwrap_err().to_string().contains("range of i32"));
        let text = sample(&device).pad(&[(usize::MAX, usize::MAX), (0, 0)], 0.0).unwrap_err().to_string();
        assert!(text.contains("address space"), "{text}");
    }
}

const REPEATING: [PadMode; 3] = [PadMode::Reflect, PadMode::Replicate, PadMode::Circular];

/// Where place `at`, counted from the begin of an axis of `size`, comes from, by steps from one end to the other.
fn walked(mode: PadMode, at: isize, size: usize) -> usize {
    let last = size as isize - 1;
    match mode {
        _ if (0..=last).contains(&at) => at as usize,
        PadMode::Replicate => at.clamp(0, last) as usize,
        PadMode::Circular => at.rem_euclid(size as isize) as usize,
        _ if at < 0 => walked(mode, -at, size),
        _ => walked(mode, 2 * last - at, size),
    }
}

/// A tensor padded place by place.
fn placed(x: &[f64], shape: &[usize], padding: &[(usize, usize)], mode: PadMode) -> Vec<f64> {
    let (Some((&size, shape)), Some((&(before, after), padding))) =
        (shape.split_first(), padding.split_first())
    else {
        return x.to_vec();
    };
    let rows: Vec<&[f64]> = x.chunks(shape.iter().product()).collect();
    let places = -(before as isize)..(size + after) as isize;
    places.flat_map(|at| placed(rows[walked(mode, at, size)], shape, padding, mode)).collect()
}

type Padding = Vec<(usize, usize)>;

fn repeating_cases() -> Vec<(Vec<usize>, Padding)> {
    vec![
        (vec![4], vec![(2, 3)]),
        (vec![3, 5], vec![(0, 0), (4, 4)]),
        (vec![3, 5], vec![(2, 1), (0, 0)]),
        (vec![2, 3, 4], vec![(0, 0), (1, 2), (3, 1)]),
        (vec![2, 2, 3, 8], vec![(1, 0), (0, 0), (2, 2), (0, 0)]),
        (vec![5, 1, 7], vec![(0, 3), (0, 0), (6, 0)]),
        (vec![2, 16], vec![(1, 1), (0, 0)]),
        (vec![3, 2], vec![(0, 0), (0, 0)]),
    ]
}

#[test]
fn elements_of_the_tensor_are_repeated_around_it() {
    for device in devices() {
        for mode in REPEATING {
            for (shape, padding) in repeating_cases() {
                let x: Vec<f64> = (0..shape.iter().product::<usize>()).map(|i| i as f64).collect();
                let t = Tensor::from_slice(&x, &shape[..], &device).unwrap();
                let expected = placed(&x, &shape, &padding, mode);
                for dtype in [DType::F64, DType::F32, DType::BF16, DType::U8] {
                    let y = t.to_dtype(dtype).unwrap().pad(&padding, mode).unwrap();
                    let got = y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                    assert_eq!(got, expected, "{mode:?} {shape:?} {padding:?} {dtype} {device}");
                }
            }
            // As many as an axis has, rows of a view, and a destination.
            let turned = sample(&device).transpose(0, 1).unwrap();
            let wide = Tensor::zeros([3, 8], DType::F64, &device).unwrap();
            turned.pad_into(&[(0, 0), (1, 1)], mode, &wide.narrow(1, 2, 4).unwrap()).unwrap();
            let rows = turned.to_vec::<f64>().unwrap();
            let expected = placed(&rows, &[3, 2], &[(0, 0), (1, 1)], mode);
            assert_eq!(wide.narrow(1, 2, 4).unwrap().to_vec::<f64>().unwrap(), expected);
            assert_eq!(wide.narrow(1, 6, 2).unwrap().to_vec::<f64>().unwrap(), [0.0; 6]);
        }
        // More rows than a thread takes at a time.
        let (shape, padding) = ([3, 200, 100], [(0, 0), (70, 5), (3, 99)]);
        let x: Vec<f64> = (0..60_000).map(f64::from).collect();
        let t = Tensor::from_slice(&x, shape, &device).unwrap();
        for mode in REPEATING {
            let y = t.pad(&padding, mode).unwrap();
            assert!(y.to_vec::<f64>().unwrap() == placed(&x, &shape, &padding, mode), "{mode:?} {device}");
            // Of a sum, the gradient of an element is the number of its copies.
            let x = t.copy().unwrap();
            x.set_requires_grad(true).unwrap();
            x.pad(&padding, mode).unwrap().sum(()).unwrap().backward().unwrap();
            let mut copies = vec![0.0; 60_000];
            y.to_vec::<f64>().unwrap().iter().for_each(|&i| copies[i as usize] += 1.0);
            assert!(x.grad().unwrap().to_vec::<f64>().unwrap() == copies, "{mode:?} {device}");
        }
        let one = Tensor::scalar(4.0f32, &device).unwrap();
        assert_eq!(one.pad(&[], PadMode::Reflect).unwrap().to_vec::<f32>().unwrap(), [4.0]);
        assert_eq!(
            one.reshape([1]).unwrap().pad(&[(3, 2)], PadMode::Replicate).unwrap().to_vec::<f32>().unwrap(),
            [4.0; 6]
        );
        assert_eq!(
            one.reshape([1]).unwrap().pad(&[(1, 1)], PadMode::Circular).unwrap().to_vec::<f32>().unwrap(),
            [4.0; 3]
        );
    }
}

#[test]
fn the_gradient_of_an_element_is_the_sum_of_those_of_its_places() {
    for device in devices() {
        for mode in REPEATING {
            for (shape, padding) in repeating_cases() {
                gradcheck(|t| t[0].pad(&padding, mode)?.square(), &[leaf(&shape, &device)], 1e-6).unwrap();
            }
            gradcheck(|t| t[0].pad(&[], mode)?.square(), &[leaf(&[], &device)], 1e-6).unwrap();
            // Added to what another use gave.
            let f =
                |t: &[Tensor]| t[0].square()?.sum(())?.add(&t[0].pad(&[(1, 2)], mode)?.square()?.sum(())?);
            gradcheck(f, &[leaf(&[5], &device)], 1e-6).unwrap();
            // A sum of three in 16 bits is rounded once: 256 + 1 is no number of bf16.
            let (largest, expected) = match mode {
                PadMode::Reflect => (1, [2.0, 258.0, 2.0]),
                PadMode::Circular => (0, [2.0, 258.0, 2.0]),
                _ => (0, [258.0, 1.0, 3.0]),
            };
            let mut dy = [1.0f32; 7];
            dy[largest] = 256.0;
            let x = Tensor::zeros([3], DType::BF16, &device).unwrap();
            x.set_requires_grad(true).unwrap();
            let dy = Tensor::from_slice(&dy, [7], &device).unwrap().to_dtype(DType::BF16).unwrap();
            x.pad(&[(2, 2)], mode).unwrap().backward_with(&dy).unwrap();
            let gradient = x.grad().unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(gradient, expected, "{mode:?} {device}");
        }
    }
}

#[test]
fn an_axis_without_enough_elements_is_named() {
    for device in devices() {
        let x = sample(&device);
        for (mode, most) in [(PadMode::Reflect, 2), (PadMode::Circular, 3)] {
            assert!(x.pad(&[(0, 0), (most, most)], mode).is_ok());
            let text = x.pad(&[(0, 0), (0, most + 1)], mode).unwrap_err().to_string();
            assert!(text.contains("axis 1") && text.contains("[2, 3]"), "{text}");
            assert!(text.contains(&format!("{mode:?} takes up to {most}")), "{text}");
        }
        let none = x.narrow(1, 0, 0).unwrap();
        assert!(none.pad(&[(0, 0), (1, 0)], PadMode::Replicate).is_err());
        assert_eq!(none.pad(&[(1, 0), (0, 0)], PadMode::Replicate).unwrap().dims(), [3, 0]);
    }
}
