use crate::faults::{error_of, own_devices};
use crate::testing::{assert_close, assert_sums, devices, gradcheck, leaf, values};
use refrain::{DType, Device, DeviceKind, Error, IndexReduction, Result, Step, Tensor};

fn range(shape: &[usize], device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let x = Tensor::arange(0.0, n as f64, 1.0, DType::F64, device).unwrap();
    x.reshape(shape).unwrap().detach()
}

fn index(values: &[i64], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(values, shape, device).unwrap()
}

#[test]
fn slices_are_picked_along_each_axis() {
    for device in devices() {
        let x = range(&[2, 2, 2], &device);
        let i = index(&[1, 0, 1], &[3], &device);
        let pick = |axis| x.index_select(axis, &i).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(pick(0), [4.0, 5.0, 6.0, 7.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(pick(1), [2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 6.0, 7.0, 4.0, 5.0, 6.0, 7.0]);
        assert_eq!(pick(-1), [1.0, 0.0, 1.0, 3.0, 2.0, 3.0, 5.0, 4.0, 5.0, 7.0, 6.0, 7.0]);
        let turned = range(&[2, 3], &device)
            .transpose(0, 1)
            .unwrap()
            .index_select(0, &index(&[2, 0], &[2], &device))
            .unwrap();
        assert_eq!(turned.to_vec::<f64>().unwrap(), [2.0, 5.0, 0.0, 3.0]);
    }
}

#[test]
fn every_dtype_has_rows() {
    for device in devices() {
        for dtype in DType::ALL {
            let table = range(&[2, 1], &device).to_dtype(dtype).unwrap();
            let y = table.embedding(&index(&[1, 0, 1, 1], &[2, 2], &device)).unwrap();
            assert_eq!((y.dims(), y.dtype()), (&[2, 2, 1][..], dtype));
            assert_eq!(
                y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
                [1.0, 0.0, 1.0, 1.0],
                "{dtype}"
            );
        }
        let scalar = range(&[3, 2], &device).embedding(&index(&[2], &[], &device)).unwrap();
        assert_eq!(scalar.to_vec::<f64>().unwrap(), [4.0, 5.0]);
        assert_eq!(range(&[3, 2], &device).embedding(&index(&[], &[0], &device)).unwrap().dims(), [0, 2]);
        assert_eq!(range(&[3, 0], &device).embedding(&index(&[1], &[1], &device)).unwrap().dims(), [1, 0]);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let x = range(&[3, 2, 2], &device);
        x.set_requires_grad(true).unwrap();
        let i = index(&[1, 0, 1, 1], &[4], &device);
        for axis in 0..3 {
            gradcheck(|t| t[0].index_select(axis, &i)?.square(), std::slice::from_ref(&x), 1e-6).unwrap();
        }
        let table = range(&[5, 70], &device).mul_scalar(0.01).unwrap();
        table.set_requires_grad(true).unwrap();
        let ids = index(&[4, 0, 4, 2, 4, 0], &[2, 3], &device);
        let both =
            |t: &[Tensor]| t[0].embedding(&ids)?.square()?.sum(())?.add(&t[0].embedding(&ids)?.sum(())?);
        gradcheck(both, &[table], 1e-6).unwrap();
    }
}

#[test]
fn halves_are_summed_in_f32_and_gradients_gather() {
    for device in devices() {
        let table = Tensor::zeros([3, 2], DType::BF16, &device).unwrap();
        table.set_requires_grad(true).unwrap();
        for pass in [1.0, 2.0] {
            table.embedding(&index(&[1; 512], &[512], &device)).unwrap().sum(()).unwrap().backward().unwrap();
            let grad = table.grad().unwrap().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            assert_eq!(grad, [0.0, 0.0, pass * 512.0, pass * 512.0, 0.0, 0.0]);
        }
    }
}

#[test]
fn gradients_are_added_in_one_order() {
    // A few rows of a small table, often; and of a large one many rows, of which only the last but one is read often.
    let of_few: fn(i64) -> i64 = |i| i * i % 53;
    let of_many: fn(i64) -> i64 = |i| if i % 50 == 0 { 8_999 } else { 9_000 - i * i % 9_001 };
    for device in devices() {
        // Few and many, which a GPU sorts in two ways.
        for (n, entries, id) in [
            (5000, 1_000, of_few),
            (4_001, 9_001, of_many),
            (5_003, 9_001, of_many),
            (12_000, 9_001, of_many),
        ] {
            let width = 70;
            let ids: Vec<i64> = (0..n as i64).map(id).collect();
            let weights = Tensor::arange(0.0, (n * width) as f64, 1.0, DType::F32, &device).unwrap();
            let weights = weights.sin().unwrap().reshape([n, width]).unwrap();
            let (mut in_order, mut exact) = (vec![0f32; entries * width], vec![0f64; entries * width]);
            for (row, &id) in weights.to_vec::<f32>().unwrap().chunks(width).zip(&ids) {
                let first = id as usize * width;
                in_order[first..].iter_mut().zip(row).for_each(|(e, v)| *e += v);
                exact[first..].iter_mut().zip(row).for_each(|(e, v)| *e += f64::from(*v));
            }
            let gradient = || {
                let table = Tensor::zeros([entries, width], DType::F32, &device).unwrap();
                table.set_requires_grad(true).unwrap();
                table.embedding(&index(&ids, &[n], &device)).unwrap().backward_with(&weights).unwrap();
                table.grad().unwrap().to_vec::<f32>().unwrap()
            };
            assert_sums(gradient, &in_order, &exact, 1e-4, &device);
        }
    }
}

#[test]
fn a_destination_is_written_in_place() {
    for device in devices() {
        let wide = Tensor::zeros([2, 4], DType::F64, &device).unwrap();
        range(&[3, 2], &device)
            .embedding_into(&index(&[2, 1], &[2], &device), &wide.narrow(1, 1, 2).unwrap())
            .unwrap();
        assert_eq!(wide.to_vec::<f64>().unwrap(), [0.0, 4.0, 5.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
        range(&[2, 3], &device).index_select_into(1, &index(&[2, 2, 0, 1], &[4], &device), &wide).unwrap();
        assert_eq!(wide.to_vec::<f64>().unwrap(), [2.0, 2.0, 0.0, 1.0, 5.0, 5.0, 3.0, 4.0]);
    }
}

#[test]
fn an_index_out_of_range_is_named() {
    for own in own_devices() {
        let table = range(&[3, 2], &own);
        for bad in [3, -1, i64::MAX] {
            let ids = index(&[0, bad, 2, 9], &[2, 2], &own);
            let dst = Tensor::full([2, 2, 2], 7.0, DType::F64, &own).unwrap();
            let text = error_of(&own, table.embedding_into(&ids, &dst)).to_string();
            let values = dst.to_vec::<f64>().unwrap();
            if own.kind() == DeviceKind::Cuda {
                // Whichever was found first.
                let named =
                    [bad, 9].map(|i| format!("embedding: index {i} is out of range for an axis of size 3"));
                assert!(named.iter().any(|n| text.starts_with(n)), "{text}");
            } else {
                let expected =
                    format!("embedding: index {bad} at [0, 1] is out of range for axis 0 of size 3");
                assert!(text.starts_with(&expected), "{text}");
            }
            if own.kind() == DeviceKind::Cpu {
                assert_eq!(values, [7.0; 8]);
            } else {
                assert_eq!((&values[..2], &values[4..6]), (&[0.0, 1.0][..], &[4.0, 5.0][..]));
                assert!([2, 3, 6, 7].iter().all(|&i| values[i].is_nan()), "{values:?}");
            }
        }
        // Reading the result also waits.
        let i = index(&[0, 2], &[2], &own);
        let read = table.index_select(1, &i).and_then(|y| y.to_vec::<f64>());
        let text = read.unwrap_err().to_string();
        assert!(text.starts_with("index_select: index 2 ") && text.contains("0..2"), "{text}");
        let none = Tensor::zeros([0, 2], DType::F64, &own).unwrap();
        let text = none.index_select(0, &i).unwrap_err().to_string();
        assert!(text.contains("which has no places"), "{text}");
    }
}

#[test]
fn the_gradient_of_an_index_out_of_range_is_an_error_of_its_own() {
    // Few ids and many; a GPU sorts the latter, in two ways.
    for n in [8, 5_000, 10_000] {
        for own in own_devices() {
            let table = Tensor::zeros([3, 2], DType::F32, &own).unwrap();
            table.set_requires_grad(true).unwrap();
            let ids: Vec<i64> = (0..n).map(|i| if i == n - 2 { 3 } else { i % 3 }).collect();
            let ids = index(&ids, &[n as usize], &own);
            let y = match table.embedding(&ids) {
                Err(_) => continue, // The CPU has no result, so there is no backward pass.
                Ok(y) => y,
            };
            assert!(own.synchronize().is_err());
            let text = error_of(&own, y.sum(()).and_then(|y| y.backward())).to_string();
            assert!(text.starts_with("index_select_backward: index 3 "), "{text}");
            assert!(text.contains("is out of range"), "{text}");
            // A GPU may meet the error of many ids, which it sorts first, before it adds.
            if let Some(grad) = table.grad() {
                assert_eq!(grad.to_vec::<f32>().unwrap().iter().sum::<f32>(), 2.0 * (n - 1) as f32);
            } else {
                assert!(n > 8);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let x = range(&[2, 3], &device);
        assert!(matches!(x.embedding(&x), Err(Error::DTypeMismatch { op: "embedding", .. })));
        assert!(matches!(x.index_select(0, &x), Err(Error::InvalidArgument { op: "index_select", .. })));
        let i = index(&[0], &[1], &device);
        assert!(range(&[2], &device).embedding(&i).unwrap_err().to_string().contains("[entries, features]"));
        assert!(x.index_select(2, &i).is_err() && range(&[], &device).index_select(0, &i).is_err());
        let floats = Tensor::zeros([1], DType::F32, &device).unwrap();
        assert!(matches!(x.index_select(0, &floats), Err(Error::DTypeMismatch { op: "index_select", .. })));
    }
}

/// Elements are picked some at a time, and then what is left.
#[test]
fn rows_of_any_length_are_picked_from() {
    for device in devices() {
        let x = range(&[3, 40], &device);
        let all = x.to_vec::<f64>().unwrap();
        for n in [1, 7, 8, 9, 16, 23] {
            let places: Vec<i64> = (0..n).map(|i| (i * 17 + 5) % 40).collect();
            let picked: Vec<f64> = (0..3)
                .flat_map(|row| places.iter().map(move |&i| (row, i as usize)))
                .map(|(row, i)| all[row * 40 + i])
                .collect();
            let index = Tensor::from_slice(&places, [places.len()], &device).unwrap();
            assert_eq!(x.index_select(1, &index).unwrap().to_vec::<f64>().unwrap(), picked, "{n}");
            let for_each = index.broadcast_to([3, places.len()]).unwrap();
            assert_eq!(x.gather(1, &for_each).unwrap().to_vec::<f64>().unwrap(), picked, "{n}");
        }
    }
}

#[test]
fn slices_are_added_to_what_is_there_in_the_order_of_the_index() {
    for device in devices() {
        for (shape, axis) in [([5usize, 3, 4], 0isize), ([4, 5, 3], 1), ([3, 4, 5], -1), ([2, 5, 1], 1)] {
            let names = [3i64, 0, 3, 4, 0, 3];
            let index = Tensor::from_slice(&names, [6], &device).unwrap();
            let at = axis.rem_euclid(3) as usize;
            let mut of_source = shape;
            of_source[at] = 6;
            let (x, source) = (leaf(&shape, &device), leaf(&of_source, &device));
            let strides = |shape: [usize; 3]| [shape[1] * shape[2], shape[2], 1];
            let place = |i: usize, shape: [usize; 3]| strides(shape).map(|s| i / s);
            let mut expected = values(&x);
            for (i, v) in values(&source).into_iter().enumerate() {
                let [a, b, c] = place(i, of_source);
                let mut at_x = [a, b % of_source[1], c % of_source[2]];
                at_x[at] = names[at_x[at]] as usize;
                expected[at_x.iter().zip(strides(shape)).map(|(i, s)| i * s).sum::<usize>()] += v;
            }
            let y = x.index_add(axis, &index, &source).unwrap();
            assert_close(&values(&y), &expected, 1e-12);
            gradcheck(|t| t[0].index_add(axis, &index, &t[1])?.square(), &[x.clone(), source.clone()], 1e-6)
                .unwrap();
            for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::BF16, 0.05), (DType::F16, 0.01)] {
                let [x, source] = [&x, &source].map(|t| t.detach().to_dtype(dtype).unwrap());
                let y = x.index_add(axis, &index, &source).unwrap();
                assert_close(&values(&y), &expected, tolerance);
                // In place, and the parts that nobody names stay as they are.
                x.index_add_into(axis, &index, &source, &x).unwrap();
                assert_eq!(values(&x), values(&y));
                // What is added is read before it is written.
                let both = Tensor::concat(&[&y, &source], axis).unwrap();
                let (first, count) = (both.narrow(axis, 0, 6).unwrap(), shape[at]);
                let into = both.narrow(axis, 6 - count, count).unwrap();
                let apart = into.copy().unwrap().index_add(axis, &index, &first.copy().unwrap()).unwrap();
                if into.is_contiguous() {
                    into.index_add_into(axis, &index, &first, &into).unwrap();
                    assert_eq!(values(&into), values(&apart));
                }
            }
        }
        let many =
            Tensor::from_slice(&(0..9000).map(|i| i * 7919 % 200).collect::<Vec<i64>>(), [9000], &device);
        let source = Tensor::ones([9000, 3], DType::F32, &device).unwrap();
        let y = Tensor::ones([200, 3], DType::F32, &device)
            .unwrap()
            .index_add(0, &many.unwrap(), &source)
            .unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [46.0; 600]);
    }
}

#[test]
fn what_cannot_be_added_is_named() {
    for device in own_devices() {
        let x = Tensor::zeros([3, 2], DType::F32, &device).unwrap();
        let index = |names: &[i64]| Tensor::from_slice(names, [names.len()], &device).unwrap();
        let source = Tensor::ones([2, 2], DType::F32, &device).unwrap();
        let e = error_of(&device, x.index_add(0, &index(&[0, 3]), &source));
        assert!(e.to_string().contains("3"), "{e}");
        let e = x.index_add(0, &index(&[0]), &source).unwrap_err();
        assert!(matches!(e, Error::ShapeMismatch { op: "index_add", .. }), "{e}");
        let e = x.index_add(0, &index(&[0, 1]), &source.to_dtype(DType::F64).unwrap()).unwrap_err();
        assert!(matches!(e, Error::DTypeMismatch { op: "index_add", .. }), "{e}");
        let e = x.index_add(2, &index(&[0, 1]), &source).unwrap_err();
        assert!(e.to_string().starts_with("index_add"), "{e}");
        let counts = Tensor::zeros([3, 2], DType::I64, &device).unwrap();
        let e = counts.index_add(0, &index(&[0, 1]), &source.to_dtype(DType::I64).unwrap()).unwrap_err();
        assert!(e.to_string().contains("index_add"), "{e}");
    }
}

/// Many entries are ordered before anything is added, and errors are those of few.
#[test]
fn an_index_of_many_entries_is_checked_like_one_of_few() {
    for device in own_devices() {
        let x = Tensor::ones([300, 2], DType::F32, &device).unwrap();
        for n in [7usize, 5000] {
            let mut names: Vec<i64> = (0..n as i64).map(|i| i % 300).collect();
            names[n / 2] = 300;
            let source = Tensor::ones([n, 2], DType::F32, &device).unwrap();
            let index = Tensor::from_slice(&names, [n], &device).unwrap();
            let e = error_of(&device, x.index_add(0, &index, &source)).to_string();
            assert!(e.starts_with("index_add") && e.contains("index 300"), "{device}, {n}: {e}");
        }
    }
}

#[test]
fn a_step_orders_an_index_once_until_something_writes_to_it() {
    for device in devices() {
        let n = 6000;
        let names = |turn: i64| (0..n).map(|i| (i * 7 + turn) * i % 251).collect::<Vec<i64>>();
        let given = |turn| Tensor::from_slice(&names(turn), [n as usize], &device).unwrap();
        let (first, second) = (given(0), given(1));
        let source = Tensor::arange(0.0, 2.0 * n as f64, 1.0, DType::F32, &device).unwrap().sin().unwrap();
        let source = source.reshape([n as usize, 2]).unwrap();
        let zeros = Tensor::zeros([251, 2], DType::F32, &device).unwrap();
        let run = |index: &Tensor| -> Result<Vec<Tensor>> {
            index.copy_from(&first)?;
            let once = zeros.index_add(0, index, &source)?;
            // The same index in another tensor has an order of its own; the same places of another axis have not.
            let copy = index.copy()?;
            let twice = once.index_add(0, index, &source)?.index_add(0, &copy, &source)?;
            let wide = zeros.transpose(0, 1)?.index_add(1, index, &source.transpose(0, 1)?)?;
            index.copy_from(&second)?;
            let other = twice.index_add(0, index, &source)?;
            Ok(vec![once, twice, wide, other])
        };
        let [eager, recorded] = [(); 2].map(|()| given(2));
        let mut step = Step::new(&device, |_| Ok(run(&recorded)?));
        for _ in 0..2 {
            let outputs = step.call(&[]).unwrap();
            for (i, expected) in run(&eager).unwrap().iter().enumerate() {
                let found = outputs.copy(i).unwrap();
                assert_eq!(values(&found), values(expected), "{device}, result {i}");
            }
        }
        let table = step.program().unwrap().to_string();
        // Of the index, of its copy, and of what was written.
        let orders = table.lines().filter(|line| line.contains("-> i32 [6000] ")).count();
        assert_eq!(orders, 3, "{device}: {table}");
        step.finish().unwrap();
    }
}

/// The extreme of each position by a loop over the elements, of a base and a source with `inner` columns.
fn extremes(
    base: &[f64],
    source: &[f64],
    names: &[i64],
    inner: usize,
    of: IndexReduction,
    include_self: bool,
) -> Vec<f64> {
    let better = |a: f64, b: f64| match of {
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        IndexReduction::Amax => a.max(b),
        IndexReduction::Amin => a.min(b),
    };
    let mut result = base.to_vec();
    let mut has_one = vec![include_self; base.len()];
    for (i, &x) in source.iter().enumerate() {
        let at = names[i / inner] as usize * inner + i % inner;
        result[at] = if has_one[at] { better(result[at], x) } else { x };
        has_one[at] = true;
    }
    result
}

const EXTREMES: [IndexReduction; 2] = [IndexReduction::Amax, IndexReduction::Amin];

#[test]
fn extremes_are_taken_of_the_slices_of_each_position() {
    for device in devices() {
        // Few entries, which a GPU searches, many, which it sorts, and positions with more entries than a warp reduces.
        for (count, size, inner) in
            [(7, 4, 3), (600, 3, 5), (9_000, 300, 4), (9_000, 3, 33), (5_000, 9_001, 2)]
        {
            let names: Vec<i64> = (0..count as i64).map(|i| i * i % (size as i64 - 1)).collect();
            let numbers =
                |n: usize, seed: f64| (0..n).map(|i| (i as f64 * 1.7 + seed).sin()).collect::<Vec<_>>();
            let (mut base, mut source) = (numbers(size * inner, 0.3), numbers(count * inner, 0.9));
            source[0] = f64::NAN;
            base[inner] = f64::NAN;
            let index = index(&names, &[count], &device);
            for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
                let given = |v: &[f64], n: usize| {
                    Tensor::from_slice(v, [n, inner], &device).unwrap().to_dtype(dtype).unwrap()
                };
                let (x, slices) = (given(&base, size), given(&source, count));
                let (of_base, of_source) = (values(&x), values(&slices));
                for (of, include_self) in EXTREMES.into_iter().flat_map(|of| [(of, false), (of, true)]) {
                    let expected = extremes(&of_base, &of_source, &names, inner, of, include_self);
                    let y = x.index_reduce(0, &index, &slices, of, include_self).unwrap();
                    let same = |y: &Tensor| {
                        values(y).iter().zip(&expected).all(|(y, e)| y == e || y.is_nan() && e.is_nan())
                    };
                    assert!(same(&y), "{device}, {count} of {size}, {dtype}, {of:?}, {include_self}");
                    let columns = x.transpose(0, 1).unwrap();
                    let y =
                        columns.index_reduce(-1, &index, &slices.transpose(0, 1).unwrap(), of, include_self);
                    assert!(same(&y.unwrap().transpose(0, 1).unwrap()), "{device}, {dtype}, last axis");
                    let place = x.copy().unwrap();
                    place.index_reduce_into(0, &index, &slices, of, include_self, &place).unwrap();
                    assert!(same(&place), "{device}, {dtype}, in place");
                }
            }
        }
    }
}

#[test]
fn gradients_of_extremes_agree_with_finite_differences_and_are_shared() {
    for device in devices() {
        let index = index(&[3, 0, 3, 4, 0, 3], &[6], &device);
        for (of, include_self) in EXTREMES.into_iter().flat_map(|of| [(of, false), (of, true)]) {
            for (axis, base, source) in [(0, [5, 3, 2], [6, 3, 2]), (1, [2, 5, 3], [2, 6, 3])] {
                let (x, slices) = (leaf(&base, &device), leaf(&source, &device));
                let reduced =
                    |t: &[Tensor]| t[0].index_reduce(axis, &index, &t[1], of, include_self)?.square();
                gradcheck(reduced, &[x, slices], 1e-6).unwrap();
            }
        }
        for dtype in [DType::F32, DType::BF16] {
            let given = |v: &[f64]| {
                let x = Tensor::from_slice(v, v.len(), &device).unwrap().to_dtype(dtype).unwrap();
                x.set_requires_grad(true).unwrap();
                x
            };
            let gradients = |include_self: bool| {
                let (x, source) = (given(&[2.0, 1.0, 0.0, 4.0, 7.0]), given(&[5.0, 2.0, 1.0, 4.0, 1.0, 5.0]));
                let y = x.index_reduce(0, &index, &source, IndexReduction::Amax, include_self).unwrap();
                y.sum(()).unwrap().backward().unwrap();
                [x, source].map(|x| values(&x.grad().unwrap()))
            };
            assert_eq!(gradients(true), [vec![0.5, 1.0, 1.0, 0.0, 1.0], vec![0.5, 0.5, 0.0, 0.0, 0.0, 0.5]]);
            assert_eq!(gradients(false), [vec![0.0, 1.0, 1.0, 0.0, 0.0], vec![0.5, 1.0, 0.0, 1.0, 0.0, 0.5]]);
            // A NaN is the extreme, as of `max`.
            let (x, source) =
                (given(&[1.0, 2.0, f64::NAN, 4.0, 5.0]), given(&[f64::NAN, 6.0, 1.0, 4.0, 7.0, 1.0]));
            let y = x.index_reduce(0, &index, &source, IndexReduction::Amax, true).unwrap();
            y.sum(()).unwrap().backward().unwrap();
            assert_eq!(values(&x.grad().unwrap()), [0.0, 1.0, 1.0, 0.0, 1.0]);
            assert_eq!(values(&source.grad().unwrap()), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
            // What its gradient does not need is not kept: the source may change.
            let (x, source) = (given(&[1.0; 5]), given(&[1.0; 6]).detach());
            let y = x.index_reduce(0, &index, &source, IndexReduction::Amin, false).unwrap();
            source.fill(3.0).unwrap();
            y.sum(()).unwrap().backward().unwrap();
            assert_eq!(values(&x.grad().unwrap()), [0.0, 1.0, 1.0, 0.0, 0.0]);
        }
    }
}
