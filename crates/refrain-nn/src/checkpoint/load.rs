//! Reading a checkpoint back: all of it is checked before any of it is used.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use refrain::{DType, Generator, Shape, Tensor};
use safetensors::SafeTensors;
use serde::de::DeserializeOwned;

use super::{METADATA, State, TENSORS, VERSION, bytes, groups, groups_name, moment, step_name};
use crate::error::{Error, Result};
use crate::optim::Optimizer;
use crate::parameters::{Parameters, RESERVED};

/// How many faults of one kind an error lists.
const LISTED: usize = 4;

/// A checkpoint that was read and found whole.
pub struct Checkpoint {
    path: PathBuf,
    file: Vec<u8>,
    state: State,
}

/// A tensor that is to be written once everything has been checked.
struct Pending {
    tensor: Tensor,
    bytes: Vec<u8>,
}

impl Checkpoint {
    /// Reads the checkpoint in `folder`.
    ///
    /// # Errors
    /// If there is none, it cannot be read, is cut off, or was not written by this library.
    pub fn open(folder: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = folder.as_ref().join(TENSORS);
        let file = std::fs::read(&path).map_err(Error::io("read", &path))?;
        let (_, metadata) = SafeTensors::read_metadata(&file).map_err(|e| {
            let message = format!(
                "not a whole safetensors file ({e}): it is cut off or of another kind; use an earlier checkpoint or copy it again"
            );
            Error::checkpoint(&path, message)
        })?;
        let text = metadata.metadata().as_ref().and_then(|m| m.get(METADATA)).ok_or_else(|| {
            let message = "a safetensors file without the configuration that this library keeps in it; use a checkpoint that was written by refrain";
            Error::checkpoint(&path, message)
        })?;
        let state: State = serde_json::from_str(text).map_err(|e| {
            Error::checkpoint(&path, format!("its configuration cannot be understood ({e}); it was written by another version of refrain, or changed since"))
        })?;
        if state.version != VERSION {
            let message = format!(
                "written in version {} of the format, this library reads version {VERSION}; use the library that wrote it",
                state.version
            );
            return Err(Error::checkpoint(&path, message));
        }
        Ok(Checkpoint { path, file, state })
    }

    /// The configuration that [`super::Snapshot`] was given.
    ///
    /// # Errors
    /// If it is not of type `T`.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&self.state.config).map_err(|e| {
            Error::checkpoint(
                &self.path,
                format!(
                    "its configuration is of another kind ({e}); use the command or program that wrote it"
                ),
            )
        })
    }

    /// How many optimiser steps were done.
    pub fn steps(&self) -> i64 {
        self.state.steps
    }

    /// Puts the checkpoint's values into a model's parameters and buffers.
    ///
    /// # Errors
    /// If names, shapes or dtypes differ; nothing is changed then.
    pub fn load(&self, parameters: &Parameters) -> Result<()> {
        write(self.model(parameters)?)
    }

    /// Puts everything back, so that training goes on bit for bit as if it had not stopped: the model, the
    /// optimiser's state, and all generators under the names that they were saved with.
    ///
    /// # Errors
    /// If names, shapes or dtypes differ, the optimiser is of another kind or has other hyper-parameters,
    /// schedule or groups, or the generators have other names; nothing is changed then.
    pub fn resume(
        &self,
        parameters: &Parameters,
        optimizer: &dyn Optimizer,
        generators: &[(&str, &Generator)],
    ) -> Result<()> {
        let mut pending = self.model(parameters)?;
        let Some(saved) = &self.state.optimizer else {
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
        pending.push(Pending { tensor: step.clone(), bytes: stored.to_vec() });

        let given: BTreeSet<&str> = generators.iter().map(|(name, _)| *name).collect();
        let kept: BTreeSet<&str> = self.state.generators.keys().map(String::as_str).collect();
        if given != kept {
            return Err(self.error(format!(
                "it holds the generators {kept:?}, the ones to go on are {given:?}; give the same names"
            )));
        }
        write(pending)?;
        for (name, generator) in generators {
            if let Some(state) = self.state.generators.get(*name) {
                generator.set_state(state.seed, state.offset)?;
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
        Ok(view.data())
    }
}

fn write(pending: Vec<Pending>) -> Result<()> {
    pending.into_iter().try_for_each(|p| bytes::write(&p.tensor, &p.bytes))
}
