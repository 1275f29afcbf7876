//! Whether a tensor's history is still that of its values.

use super::grad_mode::is_grad_enabled;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Says that `op` wrote values of another origin into the memory of `dst`, and that its history is theirs.
pub(super) fn supersede(op: &'static str, dst: &Tensor) {
    dst.belongs_to_change(dst.lineage().change(op));
}

/// Whether the history of `t` is that of its values; `role` says what it is to `op`.
pub(crate) fn check_current(op: &'static str, t: &Tensor, role: impl Fn() -> String) -> Result<()> {
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
