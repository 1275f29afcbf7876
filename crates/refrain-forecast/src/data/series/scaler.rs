//! Standardisation of each channel.

use super::{Grid, Series};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How values are brought to a common scale before a model sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaling {
    /// Each channel by its own mean and standard deviation.
    #[default]
    Standard,
    /// Not at all, for a model that normalises each window by itself.
    None,
}

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

    /// The scale of channels that stay as they are.
    pub fn unit(channels: usize) -> Scaler {
        Scaler { mean: vec![0.0; channels], std: vec![1.0; channels] }
    }

    /// The scale of one series by some of its values.
    pub(crate) fn of_values(values: &[f64], scaling: Scaling) -> Scaler {
        let (mean, std) = match scaling {
            Scaling::Standard => scale(values),
            Scaling::None => (0.0, 1.0),
        };
        Scaler { mean: vec![mean], std: vec![std] }
    }

    /// That of some channels.
    ///
    /// # Panics
    /// If there are not so many channels.
    pub fn of(&self, channels: Range<usize>) -> Scaler {
        Scaler { mean: self.mean[channels.clone()].to_vec(), std: self.std[channels].to_vec() }
    }

    /// The scale of each of some series of one channel, by the observed values of its own rows. If they are constant, the
    /// deviation is their size, or 1 if that is (almost) 0 or there is none.
    pub(super) fn of_each(series: &[Series], rows: impl Iterator<Item = Range<usize>>) -> Scaler {
        let scale = |(series, rows): (&Series, Range<usize>)| {
            let truth = series.grid().truth(0).skip(rows.start).take(rows.len());
            scale(&truth.filter(|value| !value.is_nan()).collect::<Vec<_>>())
        };
        let (mean, std) = series.iter().zip(rows).map(scale).unzip();
        Scaler { mean, std }
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

/// Mean and population deviation of values that may be constant, or none.
pub(super) fn scale(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 1.0);
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let std = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count).sqrt();
    // Rounding alone may leave a deviation of about this.
    let usable = |size: f64| (size as f32).is_normal();
    match std > f64::from(f32::EPSILON) * mean.abs() && usable(std) {
        true => (mean, std),
        false if usable(mean) => (mean, mean.abs()),
        false => (mean, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_values_are_divided_by_their_size() {
        assert_eq!(scale(&[1.0, 3.0]), (2.0, 1.0));
        assert_eq!(scale(&[5.0, 5.0, 5.0]), (5.0, 5.0));
        assert_eq!([scale(&[-4.0]), scale(&[0.0, 0.0]), scale(&[])], [(-4.0, 4.0), (0.0, 1.0), (0.0, 1.0)]);
        let (mean, std) = scale(&[0.1; 7]);
        assert!((mean - 0.1).abs() < 1e-15 && (std - 0.1).abs() < 1e-15, "{mean} {std}");
    }
}
