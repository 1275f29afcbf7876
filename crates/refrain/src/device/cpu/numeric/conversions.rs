//! Conversions of numbers, of operations that become SIMD code.

/// `v` as f32, rounded to odd: if inexact, the neighbour whose last bit is set.
#[inline(always)]
pub(super) fn odd(v: f64) -> f32 {
    let near = v as f32;
    let (wide, bits) = (f64::from(near), near.to_bits());
    let exact = (wide == v) | v.is_nan();
    // Away from zero, the bits count up.
    let beside = if wide.abs() < v.abs() { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if exact | (bits & 1 == 1) { bits } else { beside })
}

/// An integer as f64, rounded to odd: bits beyond 53 set the last one.
#[inline(always)]
pub(super) fn odd_f64(v: i64) -> f64 {
    let a = v.unsigned_abs();
    let beyond = a & 0x7ff;
    let a = if a >> 53 == 0 { a } else { (a - beyond) | (u64::from(beyond != 0) << 11) };
    if v < 0 { -(a as f64) } else { a as f64 }
}

/// `v as i64 as u8`, without the conversion to an integer, which does not become SIMD code.
#[inline(always)]
pub(super) fn low_byte(v: f32) -> u8 {
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
pub(super) fn whole(v: f64) -> i64 {
    const TWO_TO_32: f64 = 4_294_967_296.0;
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    let all = v.trunc();
    let high = (all * (1.0 / TWO_TO_32)).floor();
    let low = all - high * TWO_TO_32;
    let inside = (integer(high) << 32).wrapping_add(integer(low));
    let above = if v >= TWO_TO_63 { i64::MAX } else { inside };
    let bounded = if v < -TWO_TO_63 { i64::MIN } else { above };
    if v.is_nan() { 0 } else { bounded }
}

/// [`small_whole`] takes numbers below this.
pub(super) const SMALL: f64 = 2_251_799_813_685_248.0; // 2^51

/// `v as i64` of small numbers.
#[inline(always)]
pub(super) fn small_whole(v: f64) -> i64 {
    integer(v.trunc())
}

/// A whole number of up to 51 bits.
#[inline(always)]
fn integer(v: f64) -> i64 {
    // Added to this, it is in the low bits of the sum.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    ((v + ROUND).to_bits() as i64).wrapping_sub(ROUND.to_bits() as i64)
}

#[cfg(test)]
mod tests {
    use crate::device::cpu::numeric::Number;

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
