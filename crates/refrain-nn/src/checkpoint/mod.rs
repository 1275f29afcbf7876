//! Checkpoints: everything that a run needs to continue, in a folder with two files.
//!
//! `model.safetensors` has everything:
//!
//! - the parameters and buffers, under their names;
//! - the state of the optimiser, under `optimizer.` (`optimizer.step`, `optimizer.groups`,
//!   `optimizer.exp_avg.<parameter>`, ...);
//! - the configuration and state as JSON, under the metadata key `refrain`;
//! - a checksum over all of these, under the metadata key `refrain.sha256`, which loading verifies.
//!
//! `config.json` has the same JSON for people and other programs; loading does not read it. `model.safetensors` is
//! written to a temporary file and then renamed, so after a crash at any moment you have either the checkpoint before
//! or the one after.
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
mod weights;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use refrain::{DType, Generator, Shape};
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use atomic::{is_leftover, remove_leftovers, write_atomic};
use digest::digest;
pub use load::Checkpoint;
pub use weights::{INDEX, LoadOptions, Unmatched, Weights};

use crate::error::{Error, Result};
use crate::optim::Optimizer;
use crate::parameters::{Entry, Parameters, RESERVED};

/// The file with the tensors.
pub const TENSORS: &str = "model.safetensors";
/// The file with the JSON for people and other programs.
pub const CONFIG: &str = "config.json";

/// About how many tensors a checkpoint can have: the header of a safetensors file may have at most 100 MB.
pub const MOST_TENSORS: u64 = 750_000;

/// The metadata key of the JSON in the file with the tensors.
const METADATA: &str = "refrain";
/// The metadata key of the checksum.
const CHECKSUM: &str = "refrain.sha256";
/// The version of the format that this code writes. It also reads version 1, which had no checksum.
const VERSION: u32 = 2;

/// What to save.
pub struct Snapshot<'a> {
    /// The model.
    pub parameters: &'a Parameters,
    /// The optimiser, if training will continue.
    pub optimizer: Option<&'a dyn Optimizer>,
    /// The generators that training draws from, each under a name.
    pub generators: &'a [(&'a str, &'a Generator)],
    /// What the caller needs to rebuild the model and continue: configuration, epoch, best loss, ...
    pub config: Value,
}

/// The JSON under the metadata key `refrain`.
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

/// The name under which the part of flat buffer `buffer` that belongs to a parameter is saved.
fn moment(buffer: &str, parameter: &str) -> String {
    format!("{RESERVED}{buffer}.{parameter}")
}

fn step_name() -> String {
    format!("{RESERVED}step")
}

fn groups_name() -> String {
    format!("{RESERVED}groups")
}

/// For each parameter the decay factor, the rate factor and whether it is trained: f64 `[S, 3]`.
fn groups(parameters: &Parameters) -> Result<Stored> {
    let segments = parameters.segments().segments()?;
    let settings: Vec<f64> =
        segments.iter().flat_map(|s| [s.decay_factor, s.rate_factor, s.trainable as u8 as f64]).collect();
    let bytes = settings.iter().flat_map(|v| v.to_le_bytes()).collect();
    Ok(Stored { dtype: DType::F64, shape: [segments.len(), 3].into(), bytes })
}

/// Writes a checkpoint into `folder`, and creates the folder if needed. An older checkpoint stays complete until the
/// new one replaces it.
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
    let file = serialize(&path, &tensors, |views| {
        let state_text = text(false)?;
        let checksum = digest(&state_text, views.iter().map(|(name, view)| (name.as_str(), view)).collect());
        Ok(HashMap::from([(METADATA.to_string(), state_text), (CHECKSUM.to_string(), checksum)]))
    })?;
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    write_atomic(&path, &file)?;
    write_atomic(&folder.join(CONFIG), (text(true)? + "\n").as_bytes())
}

/// The bytes of a safetensors file. `metadata` gets what the file will have. `path` is for errors.
fn serialize(
    path: &Path,
    tensors: &BTreeMap<String, Stored>,
    metadata: impl FnOnce(&[(&String, TensorView<'_>)]) -> Result<HashMap<String, String>>,
) -> Result<Vec<u8>> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, t) in tensors {
        if let Some((element, value)) = bytes::not_finite(bytes::to_format(t.dtype), &t.bytes) {
            let message = format!(
                "element {element} of `{name}` is {value}, so nothing was written; lower the learning rate, or clip the gradient norm"
            );
            return Err(Error::checkpoint(path, message));
        }
        let view = TensorView::new(bytes::to_format(t.dtype), t.shape.to_vec(), &t.bytes);
        views.push((name, view.map_err(|e| Error::checkpoint(path, format!("tensor `{name}`: {e}")))?));
    }
    let metadata = metadata(&views)?;
    safetensors::serialize(views, Some(metadata))
        .map_err(|e| Error::checkpoint(path, format!("it cannot be written in the safetensors format: {e}")))
}

/// A part of `flat` for each parameter, under the name that `name` makes of the parameter's.
fn runs(
    parameters: &Parameters,
    flat: &refrain::Tensor,
    name: impl Fn(&str) -> String,
) -> Result<Vec<(String, Stored)>> {
    let (whole, size) = (bytes::read(flat)?, flat.dtype().size());
    let run = |entry: &Entry| {
        let run = entry.segment.offset * size..(entry.segment.offset + entry.segment.length) * size;
        let shape = entry.tensor.shape().clone();
        (name(&entry.name), Stored { dtype: flat.dtype(), shape, bytes: whole[run].to_vec() })
    };
    Ok(parameters.entries().iter().map(run).collect())
}

/// Parameters and buffers under their names.
fn model_tensors(parameters: &Parameters) -> Result<BTreeMap<String, Stored>> {
    let mut tensors = BTreeMap::new();
    tensors.extend(runs(parameters, parameters.values(), str::to_owned)?);
    for (name, t) in parameters.buffers() {
        let stored = Stored { dtype: t.dtype(), shape: t.shape().clone(), bytes: bytes::read(t)? };
        tensors.insert(name.to_string(), stored);
    }
    Ok(tensors)
}

fn collect(snapshot: &Snapshot<'_>) -> Result<(BTreeMap<String, Stored>, State)> {
    let parameters = snapshot.parameters;
    let mut tensors = model_tensors(parameters)?;
    for (buffer, flat) in snapshot.optimizer.iter().flat_map(|o| o.buffers()) {
        tensors.extend(runs(parameters, flat, |name| moment(buffer, name))?);
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
