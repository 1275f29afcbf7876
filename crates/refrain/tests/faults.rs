//! Faults of destinations, views and in-place operations that the design exists to make impossible:
//! each has a test here that fails without its rule. Those of the tape stand in `tape.rs`, those of threads
//! in `threads.rs`.

mod common;

use common::{FLOATS, counting, devices, leaf, tensor, turn, values};
use refrain::{DType, Error, Result, Stats, Tensor, no_grad};

/// What moves or computes anything.
fn work(s: Stats) -> (u64, u64, u64, u64) {
    (s.allocations, s.uploads, s.downloads, s.launches)
}

// A destination reads as zeros right after the operation; gradients never arrive.

#[test]
fn a_destination_holds_its_values_right_after_the_operation() {
    let _turn = turn();
    for device in devices() {
        for n in [1, 7, 1000, 300_000] {
            let x = counting(n, &device);
            let y = Tensor::zeros([n], DType::F32, &device).unwrap();
            let mut read = vec![0.0f32; n];
            for round in 1..4 {
                let k = round as f32;
                x.mul_scalar_into(k as f64, &y).unwrap();
                assert_eq!(y.to_vec::<f32>().unwrap()[n - 1], (n - 1) as f32 * k);
                y.add_into(&x, &y).unwrap();
                y.read_into(&mut read).unwrap();
                assert!(read.iter().enumerate().all(|(i, &v)| v == i as f32 * (k + 1.0)));
                let last = y.narrow(0, n - 1, 1).unwrap();
                last.fill(-5.0).unwrap();
                assert_eq!(y.to_vec::<f32>().unwrap()[n - 1], -5.0);
                y.write_from(&vec![k; n]).unwrap();
                assert_eq!(y.mean(()).unwrap().to_scalar::<f32>().unwrap(), k);
            }
        }
    }
}

#[test]
fn gradients_arrive_and_the_loss_falls() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[0.0; 8], &device);
        let x = tensor(
            &(0..64).map(|i| ((i * 37) % 11) as f64 / 11.0).collect::<Vec<_>>(),
            [8, 8],
            DType::F32,
            &device,
        );
        let target = x.sum(1).unwrap();
        let mut losses = Vec::new();
        for _ in 0..50 {
            let y = x.mul(&w).unwrap().sum(1).unwrap();
            let loss = y.sub(&target).unwrap().square().unwrap().mean(()).unwrap();
            loss.backward().unwrap();
            let grad = w.grad().unwrap();
            assert!(grad.to_vec::<f32>().unwrap().iter().any(|&g| g != 0.0), "a gradient of zeros");
            no_grad(|| w.sub_assign(&grad.mul_scalar(0.05)?)).unwrap();
            w.zero_grad().unwrap();
            losses.push(loss.to_scalar::<f32>().unwrap());
        }
        assert!(losses[49] < losses[0] * 0.05, "{losses:?}");
        assert!(losses.windows(2).all(|l| l[1] < l[0]), "{losses:?}");
    }
}

// A destination is given a new buffer at each call; memory grows.

#[test]
fn reused_destinations_keep_their_storage_and_take_no_memory() {
    let _turn = turn();
    for device in devices() {
        let (a, b) = (counting(600, &device).reshape([20, 30]).unwrap(), counting(30, &device));
        let m = counting(900, &device).reshape([30, 30]).unwrap();
        let (y, z) = (a.zeros_like().unwrap(), a.zeros_like().unwrap());
        let rows = Tensor::zeros([20], DType::F32, &device).unwrap();
        let halves = Tensor::zeros([20, 30], DType::BF16, &device).unwrap();
        let step = || -> Result<()> {
            a.add_into(&b, &y)?;
            y.tanh_into(&z)?;
            z.mul_scalar_into(2.0, &z)?;
            z.sum_into(1, &rows)?;
            a.matmul_into(&m, &y)?;
            y.to_dtype_into(&halves)?;
            y.copy_from(&z)?;
            y.add_assign(&z)?;
            y.fill(0.5)?;
            a.add_into(&a, &y.narrow(0, 0, 20)?)
        };
        step().unwrap();
        let ids = [y.storage_id(), z.storage_id(), rows.storage_id(), halves.storage_id()];
        let before = device.stats();
        for _ in 0..100 {
            step().unwrap();
        }
        let after = device.stats();
        assert_eq!(ids, [y.storage_id(), z.storage_id(), rows.storage_id(), halves.storage_id()]);
        assert_eq!(after.live_bytes, before.live_bytes);
        assert_eq!(after.system_allocations, before.system_allocations);
        assert_eq!(after.allocations, before.allocations, "a destination form made a storage");
        assert_eq!(after.launches, before.launches + 1000);
    }
}

