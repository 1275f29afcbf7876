//! A stable sort on CUDA: of the elements of lines, or of 32-bit keys. With the latter, an operation finds for each position
//! the entries of an index that name it, in order, so that positions are summed without atomics, always in the same order.
//!
//! It is a radix sort in which the blocks of a pass tell each other what they have (Adinets and Merrill, "Onesweep: A Faster
//! Least Significant Digit Radix Sort for GPUs", 2022), so that a pass reads and writes its keys once. For each of few keys, one kernel
//! counts the keys before it.

use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::{Error, Result};
use crate::tensor::DType;

/// The text of keys of elements.
pub(crate) const ELEMENTS: &str = include_str!("elements.cu");
const COMMON: &str = include_str!("common.cu");

/// The kernels of a sort.
struct Kernels {
    count: Source,
    sum_up: Source,
    place: Source,
}

static OF_KEYS: Kernels = Kernels {
    count: Source { name: "sort", parts: &[COMMON, include_str!("count.cu")] },
    sum_up: Source { name: "sort", parts: &[COMMON, include_str!("sum_up.cu")] },
    place: Source { name: "sort", parts: &[COMMON, include_str!("place.cu")] },
};

static RANK: Source = Source { name: "sort", parts: &[include_str!("rank.cu")] };

static OF_ELEMENTS: Kernels = Kernels {
    count: Source { name: "sort", parts: &[ELEMENTS, COMMON, include_str!("count.cu")] },
    sum_up: Source { name: "sort", parts: &[ELEMENTS, COMMON, include_str!("sum_up.cu")] },
    place: Source { name: "sort", parts: &[ELEMENTS, COMMON, include_str!("place.cu")] },
};

const DIGITS: usize = 256;
const DIGIT_BITS: u32 = 8;
/// The length of a line is below.
const LIMIT: usize = 1 << 31;
/// Threads of a block that places keys.
const THREADS: usize = 512;
/// Of so many keys, each thread places few, so that there are enough blocks.
const FEW_KEYS: usize = 1 << 18;
/// Threads of a block that counts digits or sums the counts.
const COUNTING: usize = 1024;
/// The most blocks that count the digits of a line.
const PARTS: usize = 128;
/// Up to so many keys are compared with each other. Twice as many would take four times as long, which is about the time of the passes.
const MOST_RANKED: usize = 8192;
/// Threads of a block that does so, and keys that each of its warps places.
const RANKING: usize = 256;
const RANKED: usize = 4;

/// The sort of lines of `n` keys each.
pub(crate) struct Sort {
    lines: usize,
    n: usize,
    /// Bytes of a key: 4 or 8.
    key: usize,
    passes: usize,
    /// Whether each key is compared with all others, instead of passes.
    ranks: bool,
}

/// Lines along the middle of a tensor, and where the first elements of each go.
pub(crate) struct Lines {
    pub(crate) x: Pointer,
    pub(crate) dtype: DType,
    /// The results. Without elements, only positions are wanted.
    pub(crate) values: Option<Pointer>,
    pub(crate) positions: Pointer,
    pub(crate) descending: bool,
    pub(crate) inner: usize,
    pub(crate) keep: usize,
}

/// Keys in order, and which entry each came from: `u32`.
#[derive(Clone, Copy)]
pub(crate) struct Sorted {
    pub(crate) keys: Pointer,
    pub(crate) entries: Pointer,
}

params! {
    struct SortArgs {
        x: Pointer = "const IN*",
        values: Pointer = "IN*",
        positions: Pointer = "i64*",
        inner: i64,
        keep: i64,
        lines: i64,
        n: i64,
        /// Of a line.
        parts: i64,
        tiles: i64,
        /// Of each part and pass, how often each digit is there; of each line and pass, where the keys of each digit begin.
        counts: Pointer = "u32*",
        starts: Pointer = "u32*",
        passes: i64,
        pass: i64,
        keys: Pointer = "const KEY*",
        entries: Pointer = "const u32*",
        to_keys: Pointer = "KEY*",
        to_entries: Pointer = "u32*",
        /// What the tiles tell each other, of this pass and of the next one.
        states: Pointer = "u32*",
        next_states: Pointer = "u32*",
        /// The blocks of each pass that have begun.
        tickets: Pointer = "u32*",
    }
}

