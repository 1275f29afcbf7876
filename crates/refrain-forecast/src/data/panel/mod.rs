//! Panels: the features of several sources at the same moments, with a label for each.

mod fold;
mod label;
mod table;
#[cfg(test)]
mod tests;
mod weather;

pub use fold::{Fold, FoldRule};
pub use label::{Change, Class, LabelRule};

use crate::data::dialect::Dialect;
use crate::data::format::{self, Form, Rows};
use crate::data::series::{Grid, MaxGap, calendar, stamps, time};
use crate::{Error, Result};
use jiff::civil::DateTime;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Read;
use std::path::Path;
use table::{Outcomes, Table};

/// How to read a panel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PanelOptions {
    /// The column to make labels from if there is no column `label`.
    pub price: String,
    /// How labels are made.
    pub rule: LabelRule,
    /// How many moments a value may be carried forward. Moments with an older value have no labels.
    #[serde(default)]
    pub max_gap: MaxGap,
    /// How the text is written, and what becomes of rows out of order.
    #[serde(default)]
    pub dialect: Dialect,
}

impl PanelOptions {
    fn form(&self) -> Form<'_> {
        Form { dialect: &self.dialect, time: "time" }
    }
}

/// A panel: at every moment the features of every source, and a label for each source, if there is one.
///
/// ```
/// use refrain_forecast::data::panel::{Change, Class, LabelRule, Panel, PanelOptions};
/// use refrain_forecast::data::dialect::Dialect;
/// use refrain_forecast::data::series::MaxGap;
///
/// let file = "\
/// time,source,volume,price
/// 2020-01-01,A,10,100
/// 2020-01-01,B,7,20
/// 2020-01-02,A,12,105
/// 2020-01-02,B,,20
/// ";
/// let rule = LabelRule { horizon: 1, threshold: 0.01, change: Change::Relative };
/// let options = PanelOptions { price: "price".to_owned(), rule, max_gap: MaxGap::Season, dialect: Dialect::default() };
/// let (panel, report) = Panel::from_csv(file.as_bytes(), "prices.csv", &options)?;
/// assert_eq!((panel.rows(), panel.sources().len(), panel.features().len()), (2, 2, 1));
/// assert_eq!(panel.labels(0), [Some(Class::Up), Some(Class::Flat)]);
/// assert_eq!(panel.values(), [10.0, 7.0, 12.0, 7.0]);
/// assert_eq!((report.filled, report.unlabelled), (1, 2));
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    file: String,
    utc: bool,
    times: Vec<DateTime>,
    sources: Vec<String>,
    features: Vec<String>,
    grid: Grid,                 // (rows, sources x features)
    labels: Vec<Option<Class>>, // (rows, sources)
    /// How many rows a label looks ahead, if known.
    looks_ahead: usize,
    /// The rows at which a value is older than allowed, each with the first column of such a value.
    outdated: Vec<(usize, usize)>,
    /// The largest age of a value, in rows.
    max_gap: usize,
}

/// Whether a file must have labels, or prices to make them from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Labels<'a> {
    Needed,
    /// Labels and prices are not even read, unless a model has learned from them as features.
    Ignored {
        features: &'a [String],
    },
}

/// What was missing in a panel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PanelReport {
    /// Moments at the beginning that were left out, because a feature had no value yet.
    pub left_out: usize,
    /// Missing values that were replaced by the last known value.
    pub filled: usize,
    /// Moments whose labels were removed, because the last known value of a feature was too old.
    pub outdated: usize,
    /// Labels that are missing, counted over moments and sources, including removed ones. 0 if labels were not read.
    pub unlabelled: usize,
}

impl fmt::Display for PanelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let PanelReport { left_out, filled, outdated, unlabelled } = *self;
        write!(f, "{filled} value{} missing, replaced by the last known one; ", plural(filled))?;
        write!(f, "{left_out} time step{} left out at the beginning", plural(left_out))?;
        if outdated > 0 {
            write!(
                f,
                "; {outdated} time step{} left out, because a value is older than allowed (--max-gap)",
                plural(outdated)
            )?;
        }
        match unlabelled {
            0 => Ok(()),
            _ => write!(f, "; {unlabelled} label{} missing", plural(unlabelled)),
        }
    }
}

