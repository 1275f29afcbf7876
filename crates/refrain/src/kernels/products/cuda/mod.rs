//! Matrix products on CUDA: by the vendor's library where it is here and a product suits it, else by kernels
//! of our own.
//!
//! Which of them runs, and with which tiles, is a function of the product's sizes, strides, dtypes, precision,
//! of the GPU's compute capability and of the library's version, never of timing: results are bitwise repeatable.

mod choice;
mod plan;
mod shared;

pub(crate) use plan::{run, sums_beside, workspace};