params! {
    struct RankArgs {
        keys: Pointer = "const u32*",
        n: i64,
        to_keys: Pointer = "u32*",
        to_entries: Pointer = "u32*",
    }
}

impl Sort {
    /// Of `n` keys: `u32` numbers up to and including `largest`.
    ///
    /// # Errors
    /// If there are too many keys or they are too large.
    pub(crate) fn new(op: &'static str, n: usize, largest: usize) -> Result<Sort> {
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
        let passes = bits.div_ceil(DIGIT_BITS).max(1) as usize;
        // Others are compared with a key plus one, which must not overflow.
        let ranks = n <= MOST_RANKED && largest < u32::MAX as usize;
        Ok(Sort { lines: 1, n, key: 4, passes, ranks })
    }

    /// Of lines of a tensor.
    ///
    /// # Errors
    /// If they are too long or too many.
    pub(crate) fn of_lines(op: &'static str, lines: usize, n: usize, dtype: DType) -> Result<Sort> {
        let sort = Sort { lines, n, key: dtype.size().max(4), passes: dtype.size(), ranks: false };
        if n >= LIMIT || lines * sort.passes.max(sort.tiles()) > i32::MAX as usize {
            let message = format!(
                "{lines} lines of {n} elements are too many to sort on a GPU at once; a line must have fewer than {LIMIT} \
                 elements (split the tensor)"
            );
            return Err(Error::invalid(op, message));
        }
        Ok(sort)
    }

    /// Keys that a thread places. Of few, more blocks place fewer each.
    fn placed(&self) -> usize {
        match () {
            () if self.key == 8 || self.n <= THREADS * 8 => 8,
            () if self.lines * self.n <= FEW_KEYS => 4,
            () => 16,
        }
    }

    /// The tiles of a line.
    fn tiles(&self) -> usize {
        self.n.div_ceil(THREADS * self.placed()).max(1)
    }

    /// Into how many parts a line is cut to count its digits.
    fn parts(&self) -> usize {
        (PARTS / self.lines.max(1)).clamp(1, self.tiles())
    }

    /// Bytes of the keys.
    fn keys_bytes(&self) -> usize {
        (self.lines * self.n * self.key).next_multiple_of(256)
    }

    /// Bytes of a word for each key.
    fn entries_bytes(&self) -> usize {
        (self.lines * self.n * 4).next_multiple_of(256)
    }

    /// Bytes of a word for each digit of each pass of each line.
    fn starts_bytes(&self) -> usize {
        self.lines * self.passes * DIGITS * 4
    }

    /// Bytes of a word for each digit of each tile.
    fn states_bytes(&self) -> usize {
        self.lines * self.tiles() * DIGITS * 4
    }

    /// The workspace bytes of the sort.
    pub(crate) fn workspace(&self) -> usize {
        2 * (self.keys_bytes() + self.entries_bytes() + self.states_bytes())
            + (self.parts() + 1) * self.starts_bytes()
            + 4 * self.passes
    }

    /// Where the keys are written before the sort.
    pub(crate) fn keys(&self) -> Pointer {
        self.before(0).keys
    }

    /// Where keys and entries are before a pass.
    fn before(&self, pass: usize) -> Sorted {
        let half = self.keys_bytes() + self.entries_bytes();
        let keys = Pointer::WORKSPACE.plus(pass % 2 * half);
        Sorted { keys, entries: keys.plus(self.keys_bytes()) }
    }

    /// Sorts keys, in working memory of [`Sort::workspace`] bytes, with the entries at `to`, if that is given, or there as well.
    pub(crate) fn run(&self, to: Option<Pointer>, args: &mut CudaArgs<'_>) -> Result<Sorted> {
        let sorted = self.before(if self.ranks { 1 } else { self.passes });
        let sorted = Sorted { entries: to.unwrap_or(sorted.entries), ..sorted };
        match self.ranks {
            true => self.rank(&sorted, args)?,
            false => self.sort(None, Some(&sorted), args)?,
        }
        Ok(sorted)
    }