#[test]
fn a_destination_that_does_not_fit_is_refused_and_not_replaced() {
    let _turn = turn();
    for device in devices() {
        let x = counting(6, &device).reshape([2, 3]).unwrap();
        let short = Tensor::zeros([2, 2], DType::F32, &device).unwrap();
        let wide = Tensor::zeros([2, 3], DType::F64, &device).unwrap();
        let repeated = Tensor::zeros([3], DType::F32, &device).unwrap().broadcast_to([2, 3]).unwrap();
        assert!(matches!(x.exp_into(&short), Err(Error::ShapeMismatch { op: "exp", .. })));
        assert!(matches!(x.exp_into(&wide), Err(Error::DTypeMismatch { op: "exp", .. })));
        assert!(matches!(x.exp_into(&repeated), Err(Error::Aliased { op: "exp", .. })));
        assert!(matches!(x.add_into(&x, &short), Err(Error::ShapeMismatch { op: "add", .. })));
        assert!(matches!(x.sum_into(0, &short), Err(Error::ShapeMismatch { op: "sum", .. })));
        assert!(matches!(repeated.fill(1.0), Err(Error::Aliased { op: "fill", .. })));
        assert!(matches!(repeated.write_from(&[1.0f32; 6]), Err(Error::Aliased { .. })));
        assert!(matches!(repeated.add_assign(&x), Err(Error::Aliased { op: "add_assign", .. })));
        assert_eq!(values(&short), [0.0; 4]);
        assert_eq!(values(&repeated), [0.0; 6]);
    }
}

// A view of a half-precision tensor goes through the host.

#[test]
fn views_of_every_dtype_move_no_data() {
    let _turn = turn();
    for device in devices() {
        for dtype in DType::ALL {
            let x = Tensor::ones([4, 1, 6], dtype, &device).unwrap();
            let before = work(device.stats());
            let views: Vec<Tensor> = [
                x.reshape([2, 12]),
                x.view([24]),
                x.transpose(0, 2),
                x.permute(&[2, 0, 1]),
                x.narrow(2, 1, 3),
                x.select(0, 2),
                x.broadcast_to([3, 4, 5, 6]),
                x.squeeze(1),
                x.unsqueeze(-1),
                x.flatten(0, -1),
                x.unfold(2, 4, 2),
                x.transpose(0, 2).and_then(|t| t.narrow(0, 2, 2)),
                Ok(x.detach()),
                Ok(x.clone()),
                x.contiguous(),
                x.to_dtype(dtype),
                x.to_device(&device),
            ]
            .into_iter()
            .chain(x.split(4, 2).unwrap().into_iter().map(Ok))
            .chain(x.chunk(3, 0).unwrap().into_iter().map(Ok))
            .collect::<Result<_>>()
            .unwrap();
            assert_eq!(work(device.stats()), before, "a view of a {dtype} tensor moved data");
            for view in views {
                assert!(view.shares_storage(&x) && view.storage_id() == x.storage_id());
                assert_eq!(view.dtype(), dtype);
            }
        }
    }
}

#[test]
fn halves_are_computed_without_a_detour_over_the_host() {
    let _turn = turn();
    for device in devices() {
        for dtype in FLOATS {
            let x = Tensor::ones([8, 8], dtype, &device).unwrap();
            let before = device.stats();
            let y = x.transpose(0, 1).unwrap().exp().unwrap().matmul(&x).unwrap().sum(0).unwrap();
            let after = device.stats();
            assert_eq!((before.uploads, before.downloads), (after.uploads, after.downloads));
            assert_eq!(y.dtype(), dtype);
        }
    }
}

#[test]
fn what_a_dtype_has_no_meaning_for_is_a_typed_error() {
    let _turn = turn();
    for device in devices() {
        let ids = Tensor::zeros([2, 2], DType::I64, &device).unwrap();
        let flags = Tensor::zeros([2, 2], DType::Bool, &device).unwrap();
        let halves = Tensor::zeros([2, 2], DType::BF16, &device).unwrap();
        assert!(matches!(ids.exp(), Err(Error::Unsupported { op: "exp", dtype: DType::I64, .. })));
        assert!(matches!(ids.mean(()), Err(Error::Unsupported { op: "mean", dtype: DType::I64, .. })));
        assert!(matches!(flags.add(&flags), Err(Error::Unsupported { op: "add", dtype: DType::Bool, .. })));
        assert!(matches!(flags.add_assign(&flags), Err(Error::Unsupported { op: "add_assign", .. })));
        assert!(matches!(flags.neg(), Err(Error::Unsupported { op: "neg", dtype: DType::Bool, .. })));
        assert!(matches!(
            Tensor::arange(0.0, 3.0, 1.0, DType::Bool, &device),
            Err(Error::Unsupported { op: "arange", .. })
        ));
        assert!(matches!(
            halves.add(&ids),
            Err(Error::DTypeMismatch { op: "add", lhs: DType::BF16, rhs: DType::I64 })
        ));
        assert!(matches!(halves.add_assign(&ids), Err(Error::DTypeMismatch { op: "add_assign", .. })));
        assert!(matches!(halves.matmul(&ids), Err(Error::DTypeMismatch { op: "matmul", .. })));
        assert!(matches!(
            Tensor::full([2], 300.0, DType::U8, &device),
            Err(Error::InvalidArgument { op: "full", .. })
        ));
        assert!(matches!(ids.fill(f64::NAN), Err(Error::InvalidArgument { op: "fill", .. })));
    }
}

