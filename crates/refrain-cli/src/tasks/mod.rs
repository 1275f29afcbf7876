//! The two tasks, each in its own folder, and what the commands ask of a trained model of any task.

pub mod classification;
mod epochs;
pub mod forecasting;

use std::path::Path;

use refrain::Device;
use refrain_forecast::data::dialect::Dialect;
use serde::Serialize;
use serde_json::{Value, json};

use crate::console::Console;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::output::Cell;
use crate::run;
use crate::run_config::task_of;
use crate::settings::Task;
use classification::trained::TrainedClassifier;
use forecasting::trained::TrainedForecaster;

/// The model of a run, with the data and settings that it was trained with.
pub trait Trained {
    /// The name of the data that it was trained on.
    fn source(&self) -> &str;

    /// How data is read: at first as that of the training.
    fn dialect(&mut self) -> &mut Dialect;

    /// Measures the model on the test part of the data, prints the table, and prints the figures as JSON if asked to. The processes
    /// of a job share the work.
    fn evaluate(self: Box<Self>, console: Console, data: &str, job: &Job) -> Result<()>;

    /// Predicts what follows the rows of the data. The processes of a job share the work, and each gets the whole prediction.
    fn forecast(
        self: Box<Self>,
        console: Console,
        data: &str,
        asked: &Asked,
        job: &Job,
    ) -> Result<Prediction>;
}

/// What is to be predicted.
#[derive(Debug, Default)]
pub struct Asked {
    /// Of these ids only, each named once.
    pub ids: Option<Vec<String>>,
    /// From this time on, instead of from the row after the last one on.
    pub from: Option<String>,
    /// So many rows, instead of as many as the model was trained for; several are several predictions.
    pub horizons: Vec<usize>,
}

impl Asked {
    /// In words, so that several processes can compare it.
    pub fn described(&self) -> Value {
        let horizons: Vec<String> = self.horizons.iter().map(usize::to_string).collect();
        let or = |words: Option<String>, otherwise: &str| words.unwrap_or_else(|| otherwise.to_owned());
        json!({
            "--ids": or(self.ids.as_ref().map(|ids| ids.join(",")), "all"),
            "--from": or(self.from.clone(), "after the last row"),
            "--horizon": or((!horizons.is_empty()).then(|| horizons.join(",")), "that of the model"),
        })
    }
}

/// A prediction as a table.
#[derive(Debug, Serialize)]
pub struct Prediction {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
    pub weights_sha256: String,
    /// What it is of, in a few words.
    #[serde(skip)]
    pub summary: String,
}

/// Loads the best model of the run in a folder, whatever its task.
pub fn load(folder: &Path, device: &Device) -> Result<Box<dyn Trained>> {
    let saved = run::open_models(folder)?;
    let first = saved.first().ok_or_else(|| run::no_run(folder))?;
    Ok(match task_of(&first.config()?) {
        Task::Forecasting => Box::new(TrainedForecaster::load(first, device)?),
        Task::Classification => Box::new(TrainedClassifier::load(folder, &saved, device)?),
    })
}

pub fn as_json(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(Error::Json)
}
