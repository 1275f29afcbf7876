//! Device memory: what is too much is a typed error, and a steady step takes nothing.

mod common;

use common::{counting, devices, turn, values};
use refrain::{DType, DeviceKind, Error, Tensor};

#[test]
fn too_much_memory_is_a_typed_error_and_the_device_stays_of_use() {
    let _turn = turn();
    for device in devices() {
        let kept = counting(1000, &device);
        // More than any address space holds. Pooled memory is given back before the last try.
        drop(Tensor::zeros([64 << 20], DType::F32, &device).unwrap());
        match Tensor::zeros([1 << 46], DType::F32, &device) {
            Err(Error::OutOfMemory { device: name, requested, live, free, .. }) => {
                assert_eq!(name, device.name());
                assert_eq!(requested, 4 << 46);
                assert!(live >= 4000);
                assert_eq!(free.is_some(), device.kind() == DeviceKind::Cuda);
            }
            other => panic!("{other:?}"),
        }
        assert!(device.stats().pooled_bytes < 256 << 20);
        assert_eq!(values(&kept.add(&kept).unwrap())[999], 1998.0);
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
        (0..10_000).for_each(|_| step());
        device.synchronize().unwrap();
        let after = device.stats();
        assert_eq!(after.allocations, before.allocations);
        assert_eq!(after.system_allocations, before.system_allocations);
        assert_eq!((after.live_bytes, after.peak_bytes), (before.live_bytes, before.peak_bytes));
        assert_eq!(after.pooled_bytes, before.pooled_bytes);
        assert_eq!(after.uploads + after.downloads, before.uploads + before.downloads);
    }
}
