//! **Seen:** a destination that was passed in got a new buffer at each call, and the old one waited for a finaliser:
//! 6,000 orphaned buffers an epoch, memory grew until it was full, and an epoch of 60 s took 300 s.
//!
//! **Found here:** a destination form that makes a storage, changes the destination's, or keeps a byte; a destination
//! that does not fit and is replaced instead of refused.

use refrain::{DType, Error, Result, Tensor};

use crate::common::{counting, devices, sanitized, turn, values};

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

#[test]
fn ten_thousand_steps_into_reused_destinations_leave_memory_flat_to_the_byte() {
    let _turn = turn();
    for device in devices() {
        let x = counting(64, &device).reshape([8, 8]).unwrap();
        let y = Tensor::zeros([8, 8], DType::F32, &device).unwrap();
        let z = Tensor::zeros([8, 8], DType::F32, &device).unwrap();
        let row = Tensor::zeros([8], DType::F32, &device).unwrap();
        let step = || {
            x.mul_into(&x, &y).unwrap();
            y.sub_into(&x, &y).unwrap();
            y.matmul_into(&x, &z).unwrap();
            y.sum_into(0, &row).unwrap();
        };
        (0..10).for_each(|_| step());
        let before = device.stats();
        let steps = if sanitized() { 500 } else { 10_000 };
        (0..steps).for_each(|_| step());
        device.synchronize().unwrap();
        let after = device.stats();
        assert_eq!(after.allocations, before.allocations);
        assert_eq!(after.system_allocations, before.system_allocations);
        assert_eq!((after.live_bytes, after.peak_bytes), (before.live_bytes, before.peak_bytes));
        assert_eq!(after.pooled_bytes, before.pooled_bytes);
        assert_eq!(after.uploads + after.downloads, before.uploads + before.downloads);
    }
}