// An operation whose destination is also a source reads after it wrote.

#[test]
fn elementwise_operations_in_place_read_before_they_write() {
    let _turn = turn();
    type Into = fn(&Tensor, &Tensor) -> Result<()>;
    let operations: [(&str, Into); 10] = [
        ("neg", |x, y| x.neg_into(y)),
        ("exp", |x, y| x.exp_into(y)),
        ("gelu", |x, y| x.gelu_into(y)),
        ("clamp", |x, y| x.clamp_into(-0.5, 0.5, y)),
        ("add", |x, y| x.add_into(x, y)),
        ("mul", |x, y| x.mul_into(x, y)),
        ("div", |x, y| x.div_into(&x.add_scalar(2.0)?, y)),
        ("reversed div", |x, y| x.add_scalar(2.0)?.div_into(x, y)),
        ("scalar pow", |x, y| x.pow_scalar_into(2.0, y)),
        ("scalar sub", |x, y| x.scalar_sub_into(2.0, y)),
    ];
    for device in devices() {
        for dtype in FLOATS {
            for (name, op) in operations {
                for n in [5, 40_000] {
                    let data: Vec<f64> = (0..n).map(|i| (i % 17) as f64 / 8.0 - 1.0).collect();
                    let fresh = tensor(&data, [n], dtype, &device);
                    let expected = fresh.zeros_like().unwrap();
                    op(&fresh, &expected).unwrap();
                    let x = tensor(&data, [n], dtype, &device);
                    let id = x.storage_id();
                    op(&x, &x).unwrap();
                    let same = values(&x)
                        .iter()
                        .zip(values(&expected))
                        .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan());
                    assert!(same, "{name} in place in {dtype}");
                    assert_eq!(x.storage_id(), id);
                    // In a column of a matrix, too.
                    let m = Tensor::zeros([n, 3], dtype, &device).unwrap();
                    let column = m.select(1, 1).unwrap();
                    column.copy_from(&tensor(&data, [n], dtype, &device)).unwrap();
                    op(&column, &column).unwrap();
                    assert_eq!(values(&column).len(), n);
                    let same = values(&column)
                        .iter()
                        .zip(values(&expected))
                        .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan());
                    assert!(same, "{name} in place in a column in {dtype}");
                    assert!(values(&m.select(1, 0).unwrap()).iter().all(|&v| v == 0.0));
                    assert!(values(&m.select(1, 2).unwrap()).iter().all(|&v| v == 0.0));
                }
            }
        }
    }
}

#[test]
fn a_destination_that_overlaps_an_operand_is_refused_where_the_result_is_not_well_defined() {
    let _turn = turn();
    for device in devices() {
        let x = counting(16, &device).reshape([4, 4]).unwrap();
        let aliased = |r: Result<()>, op: &str| match r {
            Err(Error::Aliased { op: name, .. }) => assert_eq!(name, op),
            other => panic!("{op}: {other:?}"),
        };
        let t = x.transpose(0, 1).unwrap();
        aliased(t.exp_into(&x), "exp");
        aliased(t.add_into(&x, &x), "add");
        aliased(x.copy_from(&t), "copy_from");
        aliased(x.add_assign(&t), "add_assign");
        aliased(x.add_assign(&x.select(0, 1).unwrap()), "add_assign");
        aliased(x.mul_assign(&x.select(0, 1).unwrap()), "mul");
        aliased(x.matmul_into(&x, &x), "matmul");
        let flat = x.flatten(0, 1).unwrap();
        aliased(flat.narrow(0, 0, 8).unwrap().exp_into(&flat.narrow(0, 4, 8).unwrap()), "exp");
        aliased(x.sum_into(0, &x.select(0, 0).unwrap()), "sum");
        assert_eq!(values(&x), (0..16).map(f64::from).collect::<Vec<_>>(), "a refused operation wrote");
        // Neighbours that share no element are fine, interleaved ones too.
        let (left, right) = (x.narrow(1, 0, 2).unwrap(), x.narrow(1, 2, 2).unwrap());
        left.add_into(&left, &right).unwrap();
        assert_eq!(values(&right), [0.0, 2.0, 8.0, 10.0, 16.0, 18.0, 24.0, 26.0]);
        right.copy_from(&left).unwrap();
        assert_eq!(values(&right), values(&left));
        x.select(0, 1).unwrap().add_assign(&x.select(0, 0).unwrap()).unwrap();
        assert_eq!(values(&x.select(0, 1).unwrap()), [4.0, 6.0, 4.0, 6.0]);
        x.add_assign(&x).unwrap();
        assert_eq!(values(&x.select(0, 0).unwrap()), [0.0, 2.0, 0.0, 2.0]);
    }
}
