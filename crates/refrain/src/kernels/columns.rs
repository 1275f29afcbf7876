//! Columns on CUDA: how a block takes some of them from beginning to end, as often as it has to.

use crate::device::cuda::{Grid, Params};
use crate::kernels::reduction::Extent;

/// The functions over columns, which come before those of an operation.
pub(crate) const COLUMNS: &str = include_str!("columns.cu");

const THREADS: usize = 256;

/// Blocks for all columns.
pub(crate) fn grid(extent: Extent) -> Grid {
    let Extent { outer, inner, .. } = extent;
    Grid::line(outer * inner.div_ceil(1 << shift(extent)), THREADS as u32)
}

/// The arguments that say where columns lie, which come after the others.
pub(crate) fn params(params: Params, extent: Extent) -> Params {
    params.size(extent.n).size(extent.inner).i32(shift(extent) as i32)
}

/// The logarithm of how many columns a block takes.
fn shift(extent: Extent) -> u32 {
    extent.inner.next_power_of_two().min(32).trailing_zeros()
}
