//! Chronological folds of a panel.

use super::Panel;
use crate::data::series::{Filled, filled};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How a panel is cut into folds. Each tests on rows after those that it learned from: the tests of all folds follow
/// one another up to the last row, and each fold learns from all rows before its validation part, so the later ones
/// learn from more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FoldRule {
    /// Number of folds.
    pub folds: usize,
    /// Share of all rows that a fold tests on.
    pub test: f64,
    /// Share of all rows that a fold validates on.
    pub validation: f64,
    /// Rows left out before the validation part and before the test part: at least as many as a label looks ahead, or
    /// what is learned from would overlap with what is tested on.
    pub embargo: usize,
}

/// Three folds, each tested and validated on a tenth of the rows, without embargo.
impl Default for FoldRule {
    fn default() -> Self {
        FoldRule { folds: 3, test: 0.1, validation: 0.1, embargo: 0 }
    }
}

/// The rows of a fold, in the order of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fold {
    /// To learn from.
    pub train: Range<usize>,
    /// To choose by.
    pub validation: Range<usize>,
    /// To report on.
    pub test: Range<usize>,
}

impl FoldRule {
    /// The folds of a panel, the earliest first.
    ///
    /// # Errors
    /// [`Error::Panel`] for shares that leave a part without labels, and an embargo shorter than labels look ahead;
    /// [`Error::NothingObserved`] for a feature that is never observed within a part.
    pub fn cut(&self, panel: &Panel) -> Result<Vec<Fold>> {
        let refuse = |problem: String, fix| Err(Error::Panel { file: panel.file().to_owned(), problem, fix });
        let FoldRule { folds, test, validation, embargo } = *self;
        if folds == 0 {
            return refuse("it is to be cut into 0 folds".to_owned(), "choose 1 or more");
        }
        let shares = [test, validation];
        if !shares.iter().all(|&share| share > 0.0 && share < 1.0) {
            let problem = format!("a fold is to test on a share of {test} and to validate on {validation}");
            return refuse(problem, "choose shares between 0 and 1");
        }
        if embargo < panel.looks_ahead() {
            let problem =
                format!("an embargo of {embargo} rows, and labels look {} rows ahead", panel.looks_ahead());
            return refuse(problem, "choose an embargo of at least as many rows as the horizon of labels");
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
                        "the {name} part of fold {} has {} rows and no label",
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
    /// How much of each feature of each source was carried forward within each part, where anything was.
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
    /// The rows of a range at which any source has a label: the samples.
    ///
    /// # Panics
    /// If the range reaches past the panel.
    pub fn labelled(&self, rows: Range<usize>) -> Vec<usize> {
        rows.filter(|&row| self.labels(row).iter().any(Option::is_some)).collect()
    }
}
