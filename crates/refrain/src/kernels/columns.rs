//! Columns on CUDA: how a block takes some of them from beginning to end, as often as it has to.

use crate::device::cuda::{Grid, params};
use crate::kernels::reduction::Extent;

/// The functions over columns, which come before those of an operation.
pub(crate) const COLUMNS: &str = include_str!("columns.cu");

const THREADS: usize = 256;

/// Blocks for all columns.
pub(crate) fn grid(extent: Extent) -> Grid {
    let Extent { outer, inner, .. } = extent;
    Grid::line(outer * inner.div_ceil(1 << shift(extent)), THREADS as u32)
}

params! {
    /// Where columns lie.
    pub(crate) struct ColumnsAt {
        n: i64,
        inner: i64,
        /// The logarithm of how many columns a block takes.
        shift: i64,
    }
}

impl ColumnsAt {
    pub(crate) fn new(extent: Extent) -> ColumnsAt {
        ColumnsAt { n: extent.n as i64, inner: extent.inner as i64, shift: shift(extent).into() }
    }
}

/// The logarithm of how many columns a block takes.
fn shift(extent: Extent) -> u32 {
    extent.inner.next_power_of_two().min(32).trailing_zeros()
}
