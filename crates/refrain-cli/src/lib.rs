//! The command `refrain`: trains forecasters and classifiers, makes forecasts, and measures speed.
//!
//! It is a library for its binary, which calls [`main`], and for the random inputs of `refrain-fuzz`, which go through
//! [`readers`].

mod bench;
mod cli;
mod commands;
mod console;
mod error;
mod filled;
mod folder;
mod html;
mod interrupt;
mod job;
mod output;
mod precision;
mod profile;
mod progress;
pub mod readers;
mod replays;
mod run;
mod run_config;
mod settings;
mod source;
mod tasks;
mod tensorboard;

use std::process::ExitCode;

use cli::Cli;
use console::{Console, note};
use error::{Error, Result};

/// Does what the command line of this process asks for; the status is what the process ends with.
pub fn main() -> ExitCode {
    let cli = Cli::from_process();
    console::set_verbosity(cli.verbosity());
    let done = set_threads(cli.threads).and_then(|()| commands::run(cli.command));
    // The reader has read enough, as in `refrain devices | head -1`.
    let enough = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
    match done {
        Ok(()) => match Console::lost() {
            Some(error) if !enough(error) => {
                note(format!("error: the work is done, but {}", error::no_stdout(error)));
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        },
        // The first process of the job says it.
        Err(error @ Error::Interrupted { .. }) if console::another_speaks() => ExitCode::from(error.status()),
        Err(Error::Stdout(error)) if enough(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let label = if matches!(
                error,
                Error::Interrupted { .. } | Error::Paused { .. } | Error::Stopped { .. }
            ) {
                ""
            } else {
                "error: "
            };
            note(format!("{label}{error}"));
            ExitCode::from(error.status())
        }
    }
}

/// More threads than any machine has cores would only use memory.
const MOST_THREADS: u16 = 1024;

/// Kernels use as many threads as rayon's global pool has.
fn set_threads(threads: Option<u16>) -> Result<()> {
    let Some(threads) = threads else {
        return Ok(());
    };
    if threads > MOST_THREADS {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        return Err(Error::usage(
            format!("--threads {threads} is more than the maximum of {MOST_THREADS}"),
            format!("--threads {cores} uses every core of this machine"),
        ));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.into());
    pool.build_global()
        .map_err(|error| Error::usage(format!("cannot start {threads} threads: {error}"), "use fewer"))
}
