//! Conversion of tensors to and from the bytes of a safetensors file.

use refrain::{DType, Element, Tensor, bf16, f16};
use safetensors::Dtype;

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
pub(super) fn read(tensor: &Tensor) -> crate::Result<Vec<u8>> {
    with_element!(tensor.dtype(), T => Ok(T::as_bytes(&tensor.to_vec::<T>()?).to_vec()))
}

/// Writes row-major bytes into the memory of the tensor.
pub(super) fn write(tensor: &Tensor, bytes: &[u8]) -> crate::Result<()> {
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

/// Floats of one dtype as floats of another, each rounded once. `None` if one of both is no float; index and value of the
/// first element that would no longer be finite.
pub(super) fn convert(from: Dtype, bytes: &[u8], to: DType) -> Option<Result<Vec<u8>, (usize, f64)>> {
    let values: Vec<f64> = match from {
        Dtype::F64 => widened(bytes, f64::from_le_bytes),
        Dtype::F32 => widened(bytes, |b| f32::from_le_bytes(b).into()),
        Dtype::F16 => widened(bytes, |b| f16::from_le_bytes(b).into()),
        Dtype::BF16 => widened(bytes, |b| bf16::from_le_bytes(b).into()),
        _ => return None,
    };
    let narrowed = match to {
        DType::F64 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F32 => values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&v| f16::from_f64(v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&v| bf16::from_f64(v).to_le_bytes()).collect::<Vec<u8>>(),
        _ => return None,
    };
    Some(match not_finite(to_format(to), &narrowed) {
        Some((element, _)) => Err((element, values[element])),
        None => Ok(narrowed),
    })
}

fn widened<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
    bytes.as_chunks::<N>().0.iter().map(|&bytes| value(bytes)).collect()
}

/// The dtype of tensors that a dtype of the format is. `None` if there is none.
pub(super) fn from_format(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&own| to_format(own) == dtype)
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
