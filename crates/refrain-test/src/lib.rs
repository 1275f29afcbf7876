//! What the tests of all crates share: the devices that they run on, free ports, tensors of any dtype, and comparisons.
//!
//! The unit tests of `refrain` can't use this crate: for them, its tensors are of another crate. They include
//! `devices.rs` and `sanitizer.rs`.

mod devices;
mod ports;
mod sanitizer;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use devices::{Devices, device, devices};
pub use ports::free_port;
use refrain::{DType, Device, DeviceKind, Profile, Shape, Simulator, Tensor, bf16, f16};
pub use sanitizer::{gradcheck, sanitized, shortened};

/// Lets the tests of a program run one at a time: those that read a device's counters, and those beside one with an index out of
/// range, which a GPU reports to the next call on it.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether every step records before each call (`REFRAIN_STRICT=1`): then tests that count recordings get other
/// counts.
pub fn strict() -> bool {
    std::env::var("REFRAIN_STRICT").is_ok_and(|v| v == "1")
}

/// The devices with kernels of their own: not the simulated ones, unless requested.
pub fn kernels() -> Vec<Device> {
    let asked = std::env::var("REFRAIN_TEST_DEVICE").is_ok();
    devices().filter(|d| asked || d.kind() != DeviceKind::Sim).collect()
}

/// Simulated GPUs, as many as `REFRAIN_SIM_SEEDS` says, or a few.
pub fn simulators() -> impl Iterator<Item = Device> {
    let seeds = std::env::var("REFRAIN_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    (0..seeds).map(|seed: u64| {
        let profile = if seed.is_multiple_of(2) { Profile::Discrete } else { Profile::Unified };
        Simulator::new(profile).seed(seed).device()
    })
}

/// The CPU and both simulated GPUs, which give the same bits, for tests that compare bits between devices.
/// `REFRAIN_TEST_DEVICE` restricts the tests to one device.
pub fn devices_of_equal_bits() -> Vec<Device> {
    match std::env::var_os("REFRAIN_TEST_DEVICE") {
        Some(_) => vec![device()],
        None => ["cpu", "sim", "sim:unified"].map(|name| name.parse().unwrap()).into(),
    }
}

/// The four dtypes that arithmetic is defined for.
pub const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

/// A tensor of any dtype from f64 values (exact where the dtype can hold them).
pub fn tensor(values: &[f64], shape: impl Into<Shape>, dtype: DType, device: &Device) -> Tensor {
    let shape = shape.into();
    match dtype {
        DType::F64 => Tensor::from_slice(values, shape, device),
        DType::F32 => Tensor::from_slice(&map(values, |v| v as f32), shape, device),
        DType::F16 => Tensor::from_slice(&map(values, f16::from_f64), shape, device),
        DType::BF16 => Tensor::from_slice(&map(values, bf16::from_f64), shape, device),
        DType::I64 => Tensor::from_slice(&map(values, |v| v as i64), shape, device),
        DType::I32 => Tensor::from_slice(&map(values, |v| v as i32), shape, device),
        DType::U8 => Tensor::from_slice(&map(values, |v| v as u8), shape, device),
        DType::Bool => Tensor::from_slice(&map(values, |v| v != 0.0), shape, device),
    }
    .unwrap()
}

/// The values of a tensor of any dtype.
pub fn values(t: &Tensor) -> Vec<f64> {
    match t.dtype() {
        DType::F64 => t.to_vec::<f64>().unwrap(),
        DType::F32 => map(&t.to_vec::<f32>().unwrap(), f64::from),
        DType::F16 => map(&t.to_vec::<f16>().unwrap(), f64::from),
        DType::BF16 => map(&t.to_vec::<bf16>().unwrap(), f64::from),
        DType::I64 => map(&t.to_vec::<i64>().unwrap(), |v| v as f64),
        DType::I32 => map(&t.to_vec::<i32>().unwrap(), f64::from),
        DType::U8 => map(&t.to_vec::<u8>().unwrap(), f64::from),
        DType::Bool => map(&t.to_vec::<bool>().unwrap(), |v| v as u8 as f64),
    }
}

fn map<A: Copy, B>(values: &[A], f: impl Fn(A) -> B) -> Vec<B> {
    values.iter().map(|&v| f(v)).collect()
}

/// All elements within `bound` of the expected ones, relative to the largest of these.
#[track_caller]
pub fn assert_close(actual: &Tensor, expected: &[f64], bound: f64, what: &str) {
    let scale = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    assert_within(actual, expected, bound * scale, what);
}

/// All elements within `bound` of the expected ones.
#[track_caller]
pub fn assert_within(actual: &Tensor, expected: &[f64], bound: f64, what: &str) {
    let actual = values(actual);
    assert_eq!(actual.len(), expected.len(), "{what}: other number of elements");
    for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
        assert!((a - e).abs() <= bound, "{what}, element {i}: {a}, expected {e} within {bound}");
    }
}
