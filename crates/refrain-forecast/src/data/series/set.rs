//! Series that a model learns from together: one table, or independent series.

use super::long::{Id, Long};
use super::scaler::Scaling;
use super::table::{self, Content, Table};
use super::{
    CovariateCounts, CovariateScaler, ReadOptions, ReadReport, Scaler, Series, Stack, TimeStep, calendar,
    fill,
};
use crate::data::format::{self, Rows};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::Path;

/// How a file becomes series.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Independent series if the file is long and its ids do not all begin at one time and end at one time; otherwise one
    /// table.
    #[default]
    Auto,
    /// One table: the columns, or the ids of a long file, are channels that are observed together.
    Grid,
    /// Each id of a long file, or each column of a wide one, is a series of its own.
    Independent,
}

/// Series that one model learns from or forecasts. It is either one [`Series`] of any number of channels that share their
/// times (a *grid*), or any number of *independent* series of one channel, each with its own start and length, on calendars
/// with the same step.
///
/// Nothing is filled beyond the ends of an independent series: missing values at its start and end are dropped.
///
/// ```
/// use refrain_forecast::data::series::{Layout, ReadOptions, SeriesSet};
///
/// let text = "unique_id,ds,y\na,2020-01-01,1\na,2020-01-02,2\na,2020-01-03,4\nb,2020-01-02,7\n";
/// let (set, _) = SeriesSet::from_csv(text.as_bytes(), "a.csv", &ReadOptions::default(), Layout::Auto)?;
/// assert!(set.is_independent());
/// assert_eq!(set.series().iter().map(|series| series.rows()).collect::<Vec<_>>(), [3, 1]);
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct SeriesSet {
    pub(super) series: Vec<Series>,
    pub(super) independent: bool,
}

/// A grid.
impl From<Series> for SeriesSet {
    fn from(series: Series) -> SeriesSet {
        SeriesSet { series: vec![series], independent: false }
    }
}

impl SeriesSet {
    /// Reads a file, see [`Series::read`].
    ///
    /// # Errors
    /// Those of [`Series::read`].
    pub fn read(path: &Path, options: &ReadOptions, layout: Layout) -> Result<(SeriesSet, ReadReport)> {
        format::read(path, options.form(), |rows, file| SeriesSet::of_rows(rows, file, options, layout))
    }

    /// Reads the text of a CSV file from a stream or from memory, see [`Series::from_csv`]. Independent series take the calendar of the one with the most
    /// rows (or that of the options), each from its own first row on.
    ///
    /// # Errors
    /// Those of [`Series::from_csv`].
    pub fn from_csv(
        text: impl Read,
        file: &str,
        options: &ReadOptions,
        layout: Layout,
    ) -> Result<(SeriesSet, ReadReport)> {
        SeriesSet::of_rows(format::open(text, options.form(), file)?, file, options, layout)
    }

    fn of_rows(
        rows: Rows<'_>,
        file: &str,
        options: &ReadOptions,
        layout: Layout,
    ) -> Result<(SeriesSet, ReadReport)> {
        // The ids of a long file have covariates of their own.
        let own = options.covariates.names().next().is_some();
        let (content, empty) = match table::parse(rows, options, file)? {
            Content::Long(long) => {
                let (long, empty) = long.without_empty();
                (Content::Long(long), empty)
            }
            wide => (wide, Vec::new()),
        };
        let long = match (content, layout) {
            (Content::Wide(table), Layout::Independent) if options.covariates.statics.is_empty() => {
                let places = options.covariates.places(&table.names, file)?;
                Long::of_columns(table, &places)
            }
            (Content::Long(long), Layout::Independent) => long,
            (Content::Long(long), Layout::Auto) if own || !long.shares_ends() => long,
            (content, _) => {
                let (series, report) = Series::of_wide(content.into_table(&options.covariates)?, options)?;
                return Ok((series.into(), with_empty(report, empty, options.strict, file)?));
            }
        };
        let (set, report) = of_ids(long, options)?;
        Ok((set, with_empty(report, empty, options.strict, file)?))
    }

