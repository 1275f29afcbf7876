//! Matrix products on CUDA.

use smallvec::SmallVec;

use super::context::CudaDevice;
use super::kernel::{Grid, Params, Spec};
use crate::error::Result;

/// One product, or a batch of them.
#[derive(Clone, Debug)]
pub(crate) struct Product {}

impl Product {
    /// Our own kernels that it may run by.
    pub(super) fn kernels(&self) -> SmallVec<[Spec; 1]> {
        SmallVec::new()
    }

    pub(super) fn own_workspace(&self, _multiprocessors: usize) -> usize {
        0
    }

    pub(super) fn run_own(
        &self,
        _workspace: (u64, usize),
        _multiprocessors: usize,
        _launch: &mut dyn FnMut(Spec, Grid, &Params) -> Result<()>,
    ) -> Result<()> {
        Ok(())
    }
}

pub(super) struct Library {}

impl Library {
    pub(super) fn open(_: &CudaDevice) -> Option<Library> {
        None
    }
    pub(super) fn run(
        &self,
        _: cudarc::driver::sys::CUstream,
        _: &Product,
        _: (u64, usize),
    ) -> std::result::Result<bool, String> {
        Ok(false)
    }
    pub(super) fn workspace(&self, _: &Product) -> Option<usize> {
        None
    }
}

pub(super) fn library_version() -> std::result::Result<String, String> {
    Err("not looked for".into())
}
