use crate::testing::{devices, gradcheck, shortened};
use refrain::{Activation, DType, DeviceKind, Error, Tensor};

fn ramp(n: usize, step: f64) -> Vec<f64> {
    (0..n).map(|i| ((i as f64 * step + 0.3) * 1.7).sin()).collect()
}

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let leaf = |shape: &[usize], step| {
            let t = Tensor::from_slice(&ramp(shape.iter().product(), step), shape, &device).unwrap();
            t.set_requires_grad(true).unwrap();
            t
        };
        let (x, w, b, r) =
            (leaf(&[2, 3, 5], 0.7), leaf(&[4, 5], 1.1), leaf(&[4], 0.9), leaf(&[2, 3, 4], 0.2));
        for activation in
            [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu]
        {
            let all = [x.clone(), w.clone(), b.clone(), r.clone()];
            gradcheck(|t| t[0].linear(&t[1], Some(&t[2]), activation, Some(&t[3])), &all, 1e-6).unwrap();
            gradcheck(|t| t[0].linear(&t[1], None, activation, None), &all[..2], 1e-6).unwrap();
        }
        // A bias whose weight is a constant, and a layer that is used twice.
        let fixed = w.detach();
        gradcheck(|t| t[0].linear(&fixed, Some(&t[1]), Activation::None, None), &[x.clone(), b], 1e-6)
            .unwrap();
        let square = leaf(&[5, 5], 0.4);
        gradcheck(
            |t| {
                t[0].linear(&t[1], None, Activation::GeluTanh, None)?.linear(
                    &t[1],
                    None,
                    Activation::None,
                    Some(&t[0]),
                )
            },
            &[x, square],
            1e-6,
        )
        .unwrap();
    }
}

#[test]
fn a_layer_written_into_a_tensor_has_the_gradients_of_one_with_a_new_result() {
    for device in devices() {
        for dtype in [DType::F64, DType::BF16] {
            let leaf = |shape: &[usize], step| {
                let t = Tensor::from_slice(&ramp(shape.iter().product(), step), shape, &device).unwrap();
                let t = t.to_dtype(dtype).unwrap();
                t.set_requires_grad(true).unwrap();
                t
            };
            let leaves = [leaf(&[2, 3, 5], 0.7), leaf(&[4, 5], 1.1), leaf(&[4], 0.9), leaf(&[2, 3, 4], 0.2)];
            let [x, w, b, r] = &leaves;
            for activation in
                [Activation::None, Activation::Relu, Activation::Gelu, Activation::GeluTanh, Activation::Silu]
            {
                let gradients = |y: &Tensor| {
                    leaves.iter().for_each(|t| t.zero_grad().unwrap());
                    y.square().unwrap().sum(()).unwrap().backward().unwrap();
                    let grad = |t: &Tensor| t.grad().unwrap().to_dtype(DType::F64).unwrap();
                    leaves.iter().map(|t| grad(t).to_vec::<f64>().unwrap()).collect::<Vec<_>>()
                };
                let new = x.linear(w, Some(b), activation, Some(r)).unwrap();
                let dst = Tensor::full([2, 3, 4], 9.0, dtype, &device).unwrap();
                let place = dst.storage_id();
                x.linear_into(w, Some(b), activation, Some(r), &dst).unwrap();
                assert!(dst.requires_grad() && dst.storage_id() == place);
                let bits = |t: &Tensor| t.detach().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                assert_eq!(bits(&dst), bits(&new), "{activation:?} in {dtype}");
                assert_eq!(gradients(&dst), gradients(&new), "{activation:?} in {dtype}");
            }
        }
    }
}

#[test]
fn every_float_dtype_gives_the_rounded_result() {
    for device in devices() {
        let (x, w) = (ramp(300, 0.37), ramp(400, 0.53));
        let exact: Vec<f64> =
            (0..60).map(|i| (0..20).map(|p| x[i / 20 * 20 + p] * w[i % 20 * 20 + p]).sum()).collect();
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let x = Tensor::from_slice(&x[..60], [3, 20], &device).unwrap().to_dtype(dtype).unwrap();
            let w = Tensor::from_slice(&w, [20, 20], &device).unwrap().to_dtype(dtype).unwrap();
            let y = x.linear(&w, None, Activation::None, None).unwrap();
            assert_eq!(y.dtype(), dtype);
            let y = y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let bound = 4.0 * dtype.epsilon().unwrap() * 20f64.sqrt() * 20.0;
            assert!(y.iter().zip(&exact).all(|(a, b)| (a - b).abs() < bound), "{dtype}");
        }
    }
}

