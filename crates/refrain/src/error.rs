//! The errors of the engine. Each says what went wrong, where, and what to do.

use std::fmt;
use std::sync::Arc;

use crate::types::DType;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. The message of each variant names the operation and says what to do.
#[derive(Clone)]
#[non_exhaustive]
pub enum Error {
    /// Two shapes do not match.
    ShapeMismatch {
        /// The operation that refused them.
        op: &'static str,
        /// The shape of the first operand.
        lhs: Vec<usize>,
        /// The shape of the other operand, or the one that was expected.
        rhs: Vec<usize>,
        /// Which shapes would match.
        hint: String,
    },
    /// Two dtypes do not match. Nothing is converted without your asking.
    DTypeMismatch {
        /// The operation that refused them.
        op: &'static str,
        /// The dtype of the first operand.
        lhs: DType,
        /// The dtype of the other operand, or the one that was expected.
        rhs: DType,
        /// Which tensor to convert, and to what.
        hint: String,
    },
    /// Two tensors are on different devices.
    DeviceMismatch {
        /// The operation that refused them.
        op: &'static str,
        /// The device of the first operand.
        lhs: String,
        /// The device of the other operand.
        rhs: String,
    },
    /// An argument has a value that the operation can't take. If a GPU finds an index out of range, a later call on the
    /// device returns the error, and some memory is damaged: see
    /// [`Device::synchronize`](crate::Device::synchronize).
    InvalidArgument {
        /// The operation that refused it.
        op: &'static str,
        /// What is wrong and what to pass instead.
        message: String,
    },
    /// The operation is not defined for this dtype, or this device does not have it.
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The dtype of its operands.
        dtype: DType,
        /// The device of its operands.
        device: String,
    },
    /// A destination overlaps an operand, so that the result would be undefined.
    Aliased {
        /// The operation.
        op: &'static str,
        /// Which operand (counted from 0) the destination overlaps, and what to do instead.
        message: String,
    },
    /// A value that the backward pass needs was overwritten after the forward pass saved it.
    SavedValueOverwritten {
        /// The operation whose backward pass needs the value.
        op: &'static str,
        /// The saved tensor: which operand or result, its shape and dtype.
        tensor: String,
        /// The operation that overwrote it.
        by: &'static str,
    },
    /// The backward pass can't run, or an operation can't be put on the tape.
    Autograd {
        /// The operation.
        op: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// The device has not enough free memory for a tensor.
    OutOfMemory {
        /// The device.
        device: String,
        /// Bytes asked for.
        requested: usize,
        /// Bytes in use by tensors.
        live: usize,
        /// Bytes that were kept for reuse. They were freed before the last try.
        pooled: usize,
        /// Free bytes of the system, if it reports them.
        free: Option<usize>,
    },
    /// The device, or a library that it needs, is missing.
    Unavailable {
        /// The device.
        device: String,
        /// What is missing, where refrain looked for it, and what to install.
        message: String,
    },
    /// A kernel of an operation of your own ([`CustomOp`](crate::custom::CustomOp)) is missing or can't be used, or it
    /// panicked. A CUDA kernel that does not compile is [`Error::Device`], with the messages of the compiler.
    Kernel {
        /// The operation.
        op: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// The device refused something. It stays usable.
    Device {
        /// The operation.
        op: &'static str,
        /// The device.
        device: String,
        /// What the device's driver said.
        message: String,
    },
    /// The device failed permanently: this process can't use it any more, and everything on it is lost.
    DeviceLost {
        /// The operation that noticed the loss.
        op: &'static str,
        /// The device.
        device: String,
        /// What the driver said at the first failure, and at which operation it happened.
        cause: String,
    },
    /// The operation is not possible while a graph is being captured on the stream of the device. CUDA was not called,
    /// so the capture continues.
    CaptureIncompatible {
        /// What was asked for: the operation and what it needs.
        operation: String,
        /// The device.
        device: String,
    },
    /// The operation can't be part of a recorded step. Nothing of the step has run, and the device is unchanged. Work on
    /// another thread while a step is recorded may also return this error, see
    /// [`unrelated_to_recordings`](crate::unrelated_to_recordings).
    NotRecordable {
        /// The operation.
        op: &'static str,
        /// The device whose step was being recorded.
        device: String,
        /// Why, and what to do instead.
        message: String,
    },
    /// A tensor that was made while a step was recorded is used after the recording, where it has no memory. Or a tape
    /// history that was made in the recording outlives it.
    Escaped {
        /// The operation that made it.
        op: &'static str,
        /// Its dtype and shape.
        tensor: String,
        /// Where it was found, and what to do instead.
        message: String,
    },
    /// The closure of a step was recorded again and did something else than before. Something that it takes from the
    /// host has changed, and replays did not see the change.
    RecordingChanged {
        /// The number of the first launch that differs, from 0.
        launch: usize,
        /// Its operation.
        op: &'static str,
        /// What changed, and how to put it on the device.
        message: String,
    },
    /// The closure of a step returned an error of its own.
    Closure {
        /// The error.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// A simulated device ([`Device::sim`](crate::Device::sim)) found work that would be wrong or hang on a real device:
    /// two accesses to the same bytes that nothing orders, or a read of memory that was freed or never written. Also ranks of
    /// [`Communicator::in_process`](crate::Communicator::in_process) that wait for one another.
    Hazard {
        /// The operation that was running.
        op: &'static str,
        /// The device.
        device: String,
        /// What was found, the other operation, and what is missing.
        message: String,
    },
    /// A collective of a [`Communicator`](crate::Communicator) failed: it was aborted, another rank has ended, failed or
    /// called something else, or the connection is gone. The communicator can't be used any more.
    Collective {
        /// The operation.
        op: &'static str,
        /// The rank of this process or thread.
        rank: usize,
        /// What happened, on which rank, and what to do.
        message: String,
    },
    /// The ranks of a communicator have recorded different programs for one step. Nothing of the step has run.
    RanksDiffer {
        /// The ranks whose program differs from that of most ranks (or, if no program is that of most, from the program of
        /// the lowest rank).
        ranks: Vec<usize>,
        /// The number of the first launch that differs, from 0.
        launch: usize,
        /// What each rank would launch there, and what to do.
        message: String,
    },
    /// The engine broke one of its own rules. This is a defect; please report it.
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

    /// Two operands should have one dtype. The advice is a conversion that loses no value, except that a large integer
    /// is rounded, or infinite in f16.
    pub(crate) fn dtypes(op: &'static str, lhs: DType, rhs: DType) -> Error {
        let convert =
            |to: DType, from: DType| format!("use to_dtype(DType::{to:?}) on the {from} tensor first");
        let hint = match [lhs, rhs] {
            [DType::F16, DType::BF16] | [DType::BF16, DType::F16] => {
                "neither holds all values of the other; use to_dtype(DType::F32) on both first".to_string()
            }
            // Dtypes are ordered: floats before integers before bool, the widest first.
            _ => convert(lhs.min(rhs), lhs.max(rhs)),
        };
        Error::DTypeMismatch { op, lhs, rhs, hint }
    }

    pub(crate) fn internal(op: &'static str, message: impl Into<String>) -> Error {
        Error::Internal { op, message: message.into() }
    }
}

/// `unwrap` and a `main` that returns an error print this form, so it is the message. The error of a closure is in the form `{:#}`,
/// in which errors of `refrain-nn` have a line of your program.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:#}")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ShapeMismatch { op, lhs, rhs, hint } => {
                write!(f, "{op}: shapes {lhs:?} and {rhs:?} do not match: {hint}")
            }
            Error::DTypeMismatch { op, lhs, rhs, hint } => write!(
                f,
                "{op}: dtypes {lhs} and {rhs} do not match, and nothing is converted silently: {hint}"
            ),
            Error::DeviceMismatch { op, lhs, rhs } => write!(
                f,
                "{op}: operands are on different devices, {lhs} and {rhs}: move one with to_device first"
            ),
            Error::InvalidArgument { op, message } => write!(f, "{op}: {message}"),
            Error::Unsupported { op, dtype, device } => {
                let fix = match dtype.is_float() {
                    true => "convert with to_dtype to a dtype that the operation supports",
                    false => "use another dtype, such as f32 (to_dtype(DType::F32) converts)",
                };
                write!(f, "{op}: not supported for {dtype} on {device}: {fix}")
            }
            Error::Aliased { op, message } => write!(f, "{op}: {message}"),
            Error::SavedValueOverwritten { op, tensor, by } => write!(
                f,
                "{op}: the backward pass needs {tensor}, but {by} has overwritten it: write into another tensor, or call backward first"
            ),
            Error::Autograd { op, message } => write!(f, "{op}: {message}"),
            Error::OutOfMemory { device, requested, live, pooled, free } => {
                write!(
                    f,
                    "out of memory on {device}: {requested} bytes were requested while tensors use {live} bytes ({pooled} bytes that were kept for reuse have been freed"
                )?;
                if let Some(free) = free {
                    write!(f, "; {free} bytes are free")?;
                }
                write!(f, "): drop tensors or use a smaller batch")
            }
            Error::Unavailable { device, message } => write!(f, "{device} can't be used: {message}"),
            Error::Kernel { op, message } => write!(f, "{op}: {message}"),
            Error::Device { op, device, message } => write!(f, "{op}: {device}: {message}"),
            Error::DeviceLost { op, device, cause } => write!(
                f,
                "{op}: {device} is lost: {cause}: restart the process (with REFRAIN_SYNC=1 to find the operation that fails first)"
            ),
            Error::CaptureIncompatible { operation, device } => write!(
                f,
                "{operation} is not possible while a graph is being captured on the stream of {device}: do it before the capture begins, and write results into tensors that exist already"
            ),
            Error::NotRecordable { op, device, message } => {
                write!(f, "{op} can't be part of a recorded step on {device}: {message}")
            }
            Error::Escaped { op, tensor, message } => {
                write!(
                    f,
                    "{op}: a tensor ({tensor}) has escaped from a recorded step, which made it or its tape history: {message}"
                )
            }
            Error::RecordingChanged { launch, op, message } => {
                write!(f, "the recorded step is out of date at launch {launch} ({op}): {message}")
            }
            Error::Closure { source } => {
                f.write_str("the closure of a step failed: ")?;
                fmt::Display::fmt(source, f)
            }
            Error::Hazard { op, device, message } => write!(f, "{op} on {device}: {message}"),
            Error::Collective { op, rank, message } => write!(f, "{op} on rank {rank}: {message}"),
            Error::RanksDiffer { launch, message, .. } => {
                write!(f, "the ranks have recorded different steps, from launch {launch} on: {message}")
            }
            Error::Internal { op, message } => {
                write!(f, "{op}: internal error: {message}: please report this")
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
