//! Detects whether the history of a tensor still describes its values.

use super::grad_mode::is_grad_enabled;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Notes that `op` wrote values of another origin into the memory of `dst`, and that the history of `dst` belongs to
/// them.
pub(super) fn supersede(op: &'static str, dst: &Tensor) {
    dst.belongs_to_change(dst.lineage().change(op));
}

/// Checks that the history of `t` describes its values. `role` says what `t` is for `op`.
pub(crate) fn check_current(op: &'static str, t: &Tensor, role: impl Fn() -> String) -> Result<()> {
    let lineage = t.lineage();
    if t.change() == lineage.changes() {
        return Ok(());
    }
    let by = lineage.by();
    Err(Error::Autograd {
        op,
        message: format!(
            "{} ({} {}) shares memory with a tensor that {by} has written to since, so the tape no longer knows the origin of its values; take the view again from the tensor that {by} wrote to, or use detach() for the values alone",
            role(),
            t.dtype(),
            t.shape()
        ),
    })
}

/// Checks that the histories of the operands describe their values, because the tape relies on them.
pub(crate) fn check_operands(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    if !is_grad_enabled() {
        return Ok(());
    }
    inputs.iter().enumerate().try_for_each(|(i, t)| check_current(op, t, || format!("operand {i}")))
}
