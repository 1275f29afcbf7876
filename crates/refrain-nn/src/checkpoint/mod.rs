//! Checkpoints: everything that a run needs to continue, in a folder with two files.
//!
//! `model.safetensors` has everything:
//!
//! - the parameters and buffers, under their names;
//! - the state of the optimiser, under `optimizer.` (`optimizer.step`, `optimizer.groups`,
//!   `optimizer.exp_avg.<parameter>`, ...);
//! - the average of the weights, if there is one, as `optimizer.ema.<parameter>`;
//! - the configuration and state as JSON, under the metadata key `refrain`;
//! - a checksum over all of these, under the metadata key `refrain.sha256`, which loading verifies.
//!
//! `config.json` has the same JSON for people and other programs; loading does not read it. `model.safetensors` is
//! written to a temporary file and then renamed, so after a crash at any moment you have either the checkpoint before
//! or the one after.
//!
//! ```json
//! {
//!   "version": 3,
//!   "config": { "whatever": "the caller gave" },
//!   "steps": 1200,
//!   "optimizer": { "kind": "adamw", "options": {}, "schedule": {}, "clip_grad_norm": 1.0 },
//!   "generators": { "training": { "seed": 42, "offset": 7700 } },
//!   "ema": { "decay": 0.999 }
//! }
//! ```

mod atomic;
mod bytes;
mod checksum;
mod file;
mod load;
mod pending;
mod weights;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use refrain::{Device, Generator, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use atomic::{is_leftover, remove_leftovers, write_atomic};
pub use load::Checkpoint;
pub use weights::{INDEX, LoadOptions, Unmatched, Weights};
use write::{Stored, Values, write_tensors};

use crate::ema::Ema;
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
/// The version of the format that this code writes. It also reads version 1, which had no checksum, and version 2, whose
/// checksum had another order.
const VERSION: u32 = 3;

/// What to save.
pub struct Snapshot<'a> {
    /// The model.
    pub parameters: &'a Parameters,
    /// The optimiser, if training will continue.
    pub optimizer: Option<&'a dyn Optimizer>,
    /// The generators that training draws from, each under a name.
    pub generators: &'a [(&'a str, &'a Generator)],
    /// The average of the weights, if training keeps one.
    pub ema: Option<&'a Ema>,
    /// What the caller needs to rebuild the model and continue: configuration, epoch, best loss, ...
    pub config: Value,
}

/// The JSON under the metadata key `refrain`.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: u32,
    config: Value,
    steps: i64,
    /// Steps that the optimiser skipped because gradients were not finite.
    #[serde(default)]
    skipped_steps: i64,
    optimizer: Option<Value>,
    generators: BTreeMap<String, GeneratorState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ema: Option<EmaState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct GeneratorState {
    seed: u64,
    offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct EmaState {
    decay: f64,
}

/// The name of the average among the flat buffers of a checkpoint.
const EMA: &str = "ema";

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

/// Numbers of a parameter's group.
const SETTINGS: usize = 3;

/// For each parameter the decay factor, the rate factor and whether it is trained: f64 `[S, 3]`, on the host.
fn groups(parameters: &Parameters) -> Result<Tensor> {
    let segments = parameters.segments().segments()?;
    let settings: Vec<f64> =
        segments.iter().flat_map(|s| [s.decay_factor, s.rate_factor, s.trainable as u8 as f64]).collect();
    Ok(Tensor::from_slice(&settings, [segments.len(), SETTINGS], &Device::cpu())?)
}

/// Writes a checkpoint into `folder`, and creates the folder if needed. An older checkpoint stays complete until the
/// new one replaces it. The values are read from the device in pieces of at most 64 MiB.
///
/// # Errors
/// If a number is not finite, the average is of other parameters, the folder or its files cannot be written, or the
/// device cannot be read.
pub fn save(folder: impl AsRef<Path>, snapshot: &Snapshot<'_>) -> Result<()> {
    let folder = folder.as_ref();
    let path = folder.join(TENSORS);
    let (tensors, state) = collect(snapshot)?;
    let unwritable =
        |e| Error::checkpoint(&path, format!("the configuration cannot be written as JSON: {e}"));
    let text = serde_json::to_string(&state).map_err(unwritable)?;
    let pretty = serde_json::to_string_pretty(&state).map_err(unwritable)? + "\n";
    std::fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    write_tensors(&path, tensors, HashMap::from([(METADATA.to_string(), text.clone())]), Some(&text))?;
    write_atomic(&folder.join(CONFIG), pretty.as_bytes())
}

/// A part of `flat` for each parameter, under the name that `name` makes of the parameter's.
fn runs(
    parameters: &Parameters,
    flat: &Tensor,
    name: impl Fn(&str) -> String,
) -> Result<Vec<(String, Stored)>> {
    let values = Values::new(flat)?;
    let run =
        |entry: &Entry| (name(&entry.name), Stored::run(&values, entry.segment.offset, entry.tensor.shape()));
    Ok(parameters.entries().iter().map(run).collect())
}

/// Parameters and buffers under their names.
fn model_tensors(parameters: &Parameters) -> Result<BTreeMap<String, Stored>> {
    let mut tensors = BTreeMap::new();
    tensors.extend(runs(parameters, parameters.values(), str::to_owned)?);
    for (name, t) in parameters.buffers() {
        tensors.insert(name.to_string(), Stored::of(t)?);
    }
    Ok(tensors)
}

fn collect(snapshot: &Snapshot<'_>) -> Result<(BTreeMap<String, Stored>, State)> {
    let parameters = snapshot.parameters;
    let mut tensors = model_tensors(parameters)?;
    for (buffer, flat) in snapshot.optimizer.iter().flat_map(|o| o.buffers()) {
        tensors.extend(runs(parameters, flat, |name| moment(buffer, name))?);
    }
    if let Some(ema) = snapshot.ema {
        ema.check(parameters)?;
        tensors.extend(runs(parameters, ema.average(), |name| moment(EMA, name))?);
    }
    let (mut steps, mut skipped_steps) = (0, 0);
    if let Some(optimizer) = snapshot.optimizer {
        let state = optimizer.step_state();
        let step = state.step();
        steps = step.to_scalar::<i64>()?;
        skipped_steps = state.skipped().map_or(Ok(0), Tensor::to_scalar::<i64>)?;
        tensors.insert(step_name(), Stored::of(step)?);
        tensors.insert(groups_name(), Stored::of(&groups(parameters)?)?);
    }
    let mut generators = BTreeMap::new();
    for (name, generator) in snapshot.generators {
        let (seed, offset) = generator.state()?;
        generators.insert(name.to_string(), GeneratorState { seed, offset });
    }
    let optimizer = snapshot.optimizer.map(|o| o.describe());
    Ok((
        tensors,
        State {
            version: VERSION,
            config: snapshot.config.clone(),
            steps,
            skipped_steps,
            optimizer,
            generators,
            ema: snapshot.ema.map(|ema| EmaState { decay: ema.decay() }),
        },
    ))
}
