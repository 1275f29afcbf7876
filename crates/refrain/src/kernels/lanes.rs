//! Rows in registers on CUDA: how a short row is divided over the lanes of a warp.

use crate::device::cuda::{Grid, KernelSpec};
use crate::tensor::DType;

/// The CUDA functions over such rows. They come before the source of an operation.
pub(crate) const ROWS: &str = include_str!("lanes.cu");

/// Threads of a block.
pub(crate) const THREADS: usize = 256;
/// The widest row.
const MAX_WIDTH: usize = 1024;

/// How many lanes hold how many vectors of how many elements of a row.
#[derive(Clone, Copy)]
pub(crate) struct Lanes {
    pub(crate) vec: usize,
    pub(crate) lanes: usize,
    pub(crate) each: usize,
}

impl Lanes {
    /// For rows of `width` elements of `size` bytes. `None` if they do not fit into registers.
    pub(crate) fn of(width: usize, size: usize) -> Option<Lanes> {
        if width > MAX_WIDTH {
            return None;
        }
        let mut vec = 16 / size;
        while !width.is_multiple_of(vec) {
            vec /= 2;
        }
        let vectors = (width / vec).max(1);
        let lanes = vectors.next_power_of_two().min(32);
        Some(Lanes { vec, lanes, each: vectors.div_ceil(lanes).next_power_of_two() })
    }

    /// Elements per lane.
    pub(crate) fn held(self) -> usize {
        self.vec * self.each
    }

    /// Rows that a block processes at a time.
    pub(crate) fn rows_a_block(self) -> usize {
        THREADS / self.lanes
    }

    /// The constants, for operands of these alignments and dtypes.
    pub(crate) fn constants(
        self,
        spec: KernelSpec,
        operands: impl IntoIterator<Item = (usize, DType)>,
    ) -> KernelSpec {
        let whole = |(alignment, dtype): (usize, DType)| alignment.is_multiple_of(self.vec * dtype.size());
        let aligned = operands.into_iter().all(whole);
        spec.int("LANES", self.lanes as i64)
            .int("EACH", self.each as i64)
            .int("VEC", self.vec as i64)
            .flag("ALIGNED", aligned)
    }

    /// The grid for `rows` rows, each processed once.
    pub(crate) fn grid(self, rows: usize) -> Grid {
        Grid::line(rows.div_ceil(self.rows_a_block()), THREADS as u32)
    }
}
