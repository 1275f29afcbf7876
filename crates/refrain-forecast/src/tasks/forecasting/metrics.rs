//! The errors of forecasts.

use crate::data::series::Scaler;
use serde::{Deserialize, Serialize};

/// Mean squared and mean absolute error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Mean of the squared errors.
    pub mse: f64,
    /// Mean of the absolute errors.
    pub mae: f64,
}

/// The sums of the errors of each channel, in standardised units. Windows are added one by one; none is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorSums {
    channels: Vec<Sums>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    squared: f64,
    absolute: f64,
    count: u64,
}

impl ErrorSums {
    /// No errors yet.
    pub fn new(channels: usize) -> Self {
        ErrorSums { channels: vec![Sums::default(); channels] }
    }

    /// Adds a forecast of one channel and the true values, in standardised units. A true value of NaN is unknown and
    /// ignored.
    ///
    /// # Panics
    /// If there is no such channel, or the lengths differ.
    pub fn add<T: Copy + Into<f64>>(&mut self, channel: usize, forecast: &[T], truth: &[T]) {
        assert_eq!(forecast.len(), truth.len(), "a forecast and the true values have the same length");
        let sums = &mut self.channels[channel];
        for (&forecast, &truth) in forecast.iter().zip(truth) {
            let truth: f64 = truth.into();
            if truth.is_nan() {
                continue;
            }
            let error: f64 = forecast.into() - truth;
            sums.squared += error * error;
            sums.absolute += error.abs();
            sums.count += 1;
        }
    }

    /// Adds the sums of other windows of the same channels.
    pub fn merge(&mut self, other: &ErrorSums) {
        for (sums, more) in self.channels.iter_mut().zip(&other.channels) {
            sums.squared += more.squared;
            sums.absolute += more.absolute;
            sums.count += more.count;
        }
    }

    /// The errors over all windows, steps and channels, in units of the channels' standard deviations. NaN if there
    /// are no windows.
    pub fn standardised(&self) -> Errors {
        self.mean(|_| 1.0)
    }

    /// The same in original units. It is a mean over channels, so channels with large numbers dominate.
    pub fn original(&self, scaler: &Scaler) -> Errors {
        self.mean(|channel| scaler.std[channel])
    }

    /// The errors of one channel, in standardised units.
    pub fn channel(&self, channel: usize) -> Errors {
        let Sums { squared, absolute, count } = self.channels[channel];
        Errors { mse: squared / count as f64, mae: absolute / count as f64 }
    }

    fn mean(&self, scale: impl Fn(usize) -> f64) -> Errors {
        let count = self.channels.iter().map(|sums| sums.count).sum::<u64>() as f64;
        let scaled = |of: fn(&Sums) -> f64, power: i32| {
            let each =
                self.channels.iter().enumerate().map(|(index, sums)| of(sums) * scale(index).powi(power));
            each.sum::<f64>() / count
        };
        Errors { mse: scaled(|sums| sums.squared, 2), mae: scaled(|sums| sums.absolute, 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_does_not_count_and_a_forecast_of_nan_does() {
        let mut sums = ErrorSums::new(1);
        sums.add(0, &[1.0_f32, 2.0, 5.0], &[0.0, f32::NAN, 2.0]);
        assert_eq!(sums.standardised(), Errors { mse: (1.0 + 9.0) / 2.0, mae: (1.0 + 3.0) / 2.0 });
        sums.add(0, &[f32::NAN], &[1.0]);
        assert!(sums.standardised().mse.is_nan());
    }

    #[test]
    fn both_units_and_both_errors() {
        let mut sums = ErrorSums::new(2);
        sums.add(0, &[1.0_f32, 2.0], &[0.0, 0.0]);
        let mut more = ErrorSums::new(2);
        more.add(1, &[3.0_f64, 0.0], &[0.0, 1.0]);
        sums.merge(&more);
        assert_eq!(sums.standardised(), Errors { mse: (1.0 + 4.0 + 9.0 + 1.0) / 4.0, mae: 7.0 / 4.0 });
        assert_eq!(sums.channel(1), Errors { mse: 5.0, mae: 2.0 });
        let scaler = Scaler { mean: vec![5.0, 6.0], std: vec![10.0, 2.0] };
        let in_units = Errors { mse: (500.0 + 40.0) / 4.0, mae: (30.0 + 8.0) / 4.0 };
        assert_eq!(sums.original(&scaler), in_units);
    }
}
