//! The number types of CPU kernels: how elements are stored, and in which type they are computed.

use std::any::TypeId;

use bytemuck::Pod;
use half::{bf16, f16};

use super::simd::{Vectors, simd};
use super::{math, narrow};
use crate::types::DType;

/// A type of elements in memory. A bool is a byte of 0 or 1.
pub(crate) trait Stored: Pod + Send + Sync {
    /// Converts to a number of the arithmetic. Exact if that type can represent it.
    fn to<N: Number>(self) -> N;
    /// Converts from a number of the arithmetic, rounded to nearest. Integers wrap around.
    fn from_number<N: Number>(n: N) -> Self;
}

/// The arithmetic types of kernels: f64, f32, i64, u8 for operands that are all u8 or bool, and f16 and bf16 for single operations,
/// which are computed in f32 and rounded.
pub(crate) trait Number: Stored + PartialOrd + Default + std::fmt::Debug {
    const ZERO: Self;
    const ONE: Self;
    /// Whether operands of other types are converted to this one.
    const CONVERTS: bool = true;
    fn from_f64(v: f64) -> Self;
    fn from_f32(v: f32) -> Self;
    fn from_i64(v: i64) -> Self;
    fn to_f64(self) -> f64;
    fn to_f32(self) -> f32;
    /// Converts to f32, rounded to odd: if the result is inexact, its last bit is set. Rounding it again to nearest,
    /// to a type of 22 bits or less, gives the same as rounding this number directly, because a tie is never mistaken
    /// for a neighbour.
    fn to_odd_f32(self) -> f32;
    fn to_i64(self) -> i64;
    /// The low byte of [`to_i64`](Self::to_i64).
    fn to_u8(self) -> u8;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Division. Integers are divided towards zero; division by 0 gives 0.
    fn over(self, other: Self) -> Self;
    /// Power. For integers by squaring; negative exponents give 0 (except for 1 and -1).
    fn power(self, exponent: Self) -> Self;
    fn is_nan(self) -> bool;

    /// A slice of exactly this type, or `None`.
    fn same<T: Stored>(s: &[T]) -> Option<&[Self]> {
        same(s)
    }

    /// A slice of exactly this type, or `None`.
    fn same_mut<T: Stored>(s: &mut [T]) -> Option<&mut [Self]> {
        same_mut(s)
    }

    fn from_bool(b: bool) -> Self {
        if b { Self::ONE } else { Self::ZERO }
    }
}

macro_rules! stored {
    ($($t:ty, $to:ident, |$v:ident| $as:expr, |$n:ident| $from:expr;)*) => {$(
        impl Stored for $t {
            #[inline(always)]
            fn to<N: Number>(self) -> N {
                let $v = self;
                N::$to($as)
            }
            #[inline(always)]
            fn from_number<N: Number>($n: N) -> $t {
                $from
            }
        }
    )*};
}
stored! {
    f64, from_f64, |v| v, |n| n.to_f64();
    f32, from_f32, |v| v, |n| n.to_f32();
    f16, from_f32, |v| narrow::f16_to_f32(v), |n| narrow::f16_from_f32(n.to_odd_f32());
    bf16, from_f32, |v| narrow::bf16_to_f32(v), |n| narrow::bf16_from_f32(n.to_odd_f32());
    i64, from_i64, |v| v, |n| n.to_i64();
    i32, from_i64, |v| v as i64, |n| n.to_i64() as i32;
    u8, from_i64, |v| v as i64, |n| n.to_u8();
}

/// Converts each element. Both slices have the same length.
///
/// It is not inlined, so that its loops are compiled once for each pair of types and not for each caller.
#[inline(never)]
pub(crate) fn convert<T: Stored, N: Number>(from: &[T], to: &mut [N]) {
    if let (Some(from), Some(to)) = (same::<T, f16>(from), f32::same_mut(to))
        && narrow::f16s_to_f32(from, to)
    {
        return;
    }
    simd(
        #[inline(always)]
        || to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to()),
    );
}

/// Stores numbers, rounded to nearest, or adds them to what is there. Both slices have the same length. Not inlined, like
/// [`convert`].
#[inline(never)]
pub(crate) fn store<T: Stored, N: Number>(from: &[N], to: &mut [T], accumulate: bool) {
    if !accumulate
        && let (Some(from), Some(to)) = (f32::same(from), same_mut::<T, f16>(to))
        && narrow::f16s_from_f32(from, to)
    {
        return;
    }
    if !accumulate && let (Some(from), Some(to)) = (f64::same(from), same_mut::<T, bf16>(to)) {
        return narrow::bf16s_from_f64(from, to);
    }
    if !accumulate && let (Some(from), Some(to)) = (i64::same(from), same_mut::<T, bf16>(to)) {
        return narrow::bf16s_from_i64(from, to);
    }
    simd(
        #[inline(always)]
        || match accumulate {
            true => to.iter_mut().zip(from).for_each(|(to, &n)| *to = T::from_number(to.to::<N>().plus(n))),
            false => to.iter_mut().zip(from).for_each(|(to, &n)| *to = T::from_number(n)),
        },
    );
}

