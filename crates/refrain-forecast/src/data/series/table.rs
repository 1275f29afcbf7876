//! The rows of a file to a table of time stamps and numbers, in the wide or the long format.

use super::numbers::Numbers;
use super::order::Order;
use super::stamps::Stamps;
use super::{CovariateColumns, LongColumns, ReadOptions};
use crate::data::format::Rows;
use crate::{Error, Result};
use jiff::civil::DateTime;

/// The content of the file, before it is put on the grid. Rows ascend in time; missing values are NaN.
pub(crate) struct Table {
    pub file: String,
    pub names: Vec<String>,
    /// Whether the file is in the long format.
    pub long: bool,
    pub utc: bool,
    pub times: Vec<DateTime>,
    /// The line of each row. In the long format, the first line with its time stamp.
    pub lines: Vec<u64>,
    pub values: Vec<f64>, // (rows, channels)
}

const TIME_COLUMNS: [&str; 6] = ["time", "date", "datetime", "timestamp", "ds", "time_hour"];

/// The content of a file, in either format.
pub(crate) enum Content {
    Wide(Table),
    Long(super::long::Long),
}

impl Content {
    /// As a table: the ids of a long file become columns. Then there are no columns of covariates, since each id has its own.
    pub(crate) fn into_table(self, covariates: &CovariateColumns) -> Result<Table> {
        match self {
            Content::Wide(table) => Ok(table),
            Content::Long(long) if covariates.names().next().is_some() => Err(Error::Covariates {
                file: long.file,
                problem: "the ids of a long file have covariates of their own, so they cannot be channels of one table"
                    .to_owned(),
                fix: "pass --layout independent, or leave --past, --future and --static out",
            }),
            Content::Long(long) => long.pivoted(),
        }
    }
}

pub(crate) fn parse(rows: Rows<'_>, options: &ReadOptions, file: &str) -> Result<Content> {
    let ReadOptions { columns, covariates, dialect, step, .. } = options;
    if let Some(places) = columns.find(&rows.header, covariates, file)? {
        let beside = covariates.places(&rows.header, file)?;
        if let Some(&both) = beside.iter().find(|place| places.contains(place)) {
            let problem =
                format!("the column `{}` is the ids, the times or the values to forecast", rows.header[both]);
            let fix = "name other columns by --past, --future and --static";
            return Err(Error::Header { file: file.to_owned(), problem, fix });
        }
        return Ok(Content::Long(super::long::read(rows, places, &beside, (dialect, *step), file)?));
    }
    let table = read_wide(rows, options, file)?;
    match table.times.is_empty() {
        true => Err(Error::Empty { file: file.to_owned() }),
        false => Ok(Content::Wide(table)),
    }
}

/// Whether a column has a usual name of time columns.
pub(crate) fn is_time_column(name: &str) -> bool {
    TIME_COLUMNS.iter().any(|usual| name.eq_ignore_ascii_case(usual))
}

/// The first column with a usual name of time columns, if there is one.
pub(crate) fn time_column(header: &[String]) -> Option<usize> {
    let is_time = |name: &&str| header.iter().position(|column| column.eq_ignore_ascii_case(name));
    TIME_COLUMNS.iter().find_map(is_time)
}

fn read_wide(rows: Rows<'_>, options: &ReadOptions, file: &str) -> Result<Table> {
    let Rows { header: mut names, mut rows, typed } = rows;
    let ReadOptions { columns, dialect, .. } = options;
    let time_column = match names.iter().position(|name| *name == columns.time) {
        _ if columns.time == LongColumns::default().time => time_column(&names).unwrap_or(0),
        Some(named) => named,
        None => {
            let problem = format!("there is no column `{}`", columns.time);
            let fix = "name the column of time stamps by --time-column";
            return Err(Error::Header { file: file.to_owned(), problem, fix });
        }
    };
    let time_name = names.remove(time_column);
    let mut stamps = Stamps::new(file, time_name, dialect, typed);
    let (mut numbers, order) =
        (Numbers::new(names.len(), dialect.decimal_of(typed)), Order::new(file, dialect));
    let (mut times, mut lines, mut values) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let line = row.line;
        let mut channel = 0;
        for (column, cell) in row.cells().enumerate() {
            if column == time_column {
                let time = stamps.parse(cell, line)?;
                let previous = times.last().copied().zip(lines.last().copied());
                order.check(previous, (time, line), None, stamps.is_utc())?;
                times.push(time);
            } else {
                values.push(numbers.parse(channel, cell, line));
                channel += 1;
            }
        }
        lines.push(line);
    }
    let read = stamps.finish(options.step);
    order.arrange(&mut times, &mut lines, &mut [(&mut values, names.len())], None, stamps.is_utc())?;
    read.settle(&mut times);
    numbers.check(names.iter().map(String::as_str), file)?;
    Ok(Table { file: file.to_owned(), names, long: false, utc: read.utc, times, lines, values })
}

/// Refuses rows that would give a nearly empty table of names by times. Such a table grows with the square of the
/// file.
pub(crate) fn check_scatter(rows: usize, series: usize, times: usize, file: &str) -> Result<()> {
    const CELLS_A_ROW: usize = 64;
    const FEW: usize = 1 << 16;
    match series.saturating_mul(times) > rows.saturating_mul(CELLS_A_ROW).max(FEW) {
        true => Err(Error::Scattered { file: file.to_owned(), rows, series, times }),
        false => Ok(()),
    }
}
