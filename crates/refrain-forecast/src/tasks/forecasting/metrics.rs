//! The errors of forecasts: of each channel, of each step of the horizon, and over all.

use super::Levels;
use super::quantiles::median;
use crate::data::series::{Grid, Scaler, Series, SeriesSet, Stack};
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
    /// Koehler, 2006). It has no unit. Channels without such an error (they are constant there, or too short) do not count.
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

/// The units of some channels: their scale, and what [`Metrics::mase`] is relative to.
#[derive(Debug, Clone, PartialEq)]
pub struct Units {
    /// The scale of each channel.
    pub scaler: Scaler,
    /// The [`naive_errors`] of each channel, scaled.
    pub naive: Vec<f64>,
}

/// Without naive errors, so that MASE is not defined.
impl From<Scaler> for Units {
    fn from(scaler: Scaler) -> Units {
        Units { naive: vec![f64::NAN; scaler.mean.len()], scaler }
    }
}

impl Units {
    /// The units of all channels of all series of a set, whose scales are given. The naive errors are those of the training
    /// part.
    pub fn new(set: &SeriesSet, stack: &Stack, scaler: &Scaler, season: usize) -> Units {
        let of_series = |(number, series): (usize, &Series)| {
            let first = number * set.channels();
            let grid = series.grid().standardised(&scaler.of(first..first + set.channels()));
            naive_errors(&grid, stack.training(number), season)
        };
        let naive = set.series().iter().enumerate().flat_map(of_series).collect();
        Units { scaler: scaler.clone(), naive }
    }

    /// The units of one channel.
    pub(crate) fn of(&self, channel: usize) -> Units {
        Units { scaler: self.scaler.of(channel..channel + 1), naive: vec![self.naive[channel]] }
    }
}

/// The sums of the errors of each channel, and of each step of the horizon, in standardised units. Windows are added one by one;
/// none is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorSums {
    horizon: usize,
    levels: Levels,
    units: Units,
    /// Over the steps, of each channel.
    channels: Vec<Sums>,
    /// Over the channels, of each step.
    steps: Vec<Sums>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Sums {
    squared: f64,
    absolute: f64,
    symmetric: f64,
    pinball: f64,
    count: u64,
    /// Absolute errors relative to the naive error, and their number.
    relative: (f64, u64),
    /// For each level, how many true values lie inside, and the sum of the widths.
    inside: Vec<(u64, f64)>,
}

impl Sums {
    fn new(levels: &Levels) -> Sums {
        Sums { inside: vec![(0, 0.0); levels.len()], ..Sums::default() }
    }

    fn add(&mut self, more: &Sums) {
        self.squared += more.squared;
        self.absolute += more.absolute;
        self.symmetric += more.symmetric;
        self.pinball += more.pinball;
        self.count += more.count;
        self.relative = (self.relative.0 + more.relative.0, self.relative.1 + more.relative.1);
        for (sum, more) in self.inside.iter_mut().zip(&more.inside) {
            *sum = (sum.0 + more.0, sum.1 + more.1);
        }
    }

    /// The metrics in units of `1 / unit` standard deviations.
    fn metrics(&self, levels: &Levels, unit: f64) -> Metrics {
        let count = self.count as f64;
        let mse = self.squared / count * unit * unit;
        let of_level = |(level, &(inside, width)): (f64, &(u64, f64))| IntervalMetrics {
            level,
            coverage: 100.0 * inside as f64 / count,
            width: width / count * unit,
        };
        Metrics {
            count: self.count,
            mse,
            mae: self.absolute / count * unit,
            rmse: mse.sqrt(),
            mase: self.relative.0 / self.relative.1 as f64,
            smape: self.symmetric / count,
            crps: (!levels.is_empty()).then(|| 2.0 * self.pinball / count * unit),
            intervals: levels.iter().zip(&self.inside).map(of_level).collect(),
        }
    }
}

