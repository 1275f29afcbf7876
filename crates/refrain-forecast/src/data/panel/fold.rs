//! Chronological folds of a panel.

use super::Panel;
use crate::data::series::{Filled, filled};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How a panel is split into folds. Each fold tests on rows after those that it learned from. The test parts of all
/// folds follow one another up to the last row. Each fold trains on all rows before its validation part, so later
/// folds train on more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FoldRule {
    /// Number of folds.
    pub folds: usize,
    /// Share of all rows in the test part of a fold.
    pub test: f64,
    /// Share of all rows in the validation part of a fold.
    pub validation: f64,
    /// Rows left out before the validation part and before the test part. At least as many as a label looks ahead;
    /// otherwise training data would overlap with test data.
    pub embargo: usize,
}

/// Three folds, each validated and tested on a tenth of the rows, without embargo.
impl Default for FoldRule {
    fn default() -> Self {
        FoldRule { folds: 3, test: 0.1, validation: 0.1, embargo: 0 }
    }
}

/// The rows of a fold, in order of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    /// The training part.
    pub train: Range<usize>,
    /// The validation part.
    pub validation: Range<usize>,
    /// The test part.
    pub test: Range<usize>,
}

impl FoldRule {
    /// Splits a panel into folds, the earliest first.
    ///
    /// # Errors
    /// [`Error::Panel`] if the shares leave a part without labels, or the embargo is shorter than the label horizon.
    /// [`Error::NothingObserved`] for a feature that is never observed within a part.
    pub fn cut(&self, panel: &Panel) -> Result<Vec<Fold>> {
        let refuse = |problem: String, fix| Err(Error::Panel { file: panel.file().to_owned(), problem, fix });
        let FoldRule { folds, test, validation, embargo } = *self;
        if folds == 0 {
            return refuse("the number of folds is 0".to_owned(), "choose 1 or more");
        }
        let shares = [test, validation];
        if !shares.iter().all(|&share| share > 0.0 && share < 1.0) {
            let problem =
                format!("the share of the test part is {test} and that of the validation part {validation}");
            return refuse(problem, "choose shares between 0 and 1");
        }
        if embargo < panel.looks_ahead() {
            let problem =
                format!("the embargo is {embargo} rows, but labels look {} rows ahead", panel.looks_ahead());
            return refuse(problem, "choose an embargo of at least the label horizon");
        }
        let rows = panel.rows();
        let [test, validation] = shares.map(|share| (rows as f64 * share) as usize);
        let cut = |fold: usize| {
            let end = rows.checked_sub((folds - 1 - fold).checked_mul(test)?)?;
            let test = end.checked_sub(test)?..end;
            let validation_end = test.start.checked_sub(embargo)?;
            let validation = validation_end.checked_sub(validation)?..validation_end;
            let train = 0..validation.start.checked_sub(embargo)?;
            Some(Fold { train, validation, test })
        };
        let Some(cut) = (0..folds).map(cut).collect::<Option<Vec<Fold>>>() else {
            let problem = format!("{rows} rows are too few for {folds} folds and an embargo of {embargo}");
            return refuse(problem, "choose fewer folds, smaller shares or a shorter embargo");
        };
        for (number, fold) in cut.iter().enumerate() {
            let parts = [("training", &fold.train), ("validation", &fold.validation), ("test", &fold.test)];
            for (name, part) in parts {
                if panel.labelled(part.clone()).is_empty() {
                    let problem = format!(
                        "the {name} part of fold {} has {} rows, but no label",
                        number + 1,
                        part.len()
                    );
                    return refuse(problem, "choose fewer folds, other shares, or label more rows");
                }
                let unseen = |column: &usize| panel.grid().observed(part.clone(), *column) == 0;
                if let Some(column) = (0..panel.grid().channels()).find(unseen) {
                    return Err(Error::NothingObserved {
                        file: panel.file().to_owned(),
                        channel: panel.columns()[column].clone(),
                        place: format!(
                            "in the {name} part of fold {}, {} to {}",
                            number + 1,
                            panel.time(part.start),
                            panel.time(part.end - 1)
                        ),
                    });
                }
            }
        }
        Ok(cut)
    }
}

impl Fold {
    /// How much of each feature of each source was carried forward in each part. Parts without any are left out.
    pub fn filled(&self, panel: &Panel) -> Vec<Filled> {
        let parts = [
            ("training", self.train.clone()),
            ("validation", self.validation.clone()),
            ("test", self.test.clone()),
        ];
        filled(panel.grid(), &panel.columns(), parts)
    }
}

impl Panel {
    /// The rows of a range at which at least one source has a label. These are the samples.
    ///
    /// # Panics
    /// If the range reaches past the panel.
    pub fn labelled(&self, rows: Range<usize>) -> Vec<usize> {
        rows.filter(|&row| self.labels(row).iter().any(Option::is_some)).collect()
    }
}