    fn rank(&self, sorted: &Sorted, args: &mut CudaArgs<'_>) -> Result<()> {
        let kernel_args = RankArgs {
            keys: self.keys(),
            n: self.n as i64,
            to_keys: sorted.keys,
            to_entries: sorted.entries,
        };
        let spec = KernelSpec::new(&RANK, "rank").int("THREADS", RANKING as i64).int("KEYS", RANKED as i64);
        let blocks = self.n.div_ceil(RANKING / 32 * RANKED);
        args.kernel(spec, Grid::line(blocks, RANKING as u32), &kernel_args)
    }

    /// Sorts lines, in working memory of [`Sort::workspace`] bytes.
    pub(crate) fn run_lines(&self, lines: &Lines, args: &mut CudaArgs<'_>) -> Result<()> {
        self.sort(Some(lines), None, args)
    }

    /// Of lines, or of keys that end up at `sorted`.
    fn sort(&self, of: Option<&Lines>, sorted: Option<&Sorted>, args: &mut CudaArgs<'_>) -> Result<()> {
        let kernels = if of.is_some() { &OF_ELEMENTS } else { &OF_KEYS };
        let counts = Pointer::WORKSPACE.plus(2 * (self.keys_bytes() + self.entries_bytes()));
        let starts = counts.plus(self.parts() * self.starts_bytes());
        let states = starts.plus(self.starts_bytes());
        let mut kernel_args = SortArgs {
            x: of.map_or(Pointer::NOTHING, |l| l.x),
            values: of.and_then(|l| l.values).unwrap_or(Pointer::NOTHING),
            positions: of.map_or(Pointer::NOTHING, |l| l.positions),
            inner: of.map_or(1, |l| l.inner) as i64,
            keep: of.map_or(self.n, |l| l.keep) as i64,
            lines: self.lines as i64,
            n: self.n as i64,
            parts: self.parts() as i64,
            tiles: self.tiles() as i64,
            counts,
            starts,
            passes: self.passes as i64,
            pass: 0,
            keys: self.keys(),
            entries: Pointer::NOTHING,
            to_keys: Pointer::NOTHING,
            to_entries: Pointer::NOTHING,
            states,
            next_states: Pointer::NOTHING,
            tickets: states.plus(2 * self.states_bytes()),
        };
        let spec = |source: &'static Source, entry: &'static str, threads: usize, keys: usize| {
            let spec = KernelSpec::new(source, entry)
                .word("KEY", if self.key == 8 { "u64" } else { "u32" })
                .flag("ELEMENTS", of.is_some())
                .int("THREADS", threads as i64)
                .int("KEYS", keys as i64);
            match of {
                None => spec.word("IN", "u32"),
                Some(lines) => spec
                    .dtype("IN", lines.dtype)
                    .flag("DESCENDING", lines.descending)
                    .flag("VALUES", lines.values.is_some()),
            }
        };
        for (source, entry, blocks) in [
            (&kernels.count, "count", self.lines * self.parts()),
            (&kernels.sum_up, "sum_up", self.lines * self.passes),
        ] {
            let spec = spec(source, entry, COUNTING, 8).int("PASSES", self.passes as i64);
            args.kernel(spec, Grid::line(blocks, COUNTING as u32), &kernel_args)?;
        }
        for pass in 0..self.passes {
            let from = self.before(pass);
            let to = sorted.filter(|_| pass + 1 == self.passes).copied().unwrap_or(self.before(pass + 1));
            let other = |pass: usize| states.plus(pass % 2 * self.states_bytes());
            kernel_args = SortArgs {
                pass: pass as i64,
                keys: from.keys,
                entries: from.entries,
                to_keys: to.keys,
                to_entries: to.entries,
                states: other(pass),
                next_states: other(pass + 1),
                ..kernel_args
            };
            let spec = spec(&kernels.place, "place", THREADS, self.placed())
                .flag("FIRST", pass == 0)
                .flag("LAST", of.is_some() && pass + 1 == self.passes);
            args.kernel(spec, Grid::line(self.lines * self.tiles(), THREADS as u32), &kernel_args)?;
        }
        Ok(())
    }
}
