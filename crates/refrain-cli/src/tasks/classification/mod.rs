//! Classifiers of the sources of a panel.

mod report;
pub mod score;
pub mod train;
pub mod trained;

use std::path::Path;

use refrain_forecast::data::series::Scaler;
use refrain_forecast::models::ClassifierConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::run_config::{Classes, RunConfig};

/// The configuration that the folder of a fold keeps: everything needed to use its model.
#[derive(Debug, Serialize)]
struct FoldConfig<'a> {
    #[serde(flatten)]
    run: &'a RunConfig<Classes>,
    #[serde(flatten)]
    fold: OfFold,
}

/// What differs from fold to fold.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct OfFold {
    /// Its number, from 1.
    fold: usize,
    scaler: Scaler,
}

impl OfFold {
    /// The configuration of the run and that of the fold, as a folder keeps them.
    fn from_kept(kept: Value, folder: &Path) -> Result<(RunConfig<Classes>, OfFold)> {
        let run = RunConfig::<Classes>::from_kept(kept.clone(), folder)?;
        let of_fold: OfFold = serde_json::from_value(kept).map_err(|error| {
            let problem = format!("its configuration cannot be read: {error}");
            Error::run(folder, problem, "restore the folder, or train again")
        })?;
        let refuse = |problem: String| Err(Error::contradiction(folder, problem));
        let (OfFold { fold, scaler }, folds) = (&of_fold, run.task.data.folds.folds);
        if !(1..=folds).contains(fold) {
            return refuse(format!("it is fold {fold} of {folds}"));
        }
        let ClassifierConfig::CrossAsset(model) = &run.task.model;
        let columns = model.sources * model.features;
        let (means, deviations) = (scaler.mean.len(), scaler.std.len());
        if [means, deviations] != [columns; 2] {
            return refuse(format!("{means} means and {deviations} deviations for {columns} columns"));
        }
        if let Some(column) = scaler.fault() {
            let (mean, std) = (scaler.mean[column], scaler.std[column]);
            return refuse(format!("column {column} has a mean of {mean} and a deviation of {std}"));
        }
        Ok((run, of_fold))
    }
}
