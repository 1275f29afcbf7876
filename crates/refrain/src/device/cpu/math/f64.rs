//! The same functions for `f64`, also without branches and calls. Only `sin`, `cos` and `tan` of single numbers call `libm`.

pub use libm::{cos, sin, tan};
use pulp::Simd;

use super::super::simd::simd;
use super::polynomials::polynomials;

const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// ln 2 in two parts. The first part has so few bits that its product with an exponent is exact.
const LN_2_HIGH: f64 = 0.693_147_180_559_663;
const LN_2_LOW: f64 = 2.823_529_056_303_157_8e-13;
/// Adding and subtracting this rounds to an integer. The low bits of the sum are that integer.
pub(super) const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52

polynomials!(f64);

/// `2^n` for `-1022 <= n <= 1023`.
#[inline(always)]
fn power_of_two(n: i64) -> f64 {
    f64::from_bits((n.wrapping_add(1023) as u64) << 52)
}

/// `(e^r - 1 - r) / r^2` for `|r| <= ln(2) / 2`.
const EXP: [f64; 10] = [
    0.500_000_000_000_000_1,
    0.166_666_666_666_666_69,
    0.041_666_666_666_624_13,
    0.008_333_333_333_330_062,
    0.001_388_888_891_721_371_7,
    0.000_198_412_698_630_536_18,
    2.480_152_129_595_437_6e-5,
    2.755_726_845_999_706_4e-6,
    2.762_008_844_540_974_6e-7,
    2.510_038_549_551_032e-8,
];

/// `e^r 2^n` for `|r| <= ln(2) / 2`, from the sum `t` of `n` and [`ROUND`]. `n` is between -1076 and 1024.
#[inline(always)]
fn exp_of_parts(r: f64, t: f64) -> f64 {
    let p = (r * r).mul_add(polynomial(r, EXP), r) + 1.0;
    // 2^n in two factors, because it may be subnormal or infinite.
    let n = (t.to_bits() as i64).wrapping_sub(ROUND.to_bits() as i64);
    let half = n >> 1;
    p * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `e^(x + low)`, where `low` is small beside `x`.
#[inline(always)]
fn exp_of_sum(x: f64, low: f64) -> f64 {
    // Beyond these bounds the result is 0 or infinite, and it is so at the bounds.
    let x = if x < -746.0 { -746.0 } else { x };
    let x = if x > 710.0 { 710.0 } else { x };
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    exp_of_parts(n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x)) + low, t)
}

/// `e^x`.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    exp_of_sum(x, 0.0)
}

/// `2^x`.
#[inline(always)]
pub fn exp2(x: f64) -> f64 {
    // Beyond these bounds the result is 0 or infinite, and it is so at the bounds.
    let x = if x < -1075.0 { -1075.0 } else { x };
    let x = if x > 1024.0 { 1024.0 } else { x };
    let t = x + ROUND;
    exp_of_parts((x - (t - ROUND)) * std::f64::consts::LN_2, t)
}

/// `e^x` for `|x| <= 700`.
#[inline(always)]
fn exp_of_moderate(x: f64) -> f64 {
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = (r * r).mul_add(polynomial_by_pairs(r, EXP), r) + 1.0;
    // 2^n: the low bits of the sum are n.
    p * f64::from_bits(t.to_bits().wrapping_add(1023) << 52)
}

/// `e^x - 1`, exact also for small `x`.
#[inline(always)]
pub fn expm1(x: f64) -> f64 {
    let y = 2.0 * half_expm1(x);
    if x.abs() < 2e-17 { x } else { y }
}

