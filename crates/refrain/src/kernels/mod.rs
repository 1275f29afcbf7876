//! What several operations build their kernels from: host and CUDA side by side.

pub(crate) mod activations;
pub(crate) mod blocks;
pub(crate) mod columns;
pub(crate) mod elementwise;
pub(crate) mod lanes;
pub(crate) mod norm;
pub(crate) mod numbers;
pub(crate) mod positions;
pub(crate) mod products;
pub(crate) mod recurrent;
pub(crate) mod reduction;
pub(crate) mod rows;
pub(crate) mod sort;
pub(crate) mod sums;
pub(crate) mod units;
pub(crate) mod window;
