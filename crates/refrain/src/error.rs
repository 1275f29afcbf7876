//! Every error of the engine: what went wrong, where, and what to do about it.

use std::fmt;
use std::sync::Arc;

use crate::types::DType;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. The message of each variant names the operation and the fix.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// Two shapes do not fit each other.
    ShapeMismatch {
        /// The operation that refused them.
        op: &'static str,
        /// The shape of the first operand.
        lhs: Vec<usize>,
        /// The shape of the other operand, or the one that was expected.
        rhs: Vec<usize>,
        /// What would fit.
        hint: String,
    },
    /// Two dtypes do not fit each other. Nothing is converted behind the caller's back.
    DTypeMismatch {
        /// The operation that refused them.
        op: &'static str,
        /// The dtype at hand.
        lhs: DType,
        /// The dtype of the other operand, or the one that was expected.
        rhs: DType,
    },
    /// Two tensors lie on different devices.
    DeviceMismatch {
        /// The operation that refused them.
        op: &'static str,
        /// The device of the first operand.
        lhs: String,
        /// The device of the other operand.
        rhs: String,
    },
    /// An argument has a value that the operation can't take. Of an index that a GPU finds out of range, the error comes
    /// with a later call on the device, and some memory is damaged: see
    /// [`Device::synchronize`](crate::Device::synchronize).
    InvalidArgument {
        /// The operation that refused it.
        op: &'static str,
        /// What is wrong and what to pass instead.
        message: String,
    },
    /// The operation has no meaning for this dtype, or this device does not have it.
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The dtype of its operands.
        dtype: DType,
        /// The device of its operands.
        device: String,
    },
    /// A destination shares memory with an operand in a way that has no well-defined result.
    Aliased {
        /// The operation.
        op: &'static str,
        /// Which operand (counted from 0) the destination overlaps, and how to go about it.
        message: String,
    },
    /// A value that the backward pass needs was overwritten after the forward pass saved it.
    SavedValueOverwritten {
        /// The operation whose backward pass needs the value.
        op: &'static str,
        /// The saved tensor: which operand or result, its shape and dtype.
        tensor: String,
        /// The operation that wrote over it.
        by: &'static str,
    },
    /// The backward pass can't be run, or an operation can't be recorded for it.
    Autograd {
        /// The operation.
        op: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// The device has no memory left for a tensor.
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        requested: usize,
        /// Bytes in use by tensors.
        live: usize,
        /// Bytes kept for reuse, given back to the system before the last try.
        pooled: usize,
        /// Bytes that the system has free, where it tells.
        free: Option<usize>,
    },
    /// The device, or a library that it needs, is not there.
    Unavailable {
        /// The device.
        device: String,
        /// What is missing, where it was looked for, and what to install.
        message: String,
    },
    /// The device refused something; it can be used further.
    Device {
        /// The operation.
        op: &'static str,
        /// The device.
        device: String,
        /// What the device's driver said.
        message: String,
    },
    /// The device failed for good: everything on it is lost until the process ends.
    DeviceLost {
        /// The operation that met the loss.
        op: &'static str,
        /// The device.
        device: String,
        /// What the driver said at the first failure, and at which operation that was.
        cause: String,
    },
    /// The operation can't be done while a graph is being captured on the device's stream. The capture
    /// goes on undisturbed: CUDA was not called.
    CaptureIncompatible {
        /// What was asked for: the operation and what it needs.
        operation: String,
        /// The device.
        device: String,
    },
    /// The operation can't be part of a recorded step: nothing of the step has run, and the device is as before. Also of
    /// work on another thread while a step is recorded
    /// ([`unrelated_to_recordings`](crate::unrelated_to_recordings)).
    NotRecordable {
        /// The operation.
        op: &'static str,
        /// The device whose step was being recorded.
        device: String,
        /// Why, and what to do instead.
        message: String,
    },
    /// A tensor that was born while a step was recorded is used outside the recording, where it has no memory; or a
    /// history on the tape that was made there outlives it.
    Escaped {
        /// The operation that made it.
        op: &'static str,
        /// Its dtype and shape.
        tensor: String,
        /// Where it was found, and what to do instead.
        message: String,
    },
    /// The closure of a step, recorded again, did something else than before: something that it takes from the host
    /// has changed since, which replays would not have seen.
    RecordingChanged {
        /// The number of the first launch that differs, from 0.
        launch: usize,
        /// Its operation.
        op: &'static str,
        /// What moved, and how to put it on the device.
        message: String,
    },
    /// The closure of a step returned an error of its own.
    Closure {
        /// The error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A simulated device ([`Device::sim`](crate::Device::sim)) found work that is wrong or that hangs on a real one:
    /// accesses to the same bytes that nothing orders, memory that was given back or never written.
    Hazard {
        /// The operation that met it.
        op: &'static str,
        /// The device.
        device: String,
        /// What was found, the other operation, and what is missing.
        message: String,
    },
    /// A rule of the engine was broken by the engine itself: a defect worth a report.
    Internal {
        /// The operation.
        op: &'static str,
        /// Which rule.
        message: String,
    },
}