/// The slice, if its elements are of type `U`.
fn same<T: Pod, U: Pod>(s: &[T]) -> Option<&[U]> {
    (TypeId::of::<T>() == TypeId::of::<U>()).then(|| bytemuck::cast_slice(s))
}

/// The slice, if its elements are of type `U`.
fn same_mut<T: Pod, U: Pod>(s: &mut [T]) -> Option<&mut [U]> {
    (TypeId::of::<T>() == TypeId::of::<U>()).then(|| bytemuck::cast_slice_mut(s))
}

/// `v` as f32, rounded to odd: if inexact, the neighbour whose last bit is set.
#[inline(always)]
fn odd(v: f64) -> f32 {
    let near = v as f32;
    let (wide, bits) = (f64::from(near), near.to_bits());
    let exact = (wide == v) | v.is_nan();
    // Away from zero, the bits count up.
    let beside = if wide.abs() < v.abs() { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if exact | (bits & 1 == 1) { bits } else { beside })
}

/// An integer as f64, rounded to odd: bits beyond 53 set the last one.
#[inline(always)]
fn odd_f64(v: i64) -> f64 {
    let a = v.unsigned_abs();
    let beyond = a & 0x7ff;
    let a = if a >> 53 == 0 { a } else { (a - beyond) | (u64::from(beyond != 0) << 11) };
    if v < 0 { -(a as f64) } else { a as f64 }
}

macro_rules! float_number {
    ($t:ty, $odd:expr, $to_u8:expr, $power:path) => {
        impl Number for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            #[inline(always)]
            fn from_f64(v: f64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn from_f32(v: f32) -> $t {
                v as $t
            }
            #[inline(always)]
            fn from_i64(v: i64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_odd_f32(self) -> f32 {
                let odd_of: fn($t) -> f32 = $odd;
                odd_of(self)
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                whole(self as f64)
            }
            #[inline(always)]
            fn to_u8(self) -> u8 {
                let low_byte_of: fn($t) -> u8 = $to_u8;
                low_byte_of(self)
            }
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                self + other
            }
            #[inline(always)]
            fn minus(self, other: $t) -> $t {
                self - other
            }
            #[inline(always)]
            fn times(self, other: $t) -> $t {
                self * other
            }
            #[inline(always)]
            fn over(self, other: $t) -> $t {
                self / other
            }
            #[inline(always)]
            fn power(self, exponent: $t) -> $t {
                $power(self, exponent)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self.is_nan()
            }
        }
    };
}
float_number!(f64, odd, |v| whole(v) as u8, math::f64::pow);
float_number!(f32, |v| v, low_byte, math::pow);

macro_rules! half_number {
    ($t:ident, $to_f32:path, $from_f32:path) => {
        impl Number for $t {
            const ZERO: $t = $t::ZERO;
            const ONE: $t = $t::ONE;
            const CONVERTS: bool = false;
            #[inline(always)]
            fn from_f64(v: f64) -> $t {
                $from_f32(odd(v))
            }
            #[inline(always)]
            fn from_f32(v: f32) -> $t {
                $from_f32(v)
            }
            #[inline(always)]
            fn from_i64(v: i64) -> $t {
                $from_f32(odd(odd_f64(v)))
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from($to_f32(self))
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }
            #[inline(always)]
            fn to_odd_f32(self) -> f32 {
                $to_f32(self)
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                Number::to_i64($to_f32(self))
            }
            #[inline(always)]
            fn to_u8(self) -> u8 {
                Number::to_u8($to_f32(self))
            }
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                $from_f32($to_f32(self) + $to_f32(other))
            }
            #[inline(always)]
            fn minus(self, other: $t) -> $t {
                $from_f32($to_f32(self) - $to_f32(other))
            }
            #[inline(always)]
            fn times(self, other: $t) -> $t {
                $from_f32($to_f32(self) * $to_f32(other))
            }
            #[inline(always)]
            fn over(self, other: $t) -> $t {
                $from_f32($to_f32(self) / $to_f32(other))
            }
            #[inline(always)]
            fn power(self, exponent: $t) -> $t {
                $from_f32($to_f32(self).power($to_f32(exponent)))
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                $to_f32(self).is_nan()
            }
        }
    };
}
half_number!(f16, narrow::f16_to_f32, narrow::f16_from_f32);
half_number!(bf16, narrow::bf16_to_f32, narrow::bf16_from_f32);

