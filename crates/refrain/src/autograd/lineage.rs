//! Whether a tensor's history is still that of its values.

use std::sync::PoisonError;

use super::grad_mode::is_grad_enabled;
use crate::error::{Error, Result};
use crate::recycled::recycle;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::tensor::Tensor;

/// What a tensor and its views have in common: how often an operation has changed where the values in
/// their memory came from. Each tensor knows the number that its own history belongs to; a lower one means
/// that another view was written to since, with values of another origin.
///
/// The tensors of a storage share the one in it, but for those that `detach` has cut off, which share another.
#[derive(Debug, Default)]
pub(crate) struct Lineage {
    changes: AtomicU64,
    /// The operation that made the last change.
    by: Mutex<&'static str>,
}
recycle!(Lineage);

impl Lineage {
    /// How many changes there were.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(super) fn by(&self) -> &'static str {
        *self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes changes back that a recording made, where nothing ran; `by` made the one before.
    pub(super) fn undo(&self, changes: u64, by: &'static str) {
        self.changes.fetch_sub(changes, Ordering::AcqRel);
        *self.by.lock().unwrap_or_else(PoisonError::into_inner) = by;
    }

    /// Notes a change; returns how many there are now.
    pub(super) fn change(&self, op: &'static str) -> u64 {
        *self.by.lock().unwrap_or_else(PoisonError::into_inner) = op;
        self.changes.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// Says that `op` wrote values of another origin into the memory of `dst`, and that its history is theirs.
pub(super) fn supersede(op: &'static str, dst: &Tensor) {
    dst.belongs_to_change(dst.lineage().change(op));
}

/// Whether the history of `t` is that of its values; `role` says what it is to `op`.
pub(super) fn check_current(op: &'static str, t: &Tensor, role: impl Fn() -> String) -> Result<()> {
    let lineage = t.lineage();
    if t.change() == lineage.changes() {
        return Ok(());
    }
    let by = lineage.by();
    Err(Error::Autograd {
        op,
        message: format!(
            "{} ({} {}) shares memory with a tensor that {by} has written to since, so the tape no longer knows where its values came from; take the view again from the tensor that {by} wrote to, or use detach() for the values alone",
            role(),
            t.dtype(),
            t.shape()
        ),
    })
}

/// Whether the histories of an operation's operands are those of their values, which the tape relies on.
pub(crate) fn check_operands(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    if !is_grad_enabled() {
        return Ok(());
    }
    inputs.iter().enumerate().try_for_each(|(i, t)| check_current(op, t, || format!("operand {i}")))
}
