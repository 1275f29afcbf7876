//! The inverse of the error function.

use std::f64::consts::FRAC_1_SQRT_2;

/// The quantile function of the normal distribution in the middle, and of `sqrt(-ln(p))` in the tails of probability p: quotients of
/// polynomials (Wichura, Algorithm AS 241: The percentage points of the normal distribution, 1988).
const MIDDLE: [[f64; 8]; 2] = [
    [
        3.387_132_872_796_366_5,
        133.141_667_891_784_38,
        1_971.590_950_306_551_3,
        13_731.693_765_509_46,
        45_921.953_931_549_87,
        67_265.770_927_008_7,
        33_430.575_583_588_13,
        2_509.080_928_730_122_7,
    ],
    [
        1.0,
        42.313_330_701_600_91,
        687.187_007_492_057_9,
        5_394.196_021_424_751,
        21_213.794_301_586_597,
        39_307.895_800_092_71,
        28_729.085_735_721_943,
        5_226.495_278_852_854,
    ],
];
const TAIL: [[f64; 8]; 2] = [
    [
        1.423_437_110_749_683_5,
        4.630_337_846_156_546,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        0.241_780_725_177_450_6,
        0.022_723_844_989_269_184,
        7.745_450_142_783_414e-4,
    ],
    [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        0.689_767_334_985_1,
        0.148_103_976_427_480_08,
        0.015_198_666_563_616_457,
        5.475_938_084_995_345e-4,
        1.050_750_071_644_416_9e-9,
    ],
];
const FAR_TAIL: [[f64; 8]; 2] = [
    [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        0.296_560_571_828_504_87,
        0.026_532_189_526_576_124,
        1.242_660_947_388_078_4e-3,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288e-7,
    ],
    [
        1.0,
        0.599_832_206_555_887_9,
        0.136_929_880_922_735_8,
        0.014_875_361_290_850_615,
        7.868_691_311_456_133e-4,
        1.846_318_317_510_054_7e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ],
];

/// The number whose error function is `x`: infinite at 1 and -1, NaN beyond.
pub fn erfinv(x: f64) -> f64 {
    let quotient = |[above, below]: [[f64; 8]; 2], x: f64| {
        let sum = |c: [f64; 8]| c.iter().rev().fold(0.0, |sum, c| sum * x + c);
        sum(above) / sum(below)
    };
    // The distance of the probability (1 + x) / 2 from 1/2.
    let q = 0.5 * x;
    if q.abs() <= 0.425 {
        return q * quotient(MIDDLE, 0.180_625 - q * q) * FRAC_1_SQRT_2;
    }
    if x.abs() == 1.0 {
        return x * f64::INFINITY;
    }
    let r = (-(0.5 * (1.0 - x.abs())).ln()).sqrt();
    let y = if r <= 5.0 { quotient(TAIL, r - 1.6) } else { quotient(FAR_TAIL, r - 5.0) };
    (y * FRAC_1_SQRT_2).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_inverse_of_the_error_function() {
        for i in 1..600 {
            // A step of x is one of the result times a slope, so a rounding of the result is seen as one of x.
            let y = f64::from(i) * 0.009_7;
            let x = libm::erf(y);
            let slope = std::f64::consts::FRAC_2_SQRT_PI * (-y * y).exp();
            let bound = 6.0 * f64::EPSILON * y + 2.0 * f64::EPSILON * x / slope;
            assert!((erfinv(x) - y).abs() <= bound, "{x}: {}, not {y}", erfinv(x));
            assert_eq!(erfinv(-x), -erfinv(x));
        }
        // 10 digits and more of tables: half of the probability lies within 0.674 standard deviations.
        assert!((erfinv(0.5) * std::f64::consts::SQRT_2 - 0.674_489_750_196_081_7).abs() < 1e-15);
        assert!((erfinv(1.0 - 2e-12) * std::f64::consts::SQRT_2 - 7.034_483_825_365_493).abs() < 1e-4);
    }

    #[test]
    fn the_ends_are_infinite_and_beyond_is_nan() {
        assert_eq!([erfinv(1.0), -erfinv(-1.0)], [f64::INFINITY; 2]);
        assert!([1.5, -2.0, f64::NAN, f64::INFINITY].iter().all(|&x| erfinv(x).is_nan()));
        assert_eq!(erfinv(-0.0).to_bits(), (-0.0f64).to_bits());
        let slope = erfinv(f64::MIN_POSITIVE) / f64::MIN_POSITIVE;
        assert!((slope - 0.886_226_925_452_758).abs() < 1e-15, "{slope}");
    }
}
