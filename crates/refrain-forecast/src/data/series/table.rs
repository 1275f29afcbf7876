//! The rows of a file to a table of time stamps and numbers, in the wide or the long format.

use super::time::{self, Stamp};
use crate::data::format::Rows;
use crate::data::text::shorten;
use crate::{Error, Result};
use jiff::civil::DateTime;
use std::collections::HashMap;

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
const LONG_COLUMNS: [&str; 3] = ["unique_id", "ds", "y"];

pub(crate) fn parse(rows: Rows<'_>, file: &str) -> Result<Table> {
    let long = LONG_COLUMNS.iter().all(|name| rows.header.iter().any(|column| column == name));
    let table = if long { read_long(rows, file) } else { read_wide(rows, file) }?;
    if table.times.is_empty() {
        return Err(Error::Empty { file: file.to_owned() });
    }
    Ok(table)
}

/// The first column with a usual name of time columns, if there is one.
pub(crate) fn time_column(header: &[String]) -> Option<usize> {
    let is_time = |name: &&str| header.iter().position(|column| column.eq_ignore_ascii_case(name));
    TIME_COLUMNS.iter().find_map(is_time)
}

fn read_wide(Rows { header: mut names, rows }: Rows<'_>, file: &str) -> Result<Table> {
    let time_column = time_column(&names).unwrap_or(0);
    let time_name = names.remove(time_column);
    let mut stamps = Stamps::new(file, time_name);
    let mut numbers = Numbers::new(names.len());
    let (mut times, mut lines, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let row = row?;
        let line = row.line;
        let mut channel = 0;
        for (column, cell) in row.cells().enumerate() {
            if column == time_column {
                let time = stamps.parse(cell, line)?;
                let previous = times.last().copied().zip(lines.last().copied());
                stamps.check_order(previous, (time, line), None)?;
                times.push(time);
            } else {
                values.push(numbers.parse(channel, cell, line));
                channel += 1;
            }
        }
        lines.push(line);
    }
    numbers.check(&names, file)?;
    Ok(Table {
        file: file.to_owned(),
        names,
        long: false,
        utc: stamps.zoned == Some(true),
        times,
        lines,
        values,
    })
}

fn read_long(Rows { header, rows }: Rows<'_>, file: &str) -> Result<Table> {
    if let Some(extra) = header.iter().find(|column| !LONG_COLUMNS.contains(&column.as_str())) {
        let problem =
            format!("the long format has the columns `unique_id`, `ds` and `y`, but there is also `{extra}`");
        return Err(Error::Header { file: file.to_owned(), problem, fix: "remove it, only `y` is forecast" });
    }
    // check_header has verified that each of the three occurs once.
    let place = |name: &str| header.iter().position(|column| column == name).unwrap_or(0);
    let (id_place, time_place, value_place) = (place("unique_id"), place("ds"), place("y"));
    let mut stamps = Stamps::new(file, "ds".to_owned());
    let mut numbers = Numbers::new(0);
    let (mut names, mut channels, mut last) = (Vec::new(), HashMap::new(), Vec::new());
    let mut observations = Vec::new(); // (time, line, channel, value)
    for row in rows {
        let row = row?;
        let line = row.line;
        let id = row.cell(id_place);
        if id.is_empty() {
            return Err(Error::MissingId { file: file.to_owned(), line, column: "unique_id".to_owned() });
        }
        let channel = *channels.entry(id.to_owned()).or_insert_with(|| {
            names.push(id.to_owned());
            last.push(None);
            numbers.add_column();
            names.len() - 1
        });
        let time = stamps.parse(row.cell(time_place), line)?;
        stamps.check_order(last[channel], (time, line), Some(id))?;
        last[channel] = Some((time, line));
        let value = numbers.parse(channel, row.cell(value_place), line);
        observations.push((time, line, channel, value));
    }
    numbers.check(&names, file)?;
    observations.sort_unstable_by_key(|&(time, line, ..)| (time, line));
    let distinct = observations.chunk_by(|a, b| a.0 == b.0).count();
    check_scatter(observations.len(), names.len(), distinct, file)?;
    let (mut times, mut lines, mut values) = (Vec::new(), Vec::new(), Vec::<f64>::new());
    for (time, line, channel, value) in observations {
        if times.last() != Some(&time) {
            times.push(time);
            lines.push(line);
            values.resize(values.len() + names.len(), f64::NAN);
        }
        let row = values.len() - names.len();
        values[row + channel] = value;
    }
    Ok(Table {
        file: file.to_owned(),
        names,
        long: true,
        utc: stamps.zoned == Some(true),
        times,
        lines,
        values,
    })
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

/// Parses the time column and checks that all its time stamps use one convention.
pub(crate) struct Stamps<'a> {
    file: &'a str,
    column: String,
    pub(crate) zoned: Option<bool>,
}

