//! A linear forecaster, fitted in closed form.

use super::observed::{FilledTargets, Fit};
use super::{Baseline, cholesky, columns};
use crate::data::series::{Grid, Part, Split};
use crate::{Error, Result};
use rayon::prelude::*;
use refrain::Device;

/// The linear forecaster of Zeng et al., "Are Transformers Effective for Time Series Forecasting?" (AAAI 2023):
/// DLinear with weights that all channels share. The context is split into a moving average and the rest; each has
/// its own linear map to the horizon. The maps are not trained by gradient descent. They are the exact solution of a
/// ridge regression over all training windows, so there is no seed and there are no epochs.
///
/// Let the matrix `A` [context, context] be the moving average. The two maps see `F x` with `F = [A; I - A]`, and
/// together they act as one map `W` on `x`. For a given `W`, the best pair of maps has the ridge penalty `|W_trend|^2
/// + |W_rest|^2 = tr(W P^-1 W')` with `P = F'F`. So it is enough to solve for `W`, in a system of size context
/// instead of twice that: `W (G + n ridge P^-1) = C`. Here `G` is the product of the centred contexts with themselves
/// and `C` their product with the centred horizons, both summed over the n windows.
#[derive(Debug, Clone)]
pub struct Linear {
    weights: Vec<f64>, // (context, horizon)
    bias: Vec<f64>,    // (horizon)
}

/// Width of the moving average, as in the paper.
const KERNEL: usize = 25;
/// How many channels are processed at a time: a thousand channels at a time would need a thousand matrices.
const CHANNELS_AT_ONCE: usize = 16;

impl Linear {
    /// The penalty on the squared weights, relative to the mean squared error.
    pub const RIDGE: f64 = 1e-3;

    /// The bytes that fitting needs: for each thread the products of whole windows of one channel, and some matrices
    /// of the size of the context.
    pub(crate) fn bytes(context: usize, horizon: usize, channels: usize) -> f64 {
        let length = context as f64 + horizon as f64;
        let at_once = channels.min(CHANNELS_AT_ONCE) as f64;
        8.0 * (length * length * (1.0 + at_once) + 8.0 * (context as f64) * length)
    }

    /// Fits to all windows of the training part of a standardised grid. Of each horizon, only observed values count,
    /// because filled values are inputs only. The ridge penalty counts every window of every channel.
    ///
    /// # Errors
    /// [`Error::Baseline`] if the normal equations cannot be solved (some values are not finite), or if there is not
    /// enough memory for a context of this length.
    ///
    /// # Panics
    /// If the training part reaches past the grid.
    pub fn fit(grid: &Grid, split: &Split, ridge: f64) -> Result<Linear> {
        let Split { context, horizon, train, .. } = split;
        let (context, horizon) = (*context, *horizon);
        let columns = columns(grid, train);
        let bytes = Linear::bytes(context, horizon, columns.len());
        if let Some(free) = Device::cpu().free_bytes().filter(|&free| bytes > free as f64) {
            let mebibytes = |bytes: f64| bytes / 1024.0 / 1024.0;
            return Err(Error::Baseline {
                baseline: "linear",
                problem: format!(
                    "fitting to a context of {context} needs {:.0} MiB, but only {:.0} MiB are free",
                    mebibytes(bytes),
                    mebibytes(free as f64)
                ),
                fix: "choose a shorter context",
            });
        }
        let Moments { mean, covariance, length } = Moments::of(&columns, train, context + horizon);
        let singular = || Error::Baseline {
            baseline: "linear",
            problem: "its normal equations have no solution".to_owned(),
            fix: "look for values that are not finite",
        };

        // With P = M M', W = C M (M'GM + ridge I)^-1 M'.
        let root = cholesky::factor(&penalty(context), context).ok_or_else(singular)?;
        let gram = |i: usize, j: usize| covariance[i * length + j];
        let gram_root = product(context, context, context, gram, |i, j| root[i * context + j]);
        let mut system = product(
            context,
            context,
            context,
            |i, j| root[j * context + i],
            |i, j| gram_root[i * context + j],
        );
        system.iter_mut().step_by(context + 1).for_each(|diagonal| *diagonal += ridge);
        let system = cholesky::factor(&system, context).ok_or_else(singular)?;
        let mut solution = product(
            context,
            context,
            horizon,
            |i, j| root[j * context + i],
            |i, h| covariance[i * length + context + h],
        );
        cholesky::solve(&system, context, &mut solution, horizon);
        let weights = product(
            context,
            context,
            horizon,
            |i, j| root[i * context + j],
            |i, h| solution[i * horizon + h],
        );

        let mut linear = Linear { weights, bias: mean[context..].to_vec() };
        let filled = FilledTargets::of(grid, train, &columns, context);
        if !filled.is_empty() {
            // (G + ridge P^-1)^-1 = M (M'GM + ridge I)^-1 M'.
            let transposed = (0..context * context).map(|at| root[at % context * context + at / context]);
            let mut inverse: Vec<f64> = transposed.collect();
            cholesky::solve(&system, context, &mut inverse, context);
            let inverse = product(
                context,
                context,
                context,
                |i, j| root[i * context + j],
                |i, j| inverse[i * context + j],
            );
            let count = (train.windows() * columns.len()) as f64;
            let fit = Fit { mean: &mean[..context], inverse: &inverse, count };
            fit.without(&filled, &mut linear.weights, &mut linear.bias);
        }
        // Up to here, the bias is for a context minus its mean.
        let at_own_mean = std::mem::replace(&mut linear.bias, vec![0.0; horizon]);
        let mut at_mean = vec![0.0; horizon];
        linear.forecast(&mean[..context], &mut at_mean);
        linear.bias = at_own_mean.iter().zip(&at_mean).map(|(horizon, mapped)| horizon - mapped).collect();
        Ok(linear)
    }
}