/// `v as i64 as u8`, without the conversion to an integer, which does not become SIMD code.
#[inline(always)]
fn low_byte(v: f32) -> u8 {
    let whole = v.trunc();
    // The remainder, from 0 to 255. From 2^32 on it is 0, because every f32 is a multiple of 256.
    let low = whole - (whole * (1.0 / 256.0)).floor() * 256.0;
    // Added to 2^23, it is the low byte of the sum.
    let byte = (low + 8_388_608.0).to_bits() as u8;
    // From 2^63 on, an i64 has its largest value. NaN becomes 0.
    let beyond = if v > 0.0 { 255 } else { 0 };
    if v.abs() < 9_223_372_036_854_775_808.0 { byte } else { beyond }
}

/// `v as i64`, without the conversion to an integer, which does not become SIMD code.
#[inline(always)]
fn whole(v: f64) -> i64 {
    const TWO_TO_32: f64 = 4_294_967_296.0;
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    // Added to this, an integer of up to 51 bits is in the low bits of the sum.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    let integer = |v: f64| ((v + ROUND).to_bits() as i64).wrapping_sub(ROUND.to_bits() as i64);
    let all = v.trunc();
    let high = (all * (1.0 / TWO_TO_32)).floor();
    let low = all - high * TWO_TO_32;
    let inside = (integer(high) << 32).wrapping_add(integer(low));
    let above = if v >= TWO_TO_63 { i64::MAX } else { inside };
    let bounded = if v < -TWO_TO_63 { i64::MIN } else { above };
    if v.is_nan() { 0 } else { bounded }
}

