//! Values on a calendar, and which of them were observed.

use super::Scaler;
use sha2::{Digest, Sha256};
use std::ops::Range;

/// Values of channels by row, none missing, and which of them were observed. The others were filled: they are inputs
/// only, and carry no weight in losses, errors, baselines and plots.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    values: Vec<f64>, // (rows, channels)
    channels: usize,
    /// Of each value whether it was filled; `None` where all were observed.
    filled: Option<Vec<bool>>,
}

/// Rows of a channel without an observed value, as many as follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The channel.
    pub channel: usize,
    /// The rows.
    pub rows: Range<usize>,
}

impl Grid {
    /// Row-major `[rows, channels]` values, all of them observed.
    ///
    /// # Panics
    /// If the values do not fill the rows.
    pub fn new(values: Vec<f64>, channels: usize) -> Grid {
        assert!(
            channels > 0 && values.len().is_multiple_of(channels),
            "{} values in rows of {channels}",
            values.len()
        );
        Grid { values, channels, filled: None }
    }

    /// Row-major `[rows, channels]` values, and of each whether it was filled.
    ///
    /// # Panics
    /// If the values do not fill the rows, or their number is another than that of the marks.
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

    /// All values, row-major `[rows, channels]`, the filled ones included.
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

    /// Number of observed values of a channel within some rows.
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

    /// The values of a channel, oldest first, NaN where it was not observed: what really happened.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn truth(&self, channel: usize) -> impl Iterator<Item = f64> + '_ {
        assert!(channel < self.channels, "channel {channel} of {}", self.channels);
        let value = move |row: usize| self.values[row * self.channels + channel];
        (0..self.rows()).map(move |row| if self.is_observed(row, channel) { value(row) } else { f64::NAN })
    }

    /// Of each value, row-major, whether it was filled; `None` where all were observed.
    pub fn filled(&self) -> Option<&[bool]> {
        self.filled.as_deref()
    }

    /// The same cells in units of the channels' standard deviations.
    pub fn standardised(&self, scaler: &Scaler) -> Grid {
        Grid { values: scaler.transform(&self.values), ..self.clone() }
    }

    /// Takes all values into a hash, and which were filled if any was.
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
