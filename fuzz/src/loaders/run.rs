//! Run folders, as changes to a whole one. A line is a change:
//!
//! ```text
//! best set /config/data/season 0       # a value of the state (`latest`: that of checkpoint/), as JSON; `both` is of both
//! best remove /config/data/step
//! best fill head.weight nan            # a tensor's elements, of any dtype; `element` changes the first
//! best shape head.weight 3,4           # with zeros
//! best drop head.weight
//! best byte 1234 255                   # after the checksum was made
//! best cut 100
//! best checksum none                   # as before there were any; `stale`: that of the whole run; else it is made anew
//! best refused                         # nothing more: to be taken is a fault
//! ```

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use refrain_forecast::data::series::Series;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::message;
use crate::random::Random;

/// Tensors by name: dtype, shape, bytes.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Tensors that can be changed.
pub fn owned(file: &SafeTensors<'_>) -> Tensors {
    let of = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    file.tensors().into_iter().map(of).collect()
}

/// The two checkpoints of a run, within its folder.
const FILES: [(&str, &str); 2] = [("best", "model.safetensors"), ("latest", "checkpoint/model.safetensors")];

/// A checkpoint taken to parts.
#[derive(Clone)]
struct Parts {
    bytes: Vec<u8>,
    state: Value,
    tensors: Tensors,
    checksum: String,
}

/// A run that is whole, and the folder in which it is changed.
pub struct Whole {
    folder: PathBuf,
    parts: [Parts; 2],
}

impl Whole {
    /// Reads the run in a folder, where it will be changed.
    pub fn read(folder: PathBuf) -> Result<Whole, String> {
        let [best, latest] = FILES.map(|(_, file)| -> Result<Parts, String> {
            let bytes = std::fs::read(folder.join(file)).map_err(|e| e.to_string())?;
            let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| e.to_string())?;
            let texts = metadata.metadata().clone().unwrap_or_default();
            let state = serde_json::from_str(&texts["refrain"]).map_err(|e| e.to_string())?;
            let tensors = owned(&SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?);
            let checksum = texts["refrain.sha256"].clone();
            match checksum == digest(&texts["refrain"], &tensors, &metadata.offset_keys()) {
                true => Ok(Parts { bytes, state, tensors, checksum }),
                false => Err(format!("{file}: the checksum is not what its description says")),
            }
        });
        Ok(Whole { folder, parts: [best?, latest?] })
    }

    /// What made it.
    pub fn config(&self) -> &Value {
        &self.parts[0].state["config"]
    }

    /// The file of its best weights.
    pub fn weights(&self) -> Vec<u8> {
        self.parts[0].bytes.clone()
    }

    /// Some changes.
    pub fn random(&self, random: &mut Random) -> Vec<u8> {
        let lines = (0..1 + random.below(3)).map(|_| self.random_line(random)).collect::<Vec<_>>();
        lines.join("\n").into_bytes()
    }

    fn random_line(&self, random: &mut Random) -> String {
        let which = random.below(2);
        let (name, parts) = (FILES[which].0, &self.parts[which]);
        let mut pointers = Vec::new();
        leaves(&parts.state, String::new(), &mut pointers);
        let tensors: Vec<&String> = parts.tensors.keys().collect();
        let tensor = tensors[random.below(tensors.len())];
        match random.below(12) {
            0..6 => {
                let pointer = &pointers[random.below(pointers.len())];
                // What made the run stands in both, at other places.
                match (
                    pointer.strip_prefix("/config/run").or(pointer.strip_prefix("/config")),
                    random.once_in(2),
                ) {
                    (Some(of_run), true)
                        if !of_run.starts_with("/state") && !of_run.starts_with("/loss_") =>
                    {
                        format!("both set /config{of_run} {}", value(random))
                    }
                    _ => format!("{name} set {pointer} {}", value(random)),
                }
            }
            6 => format!("{name} remove {}", pointers[random.below(pointers.len())]),
            7 | 8 => {
                let number = random.of(&["nan", "inf", "-inf", "3e38", "-1e-45", "0", "1", "1e308"]);
                format!("{name} {} {tensor} {number}", random.of(&["fill", "element"]))
            }
            9 => format!(
                "{name} shape {tensor} {}",
                random.of(&["", "0", "1", "3,4", "4,3", "12", "2,2,3", "100000"])
            ),
            10 => format!("{name} drop {tensor}"),
            _ => match random.below(4) {
                0 => format!("{name} byte {} {}", random.below(parts.bytes.len()), random.below(256)),
                1 => format!("{name} cut {}", random.below(parts.bytes.len())),
                2 => format!("{name} checksum stale"),
                _ => format!("{name} checksum none"),
            },
        }
    }

    /// Makes the changes, and uses the run as every command does.
    pub fn check(&self, bytes: &[u8], series: &Series) -> Result<(), String> {
        let text = String::from_utf8_lossy(bytes);
        let of = |which: usize| Change::of(&self.parts[which], FILES[which].0);
        if let Some(line) = text.lines().find(|line| (0..2).all(|which| of(which).make(line).is_none())) {
            return Err(format!("{line:?} is no change of a run"));
        }
        let mut refused = [false; 2];
        for (which, (_, file)) in FILES.iter().enumerate() {
            let mut change = of(which);
            for line in text.lines() {
                let _ = change.make(line);
            }
            refused[which] = change.refused;
            std::fs::write(self.folder.join(file), change.file()?).map_err(|e| e.to_string())?;
        }
        match refrain_cli::readers::results(&self.folder, series) {
            Ok(_) if refused[0] => return Err("the best weights were to be refused".to_owned()),
            Ok(numbers) => {
                if let Some(number) = numbers.iter().find(|number| !number.is_finite()) {
                    return Err(format!("{number} is told as a result"));
                }
            }
            Err(error) => message(&error)?,
        }
        match self.goes_on(series) {
            Ok(()) if refused[1] => Err("the last state was to be refused".to_owned()),
            outcome => outcome,
        }
        .or_else(|fault| match fault.strip_prefix(REFUSED) {
            Some(error) => message(error),
            None => Err(fault),
        })
    }

    /// Goes on with the run, if it can be: what is saved at once is what was loaded.
    fn goes_on(&self, series: &Series) -> Result<(), String> {
        let said = |error: String| format!("{REFUSED}{error}");
        let file = self.folder.join(FILES[1].1);
        let loaded = std::fs::read(&file).map_err(|e| e.to_string())?;
        let mut trainer = refrain_cli::readers::resume(&self.folder, series).map_err(said)?;
        let state = whole_file(&loaded).ok_or("what is no checkpoint was loaded")?;
        trainer
            .save(&self.folder, &state.0["config"]["run"])
            .map_err(|e| format!("it can't be saved again: {e}"))?;
        let saved = std::fs::read(&file).map_err(|e| e.to_string())?;
        let again = whole_file(&saved).ok_or("what was saved is no checkpoint")?;
        if again.1 != state.1 {
            return Err("what was loaded is saved otherwise".to_owned());
        }
        refrain_cli::readers::resume(&self.folder, series)
            .map_err(|e| format!("what was saved is refused: {e}"))?;
        if trainer.is_done() {
            return Ok(());
        }
        trainer.epoch(Duration::ZERO, |_| ControlFlow::Break(())).map_err(|e| said(e.to_string()))?;
        match trainer.save(&self.folder, &state.0["config"]["run"]) {
            Ok(()) => drop(
                refrain_cli::readers::resume(&self.folder, series)
                    .map_err(|e| format!("what was saved after a step is refused: {e}"))?,
            ),
            Err(error) => return Err(said(error.to_string())),
        }
        Ok(())
    }
}

