//! A stable sort on CUDA: which entries of an index name each place, in their order. With it places are
//! summed without atomics, and always in the same order.

use crate::device::cuda::{CudaArgs, Grid, Params, Source, Spec};
use crate::error::{Error, Result};

static SOURCE: Source = Source { name: "sort", parts: &[include_str!("kernel.cu")] };

const DIGITS: usize = 256;
const DIGIT_BITS: u32 = 8;
const THREADS: u32 = 256;
/// Keys that a block sorts.
const KEYS: usize = 2048;

/// The sort of `n` keys, `u32` numbers up to and including `largest`.
pub(crate) struct Sort {
    n: usize,
    passes: u32,
}

/// Keys in order, and which entry each came from: addresses of `u32`.
pub(crate) struct Sorted {
    pub(crate) keys: u64,
    pub(crate) entries: u64,
}

impl Sort {
    /// # Errors
    /// If keys or their number do not fit.
    pub(crate) fn new(op: &'static str, n: usize, largest: usize) -> Result<Sort> {
        const LIMIT: usize = 1 << 31;
        if n >= LIMIT || largest >= 2 * LIMIT {
            return Err(Error::invalid(
                op,
                format!(
                    "an index of {n} elements that names up to {largest} places; on a GPU there may be fewer \
                     than {LIMIT} elements and {} places (split the tensors)",
                    2 * LIMIT
                ),
            ));
        }
        let bits = usize::BITS - largest.leading_zeros();
        Ok(Sort { n, passes: bits.div_ceil(DIGIT_BITS).max(1) })
    }

    fn blocks(&self) -> usize {
        self.n.div_ceil(KEYS)
    }

    /// Bytes of `n` words, up to a boundary.
    fn row(&self) -> usize {
        (self.n * 4).next_multiple_of(256)
    }

    /// Bytes of memory to work in.
    pub(crate) fn workspace(&self) -> usize {
        4 * self.row() + (self.blocks() + 1) * DIGITS * 4
    }

    /// Where the keys are written before the sort, in memory of [`Sort::workspace`] bytes at `memory`.
    pub(crate) fn keys(&self, memory: u64) -> u64 {
        memory
    }

    pub(crate) fn run(&self, args: &mut CudaArgs<'_>, memory: u64) -> Result<Sorted> {
        let row = self.row() as u64;
        let (blocks, n) = (self.blocks(), self.n);
        let counts = memory + 4 * row;
        let totals = counts + (blocks * DIGITS * 4) as u64;
        let at = |pass: u32| {
            let half = memory + u64::from(pass % 2) * 2 * row;
            Sorted { keys: half, entries: half + row }
        };
        for pass in 0..self.passes {
            let shift = (pass * DIGIT_BITS) as i32;
            let (from, to) = (at(pass), at(pass + 1));
            let spec = |entry| Spec::new(&SOURCE, entry).flag("FIRST", pass == 0 && entry == "place");
            let count = Params::new().pointer(from.keys).pointer(counts).size(n).i32(shift);
            args.kernel(spec("count"), Grid::line(blocks, THREADS), &count)?;
            let sum_up = Params::new().pointer(counts).pointer(totals).size(blocks);
            args.kernel(spec("sum_up"), Grid::line(DIGITS, THREADS), &sum_up)?;
            let place = Params::new()
                .pointer(from.keys)
                .pointer(from.entries)
                .pointer(counts)
                .pointer(totals)
                .pointer(to.keys)
                .pointer(to.entries)
                .size(n)
                .i32(shift);
            args.kernel(spec("place"), Grid::line(blocks, THREADS), &place)?;
        }
        Ok(at(self.passes))
    }
}