    /// Series of one channel that are independent.
    ///
    /// # Errors
    /// [`Error::Split`] if there is none, one has several channels, or their calendars have different steps.
    pub fn independent(series: Vec<Series>) -> Result<SeriesSet> {
        let refuse =
            |file: &str, problem: String, fix| Err(Error::Split { file: file.to_owned(), problem, fix });
        let Some(first) = series.first() else {
            return refuse("nothing", "there is no series".to_owned(), "pass at least one");
        };
        if let Some(wide) = series.iter().find(|of| of.channels() != 1) {
            let problem = format!("an independent series has one channel, not {}", wide.channels());
            return refuse(wide.file(), problem, "pass each channel as a series of its own");
        }
        let step = first.time().step();
        if let Some(other) = series.iter().find(|of| of.time().step() != step) {
            let problem = format!("a row of `{}` is {}, not {step}", other.names()[0], other.time().step());
            return refuse(other.file(), problem, "bring all series to the same step");
        }
        Ok(SeriesSet { series, independent: true })
    }

    /// Whether the series are independent. Otherwise there is one, a grid.
    pub fn is_independent(&self) -> bool {
        self.independent
    }

    /// The series: one grid, or any number of one channel.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// The grid, or the first independent series.
    pub fn first(&self) -> &Series {
        // There is at least one, by every constructor.
        &self.series[0]
    }

    /// The name of the file, for messages.
    pub fn file(&self) -> &str {
        self.first().file()
    }

    /// The step of the calendar.
    pub fn step(&self) -> TimeStep {
        self.first().time().step()
    }

    /// Number of channels of each series.
    pub fn channels(&self) -> usize {
        self.first().channels()
    }

