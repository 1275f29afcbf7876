//! The number formats in which tensor cores multiply for attention.

use super::Attention;
use crate::tensor::DType;
use crate::types::Precision;

/// What the kernel texts know of them.
pub(super) const FORMS: &str = include_str!("forms.cu");

/// Numbers of a row that one multiplication of TF32 takes.
const TF32_DEPTH: usize = 8;
/// From this many keys on, narrower heads are worth it.
const MANY_KEYS: usize = 32;

/// The format (`FORM` in the kernel texts) for operands of this dtype. `None` for f64, and in f32 for narrow heads with few keys.
pub(super) fn form(op: &Attention, dtype: DType, head_dim: usize, keys: usize) -> Option<&'static str> {
    match (dtype, op.precision) {
        (DType::BF16, _) => Some("BF16"),
        // TF32 holds f16 exactly, and also intermediate results that f16 is too narrow for.
        (DType::F16, _) | (DType::F32, Precision::Tf32) => Some("TF32"),
        // Of narrow heads, half of each operand is zeros, and truncated sums of tensor cores are less exact than rounded ones.
        (DType::F32, _) => (head_dim >= TF32_DEPTH || keys >= MANY_KEYS).then_some("SPLIT_TF32"),
        _ => None,
    }
}
