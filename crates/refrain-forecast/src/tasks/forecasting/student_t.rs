//! Quantiles of Student's t distribution, for the forecasts of a model that learned it.

use super::Levels;
use super::loss::student_t_shape;
use crate::Result;
use refrain::{Device, Tensor, no_grad};

/// So many values of `1 / degrees of freedom` are in a table, evenly from 0 (exclusive) to 1/2.
const NODES: usize = 512;

/// The quantiles of the bounds of some levels, for any degrees of freedom from 2 on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StudentTQuantiles {
    levels: Levels,
    /// For each level, the upper bound of the distribution with location 0 and scale 1, by `1 / degrees of freedom`. It is smooth
    /// there, so a cubic between neighbours is exact to f32.
    tables: Vec<Vec<f64>>,
}

impl StudentTQuantiles {
    pub(super) fn new(levels: Levels) -> Result<StudentTQuantiles> {
        if levels.is_empty() {
            return Ok(StudentTQuantiles { levels, tables: Vec::new() });
        }
        let halves: Vec<f64> = (0..NODES).map(|node| 0.5 / inverse(node)).collect();
        let beta = no_grad(|| -> Result<Vec<f64>> {
            // ln B(a, 1/2)
            let a = Tensor::from_slice(&halves, NODES, &Device::cpu())?;
            let both = a.lgamma()?.sub(&a.add_scalar(0.5)?.lgamma()?)?;
            Ok(both.add_scalar(std::f64::consts::PI.sqrt().ln())?.to_vec()?)
        })?;
        let table = |level: f64| {
            let p = 0.5 + level / 200.0;
            // The quantile of two degrees of freedom is known; each node begins with its neighbour's.
            let mut quantile = (2.0 * p - 1.0) / (2.0 * p * (1.0 - p)).sqrt();
            let mut table = vec![0.0; NODES];
            for node in (0..NODES).rev() {
                quantile = solve(p, quantile, halves[node], beta[node]);
                table[node] = quantile;
            }
            table
        };
        let tables = levels.iter().map(table).collect();
        Ok(StudentTQuantiles { levels, tables })
    }

    /// The levels of its quantiles.
    pub(super) fn levels(&self) -> &Levels {
        &self.levels
    }

    /// The values `[3, horizon]` of a model to the quantiles `[quantiles of the levels, horizon]`, ascending.
    pub(super) fn of(&self, values: &[f32], horizon: usize) -> Vec<f32> {
        let middle = self.levels.len();
        let mut quantiles = vec![0.0; self.levels.values() * horizon];
        for row in 0..horizon {
            let own = [0, 1, 2].map(|value| f64::from(values[value * horizon + row]));
            let [scale, freedom] = student_t_shape(own);
            quantiles[middle * horizon + row] = own[0] as f32;
            for (at, table) in self.tables.iter().enumerate() {
                let reach = scale * between(table, 1.0 / freedom);
                quantiles[(middle - 1 - at) * horizon + row] = (own[0] - reach) as f32;
                quantiles[(middle + 1 + at) * horizon + row] = (own[0] + reach) as f32;
            }
        }
        quantiles
    }
}

/// `1 / degrees of freedom` of a node.
fn inverse(node: usize) -> f64 {
    0.5 * (node + 1) as f64 / NODES as f64
}

/// The value of a table between its nodes, by the cubic through four neighbours.
fn between(table: &[f64], inverse: f64) -> f64 {
    let place = inverse * 2.0 * NODES as f64 - 1.0;
    if place.is_nan() {
        return place;
    }
    let first = (place.floor() - 1.0).clamp(0.0, (NODES - 4) as f64) as usize;
    let t = place - first as f64;
    let weight = |of: usize| {
        let others = (0..4).filter(|&other| other != of);
        others.map(|other| (t - other as f64) / (of as f64 - other as f64)).product::<f64>()
    };
    (0..4).map(|of| table[first + of] * weight(of)).sum()
}