#[test]
fn what_does_not_fit_is_named() {
    for device in devices() {
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device).unwrap();
        let (x, w) = (zeros(&[2, 3]), zeros(&[4, 3]));
        for wrong in [
            zeros(&[2, 4]).linear(&w, None, Activation::None, None),
            x.linear(&w, Some(&zeros(&[3])), Activation::None, None),
            x.linear(&w, None, Activation::None, Some(&x)),
            zeros(&[]).linear(&w, None, Activation::None, None),
        ] {
            assert!(matches!(wrong, Err(Error::ShapeMismatch { op: "linear", .. })));
        }
        let none = zeros(&[0, 3]).linear(&w, None, Activation::Gelu, None).unwrap();
        assert_eq!(none.dims(), [0, 4]);
    }
}

#[test]
fn many_rows_by_few_columns_give_what_few_rows_give() {
    for device in devices() {
        // More rows than a GPU processes at once; no size is a multiple of a tile.
        let rows = 40_003;
        let (f32, bf16, f16) = (DType::F32, DType::BF16, DType::F16);
        let dtypes = [(f32, f32), (bf16, bf16), (f16, f16), (bf16, f32)];
        let activated = [44, 150].into_iter().flat_map(|n| dtypes.map(|d| (n, 100, Activation::GeluTanh, d)));
        // Rows of 128 columns in 16 bits are whole in a block of a GPU with groups of warps.
        let plain = dtypes[1..3].iter().map(|&d| (200, 128, Activation::None, d));
        for (inputs, outputs, activation, (dtype, parameters)) in activated.chain(plain) {
            let tensor = |shape: &[usize], step, dtype| {
                let values = ramp(shape.iter().product(), step);
                Tensor::from_slice(&values, shape, &device).unwrap().to_dtype(dtype).unwrap()
            };
            let x = tensor(&[rows, inputs], 0.7, dtype);
            let (w, b) = (tensor(&[outputs, inputs], 1.1, parameters), tensor(&[outputs], 0.9, parameters));
            let r = tensor(&[rows, outputs], 0.2, dtype);
            let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap();
            let exact = wide(&x).linear(&wide(&w), Some(&wide(&b)), activation, Some(&wide(&r))).unwrap();
            let turned = w.transpose(0, 1).unwrap().copy().unwrap().transpose(0, 1).unwrap();
            let largest = |t: &Tensor| t.abs().unwrap().max(()).unwrap().to_vec::<f64>().unwrap()[0];
            let tolerance = largest(&exact) * if dtype == DType::F32 { 2e-6 } else { 0.008 };
            for w in [&w, &turned] {
                let y = x.linear(w, Some(&b), activation, Some(&r)).unwrap();
                let away = largest(&wide(&y).sub(&exact).unwrap());
                assert!(away <= tolerance, "{inputs} {dtype}, {parameters}: {away:e} of {tolerance:e}");
            }
        }
    }
}

