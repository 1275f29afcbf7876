//! What the command says when it cannot go on.

use std::path::{Path, PathBuf};

use crate::interrupt::Signal;

/// The result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the command stops: what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Series, model or training.
    #[error(transparent)]
    Forecast(#[from] refrain_forecast::Error),
    /// Checkpoints and files.
    #[error(transparent)]
    Nn(#[from] refrain_nn::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] refrain::Error),
    /// A file cannot be read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A file or folder cannot be written.
    #[error("cannot write {}: {source}; choose a folder that you may write to, on a disk with space left", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// The settings file is not what it should be.
    #[error("{}: {error}\n`refrain train --help` lists the settings; a key is a flag without its dashes, such as `batch-size = 64`", path.display())]
    TomlSyntax { path: PathBuf, error: String },
    /// A folder holds no run, or a broken one.
    #[error("{}: {problem}; {fix}", path.display())]
    Run { path: PathBuf, problem: String, fix: &'static str },
    /// Another process has a run's folder.
    #[error("{} is in use by {holder}; wait for its end, or choose another --out", path.display())]
    Taken { path: PathBuf, holder: String },
    /// Arguments that do not go together.
    #[error("{problem}; {fix}")]
    Usage { problem: String, fix: String },
    /// Ctrl-C, or another signal that asks the process to end.
    #[error(
        "interrupted by {signal} after {epoch} epochs and {step} steps of the next; all is saved, go on with\n  refrain train --resume {}",
        shell_word(dir)
    )]
    Interrupted { signal: Signal, epoch: usize, step: u64, dir: PathBuf },
    /// A result cannot be put into JSON.
    #[error("cannot write the result as JSON: {0}")]
    Json(serde_json::Error),
    /// A forecast cannot be put into CSV.
    #[error("cannot write the forecast as CSV: {0}")]
    Csv(csv::Error),
    /// Standard output is gone.
    #[error("{}", no_stdout(.0))]
    Stdout(std::io::Error),
}

/// Refuses a figure that is not finite.
pub fn finite(what: impl Into<String>, value: f64) -> Result<()> {
    match value.is_finite() {
        true => Ok(()),
        false => Err(refrain_forecast::Error::NotFinite { what: what.into(), value }.into()),
    }
}

/// Says why standard output could not be written.
pub fn no_stdout(error: &std::io::Error) -> String {
    format!("standard output cannot be written: {error}; direct it to where there is space, or to a terminal")
}

impl Error {
    pub fn read(path: &Path, source: std::io::Error) -> Error {
        Error::Read { path: path.to_owned(), source }
    }

    pub fn write(path: &Path, source: std::io::Error) -> Error {
        Error::Write { path: path.to_owned(), source }
    }

    pub fn usage(problem: impl Into<String>, fix: impl Into<String>) -> Error {
        Error::Usage { problem: problem.into(), fix: fix.into() }
    }

    /// The data of a run that is to go on are others than those that it began with.
    pub fn changed_since(source: &str) -> Error {
        Error::run(
            Path::new(source),
            "the data has changed since the run began (or an earlier version read it otherwise), so it cannot be resumed",
            "restore the file, or begin a new run",
        )
    }

    pub fn run(path: &Path, problem: impl Into<String>, fix: &'static str) -> Error {
        Error::Run { path: path.to_owned(), problem: problem.into(), fix }
    }

    /// The exit status: 128 and its number after a signal as shells have it, 2 for wrong arguments, else 1.
    pub fn status(&self) -> u8 {
        match self {
            Error::Interrupted { signal, .. } => signal.status(),
            Error::Usage { .. } => 2,
            _ => 1,
        }
    }
}

/// A path as one would type it.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=,@:".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
