//! Vector instructions, chosen at run time: a binary built on one machine runs well on another.

use std::sync::OnceLock;

/// Runs a closure compiled for the best instruction set of this processor.
///
/// What is inlined into the closure is compiled once for each instruction set and vectorised by the
/// compiler; a call that is not inlined is not. So loops go inside, and their helpers are
/// `#[inline(always)]`.
#[inline(always)]
pub(crate) fn simd<R>(f: impl FnOnce() -> R) -> R {
    static ARCH: OnceLock<pulp::Arch> = OnceLock::new();
    ARCH.get_or_init(pulp::Arch::new).dispatch(f)
}
