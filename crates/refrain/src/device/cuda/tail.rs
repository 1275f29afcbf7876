//! Elementwise kernels behind another one, in the same kernel: its tail.

use std::fmt::Debug;
use std::sync::Arc;

use super::args::CudaArgs;
use super::params::{Pointer, params};
use crate::error::Result;

/// Operands and results of a tail at most.
pub(crate) const MAX_OPERANDS: usize = 12;
/// Scalars of a tail at most.
pub(crate) const MAX_SCALARS: usize = 12;
/// Sequences of random words at most.
pub(crate) const MAX_DRAWS: usize = 2;

params! {
    /// What a tail is told.
    pub(crate) struct TailArgs {
        /// 0, which the compiler does not know.
        zero: u64,
        operands: [Pointer; MAX_OPERANDS],
        s: [f64; MAX_SCALARS],
        states: [Pointer; MAX_DRAWS],
        offsets: [u64; MAX_DRAWS],
    }
}

impl TailArgs {
    /// Of a kernel without a tail.
    pub(crate) const NONE: TailArgs = TailArgs {
        zero: 0,
        operands: [Pointer::NOTHING; MAX_OPERANDS],
        s: [0.0; MAX_SCALARS],
        states: [Pointer::NOTHING; MAX_DRAWS],
        offsets: [0; MAX_DRAWS],
    };
}

/// A tail, for a kernel that calls it.
pub(crate) trait Following {
    /// The text that defines what the kernel calls. It comes before the kernel's own.
    fn text(&self) -> Arc<str>;

    fn args(&self, args: &CudaArgs<'_>) -> TailArgs;

    /// Whether so many adjacent elements of all its operands and results can be loaded and stored at once, if a row has a
    /// multiple of them.
    fn is_aligned(&self, args: &CudaArgs<'_>, elements: usize) -> bool;
}

/// A launch that is no product, whose last kernel computes its first result element by element and takes a tail.
pub(crate) trait Elements: Debug + Send + Sync {
    /// Elements of a row of the result. A tail can read one row for all rows.
    fn row(&self) -> usize;

    /// The same with other operands, as of [`Pointer::moved`]. The first result is [`Pointer::NOTHING`] if only the tail
    /// reads it.
    fn moved(&self, reads: &[Pointer], writes: &[Pointer]) -> Option<Box<dyn Elements>>;

    /// Bytes of the workspace.
    fn workspace(&self) -> usize;

    fn run(&self, args: &mut CudaArgs<'_>, tail: Option<&dyn Following>) -> Result<()>;

    fn boxed(&self) -> Box<dyn Elements>;
}

impl Clone for Box<dyn Elements> {
    fn clone(&self) -> Box<dyn Elements> {
        self.boxed()
    }
}
