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

/// Index and value of the first element that is not finite.
pub(super) fn not_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, f64)> {
    /// Of each run of elements, only whether one is not finite: that is a loop without a branch.
    const RUN: usize = 1024;
    fn first<const N: usize>(
        bytes: &[u8],
        is_finite: impl Fn([u8; N]) -> bool,
        value: impl Fn([u8; N]) -> f64,
    ) -> Option<(usize, f64)> {
        let (elements, _) = bytes.as_chunks::<N>();
        let bad = |run: &&[[u8; N]]| run.iter().fold(false, |bad, &bytes| bad | !is_finite(bytes));
        let at = elements.chunks(RUN).position(|run| bad(&run))? * RUN;
        let (i, &bytes) = elements.iter().enumerate().skip(at).find(|&(_, &bytes)| !is_finite(bytes))?;
        Some((i, value(bytes)))
    }
    // All bits of the exponent are set.
    let half = |exponent: u16| move |b: [u8; 2]| u16::from_le_bytes(b) & exponent != exponent;
    match dtype {
        Dtype::F64 => first(bytes, |b| f64::from_le_bytes(b).is_finite(), f64::from_le_bytes),
        Dtype::F32 => first(bytes, |b| f32::from_le_bytes(b).is_finite(), |b| f32::from_le_bytes(b).into()),
        Dtype::F16 => first(bytes, half(0x7c00), |b| f16::from_le_bytes(b).into()),
        Dtype::BF16 => first(bytes, half(0x7f80), |b| bf16::from_le_bytes(b).into()),
        _ => None,
    }
}

/// Whether values of a dtype can be converted to floats of another.
pub(super) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Writes finite floats of one dtype as floats of another, each rounded once. Returns index and value of the first one that
/// would no longer be finite.
pub(super) fn convert(from: Dtype, bytes: &[u8], to: DType, out: &mut [u8]) -> Option<(usize, f64)> {
    let values: Vec<f64> = match from {
        Dtype::F64 => widened(bytes, f64::from_le_bytes),
        Dtype::F32 => widened(bytes, |b| f32::from_le_bytes(b).into()),
        Dtype::F16 => widened(bytes, |b| f16::from_le_bytes(b).into()),
        _ => widened(bytes, |b| bf16::from_le_bytes(b).into()),
    };
    match to {
        DType::F64 => narrowed(&values, out, f64::to_le_bytes),
        DType::F32 => narrowed(&values, out, |v| (v as f32).to_le_bytes()),
        DType::F16 => narrowed(&values, out, |v| f16::from_f64(v).to_le_bytes()),
        _ => narrowed(&values, out, |v| bf16::from_f64(v).to_le_bytes()),
    }
    not_finite(to_format(to), out).map(|(element, _)| (element, values[element]))
}

fn narrowed<const N: usize>(values: &[f64], out: &mut [u8], bytes: impl Fn(f64) -> [u8; N]) {
    out.as_chunks_mut::<N>().0.iter_mut().zip(values).for_each(|(out, &value)| *out = bytes(value));
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
