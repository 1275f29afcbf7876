//! The long format: one row for each id and time.

use super::numbers::Numbers;
use super::order::Order;
use super::stamps::Stamps;
use super::table::{Table, check_scatter, time_column};
use super::{CovariateColumns, TimeStep};
use crate::data::dialect::Dialect;
use crate::data::format::Rows;
use crate::{Error, Result};
use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The names of the columns of a long file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongColumns {
    /// The column of ids.
    pub id: String,
    /// The column of time stamps.
    pub time: String,
    /// The column of values.
    pub value: String,
}

/// `unique_id`, `ds` and `y`.
impl Default for LongColumns {
    fn default() -> LongColumns {
        let [id, time, value] = ["unique_id", "ds", "y"].map(str::to_owned);
        LongColumns { id, time, value }
    }
}

impl LongColumns {
    /// The places of the three columns in a header. `None` if the file is not long.
    pub(super) fn find(
        &self,
        header: &[String],
        covariates: &CovariateColumns,
        file: &str,
    ) -> Result<Option<[usize; 3]>> {
        let place = |name: &str| header.iter().position(|column| column == name);
        let usual = LongColumns::default();
        if self.id == usual.id && self.value == usual.value && place(&self.id).is_none() {
            return Ok(None);
        }
        let refuse = |problem, fix| Err(Error::Header { file: file.to_owned(), problem, fix });
        const FIX: &str = "name the columns by --id-column, --time-column and --target";
        let missing = |name: &str| refuse(format!("there is no column `{name}`"), FIX);
        let chosen = *self != usual;
        let Some(id) = place(&self.id) else { return missing(&self.id) };
        let time = match place(&self.time) {
            None if chosen && self.time == usual.time => time_column(header),
            place => place,
        };
        let mut others = (0..header.len()).filter(|&column| column != id && Some(column) != time);
        let value = match place(&self.value) {
            None if chosen && self.value == usual.value && header.len() == 3 => others.next(),
            place => place,
        };
        match (time, value) {
            (Some(time), Some(value)) if id != time && time != value && id != value => {
                // Whoever names columns says which of the others count: none.
                let beside = |at: &usize| covariates.names().any(|name| *name == header[*at]);
                let unknown = |at: &usize| ![id, time, value].contains(at) && !beside(at) && !chosen;
                if let Some(extra) = (0..header.len()).find(unknown) {
                    let extra = &header[extra];
                    let problem = format!(
                        "the long format has the columns `unique_id`, `ds` and `y`, but there is also `{extra}`"
                    );
                    return refuse(
                        problem,
                        "remove it, or name it by --past, --future or --static; only `y` is forecast",
                    );
                }
                Ok(Some([id, time, value]))
            }
            (Some(_), Some(_)) => {
                refuse("ids, times and values are to be in the same column".to_owned(), FIX)
            }
            // A wide file may have a channel of this name.
            _ if !chosen => Ok(None),
            (None, _) => missing(&self.time),
            (_, None) => missing(&self.value),
        }
    }
}

/// The content of a long file, by id in the order of their first rows.
pub(crate) struct Long {
    pub file: String,
    pub utc: bool,
    pub ids: Vec<Id>,
}

/// The rows of one id. Times ascend; missing values are NaN.
pub(crate) struct Id {
    pub name: String,
    pub times: Vec<DateTime>,
    pub lines: Vec<u64>,
    pub values: Vec<f64>,
    /// The columns of covariates, row-major.
    pub beside: Vec<f64>,
}

/// Reads the rows of a file with the columns of ids, times and values, and of covariates, at these places.
pub(super) fn read(
    rows: Rows<'_>,
    [id_place, time_place, value_place]: [usize; 3],
    covariates: &[usize],
    (dialect, step): (&Dialect, Option<TimeStep>),
    file: &str,
) -> Result<Long> {
    let Rows { header, mut rows, typed } = rows;
    let mut stamps = Stamps::new(file, header[time_place].clone(), dialect, typed);
    let mut numbers = Numbers::new(0, dialect.decimal_of(typed));
    let mut of_covariates = Numbers::new(covariates.len(), dialect.decimal_of(typed));
    let order = Order::new(file, dialect);
    let (mut places, mut ids) = (HashMap::new(), Vec::<Id>::new());
    let mut last = 0;
    while let Some(row) = rows.next()? {
        let (line, name) = (row.line, row.cell(id_place));
        if name.is_empty() {
            let column = header[id_place].clone();
            return Err(Error::MissingId { file: file.to_owned(), line, column });
        }
        // Most rows have the id of the row before.
        let same = ids.get(last).filter(|id| id.name == name).map(|_| last);
        let at = match same.or_else(|| places.get(name).copied()) {
            Some(at) => at,
            None => {
                places.insert(name.to_owned(), ids.len());
                numbers.add_column();
                let (times, lines, values, beside) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
                ids.push(Id { name: name.to_owned(), times, lines, values, beside });
                ids.len() - 1
            }
        };
        last = at;
        let time = stamps.parse(row.cell(time_place), line)?;
        let id = &mut ids[at];
        let previous = id.times.last().copied().zip(id.lines.last().copied());
        order.check(previous, (time, line), Some(name), stamps.is_utc())?;
        id.times.push(time);
        id.lines.push(line);
        id.values.push(numbers.parse(at, row.cell(value_place), line));
        for (column, &place) in covariates.iter().enumerate() {
            id.beside.push(of_covariates.parse(column, row.cell(place), line));
        }
    }
    if ids.is_empty() {
        return Err(Error::Empty { file: file.to_owned() });
    }
    let read = stamps.finish(step);
    for Id { name, times, lines, values, beside } in &mut ids {
        let tables = &mut [(values, 1), (beside, covariates.len())];
        order.arrange(times, lines, tables, Some(name.as_str()), stamps.is_utc())?;
        read.settle(times);
    }
    numbers.check(ids.iter().map(|id| id.name.as_str()), file)?;
    of_covariates.check(covariates.iter().map(|&place| header[place].as_str()), file)?;
    Ok(Long { file: file.to_owned(), utc: read.utc, ids })
}

