//! From the rows of a file to a regular grid without holes.

use super::table::Table;
use super::{Covariates, Grid, Series, TimeAxis, TimeStep, calendar, time};
use crate::{Error, Result};
use serde::Serialize;
use std::fmt;

/// What was read and what had to be filled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReadReport {
    /// Number of rows in the file (of different time stamps, in the long format).
    pub rows_read: usize,
    /// Number of rows of the time grid that are not in the file.
    pub gap_rows: usize,
    /// Cells missing in rows that are there, for each channel and each column of covariates that lacks any.
    pub missing: Vec<Missing>,
    /// The ids of a long file that have no value at all. They are left out.
    pub empty: Vec<String>,
}

/// The missing cells of one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The channel.
    pub channel: String,
    /// Number of missing cells, without those of gap rows.
    pub count: usize,
    /// The longest run of values that were filled, gap rows included.
    pub longest_run: usize,
}

impl ReadReport {
    /// Whether nothing had to be filled.
    pub fn is_complete(&self) -> bool {
        self.gap_rows == 0 && self.missing.is_empty() && self.empty.is_empty()
    }

    /// Under `strict`, an error unless nothing had to be filled.
    pub(super) fn accepted(self, strict: bool, file: &str) -> Result<ReadReport> {
        match strict && !self.is_complete() {
            true => Err(Error::MissingRefused { file: file.to_owned(), missing: self.to_string() }),
            false => Ok(self),
        }
    }

    /// Number of missing cells over all channels, without those of gap rows.
    pub fn missing_values(&self) -> usize {
        self.missing.iter().map(|missing| missing.count).sum()
    }
}

/// How many channels a message lists.
const FEW: usize = 24;

/// One phrase: `16 rows and 3 values missing (a: 2, b: 1)`.
impl fmt::Display for ReadReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let plural = |count| if count == 1 { "" } else { "s" };
        let (rows, values) = (self.gap_rows, self.missing_values());
        write!(f, "{rows} row{} and {values} value{} missing", plural(rows), plural(values))?;
        for (index, missing) in self.missing.iter().take(FEW).enumerate() {
            write!(f, "{}{}: {}", if index == 0 { " (" } else { ", " }, missing.channel, missing.count)?;
        }
        if self.missing.len() > FEW {
            write!(f, ", and {} more", self.missing.len() - FEW)?;
        }
        if !self.missing.is_empty() {
            write!(f, ")")?;
        }
        if self.empty.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = self.empty.iter().take(FEW).map(String::as_str).collect();
        let more = self.empty.len().saturating_sub(FEW);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        write!(f, "; left out, because no value of it is known: {}{more}", names.join(", "))
    }
}

/// The rows of a file on their calendar, before anything is filled.
pub(crate) struct Rows {
    file: String,
    pub(crate) names: Vec<String>,
    long: bool,
    pub(crate) time: TimeAxis,
    /// Row-major `[rows, channels]`, NaN where a value is missing.
    pub(crate) values: Vec<f64>,
    /// Rows that are not in the file.
    gap_rows: usize,
}

impl Rows {
    /// The name of the file, for messages.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Whether they are those of an id of a long file, or of all its ids.
    pub(super) fn is_long(&self) -> bool {
        self.long
    }

    /// The same rows, or the first of them, with other columns.
    pub(super) fn with_columns(self, names: Vec<String>, values: Vec<f64>) -> Rows {
        // Those that are not in the file have no value.
        let columns = self.names.len();
        let rows = self.values.chunks_exact(columns).take(values.len() / names.len());
        let empty = rows.filter(|row| row.iter().all(|value| value.is_nan())).count();
        Rows { names, values, gap_rows: self.gap_rows.min(empty), ..self }
    }
}