impl Baseline for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    /// `context` has the length that the model was fitted with; `forecast` has at most the fitted horizon.
    fn forecast(&self, context: &[f64], forecast: &mut [f64]) {
        forecast.copy_from_slice(&self.bias[..forecast.len()]);
        for (&value, weights) in context.iter().zip(self.weights.chunks_exact(self.bias.len())) {
            for (sum, weight) in forecast.iter_mut().zip(weights) {
                *sum += value * weight;
            }
        }
    }
}

/// Mean and covariance of whole windows (context and horizon), over all windows and channels.
struct Moments {
    mean: Vec<f64>,       // (length)
    covariance: Vec<f64>, // (length, length)
    length: usize,
}

impl Moments {
    /// The moments of the columns of a part.
    fn of(columns: &[Vec<f64>], part: &Part, length: usize) -> Moments {
        let (mut mean, mut covariance) = (vec![0.0; length], vec![0.0; length * length]);
        for group in columns.chunks(CHANNELS_AT_ONCE) {
            let of_runs = |x: &Vec<f64>| {
                let runs = part
                    .runs()
                    .iter()
                    .map(|run| &x[run.start - part.rows.start..run.end - part.rows.start + length - 1]);
                runs.map(|x| window_sums(x, length)).collect::<Vec<_>>()
            };
            let sums: Vec<_> = group.par_iter().flat_map_iter(of_runs).collect();
            for (of_channel, products) in &sums {
                mean.iter_mut().zip(of_channel).for_each(|(sum, more)| *sum += more);
                covariance.iter_mut().zip(products).for_each(|(sum, more)| *sum += more);
            }
        }
        let count = (part.windows() * columns.len()) as f64;
        mean.iter_mut().for_each(|sum| *sum /= count);
        for i in 0..length {
            for j in i..length {
                let value = covariance[i * length + j] / count - mean[i] * mean[j];
                covariance[i * length + j] = value;
                covariance[j * length + i] = value;
            }
        }
        Moments { mean, covariance, length }
    }
}

/// The sum of all windows of a channel, and the sum of their products (upper triangle).
///
/// Neighbouring windows differ by one value at each end. So each product follows from its upper left neighbour by two
/// terms, and no window is visited: O(rows length + length^2).
fn window_sums(x: &[f64], length: usize) -> (Vec<f64>, Vec<f64>) {
    let windows = x.len() + 1 - length;
    let mut sums = vec![x[..windows].iter().sum::<f64>(); length];
    let mut products = vec![0.0; length * length];
    for lag in 0..length {
        products[lag] = cholesky::dot(&x[..windows], &x[lag..lag + windows]);
    }
    for i in 1..length {
        let (entering, leaving) = (x[windows + i - 1], x[i - 1]);
        sums[i] = sums[i - 1] + entering - leaving;
        for j in i..length {
            products[i * length + j] =
                products[(i - 1) * length + j - 1] + entering * x[windows + j - 1] - leaving * x[j - 1];
        }
    }
    (sums, products)
}

