//! Standardisation of each channel.

use super::{Grid, Series};
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
    /// Measures the observed values in a range of rows. Fit it on the training part only; otherwise information of
    /// the test part leaks into the model.
    ///
    /// # Errors
    /// [`Error::ConstantChannel`] for a channel that is constant in these rows, [`Error::NothingObserved`] for one
    /// that has only filled values there.
    ///
    /// # Panics
    /// If the range is empty or reaches past the series.
    pub fn fit(series: &Series, rows: Range<usize>) -> Result<Scaler> {
        assert!(!rows.is_empty() && rows.end <= series.rows(), "rows {rows:?} of {}", series.rows());
        Scaler::measure(series.grid(), series.names(), rows, series.file())
    }

    /// The same for a grid. The names of its columns and of the file are for messages.
    pub(crate) fn measure(grid: &Grid, names: &[String], rows: Range<usize>, file: &str) -> Result<Scaler> {
        let (mut mean, mut std) = (Vec::new(), Vec::new());
        for (column, name) in names.iter().enumerate() {
            let observed =
                grid.truth(column).skip(rows.start).take(rows.len()).filter(|value| !value.is_nan());
            let values: Vec<f64> = observed.collect();
            let Some(&first) = values.first() else {
                let place =
                    format!("in rows {} to {}, which the scaler is fitted on", rows.start, rows.end - 1);
                return Err(Error::NothingObserved { file: file.to_owned(), channel: name.clone(), place });
            };
            let count = values.len() as f64;
            let average = values.iter().sum::<f64>() / count;
            let deviation =
                (values.iter().map(|value| (value - average).powi(2)).sum::<f64>() / count).sqrt();
            if deviation == 0.0 || values.iter().all(|&value| value == first) {
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

    /// The first channel whose mean or deviation is impossible for values of a series.
    pub fn fault(&self) -> Option<usize> {
        let sound = |(mean, std): (&f64, &f64)| {
            (*mean as f32).is_finite() && (*std as f32).is_finite() && *std > 0.0 && std.is_normal()
        };
        self.mean.iter().zip(&self.std).position(|pair| !sound(pair))
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
