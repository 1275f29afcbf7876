//! Checkpoints of [PatchTST in Hugging Face's transformers](https://huggingface.co/docs/transformers/model_doc/patchtst): a
//! folder with `config.json` and `model.safetensors`, as `save_pretrained` writes it and `from_pretrained` reads it.
//!
//! `PatchTSTForPrediction` is read with its head, `PatchTSTForPretraining` without. Options that refrain does not have are
//! refused by name. What is written is a `PatchTSTForPrediction`.
//!
//! Both compute the same forecasts and gradients, up to rounding. A forecast of transformers is in the units of its input, and
//! so is that of [`PatchTst`]; a run folder of refrain standardises series before and after.

mod names;
mod options;

use super::embedding::sinusoids;
use super::{PatchTst, PatchTstConfig, Positions};
use crate::models::{Distribution, Forecaster, ForecasterConfig, initialise};
use crate::{Error, Result};
use names::{Entry, HeadOf};
use refrain::{DType, Device, Tensor};
use refrain_nn::checkpoint::{CONFIG, INDEX, TENSORS, write_atomic};
use refrain_nn::{Parameters, Weights};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What to do about weights that are not those of the configuration.
const SAVE_AGAIN: &str = "load the model and save it again with `save_pretrained` of transformers 4.36 or later, or copy both files again";

/// A checkpoint of Hugging Face's PatchTST, opened.
///
/// ```no_run
/// use refrain::{DType, Device};
/// use refrain_forecast::models::patchtst::hugging_face::HuggingFace;
///
/// let checkpoint = HuggingFace::open("granite-timeseries-patchtst")?;
/// let model = checkpoint.model(DType::F32, &Device::cpu(), 0)?;
/// # Ok::<(), refrain_forecast::Error>(())
/// ```
pub struct HuggingFace {
    folder: PathBuf,
    config: PatchTstConfig,
    head: HeadOf,
    weights: Weights,
}

impl HuggingFace {
    /// Whether a folder has the configuration of a model of transformers, of whatever kind.
    pub fn is_in(folder: &Path) -> bool {
        let text = std::fs::read(folder.join(CONFIG)).unwrap_or_default();
        serde_json::from_slice::<serde_json::Value>(&text)
            .is_ok_and(|config| config["model_type"].is_string())
    }

    /// Opens the checkpoint in a folder.
    ///
    /// # Errors
    /// [`Error::HuggingFace`] if it is another model, has an option that refrain does not have, or only weights that are a
    /// pickle (`pytorch_model.bin`); [`Error::Nn`] if its weights cannot be read.
    pub fn open(folder: impl AsRef<Path>) -> Result<HuggingFace> {
        let folder = folder.as_ref().to_owned();
        let path = folder.join(CONFIG);
        // A device such as /dev/zero has no end.
        if !path.is_file() {
            return Err(Error::HuggingFace {
                path: folder,
                problem: format!("there is no {CONFIG} in it"),
                fix: "pass the folder of a PatchTST that `save_pretrained` wrote".to_owned(),
            });
        }
        let text = std::fs::read(&path).map_err(|source| Error::Read { path: path.clone(), source })?;
        let options::Options { config, head } = options::read(&path, &text)?;
        if ![TENSORS, INDEX].iter().any(|name| folder.join(name).is_file()) {
            let pickle = folder.join("pytorch_model.bin");
            let (problem, fix) = match pickle.exists() {
                true => (
                    "its weights are a pickle (pytorch_model.bin), which could run any program when it is read",
                    "convert it where you trust it: `PatchTSTForPrediction.from_pretrained(\"OLD\").save_pretrained(\"NEW\")` in Python",
                ),
                false => ("it has no model.safetensors", "copy that file, too"),
            };
            return Err(Error::HuggingFace {
                path: folder,
                problem: problem.to_owned(),
                fix: fix.to_owned(),
            });
        }
        let weights = Weights::open(&folder)?;
        let checkpoint = HuggingFace { folder, config, head, weights };
        checkpoint.check_names()?;
        Ok(checkpoint)
    }

    /// The settings of the model, with the horizon of a forecast.
    pub fn config(&self) -> &PatchTstConfig {
        &self.config
    }

    /// The distribution that its head forecasts in each row, if it is one.
    pub fn distribution(&self) -> Option<Distribution> {
        self.head.distribution()
    }

    fn entries(&self) -> Vec<Entry> {
        names::entries(&self.config, self.head)
    }

    /// Whether it has a head that forecasts. The head of masked pretraining is left out.
    pub fn has_head(&self) -> bool {
        !matches!(self.head, HeadOf::Nothing)
    }

    /// The tensors of the model under the names that refrain has for them.
    ///
    /// # Errors
    /// [`Error::HuggingFace`] if a tensor has another shape than the configuration says, or a number that is not finite;
    /// [`Error::Engine`] if the device has not enough memory.
    pub fn tensors(&self, dtype: DType, device: &Device) -> Result<Vec<(String, Tensor)>> {
        self.entries()
            .iter()
            .map(|entry| Ok((entry.own.clone(), self.tensor(entry, dtype, device)?)))
            .collect()
    }

    /// The model with the weights of the checkpoint. Without a head in it, the head is random and depends only on the seed.
    ///
    /// # Errors
    /// Those of [`HuggingFace::tensors`].
    pub fn model(&self, dtype: DType, device: &Device, seed: u64) -> Result<PatchTst> {
        let tensors = self.tensors(dtype, device)?;
        let values = self.distribution().map_or(1, Distribution::values);
        let horizon = self.config.horizon.saturating_mul(values);
        let config = PatchTstConfig { horizon, ..self.config.clone() };
        let mut model = PatchTst::new(config, dtype, device, seed)?;
        model.set_distribution(self.distribution())?;
        initialise(model.parameters(), &tensors)?;
        Ok(model)
    }