/// How what a command says begins, among faults.
const REFUSED: &str = "refused: ";

/// State and tensors of a file.
fn whole_file(bytes: &[u8]) -> Option<(Value, Tensors)> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).ok()?;
    let state = serde_json::from_str(metadata.metadata().as_ref()?.get("refrain")?).ok()?;
    Some((state, owned(&SafeTensors::deserialize(bytes).ok()?)))
}

/// Where the values of a state stand.
fn leaves(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| leaves(value, format!("{at}/{key}"), all)),
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| leaves(value, format!("{at}/{index}"), all));
        }
        _ => {}
    }
    if !at.is_empty() {
        all.push(at);
    }
}

/// Some JSON.
fn value(random: &mut Random) -> String {
    const VALUES: [&str; 27] = [
        "0",
        "1",
        "2",
        "3",
        "4",
        "6",
        "8",
        "12",
        "-1",
        "0.5",
        "0.0",
        "-0.0",
        "1e308",
        "-1e308",
        "1e-320",
        "65536",
        "16777216",
        "18446744073709551615",
        "9223372036854775807",
        "1e100",
        "null",
        "true",
        "\"\"",
        "\"nan\"",
        "[]",
        "{}",
        "[[[[[[[[]]]]]]]]",
    ];
    match random.once_in(3) {
        true => random.below(40).to_string(),
        false => random.of(&VALUES).to_owned(),
    }
}

/// A checkpoint under change.
struct Change {
    name: &'static str,
    parts: Parts,
    checksum: Checksum,
    bytes: Vec<(usize, u8)>,
    cut: Option<usize>,
    refused: bool,
}

enum Checksum {
    Right,
    Stale,
    Missing,
}

impl Change {
    fn of(parts: &Parts, name: &'static str) -> Change {
        let (parts, checksum) = (parts.clone(), Checksum::Right);
        Change { name, parts, checksum, bytes: Vec::new(), cut: None, refused: false }
    }

