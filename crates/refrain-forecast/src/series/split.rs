//! The chronological split into training, validation and test part, and their windows.

use super::{Series, Step};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Where the parts begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitRule {
    /// Fractions of the rows, which add up to 1. Training and test part are rounded down, the validation part
    /// takes the rest.
    Fractions {
        /// Of the training part.
        train: f64,
        /// Of the validation part.
        validation: f64,
        /// Of the test part.
        test: f64,
    },
    /// The convention of the ETT data sets (Zhou et al., AAAI 2021): 12, 4 and 4 months of 30 days from the
    /// first row on; what follows is not used.
    Ett,
}

/// 70 % training, 10 % validation, 20 % test.
impl Default for SplitRule {
    fn default() -> Self {
        SplitRule::Fractions { train: 0.7, validation: 0.1, test: 0.2 }
    }
}

/// A range of rows and the windows of stride 1 in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The rows, with those that the first window looks back on.
    pub rows: Range<usize>,
    /// Number of windows. Window `i` has its context at row `rows.start + i`, its horizon right after.
    pub windows: usize,
}

/// Training, validation and test part of a series. The windows of validation and test part look back: their
/// context may lie in the part before, their horizon never does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Rows before a forecast.
    pub context: usize,
    /// Rows of a forecast.
    pub horizon: usize,
    /// The part to fit on.
    pub train: Part,
    /// The part to choose by.
    pub validation: Part,
    /// The part to report on.
    pub test: Part,
}

impl Split {
    /// Splits a series for windows of `context` rows and the `horizon` rows after them.
    ///
    /// # Errors
    /// [`Error::TooShort`] if a part does not hold one window; [`Error::Split`] for fractions that are no
    /// split, a zero context or horizon, or a series that has no 20 months of 30 days for the ETT convention.
    pub fn new(series: &Series, rule: &SplitRule, context: usize, horizon: usize) -> Result<Split> {
        let refuse = |(problem, fix)| Error::Split { file: series.file().to_owned(), problem, fix };
        if context == 0 || horizon == 0 {
            let problem = format!("context {context} and horizon {horizon}");
            return Err(refuse((problem, "both must be at least 1")));
        }
        let [train, validation, test] = match *rule {
            SplitRule::Fractions { train, validation, test } => {
                fractions(series.rows(), train, validation, test)
            }
            SplitRule::Ett => ett(series.rows(), series.time().step()),
        }
        .map_err(refuse)?;
        let part = |name, own: Range<usize>, look_back: bool| {
            let rows = if look_back { own.start.saturating_sub(context)..own.end } else { own };
            let needed = context.saturating_add(horizon);
            if rows.len() < needed {
                let file = series.file().to_owned();
                return Err(Error::TooShort {
                    file,
                    part: name,
                    rows: rows.len(),
                    look_back,
                    context,
                    horizon,
                    needed,
                });
            }
            Ok(Part { windows: rows.len() - needed + 1, rows })
        };
        Ok(Split {
            context,
            horizon,
            train: part("training", 0..train, false)?,
            validation: part("validation", train..train + validation, true)?,
            test: part("test", train + validation..train + validation + test, true)?,
        })
    }
}

type Lengths = Result<[usize; 3], (String, &'static str)>;

fn fractions(rows: usize, train: f64, validation: f64, test: f64) -> Lengths {
    let all = [train, validation, test];
    if !all.iter().all(|&part| part > 0.0 && part < 1.0) || (all.iter().sum::<f64>() - 1.0).abs() > 1e-6 {
        let problem = format!("fractions {train}, {validation} and {test}");
        return Err((problem, "each must lie between 0 and 1, and together they must be 1"));
    }
    let share = |part: f64| ((rows as f64 * part) as usize).min(rows);
    let (train, test) = (share(train), share(test));
    Ok([train, rows.saturating_sub(train + test), test])
}

fn ett(rows: usize, step: Step) -> Lengths {
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
            format!("the ETT convention needs {needed} rows (20 months of 30 days), there are {rows}");
        return Err((problem, USE_FRACTIONS));
    }
    Ok([12 * month, 4 * month, 4 * month])
}
