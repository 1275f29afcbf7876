//! Elementwise kernels before another one, in the same kernel: its head.

use std::fmt::Debug;
use std::sync::Arc;

use super::args::CudaArgs;
use super::faults::Reporter;
use super::kernel::KernelSpec;
use super::params::{Pointer, params};
use super::tail::MAX_DRAWS;
use crate::error::Result;

/// Operands of elementwise kernels that share a loop at most, with what stays in registers.
pub(crate) const MAX_VALUES: usize = 16;
/// Scalars of all of them together at most.
pub(crate) const MAX_CHAIN_SCALARS: usize = 16;
/// Values at most that are picked by an index.
pub(crate) const MAX_PICKS: usize = 2;
/// What a loop computes offsets of: operands in memory, and positions of random words and of picked elements.
pub(crate) const MAX_WALKED: usize = MAX_VALUES + MAX_DRAWS + MAX_PICKS;
/// Axes of a head at most that do not follow each other in memory.
pub(crate) const HEAD_AXES: usize = 4;

params! {
    /// What elementwise kernels that share a loop are told.
    pub(crate) struct ChainArgs<const RANK: usize> {
        /// 0, which the compiler does not know.
        zero: u64,
        operands: [Pointer; MAX_VALUES],
        s: [f64; MAX_CHAIN_SCALARS],
        states: [Pointer; MAX_DRAWS],
        offsets: [u64; MAX_DRAWS],
        tables: [Pointer; MAX_PICKS],
        indices: [Pointer; MAX_PICKS],
        /// Entries of the index, slices of the table and elements of a slice.
        picked: [[i64; 3]; MAX_PICKS],
        reporters: [Reporter; MAX_PICKS],
        shape: [i64; RANK],
        strides: [[i64; RANK]; MAX_WALKED],
    }
}

/// A head for one launch.
pub(crate) struct Lead {
    /// The text that defines `element` and `report_all`, behind the kernel's own.
    pub(crate) text: Arc<str>,
    /// How many adjacent elements can be computed at once.
    pub(crate) vec: usize,
    /// Bit `k`: operand `k` is loaded so many elements at a time.
    pub(crate) dense: i64,
    /// Whether offsets need 64 bits.
    pub(crate) wide: bool,
    /// Axes that the elements have, and the first entries of the lists in `args`.
    pub(crate) axes: usize,
    pub(crate) args: ChainArgs<HEAD_AXES>,
}

impl Lead {
    /// Adds the constants and the text of the head to a kernel.
    pub(crate) fn constants(&self, spec: KernelSpec) -> KernelSpec {
        spec.int("RANK", self.axes as i64)
            .int("DENSE", self.dense)
            .word("INDEX", if self.wide { "u64" } else { "u32" })
            .generated(self.text.clone())
    }
}

/// A head, for a kernel that calls it.
pub(crate) trait Leading {
    /// For a kernel that asks for adjacent elements of one row only. A row has `row` elements.
    fn lead(&self, args: &CudaArgs<'_>, row: usize) -> Result<Lead>;
}

/// A launch that adds up the elements of an operand, each at most once, and can compute them by a head instead.
pub(crate) trait Summing: Debug + Send + Sync {
    /// The number of that operand, which is contiguous.
    fn source(&self) -> usize;

    /// Whether it computes every element, so that a head may also store what it computes.
    fn visits_all(&self) -> bool;

    /// Bytes of the workspace.
    fn workspace(&self) -> usize;

    /// The same with other operands, as of [`Pointer::moved`]. The one that a head computes is [`Pointer::NOTHING`].
    fn moved(&self, reads: &[Pointer], writes: &[Pointer]) -> Option<Box<dyn Summing>>;

    fn run(&self, args: &mut CudaArgs<'_>, head: Option<&dyn Leading>) -> Result<()>;

    fn boxed(&self) -> Box<dyn Summing>;
}

impl Clone for Box<dyn Summing> {
    fn clone(&self) -> Box<dyn Summing> {
        self.boxed()
    }
}
