//! Sorting on CUDA. A short line is sorted by a block, in shared memory. The first few elements of a long line are found by
//! rounds: blocks sort tiles of it and keep the first ones of each, until what remains is one tile. Other lines are sorted by
//! the bits of their keys.
//!
//! All ways compare by the key and then by the position, so that they give the same result.

use super::Sort as SortOp;
use super::gradient::SortBackward;
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::kernels::sort::{ELEMENTS, Lines, Sort};
use crate::kernels::units;
use crate::tensor::DType;

static TILE: Source = Source { name: "sort_lines", parts: &[ELEMENTS, include_str!("tile.cu")] };
static BACKWARD: Source = Source { name: "sort_backward", parts: &[include_str!("backward.cu")] };

/// The most and the fewest elements that a block sorts.
const MOST: usize = 2048;
const FEWEST: usize = 64;
/// The most elements that a thread sorts.
const ITEMS: usize = 8;
/// Rounds find at most this many elements, so that each round leaves an eighth.
const FEW: usize = MOST / 8;

params! {
    struct TileArgs {
        x: Pointer = "const IN*",
        /// The results. Without elements, only positions are wanted.
        values: Pointer = "IN*",
        positions: Pointer = "i64*",
        /// The positions that a round begins with (count a line), and those that it keeps (of each tile).
        from: Pointer = "const u32*",
        to: Pointer = "u32*",
        count: i64,
        tiles: i64,
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

/// The sort of the lines by the bits of their keys, if they are not sorted by blocks, in rounds.
fn by_bits(op: &SortOp, dtype: DType) -> Result<Option<Sort>> {
    let Extent { outer, n, inner } = op.extent;
    if n <= MOST || op.keep <= FEW {
        return Ok(None);
    }
    Sort::of_lines(op.name, outer * inner, n, dtype).map(Some)
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
    if lines * op.keep == 0 {
        return Ok(0);
    }
    if let Some(sort) = by_bits(op, dtype)? {
        return Ok(sort.workspace());
    }
    if n <= MOST {
        return Ok(0);
    }
    let first = kept(op, n);
    Ok(row(lines, first) + row(lines, kept(op, first)))
}

pub(super) fn sort(op: &SortOp, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = op.extent;
    let lines = outer * inner;
    if lines * op.keep == 0 {
        return Ok(());
    }
    let dtype = args.read_dtype(0);
    let (x, positions) = (args.read(0), args.write(op.positions()));
    let values = op.values.then(|| args.write(0));
    if let Some(sort) = by_bits(op, dtype)? {
        let (descending, keep) = (op.descending, op.keep);
        return sort.run_lines(&Lines { x, dtype, values, positions, descending, inner, keep }, args);
    }
    let mut count = n;
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
        // A block has a warp or more.
        let items = (size / 32).min(ITEMS);
        let kernel_args = TileArgs {
            x,
            values: values.unwrap_or(Pointer::NOTHING),
            positions,
            from,
            to,
            count: count as i64,
            tiles: tiles as i64,
            n: n as i64,
            inner: inner as i64,
            keep: op.keep as i64,
        };
        let spec = KernelSpec::new(&TILE, "sort_tile")
            .dtype("IN", dtype)
            .word("KEY", if dtype.size() == 8 { "u64" } else { "u32" })
            .flag("DESCENDING", op.descending)
            .flag("VALUES", op.values)
            .int("SIZE", size as i64)
            .int("ITEMS", items as i64)
            .flag("FIRST", from == Pointer::NOTHING)
            .flag("LAST", tiles == 1);
        args.kernel(spec, Grid::line(lines * tiles, (size / items) as u32), &kernel_args)?;
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
