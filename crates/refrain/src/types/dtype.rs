//! Element types.

use std::fmt;

pub use half::{bf16, f16};

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 double precision.
    F64,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32: 8 exponent bits, 7 stored significand bits.
    BF16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned byte.
    U8,
    /// True or false, one byte each.
    Bool,
}

impl DType {
    /// All dtypes, widest first.
    pub const ALL: [DType; 8] =
        [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U8, DType::Bool];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether this is one of the four floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether this is one of the integer types (bool is not).
    pub const fn is_int(self) -> bool {
        matches!(self, DType::I64 | DType::I32 | DType::U8)
    }

    /// The name, for example `f32`, `bf16`, `bool`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }

    /// The dtype in which elements are computed and added up: f64 and f32 in their own, f16 and bf16 in f32, all others in
    /// i64.
    pub(crate) const fn accumulator(self) -> DType {
        match self {
            DType::F64 => DType::F64,
            DType::F32 | DType::F16 | DType::BF16 => DType::F32,
            DType::I64 | DType::I32 | DType::U8 | DType::Bool => DType::I64,
        }
    }

    /// Whether a parameter of this dtype may be used with activations of that dtype: equal, or f32 beside f16 and bf16.
    pub(crate) fn is_parameter_of(self, activations: DType) -> bool {
        self == activations || (self == DType::F32 && activations.size() < DType::F32.size())
    }

    /// The distance from 1 to the next number above it, for floating-point types.
    pub const fn epsilon(self) -> Option<f64> {
        match self {
            DType::F64 => Some(f64::EPSILON),
            DType::F32 => Some(f32::EPSILON as f64),
            DType::F16 => Some(1.0 / 1024.0),
            DType::BF16 => Some(1.0 / 128.0),
            _ => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A host type that a tensor can be made from and read into.
///
/// Implemented for `f64`, `f32`, [`struct@f16`], [`struct@bf16`], `i64`, `i32`, `u8` and `bool`.
pub trait Element: sealed::Sealed + Copy + Send + Sync + Default + fmt::Debug + 'static {
    /// The dtype whose elements have this host type.
    const DTYPE: DType;
    /// The values as bytes in memory.
    #[doc(hidden)]
    fn as_bytes(values: &[Self]) -> &[u8];
    /// Fills `out` from the bytes that `read` writes. Any byte makes a valid bool.
    #[doc(hidden)]
    fn fill_from<E>(out: &mut [Self], read: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<(), E>;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            fn as_bytes(values: &[Self]) -> &[u8] {
                bytemuck::cast_slice(values)
            }
            fn fill_from<E>(out: &mut [Self], read: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<(), E> {
                read(bytemuck::cast_slice_mut(out))
            }
        }
    )*};
}
element!(f64 => F64, f32 => F32, f16 => F16, bf16 => BF16, i64 => I64, i32 => I32, u8 => U8);

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn as_bytes(values: &[Self]) -> &[u8] {
        bytemuck::cast_slice(values)
    }
    fn fill_from<E>(out: &mut [Self], read: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<(), E> {
        let mut bytes = vec![0u8; out.len()];
        read(&mut bytes)?;
        for (to, from) in out.iter_mut().zip(bytes) {
            *to = from != 0;
        }
        Ok(())
    }
}
