//! Splits a series in time into a training, a validation and a test part, and finds their windows.

use super::{Filled, Gap, Series, TimeStep, coverage};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::str::FromStr;

/// How the rows are divided into parts.
///
/// As text it is `ett`, three fractions such as `0.7,0.1,0.2`, or two numbers of rows such as `24,24`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "Written")]
pub enum SplitRule {
    /// Fractions of the rows, which add up to 1. The training and the test part are rounded down; the validation part
    /// gets the rest.
    Fractions {
        /// The fraction of the training part.
        train: f64,
        /// The fraction of the validation part.
        validation: f64,
        /// The fraction of the test part.
        test: f64,
    },
    /// The last rows are the test part, those before them the validation part; the training part gets the rest.
    Rows {
        /// Rows of the validation part.
        validation: usize,
        /// Rows of the test part.
        test: usize,
    },
    /// The convention of the ETT data sets (Zhou et al., AAAI 2021): 12, 4 and 4 months of 30 days from the first row
    /// on. Later rows are not used.
    Ett,
}

/// 70 % training, 10 % validation, 20 % test.
impl Default for SplitRule {
    fn default() -> Self {
        SplitRule::Fractions { train: 0.7, validation: 0.1, test: 0.2 }
    }
}

impl FromStr for SplitRule {
    type Err = String;

    fn from_str(text: &str) -> Result<SplitRule, String> {
        if text == "ett" {
            return Ok(SplitRule::Ett);
        }
        let rows: Result<Vec<usize>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        if let [validation, test] = rows.unwrap_or_default()[..] {
            return Ok(SplitRule::Rows { validation, test });
        }
        let parts: Result<Vec<f64>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        match parts.unwrap_or_default()[..] {
            [train, validation, test] => Ok(SplitRule::Fractions { train, validation, test }),
            _ => Err(format!(
                "{text:?} is neither `ett`, nor three fractions such as `0.7,0.1,0.2`, nor two numbers of rows such as \
                 `24,24` (validation and test)"
            )),
        }
    }
}

impl From<SplitRule> for String {
    fn from(rule: SplitRule) -> String {
        match rule {
            SplitRule::Ett => "ett".to_owned(),
            SplitRule::Fractions { train, validation, test } => format!("{train},{validation},{test}"),
            SplitRule::Rows { validation, test } => format!("{validation},{test}"),
        }
    }
}

impl SplitRule {
    /// The rows of the three parts of a series.
    fn lengths(&self, rows: usize, step: TimeStep) -> Lengths {
        match *self {
            SplitRule::Fractions { train, validation, test } => fractions(rows, train, validation, test),
            SplitRule::Rows { validation, test } => last_rows(rows, validation, test),
            SplitRule::Ett => ett(rows, step),
        }
    }

    /// The same where a series may be too short for some part: then the earlier ones have no rows.
    pub(super) fn lengths_of_short(&self, rows: usize, step: TimeStep) -> Lengths {
        match *self {
            SplitRule::Rows { validation, test } if validation > 0 && test > 0 => {
                let test = test.min(rows);
                let validation = validation.min(rows - test);
                Ok([rows - test - validation, validation, test])
            }
            _ => self.lengths(rows, step),
        }
    }
}

/// A split rule as it is written down.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "neither `ett`, nor three fractions such as `0.7,0.1,0.2`, nor two numbers of rows such as `24,24`"
)]
enum Written {
    Text(String),
    /// As runs of version 1 kept fractions.
    Table {
        fractions: Fractions,
    },
}

#[derive(Deserialize)]
struct Fractions {
    train: f64,
    validation: f64,
    test: f64,
}

impl TryFrom<Written> for SplitRule {
    type Error = String;

    fn try_from(written: Written) -> Result<SplitRule, String> {
        match written {
            Written::Text(text) => text.parse(),
            Written::Table { fractions: Fractions { train, validation, test } } => {
                Ok(SplitRule::Fractions { train, validation, test })
            }
        }
    }
}

/// The rows of a part of a series, and the windows in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The rows, including those that the first window looks back on.
    pub rows: Range<usize>,
    /// The rows without those.
    pub own: Range<usize>,
    /// How many windows were left out.
    pub left_out: LeftOut,
    /// The first rows of the windows, as ranges of consecutive rows.
    windows: Vec<Range<usize>>,
    /// Whether a value that a window forecasts was filled.
    filled: bool,
    /// The mark of the values that its windows count.
    mark: u8,
}

