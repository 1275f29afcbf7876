use crate::faults::{error_of, own_devices};
use crate::testing::{assert_sums, devices, gradcheck, leaf, values};
use refrain::{DType, Device, DeviceKind, Error, Tensor};

fn range(shape: &[usize], device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::arange(0.0, n as f64, 1.0, DType::F64, device).unwrap();
    x.reshape(shape).unwrap().detach()
}

fn index(values: &[i64], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(values, shape, device).unwrap()
}

#[test]
fn elements_are_picked_along_each_axis() {
    for device in devices() {
        let x = range(&[2, 3, 4], &device);
        let first = x.gather(0, &index(&[1, 0, 1], &[1, 3, 1], &device)).unwrap();
        assert_eq!(first.to_vec::<f64>().unwrap(), [12.0, 4.0, 20.0]);
        let middle = x.gather(1, &index(&[2, 0, 1, 1, 2, 2, 0, 0], &[2, 2, 2], &device)).unwrap();
        assert_eq!(middle.to_vec::<f64>().unwrap(), [8.0, 1.0, 4.0, 5.0, 20.0, 21.0, 12.0, 13.0]);
        let last = x.gather(-1, &index(&[3, 3, 0, 1, 2, 0], &[1, 2, 3], &device)).unwrap();
        assert_eq!(last.to_vec::<f64>().unwrap(), [3.0, 3.0, 0.0, 5.0, 6.0, 4.0]);
        let turned = range(&[4, 3], &device).transpose(0, 1).unwrap();
        let picked =
            turned.gather(1, &index(&[3, 0, 1, 2, 3, 0], &[2, 3], &device).transpose(0, 1).unwrap()).unwrap();
        assert_eq!(picked.to_vec::<f64>().unwrap(), [9.0, 6.0, 1.0, 10.0, 5.0, 2.0]);
    }
}

#[test]
fn every_dtype_is_picked_from() {
    for device in devices() {
        for dtype in DType::ALL {
            let x = Tensor::from_slice(&[0.0f64, 1.0, 1.0], [3], &device).unwrap().to_dtype(dtype).unwrap();
            let y = x.gather(0, &index(&[2, 0, 1, 0], &[4], &device)).unwrap();
            assert_eq!(
                y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
                [1.0, 0.0, 1.0, 0.0],
                "{dtype}"
            );
        }
    }
}