impl<'a> Stamps<'a> {
    pub(crate) fn new(file: &'a str, column: String) -> Self {
        Stamps { file, column, zoned: None }
    }

    pub(crate) fn parse(&mut self, cell: &str, line: u64) -> Result<DateTime> {
        let file = self.file.to_owned();
        let Some(Stamp { time, zoned }) = time::parse(cell) else {
            return Err(Error::Time { file, line, column: self.column.clone(), text: shorten(cell) });
        };
        if *self.zoned.get_or_insert(zoned) != zoned {
            return Err(Error::MixedZones { file, line, text: shorten(cell), zoned });
        }
        Ok(time)
    }

    pub(crate) fn check_order(
        &self,
        previous: Option<(DateTime, u64)>,
        (time, line): (DateTime, u64),
        id: Option<&str>,
    ) -> Result<()> {
        let Some((previous, first)) = previous else {
            return Ok(());
        };
        let format = |time| time::format(time, self.zoned == Some(true));
        let (file, series) = (self.file.to_owned(), id.map(str::to_owned));
        match time.cmp(&previous) {
            std::cmp::Ordering::Greater => Ok(()),
            std::cmp::Ordering::Equal => {
                Err(Error::Duplicate { file, line, first, time: format(time), series })
            }
            std::cmp::Ordering::Less => {
                Err(Error::Order { file, line, time: format(time), previous: format(previous), series })
            }
        }
    }
}

/// Parses the cells of channels, and remembers which are neither numbers nor missing.
pub(crate) struct Numbers {
    columns: Vec<Column>,
}

#[derive(Default, Clone)]
struct Column {
    numbers: usize,
    /// Line and text of the first bad cell, and the number of bad cells.
    bad: Option<(u64, String, usize)>,
}

impl Numbers {
    pub(crate) fn new(columns: usize) -> Self {
        Numbers { columns: vec![Column::default(); columns] }
    }

    fn add_column(&mut self) {
        self.columns.push(Column::default());
    }

    /// The value of a cell. NaN if it is missing (or bad; [`Numbers::check`] reports those).
    pub(crate) fn parse(&mut self, channel: usize, cell: &str, line: u64) -> f64 {
        if is_missing(cell) {
            return f64::NAN;
        }
        let column = &mut self.columns[channel];
        match cell.parse::<f64>() {
            // The engine computes in f32, so what overflows there counts as infinite.
            Ok(value) if (value as f32).is_finite() => {
                column.numbers += 1;
                value
            }
            _ => {
                column.bad.get_or_insert_with(|| (line, shorten(cell), 0)).2 += 1;
                f64::NAN
            }
        }
    }

    pub(crate) fn check(self, names: &[String], file: &str) -> Result<()> {
        for (column, name) in self.columns.into_iter().zip(names) {
            let Some((line, text, count)) = column.bad else {
                continue;
            };
            let (file, name) = (file.to_owned(), name.clone());
            return Err(if column.numbers == 0 {
                Error::TextColumn { file, line, column: name, text }
            } else {
                Error::Number { file, line, column: name, text, more: count - 1 }
            });
        }
        Ok(())
    }
}

pub(crate) fn is_missing(cell: &str) -> bool {
    cell.is_empty() || ["na", "n/a", "nan", "null"].iter().any(|word| cell.eq_ignore_ascii_case(word))
}
