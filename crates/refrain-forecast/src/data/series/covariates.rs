//! Covariates: columns that a model sees beside the values that it forecasts.

use super::fill::Rows;
use super::{Missing, Scaler, SeriesSet, Stack, TimeAxis};
use crate::settings::CommaList;
use crate::{Error, Result};
use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ops::Range;

/// The covariates of a file, by what is known of them when a forecast is made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CovariateColumns {
    /// Columns that are known up to the last row before a forecast.
    #[serde(default)]
    pub past: CommaList<String>,
    /// Columns that are also known over the horizon.
    #[serde(default)]
    pub future: CommaList<String>,
    /// Columns with one value for each id of a long file.
    #[serde(default)]
    pub statics: CommaList<String>,
    /// Features of the time stamps. They are known for any time.
    #[serde(default)]
    pub calendar: CommaList<CalendarFeature>,
}

/// A feature of a time stamp, from -0.5 to 0.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CalendarFeature {
    /// The hour of the day, of 0 to 23.
    Hour,
    /// The day of the week, of Monday to Sunday.
    Weekday,
    /// The month, of January to December.
    Month,
    /// The day of the year, of 1 to 366.
    DayOfYear,
}

impl CalendarFeature {
    fn of(self, time: DateTime) -> f64 {
        let (place, last) = match self {
            CalendarFeature::Hour => (f64::from(time.hour()), 23.0),
            CalendarFeature::Weekday => (f64::from(time.weekday().to_monday_zero_offset()), 6.0),
            CalendarFeature::Month => (f64::from(time.month() - 1), 11.0),
            CalendarFeature::DayOfYear => (f64::from(time.date().day_of_year() - 1), 365.0),
        };
        place / last - 0.5
    }
}

/// How many covariates there are of each kind. `future` includes the calendar features.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CovariateCounts {
    /// Those that are known up to the last row before a forecast.
    pub past: usize,
    /// Those that are also known over the horizon.
    pub future: usize,
    /// Those with one value for a series.
    pub statics: usize,
}

impl CovariateCounts {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == CovariateCounts::default()
    }

    /// All of them.
    pub fn total(&self) -> usize {
        self.past + self.future + self.statics
    }
}

impl CovariateColumns {
    /// How many there are of each kind.
    pub fn counts(&self) -> CovariateCounts {
        let (past, statics) = (self.past.len(), self.statics.len());
        CovariateCounts { past, future: self.future.len() + self.calendar.len(), statics }
    }

    /// The names of the columns of the file: those of past, then of future, then of static covariates.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.past.iter().chain(self.future.iter()).chain(self.statics.iter())
    }

    /// The places of these columns in a header.
    ///
    /// # Errors
    /// [`Error::Header`] if there is no such column, or one is named twice.
    pub(super) fn places(&self, header: &[String], file: &str) -> Result<Vec<usize>> {
        let refuse = |problem, fix| Err(Error::Header { file: file.to_owned(), problem, fix });
        let mut places = Vec::new();
        for name in self.names() {
            match header.iter().position(|column| column == name) {
                None => {
                    let problem = format!("there is no column `{name}`");
                    return refuse(problem, "name columns of the file by --past, --future and --static");
                }
                Some(place) if places.contains(&place) => {
                    return refuse(
                        format!("the column `{name}` is named twice"),
                        "name it by one of --past, --future and --static",
                    );
                }
                Some(place) => places.push(place),
            }
        }
        Ok(places)
    }

    /// Takes the covariates out of the rows of a file: the columns at these places. What is left are the values to forecast, up
    /// to their last row; future covariates go on as long as they are given. Also returns what is missing of the covariates of
    /// these rows.
    pub(super) fn take(&self, rows: Rows, places: &[usize]) -> Result<(Rows, Covariates, Vec<Missing>)> {
        let counts = [self.past.len(), self.future.len(), self.statics.len()];
        let columns = rows.names.len();
        let targets: Vec<usize> = (0..columns).filter(|column| !places.contains(column)).collect();
        if targets.is_empty() {
            return Err(Error::Header {
                file: rows.file().to_owned(),
                problem: "every column is a covariate, so there is nothing to forecast".to_owned(),
                fix: "leave a column out of --past, --future and --static",
            });
        }
        let cell = |row: usize, column: usize| rows.values[row * columns + column];
        let total = rows.values.len() / columns;
        let known = |row: usize| targets.iter().any(|&target| !cell(row, target).is_nan());
        let (past, rest) = places.split_at(counts[0]);
        let (future, statics) = rest.split_at(counts[1]);
        // Without future covariates a row is a row of the series, whatever it lacks.
        let length = match future.is_empty() {
            true => total,
            false => (0..total).rev().find(|&row| known(row)).map_or(0, |last| last + 1),
        };
        let given = |row: &usize| future.iter().all(|&column| !cell(*row, column).is_nan());
        let ahead = (length..total).take_while(given).count();
        let columns_of = |places: &[usize], rows: usize| -> Vec<f64> {
            (0..rows)
                .flat_map(|row| places.iter().map(move |&place| (row, place)))
                .map(|(row, place)| cell(row, place))
                .collect()
        };
        let mut covariates = Covariates {
            past: columns_of(past, length),
            future: columns_of(future, length + ahead),
            statics: Vec::new(),
            counts: self.counts(),
            rows: length,
            calendar: self.calendar.to_vec(),
            ahead: if future.is_empty() { None } else { Some(ahead) },
        };
        carry_forward(&mut covariates.past, past.len());
        carry_forward(&mut covariates.future, future.len());
        // The ids of a long file have columns of the same names.
        let channel = |column: usize| match rows.is_long() {
            true => format!("{} of {}", rows.names[column], rows.names[targets[0]]),
            false => rows.names[column].clone(),
        };
        let in_file: Vec<bool> =
            (0..length).map(|row| (0..columns).any(|column| !cell(row, column).is_nan())).collect();
        let gaps_of = |&column: &usize| {
            let (mut count, mut run, mut longest_run) = (0, 0, 0);
            for (row, &in_file) in in_file.iter().enumerate() {
                run = if cell(row, column).is_nan() { run + 1 } else { 0 };
                longest_run = longest_run.max(run);
                count += usize::from(run > 0 && in_file);
            }
            (count > 0).then(|| Missing { channel: channel(column), count, longest_run })
        };
        let mut missing: Vec<Missing> = past.iter().chain(future).filter_map(gaps_of).collect();
        for &column in statics {
            let mut values = (0..total).map(|row| cell(row, column)).filter(|value| !value.is_nan());
            let first = values.next().unwrap_or(f64::NAN);
            if let Some(other) = values.find(|&value| value != first) {
                let (file, name) = (rows.file().to_owned(), &rows.names[column]);
                let id = &rows.names[targets[0]];
                return Err(Error::Covariates {
                    file,
                    problem: format!(
                        "the static column `{name}` of `{id}` has the values {first} and {other}"
                    ),
                    fix: "give each id one value, or pass the column with --past or --future",
                });
            }
            if first.is_nan() {
                missing.push(Missing { channel: channel(column), count: 1, longest_run: 1 });
            }
            covariates.statics.push(first);
        }
        let values = columns_of(&targets, length);
        let names = targets.iter().map(|&target| rows.names[target].clone()).collect();
        Ok((rows.with_columns(names, values), covariates, missing))
    }
}

