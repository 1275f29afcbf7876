//! Reads a checkpoint. Everything is checked before any tensor is changed.

use std::collections::BTreeSet;
use std::path::Path;

use refrain::{DType, Generator, Shape, Tensor, no_grad};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::checksum::Checksum;
use super::file::{FileTensor, TensorFile};
use super::pending::{Part, Pending};
use super::{
    CHECKSUM, EMA, METADATA, SETTINGS, State, TENSORS, VERSION, bytes, groups, groups_name, moment, step_name,
};
use crate::ema::Ema;
use crate::error::{Error, Result};
use crate::optim::Optimizer;
use crate::parameters::{Entry, ModelSize, Parameters, RESERVED};

/// How many problems of one kind an error message lists.
const LISTED: usize = 4;

/// What a path has in place of a checkpoint, if other programs save weights so.
fn weights_of_others(path: &Path) -> Option<&'static str> {
    if path.is_file() {
        return Some("it is a file, and a checkpoint is a folder");
    }
    let is_weights = |name: &str| name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    let mut names = path.read_dir().ok()?.flatten().map(|entry| entry.file_name());
    let has_weights = !path.join(TENSORS).exists() && names.any(|name| name.to_str().is_some_and(is_weights));
    has_weights.then_some("its weights are not a checkpoint")
}

/// How many bytes of a tensor are read at once for the checksum.
const PIECE: usize = 4 << 20;

/// A checkpoint that was opened and verified. Its values stay in the file until they are loaded.
pub struct Checkpoint {
    file: TensorFile,
    /// `None` if the file was not written by refrain.
    state: Option<State>,
    unverified: Option<&'static str>,
}

impl Checkpoint {
    /// Reads the checkpoint in `folder` and verifies its checksum.
    ///
    /// # Errors
    /// If there is none, or it cannot be read, is truncated, was changed since it was written, or was not written by
    /// refrain.
    pub fn open(folder: impl AsRef<Path>) -> Result<Checkpoint> {
        let folder = folder.as_ref();
        if let Some(what) = weights_of_others(folder) {
            let message = format!(
                "{what}; pass the folder that a checkpoint was written to, or load the weights of another program by `Parameters::load_safetensors`"
            );
            return Err(Error::checkpoint(folder, message));
        }
        let checkpoint = Checkpoint::open_file(folder.join(TENSORS))?;
        checkpoint.state()?;
        Ok(checkpoint)
    }

    /// Reads the weights of a model that refrain has saved, from the file itself; [`Checkpoint::load`] finds them by name.
    /// A file of another program has no checksum ([`Checkpoint::unverified`]) and no configuration: use
    /// [`Parameters::load_safetensors`] for it, which maps names and converts dtypes.
    ///
    /// # Errors
    /// If it cannot be read or is truncated, or if refrain wrote it and it was changed since.
    pub fn open_file(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let file = TensorFile::open(path.as_ref())?;
        let refuse = |message: String| Error::checkpoint(file.path(), message);
        let (state, unverified) = match file.text(METADATA) {
            None => (None, Some("it was not written by refrain, so it has no checksum")),
            Some(state) => {
                let Version { version } =
                    serde_json::from_str(state).map_err(|e| refuse(not_understood(e)))?;
                if !(1..=VERSION).contains(&version) {
                    return Err(refuse(format!(
                        "it has version {version} of the format, but this library reads versions 1 to {VERSION}; use the version of refrain that wrote it"
                    )));
                }
                let checksum = file.text(CHECKSUM);
                if (version > 1 || checksum.is_some()) && checksum != Some(&sum(state, version, &file)?) {
                    let message = "its checksum differs, so it was changed since it was written; copy it again, or use an earlier checkpoint";
                    return Err(refuse(message.to_owned()));
                }
                let before = "it was written before checkpoints had checksums";
                let state = serde_json::from_str(state).map_err(|e| refuse(not_understood(e)))?;
                (Some(state), checksum.is_none().then_some(before))
            }
        };
        Ok(Checkpoint { file, state, unverified })
    }

    /// If the content could not be verified: the reason, as a warning for the user.
    pub fn unverified(&self) -> Option<String> {
        let why = self.unverified?;
        Some(format!("{}: {why}, and changes since then cannot be detected", self.file.path().display()))
    }