impl Panel {
    /// Reads a file. Parquet and Arrow IPC are told by their first bytes (with the feature `parquet`); any
    /// other file is text, and an unknown ending means CSV, see [`Panel::from_csv`].
    ///
    /// # Errors
    /// Those of [`Panel::from_csv`]; [`Error::NoParquet`] without the feature.
    pub fn read(path: &Path, options: &PanelOptions) -> Result<(Panel, PanelReport)> {
        format::read(path, options.form(), |rows, file| Panel::of_rows(rows, file, options, Labels::Needed))
    }

    /// Reads a panel to classify: like [`Panel::read`], but the file needs neither labels nor prices, and no source has a
    /// label. `features` are the features that the model was trained on ([`Panel::features`]): a label or price column
    /// that is not one of them is left out.
    ///
    /// # Errors
    /// Those of [`Panel::read`].
    pub fn read_unlabelled(
        path: &Path,
        options: &PanelOptions,
        features: &[String],
    ) -> Result<(Panel, PanelReport)> {
        format::read(path, options.form(), |rows, file| {
            Panel::of_rows(rows, file, options, Labels::Ignored { features })
        })
    }

    /// [`Panel::read_unlabelled`] from the text of a CSV file; see [`Panel::from_csv`].
    ///
    /// # Errors
    /// Those of [`Panel::from_csv`].
    pub fn from_csv_unlabelled(
        text: impl Read,
        file: &str,
        options: &PanelOptions,
        features: &[String],
    ) -> Result<(Panel, PanelReport)> {
        Panel::of_rows(format::open(text, options.form(), file)?, file, options, Labels::Ignored { features })
    }

    /// Reads a panel from the text of a CSV file (a stream, or bytes in memory, packed by gzip or not) with one row for each source
    /// and moment. `file` is its name in messages, [`PanelOptions::dialect`] says how it is written.
    ///
    /// There is a time column (named and written as for [`crate::data::series::Series::from_csv`]) and a column
    /// `source` (or `symbol`, `ticker`, `asset`, `unique_id`). There is either a column `label` (`up`, `down`,
    /// `flat`, or 1, -1, 0) or the price column of the options, from which labels are made. Every other column is a
    /// feature. The rows of each source must be in order of time, or are sorted ([`Dialect::sort`]). The moments of the panel are the times in the file,
    /// whatever lies between them.
    ///
    /// A missing feature is replaced by the last known value of its source, never by a later one. Moments before the
    /// first value of all features of all sources are left out. If a value has been missing for more moments than
    /// [`PanelOptions::max_gap`] allows, no source has a label there, so nothing is learned or tested. The default is
    /// one season if the moments follow a calendar, and no limit otherwise. A label is missing if it is missing in
    /// the file or a price for it is missing.
    ///
    /// # Errors
    /// Everything that is wrong with the file, see [`Error`]. [`Error::Panel`] for a rule that makes no labels.
    pub fn from_csv(text: impl Read, file: &str, options: &PanelOptions) -> Result<(Panel, PanelReport)> {
        Panel::of_rows(format::open(text, options.form(), file)?, file, options, Labels::Needed)
    }

    fn of_rows(
        rows: Rows<'_>,
        file: &str,
        options: &PanelOptions,
        labels: Labels<'_>,
    ) -> Result<(Panel, PanelReport)> {
        let table = table::parse(rows, file, options, labels)?;
        Panel::from_table(table, &options.rule, options.max_gap)
    }

    /// The number of moments before a time. At least one. The time is written as in the file, in this dialect, or as ISO 8601; see
    /// [`SeriesSet::before`](crate::data::series::SeriesSet::before).
    ///
    /// # Errors
    /// [`Error::Origin`] if it is no time, if it has a zone and the times of the file have none, or if no time step is before it.
    pub fn rows_before(&self, text: &str, dialect: &Dialect) -> Result<usize> {
        let refuse = |problem: String, fix| Err(Error::Origin { file: self.file.clone(), problem, fix });
        match stamps::named_beside(text, dialect, self.utc, "the panel") {
            Err((problem, fix)) => refuse(problem, fix),
            Ok(named) => match self.times.partition_point(|&time| time < named) {
                0 => refuse(
                    format!("no time step is before {text}; the first is {}", self.time(0)),
                    "choose a later time",
                ),
                rows => Ok(rows),
            },
        }
    }

    /// The bundled weather as a panel. The sources are the airports of New York City. The features are what each
    /// airport observes, the recent changes of temperature and pressure, and the hour of the day. The labels are made
    /// from the temperature in °F.
    ///
    /// # Errors
    /// [`Error::Panel`] for a rule that makes no labels.
    pub fn nyc_weather(rule: &LabelRule, max_gap: MaxGap) -> Result<(Panel, PanelReport)> {
        Panel::from_table(weather::table()?, rule, max_gap)
    }