#[test]
fn added_elements_sum_up_where_they_meet() {
    for device in devices() {
        let x = range(&[2, 3], &device);
        let i = index(&[2, 2, 0, 1, 1, 1], &[2, 3], &device);
        let y = x.scatter_add(1, &i, &range(&[2, 3], &device)).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [2.0, 1.0, 3.0, 3.0, 16.0, 5.0]);
        // An index that is shorter than the tensor before and after the axis.
        let x = Tensor::zeros([3, 2, 3], DType::I32, &device).unwrap();
        let source = Tensor::ones([2, 3, 2], DType::I32, &device).unwrap();
        let i = index(&[0, 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0], &[2, 3, 2], &device);
        let y = x.scatter_add(1, &i, &source).unwrap().to_vec::<i32>().unwrap();
        assert_eq!(y, [2, 0, 0, 1, 3, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn of_a_source_larger_than_the_index_the_covered_part_is_added() {
    for device in devices() {
        // A source that is longer after the axis, along it, before it. A wrong element would be noticed, because none is
        // 0.
        let x = Tensor::zeros([2, 3], DType::F64, &device).unwrap();
        let source = range(&[3, 4], &device).add_scalar(1.0).unwrap();
        let i = index(&[2, 0, 2, 2], &[2, 2], &device);
        let expected = [2.0, 0.0, 1.0, 0.0, 0.0, 11.0];
        assert_eq!(x.scatter_add(1, &i, &source).unwrap().to_vec::<f64>().unwrap(), expected);
        let dst = Tensor::ones([2, 3], DType::F64, &device).unwrap();
        x.scatter_add_into(1, &i, &source, &dst).unwrap();
        assert_eq!(dst.to_vec::<f64>().unwrap(), expected);
        // A source that shares the memory of the destination, and one that does so transposed.
        let square = range(&[3, 3], &device);
        square
            .scatter_add_into(0, &index(&[0, 0], &[1, 2], &device), &square.transpose(0, 1).unwrap(), &square)
            .unwrap();
        assert_eq!(square.to_vec::<f64>().unwrap(), [0.0, 4.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        // An empty index covers nothing.
        let none = index(&[], &[0, 2], &device);
        assert_eq!(x.scatter_add(0, &none, &source).unwrap().to_vec::<f64>().unwrap(), [0.0; 6]);

        let text = x
            .scatter_add(0, &index(&[0; 6], &[2, 3], &device), &range(&[2, 2], &device))
            .unwrap_err()
            .to_string();
        assert!(text.contains("[2, 3]") && text.contains("[2, 2]") && text.contains("source"), "{text}");
        let text = x.scatter_add(0, &index(&[0; 8], &[2, 4], &device), &source).unwrap_err().to_string();
        assert!(text.contains("only axis 0 may be longer"), "{text}");
        assert!(x.scatter_add(0, &i, &range(&[4], &device)).is_err());
    }
}

#[test]
fn halves_are_summed_in_f32() {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            let x = Tensor::zeros([2], dtype, &device).unwrap();
            let ones = Tensor::ones([4096], dtype, &device).unwrap();
            let i = index(&[1; 4096], &[4096], &device);
            let y = x.scatter_add(0, &i, &ones).unwrap().to_dtype(DType::F32).unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, 4096.0], "{dtype}");
            x.set_requires_grad(true).unwrap();
            x.gather(0, &i).unwrap().sum(()).unwrap().backward().unwrap();
            let grad = x.grad().unwrap().to_dtype(DType::F32).unwrap();
            assert_eq!(grad.to_vec::<f32>().unwrap(), [0.0, 4096.0], "{dtype}");
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let (x, source) = (range(&[2, 3, 2], &device), range(&[2, 4, 1], &device).add_scalar(0.5).unwrap());
        x.set_requires_grad(true).unwrap();
        source.set_requires_grad(true).unwrap();
        let i = index(&[2, 0, 2, 1, 1, 1, 1, 0], &[2, 4, 1], &device);
        let far = index(&[1, 1, 0, 0, 1, 0], &[3, 2, 1], &device);
        gradcheck(|t| t[0].gather(1, &i)?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        // The second gradient is added in place to the first one.
        let both = |t: &[Tensor]| t[0].gather(0, &far)?.square()?.sum(())?.add(&t[0].gather(1, &i)?.sum(())?);
        gradcheck(both, std::slice::from_ref(&x), 1e-6).unwrap();
        gradcheck(
            |t| t[0].transpose(0, 2)?.gather(1, &far.transpose(0, 1)?)?.square(),
            std::slice::from_ref(&x),
            1e-6,
        )
        .unwrap();
        gradcheck(|t| t[0].scatter_add(1, &i, &t[1])?.square(), &[x.clone(), source], 1e-6).unwrap();
        let larger = range(&[3, 4, 2], &device).mul_scalar(0.1).unwrap();
        larger.set_requires_grad(true).unwrap();
        gradcheck(|t| t[0].scatter_add(1, &i, &t[1])?.square(), &[x, larger.clone()], 1e-6).unwrap();
        let grad = larger.grad().unwrap();
        assert_eq!(grad.narrow(0, 2, 1).unwrap().to_vec::<f64>().unwrap(), [0.0; 8]);
        assert!(
            grad.narrow(0, 0, 2)
                .unwrap()
                .select(2, 0)
                .unwrap()
                .to_vec::<f64>()
                .unwrap()
                .iter()
                .all(|&g| g != 0.0)
        );
    }
}

#[test]
fn sums_are_added_in_one_order() {
    for device in devices() {
        let (rows, n, size) = (8, 5000, 3000);
        let positions: Vec<i64> = (0..(rows * n) as i64).map(|i| i * i % 97).collect();
        let source = Tensor::arange(0.0, (rows * n) as f64, 1.0, DType::F32, &device).unwrap();
        let source = source.sin().unwrap().reshape([rows, n]).unwrap();
        let (mut in_order, mut exact) = (vec![0f32; rows * size], vec![0f64; rows * size]);
        for (i, v) in source.to_vec::<f32>().unwrap().into_iter().enumerate() {
            let place = i / n * size + positions[i] as usize;
            in_order[place] += v;
            exact[place] += f64::from(v);
        }
        let x = Tensor::zeros([rows, size], DType::F32, &device).unwrap();
        let i = index(&positions, &[rows, n], &device);
        let added = || x.scatter_add(1, &i, &source).unwrap().to_vec::<f32>().unwrap();
        assert_sums(added, &in_order, &exact, 1e-4, &device);
        let gradient = || {
            let x = x.detach();
            x.set_requires_grad(true).unwrap();
            x.gather(1, &i).unwrap().backward_with(&source).unwrap();
            x.grad().unwrap().to_vec::<f32>().unwrap()
        };
        assert_sums(gradient, &in_order, &exact, 1e-4, &device);
    }
}

#[test]
fn a_destination_may_be_the_tensor_added_to() {
    for device in devices() {
        let x = range(&[4], &device);
        let i = index(&[3, 3], &[2], &device);
        let source = x.narrow(0, 1, 2).unwrap();
        x.scatter_add_into(0, &i, &source, &x).unwrap();
        assert_eq!(x.to_vec::<f64>().unwrap(), [0.0, 1.0, 2.0, 6.0]);
        x.scatter_add_into(0, &index(&[0, 0, 1, 2], &[4], &device), &x, &x).unwrap();
        assert_eq!(x.to_vec::<f64>().unwrap(), [1.0, 3.0, 8.0, 6.0]);
        let ints = index(&[1, 0], &[2], &device);
        ints.scatter_add_into(0, &ints, &ints, &ints).unwrap();
        assert_eq!(ints.to_vec::<i64>().unwrap(), [1, 1]);
        let y = Tensor::zeros([4], DType::F64, &device).unwrap();
        x.gather_into(0, &i, &y.narrow(0, 1, 2).unwrap()).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [0.0, 6.0, 6.0, 0.0]);
        assert!(matches!(x.gather_into(0, &i, &x.narrow(0, 0, 2).unwrap()), Err(Error::Aliased { .. })));
    }
}

#[test]
fn an_index_out_of_range_is_named() {
    for own in own_devices() {
        let (cpu, cuda) = (own.kind() == DeviceKind::Cpu, own.kind() == DeviceKind::Cuda);
        let x = range(&[2, 3], &own);
        let before = x.to_vec::<f64>().unwrap();
        for bad in [3, -1, i64::MIN] {
            let i = index(&[0, 1, 2, bad], &[2, 2], &own);
            let dst = Tensor::full([2, 2], 7.0, DType::F64, &own).unwrap();
            let named = |text: String, op: &str| {
                assert!(text.starts_with(&format!("{op}: index {bad} ")) && text.contains("0..3"), "{text}");
                assert_eq!(text.contains("at [1, 1] is out of range for axis 1 of size 3"), !cuda, "{text}");
            };
            named(error_of(&own, x.gather_into(1, &i, &dst)).to_string(), "gather");
            let values = dst.to_vec::<f64>().unwrap();
            match cpu {
                true => assert_eq!(values, [7.0; 4]),
                false => assert!(values[..3] == [0.0, 1.0, 5.0] && values[3].is_nan(), "{values:?}"),
            }
            let source = Tensor::full([2, 2], 7.0, DType::F64, &own).unwrap();
            named(error_of(&own, x.scatter_add_into(1, &i, &source, &x)).to_string(), "scatter_add");
            let values = x.to_vec::<f64>().unwrap();
            match cpu {
                true => assert_eq!(values, before),
                false => {
                    assert_eq!(values, [7.0, 8.0, 2.0, 3.0, 4.0, 12.0]);
                    x.write_from(&before).unwrap();
                }
            }
        }
        // So many entries that they are sorted by the position that they name.
        let many: Vec<i64> = (0..5000).map(|i| if i == 4321 { 3000 } else { i % 3000 }).collect();
        let wide = Tensor::zeros([3000], DType::F32, &own).unwrap();
        let (i, ones) = (index(&many, &[5000], &own), Tensor::ones([5000], DType::F32, &own));
        let text = error_of(&own, wide.scatter_add(0, &i, &ones.unwrap())).to_string();
        assert!(text.starts_with("scatter_add: index 3000 ") && text.contains("0..3000"), "{text}");
        let none = Tensor::zeros([0], DType::F32, &own).unwrap();
        let i = index(&[0], &[1], &own);
        assert!(none.gather(0, &i).is_err());
        assert!(none.scatter_add(0, &i, &Tensor::ones([1], DType::F32, &own).unwrap()).is_err());
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let x = range(&[2, 3], &device);
        let i = index(&[0, 0, 0], &[3, 1], &device);
        let text = x.gather(1, &i).unwrap_err().to_string();
        assert!(text.contains("[2, 3]") && text.contains("[3, 1]") && text.contains("axis 1"), "{text}");
        assert!(x.gather(0, &i).is_ok());
        assert!(x.gather(2, &i).is_err() && range(&[], &device).gather(0, &i).is_err());
        assert!(matches!(x.gather(0, &x), Err(Error::DTypeMismatch { op: "gather", .. })));
        assert!(matches!(x.scatter_add(0, &i, &x), Err(Error::ShapeMismatch { op: "scatter_add", .. })));
        let other = Tensor::zeros([3, 1], DType::F32, &device).unwrap();
        assert!(matches!(x.scatter_add(0, &i, &other), Err(Error::DTypeMismatch { op: "scatter_add", .. })));
        let flags = x.to_dtype(DType::Bool).unwrap();
        assert!(matches!(
            flags.scatter_add(0, &i, &flags),
            Err(Error::Unsupported { op: "scatter_add", .. })
        ));
    }
}

#[test]
fn empty_ones_have_their_shape() {
    for device in devices() {
        let x = range(&[2, 3], &device);
        let none = index(&[], &[2, 0], &device);
        assert_eq!(x.gather(1, &none).unwrap().dims(), [2, 0]);
        let source = Tensor::zeros([2, 0], DType::F64, &device).unwrap();
        let y = x.scatter_add(1, &none, &source).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), x.to_vec::<f64>().unwrap());
        x.set_requires_grad(true).unwrap();
        x.gather(1, &none).unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f64>().unwrap(), [0.0; 6]);
    }
}

