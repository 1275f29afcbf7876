//! Elementary functions for the CPU's kernels.
//!
//! The `f32` functions have no branches, no tables and no calls. So a loop over a slice that calls one becomes SIMD
//! code inside [`pulp::Arch::dispatch`]. `exp`, `expm1`, `log`, `tanh`, `sigmoid`, `erf` and similar functions are within 4
//! ulp of the correctly rounded result over the whole range, including subnormal results and special values; NaN
//! gives NaN. Polynomials use fused multiply-adds, so that results have the same bits on every machine; where the processor has no
//! such instruction (x86-64 before AVX2), each is a call.
//!
//! The polynomials are minimax fits (Remez exchange) of the functions in the comments.
//!
//! The functions for `f64` are in [`f64`](self::f64). Those of [`angles`] and [`hyperbolic`] are written once for both, in terms of
//! these. Those of [`gamma`] are computed in `f64` for every dtype.

pub mod angles;
pub mod erfinv;
pub mod f64;
pub mod gamma;
pub mod hyperbolic;
mod polynomials;
#[cfg(test)]
mod tests;

use pulp::Simd;

use polynomials::polynomials;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts. The first part has so few bits that its product with an exponent is exact.
const LN_2_HIGH: f32 = 355.0 / 512.0;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Adding and subtracting this rounds to an integer. The low bits of the sum are that integer.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

polynomials!(f32);

/// `2^n` for `-126 <= n <= 127`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    // Not `f32::clamp`, `max` or `min`: NaN must pass through, with one instruction per side.
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// `(e^r - 1 - r) / r^2` for `|r| <= ln(2) / 2`.
const EXP: [f32; 5] = [0.5, 0.166_665_18, 0.041_666_204, 0.008_368_953, 0.001_395_058_6];

/// `e^r 2^n` for `|r| <= ln(2) / 2`, from the sum `t` of `n` and [`ROUND`]. `n` is between -150 and 128.
#[inline(always)]
fn exp_of_parts(r: f32, t: f32) -> f32 {
    let p = (r * r).mul_add(polynomial(r, EXP), r) + 1.0;
    // 2^n in two factors, because it may be subnormal or infinite.
    let n = (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `e^x`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or infinite, and it is so at the bounds.
    let x = clamp(x, -104.0, 89.0);
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    exp_of_parts(n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x)), t)
}

/// `2^x`.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or infinite, and it is so at the bounds.
    let x = clamp(x, -150.0, 128.0);
    let t = x + ROUND;
    exp_of_parts((x - (t - ROUND)) * std::f32::consts::LN_2, t)
}

/// `e^x` for `|x| <= 80`.
#[inline(always)]
fn exp_of_moderate(x: f32) -> f32 {
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = (r * r).mul_add(polynomial(r, EXP), r) + 1.0;
    // 2^n: the low bits of the sum are n.
    p * f32::from_bits(t.to_bits().wrapping_add(127) << 23)
}

/// `e^x - 1`, exact also for small `x`.
#[inline(always)]
pub fn expm1(x: f32) -> f32 {
    let y = 2.0 * half_expm1(x);
    if x.abs() < 1e-8 { x } else { y }
}

/// `(e^x - 1) / 2`, which is finite also where `e^x` is not, for `x` that is not subnormal.
#[inline(always)]
pub fn half_expm1(x: f32) -> f32 {
    // Below, the result rounds to -1/2; above, it is infinite.
    let x = clamp(x, -18.0, 89.5);
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = (r * r).mul_add(polynomial(r, EXP), r);
    // A quarter of 2^n, which is finite.
    let quarter = power_of_two((t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32).wrapping_sub(2));
    2.0 * (quarter * p + (quarter - 0.25))
}

/// `e^x` for each lane, for `x` up to 88, with fused multiply-adds if available. 0 if the result is subnormal.
#[inline(always)]
pub(super) fn exp_vectors<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |x| simd.splat_f32s(x);
    let round = splat(ROUND);
    let t = simd.mul_add_e_f32s(x, splat(LOG2_E), round);
    let n = simd.sub_f32s(t, round);
    let r = simd.mul_add_e_f32s(n, splat(-LN_2_HIGH), x);
    let r = simd.mul_add_e_f32s(n, splat(-LN_2_LOW), r);
    let mut p = splat(EXP[EXP.len() - 1]);
    for i in (0..EXP.len() - 1).rev() {
        p = simd.mul_add_e_f32s(p, r, splat(EXP[i]));
    }
    let p = simd.mul_add_e_f32s(simd.mul_f32s(r, r), p, r);
    let p = simd.add_f32s(p, splat(1.0));
    let biased = simd.add_u32s(simd.transmute_u32s_f32s(t), simd.splat_u32s(127));
    let scale = simd.wrapping_dyn_shl_u32s(biased, simd.splat_u32s(23));
    let y = simd.mul_f32s(p, simd.transmute_f32s_u32s(scale));
    let tiny = simd.less_than_f32s(x, splat(-87.3));
    simd.select_f32s(tiny, splat(0.0), y)
}

