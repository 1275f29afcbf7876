//! Sorting on CUDA. A short line is sorted by a block, in shared memory. The first few elements of a long line are found by
//! rounds: blocks sort tiles of it and keep the first ones of each, until what remains is one tile. Otherwise all lines are
//! sorted together, by the bits of their keys and then by the number of their line.
//!
//! All ways compare by the key and then by the position, so that they give the same result.

use super::Sort as SortOp;
use super::gradient::SortBackward;
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::kernels::sort::Sort;
use crate::kernels::units;
use crate::tensor::DType;

const KEY: &str = include_str!("key.cu");
static TILE: Source = Source { name: "sort_lines", parts: &[KEY, include_str!("tile.cu")] };
static KEYS: Source = Source { name: "sort_lines", parts: &[KEY, include_str!("keys.cu")] };
static TAKE: Source = Source { name: "sort_lines", parts: &[KEY, include_str!("take.cu")] };
static BACKWARD: Source = Source { name: "sort_backward", parts: &[include_str!("backward.cu")] };

/// The most and the fewest elements that a block sorts.
const MOST: usize = 2048;
const FEWEST: usize = 64;
/// Rounds find at most this many elements, so that each round leaves an eighth.
const FEW: usize = MOST / 8;

params! {
    struct SortArgs {
        x: Pointer = "const IN*",
        /// The results. Without elements, only positions are wanted.
        values: Pointer = "IN*",
        positions: Pointer = "i64*",
        /// Of a round: the positions that it begins with (count a line), and those that it keeps (of each tile).
        from: Pointer = "const u32*",
        to: Pointer = "u32*",
        count: i64,
        tiles: i64,
        /// Of a sort by bits: the keys, and the elements that they belong to.
        keys: Pointer = "u32*",
        entries: Pointer = "const u32*",
        all: i64,
        n: i64,
        inner: i64,
        keep: i64,
    }

    struct SortBackwardArgs {
        d: Pointer = "const OUT*",
        positions: Pointer = "const i64*",
        y: Pointer = "OUT*",
        /// Elements of the gradient; elements of the operands.
        all: i64,
        kept: i64,
        n: i64,
        inner: i64,
        keep: i64,
    }
}

/// How lines are sorted.
enum Way {
    /// By blocks, in rounds.
    Tiles,
    /// By the bits of their keys: the sorts by the lower bits, the upper bits, and the line.
    Bits { keys: Sort, words: i64, lines: Option<Sort> },
}

impl Way {
    fn of(op: &SortOp, dtype: DType) -> Result<Way> {
        let Extent { outer, n, inner } = op.extent;
        let lines = outer * inner;
        if n <= MOST || op.keep <= FEW {
            return Ok(Way::Tiles);
        }
        let bits = 8 * dtype.size();
        let largest = ((1u64 << bits.min(32)) - 1) as usize;
        Ok(Way::Bits {
            keys: Sort::new(op.name, lines * n, largest)?,
            words: bits.div_ceil(32) as i64,
            lines: if lines > 1 { Some(Sort::new(op.name, lines * n, lines - 1)?) } else { None },
        })
    }
}

/// How many positions the rounds keep of a line, round after round.
fn kept(op: &SortOp, count: usize) -> usize {
    count.div_ceil(MOST) * op.keep
}

fn row(lines: usize, count: usize) -> usize {
    (lines * count * 4).next_multiple_of(256)
}

pub(super) fn workspace(op: &SortOp, dtype: DType) -> Result<usize> {
    let Extent { outer, n, inner } = op.extent;
    let lines = outer * inner;
    match Way::of(op, dtype)? {
        _ if lines * op.keep == 0 => Ok(0),
        // The lines' number needs no more than the keys.
        Way::Bits { keys, .. } => Ok(keys.workspace()),
        Way::Tiles if n <= MOST => Ok(0),
        Way::Tiles => {
            let first = kept(op, n);
            Ok(row(lines, first) + row(lines, kept(op, first)))
        }
    }
}

