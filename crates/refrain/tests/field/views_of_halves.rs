//! **Seen:** only f32 had views on the GPU. A reshape of a bf16 tensor went through the host, the next operation
//! followed it there, and a graph could not be captured. Transposes and L2 norms in bf16 did the same.
//!
//! **Found here:** a view of any dtype that moves data; an upload or download, eager or replayed, of a step in halves;
//! a step in halves that is not recorded, or replays other bits than the eager one.

use std::slice::from_ref;

use refrain::{DType, Result, Stats, Step, Tensor};

use crate::common::{FLOATS, devices, tensor, turn, values};

/// What moves or computes anything.
fn work(s: Stats) -> (u64, u64, u64, u64) {
    (s.allocations, s.uploads, s.downloads, s.launches)
}

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

/// Attention of four heads with L2-normalised queries and keys, of windows cut by a reshape.
fn attend(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let heads = x.matmul(w)?.reshape([2, 6, 4, 8])?.transpose(1, 2)?;
    let keys = heads.l2_normalize(-1, 1e-6)?;
    let weights = keys.matmul(&keys.transpose(-2, -1)?)?.softmax(-1)?;
    let merged = weights.matmul(&heads)?.transpose(1, 2)?.reshape([12, 32])?;
    let loss = merged.matmul(&w.transpose(0, 1)?)?.square()?.mean(())?;
    loss.backward()?;
    Ok(loss)
}

#[test]
fn a_recorded_step_of_reshapes_transposes_and_norms_in_halves_stays_on_the_device() {
    let _turn = turn();
    for device in devices() {
        for dtype in FLOATS {
            let numbers: Vec<f64> = (0..12 * 32).map(|i| (i * 29 % 31) as f64 / 31.0 - 0.5).collect();
            let x = tensor(&numbers, [12, 32], dtype, &device);
            let [eager, recorded] = [0, 1].map(|_| {
                let numbers: Vec<f64> = (0..32 * 32).map(|i| (i * 17 % 101) as f64 / 400.0 - 0.125).collect();
                let w = tensor(&numbers, [32, 32], dtype, &device);
                w.set_requires_grad(true).unwrap();
                w.set_grad(&w.zeros_like().unwrap()).unwrap();
                w
            });
            let before = device.stats();
            let loss = attend(&x, &eager).unwrap();
            let after = device.stats();
            assert_eq!((after.uploads, after.downloads), (before.uploads, before.downloads), "{dtype} eager");
            let mut step = Step::new(&device, |x| Ok(vec![attend(&x[0], &recorded)?]));
            let first = step.call(from_ref(&x)).unwrap().copy(0).unwrap();
            assert_eq!(values(&first), values(&loss), "{dtype} on {device}");
            assert_eq!(
                values(&recorded.grad().unwrap()),
                values(&eager.grad().unwrap()),
                "{dtype} on {device}"
            );
            assert!(values(&eager.grad().unwrap()).iter().any(|&g| g != 0.0));
            let before = work(device.stats());
            for _ in 0..5 {
                step.call(from_ref(&x)).unwrap();
            }
            let after = work(device.stats());
            assert_eq!((after.0, after.1, after.2), (before.0, before.1, before.2), "{dtype} replayed");
            assert!(after.3 > before.3);
            step.finish().unwrap();
        }
    }
}
