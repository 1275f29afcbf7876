//! A norm of rows, as kernels ask a GPU for it.

use super::params::Pointer;
use super::product::FlatOperand;
use crate::types::DType;

/// Layer norm, or root-mean-square norm, of contiguous rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowNorm {
    /// Whether the mean is subtracted and a bias added.
    pub(crate) centred: bool,
    pub(crate) eps: f64,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// Nothing for rows that a block has in shared memory.
    pub(crate) x: FlatOperand,
    /// `width` numbers.
    pub(crate) weight: FlatOperand,
    /// The weight where there is no bias.
    pub(crate) bias: FlatOperand,
    /// Of the dtype of x. Results that nobody needs are [`Pointer::NOTHING`].
    pub(crate) y: FlatOperand,
    /// 1/std or 1/rms of each row.
    pub(crate) inv: Pointer,
    /// The mean of each row, if it is subtracted.
    pub(crate) mean: Pointer,
}

impl RowNorm {
    /// The dtype of the rows.
    pub(crate) fn dtype(&self) -> DType {
        self.x.dtype
    }

    /// The same norm in another launch, as of [`Pointer::moved`].
    pub(crate) fn moved(&self, reads: &[Pointer], writes: &[Pointer]) -> Option<RowNorm> {
        let pointer = |pointer: Pointer| pointer.moved(reads, writes);
        let flat = |x: FlatOperand| Some(FlatOperand { pointer: pointer(x.pointer)?, ..x });
        Some(RowNorm {
            x: flat(self.x)?,
            weight: flat(self.weight)?,
            bias: flat(self.bias)?,
            y: flat(self.y)?,
            inv: pointer(self.inv)?,
            mean: pointer(self.mean)?,
            ..*self
        })
    }
}
