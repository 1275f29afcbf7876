//! Where and with what a step can be called, and when it records its closure again.

use std::sync::OnceLock;
use std::time::Duration;

use super::replay::Ready;
use crate::autograd::HistoriesDiffer;
use crate::device::Device;
use crate::device::recording::{self, not_recordable};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

pub(super) const OP: &str = "step";

/// The share of the run that later checks may take: one part in this many.
const CHECKING: u32 = 100;

/// The error of a recording that differs because backward passes do, or what operations keep for one.
pub(super) fn because_of(differ: HistoriesDiffer, error: Error) -> Error {
    match error {
        Error::RecordingChanged { launch, op, message } => {
            let advice = match differ.in_backward_pass() {
                true => {
                    "and a replay does what the backward pass did when the step was recorded; change what requires a gradient (a group's `trainable`) before the first call, or make a new Step after the change"
                }
                false => {
                    "and operations keep for a backward pass what they kept when the step was recorded, although the step has none; compute inside no_grad, where this does not matter, or make a new Step after the change"
                }
            };
            let message = format!("{differ}, {advice}. What differs first: {message}");
            Error::RecordingChanged { launch, op, message }
        }
        other => other,
    }
}

/// Whether `REFRAIN_STRICT` asks for a check before every call.
pub(super) fn strict_by_environment() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var("REFRAIN_STRICT").is_ok_and(|v| !v.is_empty() && v != "0"))
}

/// Whether all checks, with one more of this cost, stay within their share of the run.
pub(super) fn is_due(checking: Duration, cost: Duration, run: Duration) -> bool {
    (checking + cost) * CHECKING < run
}

/// Returns an error if a step can't be called on this thread.
pub(super) fn forbid_here(device: &Device) -> Result<()> {
    forbid_nesting(device)?;
    match rayon::current_thread_index() {
        None => Ok(()),
        Some(_) => Err(not_recordable(
            OP,
            device,
            "it is called in a worker of a thread pool, which may start other work while it waits; call it on its own thread",
        )),
    }
}

/// Checks that no input is in memory that a replay writes to. The copy of the input would not change.
pub(super) fn check_apart(ready: &Ready, inputs: &[Tensor]) -> Result<()> {
    for (i, input) in inputs.iter().enumerate() {
        if let Some(by) = ready.writes_to(input) {
            return Err(Error::Aliased {
                op: OP,
                message: format!(
                    "input {i} ({} {}) shares memory with a tensor from outside that {by} writes to in the step, and the step works on a copy of its input, which would not change; pass a copy(), or use only the tensor from outside in the closure",
                    input.dtype(),
                    input.shape()
                ),
            });
        }
    }
    Ok(())
}

/// Returns an error if this thread is recording a step.
pub(super) fn forbid_nesting(device: &Device) -> Result<()> {
    recording::forbid(
        OP,
        device,
        None,
        "a step can't be made or called within another step; run the operations of the inner closure directly, or one step after the other",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_take_a_hundredth_of_the_run() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert!(!is_due(ms(1), ms(1), ms(200)));
        assert!(is_due(ms(1), ms(1), ms(201)));
        assert!(!is_due(ms(11), ms(0), s(1)));
    }
}
