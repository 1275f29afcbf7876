//! Reads a checkpoint. Everything is checked before any tensor is changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use refrain::{DType, Generator, Shape, Tensor};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{
    CHECKSUM, METADATA, State, TENSORS, VERSION, bytes, digest, groups, groups_name, moment, step_name,
};
use crate::error::{Error, Result};
use crate::optim::Optimizer;
use crate::parameters::{ModelSize, Parameters, RESERVED};

/// How many problems of one kind an error message lists.
const LISTED: usize = 4;

/// A checkpoint that was read and verified.
pub struct Checkpoint {
    path: PathBuf,
    file: Vec<u8>,
    /// `None` if the file was not written by refrain.
    state: Option<State>,
    unverified: Option<&'static str>,
}

/// A tensor that will be written after all checks.
struct Pending {
    tensor: Tensor,
    bytes: Vec<u8>,
}

impl Checkpoint {
    /// Reads the checkpoint in `folder` and verifies its checksum.
    ///
    /// # Errors
    /// If there is none, or it cannot be read, is truncated, was changed since it was written, or was not written by
    /// refrain.
    pub fn open(folder: impl AsRef<Path>) -> Result<Checkpoint> {
        let checkpoint = Checkpoint::open_file(folder.as_ref().join(TENSORS))?;
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
        let path = path.as_ref().to_owned();
        let refuse = |message: String| Error::checkpoint(&path, message);
        // A device such as /dev/zero has no end.
        if path.metadata().is_ok_and(|it| !it.is_file()) {
            return Err(refuse(
                "it is not a file; pass the path of a safetensors file, or the folder that a checkpoint was written to".to_owned(),
            ));
        }
        let file = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let broken = |e| {
            refuse(format!(
                "not a whole safetensors file ({e}): it is cut off or not a safetensors file; copy it again, or use an earlier checkpoint"
            ))
        };
        let (_, metadata) = SafeTensors::read_metadata(&file).map_err(broken)?;
        let texts = metadata.metadata().as_ref();
        let text = |key: &str| texts.and_then(|texts| texts.get(key)).map(String::as_str);
        let (state, unverified) = match text(METADATA) {
            None => (None, Some("it was not written by refrain, so it has no checksum")),
            Some(state) => {
                let Version { version } =
                    serde_json::from_str(state).map_err(|e| refuse(not_understood(e)))?;
                if !(1..=VERSION).contains(&version) {
                    return Err(refuse(format!(
                        "it has version {version} of the format, but this library reads versions 1 to {VERSION}; use the version of refrain that wrote it"
                    )));
                }
                let checksum = text(CHECKSUM);
                let tensors = SafeTensors::deserialize(&file).map_err(broken)?;
                if (version > 1 || checksum.is_some()) && checksum != Some(&sum(state, &tensors)) {
                    let message = "its checksum differs, so it was changed since it was written; copy it again, or use an earlier checkpoint";
                    return Err(refuse(message.to_owned()));
                }
                let before = "it was written before checkpoints had checksums";
                let state = serde_json::from_str(state).map_err(|e| refuse(not_understood(e)))?;
                (Some(state), checksum.is_none().then_some(before))
            }
        };
        Ok(Checkpoint { path, file, state, unverified })
    }

    /// If the content could not be verified: the reason, as a warning for the user.
    pub fn unverified(&self) -> Option<String> {
        let why = self.unverified?;
        Some(format!("{}: {why}, and changes since then cannot be detected", self.path.display()))
    }

