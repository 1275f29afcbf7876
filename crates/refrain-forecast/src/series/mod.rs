//! A multivariate series on a regular time grid: reading, splitting, standardising.

pub(crate) mod csv;
pub(crate) mod fill;
mod scaler;
mod split;
pub(crate) mod time;

pub use self::fill::{Missing, ReadReport};
pub use self::scaler::Scaler;
pub use self::split::{Part, Split, SplitRule};
pub use self::time::{Step, TimeAxis};

use crate::{Error, Result};
use std::path::Path;

/// How to read a series.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Refuse a series with gaps or missing values, instead of filling them.
    pub strict: bool,
}

/// A series: named channels on a regular time grid, no value missing.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    file: String,
    names: Vec<String>,
    time: TimeAxis,
    values: Vec<f64>, // (rows, channels)
}

impl Series {
    /// Reads a CSV file; see [`Series::from_csv`].
    ///
    /// # Errors
    /// [`Error::Read`], and those of [`Series::from_csv`].
    pub fn read(path: &Path, options: &ReadOptions) -> Result<(Series, ReadReport)> {
        let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Series::from_csv(&bytes, &path.display().to_string(), options)
    }

    /// Reads a series from the text of a CSV file; `file` is its name in messages.
    ///
    /// The header tells the format. *Long* has exactly the columns `unique_id`, `ds` and `y`; each id becomes a
    /// channel. *Wide* has a time column (the first of `time`, `date`, `datetime`, `timestamp`, `ds`,
    /// `time_hour`, else the first column), and every other column is a channel.
    ///
    /// Time stamps are ISO 8601 with or without zone, with `/` for `-` if you like, down to the day or the month.
    /// Stamps with a zone or offset are converted to UTC. They must ascend, and lie on a grid whose step is their
    /// most common difference, or a number of months. Rows missing from the grid, and cells that are empty, `NA`,
    /// `N/A`, `NaN` or `null`, are filled by linear interpolation in time, at the ends with the nearest value, and
    /// counted in the report.
    ///
    /// # Errors
    /// Everything that is wrong with the file, see [`Error`]; [`Error::MissingRefused`] under
    /// [`ReadOptions::strict`].
    pub fn from_csv(bytes: &[u8], file: &str, options: &ReadOptions) -> Result<(Series, ReadReport)> {
        let table = csv::parse(bytes, file)?;
        let (mut series, gap_rows) = fill::onto_grid(table)?;
        let report = fill::interpolate(&mut series, gap_rows, options.strict)?;
        Ok((series, report))
    }

    /// The name of the file that it came from, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The names of the channels.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.names.len()
    }

    /// Number of rows, filled gaps included.
    pub fn rows(&self) -> usize {
        self.values.len() / self.names.len()
    }

    /// The time of each row, and of those after the last.
    pub fn time(&self) -> &TimeAxis {
        &self.time
    }

    /// The values, row-major `[rows, channels]`, in original units.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The values of one channel, oldest first.
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn channel(&self, channel: usize) -> impl ExactSizeIterator<Item = f64> + '_ {
        assert!(channel < self.channels(), "channel {channel} of {}", self.channels());
        self.values[channel..].iter().step_by(self.channels()).copied()
    }
}

#[cfg(test)]
mod tests;