/// Replaces missing values by the last one before them. Those before the first stay missing: nothing is known of them yet.
fn carry_forward(values: &mut [f64], columns: usize) {
    for at in columns..values.len() {
        if values[at].is_nan() {
            values[at] = values[at - columns];
        }
    }
}

/// The covariates of a series. What is missing before the first value of a column is NaN, or 0 once they are scaled.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Covariates {
    past: Vec<f64>,   // (rows, past)
    future: Vec<f64>, // (rows + ahead, future columns of the file)
    statics: Vec<f64>,
    counts: CovariateCounts,
    rows: usize,
    calendar: Vec<CalendarFeature>,
    /// Rows after the last one of the series for which the future columns are given. `None` without such columns.
    ahead: Option<usize>,
}

impl Covariates {
    /// Those of so many rows, of values in memory: past `[rows, past]`, future columns `[rows + ahead, future]`, and static ones.
    /// What is not known is NaN.
    pub(crate) fn of_values(
        columns: &CovariateColumns,
        rows: usize,
        [past, future, statics]: [&[f64]; 3],
    ) -> Covariates {
        let [mut past, mut future, statics] = [past, future, statics].map(<[f64]>::to_vec);
        carry_forward(&mut past, columns.past.len());
        carry_forward(&mut future, columns.future.len());
        let ahead = future.len().checked_div(columns.future.len()).map(|given| given.saturating_sub(rows));
        let (counts, calendar) = (columns.counts(), columns.calendar.to_vec());
        Covariates { past, future, statics, counts, rows, calendar, ahead }
    }

    /// How many there are of each kind.
    pub fn counts(&self) -> CovariateCounts {
        self.counts
    }

    /// The rows after the last one of the series for which all future covariates are known; `None` if they are known for any.
    pub fn rows_ahead(&self) -> Option<usize> {
        self.ahead
    }

    /// The past covariates of some rows, row-major `[rows, past]`.
    ///
    /// # Panics
    /// If the rows reach past the series.
    pub fn past(&self, rows: Range<usize>) -> &[f64] {
        &self.past[rows.start * self.counts.past..rows.end * self.counts.past]
    }

    /// The future covariates of some rows, row-major `[rows, future]`; the features of the time stamps come last.
    ///
    /// # Panics
    /// If the rows reach past [`Covariates::rows_ahead`].
    pub fn future(&self, rows: Range<usize>, time: &TimeAxis) -> Vec<f64> {
        assert!(self.ahead.is_none_or(|ahead| rows.end <= self.rows + ahead), "{rows:?} are not known");
        self.future_or_mean(rows, time)
    }

