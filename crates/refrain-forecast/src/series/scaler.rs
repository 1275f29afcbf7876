//! Standardisation of each channel.

use super::Series;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The mean and standard deviation of each channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaler {
    /// Mean of each channel, in original units.
    pub mean: Vec<f64>,
    /// Population standard deviation (divided by n) of each channel, in original units.
    pub std: Vec<f64>,
}

impl Scaler {
    /// Measures the rows of a range; fit it on the training part only, or the test part leaks into it.
    ///
    /// # Errors
    /// [`Error::ConstantChannel`] for a channel that does not vary within these rows.
    ///
    /// # Panics
    /// If the range is empty or reaches past the series.
    pub fn fit(series: &Series, rows: Range<usize>) -> Result<Scaler> {
        assert!(!rows.is_empty() && rows.end <= series.rows(), "rows {rows:?} of {}", series.rows());
        Scaler::measure(series.values(), series.names(), rows, series.file())
    }

    /// The same of row-major `[rows, columns]` values; the names and the file are for messages.
    pub(crate) fn measure(
        values: &[f64],
        names: &[String],
        rows: Range<usize>,
        file: &str,
    ) -> Result<Scaler> {
        let count = rows.len() as f64;
        let (mut mean, mut std) = (Vec::new(), Vec::new());
        for (column, name) in names.iter().enumerate() {
            let values = || {
                values[rows.start * names.len()..].iter().skip(column).step_by(names.len()).take(rows.len())
            };
            let average = values().sum::<f64>() / count;
            let deviation = (values().map(|value| (value - average).powi(2)).sum::<f64>() / count).sqrt();
            let first = values().next().copied().unwrap_or_default();
            if deviation == 0.0 || values().all(|&value| value == first) {
                return Err(Error::ConstantChannel {
                    file: file.to_owned(),
                    channel: name.clone(),
                    value: first,
                    first: rows.start,
                    last: rows.end - 1,
                });
            }
            mean.push(average);
            std.push(deviation);
        }
        Ok(Scaler { mean, std })
    }

    /// `(x - mean) / std` of row-major `[rows, channels]` values.
    pub fn transform(&self, values: &[f64]) -> Vec<f64> {
        self.each(values, |value, mean, std| (value - mean) / std)
    }

    /// `x * std + mean` of row-major `[rows, channels]` values: back to original units.
    pub fn inverse(&self, values: &[f64]) -> Vec<f64> {
        self.each(values, |value, mean, std| value * std + mean)
    }

    fn each(&self, values: &[f64], f: impl Fn(f64, f64, f64) -> f64) -> Vec<f64> {
        let of_channel = self.mean.iter().zip(&self.std).cycle();
        values.iter().zip(of_channel).map(|(&value, (&mean, &std))| f(value, mean, std)).collect()
    }
}