impl Long {
    /// Whether all ids begin at one time and end at one time, so that a table of them has no empty ends.
    pub(super) fn shares_ends(&self) -> bool {
        let ends = |id: &Id| (id.times.first().copied(), id.times.last().copied());
        let first = self.ids.first().map(ends);
        self.ids.iter().all(|id| Some(ends(id)) == first)
    }

    /// The ids that have a value, and the names of the others. If none has, all are kept, for the message.
    pub(super) fn without_empty(mut self) -> (Long, Vec<String>) {
        let is_known = |id: &Id| id.values.iter().any(|value| !value.is_nan());
        if !self.ids.iter().any(is_known) {
            return (self, Vec::new());
        }
        let (ids, empty): (Vec<Id>, Vec<Id>) = self.ids.into_iter().partition(is_known);
        self.ids = ids;
        (self, empty.into_iter().map(|id| id.name).collect())
    }

    /// The table with a column for each id and a row for each time.
    pub(super) fn pivoted(self) -> Result<Table> {
        let Long { file, utc, ids } = self;
        let rows = ids.iter().map(|id| id.times.len()).sum();
        let mut observations = Vec::with_capacity(rows); // (time, channel, line, value)
        let mut names = Vec::with_capacity(ids.len());
        // Each id gives its memory back before the next one is taken.
        for (channel, Id { name, times, lines, values, .. }) in (0_u32..).zip(ids) {
            let rows = times.into_iter().zip(lines).zip(values);
            observations.extend(rows.map(|((time, line), value)| (time, channel, line, value)));
            names.push(name);
        }
        observations.sort_unstable_by_key(|&(time, _, line, _)| (time, line));
        let distinct = observations.chunk_by(|a, b| a.0 == b.0).count();
        check_scatter(observations.len(), names.len(), distinct, &file)?;
        let (mut times, mut lines, mut values) = (Vec::new(), Vec::new(), Vec::<f64>::new());
        for (time, channel, line, value) in observations {
            if times.last() != Some(&time) {
                times.push(time);
                lines.push(line);
                values.resize(values.len() + names.len(), f64::NAN);
            }
            let row = values.len() - names.len();
            values[row + channel as usize] = value;
        }
        Ok(Table { file, names, long: true, utc, times, lines, values })
    }

    /// The columns of a wide table as ids. Each has the covariates in the columns at these places.
    pub(super) fn of_columns(table: Table, covariates: &[usize]) -> Long {
        let Table { file, names, utc, times, lines, values, .. } = table;
        let channels = names.len();
        let rows = values.chunks_exact(channels.max(1));
        let beside: Vec<f64> = rows.flat_map(|row| covariates.iter().map(|&place| row[place])).collect();
        let id = |(channel, name)| {
            let values = values.iter().skip(channel).step_by(channels).copied().collect();
            Id { name, times: times.clone(), lines: lines.clone(), values, beside: beside.clone() }
        };
        let targets = names.into_iter().enumerate().filter(|(column, _)| !covariates.contains(column));
        let ids = targets.map(id).collect();
        Long { file, utc, ids }
    }
}

impl Id {
    /// Its rows from the first to the last value that is not missing; with `ahead`, also those after the last one.
    pub(super) fn trimmed(mut self, ahead: bool) -> Id {
        let known = |value: &f64| !value.is_nan();
        let end = match self.values.iter().rposition(known) {
            None => 0,
            Some(_) if ahead => self.values.len(),
            Some(last) => last + 1,
        };
        let start = self.values.iter().position(known).unwrap_or(0);
        let width = self.beside.len().checked_div(self.values.len()).unwrap_or(0);
        self.beside.truncate(end * width);
        self.beside.drain(..start * width);
        self.times.truncate(end);
        self.times.drain(..start);
        self.lines.truncate(end);
        self.lines.drain(..start);
        self.values.truncate(end);
        self.values.drain(..start);
        self
    }
}
