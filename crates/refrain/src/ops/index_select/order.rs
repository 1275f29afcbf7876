//! The order of an index: for each place, the entries that name it. What adds slices needs it, and nothing of the slices.

use super::{cuda, host};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::positions::{check_places, require_positions, with_positions};
use crate::ops::{Op, Spec, Specs, apply_once};
use crate::tensor::{DType, Tensor};

/// Operand: `index`, of places along `axis` of size `size`. Results, both i32: `entries`, and for each place where its entries end. Those
/// of place `i` are `entries[ends[i - 1]..ends[i]]`, in the order of the index. Entries out of range come last.
#[derive(Clone, Debug)]
struct IndexOrder {
    name: &'static str,
    axis: usize,
    size: usize,
}

impl Op for IndexOrder {
    const NAME: &'static str = "index_order";

    fn name(&self) -> &'static str {
        self.name
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        require_positions(self.name, "index", x[0])?;
        check_places(self.name, x[0].shape(), self.size, || format!("axis {} of size 0", self.axis))?;
        let count = x[0].numel();
        if i32::try_from(count).is_err() {
            let message = format!(
                "the index has {count} elements; there may be at most {} (split the tensors)",
                i32::MAX
            );
            return Err(Error::invalid(self.name, message));
        }
        Ok([count, self.size].map(|n| Spec::new([n], DType::I32)).into_iter().collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 0, index => host::order(self.axis, self.size, index, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::order(self.size, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        cuda::workspace(self.size, launch)
    }
}

/// The entries of an index for each place along an axis, and where those of each end. A recorded step computes them once for all that
/// add by this index.
pub(super) fn order(name: &'static str, index: &Tensor, axis: usize, size: usize) -> Result<[Tensor; 2]> {
    let results =
        apply_once(IndexOrder { name, axis, size }, format!("the order of {size} places"), index)?.into_vec();
    results.try_into().map_err(|_| Error::internal(name, "an order that is not two tensors"))
}
