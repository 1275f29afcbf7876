//! The logarithm of the gamma function and its derivatives, in f64.
//!
//! From 10 on they are Stirling's series, whose first term that is left out is below 1e-16; recurrences lead there from smaller
//! arguments, and reflection from negative ones (Abramowitz and Stegun, 1964, sections 6.1, 6.3 and 6.4).

use std::f64::consts::PI;

/// From here on Stirling's series are used.
const LARGE: f64 = 10.0;
/// `ln(2 pi) / 2`
const HALF_LN_TWO_PI: f64 = 0.918_938_533_204_672_8;

/// `c[0] + c[1] x + c[2] x^2 + ...`
#[inline(always)]
fn polynomial<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    c.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// `sin(pi x)` and `cos(pi x)`, 0 and 1 for whole numbers up to the sign.
fn sine_and_cosine(x: f64) -> (f64, f64) {
    let rest = x - 2.0 * (0.5 * x).round();
    ((PI * rest).sin(), (PI * rest).cos())
}

/// `ln |gamma(x)|`. Infinite at 0 and at negative whole numbers.
pub fn lgamma(x: f64) -> f64 {
    if x <= 0.0 {
        if x == x.floor() {
            return f64::INFINITY;
        }
        return (PI / sine_and_cosine(x).0.abs()).ln() - lgamma(1.0 - x);
    }
    if x == f64::INFINITY {
        return x;
    }
    let (mut x, mut product) = (x, 1.0);
    while x < LARGE {
        product *= x;
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = polynomial(
        square,
        [
            1.0 / 12.0,
            -1.0 / 360.0,
            1.0 / 1260.0,
            -1.0 / 1680.0,
            1.0 / 1188.0,
            -691.0 / 360_360.0,
            1.0 / 156.0,
        ],
    ) / x;
    (x - 0.5) * x.ln() - x + HALF_LN_TWO_PI + series - product.ln()
}

/// The derivative of [`lgamma`]. NaN at negative whole numbers, infinite with the other sign of the zero at 0.
pub fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        if x == x.floor() {
            return f64::NAN;
        }
        let (sine, cosine) = sine_and_cosine(x);
        return digamma(1.0 - x) - PI * cosine / sine;
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < LARGE {
        sum += 1.0 / x;
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = polynomial(
        square,
        [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32_760.0, 1.0 / 12.0],
    ) * square;
    x.ln() - 0.5 / x - series - sum
}

/// The derivative of [`digamma`]. Infinite at 0 and at negative whole numbers.
pub fn trigamma(x: f64) -> f64 {
    if x <= 0.0 {
        if x == x.floor() {
            return f64::INFINITY;
        }
        let ratio = PI / sine_and_cosine(x).0;
        return ratio * ratio - trigamma(1.0 - x);
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < LARGE {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = polynomial(
        square,
        [1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0],
    ) * square;
    (1.0 + 0.5 / x + series) / x + sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_of_known_arguments() {
        let euler = 0.577_215_664_901_532_9;
        let close = |got: f64, expected: f64| {
            assert!((got - expected).abs() < 4e-15 * expected.abs().max(1.0), "{got} for {expected}");
        };
        close(lgamma(0.5), PI.sqrt().ln());
        close(lgamma(-0.5), (2.0 * PI.sqrt()).ln());
        close(lgamma(11.0), 3_628_800_f64.ln());
        close(lgamma(1e6), 12_815_504.569_147_611);
        close(digamma(1.0), -euler);
        close(digamma(0.5), -euler - 2.0 * 2f64.ln());
        close(digamma(-0.5), 2.0 - euler - 2.0 * 2f64.ln());
        close(trigamma(1.0), PI * PI / 6.0);
        close(trigamma(0.5), PI * PI / 2.0);
        close(trigamma(-0.5), PI * PI / 2.0 + 4.0);
        assert_eq!([lgamma(-3.0), lgamma(0.0), trigamma(0.0)], [f64::INFINITY; 3]);
        assert_eq!([digamma(0.0), digamma(-0.0)], [f64::NEG_INFINITY, f64::INFINITY]);
        assert!(digamma(-3.0).is_nan() && [lgamma, digamma, trigamma].iter().all(|f| f(f64::NAN).is_nan()));
        assert_eq!([lgamma(f64::INFINITY), digamma(f64::INFINITY)], [f64::INFINITY; 2]);
        assert_eq!(trigamma(f64::INFINITY), 0.0);
    }
}
