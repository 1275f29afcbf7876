//! How tiles of operands are placed in shared memory, as in `tiles.cu`.

use crate::device::cuda::{MatrixOperand, Product};
use crate::tensor::DType;

/// The shared memory that a block can have on every GPU of compute capability 8.0 or later.
const MOST_BYTES: usize = 99 << 10;
/// The maximum number of tiles of both operands that are in shared memory at a time. For f32 it is fewer, so that
/// more blocks fit.
const MOST_STAGES: usize = 4;
const MOST_WIDE_STAGES: usize = 3;

/// Numbers per tile along k, if there are that many.
pub(super) const DEPTH: usize = 32;
/// The same for short sums.
const SHALLOW: usize = 16;

/// A tile of A and one of B, for parts of C of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedMemory {
    /// Numbers along k.
    pub(super) depth: usize,
    /// Bytes of a tile of A and of one of B.
    pub(super) tiles: [usize; 2],
    /// How many tiles of both fit.
    pub(super) stages: usize,
    /// Bytes of all of them.
    pub(super) bytes: usize,
}

impl SharedMemory {
    /// For parts of C of this size along m and n.
    pub(super) fn of(p: &Product, size: [usize; 2]) -> SharedMemory {
        let wide = p.dtype == DType::F32;
        let depth = if p.k <= SHALLOW { SHALLOW } else { DEPTH };
        let (a_along_k, b_along_k) = (p.a.dense[1], p.b.dense[0]);
        let tile = |x: &MatrixOperand, along_k: bool, outer: usize| {
            let rounded = !wide && x.dtype.size() == 4;
            let numbers = match (along_k, wide) {
                (true, true) => outer * depth / 16 * if a_along_k && b_along_k { 16 } else { 20 },
                (true, false) => outer * (depth + 8),
                (false, _) => depth * (outer + if rounded { 4 } else { 8 }),
            };
            numbers * x.dtype.size()
        };
        let tiles = [tile(&p.a, a_along_k, size[0]), tile(&p.b, b_along_k, size[1])];
        let both = tiles[0] + tiles[1];
        let most = if wide { MOST_WIDE_STAGES } else { MOST_STAGES };
        let stages = (MOST_BYTES / both).min(most);
        SharedMemory { depth, tiles, stages, bytes: stages * both }
    }
}