#[test]
fn the_last_entry_that_names_a_position_wins_whatever_the_size() {
    for device in devices() {
        // Few positions with many entries, and many of both: a GPU searches the first and sorts the others.
        for (places, entries) in [(3, 10), (5, 5000), (4000, 5000), (4000, 9000)] {
            let named: Vec<i64> = (0..entries).map(|i| (i * i + 7 * i) as i64 % places as i64).collect();
            let index = Tensor::from_slice(&named, [entries], &device).unwrap();
            let mut expected = vec![-1.0; places];
            named.iter().enumerate().for_each(|(i, &at)| expected[at as usize] = i as f64);
            for dtype in [DType::F64, DType::I32] {
                let source = Tensor::arange(0.0, entries as f64, 1.0, dtype, &device).unwrap();
                let x = Tensor::full([places], -1.0, dtype, &device).unwrap();
                let y = x.scatter(0, &index, &source).unwrap();
                assert_eq!(values(&y), expected, "{places} {entries} {dtype}");
                x.scatter_into(0, &index, &source, &x).unwrap();
                assert_eq!(values(&x), expected);
            }
        }
    }
}

#[test]
fn what_scatter_replaces_and_who_loses_gets_no_gradient() {
    for device in devices() {
        let index = Tensor::from_slice(&[1i64, 0, 1, 3, 2, 2], [3, 2], &device).unwrap();
        for axis in [0, 1] {
            let x = leaf(&[4, 4], &device);
            let source = leaf(&[3, 2], &device);
            gradcheck(|t| t[0].scatter(axis, &index, &t[1])?.square(), &[x, source], 1e-6).unwrap();
        }
    }
}

#[test]
fn scatter_names_an_index_out_of_range_and_another_dtype() {
    for own in own_devices() {
        let x = Tensor::zeros([3], DType::F32, &own).unwrap();
        let index = Tensor::from_slice(&[1i64, 3], [2], &own).unwrap();
        let source = Tensor::ones([2], DType::F32, &own).unwrap();
        let text = error_of(&own, x.scatter(0, &index, &source)).to_string();
        assert!(text.starts_with("scatter") && text.contains("3"), "{text}");
        let wide = source.to_dtype(DType::F64).unwrap();
        assert!(matches!(x.scatter(0, &index, &wide), Err(Error::DTypeMismatch { op: "scatter", .. })));
    }
}
