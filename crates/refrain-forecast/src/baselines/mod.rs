//! Simple forecasts to compare a model with: last value, seasonal naive, and a linear model.

mod cholesky;
mod linear;
mod naive;
mod observed;

pub use linear::Linear;
pub use naive::{LastValue, SeasonalNaive};

use crate::data::series::{Grid, Part, SeriesSet, Split, Stack};
use crate::tasks::forecasting::Levels;
use crate::tasks::forecasting::metrics::{ErrorSums, Units};
use rayon::prelude::*;
use std::ops::Range;

/// A forecaster that predicts one channel from its own past.
pub trait Baseline: Sync {
    /// The name to print in tables.
    fn name(&self) -> &'static str;

    /// Predicts the `forecast.len()` values after `context` (oldest first, in the units of `context`; at least one).
    fn forecast(&self, context: &[f64], forecast: &mut [f64]);
}

/// How many windows a task of the thread pool computes, and how many tasks are computed before their sums are added up.
const AT_ONCE: usize = 256;

/// The errors of a baseline over every window and channel of a part of a grid that was scaled to these units. Only observed
/// values count. The sums do not depend on the number of threads.
///
/// # Panics
/// If the part reaches past the grid, or the units are those of other channels.
pub fn evaluate(
    baseline: &dyn Baseline,
    grid: &Grid,
    units: &Units,
    split: &Split,
    part: &Part,
) -> ErrorSums {
    let (channels, columns) = (grid.channels(), columns(grid, part));
    assert_eq!(units.naive.len(), channels, "units of the channels");
    let truth = part.has_filled().then(|| {
        let truth =
            |channel: usize| grid.truth(channel).skip(part.rows.start).take(part.rows.len()).collect();
        (0..channels).map(truth).collect::<Vec<Vec<f64>>>()
    });
    let truth = truth.as_ref().unwrap_or(&columns);
    let origins: Vec<usize> = part.starts().map(|start| start + split.context - part.rows.start).collect();
    let tasks = (0..channels).flat_map(|channel| origins.chunks(AT_ONCE).map(move |some| (channel, some)));
    let errors = |&(channel, origins): &(usize, &[usize])| {
        let column = Column { values: &columns[channel], truth: &truth[channel], units: units.of(channel) };
        (channel, column.errors(baseline, split, origins))
    };
    added_up(ErrorSums::new(split.horizon, &Levels::NONE, units), tasks, errors)
}

/// The sums of all tasks, each of which gives those of one channel. They are added up in order, some tasks at a time, because each has
/// sums for every row of the horizon.
fn added_up<T: Send + Sync>(
    mut total: ErrorSums,
    mut tasks: impl Iterator<Item = T>,
    errors: impl Fn(&T) -> (usize, ErrorSums) + Sync,
) -> ErrorSums {
    loop {
        let some: Vec<T> = tasks.by_ref().take(AT_ONCE).collect();
        if some.is_empty() {
            return total;
        }
        let sums: Vec<(usize, ErrorSums)> = some.par_iter().map(&errors).collect();
        sums.iter().for_each(|(channel, sums)| total.merge(*channel, sums));
    }
}

/// The same for the series of a set. Of independent series, a context has no more rows than there are.
///
/// # Panics
/// If the part or the units are those of other series.
pub fn evaluate_set(
    baseline: &dyn Baseline,
    set: &SeriesSet,
    stack: &Stack,
    units: &Units,
    (split, part): (&Split, &Part),
) -> ErrorSums {
    if !set.is_independent() {
        return evaluate(baseline, &set.first().grid().standardised(&units.scaler), units, split, part);
    }
    let of_series = |(number, runs, end): &(usize, Vec<Range<usize>>, usize)| {
        let units = units.of(*number);
        let grid = set.series()[*number].grid().standardised(&units.scaler);
        let unknown = std::iter::repeat_n(f64::NAN, split.horizon);
        let truth: Vec<f64> = grid.truth(0).take(*end).chain(unknown).collect();
        let origins: Vec<usize> = runs.iter().cloned().flatten().collect();
        (*number, Column { values: grid.values(), truth: &truth, units }.errors(baseline, split, &origins))
    };
    let total = ErrorSums::new(split.horizon, &Levels::NONE, units);
    added_up(total, stack.origins(part, split.context), of_series)
}

/// A channel of a series.
struct Column<'a> {
    values: &'a [f64],
    /// The same, with NaN for what does not count.
    truth: &'a [f64],
    units: Units,
}

impl Column<'_> {
    /// The errors of a baseline over the horizons that begin at some rows.
    fn errors(&self, baseline: &dyn Baseline, split: &Split, origins: &[usize]) -> ErrorSums {
        let mut sums = ErrorSums::new(split.horizon, &Levels::NONE, &self.units);
        let mut forecast = vec![0.0; split.horizon];
        for &origin in origins {
            baseline.forecast(&self.values[origin.saturating_sub(split.context)..origin], &mut forecast);
            sums.add(0, &forecast, &self.truth[origin..origin + split.horizon]);
        }
        sums
    }
}

/// The rows of a part by channel, including filled values.
fn columns(grid: &Grid, part: &Part) -> Vec<Vec<f64>> {
    let channels = grid.channels();
    let rows = &grid.values()[part.rows.start * channels..part.rows.end * channels];
    (0..channels).map(|channel| rows.iter().skip(channel).step_by(channels).copied().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::series::{ReadOptions, Scaler, Series, SplitRule, TimeAxis, TimeStep};

    /// Its errors are those that a simple loop over all windows computes.
    #[test]
    fn evaluation_visits_every_window_of_every_channel_once() {
        let (channels, rows) = (3, 700);
        let values: Vec<f64> = (0..rows * channels).map(|i| ((i * 7919) % 101) as f64 / 10.0).collect();
        let part = Part::all(20..rows, 5 + 2);
        let split = Split {
            context: 5,
            horizon: 2,
            train: part.clone(),
            validation: part.clone(),
            test: part.clone(),
        };
        let grid = Grid::new(values.clone(), channels);
        let unit = Scaler::unit(3).into();
        let got = evaluate(&LastValue, &grid, &unit, &split, &part).standardised();
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

    #[test]
    fn what_was_filled_is_not_scored() {
        let axis =
            TimeAxis::new(jiff::civil::date(2020, 1, 1).at(0, 0, 0, 0), TimeStep::seconds(3600), false);
        let missing = |row: usize| row % 9 == 4;
        let value = |row: usize| (row * 7919 % 101) as f64 / 10.0;
        let row = |row: usize| {
            let cell = if missing(row) { String::new() } else { value(row).to_string() };
            format!("{},{cell},{row}\n", axis.format(row))
        };
        let text = format!("time,a,b\n{}", (0..100).map(row).collect::<String>());
        let (series, _) = Series::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default()).unwrap();
        let split = Split::new(&series, &SplitRule::default(), 5, 3, 1).unwrap();
        let unit = Scaler::unit(2).into();
        let errors = evaluate(&LastValue, series.grid(), &unit, &split, &split.test);
        let (mut squared, mut count) = (0.0, 0.0);
        for start in split.test.starts() {
            let last = series.values()[2 * (start + 4)];
            for target in (start + 5..start + 8).filter(|&row| !missing(row)) {
                squared += (last - value(target)).powi(2);
                count += 1.0;
            }
        }
        assert!((errors.channel(0).mse - squared / count).abs() < 1e-9, "{errors:?}");
        assert!((errors.channel(1).mse - 14.0 / 3.0).abs() < 1e-9, "{errors:?}");
    }
}