    fn from_table(table: Table, rule: &LabelRule, max_gap: MaxGap) -> Result<(Panel, PanelReport)> {
        let Table { file, utc, mut times, sources, features, mut values, outcomes } = table;
        let mut report = PanelReport::default();
        let width = sources.len() * features.len();
        let ignored = matches!(outcomes, Outcomes::Ignored);
        let (mut labels, looks_ahead) = match outcomes {
            Outcomes::Labels(labels) => (labels, 0),
            Outcomes::Prices(prices) => {
                let at = |row: usize| time::format(times[row], utc);
                (label(&prices, &sources, rule, &file, at)?, rule.horizon)
            }
            Outcomes::Ignored => (vec![None; times.len() * sources.len()], 0),
        };
        let mut missing: Vec<bool> = values.iter().map(|value| value.is_nan()).collect();
        let whole = carry_forward(&mut values, width);
        if let Some(column) = whole.missing {
            let channel =
                format!("{} of {}", features[column % features.len()], sources[column / features.len()]);
            return Err(Error::AllMissing { file, channel });
        }
        report.left_out = whole.from;
        report.filled = whole.filled;
        times.drain(..whole.from);
        values.drain(..whole.from * width);
        labels.drain(..whole.from * sources.len());
        let max_gap = match max_gap {
            MaxGap::Rows(rows) => rows,
            MaxGap::Season => season(&times),
        };
        let outdated: Vec<(usize, usize)> = outdated(&missing, width, max_gap)
            .filter_map(|(row, column)| Some((row.checked_sub(whole.from)?, column)))
            .collect();
        for &(row, _) in &outdated {
            let of_row = &mut labels[row * sources.len()..][..sources.len()];
            report.outdated += usize::from(of_row.iter().any(Option::is_some));
            of_row.fill(None);
        }
        missing.drain(..whole.from * width);
        if !ignored {
            report.unlabelled = labels.iter().filter(|label| label.is_none()).count();
        }
        if report.unlabelled == labels.len() {
            let problem = "no time step of any source has a label".to_owned();
            let fix = match report.outdated {
                0 => "add labels, or shorten the label horizon",
                _ => {
                    "carry values forward for longer (--max-gap), or remove features that are rarely observed"
                }
            };
            return Err(Error::Panel { file, problem, fix });
        }
        let grid = Grid::with_filled(values, width, missing);
        let panel =
            Panel { file, utc, times, sources, features, grid, labels, looks_ahead, outdated, max_gap };
        Ok((panel, report))
    }

    /// The name of the file, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Number of moments.
    pub fn rows(&self) -> usize {
        self.times.len()
    }

    /// The names of the sources.
    pub fn sources(&self) -> &[String] {
        &self.sources
    }

    /// The names of the features.
    pub fn features(&self) -> &[String] {
        &self.features
    }