    /// Makes the change of a line, if it is one; `None` if it is none or is not of this checkpoint.
    fn make(&mut self, line: &str) -> Option<()> {
        let line = line.split(" #").next().unwrap_or_default();
        let mut words = line.splitn(4, ' ').map(str::trim);
        let (of, what) = (words.next()?, words.next()?);
        if of != self.name && of != "both" {
            return None;
        }
        let (place, value) = (words.next(), words.next().unwrap_or_default());
        let Parts { state, tensors, .. } = &mut self.parts;
        match (what, place) {
            ("refused", None) => self.refused = true,
            ("checksum", Some("none")) => self.checksum = Checksum::Missing,
            ("checksum", Some("stale")) => self.checksum = Checksum::Stale,
            ("cut", Some(length)) => self.cut = Some(length.parse().ok()?),
            ("byte", Some(at)) => self.bytes.push((at.parse().ok()?, value.parse().ok()?)),
            ("drop", Some(tensor)) => drop(tensors.remove(tensor)?),
            ("set" | "remove", Some(pointer)) => {
                // What made the run lies deeper in the last state.
                let deeper = of == "both" && self.name == "latest";
                let pointer =
                    if deeper { pointer.replacen("/config", "/config/run", 1) } else { pointer.to_owned() };
                match what {
                    "set" => *state.pointer_mut(&pointer)? = serde_json::from_str(value).ok()?,
                    _ => {
                        let (parent, key) = pointer.rsplit_once('/')?;
                        match state.pointer_mut(parent)? {
                            Value::Array(values) => {
                                let at = key.parse().ok().filter(|&at: &usize| at < values.len())?;
                                drop(values.remove(at));
                            }
                            parent => drop(parent.as_object_mut()?.remove(key)?),
                        }
                    }
                }
            }
            ("shape", Some(tensor)) => {
                let (dtype, shape, bytes) = tensors.get_mut(tensor)?;
                let new = value.split(',').filter(|size| !size.is_empty()).map(|size| size.parse().ok());
                let new: Vec<usize> = new.collect::<Option<_>>()?;
                let elements = new.iter().try_fold(1usize, |all, &size| all.checked_mul(size))?;
                bytes.resize(elements.min(1 << 20) * dtype.bitsize() / 8, 0);
                *shape = new;
            }
            ("fill" | "element", Some(tensor)) => {
                let (dtype, _, bytes) = tensors.get_mut(tensor)?;
                let number: f64 = value.parse().ok()?;
                let element: Vec<u8> = match *dtype {
                    Dtype::F32 => (number as f32).to_le_bytes().to_vec(),
                    Dtype::F64 => number.to_le_bytes().to_vec(),
                    Dtype::I64 => (number as i64).to_le_bytes().to_vec(),
                    _ => return None,
                };
                let count = if what == "fill" { usize::MAX } else { 1 };
                bytes.chunks_exact_mut(element.len()).take(count).for_each(|to| to.copy_from_slice(&element));
            }
            _ => return None,
        }
        Some(())
    }

    /// The file that it comes to.
    fn file(mut self) -> Result<Vec<u8>, String> {
        if matches!(self.checksum, Checksum::Missing) {
            self.parts.state["version"] = json!(1);
        }
        let Parts { state, tensors, checksum, .. } = &self.parts;
        let text = state.to_string();
        let views = || {
            tensors.iter().filter_map(|(name, (dtype, shape, bytes))| {
                Some((name, TensorView::new(*dtype, shape.clone(), bytes).ok()?))
            })
        };
        let checksum = match self.checksum {
            Checksum::Right => {
                let file = safetensors::serialize(views(), None).map_err(|e| e.to_string())?;
                let (_, metadata) = SafeTensors::read_metadata(&file).map_err(|e| e.to_string())?;
                Some(digest(&text, tensors, &metadata.offset_keys()))
            }
            Checksum::Stale => Some(checksum.clone()),
            Checksum::Missing => None,
        };
        let metadata = [("refrain".to_owned(), text)].into_iter();
        let metadata: HashMap<_, _> =
            metadata.chain(checksum.map(|sum| ("refrain.sha256".to_owned(), sum))).collect();
        let mut file = safetensors::serialize(views(), Some(metadata)).map_err(|e| e.to_string())?;
        for (at, byte) in self.bytes {
            file.get_mut(at).into_iter().for_each(|to| *to = byte);
        }
        file.truncate(self.cut.unwrap_or(usize::MAX));
        Ok(file)
    }
}

/// The checksum, made after its description, of tensors in this order.
fn digest(state: &str, tensors: &Tensors, order: &[String]) -> String {
    let mut hash = Sha256::new();
    let text = |hash: &mut Sha256, bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    text(&mut hash, state.as_bytes());
    hash.update((tensors.len() as u64).to_le_bytes());
    for (name, (dtype, shape, bytes)) in order.iter().filter_map(|name| Some((name, tensors.get(name)?))) {
        text(&mut hash, name.as_bytes());
        text(&mut hash, dtype.to_string().as_bytes());
        hash.update((shape.len() as u64).to_le_bytes());
        shape.iter().for_each(|&size| hash.update((size as u64).to_le_bytes()));
        text(&mut hash, bytes);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
