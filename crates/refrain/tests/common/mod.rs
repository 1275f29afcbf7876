//! Shared by the test programs.
#![allow(dead_code)] // Each program uses a part of it.

pub mod training;

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use refrain::{DType, Device, DeviceKind, Error, Profile, Result, Shape, Simulator, Step, Tensor, bf16, f16};

/// The devices of this machine, and both simulated ones (`REFRAIN_SIM_SEED` is their seed): every test runs on each
/// of them. `REFRAIN_TEST_DEVICE` restricts the tests to one device. With `REFRAIN_REQUIRE_CUDA=1` a missing GPU is a
/// failure.
pub fn devices() -> Vec<Device> {
    if let Ok(name) = std::env::var("REFRAIN_TEST_DEVICE") {
        return vec![name.parse().unwrap()];
    }
    let cuda = Device::cuda(0);
    if std::env::var("REFRAIN_REQUIRE_CUDA").is_ok_and(|v| v == "1")
        && let Err(e) = &cuda
    {
        panic!("REFRAIN_REQUIRE_CUDA=1, but {e}");
    }
    let simulated = ["sim", "sim:unified"].map(|name| name.parse().unwrap());
    std::iter::once(Device::cpu()).chain(simulated).chain(cuda).collect()
}

/// Whether NVIDIA's sanitizer runs the test (`REFRAIN_SANITIZER=1`), which makes it about a hundred times slower.
pub fn sanitized() -> bool {
    std::env::var("REFRAIN_SANITIZER").is_ok_and(|v| v == "1")
}

/// Whether every step records before each call (`REFRAIN_STRICT=1`): then tests that count recordings get other
/// counts.
pub fn strict() -> bool {
    std::env::var("REFRAIN_STRICT").is_ok_and(|v| v == "1")
}

/// The devices with kernels of their own: not the simulated ones, unless requested.
pub fn kernels() -> Vec<Device> {
    let asked = std::env::var("REFRAIN_TEST_DEVICE").is_ok();
    devices().into_iter().filter(|d| asked || d.kind() != DeviceKind::Sim).collect()
}

/// Simulated GPUs, as many as `REFRAIN_SIM_SEEDS` says, or a few.
pub fn simulators() -> impl Iterator<Item = Device> {
    let seeds = std::env::var("REFRAIN_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    (0..seeds).map(|seed: u64| {
        let profile = if seed.is_multiple_of(2) { Profile::Discrete } else { Profile::Unified };
        Simulator::new(profile).seed(seed).device()
    })
}

/// The crate's folder, found when the test runs, since programs are also copied to other machines.
pub fn folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
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

/// Lets tests that read a device's counters run one at a time.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn vector(values: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(values, [values.len()], device).unwrap()
}

/// A vector that requires a gradient.
pub fn leaf(values: &[f32], device: &Device) -> Tensor {
    let t = vector(values, device);
    t.set_requires_grad(true).unwrap();
    t
}

/// `0, 1, ..` in f32.
pub fn counting(n: usize, device: &Device) -> Tensor {
    Tensor::arange(0.0, n as f64, 1.0, DType::F32, device).unwrap()
}

/// The message of an invalid argument.
pub fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("no error"),
        Err(e) => {
            assert!(matches!(e, Error::InvalidArgument { .. }), "{e:?}");
            e.to_string()
        }
    }
}

/// The error of a call that must fail.
pub fn failure(step: &mut Step<'_>, inputs: &[Tensor]) -> Error {
    match step.call(inputs) {
        Ok(_) => panic!("the call went through"),
        Err(e) => e,
    }
}

/// The device still computes, and records and replays a step.
pub fn assert_usable(device: &Device) {
    let x = vector(&[1.0, 2.0], device);
    assert_eq!(x.add(&x).unwrap().to_vec::<f32>().unwrap(), [2.0, 4.0]);
    let mut step = Step::new(device, |x| Ok(vec![x[0].mul_scalar(3.0)?]));
    assert_eq!(step.call(&[x]).unwrap().to_vec::<f32>(0).unwrap(), [3.0, 6.0]);
}