macro_rules! integer_number {
    ($t:ty, $over:expr) => {
        impl Number for $t {
            const ZERO: $t = 0;
            const ONE: $t = 1;
            #[inline(always)]
            fn from_f64(v: f64) -> $t {
                v as i64 as $t
            }
            #[inline(always)]
            fn from_f32(v: f32) -> $t {
                v as i64 as $t
            }
            #[inline(always)]
            fn from_i64(v: i64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_odd_f32(self) -> f32 {
                odd(odd_f64(self as i64))
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn to_u8(self) -> u8 {
                self as u8
            }
            #[inline(always)]
            fn plus(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: $t) -> $t {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn times(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn over(self, other: $t) -> $t {
                let over: fn($t, $t) -> $t = $over;
                over(self, other)
            }
            fn power(self, exponent: $t) -> $t {
                integer_power(self as i64, exponent as i64) as $t
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }
    };
}
integer_number!(i64, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) });
integer_number!(u8, byte_over);

/// The quotient of two bytes, by a division of floats, for which there are SIMD instructions. Rounding does not reach the next
/// integer, which is at least 1/255 away.
#[inline(always)]
fn byte_over(a: u8, b: u8) -> u8 {
    let quotient = (f32::from(a) / f32::from(b)).trunc();
    // Added to 2^23, it is the low byte of the sum.
    let byte = (quotient + 8_388_608.0).to_bits() as u8;
    if b == 0 { 0 } else { byte }
}

fn integer_power(base: i64, exponent: i64) -> i64 {
    match (base, exponent) {
        (_, 0) | (1, _) => 1,
        (-1, e) => 1 - 2 * (e & 1),
        (_, e) if e < 0 => 0,
        (_, e) => {
            let (mut result, mut square, mut e) = (1i64, base, e);
            while e > 0 {
                if e & 1 == 1 {
                    result = result.wrapping_mul(square);
                }
                square = square.wrapping_mul(square);
                e >>= 1;
            }
            result
        }
    }
}

/// The floating-point arithmetic types: f64 and f32.
pub(crate) trait Real:
    Number
    + Vectors
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::iter::Sum
{
    const NEG_INFINITY: Self;
    fn c(v: f64) -> Self;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
    /// `y[i] = sin(x[i])`, faster than one by one.
    fn sines(x: &[Self], y: &mut [Self]);
    /// `y[i] = cos(x[i])`, faster than one by one.
    fn cosines(x: &[Self], y: &mut [Self]);
    fn tanh(self) -> Self;
    fn erf(self) -> Self;
    fn abs(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round_ties_even(self) -> Self;
    fn sigmoid(self) -> Self;
    /// `ln(1 + x)`: the logarithm of the rounded sum, times what the rounding has changed (Kahan).
    #[inline(always)]
    fn log1p(self) -> Self {
        let sum = Self::ONE + self;
        let rounded = sum - Self::ONE;
        let ratio = if rounded == self { Self::ONE } else { self / rounded };
        if rounded == Self::ZERO { self } else { sum.ln() * ratio }
    }
    /// `e^x - 1`, exact also for small `x`.
    fn expm1(self) -> Self;
    /// The exact GELU.
    fn gelu(self) -> Self;
    fn gelu_tanh(self) -> Self;
    fn gelu_tanh_grad(self) -> Self;
    /// Neither 0 nor subnormal nor infinite nor NaN.
    fn is_normal(self) -> bool;
    /// `max(self, 0)`; NaN stays NaN.
    #[inline(always)]
    fn relu(self) -> Self {
        if self < Self::ZERO { Self::ZERO } else { self }
    }
}

macro_rules! real {
    ($t:ident, $math:path) => {
        impl Real for $t {
            const NEG_INFINITY: $t = $t::NEG_INFINITY;
            #[inline(always)]
            fn c(v: f64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn ln(self) -> $t {
                use $math as math;
                math::log(self)
            }
            #[inline(always)]
            fn exp(self) -> $t {
                use $math as math;
                math::exp(self)
            }
            fn sines(x: &[$t], y: &mut [$t]) {
                use $math as math;
                math::sines(x, y);
            }
            fn cosines(x: &[$t], y: &mut [$t]) {
                use $math as math;
                math::cosines(x, y);
            }
            #[inline(always)]
            fn tanh(self) -> $t {
                use $math as math;
                math::tanh(self)
            }
            #[inline(always)]
            fn erf(self) -> $t {
                use $math as math;
                math::erf(self)
            }
            #[inline(always)]
            fn expm1(self) -> $t {
                use $math as math;
                math::expm1(self)
            }
            #[inline(always)]
            fn sigmoid(self) -> $t {
                use $math as math;
                math::sigmoid(self)
            }
            #[inline(always)]
            fn gelu(self) -> $t {
                use $math as math;
                math::gelu(self)
            }
            #[inline(always)]
            fn gelu_tanh(self) -> $t {
                use $math as math;
                math::gelu_tanh(self)
            }
            #[inline(always)]
            fn gelu_tanh_grad(self) -> $t {
                use $math as math;
                math::gelu_tanh_grad(self)
            }
            #[inline(always)]
            fn is_normal(self) -> bool {
                // Branch-free, so that loops become SIMD code.
                (self.abs() >= $t::MIN_POSITIVE) & (self.abs() <= $t::MAX)
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                self.sqrt()
            }
            #[inline(always)]
            fn abs(self) -> $t {
                self.abs()
            }
            #[inline(always)]
            fn floor(self) -> $t {
                self.floor()
            }
            #[inline(always)]
            fn ceil(self) -> $t {
                self.ceil()
            }
            #[inline(always)]
            fn round_ties_even(self) -> $t {
                self.round_ties_even()
            }
        }
    };
}
real!(f32, math);
real!(f64, math::f64);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_divided_as_integers() {
        for (a, b) in (0..=255u8).flat_map(|a| (0..=255u8).map(move |b| (a, b))) {
            assert_eq!(a.over(b), a.checked_div(b).unwrap_or(0), "{a} / {b}");
        }
    }

    #[test]
    fn a_float_of_64_bits_becomes_an_integer_as_in_rust() {
        let powers = (0..66).map(|n| 2f64.powi(n)).chain([0.0, f64::INFINITY, f64::NAN]);
        let near = powers.flat_map(|v| [v - 1.5, v - 0.5, v.next_down(), v, v.next_up(), v + 0.5, 3.0 * v]);
        let spread = (0..1_000_000u64).map(|i| f64::from_bits(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        for v in near.chain(spread).flat_map(|v| [v, -v]) {
            assert_eq!(v.to_i64(), v as i64, "{v:e}");
            assert_eq!(v.to_u8(), v as i64 as u8, "{v:e}");
        }
    }

    #[test]
    fn a_float_becomes_the_low_byte_of_an_integer_of_64_bits() {
        let near = [0.0, 255.0, 256.0, 2_147_483_648.0, 4_294_967_296.0, 9_223_372_036_854_775_808.0];
        let beside = near.into_iter().flat_map(|v: f32| [v.next_down(), v, v.next_up(), -v, -v.next_up()]);
        for v in beside.chain((0..u32::MAX).step_by(997).map(f32::from_bits)) {
            assert_eq!(v.to_u8(), v as i64 as u8, "{v:e}");
            assert_eq!(v.to_i64(), v as i64, "{v:e}");
        }
    }
}
