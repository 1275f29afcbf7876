//! From dtypes to types.

use half::{bf16, f16};

use super::Stored;
use crate::types::DType;

/// Runs an expression with `$T` as the stored type of a dtype.
macro_rules! with_stored {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::types::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::types::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::types::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::types::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            $crate::types::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::types::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::types::DType::U8 | $crate::types::DType::Bool => {
                type $T = u8;
                $body
            }
        }
    };
}
pub(crate) use with_stored;

/// The value that a tensor of this dtype holds for a host number: the nearest one, ties to even. For integer types,
/// the caller has checked the number.
pub(crate) fn nearest(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F64 => value,
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_number(value).to_f64(),
        DType::BF16 => bf16::from_number(value).to_f64(),
        DType::I64 | DType::I32 | DType::U8 | DType::Bool => value,
    }
}

/// Runs an expression with `$T` as the stored type of a floating-point dtype and `$R` as its arithmetic type. Returns
/// an error for other dtypes.
macro_rules! with_float {
    ($args:expr, $dtype:expr, $T:ident, $R:ident => $body:expr) => {
        match $dtype {
            $crate::types::DType::F64 => {
                type $T = f64;
                type $R = f64;
                $body
            }
            $crate::types::DType::F32 => {
                type $T = f32;
                type $R = f32;
                $body
            }
            $crate::types::DType::F16 => {
                type $T = half::f16;
                type $R = f32;
                $body
            }
            $crate::types::DType::BF16 => {
                type $T = half::bf16;
                type $R = f32;
                $body
            }
            dtype => {
                Err($crate::error::Error::Unsupported { op: $args.op(), dtype, device: "cpu".to_string() })
            }
        }
    };
}
pub(crate) use with_float;

/// Like [`with_float`], with a second dtype: `$U` is the stored type of operands that are f32 beside f16 or bf16, or
/// bf16 beside f32. Returns an error for other pairs.
macro_rules! with_mixed {
    ($args:expr, $dtype:expr, $other:expr, $T:ident, $U:ident, $R:ident => $body:expr) => {
        match ($dtype, $other) {
            (dtype, other) if dtype == other => $crate::device::cpu::numeric::with_float!($args, dtype, $T, $R => {
                type $U = $T;
                $body
            }),
            ($crate::types::DType::F16, $crate::types::DType::F32) => {
                type $T = half::f16;
                type $U = f32;
                type $R = f32;
                $body
            }
            ($crate::types::DType::BF16, $crate::types::DType::F32) => {
                type $T = half::bf16;
                type $U = f32;
                type $R = f32;
                $body
            }
            ($crate::types::DType::F32, $crate::types::DType::BF16) => {
                type $T = f32;
                type $U = half::bf16;
                type $R = f32;
                $body
            }
            (_, dtype) => {
                Err($crate::error::Error::Unsupported { op: $args.op(), dtype, device: "cpu".to_string() })
            }
        }
    };
}
pub(crate) use with_mixed;