    fn refuse<T>(&self, problem: String) -> Result<T> {
        Err(Error::HuggingFace { path: self.folder.clone(), problem, fix: SAVE_AGAIN.to_owned() })
    }

    /// Checks that there are the tensors of the configuration and no others.
    fn check_names(&self) -> Result<()> {
        let found: BTreeSet<&str> = self.weights.names().collect();
        // Before the names are listed, because the configuration may be absurd.
        let size = self.config.size()?;
        let individual = self.config.individual_embedding || self.config.individual_head;
        let most = found.len() + if self.has_head() { 0 } else { 2 };
        if size.tensors > most as u64 || (individual && self.config.channels > most) {
            return self.refuse(format!(
                "its configuration describes a model of more tensors than the {} of the file",
                found.len()
            ));
        }
        let entries = self.entries();
        let wanted: BTreeSet<&str> =
            entries.iter().flat_map(|entry| &entry.theirs).map(String::as_str).collect();
        let counters: BTreeSet<String> = names::counters(&self.config).into_iter().collect();
        let extra = |name: &&&str| {
            let of_other_head = !self.has_head() && name.starts_with("head.");
            !(of_other_head || counters.contains(**name))
        };
        let first = |mut names: Vec<&&str>| {
            let more = names.len().saturating_sub(4);
            names.truncate(4);
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
        };
        let lacks: Vec<&&str> = wanted.difference(&found).collect();
        let others: Vec<&&str> = found.difference(&wanted).filter(extra).collect();
        let mut faults = Vec::new();
        if !lacks.is_empty() {
            faults.push(format!("it lacks {}", first(lacks)));
        }
        if !others.is_empty() {
            faults.push(format!("it has {}, which the model of its configuration lacks", first(others)));
        }
        match faults.is_empty() {
            true => Ok(()),
            false => self.refuse(faults.join("; ")),
        }
    }

    fn tensor(&self, entry: &Entry, dtype: DType, device: &Device) -> Result<Tensor> {
        let host = Device::cpu();
        let theirs = |name: &String| -> Result<Tensor> {
            let tensor = self.weights.tensor(name, &host)?;
            if tensor.dims() != entry.shape || !tensor.dtype().is_float() {
                let (found, shape) = (tensor.shape(), &entry.shape);
                return self.refuse(format!(
                    "tensor `{name}` is {} {found}, but its configuration says floats of shape {shape:?}",
                    tensor.dtype()
                ));
            }
            Ok(tensor.to_dtype(DType::F64)?)
        };
        let theirs = entry.theirs.iter().map(theirs).collect::<Result<Vec<_>>>()?;
        let values = entry.join(&theirs)?.to_vec::<f64>()?;
        if let Some(value) = values.iter().find(|value| !value.is_finite()) {
            return self.refuse(format!("tensor `{}` has the value {value}", entry.theirs.join("`, `")));
        }
        Ok(Tensor::from_slice(&values, &entry.own_shape[..], device)?.to_dtype(dtype)?)
    }
}

/// Tensors of a model under the names and in the shapes of Hugging Face's checkpoints. `tensor` gives that of the model's
/// parameter or running statistic with a name: its values, or its gradient. `None` leaves a tensor out. `config` has the horizon of a
/// forecast; the model forecasts one value in each row of it, or a distribution.
///
/// # Errors
/// Those of `tensor`, and [`Error::Engine`] if a tensor has another shape than the model's.
pub fn renamed(
    config: &PatchTstConfig,
    distribution: Option<Distribution>,
    tensor: impl Fn(&str) -> Result<Option<Tensor>>,
) -> Result<Vec<(String, Tensor)>> {
    let mut all = Vec::new();
    let head = distribution.map_or(HeadOf::Values, HeadOf::Distribution);
    for entry in names::entries(config, head) {
        if let Some(own) = tensor(&entry.own)? {
            all.extend(entry.theirs.iter().cloned().zip(entry.split(&own)?));
        }
    }
    Ok(all)
}

/// Checks that transformers has a model with these settings; `path` is what the error names.
///
/// # Errors
/// [`Error::HuggingFace`], which names the setting.
pub fn check(config: &PatchTstConfig, distribution: Option<Distribution>, path: &Path) -> Result<()> {
    options::write(config, distribution, path).map(drop)
}

/// Writes a model that forecasts one value in each row, or a distribution, into an existing folder, from which `PatchTSTForPrediction.from_pretrained` loads it. Returns what a user
/// should know of the result, in sentences.
///
/// # Errors
/// [`Error::HuggingFace`] if transformers has no such model; [`Error::Nn`] if the folder cannot be written.
pub fn export(
    config: &PatchTstConfig,
    distribution: Option<Distribution>,
    parameters: &Parameters,
    folder: &Path,
) -> Result<Vec<String>> {
    let (options, notes) = options::write(config, distribution, folder)?;
    let own = |name: &str| Ok(Some(parameters.get(name)?.detach().to_dtype(DType::F32)?));
    let mut tensors = renamed(config, distribution, own)?;
    let device = parameters.values().device();
    if config.positions == Positions::Sinusoidal {
        let (tokens, width) = (config.tokens(), config.d_model);
        let waves = Tensor::from_slice(&sinusoids(tokens, width), [tokens, width], device)?;
        tensors.push((names::positions(), waves.to_dtype(DType::F32)?));
    }
    for counter in names::counters(config) {
        tensors.push((counter, Tensor::zeros((), DType::I64, device)?));
    }
    Weights::write(folder.join(TENSORS), tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))?;
    let text = format!("{options:#}\n");
    write_atomic(&folder.join(CONFIG), text.as_bytes())?;
    Ok(notes)
}
