//! Multivariate series on a calendar: reading, splitting, standardising.

mod before;
pub(crate) mod calendar;
mod covariates;
mod coverage;
pub(crate) mod fill;
mod gap;
mod grid;
mod long;
pub(crate) mod numbers;
pub(crate) mod order;
mod scaler;
mod set;
mod split;
mod stack;
pub(crate) mod stamps;
pub(crate) mod table;
pub(crate) mod time;

pub use self::calendar::{TimeAxis, TimeStep, Weekdays};
pub use self::covariates::{CalendarFeature, CovariateColumns, CovariateCounts, CovariateScaler, Covariates};
pub use self::coverage::Filled;
pub(crate) use self::coverage::filled;
pub use self::fill::{Missing, ReadReport};
pub use self::gap::MaxGap;
pub use self::grid::{Gap, Grid};
pub use self::long::LongColumns;
pub use self::scaler::{Scaler, Scaling};
pub use self::set::{Layout, SeriesSet};
pub use self::split::{LeftOut, Part, Split, SplitRule};
pub(crate) use self::stack::PADDING;
pub use self::stack::Stack;

use self::table::Table;
use crate::data::dialect::Dialect;
use crate::data::format::{self, Form, Rows};
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;

/// How to read a series.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Refuse a series with gaps or missing values, also of its covariates, instead of filling them.
    pub strict: bool,
    /// The calendar, if it is known, for example from the series that a model was trained on. Otherwise it is
    /// inferred.
    pub step: Option<TimeStep>,
    /// The names of the columns of a long file.
    pub columns: LongColumns,
    /// The columns that are inputs beside the values to forecast.
    pub covariates: CovariateColumns,
    /// How the text is written, and what becomes of rows out of order.
    pub dialect: Dialect,
}

impl ReadOptions {
    fn form(&self) -> Form<'_> {
        Form { dialect: &self.dialect, time: &self.columns.time }
    }
}

/// A series: named channels on a calendar. No value is missing; the grid knows which values were filled.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    file: String,
    names: Vec<String>,
    time: TimeAxis,
    grid: Grid,
    long: bool,
    covariates: Covariates,
}

impl Series {
    /// Reads a file. Parquet and Arrow IPC are told by their first bytes (with the feature `parquet`); any
    /// other file is text, and an unknown ending means CSV, see [`Series::from_csv`].
    ///
    /// # Errors
    /// Those of [`Series::from_csv`]; [`Error::NoParquet`] without the feature.
    pub fn read(path: &Path, options: &ReadOptions) -> Result<(Series, ReadReport)> {
        format::read(path, options.form(), |rows, file| Series::of_rows(rows, file, options))
    }

    /// Reads a series from the text of a CSV file, or of one that gzip has packed: a stream, or bytes in memory. `file` is its
    /// name in messages. Rows are read one by one; what is kept of each are its time and its numbers.
    ///
    /// [`ReadOptions::dialect`] says how the text is written: what stands between cells (found in the header if it is comma,
    /// semicolon, tab or bar), the decimal sign, comments, the form of dates, the time zone of local times, and whether rows are
    /// sorted or joined. A first column without a name is the time, or is left out if another column is.
    ///
    /// The header decides the format. *Long* has exactly the columns `unique_id`, `ds` and `y`, or those that
    /// [`ReadOptions::columns`] names; each id becomes a channel ([`SeriesSet::read`] can keep the ids apart). *Wide* has a time column (the first of `time`, `date`, `datetime`, `timestamp`, `ds`, `time_hour`,
    /// otherwise the first column); every other column is a channel.
    ///
    /// Time stamps are ISO 8601 with or without a zone, optionally with `/` instead of `-`, and may end at the day or
    /// the month; or quarters (`2024Q1`), or seconds or milliseconds since 1970. Stamps with a zone or offset, and local times of
    /// [`Dialect::tz`], are converted to UTC; local days, weeks and months stay local. Without [`Dialect::sort`] they must
    /// ascend, and they follow one calendar:
    ///
    /// - months, quarters or years (any number of months), on one day of the month or at month ends;
    /// - business days, if every weekend is skipped; or other days of the week, if each skipped day of the week
    ///   occurred at least four times;
    /// - a fixed step of any length: the most common difference of neighbours.
    ///
    /// Rows missing from the calendar, and cells that are empty, `NA`, `N/A`, `#N/A`, `<NA>`, `NaN`, `null`, `None`, `nil`, `-`,
    /// `?` or `.`, take the last value that was observed before in their channel, never a later one: what a forecast is made from holds nothing of what it
    /// forecasts. They are counted in the report, and the series knows which they are ([`Grid::is_observed`]). Before the
    /// first value of a channel there is nothing to take: no window reaches there ([`Grid::gaps_to_avoid`]).
    ///
    /// # Errors
    /// Everything that is wrong with the file, see [`Error`]; [`Error::MissingRefused`] under
    /// [`ReadOptions::strict`].
    pub fn from_csv(text: impl Read, file: &str, options: &ReadOptions) -> Result<(Series, ReadReport)> {
        Series::of_rows(format::open(text, options.form(), file)?, file, options)
    }