/// `e` and `m` of `x = m 2^e`, with `m` from `sqrt(1/2)` to `sqrt(2)`.
#[inline(always)]
fn exponent_and_rest(x: f32) -> [f32; 2] {
    // Subnormal numbers are first scaled to normal ones.
    let small = x < f32::MIN_POSITIVE;
    let scaled = if small { x * 8_388_608.0 } else { x };
    let shift = if small { -23.0 } else { 0.0 };
    let bits = scaled.to_bits().wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits());
    let e = (bits as i32 >> 23) as f32 + shift;
    [e, f32::from_bits((bits & 0x007f_ffff) + std::f32::consts::FRAC_1_SQRT_2.to_bits())]
}

/// `(ln(1 + f) - f + f^2 / 2) / f^3`, for `1 + f` from `sqrt(1/2)` to `sqrt(2)`.
#[inline(always)]
fn log_polynomial(f: f32) -> f32 {
    polynomial_by_pairs(
        f,
        [
            0.333_333_17,
            -0.250_008_16,
            0.200_023_03,
            -0.166_243_51,
            0.141_806_87,
            -0.131_304_05,
            0.128_859_42,
            -0.078_601_9,
        ],
    )
}

/// The logarithm of `x` where it is not `y`: negative numbers give NaN, zeros negative infinity.
#[inline(always)]
fn log_or_special(x: f32, y: f32) -> f32 {
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

/// The natural logarithm. Negative numbers give NaN, zeros negative infinity.
#[inline(always)]
pub fn log(x: f32) -> f32 {
    let [e, m] = exponent_and_rest(x);
    let f = m - 1.0;
    let z = f * f;
    let small = e.mul_add(LN_2_LOW, f * z * log_polynomial(f));
    log_or_special(x, e.mul_add(LN_2_HIGH, f + z.mul_add(-0.5, small)))
}

/// The logarithm to the base 2, exact for its powers.
#[inline(always)]
pub fn log2(x: f32) -> f32 {
    let [e, m] = exponent_and_rest(x);
    log_or_special(x, log_near_1(m).mul_add(LOG2_E, e))
}

/// The logarithm to the base 10.
#[inline(always)]
pub fn log10(x: f32) -> f32 {
    /// log10(2) in two parts. The first has so few bits that its product with an exponent is exact.
    const LOG10_2_HIGH: f32 = 1233.0 / 4096.0;
    const LOG10_2_LOW: f32 = 4.605_039e-6;
    let [e, m] = exponent_and_rest(x);
    let small = e.mul_add(LOG10_2_LOW, log_near_1(m) * std::f32::consts::LOG10_E);
    log_or_special(x, e.mul_add(LOG10_2_HIGH, small))
}

/// The natural logarithm of a number from `sqrt(1/2)` to `sqrt(2)`.
#[inline(always)]
fn log_near_1(m: f32) -> f32 {
    let f = m - 1.0;
    let z = f * f;
    f + z.mul_add(-0.5, f * z * log_polynomial(f))
}

/// The inverse tangent of `|x| <= tan(pi / 8)`.
#[inline(always)]
pub fn atan_near_0(x: f32) -> f32 {
    // (atan(x) / x - 1) / x^2 in x^2
    let z = x * x;
    let p = polynomial(z, [-0.333_333_15, 0.199_984_84, -0.142_437_39, 0.105_951_4, -0.060_811_565]);
    x + x * (z * p)
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    // (tanh(x) / x - 1) / x^2 in x^2, for |x| <= 0.625.
    let z = x * x;
    let p = polynomial(z, [-0.333_332_83, 0.133_314_7, -0.053_741_62, 0.020_644_133, -0.005_709_494]);
    let small = x + x * (z * p);
    (if a > 0.625 { large } else { small }).copysign(x)
}

/// The logistic function `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or 1, and it is so at the bounds.
    sigmoid_of_negated(clamp(-x, -18.0, 104.0))
}

