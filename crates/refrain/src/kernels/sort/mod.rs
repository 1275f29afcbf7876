//! A stable sort on CUDA, of 32-bit keys. With it, an operation finds for each position the entries of an index that name it,
//! in order, so that positions are summed without atomics, always in the same order. Wider keys are sorted by 32 bits at a
//! time, lowest first.

use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::{Error, Result};

const COMMON: &str = include_str!("common.cu");

static COUNT: Source = Source { name: "sort", parts: &[COMMON, include_str!("count.cu")] };
static SUM_UP: Source = Source { name: "sort", parts: &[COMMON, include_str!("sum_up.cu")] };
static PLACE: Source = Source { name: "sort", parts: &[COMMON, include_str!("place.cu")] };

const DIGITS: usize = 256;
const DIGIT_BITS: u32 = 8;
const THREADS: u32 = 256;
/// Keys per block.
const KEYS: usize = 2048;

/// The sort of `n` keys: `u32` numbers up to and including `largest`.
pub(crate) struct Sort {
    n: usize,
    passes: u32,
}

/// Keys in order, and which entry each came from: `u32`.
pub(crate) struct Sorted {
    pub(crate) keys: Pointer,
    pub(crate) entries: Pointer,
}

params! {
    struct CountArgs {
        keys: Pointer = "const u32*",
        counts: Pointer = "u32*",
        n: i64,
        shift: i64,
    }

    struct SumUpArgs {
        counts: Pointer = "u32*",
        totals: Pointer = "u32*",
        blocks: i64,
    }

    struct PlaceArgs {
        keys: Pointer = "const u32*",
        entries: Pointer = "const u32*",
        counts: Pointer = "const u32*",
        totals: Pointer = "const u32*",
        to_keys: Pointer = "u32*",
        to_entries: Pointer = "u32*",
        n: i64,
        shift: i64,
    }
}

impl Sort {
    /// # Errors
    /// If there are too many keys or they are too large.
    pub(crate) fn new(op: &'static str, n: usize, largest: usize) -> Result<Sort> {
        const LIMIT: usize = 1 << 31;
        if n >= LIMIT || largest >= 2 * LIMIT {
            return Err(Error::invalid(
                op,
                format!(
                    "the index has {n} elements that name up to {largest} positions; on a GPU there must be fewer \
                     than {LIMIT} elements and {} positions (split the tensors)",
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

    /// Bytes of `n` words, aligned.
    fn row(&self) -> usize {
        (self.n * 4).next_multiple_of(256)
    }

    /// The workspace bytes of the sort.
    pub(crate) fn workspace(&self) -> usize {
        4 * self.row() + (self.blocks() + 1) * DIGITS * 4
    }

    /// Where the keys are written before the sort.
    pub(crate) fn keys(&self) -> Pointer {
        Pointer::WORKSPACE
    }

    /// Where keys and entries are after so many passes.
    pub(crate) fn after(&self, passes: u32) -> Sorted {
        let half = Pointer::WORKSPACE.plus((passes % 2) as usize * 2 * self.row());
        Sorted { keys: half, entries: half.plus(self.row()) }
    }

    /// Sorts, in working memory of [`Sort::workspace`] bytes.
    pub(crate) fn run(&self, args: &mut CudaArgs<'_>) -> Result<Sorted> {
        let passes = self.run_after(0, args)?;
        Ok(self.after(passes))
    }

    /// Sorts after `done` passes of earlier sorts of as many keys: what those have left, with new keys in their place
    /// ([`Sort::after`]), stably. Returns how many passes are done then.
    pub(crate) fn run_after(&self, done: u32, args: &mut CudaArgs<'_>) -> Result<u32> {
        let (blocks, n) = (self.blocks(), self.n as i64);
        let counts = Pointer::WORKSPACE.plus(4 * self.row());
        let totals = counts.plus(blocks * DIGITS * 4);
        for pass in done..done + self.passes {
            let shift = i64::from((pass - done) * DIGIT_BITS);
            let (from, to) = (self.after(pass), self.after(pass + 1));
            let count = CountArgs { keys: from.keys, counts, n, shift };
            args.kernel(KernelSpec::new(&COUNT, "count"), Grid::line(blocks, THREADS), &count)?;
            let sum_up = SumUpArgs { counts, totals, blocks: blocks as i64 };
            args.kernel(KernelSpec::new(&SUM_UP, "sum_up"), Grid::line(DIGITS, THREADS), &sum_up)?;
            let place = PlaceArgs {
                keys: from.keys,
                entries: from.entries,
                counts,
                totals,
                to_keys: to.keys,
                to_entries: to.entries,
                n,
                shift,
            };
            let spec = KernelSpec::new(&PLACE, "place").flag("FIRST", pass == 0);
            args.kernel(spec, Grid::line(blocks, THREADS), &place)?;
        }
        Ok(done + self.passes)
    }
}