/// `(e^x - 1) / 2`, which is finite also where `e^x` is not, for `x` that is not subnormal.
#[inline(always)]
pub fn half_expm1(x: f64) -> f64 {
    // Below, the result rounds to -1/2; above, it is infinite.
    let x = if x < -40.0 { -40.0 } else { x };
    let x = if x > 710.5 { 710.5 } else { x };
    let t = x.mul_add(LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let p = (r * r).mul_add(polynomial(r, EXP), r);
    // A quarter of 2^n, which is finite.
    let quarter = power_of_two((t.to_bits() as i64).wrapping_sub(ROUND.to_bits() as i64).wrapping_sub(2));
    2.0 * (quarter * p + (quarter - 0.25))
}

/// `e^x` for each lane.
#[inline(always)]
pub(in super::super) fn exp_vectors<S: Simd>(_simd: S, x: S::f64s) -> S::f64s {
    let mut y = x;
    for y in bytemuck::cast_slice_mut::<_, f64>(std::slice::from_mut(&mut y)) {
        *y = exp(*y);
    }
    y
}

/// `(ln((1 + s) / (1 - s)) / s - 2) / s^2` in `s^2`, for `(1 + s) / (1 - s)` from `sqrt(1/2)` to `sqrt(2)`.
const LOG: [f64; 7] = [
    0.666_666_666_666_667,
    0.399_999_999_998_988_9,
    0.285_714_286_262_538_36,
    0.222_222_110_893_794_96,
    0.181_828_924_325_368_7,
    0.153_316_117_220_550_08,
    0.146_178_071_534_173_25,
];

/// `e` and `m` of `x = m 2^e`, with `m` from `sqrt(1/2)` to `sqrt(2)`.
#[inline(always)]
fn exponent_and_rest(x: f64) -> [f64; 2] {
    // Subnormal numbers are first scaled to normal ones.
    let small = x < f64::MIN_POSITIVE;
    let scaled = if small { x * 18_014_398_509_481_984.0 } else { x };
    let shift = if small { -54.0 } else { 0.0 };
    let [e, m] = normal_exponent_and_rest(scaled);
    [e + shift, m]
}

/// The same of a number that is not subnormal.
#[inline(always)]
fn normal_exponent_and_rest(x: f64) -> [f64; 2] {
    let middle = std::f64::consts::FRAC_1_SQRT_2.to_bits();
    let bits = x.to_bits().wrapping_sub(middle);
    // As a sum, because not every machine converts integers of 64 bits.
    let e = f64::from_bits(ROUND.to_bits().wrapping_add((bits as i64 >> 52) as u64)) - ROUND;
    [e, f64::from_bits((bits & 0x000f_ffff_ffff_ffff).wrapping_add(middle))]
}

/// `f - ln(1 + f) - below`, for `1 + f` from `sqrt(1/2)` to `sqrt(2)`.
#[inline(always)]
fn log_below(f: f64, below: f64) -> f64 {
    let s = f / (2.0 + f);
    let z = s * s;
    // ln(1 + f) = 2 s + s z p, and 2 s = f - s f.
    s * (f - z * polynomial(z, LOG)) - below
}

/// The natural logarithm of `m 2^e`, with `m` from `sqrt(1/2)` to `sqrt(2)`.
#[inline(always)]
fn log_of_product([e, m]: [f64; 2]) -> f64 {
    let f = m - 1.0;
    e * LN_2_HIGH + (f - log_below(f, e * LN_2_LOW))
}

/// The natural logarithm of a number above 0 that is neither subnormal nor infinite.
#[inline(always)]
pub fn log_of_normal(x: f64) -> f64 {
    log_of_product(normal_exponent_and_rest(x))
}

/// The logarithm of `x` where it is not `y`: negative numbers give NaN, zeros negative infinity.
#[inline(always)]
fn log_or_special(x: f64, y: f64) -> f64 {
    let y = if x == f64::INFINITY { x } else { y };
    let y = if x == 0.0 { f64::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f64::NAN }
}

/// The natural logarithm. Negative numbers give NaN, zeros negative infinity.
#[inline(always)]
pub fn log(x: f64) -> f64 {
    log_or_special(x, log_of_product(exponent_and_rest(x)))
}

/// The natural logarithm of a number from `sqrt(1/2)` to `sqrt(2)`.
#[inline(always)]
fn log_near_1(m: f64) -> f64 {
    let f = m - 1.0;
    f - log_below(f, 0.0)
}

/// The logarithm to the base 2, exact for its powers.
#[inline(always)]
pub fn log2(x: f64) -> f64 {
    let [e, m] = exponent_and_rest(x);
    log_or_special(x, log_near_1(m).mul_add(LOG2_E, e))
}

/// The logarithm to the base 10.
#[inline(always)]
pub fn log10(x: f64) -> f64 {
    /// log10(2) in two parts. The first has so few bits that its product with an exponent is exact.
    const LOG10_2_HIGH: f64 = 0.301_029_995_663_157;
    const LOG10_2_LOW: f64 = 8.241_712_586_023_572e-13;
    let [e, m] = exponent_and_rest(x);
    let small = log_near_1(m).mul_add(std::f64::consts::LOG10_E, e * LOG10_2_LOW);
    log_or_special(x, e.mul_add(LOG10_2_HIGH, small))
}

/// The product of two numbers, and what its rounding left out.
#[inline(always)]
fn two_product(a: f64, b: f64) -> [f64; 2] {
    let product = a * b;
    [product, a.mul_add(b, -product)]
}

/// `2/5 + 2/7 z + 2/9 z^2 + ...`, which is `((ln((1 + s) / (1 - s)) / s - 2) / s^2 - 2/3) / s^2` for `z = s^2`.
const LOG_SERIES: [f64; 11] = [
    2.0 / 5.0,
    2.0 / 7.0,
    2.0 / 9.0,
    2.0 / 11.0,
    2.0 / 13.0,
    2.0 / 15.0,
    2.0 / 17.0,
    2.0 / 19.0,
    2.0 / 21.0,
    2.0 / 23.0,
    2.0 / 25.0,
];

/// `x^y`, within 1 ulp nearly always, with the special cases of C's `pow`. Where the processor has no fused multiply-add, it
/// is a call.
#[inline(always)]
pub fn pow(x: f64, y: f64) -> f64 {
    let size = x.abs();
    // Beyond these bounds, the power is 0 or infinite, and it is so at the bounds.
    let exponent = if y < -1e20 { -1e20 } else { y };
    let exponent = if exponent > 1e20 { 1e20 } else { exponent };
    // As in `log`: size = m 2^e, f = m - 1, s = f / (2 + f), and ln(m) = s (2 + z (2/3 + z q)) for z = s^2. But each number
    // is a sum of two, because the logarithm is multiplied by the exponent.
    let [e, m] = exponent_and_rest(size);
    let f = m - 1.0;
    let d = 2.0 + f;
    let s = f / d;
    let [product, rest] = two_product(s, d);
    let s_low = (f - product - rest - s * (f - (d - 2.0))) / d;
    let [z, rest] = two_product(s, s);
    let z_low = rest + 2.0 * s * s_low;
    let q = z * polynomial(z, LOG_SERIES);
    let third = 2.0 / 3.0 + q;
    // What 2/3 lacks in f64.
    let third_low = 2.0 / 3.0 - third + q + 3.700_743_415_417_188e-17;
    let [u, rest] = two_product(z, third);
    let u_low = rest + z * third_low + z_low * third;
    let w = 2.0 + u;
    let w_low = 2.0 - w + u + u_low;
    let [l, rest] = two_product(s, w);
    let l_low = rest + s * w_low + s_low * w;
    let whole = e * LN_2_HIGH;
    let sum = whole + l;
    let added = sum - whole;
    let sum_low = (whole - (sum - added)) + (l - added) + (l_low + e * LN_2_LOW);
    let log = sum + sum_low;
    let log_low = sum - log + sum_low;
    let [power, rest] = two_product(log, exponent);
    let power_low = if power.abs() < 800.0 { rest + log_low * exponent } else { 0.0 };
    let grown = exp_of_sum(power, power_low);
    let grows = (size > 1.0) == (y > 0.0);
    let at_end = if grows { f64::INFINITY } else { 0.0 };
    let grown = if (size == 0.0) | (size == f64::INFINITY) { at_end } else { grown };
    // From 2^53 on, every f64 is even, and so are infinities.
    let is_whole = y.trunc() == y;
    let is_odd = is_whole & ((y * 0.5).trunc() * 2.0 != y);
    let signed = if is_odd & x.is_sign_negative() { -grown } else { grown };
    let is_one = (y == 0.0) | (x == 1.0) | ((x == -1.0) & (y.abs() == f64::INFINITY));
    let is_nan = x.is_nan() | y.is_nan() | ((x < 0.0) & (x > f64::NEG_INFINITY) & !is_whole);
    let result = if is_nan { f64::NAN } else { signed };
    if is_one { 1.0 } else { result }
}

/// The hyperbolic tangent.
#[inline(always)]
pub fn tanh(x: f64) -> f64 {
    let a = x.abs();
    let large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    // Lambert's continued fraction x / (1 + x^2 / (3 + x^2 / (5 + ...))) down to 15, for |x| <= 0.625.
    let z = x * x;
    let above = polynomial(z, [675_675.0, 45_045.0, 594.0, 1.0]);
    let below = polynomial(z, [2_027_025.0, 945_945.0, 51_975.0, 630.0, 1.0]);
    let small = x - x * (z * above / below);
    (if a > 0.625 { large } else { small }).copysign(x)
}

/// `erf(x) / x - 1` in `x^2`, for `|x| <= 0.93`.
const ERF: [f64; 12] = [
    0.128_379_167_095_512_6,
    -0.376_126_389_031_837_1,
    0.112_837_916_709_526_7,
    -0.026_866_170_644_598_356,
    0.005_223_977_619_463_788,
    -0.000_854_832_662_736_096_5,
    0.000_120_553_163_214_916_24,
    -1.492_518_796_567_179_7e-5,
    1.645_351_942_867_852_5e-6,
    -1.625_957_067_582_667_8e-7,
    1.396_189_100_122_821_2e-8,
    -8.289_997_538_979_147e-10,
];
/// `-ln(erfc(x)) / x` for `0.91 <= x <= 6`.
const ERFC: [f64; 19] = [
    1.128_379_202_765_241_7,
    0.636_619_348_853_091,
    0.102_774_969_066_936_88,
    -0.019_136_715_258_077_624,
    -0.000_188_915_705_785_811_17,
    0.001_659_107_557_407_202_4,
    -0.000_537_621_305_464_601_2,
    -3.291_738_648_727_890_4e-5,
    0.000_117_269_278_409_658_18,
    -6.787_057_806_520_464e-5,
    2.548_243_741_019_398_7e-5,
    -7.157_396_252_054_658e-6,
    1.561_952_062_430_609e-6,
    -2.660_224_458_138_001_6e-7,
    3.485_233_856_235_805e-8,
    -3.400_125_575_283_928_7e-9,
    2.328_398_702_501_38e-10,
    -9.987_279_845_208_334e-12,
    2.018_331_217_426_892_4e-13,
];

/// The error function.
#[inline(always)]
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    // Above 6, erf rounds to 1.
    let t = if a > 6.0 { 6.0 } else { a };
    let large = 1.0 - exp_of_moderate(-t * polynomial_by_pairs(t, ERFC));
    let small = x + x * polynomial_by_pairs(x * x, ERF);
    (if a > 0.92 { large } else { small }).copysign(x)
}