/// `1 / (1 + e^x)` for `-18.5 <= x <= 105`.
#[inline(always)]
fn sigmoid_of_negated(x: f32) -> f32 {
    const SCALE: f32 = 1.0 / (1 << 30) as f32;
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = (r * r).mul_add(polynomial(r, EXP), r) + 1.0;
    // e^x times the scale is finite, also where e^x is not and the result is subnormal.
    let e = p * f32::from_bits(t.to_bits().wrapping_add(127 - 30) << 23);
    SCALE / (SCALE + e)
}

/// The error function.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    // -ln(erfc(a)) / a for 0.92 <= a <= 4; above, erf rounds to 1.
    let t = clamp(a, 0.0, 4.0);
    let q = polynomial_by_pairs(
        t,
        [
            1.128_648_5,
            0.635_151_3,
            0.106_236_89,
            -0.023_762_077,
            0.003_642_465_8,
            -0.000_322_805_6,
            0.000_011_231_49,
        ],
    );
    let large = 1.0 - exp_of_moderate(-t * q);
    // erf(x) / x - 1 in x^2, for |x| <= 0.93.
    let p = polynomial_by_pairs(
        x * x,
        [
            0.128_379_17,
            -0.376_126_34,
            0.112_836_94,
            -0.026_859_27,
            0.005_200_634,
            -0.000_813_743_6,
            0.000_083_452_18,
        ],
    );
    let small = x + x * p;
    (if a > 0.92 { large } else { small }).copysign(x)
}

/// GELU, `x (1 + erf(x / sqrt 2)) / 2`. Below 0 it is `x erfc(|x| / sqrt 2) / 2`, without a difference of neighbours.
///
/// Negative infinity gives NaN, as the formula does.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    /// Above, `erf(x / sqrt 2)` rounds to 1.
    const END: f32 = 4.0 * std::f32::consts::SQRT_2;
    /// The low bits of a sum with this are those of the exponent of `2^(n - 1)`.
    const ROUND_EXPONENT: f32 = ROUND + 126.0;
    let size = x.abs();
    let t = if size > END { END } else { size };
    // log2(erfc(t / sqrt 2)) / t
    let q = polynomial_by_pairs(
        t,
        [
            -1.151_108_6,
            -0.459_173_38,
            -0.052_611_61,
            0.007_239_104_2,
            -0.000_275_500_8,
            -0.000_127_885_55,
            0.000_027_020_626,
            -0.000_001_801_909,
        ],
    );
    // erfc / 2 = 2^(n - 1) 2^r
    let rounded = t.mul_add(q, ROUND_EXPONENT);
    let r = t.mul_add(q, -(rounded - ROUND_EXPONENT));
    let half = polynomial_by_pairs(r, EXP2) * f32::from_bits(rounded.to_bits() << 23);
    let half = if size > END { 0.0 } else { half };
    x * if x > 0.0 { 1.0 - half } else { half }
}

/// `2^r` for `|r| <= 1/2`.
const EXP2: [f32; 6] =
    [1.000_000_1, 0.693_146_97, 0.240_221_2, 0.055_507_134, 0.009_675_541, 0.001_327_647_2];

const TWO_SQRT_2_OVER_PI: f32 = 1.595_769_2;
const GELU_CUBIC: f32 = 0.044_715;

/// GELU in its tanh form, `x (1 + tanh(u)) / 2 = x sigmoid(2 u)` with `u = sqrt(2/pi) (x + 0.044715 x^3)`.
///
/// Negative infinity gives NaN, as the formula does.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    x * gelu_tanh_sigmoid(gelu_tanh_bounded(x))
}

/// The derivative of [`gelu_tanh`].
#[inline(always)]
pub fn gelu_tanh_grad(x: f32) -> f32 {
    let x = gelu_tanh_bounded(x);
    let s = gelu_tanh_sigmoid(x);
    let slope = (x * x).mul_add(3.0 * GELU_CUBIC * TWO_SQRT_2_OVER_PI, TWO_SQRT_2_OVER_PI);
    (x * s.mul_add(-s, s)).mul_add(slope, s)
}

