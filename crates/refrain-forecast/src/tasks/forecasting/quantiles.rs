//! Several quantiles of each value: sorting those that cross, and the intervals between them.

use super::Levels;
use crate::{Error, Result};
use serde::Serialize;

/// An interval in which a share of the true values should lie, in original units.
#[derive(Debug, Clone, PartialEq)]
pub struct Interval {
    /// The share in percent.
    pub level: f64,
    /// The lower bounds, row-major `[horizon, channels]`.
    pub low: Vec<f64>,
    /// The upper bounds, likewise.
    pub high: Vec<f64>,
}

/// How often a higher quantile was forecast below a lower one. Nothing in training forbids that, so the quantiles are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Crossings {
    /// The forecast values of which some quantiles crossed.
    pub crossed: u64,
    /// All forecast values.
    pub of: u64,
}

impl Crossings {
    /// Adds those of other forecasts.
    pub fn add(&mut self, more: Crossings) {
        self.crossed += more.crossed;
        self.of += more.of;
    }
}

/// Sorts the quantiles of each row of `[quantiles, horizon]` values. One that is NaN comes last.
pub(super) fn sort(values: &mut [f32], horizon: usize) -> Crossings {
    let quantiles = values.len() / horizon;
    let mut crossings = Crossings { crossed: 0, of: horizon as u64 };
    if quantiles < 2 {
        return crossings;
    }
    let mut column = vec![0.0; quantiles];
    for row in 0..horizon {
        let all = values.iter().skip(row).step_by(horizon);
        column.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        if column.is_sorted() {
            continue;
        }
        crossings.crossed += 1;
        column.sort_unstable_by(f32::total_cmp);
        values.iter_mut().skip(row).step_by(horizon).zip(&column).for_each(|(to, from)| *to = *from);
    }
    crossings
}

/// The median of sorted `[quantiles, horizon]` values: the middle row.
pub(super) fn median<T>(values: &[T], horizon: usize) -> &[T] {
    let quantiles = values.len() / horizon;
    &values[quantiles / 2 * horizon..][..horizon]
}

/// How many values a model with this horizon forecasts in each of so many rows: one, or one for each quantile of the levels.
///
/// # Errors
/// [`Error::Model`] for any other number.
pub(super) fn check_length(length: usize, horizon: usize, levels: &Levels) -> Result<usize> {
    let values = if horizon > 0 && length.is_multiple_of(horizon) { length / horizon } else { 0 };
    match values == 1 || values == levels.values() {
        true => Ok(values),
        false => Err(no_quantiles(length, horizon)),
    }
}

pub(super) fn no_quantiles(length: usize, horizon: usize) -> Error {
    Error::Model {
        problem: format!(
            "the model forecasts {length} values of each channel, which are not the quantiles of {horizon} rows"
        ),
        fix: "use the windows and levels that the model was trained with",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_that_cross_are_sorted_and_counted() {
        // Three quantiles of four rows.
        let mut values = [1.0, 5.0, 2.0, 0.0, 2.0, 4.0, 2.0, f32::NAN, 3.0, 6.0, 1.0, -1.0];
        assert_eq!(sort(&mut values, 4), Crossings { crossed: 3, of: 4 });
        assert_eq!(values[..11], [1.0, 4.0, 1.0, -1.0, 2.0, 5.0, 2.0, 0.0, 3.0, 6.0, 2.0]);
        assert!(values[11].is_nan());
        assert_eq!(median(&values, 4), [2.0, 5.0, 2.0, 0.0]);
        assert_eq!(sort(&mut values[..11], 11), Crossings { crossed: 0, of: 11 });
        assert_eq!(sort(&mut [1.0, 1.0, 1.0], 1).crossed, 0);
    }

    #[test]
    fn what_is_no_number_of_quantiles_is_refused() {
        let levels: Levels = "80,90".parse().unwrap();
        assert_eq!([4, 20].map(|length| check_length(length, 4, &levels).unwrap()), [1, 5]);
        for (length, horizon) in [(8, 4), (12, 4), (21, 4), (4, 0), (0, 4)] {
            let message = check_length(length, horizon, &levels).unwrap_err().to_string();
            assert!(message.contains("not the quantiles of"), "{message}");
        }
    }
}
