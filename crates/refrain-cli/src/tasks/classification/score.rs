//! The test errors of a classifier, fold by fold.

use refrain_forecast::data::panel::{Class, Fold, Panel};
use refrain_forecast::data::series::Filled;
use refrain_forecast::tasks::classification::Classification;
use refrain_forecast::training::Task;
use refrain_nn::Confusion;
use serde::Serialize;

use crate::console::{Console, count, table};
use crate::error::{Result, finite};
use crate::job::Job;

/// The errors on the test part of a fold.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FoldScore {
    pub fold: usize,
    pub train_samples: usize,
    /// The first moment of the test part.
    pub test_from: String,
    pub loss: f64,
    pub accuracy: f64,
    pub balanced_accuracy: f64,
    /// The most frequent class of the training part, and the accuracy of always predicting it.
    pub majority_class: Class,
    pub majority_accuracy: f64,
    /// Rows are the true classes, columns the predicted ones: up, down, flat.
    pub confusion: Confusion,
    pub weights_sha256: String,
    /// How much of each feature was carried forward in each part. Parts without any are left out.
    pub filled: Vec<Filled>,
}

impl FoldScore {
    /// Measures the model of a fold (counted from 1) on the fold's test part. The processes of a job share the work.
    pub fn measure(
        number: usize,
        task: &Classification,
        panel: &Panel,
        fold: &Fold,
        job: &Job,
    ) -> Result<FoldScore> {
        let (errors, confusion) = task.test(job.communicator().as_ref())?;
        finite(format!("the test loss of fold {number}"), errors.loss)?;
        Ok(FoldScore {
            fold: number,
            train_samples: task.samples().len(),
            test_from: panel.time(fold.test.start),
            loss: errors.loss,
            accuracy: errors.accuracy,
            balanced_accuracy: errors.balanced_accuracy,
            majority_class: task.majority(),
            majority_accuracy: confusion.support(task.majority().index()) as f64 / confusion.total() as f64,
            confusion,
            weights_sha256: task.model.weights_sha256()?,
            filled: fold.filled(panel),
        })
    }
}

/// The accuracies over the test parts of several folds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Totals {
    pub accuracy: f64,
    pub balanced_accuracy: f64,
    pub majority_accuracy: f64,
}

impl Totals {
    pub fn of(scores: &[&FoldScore]) -> Totals {
        let mut counts = [[0; Class::ALL.len()]; Class::ALL.len()];
        for score in scores {
            let more = score.confusion.counts().iter().flatten();
            counts.iter_mut().flatten().zip(more).for_each(|(count, more)| *count += more);
        }
        let all = Confusion::from(counts);
        let predicted_by_majority: f64 =
            scores.iter().map(|score| score.majority_accuracy * score.confusion.total() as f64).sum();
        Totals {
            accuracy: all.accuracy(),
            balanced_accuracy: all.balanced_accuracy(),
            majority_accuracy: predicted_by_majority / all.total() as f64,
        }
    }
}

/// One more column of the table: its header, and a cell for each fold and for all folds together.
pub struct Column {
    pub header: &'static str,
    pub cells: Vec<String>,
}

/// Prints the table of the folds, and each confusion matrix.
pub fn show(console: Console, scores: &[&FoldScore], more: Option<Column>) -> Result<()> {
    let row = |name: String, shares: [f64; 3], class: &str| {
        let shares = shares.map(|share| format!("{:.1} %", share * 100.0));
        std::iter::once(name).chain(shares).chain([class.to_owned()]).collect::<Vec<_>>()
    };
    let of_fold = |score: &&FoldScore| {
        let shares = [score.accuracy, score.balanced_accuracy, score.majority_accuracy];
        row(format!("{} from {}", score.fold, score.test_from), shares, score.majority_class.name())
    };
    let mut rows: Vec<Vec<String>> = scores.iter().map(of_fold).collect();
    let Totals { accuracy, balanced_accuracy, majority_accuracy } = Totals::of(scores);
    rows.push(row("all".to_owned(), [accuracy, balanced_accuracy, majority_accuracy], ""));
    let mut header = vec!["test part of fold", "accuracy", "balanced", "majority", "class"];
    if let Some(more) = more {
        header.push(more.header);
        rows.iter_mut().zip(more.cells).for_each(|(row, cell)| row.push(cell));
    }
    console.line(format!("\n{}", table(&header, &rows)))?;
    for score in scores {
        let rows: Vec<Vec<String>> = Class::ALL
            .into_iter()
            .map(|truth| {
                let counts = score.confusion.counts()[truth.index()].iter().map(|&of| count(of));
                std::iter::once(truth.name().to_owned()).chain(counts).collect()
            })
            .collect();
        let name = format!("fold {}: true class", score.fold);
        let header = [name.as_str(), "predicted up", "predicted down", "predicted flat"];
        console.line(format!("\n{}", table(&header, &rows)))?;
    }
    Ok(())
}
