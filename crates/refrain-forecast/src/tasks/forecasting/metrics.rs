//! The errors of forecasts: of each channel, of each step of the horizon, and over all.

use super::Levels;
use super::quantiles::median;
use crate::data::series::{Grid, Scaler};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Mean squared and mean absolute error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Errors {
    /// Mean of the squared errors.
    pub mse: f64,
    /// Mean of the absolute errors.
    pub mae: f64,
}

/// The errors of some forecast values. A metric that is not defined is NaN (in JSON, null).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    /// The number of observed values that were forecast.
    pub count: u64,
    /// Mean of the squared errors.
    pub mse: f64,
    /// Mean of the absolute errors.
    pub mae: f64,
    /// Root of the mean squared error.
    pub rmse: f64,
    /// Mean absolute error, divided by that of the seasonal naive forecast of one step over the training part (Hyndman and
    /// Koehler, 2006). It has no unit.
    pub mase: f64,
    /// Mean of `200 |y - f| / (|y| + |f|)` in original units, in percent (Makridakis, 1993); it lies between 0 and 200.
    pub smape: f64,
    /// Continuous ranked probability score, by the quantiles of the levels: the mean of twice the quantile loss. Only with
    /// intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crps: Option<f64>,
    /// The intervals, ascending by level.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub intervals: Vec<IntervalMetrics>,
}

/// What intervals of one level cover.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct IntervalMetrics {
    /// The share of the true values that should lie inside, in percent.
    pub level: f64,
    /// The share that lies inside, in percent.
    pub coverage: f64,
    /// The mean distance of the bounds.
    pub width: f64,
}

/// The sums of the errors of each channel and step of the horizon, in standardised units. Windows are added one by one; none
/// is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorSums {
    horizon: usize,
    levels: Levels,
    /// The units of the channels.
    units: Scaler,
    /// `[channels, horizon]`
    cells: Vec<Sums>,
    /// `[channels, horizon, levels]`: how many true values lie inside, and the sum of the widths.
    inside: Vec<(u64, f64)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    squared: f64,
    absolute: f64,
    symmetric: f64,
    pinball: f64,
    count: u64,
}

impl Sums {
    fn add(&mut self, more: &Sums) {
        self.squared += more.squared;
        self.absolute += more.absolute;
        self.symmetric += more.symmetric;
        self.pinball += more.pinball;
        self.count += more.count;
    }
}

impl ErrorSums {
    /// No errors yet, of forecasts of `horizon` rows with the intervals of these levels. The units of the channels are those of
    /// the scaler.
    pub fn new(horizon: usize, levels: &Levels, units: &Scaler) -> Self {
        let cells = units.mean.len() * horizon;
        ErrorSums {
            horizon,
            levels: levels.clone(),
            units: units.clone(),
            cells: vec![Sums::default(); cells],
            inside: vec![(0, 0.0); cells * levels.len()],
        }
    }

    /// Adds a forecast of one channel and the true values, in standardised units. The forecast has the quantiles of the levels,
    /// one after another, `[quantiles, horizon]`; without levels it is the forecast itself. A true value of NaN is unknown and
    /// ignored.
    ///
    /// # Panics
    /// If there is no such channel, or the lengths differ from those of [`ErrorSums::new`].
    pub fn add<T: Copy + Into<f64>>(&mut self, channel: usize, quantiles: &[T], truth: &[T]) {
        let (horizon, levels) = (self.horizon, self.levels.len());
        assert_eq!(truth.len(), horizon, "a true value for each row of the horizon");
        assert_eq!(quantiles.len(), self.levels.values() * horizon, "a value for each quantile and row");
        let (mean, std) = (self.units.mean[channel], self.units.std[channel]);
        let forecast = median(quantiles, horizon);
        for (step, (&forecast, &truth)) in forecast.iter().zip(truth).enumerate() {
            let (forecast, truth): (f64, f64) = (forecast.into(), truth.into());
            if truth.is_nan() {
                continue;
            }
            let cell = channel * horizon + step;
            let error = forecast - truth;
            let (y, f) = (truth * std + mean, forecast * std + mean);
            let at = |quantile: usize| -> f64 { quantiles[quantile * horizon + step].into() };
            let loss = |quantile: usize| {
                let error = at(quantile) - truth;
                error.max(0.0) - self.levels.quantile(quantile) * error
            };
            let pinball = match levels {
                0 => 0.0,
                _ => (0..self.levels.values()).map(loss).sum::<f64>() / self.levels.values() as f64,
            };
            let size = y.abs() + f.abs();
            self.cells[cell].add(&Sums {
                squared: error * error,
                absolute: error.abs(),
                // Nothing is forecast as nothing: no error.
                symmetric: if size == 0.0 { 0.0 } else { 200.0 * (y - f).abs() / size },
                pinball,
                count: 1,
            });
            for level in 0..levels {
                let (low, high) = (at(levels - 1 - level), at(levels + 1 + level));
                let (inside, width) = &mut self.inside[cell * levels + level];
                *inside += u64::from(low <= truth && truth <= high);
                *width += high - low;
            }
        }
    }