/// The logistic function `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f64) -> f64 {
    let e = exp(-x.abs());
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

const TWO_SQRT_2_OVER_PI: f64 = 1.595_769_121_605_730_7;

/// See [`super::gelu_tanh`].
#[inline(always)]
pub fn gelu_tanh(x: f64) -> f64 {
    x * sigmoid(TWO_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x))
}

/// See [`super::gelu`].
#[inline(always)]
pub fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))
}

/// See [`super::gelu_tanh_grad`].
#[inline(always)]
pub fn gelu_tanh_grad(x: f64) -> f64 {
    let x = if x < -50.0 { -50.0 } else { x };
    let x = if x > 50.0 { 50.0 } else { x };
    let s = sigmoid(TWO_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x));
    s + x * (s * (1.0 - s)) * (TWO_SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * x * x))
}

/// pi / 2 in three parts of 33, 33 and 53 bits: the products of the first two with an integer of 20 bits are exact.
const HALF_PI: [f64; 3] = [1.570_796_326_734_125_6, 6.077_100_506_303_966e-11, 2.022_266_248_795_950_6e-21];
/// The largest number that [`quarters`] takes.
const MOST: f64 = 1e6;

/// How far `x` is from the nearest multiple `n` of a quarter of a turn, and the bits of a number whose lowest are those
/// of `n`. For `|x| <= 10^6`.
#[inline(always)]
pub(super) fn quarters(x: f64) -> (f64, u64) {
    let t = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = t - ROUND;
    let r = n.mul_add(-HALF_PI[1], n.mul_add(-HALF_PI[0], x));
    (n.mul_add(-HALF_PI[2], r), t.to_bits())
}

