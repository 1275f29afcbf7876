//! The rows of a panel file to a table of moments, sources and what is observed.

use super::{Class, Labels, PanelOptions};
use crate::data::dialect::{Dialect, Duplicates};
use crate::data::format::{RowReader, Rows};
use crate::data::series::numbers::{Numbers, is_missing};
use crate::data::series::order::{Order, mean};
use crate::data::series::stamps::Stamps;
use crate::data::series::table::{check_scatter, time_column};
use crate::data::text::shorten;
use crate::{Error, Result};
use jiff::civil::DateTime;
use std::collections::HashMap;

/// The content of the file, moment by moment. Missing values are NaN or `None`.
pub(super) struct Table {
    pub(super) file: String,
    pub(super) utc: bool,
    pub(super) times: Vec<DateTime>,
    /// In the order of their first rows.
    pub(super) sources: Vec<String>,
    pub(super) features: Vec<String>,
    pub(super) values: Vec<f64>, // (times, sources, features)
    pub(super) outcomes: Outcomes,
}

/// What labels are made from, `(times, sources)`.
pub(super) enum Outcomes {
    Labels(Vec<Option<Class>>),
    Prices(Vec<f64>),
    Ignored,
}

const SOURCE_COLUMNS: [&str; 5] = ["source", "symbol", "ticker", "asset", "unique_id"];
const LABEL_COLUMN: &str = "label";

/// Which column has which meaning.
struct Columns {
    time: usize,
    source: usize,
    outcome: Outcome,
    features: Vec<usize>,
}

/// The column that labels come from.
#[derive(Clone, Copy)]
enum Outcome {
    Label(usize),
    Price(usize),
    /// No column is read.
    Ignored,
}

impl Columns {
    fn of(header: &[String], options: &PanelOptions, labels: Labels<'_>, file: &str) -> Result<Columns> {
        let wrong = |problem: String, fix| Err(Error::Header { file: file.to_owned(), problem, fix });
        let place = |name: &str| header.iter().position(|column| column.eq_ignore_ascii_case(name));
        let Some(source) = SOURCE_COLUMNS.iter().find_map(|name| place(name)) else {
            let problem = format!("no column names the source of a row; the columns are {}", listing(header));
            return wrong(problem, "name it `source` (or symbol, ticker, asset, unique_id)");
        };
        let label = place(LABEL_COLUMN);
        let price = header.iter().position(|column| *column == options.price);
        let (outcome, left_out) = match (labels, label, price) {
            (Labels::Ignored { features }, ..) => {
                let is_left_out = |at: &Option<usize>| at.is_some_and(|at| !features.contains(&header[at]));
                (Outcome::Ignored, [label, price].map(|at| Some(at).filter(is_left_out).flatten()))
            }
            (Labels::Needed, Some(column), _) => (Outcome::Label(column), [label, None]),
            (Labels::Needed, None, Some(column)) => (Outcome::Price(column), [price, None]),
            (Labels::Needed, None, None) => {
                let problem =
                    format!("neither a column `{LABEL_COLUMN}` nor a price column `{}`", options.price);
                return wrong(problem, "add labels, or name the column to make labels from (--price)");
            }
        };
        let is_free = |at: &usize| *at != source && !left_out.contains(&Some(*at));
        let time = time_column(header).or((0..header.len()).find(is_free)).unwrap_or(0);
        let features: Vec<usize> = (0..header.len()).filter(|at| *at != time && is_free(at)).collect();
        if features.is_empty() {
            let fix = "add columns with features of the sources";
            return wrong("no column is left for features".to_owned(), fix);
        }
        Ok(Columns { time, source, outcome, features })
    }
}

/// Lists names for a message: the first few of many.
fn listing(names: &[String]) -> String {
    const FEW: usize = 8;
    let named = names.iter().take(FEW).map(|name| format!("`{}`", shorten(name)));
    named.chain((names.len() > FEW).then(|| "...".to_owned())).collect::<Vec<_>>().join(", ")
}

/// A row of the file.
struct Row {
    time: DateTime,
    line: u64,
    source: usize,
    label: Option<Class>,
    /// The features, then the price if there is one.
    numbers: Vec<f64>,
}

pub(super) fn parse(
    Rows { header, rows, typed }: Rows<'_>,
    file: &str,
    options: &PanelOptions,
    labels: Labels<'_>,
) -> Result<Table> {
    let columns = Columns::of(&header, options, labels, file)?;
    let (rows, sources, utc) = read(rows, &header, &columns, (&options.dialect, typed), file)?;
    if rows.is_empty() {
        return Err(Error::Empty { file: file.to_owned() });
    }
    let rows = arranged(rows, &sources, &Order::new(file, &options.dialect), utc)?;
    let (width, count) = (columns.features.len(), sources.len());
    check_scatter(rows.len(), count, rows.chunk_by(|a, b| a.time == b.time).count(), file)?;
    let (mut times, mut values) = (Vec::new(), Vec::new());
    let (mut labels, mut prices) = (Vec::new(), Vec::new());
    for row in rows {
        if times.last() != Some(&row.time) {
            times.push(row.time);
            values.resize(values.len() + count * width, f64::NAN);
            labels.resize(labels.len() + count, None);
            prices.resize(prices.len() + count, f64::NAN);
        }
        let cell = (times.len() - 1) * count + row.source;
        values[cell * width..][..width].copy_from_slice(&row.numbers[..width]);
        labels[cell] = row.label;
        prices[cell] = row.numbers.get(width).copied().unwrap_or(f64::NAN);
    }
    let outcomes = match columns.outcome {
        Outcome::Label(_) => Outcomes::Labels(labels),
        Outcome::Price(_) => Outcomes::Prices(prices),
        Outcome::Ignored => Outcomes::Ignored,
    };
    let features = columns.features.iter().map(|&column| header[column].clone()).collect();
    Ok(Table { file: file.to_owned(), utc, times, sources, features, values, outcomes })
}

