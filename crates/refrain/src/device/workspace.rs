//! Memory that kernels work in beside their operands, for work that runs at once.
//!
//! A device's work is in order, so that one piece of memory serves all launches one after the other. It grows to
//! the largest that was asked for; what it outgrew is kept, because a graph that somebody captured on a lent
//! stream may still use it.

use std::sync::PoisonError;

use super::{Device, Storage};
use crate::error::Result;
use crate::recycled::Recycled;
use crate::sync::Mutex;

/// The smallest piece: most kernels ask for less.
const SMALLEST: usize = 1 << 20;

/// The pieces, the last of which is in use.
#[derive(Default)]
pub(super) struct Workspace {
    pieces: Mutex<Vec<Recycled<Storage>>>,
}

impl Workspace {
    /// Memory of at least `bytes` bytes, of `device`'s driver.
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