/// The quantile of a probability above 1/2 for `2 half` degrees of freedom, by Newton's method. `beta` is `ln B(half, 1/2)`.
fn solve(p: f64, start: f64, half: f64, beta: f64) -> f64 {
    let mut t = start;
    for _ in 0..32 {
        let x = 2.0 * half / (2.0 * half + t * t);
        let tail = 0.5 * incomplete_beta(x, half, beta);
        let density = ((half + 0.5) * x.ln() - 0.5 * (2.0 * half).ln() - beta).exp();
        let step = (tail - (1.0 - p)) / density;
        t += step;
        if step.abs() <= 1e-14 * t {
            break;
        }
    }
    t
}

/// The regularised incomplete beta function `I_x(a, 1/2)`, by its continued fraction (Abramowitz and Stegun, 1964, 26.5.8) in
/// the method of Lentz (1976).
fn incomplete_beta(x: f64, a: f64, beta: f64) -> f64 {
    let b = 0.5;
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - fraction(1.0 - x, b, a, beta);
    }
    fraction(x, a, b, beta)
}

fn fraction(x: f64, a: f64, b: f64, beta: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let apart = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut c, mut d) = (1.0, 1.0 / apart(1.0 - (a + b) * x / (a + 1.0)));
    let mut sum = d;
    for m in 1..500 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / apart(1.0 + term * d);
            c = apart(1.0 + term / c);
            change = c * d;
            sum *= change;
        }
        if (change - 1.0).abs() < 1e-16 {
            break;
        }
    }
    (a * x.ln() + b * (-x).ln_1p() - beta).exp() * sum / a
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From scipy.stats.t.ppf.
    #[test]
    fn quantiles_are_those_of_scipy() {
        let levels: Levels = "50,90,99".parse().unwrap();
        let quantiles = StudentTQuantiles::new(levels).unwrap();
        let expected = [
            (2.0, [0.8164965809277261, 2.9199855803537242, 9.924843200918287]),
            (2.5, [0.7850136829922992, 2.5582186141359355, 7.163728138948783]),
            (3.7, [0.7464851534824539, 2.1824938039146007, 4.8692522532278275]),
            (10.0, [0.6998120613124317, 1.8124611228116756, 3.16927267261695]),
            (123.4, [0.6764830948904601, 1.6572956275324369, 2.616258364145575]),
            (10000.0, [0.6745142844835927, 1.645006018069243, 2.5763210466685282]),
            (1000000000.0, [0.6744897504414163, 1.6448536284752415, 2.5758293084654484]),
        ];
        for (freedom, of_levels) in expected {
            for (table, expected) in quantiles.tables.iter().zip(of_levels) {
                let found = between(table, 1.0 / freedom);
                assert!((found / expected - 1.0).abs() < 1e-9, "{freedom}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn the_quantiles_of_a_row_are_its_location_and_scale() {
        let quantiles = StudentTQuantiles::new("90".parse().unwrap()).unwrap();
        // Two rows, of the scales 1/2 and 4, with 42 and 2 1/2 degrees of freedom.
        let found = quantiles.of(&[1.0, -5.0, 1.5, -1.0, 21.0, -3.0], 2);
        let reach =
            [0.5 * between(&quantiles.tables[0], 1.0 / 42.0), 4.0 * between(&quantiles.tables[0], 1.0 / 2.5)];
        let expected = [1.0 - reach[0], -5.0 - reach[1], 1.0, -5.0, 1.0 + reach[0], -5.0 + reach[1]];
        assert!(
            found.iter().zip(expected).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6),
            "{found:?} {expected:?}"
        );
        let none = StudentTQuantiles::new(Levels::NONE).unwrap();
        assert_eq!(none.of(&[1.0, 2.0, 3.0], 1), [1.0]);
        assert!(quantiles.of(&[f32::NAN; 3], 1).iter().all(|value| value.is_nan()));
    }
}
