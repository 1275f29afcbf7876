//! The workspace of kernels, for work that runs at once.
//!
//! The work of a device is in order, so one piece of memory serves all launches one after the other. It grows to the
//! largest request. Smaller pieces are kept, because a graph that somebody captured on a stream of theirs may still
//! use them.

use std::sync::PoisonError;

use super::{Device, Storage};
use crate::error::Result;
use crate::recycled::Recycled;
use crate::sync::Mutex;

/// The smallest piece. Most kernels need less.
const SMALLEST: usize = 1 << 20;

/// The pieces. The last one is in use.
#[derive(Default)]
pub(super) struct Workspace {
    pieces: Mutex<Vec<Recycled<Storage>>>,
}

impl Workspace {
    /// Memory of at least `bytes` bytes, from the driver of `device`.
    pub(super) fn get(&self, op: &'static str, bytes: usize, device: &Device) -> Result<Recycled<Storage>> {
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = pieces.last().filter(|p| p.bytes() >= bytes) {
            return Ok(piece.clone());
        }
        let piece = Storage::new(op, &device.without_workspace(), bytes.next_power_of_two().max(SMALLEST))?;
        pieces.push(piece.clone());
        Ok(piece)
    }
}
