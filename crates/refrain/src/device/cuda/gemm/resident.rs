//! Products of many rows by few columns, whose blocks keep their part of B in shared memory.

use super::{Matrix, Product};

/// Tiles of C from which on blocks have several each.
const ENOUGH_TILES: usize = 512;
/// Numbers in a sum up to which it pays to bring B into the operands' dtype first.
const SHALLOW: usize = 128;
/// Shared memory that a block can have on every GPU of compute capability 8.0 and later.
const MOST_BYTES: usize = 99 << 10;
/// Shared memory of a multiprocessor that blocks can fill, on GPUs that have most; on others some wait.
const SHARED_BYTES: usize = 224 << 10;
/// What the driver takes of shared memory for itself, of each block.
const RESERVED_BYTES: usize = 1 << 10;
/// The most blocks that a multiprocessor has registers for, and the threads of such a block: of larger ones, which hold
/// more numbers each, it has them for one.
const MOST_BLOCKS: usize = 3;
const FEW_THREADS: usize = 128;

/// What a block of such a product keeps (`resident.cu`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Resident {
    /// Tiles of B along k.
    pub(super) panel: usize,
    /// Whether they are brought into the operands' dtype and the order of fragments first.
    pub(super) dealt: bool,
    /// Tiles of A that find room.
    pub(super) slots: usize,
    /// Bytes of shared memory.
    pub(super) bytes: usize,
}

impl Resident {
    /// For tiles of C of so many numbers along m and n, if the product is of that kind; `wide` where f32 is multiplied.
    pub(super) fn of(p: &Product, size: [usize; 2], wide: bool) -> Option<Resident> {
        let tiles = p.m.div_ceil(size[0]) * p.n.div_ceil(size[1]);
        // A kernel is made for one k, which is the number of rows in a weight's gradient.
        let along_rows = !p.a.dense[1] && !p.b.dense[0];
        if tiles < ENOUGH_TILES || p.k == 0 || p.batches() != 1 || p.sums.is_some() || along_rows {
            return None;
        }
        let depth = if wide { 16 } else { 32 };
        let both = p.a.dense[1] && p.b.dense[0];
        // As `Tile` in `tiles.cu` has it, and `PANEL_BYTES` in `resident.cu`.
        let tile = |x: &Matrix, along_k: bool, outer: usize| {
            let rounded = !wide && x.dtype.size() == 4;
            let numbers = match (along_k, wide) {
                (true, true) => outer * if both { 16 } else { 20 },
                (true, false) => outer * (depth + 8),
                (false, _) => depth * (outer + if rounded { 4 } else { 8 }),
            };
            numbers * x.dtype.size()
        };
        let panel = p.k.div_ceil(depth);
        let a = tile(&p.a, p.a.dense[1], size[0]);
        let dealt = !wide && p.k <= SHALLOW;
        let b = match dealt {
            true => size[1] * (panel * depth + 8) * p.dtype.size(),
            false => panel * tile(&p.b, p.b.dense[0], size[1]),
        };
        let slots = (MOST_BYTES.checked_sub(b)? / a).min(4);
        (slots >= 3).then_some(Resident { panel, dealt, slots, bytes: b + slots * a })
    }

    /// How many blocks of so many threads a multiprocessor holds.
    pub(super) fn together(&self, threads: usize) -> usize {
        let most = if threads <= FEW_THREADS { MOST_BLOCKS } else { 1 };
        (SHARED_BYTES / (self.bytes + RESERVED_BYTES)).clamp(1, most)
    }

    /// How many blocks of so many threads fill a GPU, as many for each tile along n.
    pub(super) fn blocks(&self, tiles: [usize; 2], threads: usize, multiprocessors: usize) -> usize {
        (multiprocessors * self.together(threads) / tiles[1]).clamp(1, tiles[0]) * tiles[1]
    }
}
