//! What the operands of an operation have in common.

use super::Tensor;
use crate::error::{Error, Result};

/// Checks that all operands are on one device.
pub(crate) fn check_devices(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    match inputs.iter().find(|t| t.device() != inputs[0].device()) {
        None => Ok(()),
        Some(other) => {
            Err(Error::DeviceMismatch { op, lhs: inputs[0].device().name(), rhs: other.device().name() })
        }
    }
}

/// Checks that both operands have one dtype.
pub(crate) fn check_dtypes(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dtype() != b.dtype() {
        return Err(Error::dtypes(op, a.dtype(), b.dtype()));
    }
    Ok(())
}
