//! NVIDIA GPUs, through NVIDIA's driver, its run-time compiler and, if installed, cuBLASLt. All are loaded at run
//! time: the engine builds without them and runs without a GPU.

mod args;
mod cache;
mod compile;
mod context;
pub(crate) mod cublaslt;
mod driver;
mod faults;
mod graph;
mod guard;
mod head;
mod kernel;
mod kernels;
mod library;
pub(in crate::device) mod listing;
mod memory;
mod nccl;
mod norm;
mod overlap;
mod params;
mod piece;
mod priority;
mod product;
mod tail;
#[cfg(test)]
mod tests;
mod timed;
mod workers;

pub(crate) use args::{CudaArgs, Gpu, View};
pub use compile::compile_kernel;
pub use context::CudaDevice;
pub(in crate::device) use driver::Cuda;
pub(crate) use faults::{Bounds, Reporter};
pub(crate) use head::{
    ChainArgs, HEAD_AXES, Lead, Leading, MAX_CHAIN_SCALARS, MAX_PICKS, MAX_VALUES, MAX_WALKED, Summing,
};
pub(crate) use kernel::{Grid, KernelSpec, MMA, Source, WGMMA, define, undefine};
pub(crate) use nccl::{Nccl, unique_id};
pub(crate) use norm::RowNorm;
pub(crate) use params::{Declarations, Field, Member, Pointer, Put, Words, padded, params, with_rank};
pub(crate) use piece::{Pick, Piece, RandomWords, Work, work};
pub(crate) use product::{FlatOperand, MatrixOperand, MmaKind, Product};
pub(crate) use tail::{Elements, Following, MAX_DRAWS, MAX_OPERANDS, MAX_SCALARS, TailArgs};
pub(crate) use workers::Hired;

/// What this machine has of NVIDIA's software and hardware. Each missing part says what to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CudaReport {
    /// The version of the driver: the newest CUDA version that it supports, major and minor.
    pub driver: std::result::Result<(i32, i32), String>,
    /// The version of NVRTC, which compiles the kernels.
    pub nvrtc: std::result::Result<(i32, i32), String>,
    /// The version of cuBLASLt. Without it, matrix products use the engine's own kernels.
    pub cublaslt: std::result::Result<String, String>,
    /// The version of NCCL. Without it, a GPU can't exchange values with other ones.
    pub nccl: std::result::Result<String, String>,
    /// The GPUs that the driver sees.
    pub devices: Vec<CudaDevice>,
}

impl CudaReport {
    /// Examines this machine.
    pub fn new() -> CudaReport {
        let devices = context::count()
            .map_or_else(|_| Vec::new(), |n| (0..n).filter_map(|i| context::info(i).ok()).collect());
        CudaReport {
            driver: context::driver_version(),
            nvrtc: compile::version(),
            cublaslt: cublaslt::library_version(),
            nccl: nccl::version(),
            devices,
        }
    }
}

impl Default for CudaReport {
    fn default() -> CudaReport {
        CudaReport::new()
    }
}