    /// Checks that a model has as many tensors and numbers as the checkpoint. Call this before you allocate the
    /// model, because its settings may come from a file that somebody changed.
    ///
    /// # Errors
    /// If it has not. The message has both numbers.
    pub fn check_size(&self, model: ModelSize) -> Result<()> {
        let file = self.tensors()?;
        let names = file.names().into_iter().filter(|name| !name.starts_with(RESERVED));
        let (mut tensors, mut numbers) = (0u64, 0u128);
        for view in names.filter_map(|name| file.tensor(name).ok()) {
            tensors += 1;
            numbers += view.shape().iter().map(|&size| size as u128).product::<u128>();
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
                &self.path,
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

    /// Copies the values of the checkpoint into the parameters and buffers of a model.
    ///
    /// # Errors
    /// If names, shapes or dtypes differ, or a number is not finite. Then nothing is changed.
    pub fn load(&self, parameters: &Parameters) -> Result<()> {
        write(self.model(parameters)?)
    }

    /// Restores everything that training needs to continue bit for bit as if it had not stopped: the model, the state
    /// of the optimiser, and all generators, under the names that they were saved with.
    ///
    /// # Errors
    /// If names, shapes or dtypes differ, a number is not finite, the optimiser is of another kind or has other
    /// hyper-parameters, schedule or groups, or the generators have other names. Then nothing is changed.
    pub fn resume(
        &self,
        parameters: &Parameters,
        optimizer: &dyn Optimizer,
        generators: &[(&str, &Generator)],
    ) -> Result<()> {
        let mut pending = self.model(parameters)?;
        let state = self.state()?;
        let Some(saved) = &state.optimizer else {
            return Err(self.error("it has no optimiser state, so training cannot continue from it; load the model alone and start a new run"));
        };
        let current = optimizer.describe();
        if *saved != current {
            return Err(self.error(format!(
                "it was written with the optimiser {saved}, but the current one is {current}; use the same one, or load the model alone and start a new run"
            )));
        }
        let file = self.tensors()?;
        if self.stored(&file, &groups_name(), DType::F64, &[parameters.entries().len(), 3].into())?
            != groups(parameters)?.bytes
        {
            return Err(self.error("decay factors, rate factors or frozen parameters differ from those of the run; set the same groups, or load the model alone and start a new run"));
        }
        for (buffer, flat) in optimizer.buffers() {
            pending.push(self.flat(&file, parameters, flat, &|name| moment(buffer, name))?);
        }
        let step = optimizer.step_state().step();
        let stored = self.stored(&file, &step_name(), step.dtype(), step.shape())?;
        if stored != state.steps.to_le_bytes() {
            return Err(self.error(format!("its configuration says {} steps, but its optimiser has another number; the file was changed since it was written", state.steps)));
        }
        pending.push(Pending { tensor: step.clone(), bytes: stored.to_vec() });

        let given: BTreeSet<&str> = generators.iter().map(|(name, _)| *name).collect();
        let kept: BTreeSet<&str> = state.generators.keys().map(String::as_str).collect();
        if given != kept {
            return Err(self.error(format!(
                "it has the generators {kept:?}, but {given:?} were given; use the same names"
            )));
        }
        write(pending)?;
        for (name, generator) in generators {
            if let Some(saved) = state.generators.get(*name) {
                generator.set_state(saved.seed, saved.offset)?;
            }
        }
        Ok(())
    }

    /// Whether refrain wrote the file.
    pub(super) fn is_of_refrain(&self) -> bool {
        self.state.is_some()
    }

    pub(super) fn error(&self, message: impl Into<String>) -> Error {
        Error::checkpoint(&self.path, message)
    }

    pub(super) fn tensors(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.file)
            .map_err(|e| self.error(format!("not a whole safetensors file ({e})")))
    }

    /// The tensors of the model, checked: all of its names and no others.
    fn model(&self, parameters: &Parameters) -> Result<Vec<Pending>> {
        let file = self.tensors()?;
        let wanted: BTreeSet<&str> = parameters.iter().chain(parameters.buffers()).map(|(n, _)| n).collect();
        let found: BTreeSet<&str> =
            file.names().into_iter().filter(|name| !name.starts_with(RESERVED)).collect();
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
        let mut pending = vec![self.flat(&file, parameters, parameters.values(), &|name| name.to_string())?];
        for (name, tensor) in parameters.buffers() {
            let stored = self.stored(&file, name, tensor.dtype(), tensor.shape())?;
            pending.push(Pending { tensor: tensor.clone(), bytes: stored.to_vec() });
        }
        Ok(pending)
    }

    /// A flat buffer, assembled from the tensors that `name` names for each parameter.
    fn flat(
        &self,
        file: &SafeTensors<'_>,
        parameters: &Parameters,
        flat: &Tensor,
        name: &dyn Fn(&str) -> String,
    ) -> Result<Pending> {
        let size = flat.dtype().size();
        let mut bytes = vec![0u8; flat.numel() * size];
        for entry in parameters.entries() {
            let stored = self.stored(file, &name(&entry.name), flat.dtype(), entry.tensor.shape())?;
            bytes[entry.segment.offset * size..][..stored.len()].copy_from_slice(stored);
        }
        Ok(Pending { tensor: flat.clone(), bytes })
    }

    /// The bytes of a tensor of the file, if it has this dtype and shape.
    fn stored<'a>(
        &self,
        file: &SafeTensors<'a>,
        name: &str,
        dtype: DType,
        shape: &Shape,
    ) -> Result<&'a [u8]> {
        let view = file.tensor(name).map_err(|_| {
            self.error(format!("tensor `{name}` is missing; the file was changed since it was written"))
        })?;
        if view.shape() != shape.dims() || view.dtype() != bytes::to_format(dtype) {
            return Err(self.error(format!(
                "tensor `{name}` is {:?} {:?} in the checkpoint and {dtype} {shape} in the model; build the model with the configuration of the checkpoint",
                view.dtype(),
                view.shape()
            )));
        }
        if let Some((element, value)) = bytes::not_finite(view.dtype(), view.data()) {
            return Err(self.error(format!(
                "element {element} of tensor `{name}` is {value}; training diverged or the file was changed; use an earlier checkpoint"
            )));
        }
        Ok(view.data())
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
fn sum(state: &str, tensors: &SafeTensors<'_>) -> String {
    let tensors = tensors.tensors();
    digest(state, tensors.iter().map(|(name, view)| (name.as_str(), view)).collect())
}

fn write(pending: Vec<Pending>) -> Result<()> {
    pending.into_iter().try_for_each(|p| bytes::write(&p.tensor, &p.bytes))
}