    /// The time of a row as in the file: `2013-01-01T06:00:00Z` in UTC, otherwise `2013-01-01 06:00:00`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn time(&self, row: usize) -> String {
        time::format(self.times[row], self.utc)
    }

    /// Whether the times are in UTC. Otherwise they are as in the file, or local days ([`Dialect::local_days`]).
    pub fn is_utc(&self) -> bool {
        self.utc
    }

    /// The features, row-major `[rows, sources, features]`, in original units, including values that were carried
    /// forward.
    pub fn values(&self) -> &[f64] {
        self.grid.values()
    }

    /// The features, with one channel for each feature of each source, and which of them were observed.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The labels of the sources at a row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn labels(&self, row: usize) -> &[Option<Class>] {
        let sources = self.sources.len();
        &self.labels[row * sources..][..sources]
    }

    /// Refuses a row at which a value has been missing for more rows than [`PanelOptions::max_gap`] allows.
    ///
    /// # Errors
    /// [`Error::Panel`], which names the feature.
    pub fn check_fresh(&self, row: usize) -> Result<()> {
        match self.outdated.iter().find(|(outdated, _)| *outdated == row) {
            None => Ok(()),
            Some(&(_, column)) => {
                let (time, column, max_gap) = (self.time(row), &self.columns()[column], self.max_gap);
                let problem = format!("at {time}, `{column}` has been missing for more than {max_gap} rows");
                let fix = "add newer values of it, or train with a larger --max-gap";
                Err(Error::Panel { file: self.file.clone(), problem, fix })
            }
        }
    }

    /// How many rows a label looks ahead: the horizon if labels were made from prices, 0 if they were given.
    pub fn looks_ahead(&self) -> usize {
        self.looks_ahead
    }

    /// A name for each column of the values: `feature of source`.
    pub(crate) fn columns(&self) -> Vec<String> {
        let mut columns = Vec::with_capacity(self.sources.len() * self.features.len());
        for source in &self.sources {
            columns.extend(self.features.iter().map(|feature| format!("{feature} of {source}")));
        }
        columns
    }

    /// SHA-256 over names, values and labels, to recognise the panel.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for names in [&self.sources, &self.features] {
            hash.update((names.len() as u64).to_le_bytes());
            for name in names {
                hash.update((name.len() as u64).to_le_bytes());
                hash.update(name);
            }
        }
        self.grid.hash(&mut hash);
        let labels = self.labels.iter().map(|label| label.map_or(u8::MAX, |class| class.index() as u8));
        hash.update(labels.collect::<Vec<_>>());
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The season of the moments, if they follow a calendar.
fn season(times: &[DateTime]) -> usize {
    let calendar = (times.len() > 1).then(|| calendar::infer(times).ok()).flatten();
    calendar.map_or(usize::MAX, |(step, _)| step.cycle())
}

/// The rows at which a value has been missing for more than `max_gap` rows, each with the first column of such a value.
fn outdated(missing: &[bool], width: usize, max_gap: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut ages = vec![0_usize; width];
    missing.chunks_exact(width).enumerate().filter_map(move |(row, missing)| {
        ages.iter_mut().zip(missing).for_each(|(age, &missing)| *age = if missing { *age + 1 } else { 0 });
        ages.iter().position(|&age| age > max_gap).map(|column| (row, column))
    })
}

/// The result of [`carry_forward`].
struct Carried {
    /// The first row at which every column has a value.
    from: usize,
    /// How many values from that row on were missing.
    filled: usize,
    /// A column without any value.
    missing: Option<usize>,
}

/// Replaces each missing value by the last known value in its column.
fn carry_forward(values: &mut [f64], width: usize) -> Carried {
    let rows = values.len() / width;
    let first = |column: usize| values[column..].iter().step_by(width).position(|value| !value.is_nan());
    let begun: Vec<Option<usize>> = (0..width).map(first).collect();
    let from = begun.iter().map(|first| first.unwrap_or(rows)).max().unwrap_or(0);
    let mut filled = 0;
    for at in width..values.len() {
        if values[at].is_nan() {
            values[at] = values[at - width];
            filled += usize::from(at / width >= from);
        }
    }
    Carried { from, filled, missing: begun.iter().position(Option::is_none) }
}

/// Makes labels from prices, `(rows, sources)`. `at` formats the time of a row for messages.
fn label(
    prices: &[f64],
    sources: &[String],
    rule: &LabelRule,
    file: &str,
    at: impl Fn(usize) -> String,
) -> Result<Vec<Option<Class>>> {
    let refuse = |problem: String, fix| Err(Error::Panel { file: file.to_owned(), problem, fix });
    if rule.horizon == 0 {
        return refuse("the label horizon is 0 rows".to_owned(), "look at least one row ahead");
    }
    if !(rule.threshold >= 0.0 && rule.threshold.is_finite()) {
        let problem = format!("the label threshold is {}", rule.threshold);
        return refuse(problem, "choose 0 or a positive number");
    }
    if rule.change == Change::Relative
        && let Some(bad) = prices.iter().position(|&price| price <= 0.0)
    {
        let (time, source) = (at(bad / sources.len()), &sources[bad % sources.len()]);
        let problem =
            format!("at {time} the price of {source} is {}, so no relative change exists", prices[bad]);
        return refuse(problem, "correct it, or use --label-change difference");
    }
    let ahead = rule.horizon.saturating_mul(sources.len());
    let later = |cell: usize| prices.get(cell.saturating_add(ahead)).copied().unwrap_or(f64::NAN);
    let pair = |(cell, &now): (usize, &f64)| (now, later(cell));
    let class = |(now, later): (f64, f64)| (!now.is_nan() && !later.is_nan()).then(|| rule.class(now, later));
    Ok(prices.iter().enumerate().map(pair).map(class).collect())
}
