//! Columns on CUDA: how blocks process whole columns.

use crate::device::cuda::{Grid, params};
use crate::kernels::reduction::Extent;

/// The CUDA functions over columns. They come before the source of an operation.
pub(crate) const COLUMNS: &str = include_str!("columns.cu");

const THREADS: usize = 256;

/// The grid for all columns.
pub(crate) fn grid(extent: Extent) -> Grid {
    let Extent { outer, inner, .. } = extent;
    Grid::line(outer * inner.div_ceil(1 << shift(extent)), THREADS as u32)
}

params! {
    /// Where columns lie.
    pub(crate) struct ColumnsAt {
        n: i64,
        inner: i64,
        /// The logarithm of the number of columns per block.
        shift: i64,
    }
}

impl ColumnsAt {
    pub(crate) fn new(extent: Extent) -> ColumnsAt {
        ColumnsAt { n: extent.n as i64, inner: extent.inner as i64, shift: shift(extent).into() }
    }
}

/// The logarithm of the number of columns per block.
fn shift(extent: Extent) -> u32 {
    extent.inner.next_power_of_two().min(32).trailing_zeros()
}
