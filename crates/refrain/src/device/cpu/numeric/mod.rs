//! The number types of CPU kernels: how elements are stored, and in which type they are computed.

mod conversions;
mod dispatch;
mod real;
mod slices;

use bytemuck::Pod;
use half::{bf16, f16};

use super::{math, narrow};
use conversions::{low_byte, odd, odd_f64, whole};
pub(crate) use dispatch::{nearest, with_float, with_mixed, with_stored};
pub(crate) use real::Real;
pub(crate) use slices::{convert, store};
use slices::{same, same_mut};

/// A type of elements in memory. A bool is a byte of 0 or 1.
pub(crate) trait Stored: Pod + Send + Sync {
    const IS_INTEGER: bool;
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
    /// The remainder of a division, with the sign of the divisor, or of this number if it is 0. That of a division by 0 is NaN, and 0 for
    /// integers.
    fn remainder(self, divisor: Self) -> Self;
    /// The same by few instructions, and whether it is exact.
    #[inline(always)]
    fn quick_remainder(self, divisor: Self) -> (Self, bool) {
        (self.remainder(divisor), true)
    }
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
    ($($t:ty, $to:ident, |$v:ident| $as:expr, |$n:ident| $from:expr, $is_integer:expr;)*) => {$(
        impl Stored for $t {
            const IS_INTEGER: bool = $is_integer;
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
    f64, from_f64, |v| v, |n| n.to_f64(), false;
    f32, from_f32, |v| v, |n| n.to_f32(), false;
    f16, from_f32, |v| narrow::f16_to_f32(v), |n| narrow::f16_from_f32(n.to_odd_f32()), false;
    bf16, from_f32, |v| narrow::bf16_to_f32(v), |n| narrow::bf16_from_f32(n.to_odd_f32()), false;
    i64, from_i64, |v| v, |n| n.to_i64(), true;
    i32, from_i64, |v| v as i64, |n| n.to_i64() as i32, true;
    u8, from_i64, |v| v as i64, |n| n.to_u8(), true;
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
            fn remainder(self, divisor: $t) -> $t {
                let rest = self % divisor;
                if rest != 0.0 && (rest < 0.0) != (divisor < 0.0) { rest + divisor } else { rest }
            }
            #[inline(always)]
            fn quick_remainder(self, divisor: $t) -> ($t, bool) {
                // The quotient may be rounded up to the next whole number; the rest is exact and has the other sign then.
                let quotient = (self / divisor).trunc();
                let rest = (-quotient).mul_add(divisor, self);
                let other_sign = (rest != 0.0) & ((rest < 0.0) != (divisor < 0.0));
                let is_exact = (quotient.abs() < 1.0 / <$t>::EPSILON) & (divisor.abs() < <$t>::INFINITY);
                let rest = if rest == 0.0 { rest.copysign(self) } else { rest };
                (if other_sign { rest + divisor } else { rest }, is_exact)
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
            fn remainder(self, divisor: $t) -> $t {
                $from_f32($to_f32(self).remainder($to_f32(divisor)))
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

macro_rules! integer_number {
    ($t:ty, $over:expr, $remainder:expr) => {
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
            #[inline(always)]
            fn remainder(self, divisor: $t) -> $t {
                let remainder: fn($t, $t) -> $t = $remainder;
                remainder(self, divisor)
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
integer_number!(i64, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }, whole_remainder);
integer_number!(u8, byte_over, |a, b| if b == 0 { 0 } else { a - byte_over(a, b) * b });

/// The remainder with the sign of the divisor.
#[inline(always)]
fn whole_remainder(a: i64, b: i64) -> i64 {
    let rest = if b == 0 { 0 } else { a.wrapping_rem(b) };
    if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_divided_as_integers() {
        for (a, b) in (0..=255u8).flat_map(|a| (0..=255u8).map(move |b| (a, b))) {
            assert_eq!(a.over(b), a.checked_div(b).unwrap_or(0), "{a} / {b}");
            assert_eq!(a.remainder(b), a.checked_rem(b).unwrap_or(0), "the rest of {a} / {b}");
        }
    }
}
