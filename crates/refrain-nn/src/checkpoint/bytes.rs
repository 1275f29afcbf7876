//! Conversion of tensors to and from the bytes of a safetensors file.

use refrain::{DType, Element, Tensor, bf16, f16};
use safetensors::Dtype;

use crate::error::Result;

macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $T = f64;
                $body
            }
            DType::F32 => {
                type $T = f32;
                $body
            }
            DType::F16 => {
                type $T = f16;
                $body
            }
            DType::BF16 => {
                type $T = bf16;
                $body
            }
            DType::I64 => {
                type $T = i64;
                $body
            }
            DType::I32 => {
                type $T = i32;
                $body
            }
            DType::U8 => {
                type $T = u8;
                $body
            }
            DType::Bool => {
                type $T = bool;
                $body
            }
        }
    };
}

/// The elements as bytes, row-major.
pub(super) fn read(tensor: &Tensor) -> Result<Vec<u8>> {
    with_element!(tensor.dtype(), T => Ok(T::as_bytes(&tensor.to_vec::<T>()?).to_vec()))
}

/// Writes row-major bytes into the memory of the tensor.
pub(super) fn write(tensor: &Tensor, bytes: &[u8]) -> Result<()> {
    with_element!(tensor.dtype(), T => {
        let mut values = vec![T::default(); bytes.len() / size_of::<T>()];
        T::fill_from(&mut values, |to| {
            to.copy_from_slice(bytes);
            Ok::<(), refrain::Error>(())
        })?;
        Ok(refrain::no_grad(|| tensor.write_from(&values))?)
    })
}

/// Index and value of the first element that is not finite.
pub(super) fn not_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, f64)> {
    fn first<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Option<(usize, f64)> {
        let (elements, _) = bytes.as_chunks::<N>();
        elements.iter().map(|&bytes| value(bytes)).enumerate().find(|(_, value)| !value.is_finite())
    }
    match dtype {
        Dtype::F64 => first(bytes, f64::from_le_bytes),
        Dtype::F32 => first(bytes, |b| f32::from_le_bytes(b).into()),
        Dtype::F16 => first(bytes, |b| f16::from_le_bytes(b).into()),
        Dtype::BF16 => first(bytes, |b| bf16::from_le_bytes(b).into()),
        _ => None,
    }
}

pub(super) fn to_format(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}