/// The moving average as a matrix `A` [n, n]. Beyond the context, the first and last value are repeated.
fn moving_average(n: usize) -> Vec<f64> {
    let mut average = vec![0.0; n * n];
    for row in 0..n {
        for offset in 0..KERNEL {
            let column = (row + offset).saturating_sub(KERNEL / 2).min(n - 1);
            average[row * n + column] += 1.0 / KERNEL as f64;
        }
    }
    average
}

/// `P = A'A + (I - A)'(I - A)` [n, n]. It is positive definite, because no `x` has both maps zero.
fn penalty(n: usize) -> Vec<f64> {
    let average = moving_average(n);
    let trend = |i: usize, j: usize| average[i * n + j];
    let rest = |i: usize, j: usize| f64::from(i == j) - average[i * n + j];
    let mut penalty = product(n, n, n, |i, j| trend(j, i), trend);
    let of_rest = product(n, n, n, |i, j| rest(j, i), rest);
    penalty.iter_mut().zip(of_rest).for_each(|(sum, more)| *sum += more);
    penalty
}

/// The product `[rows, inner] x [inner, columns]`, row-major, of matrices that are given by functions of their
/// elements.
fn product(
    rows: usize,
    inner: usize,
    columns: usize,
    left: impl Fn(usize, usize) -> f64 + Sync,
    right: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    let right: Vec<f64> = (0..inner * columns).map(|index| right(index / columns, index % columns)).collect();
    let mut out = vec![0.0; rows * columns];
    out.par_chunks_mut(columns).enumerate().for_each(|(i, row)| {
        for (j, right) in right.chunks_exact(columns).enumerate() {
            let factor = left(i, j);
            // The moving average and the triangular root are mostly zeros.
            if factor != 0.0 {
                row.iter_mut().zip(right).for_each(|(sum, value)| *sum += factor * value);
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::series::{ReadOptions, Series, SplitRule, TimeAxis, TimeStep};

    /// Two channels of noise, a season and a trend, nearly standardised.
    fn values(rows: usize) -> Vec<f64> {
        let noise = |i: usize| ((i * 7919 + i * i * 31) % 1009) as f64 / 1009.0 - 0.5;
        let value =
            |t: usize, c: usize| (t as f64 * 0.7 + c as f64).sin() + t as f64 * 0.01 + noise(2 * t + c);
        (0..rows * 2).map(|i| value(i / 2, i % 2)).collect()
    }

    fn split(rows: usize, context: usize, horizon: usize) -> Split {
        let part = Part::all(0..rows, context + horizon);
        Split { context, horizon, train: part.clone(), validation: part.clone(), test: part }
    }

    /// The two maps as in the paper: features `[A x, (I - A) x, 1]` of every window, with a ridge on all weights
    /// except the bias. Each step is fitted to its observed values.
    fn two_maps(grid: &Grid, split: &Split, ridge: f64, context: &[f64]) -> Vec<f64> {
        let n = split.context;
        let average = moving_average(n);
        let features = |x: &[f64]| {
            let trend: Vec<f64> = average.chunks_exact(n).map(|row| cholesky::dot(row, x)).collect();
            let rest: Vec<f64> = x.iter().zip(&trend).map(|(x, trend)| x - trend).collect();
            [trend, rest, vec![1.0]].concat()
        };
        let size = 2 * n + 1;
        let count = (split.train.windows() * grid.channels()) as f64;
        let fit = |step: usize| {
            let (mut normal, mut right) = (vec![0.0; size * size], vec![0.0; size]);
            for channel in 0..grid.channels() {
                let values: Vec<f64> =
                    grid.values().iter().skip(channel).step_by(grid.channels()).copied().collect();
                for start in split.train.starts() {
                    let target = start + n + step;
                    if !grid.is_observed(target, channel) {
                        continue;
                    }
                    let x = features(&values[start..start + n]);
                    for (i, xi) in x.iter().enumerate() {
                        (0..size).for_each(|j| normal[i * size + j] += xi * x[j]);
                        right[i] += xi * values[target];
                    }
                }
            }
            (0..2 * n).for_each(|i| normal[i * size + i] += ridge * count);
            cholesky::solve(&cholesky::factor(&normal, size).unwrap(), size, &mut right, 1);
            cholesky::dot(&features(context), &right)
        };
        (0..split.horizon).map(fit).collect()
    }

    #[test]
    fn the_moving_average_is_centred_and_repeats_the_ends() {
        let x: Vec<f64> = (0..40).map(|t| f64::from(t * t)).collect();
        let average = moving_average(x.len());
        for (at, row) in average.chunks_exact(x.len()).enumerate() {
            let padded = (at as i32 - 12..=at as i32 + 12).map(|t| x[t.clamp(0, 39) as usize]);
            assert!((cholesky::dot(row, &x) - padded.sum::<f64>() / 25.0).abs() < 1e-9, "at {at}");
        }
    }

    #[track_caller]
    fn is_the_two_maps(grid: &Grid, split: &Split, ridge: f64) {
        let linear = Linear::fit(grid, split, ridge).unwrap();
        let past: Vec<f64> =
            grid.values().iter().step_by(grid.channels()).take(split.context).copied().collect();
        let mut got = vec![0.0; split.horizon];
        linear.forecast(&past, &mut got);
        let expected = two_maps(grid, split, ridge, &past);
        let same = got.iter().zip(&expected).all(|(got, expected)| (got - expected).abs() < 1e-8);
        assert!(same, "context {}: {got:?} and {expected:?}", split.context);
    }

    #[test]
    fn equals_the_two_maps_fitted_window_by_window() {
        for context in [7, 40] {
            is_the_two_maps(&Grid::new(values(220), 2), &split(220, context, 3), 0.05);
        }
    }

    /// A series with gaps of 1 to 12 rows in one channel. The gaps are filled with wrong values on purpose; those
    /// longer than 4 rows are not crossed.
    #[test]
    fn filled_values_do_not_change_the_fit() {
        let axis =
            TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
        let mut text = "time,a,b\n".to_owned();
        for (row, pair) in values(400).chunks_exact(2).enumerate() {
            let missing = (row * row) % 7 == 2 || (100..112).contains(&row);
            let a = if missing { "NA".to_owned() } else { pair[0].to_string() };
            text += &format!("{},{a},{}\n", axis.format(row), pair[1]);
        }
        let (series, _) = Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap();
        let split = Split::new(&series, &SplitRule::default(), 7, 3, 4).unwrap();
        assert_eq!(split.train.runs().len(), 2);
        assert!(split.train.has_filled());
        is_the_two_maps(series.grid(), &split, 0.05);
        let all = Linear::fit(&Grid::new(series.values().to_vec(), 2), &split, 0.05).unwrap();
        let observed = Linear::fit(series.grid(), &split, 0.05).unwrap();
        assert!(
            all.weights.iter().zip(&observed.weights).any(|(all, observed)| (all - observed).abs() > 1e-3)
        );
    }

    #[test]
    fn recovers_a_linear_recurrence() {
        let values: Vec<f64> = (0..400).map(|t| (t as f64 * 0.3).sin()).collect();
        let split = split(400, 30, 5);
        let grid = Grid::new(values, 1);
        let linear = Linear::fit(&grid, &split, 1e-9).unwrap();
        let unit = crate::data::series::Scaler::unit(1).into();
        let errors = super::super::evaluate(&linear, &grid, &unit, &split, &split.test).standardised();
        assert!(errors.mae < 1e-4, "{errors:?}");
    }

    #[test]
    fn values_that_are_not_finite_are_an_error() {
        let mut values = values(100);
        values[20] = f64::NAN;
        let message =
            Linear::fit(&Grid::new(values, 2), &split(100, 10, 2), Linear::RIDGE).unwrap_err().to_string();
        assert!(message.contains("not finite"), "{message}");
    }
}