impl Error {
    pub(crate) fn invalid(op: &'static str, message: impl Into<String>) -> Error {
        Error::InvalidArgument { op, message: message.into() }
    }

    pub(crate) fn shapes(op: &'static str, lhs: &[usize], rhs: &[usize], hint: impl Into<String>) -> Error {
        Error::ShapeMismatch { op, lhs: lhs.to_vec(), rhs: rhs.to_vec(), hint: hint.into() }
    }

    pub(crate) fn internal(op: &'static str, message: impl Into<String>) -> Error {
        Error::Internal { op, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ShapeMismatch { op, lhs, rhs, hint } => {
                write!(f, "{op}: shapes {lhs:?} and {rhs:?} do not fit: {hint}")
            }
            Error::DTypeMismatch { op, lhs, rhs } => write!(
                f,
                "{op}: dtypes {lhs} and {rhs} do not fit: nothing is converted silently; use to_dtype(DType::{rhs:?}) on the {lhs} tensor first"
            ),
            Error::DeviceMismatch { op, lhs, rhs } => write!(
                f,
                "{op}: operands lie on different devices, {lhs} and {rhs}: move one with to_device first"
            ),
            Error::InvalidArgument { op, message } => write!(f, "{op}: {message}"),
            Error::Unsupported { op, dtype, device } => write!(
                f,
                "{op}: not supported for {dtype} on {device}: convert with to_dtype to a dtype that the operation is defined for"
            ),
            Error::Aliased { op, message } => write!(f, "{op}: {message}"),
            Error::SavedValueOverwritten { op, tensor, by } => write!(
                f,
                "{op}: the backward pass needs {tensor}, but {by} has written over it since: write into another tensor, or call backward first"
            ),
            Error::Autograd { op, message } => write!(f, "{op}: {message}"),
            Error::OutOfMemory { device, requested, live, pooled, free } => {
                write!(
                    f,
                    "out of memory on {device}: asked for {requested} bytes with {live} in use by tensors ({pooled} bytes kept for reuse were given back first"
                )?;
                if let Some(free) = free {
                    write!(f, "; {free} bytes are free")?;
                }
                write!(f, "): drop tensors or use a smaller batch")
            }
            Error::Unavailable { device, message } => write!(f, "{device} can't be used: {message}"),
            Error::Device { op, device, message } => write!(f, "{op}: {device}: {message}"),
            Error::DeviceLost { op, device, cause } => write!(
                f,
                "{op}: {device} is lost: {cause}: start the process anew (REFRAIN_SYNC=1 finds the operation that fails first)"
            ),
            Error::CaptureIncompatible { operation, device } => write!(
                f,
                "{operation} is not possible while a graph is being captured on the stream of {device}: do it before the capture begins, and write results into tensors that are there already"
            ),
            Error::NotRecordable { op, device, message } => {
                write!(f, "{op} can't be part of a recorded step on {device}: {message}")
            }
            Error::Escaped { op, tensor, message } => {
                write!(
                    f,
                    "{op}: a tensor ({tensor}) that was made, or got its history on the tape, while a step was recorded has escaped: {message}"
                )
            }
            Error::RecordingChanged { launch, op, message } => {
                write!(f, "the recorded step is out of date at launch {launch} ({op}): {message}")
            }
            Error::Closure { source } => write!(f, "the closure of a step failed: {source}"),
            Error::Hazard { op, device, message } => write!(f, "{op} on {device}: {message}"),
            Error::Internal { op, message } => {
                write!(f, "{op}: internal rule broken: {message}: please report this")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Closure { source } => Some(&**source),
            _ => None,
        }
    }
}
