use crate::testing::{devices, gradcheck, leaf};
use refrain::{DType, Device, Tensor};

fn counted(shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::arange(0.0, n as f64, 1.0, DType::I64, device).unwrap();
    x.reshape(shape).unwrap().to_dtype(dtype).unwrap()
}

/// The element of a counted tensor at these coordinates.
fn element(at: &[usize], shape: &[usize]) -> f64 {
    at.iter().zip(shape).fold(0, |all, (i, n)| all * n + i) as f64
}

/// All coordinates of a shape, in order.
fn places(shape: &[usize]) -> Vec<Vec<usize>> {
    shape.iter().fold(vec![vec![]], |all, &n| {
        all.iter().flat_map(|at| (0..n).map(move |i| [&at[..], &[i]].concat())).collect()
    })
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

#[test]
fn a_flipped_axis_counts_down() {
    for device in devices() {
        let shape = [2, 3, 4];
        for axes in [&[][..], &[0], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
            let signed: Vec<isize> = axes.iter().map(|&a| a as isize).collect();
            let y = counted(&shape, DType::F64, &device).flip(&signed[..]).unwrap();
            let source = |at: Vec<usize>| -> Vec<usize> {
                at.iter()
                    .enumerate()
                    .map(|(a, &i)| if axes.contains(&a) { shape[a] - 1 - i } else { i })
                    .collect()
            };
            let expected: Vec<f64> =
                places(&shape).into_iter().map(|at| element(&source(at), &shape)).collect();
            assert_eq!(values(&y), expected, "{axes:?}");
        }
    }
}

#[test]
fn rolled_elements_come_in_at_the_other_end() {
    for device in devices() {
        let shape = [3, 4, 8];
        for (shifts, axes) in [
            (&[1isize][..], &[0isize][..]),
            (&[-1], &[1]),
            (&[4], &[2]),
            (&[3, -9], &[2, 1]),
            (&[2, 2], &[0, 0]),
            (&[3, 4, 8], &[0, 1, 2]),
        ] {
            let y = counted(&shape, DType::I32, &device).roll(shifts, axes).unwrap();
            let source = |mut at: Vec<usize>| -> Vec<usize> {
                for (&shift, &axis) in shifts.iter().zip(axes) {
                    let (i, n) = (&mut at[axis as usize], shape[axis as usize] as isize);
                    *i = (*i as isize - shift).rem_euclid(n) as usize;
                }
                at
            };
            let expected: Vec<f64> =
                places(&shape).into_iter().map(|at| element(&source(at), &shape)).collect();
            assert_eq!(values(&y), expected, "{shifts:?} {axes:?}");
        }
    }
}

#[test]
fn every_dtype_views_and_nothing_are_taken() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = counted(&[2], dtype, &device);
            assert_eq!(values(&x.flip(0).unwrap()), [1.0, 0.0], "{dtype}");
            assert_eq!(values(&x.roll(&[1], &[0]).unwrap()), [1.0, 0.0], "{dtype}");
        }
        let columns = counted(&[2, 3], DType::F32, &device).transpose(0, 1).unwrap();
        assert_eq!(values(&columns.flip(0).unwrap()), [2.0, 5.0, 1.0, 4.0, 0.0, 3.0]);
        let none = Tensor::zeros([2, 0], DType::F32, &device).unwrap();
        assert_eq!(none.flip(()).unwrap().dims(), [2, 0]);
        assert_eq!(none.roll(&[3], &[1]).unwrap().dims(), [2, 0]);
        let scalar = Tensor::scalar(4.0f32, &device).unwrap();
        assert_eq!(scalar.flip(()).unwrap().to_vec::<f32>().unwrap(), [4.0]);
    }
}

#[test]
fn gradients_go_back_to_where_elements_came_from() {
    for device in devices() {
        let weights = leaf(&[3, 4], &device).detach();
        gradcheck(|t| t[0].flip([0, 1])?.mul(&weights), &[leaf(&[3, 4], &device)], 1e-6).unwrap();
        gradcheck(|t| t[0].roll(&[1, -3], &[0, 1])?.mul(&weights), &[leaf(&[3, 4], &device)], 1e-6).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let x = counted(&[2, 3], DType::F32, &device);
        let text = x.roll(&[1, 2], &[0]).unwrap_err().to_string();
        assert!(text.starts_with("roll") && text.contains("2 shifts for 1 axes"), "{text}");
        assert!(x.roll(&[1], &[2]).unwrap_err().to_string().contains("axis 2"));
        assert!(x.flip([0, 0]).unwrap_err().to_string().contains("named twice"));
    }
}
