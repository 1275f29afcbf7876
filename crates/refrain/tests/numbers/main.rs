//! Numbers at the edges of their types: ties, numbers of the host beside tensors, results whose parts overflow, large
//! scores, NaN beside what does not depend on it. On the CPU, both simulated GPUs, and the GPU that there is.

#[path = "../common/mod.rs"]
mod common;

mod derivatives;
mod norms;
mod rounding;
mod scalars;
mod scores;

use refrain::{DType, Device, Tensor};

/// A leaf, and so the gradients of what is computed of it, in `dtype`.
fn leaf(values: &[f64], shape: impl Into<refrain::Shape>, dtype: DType, device: &Device) -> Tensor {
    let t = common::tensor(values, shape, dtype, device);
    t.set_requires_grad(true).unwrap();
    t
}

/// The distance from 1 to the next number.
fn epsilon(dtype: DType) -> f64 {
    dtype.epsilon().unwrap()
}

/// Numbers from -1 to 1 without a pattern, with all the digits that f64 has.
fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
