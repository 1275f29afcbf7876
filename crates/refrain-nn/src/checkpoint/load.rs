//! Reading a checkpoint back: all of it is checked before any of it is used.

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

/// How many faults of one kind an error lists.
const LISTED: usize = 4;

/// A checkpoint that was read and found whole.
pub struct Checkpoint {
    path: PathBuf,
    file: Vec<u8>,
    /// What a file from elsewhere has not.
    state: Option<State>,
    unverified: Option<&'static str>,
}

/// A tensor that is to be written once everything has been checked.
struct Pending {
    tensor: Tensor,
    bytes: Vec<u8>,
}

impl Checkpoint {
    /// Reads the checkpoint in `folder` and verifies its checksum.
    ///
    /// # Errors
    /// If there is none, it cannot be read, is cut off, is not as it was written, or was not written by this library.
    pub fn open(folder: impl AsRef<Path>) -> Result<Checkpoint> {
        let checkpoint = Checkpoint::open_file(folder.as_ref().join(TENSORS))?;
        checkpoint.state()?;
        Ok(checkpoint)
    }

    /// Reads the weights in a safetensors file, which may come from elsewhere: [`Checkpoint::load`] takes them by their
    /// names. What was not written by this library has no checksum ([`Checkpoint::unverified`]) and no configuration.
    ///
    /// # Errors
    /// If it cannot be read, is cut off, or is not as this library wrote it.
    pub fn open_file(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref().to_owned();
        let refuse = |message: String| Error::checkpoint(&path, message);
        // A device such as /dev/zero has no end.
        if path.metadata().is_ok_and(|it| !it.is_file()) {
            return Err(refuse(
                "it is not a file; use the folder that a checkpoint was written to".to_owned(),
            ));
        }
        let file = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let broken = |e| {
            refuse(format!(
                "not a whole safetensors file ({e}): it is cut off or of another kind; use an earlier checkpoint or copy it again"
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
                        "written in version {version} of the format, this library reads versions 1 to {VERSION}; use the library that wrote it"
                    )));
                }
                let checksum = text(CHECKSUM);
                let tensors = SafeTensors::deserialize(&file).map_err(broken)?;
                if (version > 1 || checksum.is_some()) && checksum != Some(&sum(state, &tensors)) {
                    let message = "it is not as it was written, its checksum differs; use an earlier checkpoint or copy it again";
                    return Err(refuse(message.to_owned()));
                }
                let before = "it was written before checkpoints had checksums";
                let state = serde_json::from_str(state).map_err(|e| refuse(not_understood(e)))?;
                (Some(state), checksum.is_none().then_some(before))
            }
        };
        Ok(Checkpoint { path, file, state, unverified })
    }

    /// Why it is not known whether the content is as it was written, if it is not, for the user to be warned.
    pub fn unverified(&self) -> Option<String> {
        let why = self.unverified?;
        Some(format!("{}: {why}: whether it has changed since cannot be told", self.path.display()))
    }

    /// Refuses a model that has not as many numbers, in as many tensors, as the checkpoint: to be asked before memory for
    /// the model is taken, whose settings may come from a file that was changed.
    ///
    /// # Errors
    /// If it has not, with both numbers.
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
            "its configuration is of a model of {} numbers in {} tensors, and it holds {numbers} in {tensors}; the file was changed since it was written",
            model.parameters + model.buffers,
            model.tensors
        )))
    }

    fn state(&self) -> Result<&State> {
        self.state.as_ref().ok_or_else(|| {
            self.error("a safetensors file without the configuration that this library keeps in it; use a checkpoint that was written by refrain")
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
                    "its configuration is of another kind ({e}); use the command or program that wrote it"
                ),
            )
        })
    }

    /// How many optimiser steps were done, as far as is known.
    pub fn steps(&self) -> i64 {
        self.state.as_ref().map_or(0, |state| state.steps)
    }

    /// Puts the checkpoint's values into a model's parameters and buffers.
    ///
    /// # Errors
    /// If names, shapes or dtypes differ, or a number is not finite; nothing is changed then.
    pub fn load(&self, parameters: &Parameters) -> Result<()> {
        write(self.model(parameters)?)
    }

    /// Puts everything back, so that training goes on bit for bit as if it had not stopped: the model, the
    /// optimiser's state, and all generators under the names that they were saved with.
    ///
    /// # Errors
    /// If names, shapes or dtypes differ, a number is not finite, the optimiser is of another kind or has other
    /// hyper-parameters, schedule or groups, or the generators have other names; nothing is changed then.
    pub fn resume(
        &self,
        parameters: &Parameters,
        optimizer: &dyn Optimizer,
        generators: &[(&str, &Generator)],
    ) -> Result<()> {
        let mut pending = self.model(parameters)?;
        let state = self.state()?;
        let Some(saved) = &state.optimizer else {
            return Err(self.error("it holds no optimiser, so training cannot go on from it; load the model alone and start a new run"));
        };
        let current = optimizer.describe();
        if *saved != current {
            return Err(self.error(format!(
                "it was written by the optimiser {saved}, the one to go on is {current}; make the same one, or load the model alone and start a new run"
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
            return Err(self.error(format!("it claims {} steps, its optimiser has done others; the file was changed since it was written", state.steps)));
        }
        pending.push(Pending { tensor: step.clone(), bytes: stored.to_vec() });

        let given: BTreeSet<&str> = generators.iter().map(|(name, _)| *name).collect();
        let kept: BTreeSet<&str> = state.generators.keys().map(String::as_str).collect();
        if given != kept {
            return Err(self.error(format!(
                "it holds the generators {kept:?}, the ones to go on are {given:?}; give the same names"
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

    fn error(&self, message: impl Into<String>) -> Error {
        Error::checkpoint(&self.path, message)
    }

    fn tensors(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.file)
            .map_err(|e| self.error(format!("not a whole safetensors file ({e})")))
    }

    /// The model's tensors, checked: all of its names and no others.
    fn model(&self, parameters: &Parameters) -> Result<Vec<Pending>> {
        let file = self.tensors()?;
        let wanted: BTreeSet<&str> = parameters.iter().chain(parameters.buffers()).map(|(n, _)| n).collect();
        let found: BTreeSet<&str> =
            file.names().into_iter().filter(|name| !name.starts_with(RESERVED)).collect();
        let mut faults = Vec::new();
        for (what, names) in [
            ("the model has, the checkpoint lacks", wanted.difference(&found).collect::<Vec<_>>()),
            ("the checkpoint has, the model lacks", found.difference(&wanted).collect()),
        ] {
            if !names.is_empty() {
                let more = names.len().saturating_sub(LISTED);
                let listed: Vec<String> = names.iter().take(LISTED).map(|n| format!("`{n}`")).collect();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                faults.push(format!("{what} {}{more}", listed.join(", ")));
            }
        }
        if !faults.is_empty() {
            return Err(self.error(format!(
                "it belongs to another model: {}; build the model with the configuration that the checkpoint holds",
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

    /// A flat buffer put together of the tensors that `name` gives for each parameter.
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

    /// The bytes of a tensor of the file that has this dtype and shape.
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
                "tensor `{name}` is {:?} {:?} in the checkpoint and {dtype} {shape} in the model; build the model with the configuration that the checkpoint holds",
                view.dtype(),
                view.shape()
            )));
        }
        if let Some((element, value)) = bytes::not_finite(view.dtype(), view.data()) {
            return Err(self.error(format!(
                "element {element} of tensor `{name}` is {value}; the training went wrong or the file was changed since, use an earlier checkpoint"
            )));
        }
        Ok(view.data())
    }
}

/// All that is read of a state before its version is known.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

fn not_understood(e: serde_json::Error) -> String {
    format!(
        "its configuration cannot be understood ({e}); it was written by another version of refrain, or changed since"
    )
}

/// The checksum that a file should have.
fn sum(state: &str, tensors: &SafeTensors<'_>) -> String {
    let tensors = tensors.tensors();
    digest(state, tensors.iter().map(|(name, view)| (name.as_str(), view)).collect())
}

fn write(pending: Vec<Pending>) -> Result<()> {
    pending.into_iter().try_for_each(|p| bytes::write(&p.tensor, &p.bytes))
}
