//! Checkpoints: everything that a run needs to go on, in a folder of two files.
//!
//! `model.safetensors` holds the parameters and buffers under their names, the optimiser's state under
//! `optimizer.` (`optimizer.step`, `optimizer.groups`, `optimizer.exp_avg.<parameter>`, ...) and, as text
//! under the metadata key `refrain`, the JSON of configuration and state. `config.json` holds the same JSON
//! for people and other programs; loading does not read it. So one file is the whole truth, and since it
//! takes its place by being renamed, a crash at any moment leaves the checkpoint before or the one after.
//! Under the metadata key `refrain.sha256` stands a checksum over all of them, which loading verifies.
//!
//! ```json
//! {
//!   "version": 2,
//!   "config": { "whatever": "the caller gave" },
//!   "steps": 1200,
//!   "optimizer": { "kind": "adamw", "options": {}, "schedule": {}, "clip_grad_norm": 1.0 },
//!   "generators": { "training": { "seed": 42, "offset": 7700 } }
//! }
//! ```

mod atomic;
mod bytes;
mod digest;
mod load;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use refrain::{DType, Generator, Shape};
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use atomic::{is_leftover, remove_leftovers, write_atomic};
use digest::digest;
pub use load::Checkpoint;

use crate::error::{Error, Result};
use crate::optim::Optimizer;
use crate::parameters::{Parameters, RESERVED};

/// The file with the tensors.
pub const TENSORS: &str = "model.safetensors";
/// The file with the JSON for people and other programs.
pub const CONFIG: &str = "config.json";

/// About so many tensors a checkpoint can hold: the header of a safetensors file has at most 100 MB.
pub const MOST_TENSORS: u64 = 750_000;

/// The metadata key of the JSON in the file with the tensors.
const METADATA: &str = "refrain";
/// The metadata key of the checksum.
const CHECKSUM: &str = "refrain.sha256";
/// The version of the format that this code writes. Version 1, which it reads as well, had no checksum.
const VERSION: u32 = 2;

/// What a checkpoint keeps.
pub struct Snapshot<'a> {
    /// The model.
    pub parameters: &'a Parameters,
    /// The optimiser, if training is to go on.
    pub optimizer: Option<&'a dyn Optimizer>,
    /// Generators that training draws from, each under a name.
    pub generators: &'a [(&'a str, &'a Generator)],
    /// What the caller needs to build the model again and to go on: configuration, epoch, best loss, ...
    pub config: Value,
}

/// The JSON.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: u32,
    config: Value,
    steps: i64,
    optimizer: Option<Value>,
    generators: BTreeMap<String, GeneratorState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct GeneratorState {
    seed: u64,
    offset: u64,
}

/// A tensor of a checkpoint in host memory.
struct Stored {
    dtype: DType,
    shape: Shape,
    bytes: Vec<u8>,
}

/// The name of the run of flat buffer `buffer` that belongs to a parameter.
fn moment(buffer: &str, parameter: &str) -> String {
    format!("{RESERVED}{buffer}.{parameter}")
}

fn step_name() -> String {
    format!("{RESERVED}step")
}

fn groups_name() -> String {
    format!("{RESERVED}groups")
}

/// Decay factor, rate factor and whether it is trained, of each parameter: f64 `[S, 3]`.
fn groups(parameters: &Parameters) -> Result<Stored> {
    let segments = parameters.segments().segments()?;
    let settings: Vec<f64> =
        segments.iter().flat_map(|s| [s.decay_factor, s.rate_factor, s.trainable as u8 as f64]).collect();
    let bytes = settings.iter().flat_map(|v| v.to_le_bytes()).collect();
    Ok(Stored { dtype: DType::F64, shape: [segments.len(), 3].into(), bytes })
}

/// Writes a checkpoint into `folder`, which is made if need be; what was there stays whole until the new
/// one takes its place.
///
/// # Errors
/// If a number is not finite, the folder or its files cannot be written, or the device cannot be read.
pub fn save(folder: impl AsRef<Path>, snapshot: &Snapshot<'_>) -> Result<()> {
    let folder = folder.as_ref();
    let path = folder.join(TENSORS);
    let (tensors, state) = collect(snapshot)?;
    let text = |pretty: bool| {
        let text = if pretty { serde_json::to_string_pretty(&state) } else { serde_json::to_string(&state) };
        text.map_err(|e| {
            Error::checkpoint(&path, format!("the configuration cannot be written as JSON: {e}"))
        })
    };
    let mut views = Vec::with_capacity(tensors.len());
    for (name, t) in &tensors {
        if let Some((element, value)) = bytes::not_finite(bytes::to_format(t.dtype), &t.bytes) {
            let message = format!(
                "element {element} of `{name}` is {value}, so nothing was written; lower the learning rate, or clip the gradients' norm"
            );
            return Err(Error::checkpoint(&path, message));
        }
        let view = TensorView::new(bytes::to_format(t.dtype), t.shape.to_vec(), &t.bytes);
        views.push((name, view.map_err(|e| Error::checkpoint(&path, format!("tensor `{name}`: {e}")))?));
    }
    let state_text = text(false)?;
    let checksum = digest(&state_text, views.iter().map(|(name, view)| (name.as_str(), view)).collect());
    let metadata = HashMap::from([(METADATA.to_string(), state_text), (CHECKSUM.to_string(), checksum)]);
    let file = safetensors::serialize(views, Some(metadata))
        .map_err(|e| Error::checkpoint(&path, format!("cannot be put into the safetensors format: {e}")))?;
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    write_atomic(&path, &file)?;
    write_atomic(&folder.join(CONFIG), (text(true)? + "\n").as_bytes())
}

fn collect(snapshot: &Snapshot<'_>) -> Result<(BTreeMap<String, Stored>, State)> {
    let parameters = snapshot.parameters;
    let mut tensors = BTreeMap::new();
    let mut runs = |flat: &refrain::Tensor, name: &dyn Fn(&str) -> String| -> Result<()> {
        let (whole, size) = (bytes::read(flat)?, flat.dtype().size());
        for entry in parameters.entries() {
            let run = entry.segment.offset * size..(entry.segment.offset + entry.segment.length) * size;
            let stored = Stored {
                dtype: flat.dtype(),
                shape: entry.tensor.shape().clone(),
                bytes: whole[run].to_vec(),
            };
            tensors.insert(name(&entry.name), stored);
        }
        Ok(())
    };
    runs(parameters.values(), &|name| name.to_string())?;
    for (buffer, flat) in snapshot.optimizer.iter().flat_map(|o| o.buffers()) {
        runs(flat, &|name| moment(buffer, name))?;
    }
    for (name, t) in parameters.buffers() {
        let stored = Stored { dtype: t.dtype(), shape: t.shape().clone(), bytes: bytes::read(t)? };
        tensors.insert(name.to_string(), stored);
    }
    let mut steps = 0;
    if let Some(optimizer) = snapshot.optimizer {
        let step = optimizer.step_state().step();
        steps = step.to_scalar::<i64>()?;
        let stored = Stored { dtype: step.dtype(), shape: step.shape().clone(), bytes: bytes::read(step)? };
        tensors.insert(step_name(), stored);
        tensors.insert(groups_name(), groups(parameters)?);
    }
    let mut generators = BTreeMap::new();
    for (name, generator) in snapshot.generators {
        let (seed, offset) = generator.state()?;
        generators.insert(name.to_string(), GeneratorState { seed, offset });
    }
    let optimizer = snapshot.optimizer.map(|o| o.describe());
    Ok((tensors, State { version: VERSION, config: snapshot.config.clone(), steps, optimizer, generators }))
}