    /// Adds the sums of other windows of one channel, of which `other` has no other.
    ///
    /// # Panics
    /// If there is no such channel, or horizon or levels differ.
    pub fn merge(&mut self, channel: usize, other: &ErrorSums) {
        assert_eq!((self.horizon, &self.levels), (other.horizon, &other.levels), "sums of the same steps");
        let (cells, levels) = (channel * self.horizon, self.levels.len());
        for (sums, more) in self.cells[cells..].iter_mut().zip(&other.cells) {
            sums.add(more);
        }
        for (sums, more) in self.inside[cells * levels..].iter_mut().zip(&other.inside) {
            *sums = (sums.0 + more.0, sums.1 + more.1);
        }
    }

    /// The errors over all windows, steps and channels, in units of the channels' standard deviations. NaN if there
    /// are no windows.
    pub fn standardised(&self) -> Errors {
        let mut all = Sums::default();
        self.cells.iter().for_each(|sums| all.add(sums));
        let count = all.count as f64;
        Errors { mse: all.squared / count, mae: all.absolute / count }
    }

    /// The metrics over all windows, steps and channels, in units of the channels' standard deviations. `naive` has the
    /// [`naive_errors`].
    pub fn overall(&self, naive: &[f64]) -> Metrics {
        self.of(0..self.units.mean.len(), 0..self.horizon, naive, 1.0)
    }

    /// The metrics of each step of the horizon, over all windows and channels, in units of the channels' standard deviations.
    pub fn steps(&self, naive: &[f64]) -> Vec<Metrics> {
        (0..self.horizon).map(|step| self.of(0..self.units.mean.len(), step..step + 1, naive, 1.0)).collect()
    }

    /// The metrics of one channel, in units of its standard deviation.
    pub fn channel(&self, channel: usize, naive: &[f64]) -> Metrics {
        self.of(channel..channel + 1, 0..self.horizon, naive, 1.0)
    }

    /// The metrics of one channel, in original units. Channels may have different units, so there is no mean over them.
    pub fn channel_original(&self, channel: usize, naive: &[f64]) -> Metrics {
        self.of(channel..channel + 1, 0..self.horizon, naive, self.units.std[channel])
    }

    /// The metrics of some channels and steps, in units of `1 / unit` standard deviations.
    fn of(&self, channels: Range<usize>, steps: Range<usize>, naive: &[f64], unit: f64) -> Metrics {
        let levels = self.levels.len();
        let (mut all, mut scaled) = (Sums::default(), 0.0);
        let mut inside = vec![(0, 0.0); levels];
        for channel in channels {
            for cell in steps.clone().map(|step| channel * self.horizon + step) {
                let sums = &self.cells[cell];
                all.add(sums);
                scaled += sums.absolute / naive[channel];
                for (sum, more) in inside.iter_mut().zip(&self.inside[cell * levels..]) {
                    *sum = (sum.0 + more.0, sum.1 + more.1);
                }
            }
        }
        let count = all.count as f64;
        let mse = all.squared / count * unit * unit;
        let mase = scaled / count;
        let of_level = |(level, (inside, width)): (f64, (u64, f64))| IntervalMetrics {
            level,
            coverage: 100.0 * inside as f64 / count,
            width: width / count * unit,
        };
        Metrics {
            count: all.count,
            mse,
            mae: all.absolute / count * unit,
            rmse: mse.sqrt(),
            mase: if mase.is_finite() { mase } else { f64::NAN },
            smape: all.symmetric / count,
            crps: (levels > 0).then(|| 2.0 * all.pinball / count * unit),
            intervals: self.levels.iter().zip(inside).map(of_level).collect(),
        }
    }
}

/// The mean absolute error of the seasonal naive forecast of one step in each channel of some rows (the training part), in the
/// units of the grid: what [`Metrics::mase`] is relative to. Only pairs of observed values count; without any, it is NaN.
///
/// # Panics
/// If the rows reach past the grid.
pub fn naive_errors(grid: &Grid, rows: Range<usize>, season: usize) -> Vec<f64> {
    let of_channel = |channel: usize| {
        let values: Vec<f64> = grid.truth(channel).skip(rows.start).take(rows.len()).collect();
        let pairs = values.iter().zip(values.iter().skip(season));
        let errors: Vec<f64> =
            pairs.map(|(before, now)| (now - before).abs()).filter(|error| !error.is_nan()).collect();
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    (0..grid.channels()).map(of_channel).collect()
}

#[cfg(test)]
mod tests;
