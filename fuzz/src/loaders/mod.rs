//! Data, checkpoints, run folders and settings that may be broken, through everything that reads them: what is refused has
//! a message, and what is taken is sound.

mod run;
mod settings;
mod table;
mod text;
mod weights;

use std::time::Duration;

use refrain_forecast::data::series::{ReadOptions, Series};

use crate::random::Random;
use crate::target::{Input, Limits, Target};

/// The target, and a run that is whole, of which others are made.
pub struct Loaders {
    /// Where inputs are put that are read from files.
    place: tempfile::TempDir,
    series: Series,
    run: run::Whole,
    weights: weights::Model,
}

/// Settings of a run that trains in no time.
const SETTINGS: &str = include_str!("small.toml");

impl Loaders {
    /// Trains the run.
    pub fn new() -> Result<Loaders, String> {
        let place = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (series, _) = Series::from_csv(table::series(120).as_bytes(), "a.csv", &ReadOptions::default())
            .map_err(|e| e.to_string())?;
        let (file, folder) = (place.path().join("small.toml"), place.path().join("run"));
        std::fs::write(&file, SETTINGS).map_err(|e| e.to_string())?;
        refrain_cli::readers::killed_run(&file, &series, &folder)?;
        let run = run::Whole::read(folder)?;
        let weights = weights::Model::of(&run)?;
        Ok(Loaders { place, series, run, weights })
    }
}

/// A message for the user says something, and does not repeat all that the user wrote.
fn message(text: &str) -> Result<(), String> {
    const LONGEST: usize = 4000;
    match text.trim().is_empty() || text.len() > LONGEST {
        true => {
            Err(format!("a message of {} bytes: {}", text.len(), text.chars().take(400).collect::<String>()))
        }
        false => Ok(()),
    }
}

impl Target for Loaders {
    fn name(&self) -> &'static str {
        "loaders"
    }

    fn make(&self, number: u64) -> Input {
        let random = &mut Random::new(number);
        let (kind, bytes) = match random.below(10) {
            0..4 => ("csv", table::random(random)),
            4 | 5 => ("toml", settings::random(random)),
            6 | 7 => ("run", self.run.random(random)),
            _ => ("safetensors", self.weights.random(random)),
        };
        Input { kind: kind.to_string(), bytes }
    }

    fn check(&self, input: &Input) -> Result<(), String> {
        match input.kind.as_str() {
            "csv" => table::check(&input.bytes),
            "toml" => settings::check(&input.bytes, &self.series, self.place.path()),
            "run" => self.run.check(&input.bytes, &self.series),
            "safetensors" => self.weights.check(&input.bytes, self.place.path()),
            kind => Err(format!("nothing reads .{kind}")),
        }
    }

    /// Much more than reading a small file takes on a slow machine.
    fn limits(&self, input: &Input) -> Limits {
        Limits { time: Duration::from_secs(5), bytes: (64 << 20) + (input.bytes.len() << 10) }
    }

    fn smaller(&self, input: &Input) -> Vec<Input> {
        let of = |bytes| Input { kind: input.kind.clone(), bytes };
        text::smaller(&input.bytes, input.kind == "run").into_iter().map(of).collect()
    }
}
