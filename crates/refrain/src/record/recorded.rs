//! The result of a recording: launches in the order in which they would have run.

use crate::autograd::Outside;
use crate::device::Storage;
use crate::device::program::{Access, RecordedLaunch};
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