/// Sorts the rows by time and source, and joins those with the same, as the dialect says.
fn arranged(mut rows: Vec<Row>, sources: &[String], order: &Order<'_>, utc: bool) -> Result<Vec<Row>> {
    rows.sort_by_key(|row| (row.time, row.source));
    let same = |pair: &[Row]| (pair[0].time, pair[0].source) == (pair[1].time, pair[1].source);
    if !rows.windows(2).any(same) {
        return Ok(rows);
    }
    let mut joined: Vec<Row> = Vec::with_capacity(rows.len());
    let mut rows = rows.into_iter().peekable();
    while let Some(first) = rows.next() {
        let mut same = vec![first];
        while let Some(next) = rows.next_if(|row| (row.time, row.source) == (same[0].time, same[0].source)) {
            order.check_same(
                (same[0].time, same[0].line),
                (next.time, next.line),
                &sources[next.source],
                utc,
            )?;
            same.push(next);
        }
        let chosen = match order.duplicates {
            Duplicates::Last => same.pop(),
            Duplicates::Mean if same.len() > 1 => Some(mean_row(&same, order.file)?),
            _ => same.into_iter().next(),
        };
        joined.extend(chosen);
    }
    Ok(joined)
}

/// The mean of rows of one source at one time. Their labels must not differ.
fn mean_row(rows: &[Row], file: &str) -> Result<Row> {
    let Row { time, line, source, label, .. } = rows[0];
    if let Some(other) = rows.iter().find(|row| row.label != label) {
        return Err(Error::Panel {
            file: file.to_owned(),
            problem: format!(
                "lines {line} and {} have the same source and time, and different labels",
                other.line
            ),
            fix: "keep one of them by --duplicates first or last",
        });
    }
    let columns = 0..rows[0].numbers.len();
    let numbers = columns.map(|column| mean(rows.iter().map(|row| row.numbers[column]))).collect();
    Ok(Row { time, line, source, label, numbers })
}

/// The rows in the order of the file, the names of the sources, and whether times are in UTC.
fn read(
    mut cells: RowReader<'_>,
    header: &[String],
    columns: &Columns,
    (dialect, typed): (&Dialect, bool),
    file: &str,
) -> Result<(Vec<Row>, Vec<String>, bool)> {
    let mut stamps = Stamps::new(file, header[columns.time].clone(), dialect, typed);
    let order = Order::new(file, dialect);
    let price = match columns.outcome {
        Outcome::Price(column) => Some(column),
        Outcome::Label(_) | Outcome::Ignored => None,
    };
    let numeric: Vec<usize> = columns.features.iter().copied().chain(price).collect();
    let mut numbers = Numbers::new(numeric.len(), dialect.decimal_of(typed));
    let (mut names, mut known, mut last) = (Vec::new(), HashMap::new(), Vec::new());
    let mut rows: Vec<Row> = Vec::new();
    while let Some(of_row) = cells.next()? {
        let line = of_row.line;
        let cell = |column: usize| of_row.cell(column);
        let name = cell(columns.source);
        if name.is_empty() {
            let column = header[columns.source].clone();
            return Err(Error::MissingId { file: file.to_owned(), line, column });
        }
        let source = *known.entry(name.to_owned()).or_insert_with(|| {
            names.push(name.to_owned());
            last.push(None);
            names.len() - 1
        });
        let time = stamps.parse(cell(columns.time), line)?;
        order.check(last[source], (time, line), Some(name), stamps.is_utc())?;
        last[source] = Some((time, line));
        let label = match columns.outcome {
            Outcome::Label(column) => label(cell(column), line, &header[column], file)?,
            Outcome::Price(_) | Outcome::Ignored => None,
        };
        let numbers =
            numeric.iter().enumerate().map(|(at, &column)| numbers.parse(at, cell(column), line)).collect();
        rows.push(Row { time, line, source, label, numbers });
    }
    let named: Vec<String> = numeric.iter().map(|&column| header[column].clone()).collect();
    numbers.check(named.iter().map(String::as_str), file)?;
    let read = stamps.finish(None);
    rows.iter_mut().for_each(|row| read.settle(std::slice::from_mut(&mut row.time)));
    Ok((rows, names, read.utc))
}

fn label(cell: &str, line: u64, column: &str, file: &str) -> Result<Option<Class>> {
    if is_missing(cell) {
        return Ok(None);
    }
    Class::parse(cell).map(Some).ok_or_else(|| Error::Label {
        file: file.to_owned(),
        line,
        column: column.to_owned(),
        text: shorten(cell),
    })
}