/// The mark of observed values of a grid.
pub(crate) const OBSERVED: u8 = 1;

/// How many windows were left out, of all windows at stride 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Those that would cross a gap that is too long, or begin before the first value of a channel.
    pub across_gaps: usize,
    /// Other windows without any observed value in their horizon.
    pub unobserved: usize,
}

impl LeftOut {
    /// All windows that were left out.
    pub fn total(self) -> usize {
        self.across_gaps + self.unobserved
    }
}

impl Part {
    /// All windows of this length at stride 1, in rows that were all observed.
    pub fn all(rows: Range<usize>, length: usize) -> Part {
        let starts = rows.start..(rows.end + 1).saturating_sub(length).max(rows.start);
        let windows = if starts.is_empty() { Vec::new() } else { vec![starts] };
        Part { own: rows.clone(), rows, left_out: LeftOut::default(), windows, filled: false, mark: OBSERVED }
    }

    /// Windows in the table of a stack. `partial` says whether some value that they forecast does not count.
    pub(super) fn of_stack(
        rows: Range<usize>,
        windows: Vec<Range<usize>>,
        left_out: LeftOut,
        partial: bool,
        mark: u8,
    ) -> Part {
        Part { own: rows.clone(), rows, left_out, windows, filled: partial, mark }
    }

    /// The same part with some of its windows.
    pub(super) fn with_runs(&self, windows: Vec<Range<usize>>) -> Part {
        Part { windows, ..self.clone() }
    }

    /// The mark of the values that its windows count.
    pub(crate) fn mark(&self) -> u8 {
        self.mark
    }

    /// Number of windows.
    pub fn windows(&self) -> usize {
        self.windows.iter().map(Range::len).sum()
    }

    /// The first row of each window, ascending. The context begins there, and the horizon follows it.
    pub fn starts(&self) -> impl Iterator<Item = usize> + '_ {
        self.windows.iter().cloned().flatten()
    }

    /// The first rows of the windows, as ranges of consecutive rows.
    pub fn runs(&self) -> &[Range<usize>] {
        &self.windows
    }

    /// Whether a value that a window forecasts was filled, so that not all values count.
    pub fn has_filled(&self) -> bool {
        self.filled
    }
}

/// The training, validation and test part of a series. The context of a validation or test window may be in the part
/// before; its horizon never is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Rows before a forecast.
    pub context: usize,
    /// Rows of a forecast.
    pub horizon: usize,
    /// The training part: fit the model on it.
    pub train: Part,
    /// The validation part: choose the best model with it.
    pub validation: Part,
    /// The test part: report errors on it.
    pub test: Part,
}

impl Split {
    /// Splits a series for windows of `context` rows and the `horizon` rows after them. Windows that would cross a gap of
    /// more than `max_gap` rows in any channel, or begin before its first value, are left out, and so are those without
    /// any observed value to forecast.
    ///
    /// # Errors
    /// [`Error::TooShort`] if a part does not hold one window; [`Error::NothingObserved`] if a channel has no observed
    /// value in a part; [`Error::NoWindows`] if all windows of a part are left out; [`Error::Split`] for invalid fractions, a
    /// context or horizon of zero, or a series that is shorter than the 20 months of 30 days of the ETT convention.
    pub fn new(
        series: &Series,
        rule: &SplitRule,
        context: usize,
        horizon: usize,
        max_gap: usize,
    ) -> Result<Split> {
        let refuse = |(problem, fix)| Error::Split { file: series.file().to_owned(), problem, fix };
        check_window(context, horizon).map_err(refuse)?;
        let [train, validation, test] = rule.lengths(series.rows(), series.time().step()).map_err(refuse)?;
        let cutter = Cutter { series, context, horizon, max_gap };
        Ok(Split {
            context,
            horizon,
            train: cutter.part(TRAINING, 0..train, false)?,
            validation: cutter.part(VALIDATION, train..train + validation, true)?,
            test: cutter.part(TEST, train + validation..train + validation + test, true)?,
        })
    }

