//! Forecasts that a model has to beat: last value, seasonal naive, and a linear model.

mod cholesky;
mod linear;
mod naive;

pub use linear::Linear;
pub use naive::{LastValue, SeasonalNaive};

use crate::metrics::ErrorSums;
use crate::series::{Part, Split};
use rayon::prelude::*;

/// A forecast of one channel from its own past.
pub trait Baseline: Sync {
    /// Its name in tables.
    fn name(&self) -> &'static str;

    /// Writes the next `forecast.len()` values after `context`, oldest first, in the units of `context`.
    fn forecast(&self, context: &[f64], forecast: &mut [f64]);
}

/// The errors of a baseline over every window and channel of a part. `values` are standardised, row-major
/// `[rows, channels]`. The sums do not depend on the number of threads.
///
/// # Panics
/// If the part reaches past the values.
pub fn evaluate(
    baseline: &dyn Baseline,
    values: &[f64],
    channels: usize,
    split: &Split,
    part: &Part,
) -> ErrorSums {
    const WINDOWS_A_TASK: usize = 256;
    let columns = columns(values, channels, part);
    let tasks = part.windows.div_ceil(WINDOWS_A_TASK);
    let sums: Vec<ErrorSums> = (0..channels * tasks)
        .into_par_iter()
        .map(|task| {
            let (channel, first) = (task / tasks, task % tasks * WINDOWS_A_TASK);
            let mut sums = ErrorSums::new(channels);
            let mut forecast = vec![0.0; split.horizon];
            for window in first..part.windows.min(first + WINDOWS_A_TASK) {
                let (context, rest) = columns[channel][window..].split_at(split.context);
                baseline.forecast(context, &mut forecast);
                sums.add(channel, &forecast, &rest[..split.horizon]);
            }
            sums
        })
        .collect();
    let mut total = ErrorSums::new(channels);
    sums.iter().for_each(|sums| total.merge(sums));
    total
}

/// The rows of a part, channel by channel.
fn columns(values: &[f64], channels: usize, part: &Part) -> Vec<Vec<f64>> {
    let rows = &values[part.rows.start * channels..part.rows.end * channels];
    (0..channels).map(|channel| rows.iter().skip(channel).step_by(channels).copied().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forecasts what a hand-written loop over materialised windows would score.
    #[test]
    fn evaluation_visits_every_window_of_every_channel_once() {
        let (channels, rows) = (3, 700);
        let values: Vec<f64> = (0..rows * channels).map(|i| ((i * 7919) % 101) as f64 / 10.0).collect();
        let part = Part { rows: 20..rows, windows: rows - 20 - 5 - 2 + 1 };
        let split = Split {
            context: 5,
            horizon: 2,
            train: part.clone(),
            validation: part.clone(),
            test: part.clone(),
        };
        let got = evaluate(&LastValue, &values, channels, &split, &part).standardised();
        let (mut squared, mut absolute, mut count) = (0.0, 0.0, 0.0);
        for last in 20 + 4..rows - 2 {
            for step in 1..=2 {
                for channel in 0..channels {
                    let error: f64 =
                        values[last * channels + channel] - values[(last + step) * channels + channel];
                    squared += error * error;
                    absolute += error.abs();
                    count += 1.0;
                }
            }
        }
        assert!((got.mse - squared / count).abs() < 1e-9, "{got:?}");
        assert!((got.mae - absolute / count).abs() < 1e-9, "{got:?}");
    }
}
