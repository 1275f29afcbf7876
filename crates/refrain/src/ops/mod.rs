//! Operations: one folder (or one file while it is small) each, with its checks, kernels and gradient.
//!
//! An operation is a struct that implements [`Op`] (`operation/` says what that is and runs it). To add one, add its
//! folder, a line here and a public method.

pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod binary;
mod channels_last;
pub(crate) mod checksum;
pub(crate) mod collective;
mod composed;
pub(crate) mod concat;
pub(crate) mod conv;
pub(crate) mod copy;
mod create;
pub(crate) mod dropout;
mod einsum;
pub(crate) mod fft;
pub(crate) mod fill;
pub(crate) mod flip;
pub(crate) mod fold;
pub(crate) mod gather;
pub(crate) mod gru;
pub(crate) mod hadamard;
mod host;
pub(crate) mod index;
pub(crate) mod index_select;
pub(crate) mod interpolate;
pub(crate) mod l2_normalize;
pub(crate) mod layer_norm;
pub(crate) mod linalg;
pub(crate) mod linear;
pub(crate) mod logsumexp;
pub(crate) mod loss;
pub(crate) mod lstm;
pub(crate) mod matmul;
pub(crate) mod one_hot;
mod operators;
pub mod optim;
pub(crate) mod pad;
pub(crate) mod pool;
pub(crate) mod qk_norm;
mod quantile;
pub(crate) mod random;
mod recurrent;
pub(crate) mod reduce;
pub(crate) mod repeat;
pub(crate) mod scan;
pub(crate) mod softmax;
#[cfg(test)]
#[path = "../../tests/contributing/softsign/mod.rs"]
mod softsign; // The example of CONTRIBUTING.
#[cfg(test)]
#[path = "../../tests/contributing/softsign/tests.rs"]
mod softsign_tests;
pub(crate) mod sort;
#[cfg(test)]
#[allow(dead_code, unused_imports)] // Unit tests use a part of it.
#[path = "../../tests/ops/testing.rs"]
pub(crate) mod testing;
pub(crate) mod tril;
pub(crate) mod unary;
mod views;
pub(crate) mod where_cond;
pub(crate) mod windows;

// For operations, which take it from `super`.
pub(crate) use crate::operation::{
    Dest, Needs, OnTape, Op, Spec, Specs, accumulate_into, apply, apply_all, apply_all_on, apply_into,
    apply_into_on, apply_on, apply_once, execute, runs_on_host, spans_apart, two,
};
pub(crate) use crate::tensor::{check_devices, check_dtypes};
