//! Shared by the test programs.
#![allow(dead_code, unused_imports)] // Each program uses a part of it.

pub mod ranks;
pub mod training;

use std::path::PathBuf;

use refrain::{DType, Device, Error, Result, Step, Tensor};
pub use refrain_test::{
    FLOATS, devices, gradcheck, kernels, sanitized, shortened, simulators, strict, tensor, turn, values,
};

/// The crate's folder, found when the test runs, since programs are also copied to other machines.
pub fn folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
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