    fn of_rows(rows: Rows<'_>, file: &str, options: &ReadOptions) -> Result<(Series, ReadReport)> {
        let table = table::parse(rows, options, file)?.into_table(&options.covariates)?;
        Series::of_wide(table, options)
    }

    /// A table whose columns are channels or covariates.
    fn of_wide(table: Table, options: &ReadOptions) -> Result<(Series, ReadReport)> {
        let columns = &options.covariates;
        if !columns.statics.is_empty() {
            return Err(Error::Covariates {
                file: table.file,
                problem: "static covariates are values of the ids of a long file, and this file is wide"
                    .to_owned(),
                fix: "leave --static out, or write the file with the columns unique_id, ds and y",
            });
        }
        // The ids of a long file are no covariates.
        let places = if table.long { Vec::new() } else { columns.places(&table.names, &table.file)? };
        Series::of_grid(fill::onto_grid(table, options.step)?, &places, options)
    }

    /// The rows of a file on their calendar, with covariates in the columns at these places.
    fn of_grid(rows: fill::Rows, places: &[usize], options: &ReadOptions) -> Result<(Series, ReadReport)> {
        if options.covariates.counts().is_empty() {
            return fill::carry_forward(rows, options.strict);
        }
        let (rows, covariates, missing) = options.covariates.take(rows, places)?;
        let (series, mut report) = fill::carry_forward(rows, false)?;
        report.missing.extend(missing);
        let report = report.accepted(options.strict, &series.file)?;
        Ok((Series { covariates, ..series }, report))
    }

    /// The covariates.
    pub fn covariates(&self) -> &Covariates {
        &self.covariates
    }

    /// Its first rows.
    fn first_rows(&self, rows: usize) -> Series {
        let (grid, covariates) = (self.grid.first_rows(rows), self.covariates.first_rows(rows));
        Series { grid, covariates, ..self.clone() }
    }

    /// The channels at these places.
    fn with_channels(&self, places: &[usize]) -> Series {
        let names = places.iter().map(|&place| self.names[place].clone()).collect();
        Series { names, grid: self.grid.with_channels(places), ..self.clone() }
    }

    /// The name of the file, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Whether the file has one row for each id and time (`unique_id`, `ds`, `y`), so that the channels are ids.
    pub fn is_long(&self) -> bool {
        self.long
    }

    /// The names of the channels.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.names.len()
    }

    /// SHA-256 over the names of the channels, all values, which of them were filled, and all covariates (also those of the rows
    /// ahead), to recognise the series.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for name in &self.names {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        self.grid.hash(&mut hash);
        self.covariates.hash(&mut hash);
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Refuses rows that a gap of more than `max_gap` rows, or one before the first value of a channel, lies in or reaches
    /// into, as what a forecast is made from.
    ///
    /// # Errors
    /// [`Error::GapInContext`].
    pub fn check_gaps(&self, rows: std::ops::Range<usize>, max_gap: usize) -> Result<()> {
        let gaps = self.grid.gaps_to_avoid(max_gap);
        let across = |gap: &&Gap| gap.rows.start < rows.end && rows.start < gap.rows.end;
        match gaps.iter().find(across) {
            None => Ok(()),
            Some(gap) => Err(Error::GapInContext {
                file: self.file.clone(),
                context: rows.len(),
                max_gap,
                gap: self.describe(gap),
            }),
        }
    }

    /// Describes a gap for messages.
    fn describe(&self, gap: &Gap) -> String {
        let (name, first, last) = (&self.names[gap.channel], gap.rows.start, gap.rows.end - 1);
        format!(
            "{} rows of `{name}` from {} to {}",
            gap.rows.len(),
            self.time.format(first),
            self.time.format(last)
        )
    }

    /// Number of rows, including filled gaps.
    pub fn rows(&self) -> usize {
        self.grid.rows()
    }

    /// The time of each row, and of rows after the last one.
    pub fn time(&self) -> &TimeAxis {
        &self.time
    }

    /// The values, row-major `[rows, channels]`, in original units, including filled ones.
    pub fn values(&self) -> &[f64] {
        self.grid.values()
    }

    /// The values, and which of them were observed.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The values of one channel, oldest first, including filled ones ([`Grid::truth`] leaves them out).
    ///
    /// # Panics
    /// If there is no such channel.
    pub fn channel(&self, channel: usize) -> impl ExactSizeIterator<Item = f64> + '_ {
        assert!(channel < self.channels(), "channel {channel} of {}", self.channels());
        self.values()[channel..].iter().step_by(self.channels()).copied()
    }
}

#[cfg(test)]
mod dialect_tests;
#[cfg(test)]
mod tests;