    /// Takes the second half of the validation part away from it and returns it, to calibrate intervals on. No value that a
    /// window of one half forecasts is forecast by a window of the other.
    ///
    /// # Errors
    /// [`Error::Split`] if a half does not hold one window.
    pub fn hold_out_calibration(&mut self, series: &Series) -> Result<Part> {
        let (own, windows) = (self.validation.own.clone(), self.validation.windows.clone());
        let middle = own.start + own.len() / 2;
        let within = |starts: Range<usize>| -> Vec<Range<usize>> {
            let clipped = windows.iter().map(|run| run.start.max(starts.start)..run.end.min(starts.end));
            clipped.filter(|run| !run.is_empty()).collect()
        };
        let begin = middle.saturating_sub(self.context);
        let first = within(0..(middle + 1).saturating_sub(self.context + self.horizon));
        let second = within(begin..usize::MAX);
        if first.is_empty() || second.is_empty() {
            let problem = format!(
                "half of the {} rows of the validation part has no window with a horizon of {} rows",
                own.len(),
                self.horizon
            );
            let fix = "choose a longer validation part or a shorter horizon, or leave --calibrate out";
            return Err(Error::Split { file: series.file().to_owned(), problem, fix });
        }
        let cutter = Cutter { series, context: self.context, horizon: self.horizon, max_gap: 0 };
        let calibration = Part {
            rows: begin..own.end,
            own: middle..own.end,
            left_out: LeftOut::default(),
            windows: second,
            filled: self.validation.filled,
            mark: self.validation.mark,
        };
        self.validation.rows.end = middle;
        self.validation.own.end = middle;
        self.validation.windows = first;
        // Otherwise early stopping would not see some channel.
        let validation = own.start..middle;
        cutter.observed_in(&self.validation, validation, "the validation part without what calibrates")?;
        Ok(calibration)
    }

    /// How much of each channel was filled in each part. Parts without any are left out.
    pub fn filled(&self, series: &Series) -> Vec<Filled> {
        let parts = [(TRAINING, &self.train), (VALIDATION, &self.validation), (TEST, &self.test)];
        coverage::filled(series.grid(), series.names(), parts.map(|(name, part)| (name, part.own.clone())))
    }
}

/// The names of parts.
pub(crate) const TRAINING: &str = "training";
pub(crate) const VALIDATION: &str = "validation";
pub(crate) const TEST: &str = "test";

/// Finds the windows of parts.
struct Cutter<'a> {
    series: &'a Series,
    context: usize,
    horizon: usize,
    max_gap: usize,
}

impl Cutter<'_> {
    fn part(&self, name: &'static str, own: Range<usize>, look_back: bool) -> Result<Part> {
        let Cutter { series, context, horizon, .. } = *self;
        let rows = if look_back { own.start.saturating_sub(context)..own.end } else { own.clone() };
        let needed = context.saturating_add(horizon);
        if rows.len() < needed {
            let (file, rows) = (series.file().to_owned(), rows.len());
            return Err(Error::TooShort { file, part: name, rows, look_back, context, horizon, needed });
        }
        let whole = Part { own: own.clone(), ..Part::all(rows.clone(), needed) };
        if series.grid().is_complete() {
            return Ok(whole);
        }
        self.observed(own, &format!("in the {name} part"))?;
        let part = self.without_gaps(name, whole)?;
        let scored = rows.start + context..rows.end;
        self.observed_in(&part, scored, &format!("among the rows that windows of the {name} part forecast"))?;
        Ok(part)
    }

    /// The windows of a part that cross no long gap and have an observed value to forecast.
    fn without_gaps(&self, name: &'static str, whole: Part) -> Result<Part> {
        let Cutter { series, context, horizon, max_gap } = *self;
        let grid = series.grid();
        let gaps = grid.gaps_to_avoid(max_gap);
        let mut blocked = vec![false; series.rows()];
        gaps.iter().for_each(|gap| blocked[gap.rows.clone()].fill(true));
        let some_observed = |row: usize| (0..grid.channels()).any(|channel| grid.is_observed(row, channel));
        let all_observed = |row: usize| (0..grid.channels()).all(|channel| grid.is_observed(row, channel));
        let before = |of: &dyn Fn(usize) -> bool| {
            let mut count = 0;
            let counts = (0..series.rows()).map(|row| {
                count += usize::from(of(row));
                count
            });
            std::iter::once(0).chain(counts).collect::<Vec<usize>>()
        };
        let (blocked, some, all) =
            (before(&|row| blocked[row]), before(&some_observed), before(&all_observed));
        let within = |counts: &[usize], rows: Range<usize>| counts[rows.end] - counts[rows.start];

        let mut part = Part { windows: Vec::new(), ..whole.clone() };
        for start in whole.starts() {
            let (target, end) = (start + context, start + context + horizon);
            if within(&blocked, start..end) > 0 {
                part.left_out.across_gaps += 1;
            } else if within(&some, target..end) == 0 {
                part.left_out.unobserved += 1;
            } else {
                part.filled |= within(&all, target..end) < horizon;
                match part.windows.last_mut() {
                    Some(run) if run.end == start => run.end += 1,
                    _ => part.windows.push(start..start + 1),
                }
            }
        }
        if !part.windows.is_empty() {
            return Ok(part);
        }
        let inside = |gap: &&Gap| gap.rows.start < whole.rows.end && whole.rows.start < gap.rows.end;
        Err(Error::NoWindows {
            file: series.file().to_owned(),
            part: name,
            windows: whole.windows(),
            across_gaps: part.left_out.across_gaps,
            max_gap,
            longest: gaps
                .iter()
                .filter(inside)
                .max_by_key(|gap| gap.rows.len())
                .map(|gap| series.describe(gap)),
        })
    }

    /// Checks that every channel has an observed value in some rows.
    fn observed(&self, rows: Range<usize>, place: &str) -> Result<()> {
        match (0..self.series.channels())
            .find(|&channel| self.series.grid().observed(rows.clone(), channel) == 0)
        {
            Some(channel) => Err(self.nothing(channel, rows, place)),
            None => Ok(()),
        }
    }

    /// Checks that every channel has one among the rows that windows of a part forecast.
    fn observed_in(&self, part: &Part, rows: Range<usize>, place: &str) -> Result<()> {
        let Cutter { series, context, horizon, .. } = *self;
        let observed = |channel: usize| {
            let scored = part.runs().iter().map(|run| run.start + context..run.end - 1 + context + horizon);
            scored.map(|rows| series.grid().observed(rows, channel)).sum::<usize>()
        };
        match (0..series.channels()).find(|&channel| observed(channel) == 0) {
            Some(channel) => Err(self.nothing(channel, rows, place)),
            None => Ok(()),
        }
    }

    fn nothing(&self, channel: usize, rows: Range<usize>, place: &str) -> Error {
        let (series, time) = (self.series, self.series.time());
        let place = format!("{place}, {} to {}", time.format(rows.start), time.format(rows.end - 1));
        let channel = series.names()[channel].clone();
        Error::NothingObserved { file: series.file().to_owned(), channel, place }
    }
}