    /// Checks that a model has as many tensors and numbers as the checkpoint. Call this before you allocate the
    /// model, because its settings may come from a file that somebody changed.
    ///
    /// # Errors
    /// If it has not. The message has both numbers.
    pub fn check_size(&self, model: ModelSize) -> Result<()> {
        let names = self.file.names().into_iter().filter(|name| !name.starts_with(RESERVED));
        let (mut tensors, mut numbers) = (0u64, 0u128);
        for tensor in names.filter_map(|name| self.file.tensor(&name)) {
            tensors += 1;
            numbers += tensor.shape().iter().map(|&size| size as u128).product::<u128>();
        }
        if (tensors, numbers) == (model.tensors, model.parameters + model.buffers) {
            return Ok(());
        }
        Err(self.error(format!(
            "its configuration describes a model of {} numbers in {} tensors, but the file has {numbers} in {tensors}; it was changed since it was written",
            model.parameters + model.buffers,
            model.tensors
        )))
    }

    fn state(&self) -> Result<&State> {
        self.state.as_ref().ok_or_else(|| {
            self.error(
                "this safetensors file has no configuration of refrain, so it is not a checkpoint; to load the weights of another program, use `Parameters::load_safetensors`",
            )
        })
    }

    /// The configuration that [`super::Snapshot`] was given.
    ///
    /// # Errors
    /// If it is not of type `T`, or there is none.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.state()?.config).map_err(|e| {
            Error::checkpoint(
                self.file.path(),
                format!(
                    "its configuration has another format ({e}); use the command or program that wrote it"
                ),
            )
        })
    }

    /// How many optimiser steps were done; 0 if unknown.
    pub fn steps(&self) -> i64 {
        self.state.as_ref().map_or(0, |state| state.steps)
    }

    /// How many steps the optimiser skipped because gradients were not finite; 0 if unknown.
    pub fn skipped_steps(&self) -> i64 {
        self.state.as_ref().map_or(0, |state| state.skipped_steps)
    }

    /// Copies the values of the checkpoint into the parameters and buffers of a model.
    ///
    /// # Errors
    /// If names, shapes or dtypes differ, or a number is not finite. Then nothing is changed.
    pub fn load(&self, parameters: &Parameters) -> Result<()> {
        self.model(parameters)?.write()
    }

    /// Restores what training needs to continue bit for bit as if it had not stopped: the model, the state of the optimiser,
    /// all generators, under the names that they were saved with, and the average of the weights, if one was saved. Where an epoch was left is yours to keep, in the configuration
    /// ([`Batches::begin`](crate::Batches::begin)).
    ///
    /// # Errors
    /// If names, shapes or dtypes differ, a number is not finite, the optimiser is of another kind or has other
    /// hyper-parameters, schedule or groups, the generators have other names, or there is an average on one side alone or with
    /// another decay. Then nothing is changed.
    pub fn resume(
        &self,
        parameters: &Parameters,
        optimizer: &dyn Optimizer,
        generators: &[(&str, &Generator)],
        ema: Option<&Ema>,
    ) -> Result<()> {
        self.resume_where(parameters, optimizer, generators, ema, |saved, current| saved == current)
    }

    /// The same for training that goes on by another learning rate schedule, such as one of more steps.
    ///
    /// # Errors
    /// Those of [`Checkpoint::resume`], but for the schedule.
    pub fn resume_rescheduled(
        &self,
        parameters: &Parameters,
        optimizer: &dyn Optimizer,
        generators: &[(&str, &Generator)],
        ema: Option<&Ema>,
    ) -> Result<()> {
        self.resume_where(parameters, optimizer, generators, ema, |saved, current| {
            let mut saved = saved.clone();
            saved["schedule"] = current["schedule"].clone();
            saved == *current
        })
    }

    /// Restores what [`Checkpoint::resume`] does, if the optimisers are alike.
    fn resume_where(
        &self,
        parameters: &Parameters,
        optimizer: &dyn Optimizer,
        generators: &[(&str, &Generator)],
        ema: Option<&Ema>,
        alike: impl Fn(&Value, &Value) -> bool,
    ) -> Result<()> {
        let mut pending = self.model(parameters)?;
        let state = self.state()?;
        let Some(saved) = &state.optimizer else {
            return Err(self.error("it has no optimiser state, so training cannot continue from it; load the model alone and start a new run"));
        };
        let current = optimizer.describe();
        if !alike(saved, &current) {
            let differences = differences("", saved, &current);
            let reschedule = match differences.iter().all(|(name, ..)| name.starts_with("schedule")) {
                true => "go on by another schedule (`resume_rescheduled`), ",
                false => "",
            };
            let told = differences.iter().map(|(name, was, is)| format!("{name} was {was}, and is {is} now"));
            return Err(self.error(format!(
                "it was written with another optimiser: {}; use the same one, {reschedule}or load the model alone and start a new run",
                told.collect::<Vec<_>>().join("; ")
            )));
        }
        self.check_groups(parameters)?;
        for (buffer, flat) in optimizer.buffers() {
            self.flat(&mut pending, parameters, flat, &|name| moment(buffer, name))?;
        }
        let step = optimizer.step_state().step();
        let stored = self.stored(&step_name(), step.dtype(), step.shape())?;
        if stored.whole()? != state.steps.to_le_bytes() {
            return Err(self.error(format!("its configuration says {} steps, but its optimiser has another number; the file was changed since it was written", state.steps)));
        }
        pending.add(step.clone(), vec![Part { name: step_name(), from: stored, first: 0 }]);

        let given: BTreeSet<&str> = generators.iter().map(|(name, _)| *name).collect();
        let kept: BTreeSet<&str> = state.generators.keys().map(String::as_str).collect();
        if given != kept {
            return Err(self.error(format!(
                "it has the generators {kept:?}, but {given:?} were given; use the same names"
            )));
        }
        self.average(&mut pending, parameters, state.ema.map(|ema| ema.decay), ema)?;
        if !(0..1 << 53).contains(&state.skipped_steps) {
            let steps = state.skipped_steps;
            return Err(self.error(format!("its configuration says {steps} skipped steps, which is impossible; the file was changed since it was written")));
        }
        pending.write()?;
        if let Some(skipped) = optimizer.step_state().skipped() {
            no_grad(|| skipped.fill(state.skipped_steps as f64))?;
        }
        for (name, generator) in generators {
            if let Some(saved) = state.generators.get(*name) {
                generator.set_state(saved.seed, saved.offset)?;
            }
        }
        Ok(())
    }

    /// Checks that all parameters are in the groups in which the run left them.
    fn check_groups(&self, parameters: &Parameters) -> Result<()> {
        let groups = groups(parameters)?;
        let stored = self.stored(&groups_name(), groups.dtype(), groups.shape())?.whole()?;
        let stored: Vec<f64> = stored.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
        let (stored, current) = (stored.as_chunks::<SETTINGS>().0, groups.to_vec::<f64>()?);
        let pairs = parameters.names().zip(stored.iter().zip(current.as_chunks::<SETTINGS>().0));
        let Some((name, (was, is))) = pairs.into_iter().find(|(_, (was, is))| was != is) else {
            return Ok(());
        };
        let words = |[decay, rate, trained]: &[f64; SETTINGS]| {
            let trained = if *trained == 0.0 { "frozen" } else { "trained" };
            format!("decay factor {decay}, rate factor {rate}, {trained}")
        };
        Err(self.error(format!(
            "its parameter `{name}` has {}, but the model's has {}; set the same groups (`Parameters::set_group`), or load the model alone and start a new run",
            words(was), words(is)
        )))
    }

    /// The average of the weights, whose decay was `saved`. It belongs to the run if one was saved.
    fn average<'a>(
        &'a self,
        pending: &mut Pending<'a>,
        parameters: &Parameters,
        saved: Option<f64>,
        ema: Option<&Ema>,
    ) -> Result<()> {
        match (saved, ema) {
            (None, None) => Ok(()),
            (Some(decay), None) => Err(self.error(format!("it has an average of the weights with decay {decay}, but none was given; make it with `Ema::new` and pass it"))),
            (None, Some(_)) => Err(self.error("it has no average of the weights, but one was given; pass `None`, and make the `Ema` afterwards: it begins with the weights of the checkpoint")),
            (Some(was), Some(ema)) if was != ema.decay() => Err(self.error(format!("its average of the weights has decay {was}, but the one that was given has {}; make the `Ema` with the same decay", ema.decay()))),
            (Some(_), Some(ema)) => {
                ema.check(parameters)?;
                self.flat(pending, parameters, ema.average(), &|name| moment(EMA, name))
            }
        }
    }

    /// Whether refrain wrote the file.
    pub(super) fn is_of_refrain(&self) -> bool {
        self.state.is_some()
    }

    pub(super) fn error(&self, message: impl Into<String>) -> Error {
        Error::checkpoint(self.file.path(), message)
    }

    pub(super) fn file(&self) -> &TensorFile {
        &self.file
    }

    /// The tensors of the model, checked: all of its names and no others.
    fn model(&self, parameters: &Parameters) -> Result<Pending<'_>> {
        let names = self.file.names();
        let wanted: BTreeSet<&str> = parameters.iter().chain(parameters.buffers()).map(|(n, _)| n).collect();
        let found: BTreeSet<&str> =
            names.iter().map(String::as_str).filter(|name| !name.starts_with(RESERVED)).collect();
        let mut faults = Vec::new();
        for (what, names) in [
            ("the checkpoint lacks", wanted.difference(&found).collect::<Vec<_>>()),
            ("the model lacks", found.difference(&wanted).collect()),
        ] {
            if !names.is_empty() {
                faults.push(format!("{what} {}", list(names.iter().map(|name| format!("`{name}`")))));
            }
        }
        if !faults.is_empty() {
            return Err(self.error(format!(
                "it belongs to another model: {}; build the model with the configuration of the checkpoint",
                faults.join("; ")
            )));
        }
        let mut pending = Pending::default();
        self.flat(&mut pending, parameters, parameters.values(), &|name| name.to_string())?;
        for (name, tensor) in parameters.buffers() {
            let from = self.stored(name, tensor.dtype(), tensor.shape())?;
            pending.add(tensor.clone(), vec![Part { name: name.to_owned(), from, first: 0 }]);
        }
        Ok(pending)
    }

    /// A flat buffer, made of the tensors that `name` names for each parameter.
    fn flat<'a>(
        &'a self,
        pending: &mut Pending<'a>,
        parameters: &Parameters,
        flat: &Tensor,
        name: &dyn Fn(&str) -> String,
    ) -> Result<()> {
        let part = |entry: &Entry| {
            let name = name(&entry.name);
            let from = self.stored(&name, flat.dtype(), entry.tensor.shape())?;
            Ok(Part { name, from, first: entry.segment.offset })
        };
        let parts = parameters.entries().iter().map(part).collect::<Result<Vec<_>>>()?;
        pending.add(flat.clone(), parts);
        Ok(())
    }

    /// A tensor of the file, if it has this dtype and shape.
    fn stored(&self, name: &str, dtype: DType, shape: &Shape) -> Result<FileTensor<'_>> {
        let tensor = self.file.tensor(name).ok_or_else(|| {
            self.error(format!("tensor `{name}` is missing; the file was changed since it was written"))
        })?;
        if tensor.shape() != shape.dims() || tensor.dtype() != bytes::to_format(dtype) {
            return Err(self.error(format!(
                "tensor `{name}` is {:?} {:?} in the checkpoint and {dtype} {shape} in the model; build the model with the configuration of the checkpoint",
                tensor.dtype(),
                tensor.shape()
            )));
        }
        Ok(tensor)
    }
}

