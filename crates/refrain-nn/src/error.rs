//! The errors of this crate. Each says what is wrong, where, and what to do.

use std::fmt;
use std::path::{Path, PathBuf};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with layers, optimisers and checkpoints.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on tensors failed.
    #[error(transparent)]
    Tensor(#[from] refrain::Error),
    /// A parameter cannot be declared or used in this way.
    #[error("parameter `{name}`: {message}")]
    Parameter {
        /// Its full dotted name.
        name: String,
        /// What is wrong and what to do.
        message: String,
    },
    /// A layer or an optimiser cannot be made with these arguments.
    #[error("{what}: {message}")]
    InvalidArgument {
        /// The layer or optimiser.
        what: &'static str,
        /// What is wrong and what to pass instead.
        message: String,
    },
    /// A batch could not be read ([`Prefetch`](crate::Prefetch)).
    #[error("batch {batch} could not be read: {source}")]
    Batch {
        /// Its number, counted from 0.
        batch: usize,
        /// What the reading function returned, or the message of its panic.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file or folder cannot be read or written.
    #[error("cannot {action} {}: {source}; check that the path exists, that you may use it, and that the disk has space left", path.display())]
    Io {
        /// What was tried: `read`, `write`, ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A checkpoint is damaged, or belongs to another model, optimiser or configuration.
    #[error("{}: {message}", path.display())]
    Checkpoint {
        /// The checkpoint's file.
        path: PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
}

/// `unwrap` and a `main` that returns an error print this form, so it is the message.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    pub(crate) fn parameter(name: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Parameter { name: name.into(), message: message.into() }
    }

    pub(crate) fn invalid(what: &'static str, message: impl Into<String>) -> Error {
        Error::InvalidArgument { what, message: message.into() }
    }

    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    }

    pub(crate) fn checkpoint(path: &Path, message: impl Into<String>) -> Error {
        Error::Checkpoint { path: path.to_path_buf(), message: message.into() }
    }
}
