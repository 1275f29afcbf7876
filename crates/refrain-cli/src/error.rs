//! The errors that end the command.

use std::path::{Path, PathBuf};

use refrain_rendezvous::{Failure, RANK_FAILED};

use crate::interrupt::Signal;

/// The exit status of a process that trains one window of a cross-validation and leaves it out.
pub const LEFT_OUT: u8 = 3;

/// The result of a command.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the command stops. Each message says what is wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the series, the model or the training.
    #[error(transparent)]
    Forecast(#[from] refrain_forecast::Error),
    /// An error of a checkpoint or a file.
    #[error(transparent)]
    Nn(#[from] refrain_nn::Error),
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] refrain::Error),
    /// The processes of the job did not come together.
    #[error(transparent)]
    Rendezvous(#[from] refrain_rendezvous::Error),
    /// Another process of the job failed.
    #[error("{failure}; {fix}")]
    RankFailed { failure: Failure, fix: &'static str },
    /// The processes of the job can't exchange what they must.
    #[error("{0}")]
    Exchange(String),
    /// A file cannot be read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// A file or folder cannot be written.
    #[error("cannot write {}: {source}; choose a folder that you may write to, on a disk with free space", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// The settings file is wrong.
    #[error("{}: {error}\n`refrain train --help` lists the settings; a key is a flag without its dashes, such as `batch-size = 64`", path.display())]
    TomlSyntax { path: PathBuf, error: String },
    /// A folder has no run, or a damaged one.
    #[error("{}: {problem}; {fix}", path.display())]
    Run { path: PathBuf, problem: String, fix: &'static str },
    /// Another process uses the run folder.
    #[error("{} is in use by {holder}; wait until that process ends, or choose another --out", path.display())]
    Taken { path: PathBuf, holder: String },
    /// Wrong arguments, or arguments that contradict one another.
    #[error("{problem}; {fix}")]
    Usage { problem: String, fix: String },
    /// Ctrl-C, or another signal that tells the process to end.
    #[error(
        "interrupted by {signal} after {epoch} epochs and {step} steps of the next; the run is saved, resume it with\n  refrain train --resume {}",
        shell_word(dir)
    )]
    Interrupted { signal: Signal, epoch: usize, step: u64, dir: PathBuf },
    /// The same in the middle of a command that has finished some of its runs.
    #[error(
        "interrupted by {signal}; what is finished is kept, continue with\n  refrain {command} --resume {}",
        shell_word(dir)
    )]
    Paused { signal: Signal, command: &'static str, dir: PathBuf },
    /// The same in the middle of a cross-validation.
    #[error(
        "interrupted by {signal}; a cross-validation cannot be resumed, so start it again with another --out"
    )]
    Stopped { signal: Signal },
    /// A window of a cross-validation that cannot be trained or judged because of a gap. The process that started this one goes on
    /// without it.
    #[error(transparent)]
    WindowLeftOut(refrain_forecast::Error),
    /// A result cannot be written as JSON.
    #[error("cannot write the result as JSON: {0}")]
    Json(serde_json::Error),
    /// A forecast cannot be written as CSV.
    #[error("cannot write the forecast as CSV: {0}")]
    Csv(csv::Error),
    /// Standard output cannot be written.
    #[error("{}", no_stdout(.0))]
    Stdout(std::io::Error),
}

/// Returns an error if a value is not finite.
pub fn finite(what: impl Into<String>, value: f64) -> Result<()> {
    match value.is_finite() {
        true => Ok(()),
        false => Err(refrain_forecast::Error::NotFinite { what: what.into(), value }.into()),
    }
}

/// Says why standard output could not be written.
pub fn no_stdout(error: &std::io::Error) -> String {
    format!(
        "standard output cannot be written: {error}; redirect it to a disk with free space, or to a terminal"
    )
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

    /// The data of a resumed run differs from the data that it began with.
    pub fn changed_since(source: &str) -> Error {
        Error::run(
            Path::new(source),
            "the data has changed since the run began (or an earlier version read it differently), so the run cannot be resumed",
            "restore the file, or start a new run",
        )
    }

    pub fn run(path: &Path, problem: impl Into<String>, fix: &'static str) -> Error {
        Error::Run { path: path.to_owned(), problem: problem.into(), fix }
    }

    /// The configuration in a run folder does not fit itself.
    pub fn contradiction(folder: &Path, problem: impl std::fmt::Display) -> Error {
        let problem = format!("the configuration contradicts itself: {problem}");
        Error::run(folder, problem, "restore the folder, or train again")
    }

    /// The exit status: 128 plus the number of the signal, as in shells; 2 for wrong arguments; 75 if another process failed;
    /// otherwise 1.
    pub fn status(&self) -> u8 {
        match self {
            Error::Interrupted { signal, .. } | Error::Paused { signal, .. } | Error::Stopped { signal } => {
                signal.status()
            }
            Error::Usage { .. } => 2,
            Error::WindowLeftOut(_) => LEFT_OUT,
            Error::RankFailed { .. } => RANK_FAILED,
            _ => 1,
        }
    }
}

/// A path, quoted for a shell if needed.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=,@:".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