/// The sigmoid of [`gelu_tanh`] for a bounded `x`.
#[inline(always)]
fn gelu_tanh_sigmoid(x: f32) -> f32 {
    sigmoid_of_negated(x * (x * x).mul_add(-GELU_CUBIC * TWO_SQRT_2_OVER_PI, -TWO_SQRT_2_OVER_PI))
}

/// Beyond these bounds the sigmoid of [`gelu_tanh`] is 0 or 1, and it is so at the bounds.
#[inline(always)]
fn gelu_tanh_bounded(x: f32) -> f32 {
    clamp(x, -10.7, 5.2)
}

/// `x^y`, nearly always correctly rounded, with the special cases of C's `pow`: a logarithm and a power in f64, with as many digits as
/// an f32 needs.
#[inline(always)]
pub fn pow(x: f32, y: f32) -> f32 {
    let (size, exponent) = (f64::from(x.abs()), f64::from(y));
    let power = exponent * log_for_power(size);
    // 1^y and x^0 are 1, also for infinite and NaN operands.
    let power = if (y == 0.0) | (size == 1.0) { 0.0 } else { power };
    let result = power_of_e(power);
    // From 2^24 on, every f32 is even, and so are infinities.
    let is_whole = y.trunc() == y;
    let is_odd = is_whole & ((y * 0.5).trunc() * 2.0 != y);
    let signed = if is_odd & x.is_sign_negative() { -result } else { result };
    if (x < 0.0) & (x > f32::NEG_INFINITY) & !is_whole { f32::NAN } else { signed }
}

/// The logarithm of the magnitude of an f32, with a relative error of 2^-44.
#[inline(always)]
fn log_for_power(size: f64) -> f64 {
    /// `(ln((1 + s) / (1 - s)) / s - 2) / s^2` in `s^2`, for `(1 + s) / (1 - s)` from `sqrt(1/2)` to `sqrt(2)`.
    const LOG: [f64; 5] = [
        0.666_666_666_758_045_6,
        0.399_999_956_207_530_4,
        0.285_721_092_611_505_9,
        0.221_761_848_051_954_3,
        0.195_842_027_260_148_4,
    ];
    // size = m 2^e with m from sqrt(1/2) to sqrt(2).
    let middle = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    let bits = size.to_bits().wrapping_sub(middle);
    // Of a positive number, because not every machine shifts negative ones of 64 bits, and as a sum, because not every machine converts
    // them.
    let biased = bits.wrapping_add(1024 << 52) >> 52;
    let e = f64::from_bits(f64::ROUND.to_bits().wrapping_add(biased)) - (f64::ROUND + 1024.0);
    let m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(middle));
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let log = e.mul_add(std::f64::consts::LN_2, s * z.mul_add(f64::polynomial_by_pairs(z, LOG), 2.0));
    let log = if size == 0.0 { f64::NEG_INFINITY } else { log };
    if size < f64::INFINITY { log } else { size }
}

/// `e^x`, rounded once, with a relative error of 2^-39 before.
#[inline(always)]
fn power_of_e(x: f64) -> f32 {
    /// `(e^r - 1 - r) / r^2` for `|r| <= ln(2) / 2`.
    const EXP: [f64; 7] = [
        0.500_000_000_042_715_4,
        0.166_666_667_845_123_9,
        0.041_666_664_403_713_26,
        0.008_333_281_787_503_626,
        0.001_388_919_725_528_974,
        0.000_199_089_524_612_001_8,
        2.470_826_910_060_868e-5,
    ];
    // Beyond these bounds the result is 0 or infinite, and it is so at the bounds.
    let x = if x < -110.0 { -110.0 } else { x };
    let x = if x > 90.0 { 90.0 } else { x };
    let t = x.mul_add(std::f64::consts::LOG2_E, f64::ROUND);
    let r = (t - f64::ROUND).mul_add(-std::f64::consts::LN_2, x);
    let p = (r * r).mul_add(f64::polynomial_by_pairs(r, EXP), r + 1.0);
    // 2^n: the low bits of the sum are n.
    let scale = f64::from_bits(t.to_bits().wrapping_add(1023) << 52);
    (p * scale) as f32
}

/// The sine, nearly always correctly rounded; [`sines`] are within 1 ulp of it.
pub fn sin(x: f32) -> f32 {
    libm::sin(f64::from(x)) as f32
}

/// The cosine, nearly always correctly rounded; [`cosines`] are within 1 ulp of it.
pub fn cos(x: f32) -> f32 {
    libm::cos(f64::from(x)) as f32
}

