//! NVIDIA GPUs.

mod args;
mod cache;
mod gemm;
mod kernel;
pub(in crate::device) mod listing;

pub(crate) use args::CudaArgs;
pub(crate) use kernel::{Grid, Params, Source, Spec};