pub(super) fn sort(op: &SortOp, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = op.extent;
    let lines = outer * inner;
    if lines * op.keep == 0 {
        return Ok(());
    }
    let dtype = args.read_dtype(0);
    let kernel_args = SortArgs {
        x: args.read(0),
        values: if op.values { args.write(0) } else { Pointer::NOTHING },
        positions: args.write(op.positions()),
        from: Pointer::NOTHING,
        to: Pointer::NOTHING,
        count: n as i64,
        tiles: 1,
        keys: Pointer::NOTHING,
        entries: Pointer::NOTHING,
        all: (lines * n) as i64,
        n: n as i64,
        inner: inner as i64,
        keep: op.keep as i64,
    };
    let constants = |source: &'static Source, entry: &'static str| {
        KernelSpec::new(source, entry)
            .dtype("IN", dtype)
            .flag("DESCENDING", op.descending)
            .flag("VALUES", op.values)
    };
    match Way::of(op, dtype)? {
        Way::Tiles => tiles(op, lines, kernel_args, constants, args),
        Way::Bits { keys, words, lines: by_line } => {
            let mut done = 0;
            for word in 0..words + i64::from(by_line.is_some()) {
                let sort = by_line.as_ref().filter(|_| word == words).unwrap_or(&keys);
                let at = keys.after(done);
                let kernel_args = SortArgs { keys: at.keys, entries: at.entries, ..kernel_args };
                let spec = constants(&KEYS, "sort_keys")
                    .int("WORD", if word == words { 2 } else { word })
                    .flag("FIRST", done == 0);
                args.kernel(spec, units::grid(args, lines * n), &kernel_args)?;
                done = sort.run_after(done, args)?;
            }
            let kernel_args = SortArgs { entries: keys.after(done).entries, ..kernel_args };
            args.kernel(constants(&TAKE, "sort_take"), units::grid(args, lines * op.keep), &kernel_args)
        }
    }
}

fn tiles(
    op: &SortOp,
    lines: usize,
    kernel_args: SortArgs,
    constants: impl Fn(&'static Source, &'static str) -> KernelSpec,
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    let mut count = op.extent.n;
    let second = args.workspace().plus(row(lines, kept(op, count)));
    let mut from = Pointer::NOTHING;
    let mut to = args.workspace();
    loop {
        let tiles = count.div_ceil(MOST);
        if lines * tiles > i32::MAX as usize {
            let message = format!("{lines} lines are too many to sort on a GPU at once; split the tensor");
            return Err(Error::invalid(op.name, message));
        }
        let size = if tiles > 1 { MOST } else { count.next_power_of_two().max(FEWEST) };
        let kernel_args = SortArgs { from, to, count: count as i64, tiles: tiles as i64, ..kernel_args };
        let spec = constants(&TILE, "sort_tile")
            .int("SIZE", size as i64)
            .flag("FIRST", from == Pointer::NOTHING)
            .flag("LAST", tiles == 1);
        args.kernel(spec, Grid::line(lines * tiles, size as u32 / 2), &kernel_args)?;
        if tiles == 1 {
            return Ok(());
        }
        count = kept(op, count);
        from = to;
        to = if to == second { args.workspace() } else { second };
    }
}

pub(super) fn backward(op: &SortBackward, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = op.extent;
    let (all, kept) = (outer * n * inner, outer * op.keep * inner);
    if all == 0 {
        return Ok(());
    }
    let kernel_args = SortBackwardArgs {
        d: args.read(0),
        positions: args.read(1),
        y: args.write(0),
        all: all as i64,
        kept: kept as i64,
        n: n as i64,
        inner: inner as i64,
        keep: op.keep as i64,
    };
    let dtype = args.write_dtype(0);
    let add = args.accumulate(0);
    if !add && op.keep < n {
        let spec = KernelSpec::new(&BACKWARD, "sort_backward").dtype("OUT", dtype).flag("ADD", false);
        args.kernel(spec.flag("ZERO", true), units::grid(args, all), &kernel_args)?;
    }
    if kept == 0 {
        return Ok(());
    }
    let spec = KernelSpec::new(&BACKWARD, "sort_backward").dtype("OUT", dtype).flag("ADD", add);
    args.kernel(spec.flag("ZERO", false), units::grid(args, kept), &kernel_args)
}