    /// The names of all channels of all series: of independent series, their ids.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.series.iter().flat_map(|series| series.names())
    }

    /// Number of rows of all series.
    pub fn rows(&self) -> usize {
        self.series.iter().map(Series::rows).sum()
    }

    /// Only the channels (of independent series: the ids) with these names, in this order.
    ///
    /// # Errors
    /// [`Error::UnknownName`] for a name that there is not.
    pub fn select(self, names: &[String]) -> Result<SeriesSet> {
        let unknown = |name: &String, file: &str, known: usize| Error::UnknownName {
            file: file.to_owned(),
            name: name.clone(),
            known,
        };
        if !self.independent {
            let file = self.file().to_owned();
            let series = self.first();
            let place = |name: &String| {
                let found = series.names().iter().position(|own| own == name);
                found.ok_or_else(|| unknown(name, &file, series.channels()))
            };
            let places = names.iter().map(place).collect::<Result<Vec<_>>>()?;
            return Ok(series.with_channels(&places).into());
        }
        let known = self.series.len();
        let file = self.file().to_owned();
        let mut by_name: std::collections::HashMap<String, Series> =
            self.series.into_iter().map(|series| (series.names()[0].clone(), series)).collect();
        let take = |name: &String| by_name.remove(name).ok_or_else(|| unknown(name, &file, known));
        Ok(SeriesSet { series: names.iter().map(take).collect::<Result<_>>()?, independent: true })
    }

    /// The series without their last rows, of which nothing is left. Independent series with fewer than `least` rows left are
    /// dropped, unless all are.
    pub fn without_last(&self, rows: usize, least: usize) -> SeriesSet {
        let kept = |series: &&Series| series.rows() >= rows.saturating_add(least);
        let cut = |series: &Series| series.first_rows(series.rows().saturating_sub(rows).max(1));
        let series: Vec<Series> = match self.independent {
            true => self.series.iter().filter(kept).map(cut).collect(),
            false => self.series.iter().map(cut).collect(),
        };
        let series = if series.is_empty() { self.series.iter().map(cut).collect() } else { series };
        SeriesSet { series, independent: self.independent }
    }

    /// SHA-256 over the names, all values and which of them were filled, to recognise the series. Of a grid it is that of
    /// [`Series::fingerprint`].
    pub fn fingerprint(&self) -> String {
        if !self.independent {
            return self.first().fingerprint();
        }
        let mut hash = Sha256::new();
        for series in &self.series {
            hash.update(series.fingerprint());
            hash.update(series.time().format(0));
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The scale of each channel by the rows of the training part, so that nothing of the other parts is in it. Of
    /// independent series each has its own; one that is constant there is divided by its size, or not at all if it is 0.
    ///
    /// # Errors
    /// Those of [`Scaler::fit`], for a grid.
    pub fn scaler(&self, stack: &Stack, scaling: Scaling) -> Result<Scaler> {
        match scaling {
            Scaling::None => Ok(Scaler::unit(self.names().count())),
            Scaling::Standard if self.independent => {
                let rows = (0..self.series.len()).map(|series| stack.training(series));
                Ok(Scaler::of_each(&self.series, rows))
            }
            Scaling::Standard => Scaler::fit(self.first(), stack.training(0)),
        }
    }

    /// How many covariates each series has.
    pub fn covariate_counts(&self) -> CovariateCounts {
        self.first().covariates().counts()
    }

    /// The series with their covariates scaled.
    pub fn with_scaled_covariates(mut self, scaler: &CovariateScaler) -> SeriesSet {
        for series in &mut self.series {
            series.covariates = scaler.scaled(&series.covariates);
        }
        self
    }

    /// The scale of each independent series by all its rows, for forecasts of what follows them.
    pub fn scaler_of_all(&self, scaling: Scaling) -> Scaler {
        match scaling {
            Scaling::None => Scaler::unit(self.names().count()),
            Scaling::Standard => Scaler::of_each(&self.series, self.series.iter().map(|of| 0..of.rows())),
        }
    }
}

/// The report with the ids that have no value. Under `strict` there must be none.
fn with_empty(report: ReadReport, empty: Vec<String>, strict: bool, file: &str) -> Result<ReadReport> {
    ReadReport { empty, ..report }.accepted(strict, file)
}

/// Independent series of the ids of a file.
fn of_ids(long: Long, options: &ReadOptions) -> Result<(SeriesSet, ReadReport)> {
    let Long { file, utc, ids } = long;
    let given = options.step;
    let mut step = given;
    let ahead = !options.covariates.future.is_empty();
    let mut tables = Vec::with_capacity(ids.len());
    for id in ids {
        let Id { name, times, lines, values, beside } = id.trimmed(ahead);
        if times.is_empty() {
            return Err(Error::AllMissing { file, channel: name });
        }
        let names: Vec<String> = std::iter::once(&name).chain(options.covariates.names()).cloned().collect();
        let values = match names.len() - 1 {
            0 => values,
            width => {
                let rows = values.iter().zip(beside.chunks_exact(width));
                rows.flat_map(|(value, row)| std::iter::once(value).chain(row)).copied().collect()
            }
        };
        tables.push(Table { file: file.clone(), names, long: true, utc, times, lines, values });
    }
    if step.is_none() {
        let longest = tables.iter().max_by_key(|table| table.times.len());
        let longest = longest.filter(|table| table.times.len() > 1);
        let Some(longest) = longest else { return Err(Error::TooFewRows { file, rows: 1 }) };
        step = match calendar::infer(&longest.times) {
            Ok((step, _)) => Some(step),
            Err((index, step)) => return Err(fill::off_grid(longest, index, step, false)),
        };
    }
    let mut report = ReadReport { rows_read: 0, gap_rows: 0, missing: Vec::new(), empty: Vec::new() };
    let mut series = Vec::with_capacity(tables.len());
    for table in tables {
        let Some(step) = step else { break };
        let places: Vec<usize> = (1..table.names.len()).collect();
        let rows = fill::onto_calendar(table, step, given.is_some())?;
        let (one, of_one) = Series::of_grid(rows, &places, options)?;
        report.rows_read += of_one.rows_read;
        report.gap_rows += of_one.gap_rows;
        report.missing.extend(of_one.missing);
        series.push(one);
    }
    Ok((SeriesSet::independent(series)?, report))
}

#[cfg(test)]
mod tests;
