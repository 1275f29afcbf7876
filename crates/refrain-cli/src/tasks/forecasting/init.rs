//! What the weights of a new run begin with, if not with random values.

use std::path::{Path, PathBuf};

use refrain::{DType, Device};
use refrain_forecast::models::patchtst::hugging_face::HuggingFace;
use refrain_forecast::models::{Distribution, ModelConfig, initialise};
use refrain_forecast::settings::Values;
use refrain_nn::{Parameters, Weights};
use serde_json::json;

use crate::console::Console;
use crate::error::{Error, Result};
use crate::run::{self, SavedModel};
use crate::run_config::{Forecasts, RunConfig};

/// The weights of another model: of a run, of a checkpoint of Hugging Face, or of a file.
pub struct Init {
    path: PathBuf,
    weights: Source,
    /// The settings of that model. A file alone has none.
    model: Option<ModelConfig>,
    /// The name of the loss that its head is for, if it is not for any loss with one value in each row.
    loss: Option<&'static str>,
}

enum Source {
    HuggingFace(Box<HuggingFace>),
    /// Of refrain, under the names of the model.
    Own(Weights),
}

impl Init {
    /// Opens the folder of a run or of a checkpoint of Hugging Face, or a safetensors file.
    pub fn open(path: &Path) -> Result<Init> {
        let (weights, model) = if HuggingFace::is_in(path) {
            return Ok(Init::of(path.to_owned(), HuggingFace::open(path)?));
        } else if path.is_dir() {
            let saved = match run::is_panel_run(path) {
                true => {
                    return Err(Error::run(
                        path,
                        "it is a run of a classifier",
                        "choose the run of a forecaster",
                    ));
                }
                false => run::open_models(path)?,
            };
            let saved: &SavedModel = saved.first().ok_or_else(|| run::no_run(path))?;
            let config = RunConfig::<Forecasts>::from_kept(saved.config()?, path)?;
            (Source::Own(Weights::open(path)?), Some(config.task.model))
        } else {
            (Source::Own(Weights::open(path)?), None)
        };
        Ok(Init { path: path.to_owned(), weights, model, loss: None })
    }

    /// A checkpoint of Hugging Face.
    pub fn of(path: PathBuf, checkpoint: HuggingFace) -> Init {
        let model = checkpoint.config().clone().into();
        let loss = checkpoint.distribution().map(|Distribution::StudentT| "student-t");
        Init { path, weights: Source::HuggingFace(Box::new(checkpoint)), model: Some(model), loss }
    }

    /// The settings of its model by name, with those of its window.
    pub fn values(&self) -> Values {
        let Some(model) = &self.model else { return Values::new() };
        let window = model.window();
        let beside = [
            ("model", json!(model.name())),
            ("context", json!(window.context)),
            ("horizon", json!(window.horizon)),
        ];
        let loss = self.loss.map(|loss| ("loss", json!(loss)));
        let beside = beside.into_iter().chain(loss).map(|(name, value)| (name.to_owned(), value));
        model.values().into_iter().chain(beside).collect()
    }

    /// Copies its weights into those of a model, and says what was left as it was.
    pub fn apply(&self, console: Console, parameters: &Parameters) -> Result<()> {
        let host = Device::cpu();
        let tensors = match &self.weights {
            Source::HuggingFace(checkpoint) => checkpoint.tensors(DType::F32, &host)?,
            Source::Own(weights) => weights
                .names()
                .map(|name| Ok((name.to_owned(), weights.tensor(name, &host)?)))
                .collect::<Result<_>>()?,
        };
        let left = initialise(parameters, &tensors)?;
        console.line(format!("weights     from {}", self.path.display()))?;
        match left.is_empty() {
            true => Ok(()),
            false => console.line(
                "head        new, with random weights: that of the weights is for another task or horizon",
            ),
        }
    }
}
