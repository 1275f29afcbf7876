//! Helpers for the tests of operations.

#[path = "../../../refrain-test/src/devices.rs"]
mod list;
#[path = "../../../refrain-test/src/sanitizer.rs"]
mod sanitizer;

pub(crate) use list::devices;
pub(crate) use sanitizer::{gradcheck, sanitized, shortened};

use crate::{DType, Device, DeviceKind, Error, Result, Tensor};

/// The same devices, with handles that no other test uses, because an error of a kernel is reported only once.
pub(crate) fn own_devices() -> impl Iterator<Item = Device> {
    devices().map(|device| device.separate())
}

/// The error of an operation on such a device. On the CPU the call returns it, on a GPU the next wait.
#[track_caller]
pub(crate) fn error_of<T>(device: &Device, result: Result<T>) -> Error {
    let error = match device.kind() {
        DeviceKind::Cpu => result.map(drop).expect_err("an error of the call"),
        _ => result.and_then(|_| device.synchronize()).expect_err("an error of the call or the wait"),
    };
    device.synchronize().expect("an error is told once");
    error
}

/// Checks sums. Those of the CPU equal `in_order`; those of a GPU have another order, but always the same one.
#[track_caller]
pub(crate) fn assert_sums(
    sums: impl Fn() -> Vec<f32>,
    in_order: &[f32],
    exact: &[f64],
    tolerance: f64,
    device: &Device,
) {
    let first = sums();
    if device.kind() != DeviceKind::Cuda {
        assert_eq!(first, in_order);
    }
    let wide: Vec<f64> = first.iter().map(|&s| f64::from(s)).collect();
    assert_close(&wide, exact, tolerance);
    let bits = |sums: Vec<f32>| sums.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(sums()), bits(first), "two runs differ");
}

/// Numbers from -1 to 2.4 without a pattern.
pub(crate) fn numbers(n: usize) -> Vec<f64> {
    (0..n).map(|i| (i as f64 * 0.618_033_988_75 + 0.1).fract() * 3.0 - 1.0 + (i % 5) as f64 * 0.1).collect()
}

/// The same numbers as an f64 tensor that requires a gradient.
pub(crate) fn leaf(shape: &[usize], device: &Device) -> Tensor {
    let t = Tensor::from_slice(&numbers(shape.iter().product()), shape, device).unwrap();
    t.set_requires_grad(true).unwrap();
    t
}

/// The values of a float tensor of any dtype.
pub(crate) fn values(t: &Tensor) -> Vec<f64> {
    t.detach().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Checks that each pair differs by at most `tolerance`. NaN is close only to NaN.
#[track_caller]
pub(crate) fn assert_close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        let close = a == b || (a - b).abs() <= tolerance || a.is_nan() && b.is_nan();
        assert!(close, "element {i}: {a} and {b}");
    }
}
