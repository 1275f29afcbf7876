//! `cargo xtask kernels`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rayon::prelude::*;

/// What became of one text for one architecture.
struct Outcome {
    name: String,
    architecture: String,
    /// The compiler's messages, if it refused.
    failure: Option<String>,
    /// Bytes that registers are spilled to memory in.
    spilled: usize,
}

/// Compiles every text for `all`, and for `sample` one text of each kernel; a failure, or more than `spill` bytes of
/// spilled registers, is an error.
pub fn compile(folder: &Path, all: &[String], sample: &[String], spill: usize) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "cu"));
    files.sort();
    if files.is_empty() {
        bail!("no kernels in {}: run the tests with REFRAIN_KERNELS={0} first", folder.display());
    }
    // The last part of a name is the hash of the text; what is before it names source and entry.
    let mut first: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in &files {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let kernel = stem.rsplit_once('-').map_or(stem.clone(), |(kernel, _)| kernel.to_owned());
        first.entry(kernel).or_insert_with(|| file.clone());
    }
    let jobs: Vec<(&PathBuf, &String)> = files
        .iter()
        .flat_map(|f| all.iter().map(move |a| (f, a)))
        .chain(first.values().flat_map(|f| sample.iter().map(move |a| (f, a))))
        .collect();
    let outcomes = jobs
        .par_iter()
        .map(|(file, architecture)| one(file, architecture))
        .collect::<anyhow::Result<Vec<_>>>()?;
    for outcome in &outcomes {
        if let Some(failure) = &outcome.failure {
            eprintln!("{} for {}:\n{failure}", outcome.name, outcome.architecture);
        } else if outcome.spilled > spill {
            eprintln!("{} for {}: {} bytes spilled", outcome.name, outcome.architecture, outcome.spilled);
        }
    }
    let failed = outcomes.iter().filter(|o| o.failure.is_some()).count();
    let spilling = outcomes.iter().filter(|o| o.spilled > spill).count();
    println!(
        "{} texts of {} kernels: {} compilations, {failed} failed, {spilling} spill more than {spill} bytes",
        files.len(),
        first.len(),
        outcomes.len()
    );
    if failed + spilling > 0 {
        bail!("{failed} compilations failed, {spilling} spill registers");
    }
    Ok(())
}

fn one(file: &Path, architecture: &str) -> anyhow::Result<Outcome> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let name = text.lines().next().unwrap_or_default().trim_start_matches("// ").to_owned();
    let outcome =
        |failure, spilled| Outcome { name, architecture: architecture.to_owned(), failure, spilled };
    Ok(match refrain::compile_kernel(&text, architecture) {
        Ok(log) => outcome(None, spilled(&log)),
        Err(failure) => outcome(Some(failure), 0),
    })
}

/// The largest spill that the assembler's messages tell of: "8 bytes spill stores".
fn spilled(log: &str) -> usize {
    let before = |marker: &str| {
        log.match_indices(marker).filter_map(|(i, _)| log[..i].split_whitespace().last()?.parse().ok()).max()
    };
    before(" bytes spill stores").unwrap_or(0)
}
