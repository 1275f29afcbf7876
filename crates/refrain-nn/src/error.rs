//! The errors of this crate. Each says what is wrong, where, and what to do.

use std::fmt;
use std::panic::Location;
use std::path::{Path, PathBuf};

use crate::layer_tree::Layers;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with layers, optimisers and checkpoints.
///
/// The form `{error:#}` also says at which line a `?` made an error of an operation on tensors one of this crate. This is the form
/// that `unwrap` prints, and a `main` that returns the error:
///
/// ```
/// use refrain::{DType, Device, Tensor};
/// use refrain_nn::Result;
///
/// fn pairs(x: &Tensor) -> Result<Tensor> {
///     Ok(x.reshape((-1, 2))?) // this line
/// }
///
/// let error = pairs(&Tensor::ones([3], DType::F32, &Device::cpu())?).unwrap_err();
/// assert!(format!("{error:?}").starts_with(&format!("{error} (at {}:", file!())));
/// # Ok::<(), refrain_nn::Error>(())
/// ```
///
/// [`source`](std::error::Error::source) leads from an error of a layer to that of the operation, whose message the error of the
/// layer already has.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on tensors failed.
    #[error(fmt = of_tensor)]
    Tensor {
        /// The error of the operation.
        #[source]
        error: refrain::Error,
        /// Where `?` (or `into`) made it an error of this crate.
        at: &'static Location<'static>,
    },
    /// The forward pass of a layer failed ([`in_layer`]). [`Error::root`] is the error without the layer.
    #[error(fmt = of_layer)]
    Layer {
        /// The scope of the layer, with which the names of its parameters begin.
        scope: String,
        /// What happened in it.
        #[source]
        error: Box<Error>,
    },
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

/// `unwrap` and a `main` that returns an error print this form, so it is the message, with the line of an operation.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

fn of_tensor(
    error: &refrain::Error,
    at: &&'static Location<'static>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    if !f.alternate() {
        return write!(f, "{error}");
    }
    write!(f, "{error:#}")?;
    // A line of this crate tells its users nothing.
    let own = file!().strip_suffix("error.rs").is_some_and(|sources| at.file().starts_with(sources));
    if own { Ok(()) } else { write!(f, " (at {at})") }
}

fn of_layer(scope: &str, error: &Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "in `{scope}`: ")?;
    fmt::Display::fmt(error, f)
}

impl From<refrain::Error> for Error {
    #[track_caller]
    fn from(error: refrain::Error) -> Error {
        Error::Tensor { error, at: Location::caller() }
    }
}

/// Runs the forward pass of a layer. An error of it says in which layer it happened, by what the names of all its parameters begin
/// with: for a layer with a single part, that is the name of the part. If layers contain each other, it is the innermost one whose
/// names begin alike. Without an error this costs nothing.
///
/// The layers of this crate that have parameters do so. Use it in your own:
///
/// ```
/// use refrain::{DType, Device, Generator, Tensor};
/// use refrain_nn::{Layers, Linear, ParameterBuilder, Result, in_layer};
///
/// #[derive(Layers)]
/// struct Head {
///     hidden: Linear,
///     output: Linear,
/// }
///
/// impl Head {
///     /// `[N, 2, 3]` to `[N, 1]`.
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         in_layer(self, || {
///             let x = x.reshape((-1, 6))?;
///             self.output.forward(&self.hidden.forward(&x)?.relu()?)
///         })
///     }
/// }
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let scope = builder.scope("head");
/// let hidden = Linear::new(&scope.scope("hidden"), 6, 4)?;
/// let head = Head { hidden, output: Linear::new(&scope.scope("output"), 5, 1)? }; // it should be 4
/// builder.build(&Generator::new(&device, 0)?)?;
/// let error = |dims: [usize; 3]| Tensor::ones(dims, DType::F32, &device).map(|x| head.forward(&x).unwrap_err().to_string());
/// assert!(error([5, 1, 1])?.starts_with("in `head`: reshape: "));
/// assert!(error([5, 2, 3])?.starts_with("in `head.output`: linear: shapes "));
/// # Ok::<(), refrain_nn::Error>(())
/// ```
///
/// # Errors
/// Those of `forward`.
pub fn in_layer<T>(layer: &(impl Layers + ?Sized), forward: impl FnOnce() -> Result<T>) -> Result<T> {
    forward().map_err(|error| match (error, layer.layers().scope()) {
        (error @ Error::Layer { .. }, _) => error,
        (error, scope) if scope.is_empty() => error,
        (error, scope) => Error::Layer { scope, error: Box::new(error) },
    })
}

impl Error {
    /// The error without the layer in which it happened.
    ///
    /// ```
    /// use refrain::{DType, Device, Generator, Tensor};
    /// use refrain_nn::{Error, Linear, ParameterBuilder};
    ///
    /// let device = Device::cpu();
    /// let builder = ParameterBuilder::new(&device, DType::F32);
    /// let linear = Linear::new(&builder.scope("head"), 3, 1)?;
    /// builder.build(&Generator::new(&device, 0)?)?;
    /// let error = linear.forward(&Tensor::ones([2, 4], DType::F32, &device)?).unwrap_err();
    /// assert!(matches!(error, Error::Layer { .. }));
    /// assert!(matches!(error.root(), Error::Tensor { error: refrain::Error::ShapeMismatch { .. }, .. }));
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    pub fn root(&self) -> &Error {
        match self {
            Error::Layer { error, .. } => error.root(),
            other => other,
        }
    }

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
