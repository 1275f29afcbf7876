//! Runs the real binary in its own folder.

#![allow(dead_code)] // Each test file uses its part.

pub mod book;
#[cfg(unix)]
pub mod job;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The output of the binary.
pub struct Said {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    /// The JSON object in the last line of standard output.
    pub fn json(&self) -> serde_json::Value {
        let line =
            self.out.lines().last().unwrap_or_else(|| panic!("nothing on standard output; {}", self.err));
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    #[track_caller]
    pub fn succeeded(self) -> Said {
        assert_eq!(self.status, 0, "{}\n{}", self.out, self.err);
        // Such as that of a recorded step whose last calls nobody checked.
        assert!(!self.err.contains("refrain: warning"), "the engine warns: {}", self.err);
        self
    }

    /// It failed, with a message that has every part.
    #[track_caller]
    pub fn failed(self, parts: &[&str]) -> Said {
        assert!(self.status == 1 || self.status == 2, "status {}: {}\n{}", self.status, self.out, self.err);
        assert!(self.err.contains("error: ") && !self.err.contains("panicked"), "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "no {part:?} in: {}", self.err);
        }
        self
    }
}

/// The fields report so many replays without allocations on the device, and so does the readable line.
#[track_caller]
pub fn tells_of_replays(said: &Said, replays: u64) {
    let json = said.json();
    assert_eq!(json["replays"].as_u64(), Some(replays), "{json}");
    assert_eq!(json["allocations_per_step"].as_f64(), Some(0.0), "{json}");
    let (launches, recording) = (json["launches_per_step"].as_f64(), json["recording_seconds"].as_f64());
    assert!(launches > Some(10.0) && recording > Some(0.0), "{json}");
    let line = said.err.lines().find(|line| line.contains("replayed; recording took"));
    let line = line.unwrap_or_else(|| panic!("no line of replays in {}", said.err));
    assert!(line.starts_with(&format!("{:.0} launches per step, ", launches.unwrap())), "{line}");
    assert!(line.ends_with(&format!(" ms; {replays} replays, 0 storages per step")), "{line}");
}

/// Nothing was recorded, and no line claims it.
#[track_caller]
pub fn tells_of_no_replays(said: &Said) {
    let json = said.json();
    assert_eq!(json["replays"].as_u64(), Some(0), "{json}");
    assert!(json["allocations_per_step"].is_null() && json["recording_seconds"].is_null(), "{json}");
    assert!(!said.err.contains("replay"), "{}", said.err);
}

/// A folder to work in.
pub struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(
            std::env::var_os("CARGO_BIN_EXE_refrain").unwrap_or_else(|| env!("CARGO_BIN_EXE_refrain").into()),
        );
        command.current_dir(self.folder.path()).args(arguments);
        command
    }

    pub fn refrain(&self, arguments: &[&str]) -> Said {
        said(self.command(arguments).output().unwrap())
    }

    /// Every file with its content.
    pub fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        collect(self.folder.path(), &mut files);
        files
    }
}

/// The tensors of a file by name: dtype, shape, bytes.
pub type Tensors = BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)>;

/// Rewrites a checkpoint's file in the format without checksums, with another state or other tensors.
pub fn without_checksum(file: &Path, change: impl FnOnce(&mut serde_json::Value, &mut Tensors)) {
    let bytes = std::fs::read(file).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let mut state: serde_json::Value =
        serde_json::from_str(&metadata.metadata().as_ref().unwrap()["refrain"]).unwrap();
    let views = safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors();
    let owned = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    let mut tensors: Tensors = views.into_iter().map(owned).collect();
    state["version"] = serde_json::json!(1);
    change(&mut state, &mut tensors);
    let written = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, safetensors::tensor::TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let metadata = HashMap::from([("refrain".to_owned(), state.to_string())]);
    std::fs::write(file, safetensors::serialize(written, Some(metadata)).unwrap()).unwrap();
}

/// The forecast in a CSV file has the cells of the one that `--json` printed.
#[track_caller]
pub fn same_table(csv: &str, json: &serde_json::Value) {
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(serde_json::json!(lines[0]), json["columns"]);
    assert_eq!(lines.len(), 1 + rows.len());
    for (line, row) in lines[1..].iter().zip(rows) {
        let row = row.as_array().unwrap();
        assert_eq!(line.len(), row.len());
        for (text, cell) in line.iter().zip(row) {
            match cell.as_f64() {
                Some(number) => assert_eq!(text.parse(), Ok(number as f32), "{line:?} and {row:?}"),
                None => assert_eq!(cell, text),
            }
        }
    }
}

pub fn said(output: Output) -> Said {
    Said {
        status: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

fn collect(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => collect(&path, files),
            path => {
                let content = std::fs::read(&path).unwrap();
                files.insert(path, content);
            }
        }
    }
}

/// Hourly rows of two channels with a daily season and some noise.
pub fn series(rows: usize) -> String {
    let mut csv = "time,a,b\n".to_owned();
    for row in 0..rows {
        let noise = |i: usize| ((i * 7919 + i * i * 31) % 1009) as f64 / 1009.0 - 0.5;
        let angle = row as f64 * std::f64::consts::TAU / 24.0;
        let (a, b) = (angle.sin() + 0.1 * noise(row), 20.0 + 5.0 * angle.cos() + noise(row + 7));
        csv += &format!("2020-01-{:02} {:02}:00:00,{a},{b}\n", row / 24 + 1, row % 24);
    }
    csv
}

/// Settings of a model that trains within a second.
pub const TINY: &[&str] = &[
    "--context",
    "24",
    "--horizon",
    "6",
    "--patch",
    "6",
    "--stride",
    "3",
    "--d-model",
    "8",
    "--heads",
    "2",
    "--ffn",
    "16",
    "--layers",
    "1",
    "--batch-size",
    "32",
    "--epochs",
    "2",
];

/// `train` with [`TINY`] and more arguments.
pub fn tiny<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["train"].into_iter().chain(TINY.iter().copied()).chain(more.iter().copied()).collect()
}

/// Settings with many small steps, so that a signal arrives during one.
pub const SMALL_STEPS: &str = "
context = 24
horizon = 6
patch = 6
stride = 3
d-model = 8
heads = 2
ffn = 16
layers = 2
batch-size = 1
epochs = 3
";
