//! Whether operations are put on the tape.

use std::cell::Cell;

#[cfg(shuttle)]
use crate::sync::keys::*;
use crate::sync::{thread_local, with_flag};

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Whether this thread puts operations on the tape for a backward pass.
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// Runs `f` on this thread without putting operations on the tape.
///
/// ```
/// use refrain::{Device, DType, Tensor, no_grad};
/// let x = Tensor::ones([2], DType::F32, &Device::cpu())?;
/// x.set_requires_grad(true)?;
/// let y = no_grad(|| x.square())?;
/// assert!(!y.requires_grad());
/// # Ok::<(), refrain::Error>(())
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    with_grad_mode(false, f)
}

/// Runs `f` on this thread with the tape on or off.
pub(crate) fn with_grad_mode<R>(enabled: bool, f: impl FnOnce() -> R) -> R {
    with_flag(|value| ENABLED.replace(value), enabled, f)
}
