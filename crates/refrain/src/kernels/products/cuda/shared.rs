//! How tiles of operands lie in shared memory, as `tiles.cu` has it.

use crate::device::cuda::{Matrix, Product};
use crate::tensor::DType;

/// SharedMemory memory that a block can have on every GPU of compute capability 8.0 and later.
const MOST_BYTES: usize = 99 << 10;
/// Tiles of both operands that find room at once, at most; of f32 fewer, so that more blocks do.
const MOST_STAGES: usize = 4;
const MOST_WIDE_STAGES: usize = 3;

/// Numbers of a tile along k, where there are that many.
pub(super) const DEPTH: usize = 32;
/// And of sums of few numbers.
const SHALLOW: usize = 16;

/// A tile of A and one of B, for parts of C of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedMemory {
    /// Numbers along k.
    pub(super) depth: usize,
    /// How many of both find room.
    pub(super) stages: usize,
    /// Bytes of all of them.
    pub(super) bytes: usize,
}

impl SharedMemory {
    /// For parts of C of so many numbers along m and n.
    pub(super) fn of(p: &Product, size: [usize; 2]) -> SharedMemory {
        let wide = p.dtype == DType::F32;
        let depth = if p.k <= SHALLOW { SHALLOW } else { DEPTH };
        let (a_along_k, b_along_k) = (p.a.dense[1], p.b.dense[0]);
        let tile = |x: &Matrix, along_k: bool, outer: usize| {
            let rounded = !wide && x.dtype.size() == 4;
            let numbers = match (along_k, wide) {
                (true, true) => outer * depth / 16 * if a_along_k && b_along_k { 16 } else { 20 },
                (true, false) => outer * (depth + 8),
                (false, _) => depth * (outer + if rounded { 4 } else { 8 }),
            };
            numbers * x.dtype.size()
        };
        let both = tile(&p.a, a_along_k, size[0]) + tile(&p.b, b_along_k, size[1]);
        let most = if wide { MOST_WIDE_STAGES } else { MOST_STAGES };
        let stages = (MOST_BYTES / both).min(most);
        SharedMemory { depth, stages, bytes: stages * both }
    }
}