#[test]
fn gradients_of_layers_of_all_sizes_agree_with_those_in_f64() {
    for device in devices() {
        let (f32, bf16, f16) = (DType::F32, DType::BF16, DType::F16);
        let dtypes = [(f32, f32), (bf16, bf16), (f16, f16), (bf16, f32)];
        // Rows, inputs and outputs. The sums over rows are in one part and in many, of full and partial tiles.
        let sizes = [
            (70, 48, 40),
            (700, 72, 136),
            (6_000, 64, 64),
            (3_000, 264, 520),
            (900, 33, 47),
            (800, 256, 3),
            (9_000, 16, 128),
            (9_000, 128, 16),
            (4_000, 16, 48),
            (5_000, 16, 16),
            (2_000, 80, 32),
            // Rows of a multiple of four, or of two, 16-bit numbers, which are moved in smaller pieces.
            (1_500, 100, 300),
            (4_000, 44, 68),
            (1_200, 50, 74),
            (3_000, 20, 36),
        ];
        let sizes = sizes.into_iter().enumerate();
        for ((rows, inputs, outputs), (dtype, parameters)) in
            sizes.flat_map(|(turn, size)| shortened(dtypes, turn, 4).map(move |dtypes| (size, dtypes)))
        {
            let tensor = |shape: &[usize], step, dtype| {
                let values = ramp(shape.iter().product(), step);
                Tensor::from_slice(&values, shape, &device).unwrap().to_dtype(dtype).unwrap()
            };
            let operands = [
                tensor(&[rows, inputs], 0.7, dtype),
                tensor(&[outputs, inputs], 1.1, parameters),
                tensor(&[outputs], 0.9, parameters),
            ];
            let dy = tensor(&[rows, outputs], 0.37, dtype);
            // Twice, so that the second pass adds to the first.
            let gradients = |wide: bool| {
                // Parameters are rounded to the dtype of the input before they are multiplied.
                let rounded = |t: &Tensor| t.to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap();
                let widened = |t: &Tensor| if wide { rounded(t) } else { t.detach() };
                let leaves = operands.each_ref().map(widened);
                leaves.iter().for_each(|t| t.set_requires_grad(true).unwrap());
                let [x, w, b] = &leaves;
                for _ in 0..2 {
                    let y = x.linear(w, Some(b), Activation::None, None).unwrap();
                    y.mul(&widened(&dy)).unwrap().sum(()).unwrap().backward().unwrap();
                }
                leaves.each_ref().map(|t| t.grad().unwrap().to_dtype(DType::F64).unwrap())
            };
            let largest = |t: &Tensor| t.abs().unwrap().max(()).unwrap().to_vec::<f64>().unwrap()[0];
            let results = [dtype, parameters, parameters].into_iter().zip(["x", "w", "b"]);
            for ((of, name), (got, exact)) in results.zip(gradients(false).iter().zip(&gradients(true))) {
                // The rounding of the result, and the f32 rounding of as many partial sums.
                let terms = rows.max(outputs) as f64 / 4.0;
                let tolerance =
                    4.0 * of.epsilon().unwrap() * largest(exact) + f64::from(f32::EPSILON) * terms;
                let away = largest(&got.sub(exact).unwrap());
                assert!(
                    away <= tolerance,
                    "{rows} {inputs} {outputs} {dtype}, {parameters}, of {name}: {away:e} of {tolerance:e}"
                );
            }
        }
    }
}

#[test]
fn the_activation_of_a_wide_layer_on_a_gpu_is_an_operation_of_its_own() {
    let (rows, width) = (2048, 1024);
    for device in devices().filter(|device| device.kind() != DeviceKind::Cpu) {
        let tensor = |shape: [usize; 2], step| {
            let x = Tensor::from_slice(&ramp(shape.iter().product(), step), shape, &device).unwrap();
            x.mul_scalar(0.1).unwrap().to_dtype(DType::BF16).unwrap().detach()
        };
        let (x, w) = (tensor([rows, width], 0.7), tensor([2 * width, width], 1.1));
        assert_eq!(x.numel() * w.dims()[0], 1 << 32);
        let b = w.select(1, 3).unwrap().copy().unwrap();
        let gradient = |y: Tensor| {
            y.sum(()).unwrap().backward().unwrap();
            let gradient = w.grad().unwrap().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            w.zero_grad().unwrap();
            gradient
        };
        w.set_requires_grad(true).unwrap();
        let bits = |y: &Tensor| y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        for activation in [Activation::Gelu, Activation::Relu] {
            let apart = activation.apply(&x.linear(&w, Some(&b), Activation::None, None).unwrap()).unwrap();
            let y = x.linear(&w, Some(&b), activation, None).unwrap();
            assert_eq!(bits(&y), bits(&apart), "{device} {activation:?}");
            let into = Tensor::zeros([rows, 2 * width], DType::BF16, &device).unwrap();
            x.linear_into(&w, Some(&b), activation, None, &into).unwrap();
            assert_eq!(bits(&y), bits(&into), "{device} {activation:?}");
            let expected = gradient(apart);
            assert_eq!(gradient(y), expected, "{device} {activation:?}");
            assert_eq!(gradient(into), expected, "{device} {activation:?}");
            // One row less is not wide: GELU takes sums that are not rounded, on which it depends.
            let narrow = x.narrow(0, 0, rows - 1).unwrap();
            let y = narrow.linear(&w, Some(&b), activation, None).unwrap();
            let apart = narrow.linear(&w, Some(&b), Activation::None, None).unwrap();
            let same = bits(&y) == bits(&activation.apply(&apart).unwrap());
            assert_eq!(same, activation == Activation::Relu, "{device} {activation:?}");
        }
    }
}