impl ErrorSums {
    /// No errors yet, of forecasts of `horizon` rows with the intervals of these levels, in these units of the channels.
    pub fn new(horizon: usize, levels: &Levels, units: &Units) -> Self {
        ErrorSums {
            horizon,
            levels: levels.clone(),
            channels: vec![Sums::new(levels); units.naive.len()],
            steps: vec![Sums::new(levels); horizon],
            units: units.clone(),
        }
    }

    /// The levels of the intervals.
    pub fn levels(&self) -> &Levels {
        &self.levels
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
        let (mean, std) = (self.units.scaler.mean[channel], self.units.scaler.std[channel]);
        let naive = self.units.naive[channel];
        let forecast = median(quantiles, horizon);
        let mut sums = Sums::new(&self.levels);
        for (step, (&forecast, &truth)) in forecast.iter().zip(truth).enumerate() {
            let (forecast, truth): (f64, f64) = (forecast.into(), truth.into());
            if truth.is_nan() {
                continue;
            }
            let error = forecast - truth;
            let (y, f) = (truth * std + mean, forecast * std + mean);
            let at = |quantile: usize| -> f64 { quantiles[quantile * horizon + step].into() };
            let loss = |quantile: usize| {
                let error = at(quantile) - truth;
                error.max(0.0) - self.levels.quantile(quantile) * error
            };
            let size = y.abs() + f.abs();
            sums.squared = error * error;
            sums.absolute = error.abs();
            // Nothing is forecast as nothing: no error.
            sums.symmetric = if size == 0.0 { 0.0 } else { 200.0 * (y - f).abs() / size };
            sums.pinball = match levels {
                0 => 0.0,
                _ => (0..self.levels.values()).map(loss).sum::<f64>() / self.levels.values() as f64,
            };
            sums.count = 1;
            sums.relative = if naive > 0.0 { (error.abs() / naive, 1) } else { (0.0, 0) };
            for (level, inside) in sums.inside.iter_mut().enumerate() {
                let (low, high) = (at(levels - 1 - level), at(levels + 1 + level));
                *inside = (u64::from(low <= truth && truth <= high), high - low);
            }
            self.channels[channel].add(&sums);
            self.steps[step].add(&sums);
        }
    }

    /// Adds all sums of other windows to those of a channel.
    ///
    /// # Panics
    /// If there is no such channel, or horizon or levels differ.
    pub fn merge(&mut self, channel: usize, other: &ErrorSums) {
        assert_eq!((self.horizon, &self.levels), (other.horizon, &other.levels), "sums of the same steps");
        other.channels.iter().for_each(|more| self.channels[channel].add(more));
        self.steps.iter_mut().zip(&other.steps).for_each(|(sums, more)| sums.add(more));
    }

    /// The errors over all windows, steps and channels, in units of the channels' standard deviations. NaN if there
    /// are no windows.
    pub fn standardised(&self) -> Errors {
        let Metrics { mse, mae, .. } = self.overall();
        Errors { mse, mae }
    }

    /// The metrics over all windows, steps and channels, in units of the channels' standard deviations.
    pub fn overall(&self) -> Metrics {
        let mut all = Sums::new(&self.levels);
        self.channels.iter().for_each(|sums| all.add(sums));
        all.metrics(&self.levels, 1.0)
    }

    /// The metrics of each step of the horizon, over all windows and channels, in units of the channels' standard deviations.
    pub fn steps(&self) -> Vec<Metrics> {
        self.steps.iter().map(|sums| sums.metrics(&self.levels, 1.0)).collect()
    }

    /// The metrics of one channel, in units of its standard deviation.
    pub fn channel(&self, channel: usize) -> Metrics {
        self.channels[channel].metrics(&self.levels, 1.0)
    }

    /// The metrics of one channel, in original units. Channels may have different units, so there is no mean over them.
    pub fn channel_original(&self, channel: usize) -> Metrics {
        self.channels[channel].metrics(&self.levels, self.units.scaler.std[channel])
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
