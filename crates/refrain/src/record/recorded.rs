//! The result of a recording: launches in the order in which they would have run.

use crate::autograd::Outside;
use crate::device::Storage;
use crate::device::program::{Access, RecordedLaunch, StorageRef};
use crate::error::{Error, Result};
use crate::ops::random::Generator;
use crate::recycled::Recycled;

/// A storage that the recording made.
#[derive(Debug)]
pub(crate) struct Temporary {
    /// The operation that made it.
    pub(crate) op: &'static str,
    pub(crate) bytes: usize,
}

/// A finished recording.
pub(crate) struct Recorded {
    pub(crate) launches: Vec<RecordedLaunch>,
    pub(crate) externals: Vec<Recycled<Storage>>,
    pub(crate) temporaries: Vec<Temporary>,
    /// The generators that the step draws from, each with the number of blocks.
    pub(crate) generators: Vec<(Generator, u64)>,
    pub(crate) outputs: Vec<Access>,
    /// What the recording means for the tape histories of tensors from outside.
    pub(crate) outside: Outside,
}

/// The advice at the end of every message about a changed recording.
const FIX: &str = "the closure runs only while it is recorded, so a value that it takes from the host never changes: keep what changes from step to step in a tensor on the device (a schedule over a step counter, a generator) and advance it in the step, or pass it as an input";

impl Recorded {
    /// Compares with `now`, a new recording of the same closure. The error names the first launch that differs.
    pub(crate) fn check_same(&self, now: &Recorded) -> Result<()> {
        let changed = |launch: usize, op: &'static str, what: String| {
            Err(Error::RecordingChanged { launch, op, message: format!("{what}; {FIX}") })
        };
        for (i, (a, b)) in self.launches.iter().zip(&now.launches).enumerate() {
            if a.op != b.op {
                return changed(i, a.op, format!("the closure now runs {} instead", b.op));
            }
            let (was, is) = (a.kernel.parameters(), b.kernel.parameters());
            if was != is {
                return changed(i, a.op, format!("its parameters were {was} and are now {is}"));
            }
            if (a.reads.len(), a.writes.len()) != (b.reads.len(), b.writes.len()) {
                return changed(i, a.op, "the number of its operands has changed".to_string());
            }
            for (n, (x, y)) in a.reads.iter().zip(&b.reads).enumerate() {
                if let Some(what) = self.difference(x, now, y) {
                    return changed(i, a.op, format!("operand {n} {what}"));
                }
            }
            for (n, ((x, mode), (y, now_mode))) in a.writes.iter().zip(&b.writes).enumerate() {
                if let Some(what) = self.difference(x, now, y) {
                    return changed(i, a.op, format!("result {n} {what}"));
                }
                if mode != now_mode {
                    return changed(i, a.op, format!("result {n} was {mode:?} and is now {now_mode:?}"));
                }
            }
        }
        let (was, is) = (self.launches.len(), now.launches.len());
        if was != is {
            let longer = if was > is { self } else { now };
            let first = was.min(is);
            let op = longer.launches[first].op;
            return changed(first, op, format!("the step had {was} launches and has now {is}"));
        }
        if self.outputs.len() != now.outputs.len() {
            let what =
                format!("the step returned {} tensors and now {}", self.outputs.len(), now.outputs.len());
            return changed(was, "outputs", what);
        }
        for (i, (x, y)) in self.outputs.iter().zip(&now.outputs).enumerate() {
            if let Some(what) = self.difference(x, now, y) {
                return changed(was, "outputs", format!("output {i} {what}"));
            }
        }
        Ok(())
    }

    /// How an operand differs from its counterpart in another recording.
    fn difference(&self, was: &Access, other: &Recorded, is: &Access) -> Option<String> {
        if (was.dtype, was.layout.shape()) != (is.dtype, is.layout.shape()) {
            let text = |a: &Access| format!("{} {}", a.dtype, a.layout.shape());
            return Some(format!("was {} and is now {}", text(was), text(is)));
        }
        if was.layout != is.layout {
            return Some(format!(
                "was another part of its memory: {:?}, and is now {:?}",
                was.layout, is.layout
            ));
        }
        match (was.place, is.place) {
            (StorageRef::Temporary(a), StorageRef::Temporary(b)) if a == b => None,
            (StorageRef::Temporary(_), StorageRef::Temporary(_)) => {
                Some("is another intermediate result".to_string())
            }
            (StorageRef::External(a), StorageRef::External(b)) => {
                let (a, b) = (self.externals[a].id(), other.externals[b].id());
                (a != b).then(|| {
                    format!(
                        "({} {}) was in storage {a} and is now in storage {b}, a new tensor",
                        was.dtype,
                        was.layout.shape()
                    )
                })
            }
            _ => Some("was a tensor from outside the step and is not any more, or the reverse".to_string()),
        }
    }
}
