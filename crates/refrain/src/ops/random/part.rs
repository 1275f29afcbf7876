//! Random numbers for a part of a batch.

use std::fmt;
use std::ops::Range;

use super::philox::WORDS;
use crate::error::{Error, Result};

/// The rows of a batch that a generator draws for.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchPart {
    first: u64,
    rows: u64,
    /// The rows of the whole batch.
    of: u64,
}

impl BatchPart {
    pub(super) fn new(rows: Range<usize>, of: usize) -> Result<BatchPart> {
        if rows.is_empty() || rows.end > of {
            let message = format!(
                "the rows {rows:?} are no part of a batch of {of} rows; a part has at least one row and ends within the batch"
            );
            return Err(Error::invalid("for_batch_rows", message));
        }
        Ok(BatchPart { first: rows.start as u64, rows: rows.len() as u64, of: of as u64 })
    }

    /// The place of a draw of this shape `offset` blocks from the base, and the words for the whole batch, if this part of them
    /// takes `words`.
    pub(super) fn place(&self, dims: &[usize], words: u64, offset: u64) -> (DrawPlace, u64) {
        match dims.first() {
            Some(&size) if (size as u64).is_multiple_of(self.rows) => {
                let of_row = words / self.rows;
                let before = of_row.saturating_mul(self.first);
                let is_in_blocks = of_row.is_multiple_of(WORDS as u64);
                (DrawPlace { offset, before, is_in_blocks }, of_row.saturating_mul(self.of))
            }
            _ => (DrawPlace::whole(offset), words),
        }
    }
}

/// Where in the sequence of its generator a launch draws.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DrawPlace {
    /// The first block of the whole batch, counted from the generator's base.
    offset: u64,
    /// The words from there that belong to rows before those of the launch.
    before: u64,
    /// Whether every part of the batch begins with a block, that of other ranks, too.
    is_in_blocks: bool,
}

impl DrawPlace {
    /// That of a draw for the whole batch.
    pub(super) fn whole(offset: u64) -> DrawPlace {
        DrawPlace { offset, before: 0, is_in_blocks: true }
    }

    /// Whether [`DrawPlace::skip`] is 0 on all ranks. All of them must fuse the same launches.
    pub(crate) fn is_in_blocks(self) -> bool {
        self.is_in_blocks
    }

    /// The words that belong to rows before those of the launch.
    pub(crate) fn words_before(self) -> u64 {
        self.before
    }

    /// The block with the first word of the launch, counted from the generator's base.
    pub(crate) fn block(self) -> u64 {
        self.offset.wrapping_add(self.before / WORDS as u64)
    }

    /// The words of this block that belong to the rows before.
    pub(crate) fn skip(self) -> usize {
        (self.before % WORDS as u64) as usize
    }
}

/// Recordings of different ranks are compared by this text. So it does not say which part of the batch a rank has, which is
/// [`DrawPlace::words_before`].
impl fmt::Debug for DrawPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.offset, f)
    }
}
