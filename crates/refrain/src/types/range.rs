//! What an integer dtype can hold.

use super::dtype::DType;
use crate::error::{Error, Result};

impl DType {
    /// Refuses a value that, truncated towards zero, is out of the range of an integer type.
    pub(crate) fn require_in_range(self, op: &'static str, value: f64) -> Result<()> {
        let (low, high) = match self {
            DType::I64 => (i64::MIN, i64::MAX),
            DType::I32 => (i32::MIN.into(), i32::MAX.into()),
            DType::U8 => (0, u8::MAX.into()),
            _ => return Ok(()),
        };
        // i128 is wider than all of them. Infinity and NaN saturate, so they are out of range.
        let whole = value.trunc() as i128;
        if value.is_finite() && (low.into()..=high.into()).contains(&whole) {
            return Ok(());
        }
        Err(Error::invalid(
            op,
            format!(
                "{value} is out of the range of {self}, {low} to {high}; use a value in that range or another dtype"
            ),
        ))
    }
}