/// Puts the rows onto their calendar, or the one that is given.
pub(crate) fn onto_grid(table: Table, given: Option<TimeStep>) -> Result<Rows> {
    if table.times.len() < 2 {
        return Err(Error::TooFewRows { file: table.file, rows: table.times.len() });
    }
    match given {
        Some(step) => onto_calendar(table, step, true),
        None => match calendar::infer(&table.times) {
            Ok((step, rows)) => onto_rows(table, step, &rows),
            Err((index, step)) => Err(off_grid(&table, index, step, false)),
        },
    }
}

/// Puts the rows onto a calendar; `given` says whether it is that of a trained model. There may be only one row.
pub(super) fn onto_calendar(table: Table, step: TimeStep, given: bool) -> Result<Rows> {
    match calendar::rows_on(step, &table.times) {
        Ok(rows) => onto_rows(table, step, &rows),
        Err(index) => Err(off_grid(&table, index, step, given)),
    }
}

/// The error for the row with this index, which is not on the calendar.
pub(super) fn off_grid(table: &Table, index: usize, step: TimeStep, given: bool) -> Error {
    let (line, time) = (table.lines[index], time::format(table.times[index], table.utc));
    Error::OffGrid { file: table.file.clone(), line, time, step: step.to_string(), given }
}

fn onto_rows(table: Table, step: TimeStep, rows: &[u64]) -> Result<Rows> {
    let Table { file, names, long, utc, times, lines, values } = table;
    let expected = rows[rows.len() - 1].saturating_add(1);
    let missing = expected - rows.len() as u64;
    // One wrong year would otherwise ask for a grid of any size.
    if missing > rows.len() as u64 {
        let after_longest = (1..rows.len()).max_by_key(|&index| rows[index] - rows[index - 1]).unwrap_or(0);
        return Err(Error::Sparse {
            file,
            line: lines[after_longest],
            missing,
            expected,
            step: step.to_string(),
        });
    }
    let channels = names.len();
    let values = if missing == 0 {
        values
    } else {
        let mut grid = vec![f64::NAN; expected as usize * channels];
        for (row, &place) in values.chunks_exact(channels).zip(rows) {
            grid[place as usize * channels..][..channels].copy_from_slice(row);
        }
        grid
    };
    Ok(Rows {
        file,
        names,
        long,
        time: TimeAxis::new(times[0], step, utc),
        values,
        gap_rows: missing as usize,
    })
}

/// Replaces each missing value by the last observed value before it in its channel, never by a later one, and marks it as
/// filled. Missing values before the first observed one take the first; no window reaches them ([`Grid::gaps_to_avoid`]).
pub(super) fn carry_forward(rows: Rows, strict: bool) -> Result<(Series, ReadReport)> {
    let Rows { file, names, long, time, mut values, gap_rows } = rows;
    let (rows, channels) = (values.len() / names.len(), names.len());
    let missing: Vec<bool> = values.iter().map(|value| value.is_nan()).collect();
    let mut report =
        ReadReport { rows_read: rows - gap_rows, gap_rows, missing: Vec::new(), empty: Vec::new() };
    for (channel, name) in names.iter().enumerate() {
        let cells = (channel..values.len()).step_by(channels);
        let Some(first) = cells.clone().find(|&cell| !missing[cell]) else {
            return Err(Error::AllMissing { file, channel: name.clone() });
        };
        let (mut last, mut count, mut run, mut longest_run) = (values[first], 0, 0, 0);
        for cell in cells {
            if missing[cell] {
                values[cell] = last;
                (count, run) = (count + 1, run + 1);
                longest_run = longest_run.max(run);
            } else {
                (last, run) = (values[cell], 0);
            }
        }
        // Gap rows are missing in every channel.
        if count > gap_rows {
            report.missing.push(Missing { channel: name.clone(), count: count - gap_rows, longest_run });
        }
    }
    let report = report.accepted(strict, &file)?;
    let grid = Grid::with_filled(values, channels, missing);
    Ok((Series { file, names, time, grid, long, covariates: Covariates::default() }, report))
}
