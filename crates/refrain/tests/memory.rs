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
                // Linux says what the host has left, which simulated GPUs take their memory from.
                let tells = device.kind() == DeviceKind::Cuda || cfg!(target_os = "linux");
                assert_eq!(free.is_some(), tells);
            }
            other => panic!("{other:?}"),
        }
        assert!(device.stats().pooled_bytes < 256 << 20);
        assert_eq!(values(&kept.add(&kept).unwrap())[999], 1998.0);
    }
}