    /// The same of scaled covariates for any rows: the columns of the file are 0, the mean, where they are not given.
    pub(crate) fn future_or_mean(&self, rows: Range<usize>, time: &TimeAxis) -> Vec<f64> {
        let columns = self.counts.future - self.calendar.len();
        let mut values = Vec::with_capacity(rows.len() * self.counts.future);
        for row in rows {
            match self.future.get(row * columns..(row + 1) * columns) {
                Some(given) => values.extend_from_slice(given),
                None => values.resize(values.len() + columns, 0.0),
            }
            if !self.calendar.is_empty() {
                let time = time.at(row);
                values.extend(self.calendar.iter().map(|feature| feature.of(time)));
            }
        }
        values
    }

    /// The static covariates.
    pub fn statics(&self) -> &[f64] {
        &self.statics
    }

    /// What a window whose horizon begins at a row sees of scaled covariates: past ones `[context, past]`, and future ones
    /// `[context + horizon, future]`, row-major. Rows before the first one are 0, the mean.
    pub(crate) fn window(
        &self,
        origin: usize,
        (context, horizon): (usize, usize),
        time: &TimeAxis,
    ) -> [Vec<f64>; 2] {
        let first = origin.saturating_sub(context);
        let lacking = context - (origin - first);
        let [mut past, mut future] = [self.counts.past, self.counts.future].map(|of| vec![0.0; lacking * of]);
        past.extend_from_slice(self.past(first..origin));
        future.extend(self.future_or_mean(first..origin + horizon, time));
        [past, future]
    }

    /// Those of its first rows. Future covariates stay, since they were known before.
    pub(super) fn first_rows(&self, rows: usize) -> Covariates {
        let rows = rows.min(self.rows);
        let mut first = self.clone();
        first.past.truncate(rows * self.counts.past);
        first.ahead = self.ahead.map(|ahead| ahead + self.rows - rows);
        first.rows = rows;
        first
    }

    /// Adds all values to a hash, if there are any.
    pub(super) fn hash(&self, hash: &mut Sha256) {
        let all = self.past.iter().chain(&self.future).chain(&self.statics);
        all.for_each(|value| hash.update(value.to_le_bytes()));
    }
}

/// The scale of each covariate column, over the training parts of all series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CovariateScaler {
    past: Scaler,
    future: Scaler,
    statics: Scaler,
}

impl Default for CovariateScaler {
    fn default() -> CovariateScaler {
        let none = || Scaler::unit(0);
        CovariateScaler { past: none(), future: none(), statics: none() }
    }
}

impl CovariateScaler {
    /// Measures the covariates of all series of a set in the rows of their training parts, so that nothing of the other parts is
    /// in it. Features of time stamps stay as they are.
    pub fn fit(set: &SeriesSet, stack: &Stack) -> CovariateScaler {
        let all =
            || set.series().iter().enumerate().filter(|(number, _)| !stack.training(*number).is_empty());
        let counts = set.first().covariates().counts;
        let columns = counts.future - set.first().covariates().calendar.len();
        let of = |width: usize, values: &dyn Fn(usize) -> Vec<f64>| {
            let (mean, std) = (0..width).map(|column| super::scaler::scale(&values(column))).unzip();
            Scaler { mean, std }
        };
        let column = |values: &[f64], rows: usize, width: usize, column: usize| -> Vec<f64> {
            let known = values[..rows * width].iter().skip(column).step_by(width);
            known.copied().filter(|value| !value.is_nan()).collect()
        };
        let past = of(counts.past, &|at| {
            let of_series = |(number, series): (usize, &super::Series)| {
                column(&series.covariates().past, stack.training(number).end, counts.past, at)
            };
            all().flat_map(of_series).collect()
        });
        let mut future = of(columns, &|at| {
            let of_series = |(number, series): (usize, &super::Series)| {
                column(&series.covariates().future, stack.training(number).end, columns, at)
            };
            all().flat_map(of_series).collect()
        });
        future.mean.resize(counts.future, 0.0);
        future.std.resize(counts.future, 1.0);
        let statics = of(counts.statics, &|at| {
            let values = all().map(|(_, series)| series.covariates().statics[at]);
            values.filter(|value| !value.is_nan()).collect()
        });
        CovariateScaler { past, future, statics }
    }

    /// How many covariates it is for.
    pub fn counts(&self) -> CovariateCounts {
        let [past, future, statics] = [&self.past, &self.future, &self.statics].map(|of| of.mean.len());
        CovariateCounts { past, future, statics }
    }

    /// The same covariates in units of their deviations; what is missing becomes 0, the mean.
    pub(crate) fn scaled(&self, covariates: &Covariates) -> Covariates {
        let known = |values: Vec<f64>| {
            values.into_iter().map(|value| if value.is_nan() { 0.0 } else { value }).collect()
        };
        let columns = covariates.counts.future - covariates.calendar.len();
        Covariates {
            past: known(self.past.transform(&covariates.past)),
            future: known(self.future.of(0..columns).transform(&covariates.future)),
            statics: known(self.statics.transform(&covariates.statics)),
            ..covariates.clone()
        }
    }

    /// Whether its numbers are possible.
    pub fn is_sound(&self) -> bool {
        let same = |of: &Scaler| of.mean.len() == of.std.len() && of.fault().is_none();
        [&self.past, &self.future, &self.statics].into_iter().all(same)
    }
}
