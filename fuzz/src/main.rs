//! `cargo run -p refrain-fuzz -- programs --seed 1 --seconds 60`: random inputs for what must never panic, hang or
//! give a wrong number.
//!
//! A run begins with the inputs of `fuzz/corpus/TARGET`, which once failed, and then makes new ones until its time is
//! up. An input that fails is made smaller, printed and written to `fuzz/failures/`; moved to the corpus it is tried
//! in every run. `--input FILE` tries one file alone.
//!
//! To fail is to panic, to say that something is wrong, to take too long, or to ask for too much memory. The input at
//! work is always in `fuzz/failures/TARGET-current.*`, so that one that ends the process is there afterwards.

mod loaders;
mod memory;
mod programs;
mod random;
mod target;
mod watchdog;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

use target::Target;

/// Try random inputs on a part of refrain until its time is up
#[derive(Parser)]
#[command(name = "refrain-fuzz")]
struct Arguments {
    /// What to try
    target: Which,
    /// The seed of the random inputs: equal seeds give equal inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How long to make new inputs, after those of the corpus
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Try this file and nothing else
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Name each input before it is tried, which tells the one that ends the process
    #[arg(long)]
    verbose: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Which {
    /// Random programs: recorded against eager, and simulated GPUs against the CPU, bit for bit
    Programs,
    /// Data, checkpoints, run folders and settings that may be broken, through everything that reads them
    Loaders,
}

impl Which {
    fn target(self) -> Result<Box<dyn Target>, String> {
        Ok(match self {
            Which::Programs => Box::new(programs::Programs),
            Which::Loaders => Box::new(loaders::Loaders::new()?),
        })
    }
}

fn main() -> ExitCode {
    let Arguments { target, seed, seconds, input, verbose } = Arguments::parse();
    let done = target.target().and_then(|target| {
        let run = target::Run::new(&*target, verbose)?;
        match input {
            Some(file) => run.file(&file),
            None => run.all(seed, Duration::from_secs(seconds)),
        }
    });
    match done {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