/// The sine in quarter `n` of a turn, from the sine and the cosine in the first.
#[inline(always)]
fn of_quarter(n: u64, sine: f64, cosine: f64) -> f64 {
    let size = if n & 1 == 0 { sine } else { cosine };
    f64::from_bits(size.to_bits() ^ (n & 2) << 62)
}

/// The tangent in quarter `n` of a turn, from the sine and the cosine in the first.
#[inline(always)]
fn tangent_of_quarter(n: u64, sine: f64, cosine: f64) -> f64 {
    let (above, below) = if n & 1 == 0 { (sine, cosine) } else { (-cosine, sine) };
    above / below
}

/// `y[i] = near(x[i])`, but `far` for numbers beyond what [`quarters`] takes.
#[inline(always)]
pub(super) fn by_quarters<T: Copy + Into<f64>>(x: &[T], y: &mut [T], near: impl Fn(T) -> T, far: fn(T) -> T) {
    let is_far = |x: T| {
        let x: f64 = x.into();
        (x.abs() > MOST) | x.is_nan()
    };
    let any = simd(
        #[inline(always)]
        || {
            y.iter_mut().zip(x).for_each(|(y, &x)| *y = near(x));
            x.iter().fold(false, |any, &x| any | is_far(x))
        },
    );
    if any {
        y.iter_mut().zip(x).filter(|(_, x)| is_far(**x)).for_each(|(y, &x)| *y = far(x));
    }
}

