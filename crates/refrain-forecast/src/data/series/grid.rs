//! Values on a calendar, and which of them were observed.

use super::Scaler;
use sha2::{Digest, Sha256};
use std::ops::Range;

/// The values of channels by row, and which of them were observed. No value is missing. Values that were not observed
/// were filled: they are inputs only, and have no weight in losses, errors, baselines and plots.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    values: Vec<f64>, // (rows, channels)
    channels: usize,
    /// For each value, whether it was filled. `None` if all were observed.
    filled: Option<Vec<bool>>,
}

/// Consecutive rows of a channel without an observed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The channel.
    pub channel: usize,
    /// The rows.
    pub rows: Range<usize>,
}

impl Grid {
    /// A grid of row-major `[rows, channels]` values, all of them observed.
    ///
    /// # Panics
    /// If the number of values is not a multiple of `channels`.
    pub fn new(values: Vec<f64>, channels: usize) -> Grid {
        assert!(
            channels > 0 && values.len().is_multiple_of(channels),
            "{} values in rows of {channels}",
            values.len()
        );
        Grid { values, channels, filled: None }
    }

    /// A grid of row-major `[rows, channels]` values; `filled` says for each value whether it was filled.
    ///
    /// # Panics
    /// If the number of values is not a multiple of `channels`, or `filled` has another length.
    pub fn with_filled(values: Vec<f64>, channels: usize, filled: Vec<bool>) -> Grid {
        assert_eq!(values.len(), filled.len(), "a mark for each value");
        Grid { filled: filled.contains(&true).then_some(filled), ..Grid::new(values, channels) }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len() / self.channels
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// All values, row-major `[rows, channels]`, including filled ones.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Whether every value was observed.
    pub fn is_complete(&self) -> bool {
        self.filled.is_none()
    }

    /// Whether a value was observed.
    ///
    /// # Panics
    /// If there is no such row or channel.
    pub fn is_observed(&self, row: usize, channel: usize) -> bool {
        assert!(channel < self.channels, "channel {channel} of {}", self.channels);
        self.filled.as_ref().is_none_or(|filled| !filled[row * self.channels + channel])
    }

    /// The number of observed values of a channel within some rows.
    ///
    /// # Panics
    /// If the rows reach past the grid, or there is no such channel.
    pub fn observed(&self, rows: Range<usize>, channel: usize) -> usize {
        assert!(rows.end <= self.rows(), "rows {rows:?} of {}", self.rows());
        match &self.filled {
            None => rows.len(),
            Some(_) => rows.into_iter().filter(|&row| self.is_observed(row, channel)).count(),
        }
    }

    /// The values of a channel, oldest first. Values that were not observed are NaN.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn truth(&self, channel: usize) -> impl Iterator<Item = f64> + '_ {
        assert!(channel < self.channels, "channel {channel} of {}", self.channels);
        let value = move |row: usize| self.values[row * self.channels + channel];
        (0..self.rows()).map(move |row| if self.is_observed(row, channel) { value(row) } else { f64::NAN })
    }

    /// For each value (row-major), whether it was filled. `None` if all were observed.
    pub fn filled(&self) -> Option<&[bool]> {
        self.filled.as_deref()
    }

    /// Its first rows.
    pub(super) fn first_rows(&self, rows: usize) -> Grid {
        let cells = rows.min(self.rows()) * self.channels;
        let values = self.values[..cells].to_vec();
        match &self.filled {
            None => Grid::new(values, self.channels),
            Some(filled) => Grid::with_filled(values, self.channels, filled[..cells].to_vec()),
        }
    }

    /// The channels at these places.
    pub(super) fn with_channels(&self, places: &[usize]) -> Grid {
        let rows = |row: usize| places.iter().map(move |place| row * self.channels + place);
        let cells = || (0..self.rows()).flat_map(rows);
        let values = cells().map(|cell| self.values[cell]).collect();
        match &self.filled {
            None => Grid::new(values, places.len()),
            Some(filled) => {
                Grid::with_filled(values, places.len(), cells().map(|cell| filled[cell]).collect())
            }
        }
    }

    /// The same grid in units of the channels' standard deviations.
    pub fn standardised(&self, scaler: &Scaler) -> Grid {
        Grid { values: scaler.transform(&self.values), ..self.clone() }
    }

    /// Adds all values to a hash, and which were filled, if any were.
    pub(crate) fn hash(&self, hash: &mut Sha256) {
        self.values.iter().for_each(|value| hash.update(value.to_le_bytes()));
        let marks = self.filled.iter().flatten().map(|&filled| u8::from(filled));
        hash.update(marks.collect::<Vec<u8>>());
    }

    /// The gaps that no window may reach into: those of more than `max_gap` rows, and those before the first value of a
    /// channel, where there is none to carry forward.
    pub fn gaps_to_avoid(&self, max_gap: usize) -> Vec<Gap> {
        let mut gaps = Vec::new();
        if self.is_complete() {
            return gaps;
        }
        for channel in 0..self.channels {
            let mut begun = 0;
            for row in 0..=self.rows() {
                if row == self.rows() || self.is_observed(row, channel) {
                    if row - begun > max_gap || (begun == 0 && row > 0) {
                        gaps.push(Gap { channel, rows: begun..row });
                    }
                    begun = row + 1;
                }
            }
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_gaps_are_avoided_and_those_before_the_first_value() {
        let filled =
            [true, true, false, true, false, true, true, true].map(|filled| [filled, false]).concat();
        let grid = Grid::with_filled(vec![1.0; 16], 2, filled);
        let gaps = |rows| grid.gaps_to_avoid(rows).into_iter().map(|gap| gap.rows).collect::<Vec<_>>();
        assert_eq!(gaps(0), [0..2, 3..4, 5..8]);
        assert_eq!(gaps(1), [0..2, 5..8]);
        assert_eq!(gaps(3).iter().collect::<Vec<_>>(), [&(0..2)]);
        assert_eq!([grid.observed(0..8, 0), grid.observed(2..5, 0), grid.observed(0..8, 1)], [2, 2, 8]);
        assert!(Grid::with_filled(vec![1.0], 1, vec![false]).is_complete());
    }
}
