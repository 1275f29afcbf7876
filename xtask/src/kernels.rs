//! `cargo xtask kernels`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::str::FromStr;

use anyhow::{Context, bail};

/// The result of compiling one source for one architecture.
struct Outcome {
    name: String,
    architecture: String,
    /// The compiler's messages, if it failed.
    failure: Option<String>,
    /// Bytes of registers spilled to memory.
    spilled: usize,
}

/// One of several processes: its number, from 0, and the number of processes.
#[derive(Clone, Copy)]
pub struct Share(usize, usize);

impl FromStr for Share {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Share> {
        let (i, n) = text.split_once('/').context("I/N")?;
        Ok(Share(i.parse()?, n.parse()?))
    }
}

/// A source and the architecture to compile it for.
pub type Job = (PathBuf, String);

/// Jobs for each architecture of `all` and every source, but at most `most` of a kernel; and for one source per kernel
/// and each architecture of `sample`.
pub fn jobs(folder: &Path, all: &[String], sample: &[String], most: usize) -> anyhow::Result<Vec<Job>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "cu"));
    files.sort();
    if files.is_empty() {
        bail!("no kernels in {}: run the tests with REFRAIN_KERNELS={0} first", folder.display());
    }
    // The last part of a file name is the hash of the source; the part before it names the file and the entry point.
    let mut kernels: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let kernel = stem.rsplit_once('-').map_or(stem.clone(), |(kernel, _)| kernel.to_owned());
        kernels.entry(kernel).or_default().push(file);
    }
    let pairs = |file: &PathBuf, architectures: &[String]| -> Vec<Job> {
        architectures.iter().map(|architecture| (file.clone(), architecture.clone())).collect()
    };
    let mut jobs = Vec::new();
    for files in kernels.values() {
        let count = files.len().min(most.max(1));
        // Sorted by their hashes, so these are a random choice.
        jobs.extend((0..count).flat_map(|i| pairs(&files[i * files.len() / count], all)));
        jobs.extend(pairs(&files[0], sample));
    }
    Ok(jobs)
}

/// Runs this command as one process per processor, so that older versions of NVRTC also compile side by side.
pub fn share_out(jobs: usize) -> anyhow::Result<()> {
    let processes = std::thread::available_parallelism().map_or(1, usize::from).min(jobs);
    println!("{jobs} compilations by {processes} processes");
    let children: Vec<Child> = (0..processes)
        .map(|i| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args_os().skip(1)).arg("--share").arg(format!("{i}/{processes}"));
            command.spawn().context("cannot start a child process")
        })
        .collect::<anyhow::Result<_>>()?;
    let mut failed = 0;
    for mut child in children {
        failed += usize::from(!child.wait()?.success());
    }
    match failed {
        0 => Ok(()),
        _ => bail!("some kernels do not compile, spill registers, or wait for each of their products"),
    }
}

/// How much more kernels in f64 may spill: a number takes two registers, and they serve to check results, not for speed.
const F64_SPILLS: usize = 5;

/// How much more a small product with a tail may spill: it is compiled so that five blocks fit a multiprocessor, which is
/// faster although it spills.
const SMALL_TAIL_SPILLS: usize = 3;

impl Outcome {
    fn is_spilling(&self, allowed: usize) -> bool {
        let is = |constants: &[&str]| constants.iter().all(|constant| self.name.contains(constant));
        let times = if is(&[" COMPUTE=f64 "]) {
            F64_SPILLS
        } else if is(&[":gemm_swizzled ", " WARPS_M=4 WARPS_N=1 ", " TAIL=1 "]) {
            SMALL_TAIL_SPILLS
        } else {
            1
        };
        self.spilled > times * allowed
    }
}

/// Compiles a share of the jobs. A failed compilation, or one that spills more than `spill` bytes of registers, is an
/// error. So is one whose products wait for each other.
pub fn compile(jobs: &[Job], Share(i, n): Share, spill: usize) -> anyhow::Result<()> {
    let share = jobs.iter().skip(i).step_by(n.max(1));
    let outcomes = share.map(|(file, arch)| one(file, arch)).collect::<anyhow::Result<Vec<_>>>()?;
    for outcome in &outcomes {
        if let Some(failure) = &outcome.failure {
            eprintln!("{} for {}:\n{failure}", outcome.name, outcome.architecture);
        } else if outcome.is_spilling(spill) {
            eprintln!("{} for {}: {} bytes spilled", outcome.name, outcome.architecture, outcome.spilled);
        }
    }
    let failed = outcomes.iter().filter(|o| o.failure.is_some()).count();
    let spilling = outcomes.iter().filter(|o| o.is_spilling(spill)).count();
    println!("{} compilations, {failed} failed, {spilling} spill more than {spill} bytes", outcomes.len());
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
        Ok(log) if log.contains(SERIALISED) => outcome(Some(log), 0),
        Ok(log) => outcome(None, spilled(&log)),
        Err(failure) => outcome(Some(failure), 0),
    })
}

/// What the assembler says if groups of warps wait for each of their products before they begin the next one.
const SERIALISED: &str = "wgmma.mma_async instructions are serialized";

/// The largest spill in the assembler's messages, such as "8 bytes spill stores".
fn spilled(log: &str) -> usize {
    let before = |marker: &str| {
        log.match_indices(marker).filter_map(|(i, _)| log[..i].split_whitespace().last()?.parse().ok()).max()
    };
    before(" bytes spill stores").unwrap_or(0)
}