/// `y[i] = sin(x[i])`
pub fn sines(x: &[f64], y: &mut [f64]) {
    by_quarters(
        x,
        y,
        #[inline(always)]
        |x| quarter_wave(x, 0),
        sin,
    );
}

/// `y[i] = cos(x[i])`
pub fn cosines(x: &[f64], y: &mut [f64]) {
    by_quarters(
        x,
        y,
        #[inline(always)]
        |x| quarter_wave(x, 1),
        cos,
    );
}

/// `y[i] = tan(x[i])`
pub fn tangents(x: &[f64], y: &mut [f64]) {
    by_quarters(
        x,
        y,
        #[inline(always)]
        |x| {
            let (r, n) = quarters(x);
            let [sine, cosine] = sine_and_cosine_near_0(r);
            tangent_of_quarter(n, sine, cosine)
        },
        tan,
    );
}

/// The sine of `x` plus `more` quarters of a turn, for `|x| <= 10^6`.
#[inline(always)]
fn quarter_wave(x: f64, more: u64) -> f64 {
    let (r, n) = quarters(x);
    wave(r, n.wrapping_add(more))
}

/// The sine of `r` plus `n` quarters of a turn, for `|r| <= pi / 4`.
#[inline(always)]
fn wave(r: f64, n: u64) -> f64 {
    let [sine, cosine] = sine_and_cosine_near_0(r);
    of_quarter(n, sine, cosine)
}

/// The sine and the cosine of `|r| <= pi / 4`.
#[inline(always)]
fn sine_and_cosine_near_0(r: f64) -> [f64; 2] {
    let z = r * r;
    // Of the absolute value, so that the sign of zero stays.
    let a = r.abs();
    [(a + a * z * polynomial(z, SIN)).copysign(r), 1.0 - 0.5 * z + z * z * polynomial(z, COS)]
}

/// The inverse tangent of `|x| <= tan(pi / 8)`.
#[inline(always)]
pub fn atan_near_0(x: f64) -> f64 {
    // (atan(x) / x - 1) / x^2 in x^2
    let z = x * x;
    let p = polynomial_by_pairs(
        z,
        [
            -0.333_333_333_333_332,
            0.199_999_999_999_536_62,
            -0.142_857_142_802_039_5,
            0.111_111_107_838_103_13,
            -0.090_908_977_669_591_7,
            0.076_920_603_597_617_7,
            -0.066_631_054_345_938_77,
            0.058_478_972_545_868_13,
            -0.050_393_302_800_989_68,
            0.038_064_942_659_647_836,
            -0.017_907_332_030_918_48,
        ],
    );
    x + x * (z * p)
}

/// The sine and the cosine of `x`, for `|x| <= 10^6`.
#[inline(always)]
pub fn sine_and_cosine(x: f64) -> [f64; 2] {
    [quarter_wave(x, 0), quarter_wave(x, 1)]
}

/// The sine and the cosine of `v` turns, from 0 to 1, faster than those of an angle.
#[inline(always)]
pub fn sine_and_cosine_of_turns(v: f64) -> [f64; 2] {
    let t = 4.0 * v + ROUND;
    let n = t - ROUND;
    // The difference is exact.
    let r = std::f64::consts::TAU * (v - 0.25 * n);
    [wave(r, t.to_bits()), wave(r, t.to_bits().wrapping_add(1))]
}

/// `(sin(r) / r - 1) / r^2` in `r^2` for `|r| <= pi / 4`.
const SIN: [f64; 6] = [
    -0.166_666_666_666_666_66,
    0.008_333_333_333_330_946,
    -0.000_198_412_698_367_549_7,
    2.755_731_610_068_303e-6,
    -2.505_113_145_542_794_6e-8,
    1.591_810_123_027_412e-10,
];
/// `(cos(r) - 1 + r^2 / 2) / r^4` in `r^2` for `|r| <= pi / 4`.
const COS: [f64; 6] = [
    0.041_666_666_666_666_664,
    -0.001_388_888_888_888_739_5,
    2.480_158_729_876_343_3e-5,
    -2.755_731_727_056_032_6e-7,
    2.087_614_602_468_974_9e-9,
    -1.138_261_486_855_632_5e-11,
];