#[test]
fn a_row_of_one_column_in_16_bits_does_not_depend_on_how_many_there_are() {
    for device in devices() {
        // One output forward, or one input backward; no bias, so that nothing follows the product.
        for (dtype, inputs, outputs) in
            [(DType::F16, 67, 1), (DType::BF16, 67, 1), (DType::F16, 1, 67), (DType::BF16, 1, 67)]
        {
            let rows = 40_000;
            let leaf = |shape: &[usize], step| {
                let t = Tensor::from_slice(&ramp(shape.iter().product(), step), shape, &device).unwrap();
                t.to_dtype(dtype).unwrap()
            };
            let (x, w) = (leaf(&[rows, inputs], 0.7), leaf(&[outputs, inputs], 1.1));
            let dy = leaf(&[rows, outputs], 0.3);
            let part = |count: usize| {
                let x = x.narrow(0, 0, count).unwrap().contiguous().unwrap();
                x.set_requires_grad(true).unwrap();
                let y = x.linear(&w, None, Activation::None, None).unwrap();
                y.backward_with(&dy.narrow(0, 0, count).unwrap().contiguous().unwrap()).unwrap();
                [y.detach(), x.grad().unwrap()]
                    .map(|t| t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap())
            };
            let (all, some) = (part(rows), part(90));
            for (all, some) in all.iter().zip(&some) {
                assert_eq!(some[..], all[..some.len()], "{dtype}, {inputs} to {outputs}");
            }
        }
    }
}

#[test]
fn a_row_in_16_bits_does_not_depend_on_how_many_there_are() {
    for device in devices() {
        // Many times the rows that are computed at a time, and in the forward pass one more; and fewer than those.
        let of = [(DType::BF16, [16_321, 24, 128]), (DType::F16, [13_249, 160, 40])];
        for (dtype, [rows, inputs, outputs]) in of {
            let leaf = |shape: &[usize], step| {
                let t = Tensor::from_slice(&ramp(shape.iter().product(), step), shape, &device).unwrap();
                t.to_dtype(dtype).unwrap()
            };
            let (x, r) = (leaf(&[rows, inputs], 0.7), leaf(&[rows, outputs], 0.2));
            let (w, b) = (leaf(&[outputs, inputs], 1.1), leaf(&[outputs], 0.9));
            // The result and the gradient of `x`, of some rows.
            let part = |first: usize, count: usize| {
                let x = x.narrow(0, first, count).unwrap().contiguous().unwrap();
                x.set_requires_grad(true).unwrap();
                let r = r.narrow(0, first, count).unwrap().contiguous().unwrap();
                let y = x.linear(&w, Some(&b), Activation::GeluTanh, Some(&r)).unwrap();
                y.sum(()).unwrap().backward().unwrap();
                let numbers = |t: &Tensor| t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                (numbers(&y.detach()), numbers(&x.grad().unwrap()))
            };
            let (y, dx) = part(0, rows);
            for (first, count) in [(0, 90), (700, 300), (rows - 90, 90)] {
                let (some_y, some_dx) = part(first, count);
                assert_eq!(some_y, y[first * outputs..][..count * outputs], "{dtype}, from row {first}");
                assert_eq!(some_dx, dx[first * inputs..][..count * inputs], "{dtype}, from row {first}");
            }
        }
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::BF16, &device).unwrap();
        let none = zeros(&[30_000, 100]).linear(&zeros(&[0, 100]), None, Activation::None, None).unwrap();
        assert_eq!(none.dims(), [30_000, 0]);
    }
}