/// The first names, and how many there are besides.
pub(super) fn list(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(LISTED);
    let listed: Vec<String> = names.take(LISTED).collect();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", listed.join(", "))
}

/// The part of a state that is read before its version is known.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn not_understood(e: serde_json::Error) -> String {
    format!(
        "its configuration cannot be read ({e}); another version of refrain wrote it, or it was changed since"
    )
}

/// The checksum that the file should have.
fn sum(state: &str, version: u32, file: &TensorFile) -> Result<String> {
    let mut names = file.names();
    if version < 3 {
        names.sort();
    }
    let mut sum = Checksum::new(state, names.len());
    let mut piece = Vec::new();
    for (name, tensor) in names.iter().filter_map(|name| Some((name, file.tensor(name)?))) {
        sum.tensor(name, tensor.dtype(), tensor.shape(), tensor.bytes());
        for first in (0..tensor.bytes()).step_by(PIECE) {
            piece.resize(PIECE.min(tensor.bytes() - first), 0);
            tensor.read(first, &mut piece)?;
            sum.values(&piece);
        }
    }
    Ok(sum.finish())
}

/// Where the descriptions of two optimisers differ, such as `options.eps`, with both values. Those of two kinds differ as a whole.
fn differences<'a>(name: &str, saved: &'a Value, current: &'a Value) -> Vec<(String, &'a Value, &'a Value)> {
    match (saved, current) {
        _ if saved == current => Vec::new(),
        (Value::Object(a), Value::Object(b)) if a.get("kind") == b.get("kind") => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            let full = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
            let of =
                |map: &'a serde_json::Map<String, Value>, key: &str| map.get(key).unwrap_or(&Value::Null);
            keys.into_iter().flat_map(|key| differences(&full(key), of(a, key), of(b, key))).collect()
        }
        _ => vec![(if name.is_empty() { "the optimiser" } else { name }.to_owned(), saved, current)],
    }
}