/// Refuses windows without rows.
pub(super) fn check_window(context: usize, horizon: usize) -> Result<(), (String, &'static str)> {
    match context == 0 || horizon == 0 {
        true => {
            Err((format!("the context is {context} and the horizon {horizon}"), "both must be at least 1"))
        }
        false => Ok(()),
    }
}

type Lengths = Result<[usize; 3], (String, &'static str)>;

fn fractions(rows: usize, train: f64, validation: f64, test: f64) -> Lengths {
    let all = [train, validation, test];
    if !all.iter().all(|&part| part > 0.0 && part < 1.0) || (all.iter().sum::<f64>() - 1.0).abs() > 1e-6 {
        let problem = format!("fractions {train}, {validation} and {test}");
        return Err((problem, "each must be between 0 and 1, and their sum must be 1"));
    }
    let share = |part: f64| ((rows as f64 * part) as usize).min(rows);
    let (train, test) = (share(train), share(test));
    Ok([train, rows.saturating_sub(train + test), test])
}

fn last_rows(rows: usize, validation: usize, test: usize) -> Lengths {
    if validation == 0 || test == 0 {
        let problem = format!("{validation} rows of validation and {test} of test");
        return Err((problem, "both must be at least 1"));
    }
    match rows.checked_sub(validation.saturating_add(test)) {
        Some(train @ 1..) => Ok([train, validation, test]),
        _ => Err((
            format!(
                "{validation} rows of validation and {test} of test leave none of its {rows} rows to train on"
            ),
            "choose fewer rows",
        )),
    }
}

fn ett(rows: usize, step: TimeStep) -> Lengths {
    const USE_FRACTIONS: &str = "split it by fractions";
    let Some(month) = step.in_days(30) else {
        return Err((
            format!("a step of {step} does not divide the 30 days of the ETT convention"),
            USE_FRACTIONS,
        ));
    };
    let needed = month.saturating_mul(20);
    if rows < needed {
        let problem =
            format!("the ETT convention needs {needed} rows (20 months of 30 days), but there are {rows}");
        return Err((problem, USE_FRACTIONS));
    }
    Ok([12 * month, 4 * month, 4 * month])
}