/// `y[i] = sin(x[i])`
pub fn sines(x: &[f32], y: &mut [f32]) {
    f64::by_quarters(
        x,
        y,
        #[inline(always)]
        |x| quarter_wave(x, 0),
        sin,
    );
}

/// The tangent, nearly always correctly rounded; [`tangents`] are within 3 ulp of it.
pub fn tan(x: f32) -> f32 {
    libm::tan(f64::from(x)) as f32
}

/// `y[i] = tan(x[i])`
pub fn tangents(x: &[f32], y: &mut [f32]) {
    f64::by_quarters(x, y, quarter_tangent, tan);
}

/// `y[i] = cos(x[i])`
pub fn cosines(x: &[f32], y: &mut [f32]) {
    f64::by_quarters(
        x,
        y,
        #[inline(always)]
        |x| quarter_wave(x, 1),
        cos,
    );
}

/// The sine of `x` plus `more` quarters of a turn, for `|x| <= 10^6`.
#[inline(always)]
fn quarter_wave(x: f32, more: u32) -> f32 {
    let (sine, cosine, quarter) = in_first_quarter(x);
    of_quarter(quarter.wrapping_add(more), sine, cosine)
}

/// The tangent of `x`, for `|x| <= 10^6`.
#[inline(always)]
fn quarter_tangent(x: f32) -> f32 {
    let (sine, cosine, quarter) = in_first_quarter(x);
    let (above, below) = if quarter & 1 == 0 { (sine, cosine) } else { (-cosine, sine) };
    above / below
}

/// The sine and the cosine of how far `x` is from the nearest quarter of a turn, and a number whose lowest bits are those of the number
/// of that quarter. The distance is computed in f64.
#[inline(always)]
fn in_first_quarter(x: f32) -> (f32, f32, u32) {
    let (r, n) = f64::quarters(f64::from(x));
    let r = r as f32;
    // Of the absolute value, so that the sign of zero stays.
    let (a, z) = (r.abs(), r * r);
    let sine = a.mul_add(z * polynomial(z, SIN), a).copysign(r);
    // With what the rounding of 1 - z / 2 leaves out.
    let half = 0.5 * z;
    let rounded = 1.0 - half;
    let cosine = rounded + (z * z).mul_add(polynomial(z, COS), (1.0 - rounded) - half);
    (sine, cosine, n as u32)
}

/// The sine in quarter `n` of a turn, from the sine and the cosine in the first.
#[inline(always)]
fn of_quarter(n: u32, sine: f32, cosine: f32) -> f32 {
    let size = if n & 1 == 0 { sine } else { cosine };
    f32::from_bits(size.to_bits() ^ (n & 2) << 30)
}

/// The sine of a number of 16 bits plus `more` quarters of a turn, for `|x| <= 2^16`, in the arithmetic of f32: nearly always the one
/// that is nearest in 16 bits.
#[inline(always)]
pub(crate) fn quarter_wave_of_half(x: f32, more: u32) -> f32 {
    let t = x.mul_add(std::f32::consts::FRAC_2_PI, ROUND);
    let n = t - ROUND;
    // The first product has the last place of a number below 1, and so has `x`, unless `n` is 0: nothing is rounded.
    let r = n.mul_add(-HALF_PI[0], x);
    let r = n.mul_add(-HALF_PI[2], n.mul_add(-HALF_PI[1], r));
    let z = r * r;
    // One product, so that the sign of zero stays.
    let sine = r * z.mul_add(polynomial(z, SIN), 1.0);
    let cosine = (z * z).mul_add(polynomial(z, COS), z.mul_add(-0.5, 1.0));
    of_quarter(t.to_bits().wrapping_add(more), sine, cosine)
}

/// pi / 2 in three parts. The first one is the number below it, so that all are positive and 0 times each is subtracted without
/// a change of the sign of zero.
const HALF_PI: [f32; 3] = [f32::from_bits(0x3FC9_0FDA), 7.549_789_4e-8, 5.390_303e-15];
/// `(sin(r) / r - 1) / r^2` in `r^2` for `|r| <= pi / 4`.
const SIN: [f32; 3] = [-0.166_666_55, 0.008_332_177, -0.000_195_171_38];
/// `(cos(r) - 1 + r^2 / 2) / r^4` in `r^2` for `|r| <= pi / 4`.
const COS: [f32; 3] = [0.041_666_646, -0.001_388_736_7, 2.443_827_2e-5];
