//! CUDA kernels that move elements without computing. They move units of up to 16 bytes, for any dtype.

use crate::device::cpu::numeric::{Stored, with_stored};
use crate::device::cuda::{CudaArgs, Grid, KernelSpec};
use crate::tensor::DType;

/// Threads of a block.
pub(crate) const THREADS: usize = 256;

/// The largest unit, in bytes, that all of `bytes` (sizes of pieces, alignments) are multiples of.
pub(crate) fn largest(bytes: impl IntoIterator<Item = usize>) -> usize {
    let all = bytes.into_iter().fold(16, |all, b| all | b);
    1 << all.trailing_zeros()
}

/// Adds the constants of a kernel that moves units of `bytes` and counts to `reach`.
pub(crate) fn constants(spec: KernelSpec, bytes: usize, reach: usize) -> KernelSpec {
    let unit = match bytes {
        1 => "unit1",
        2 => "unit2",
        4 => "unit4",
        8 => "unit8",
        _ => "unit16",
    };
    spec.word("UNIT", unit).word("INDEX", index_type(reach))
}

/// The type that can count to `reach` plus the steps of a grid.
pub(crate) fn index_type(reach: usize) -> &'static str {
    if reach < 1 << 30 { "u32" } else { "u64" }
}

/// The grid for `n` threads, each of which may take several turns.
pub(crate) fn grid(args: &CudaArgs<'_>, n: usize) -> Grid {
    Grid::line(n.div_ceil(THREADS).min(args.multiprocessors() * 64), THREADS as u32)
}

/// An element repeated to fill eight bytes.
fn repeated(bits: u64, size: usize) -> u64 {
    (0..8 / size).fold(0, |all, i| all | bits << (8 * size * i))
}

/// The value for an index out of range, in eight bytes: NaN, or 0 for dtypes without NaN.
pub(crate) fn missing(dtype: DType) -> u64 {
    if dtype.is_float() { value(dtype, f64::NAN) } else { 0 }
}

/// A value of the dtype, repeated to fill eight bytes.
pub(crate) fn value(dtype: DType, value: f64) -> u64 {
    let mut bits = [0; 8];
    with_stored!(dtype, T => {
        bits[..dtype.size()].copy_from_slice(bytemuck::bytes_of(&T::from_number(value)));
    });
    repeated(u64::from_le_bytes(bits), dtype.size())
}
