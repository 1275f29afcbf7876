//! Matrix products on CUDA.

use smallvec::SmallVec;

use super::kernel::Spec;

/// One product, or a batch of them.
#[derive(Clone, Debug)]
pub(crate) struct Product {}

impl Product {
    /// Our own kernels that it may run by.
    pub(super) fn kernels(&self) -> SmallVec<[Spec; 1]> {
        SmallVec::new()
    }
}
