//! `index_select` and its adjoint on CUDA.

use crate::device::Launch;
use crate::device::cuda::{Bounds, CudaArgs, Grid, KernelSpec, Pick, Pointer, Reporter, Source, params};
use crate::error::Result;
use crate::kernels::sort::Sort;
use crate::kernels::units;

static SELECT: Source = Source { name: "index_select", parts: &[include_str!("kernel.cu")] };
static KEYS: Source = Source { name: "index_add", parts: &[include_str!("keys.cu")] };
static ENDS: Source = Source { name: "index_add", parts: &[include_str!("ends.cu")] };
static ADD: Source = Source { name: "index_add", parts: &[include_str!("add.cu")] };

const THREADS: usize = 256;
/// If the index has more entries than this, a block does not search it.
const MOST: usize = 4096;
/// If all blocks together would search more entries than this, the index is sorted.
const LOOKS: usize = 1 << 22;
/// So many positions of narrow slices share a block, a warp for each, if there are so many of them: the gradient of 4,096 rows of 64
/// numbers in a table of 100,000 took 148 us on an H200 with a block for each position.
const SHARED_ROWS: usize = 32;
const MANY_ROWS: usize = 1 << 13;
const NARROW: usize = 256;
/// The maximum number of blocks in the second dimension.
const MAX_Y: usize = 65_535;

params! {
    struct SelectArgs {
        x: Pointer = "const UNIT*",
        index: Pointer = "const ID*",
        y: Pointer = "UNIT*",
        outer: i64,
        /// Of the axis in x.
        size: i64,
        /// Entries of the index.
        count: i64,
        /// Units of a slice.
        width: i64,
        missing: u64,
        faults: Reporter,
    }

    struct KeysArgs {
        index: Pointer = "const ID*",
        keys: Pointer = "u32*",
        count: i64,
        size: i64,
        faults: Reporter,
    }

    struct EndsArgs {
        keys: Pointer = "const u32*",
        ends: Pointer = "u32*",
        count: i64,
        size: i64,
    }

    struct IndexAddArgs {
        x: Pointer = "const ELEMENT*",
        index: Pointer = "const ID*",
        /// The entries by positions, and where those of each position end, if they are ordered.
        entries: Pointer = "const u32*",
        ends: Pointer = "const u32*",
        /// What is added to, which may be y.
        base: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        outer: i64,
        /// Of the axis in y.
        size: i64,
        /// Entries of the index.
        count: i64,
        /// Elements of a slice.
        width: i64,
        faults: Reporter,
    }
}

pub(super) fn select(axis: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    let (from, dtype) = (args.read_shape(0), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let count = args.read_shape(1).numel();
    let outer: usize = from[..axis].iter().product();
    let width = from[axis + 1..].iter().product::<usize>();
    if args.describes() {
        args.describe_pick(Pick { table: 0, index: 1, count, size: from[axis], width });
        return Ok(());
    }
    let width = width * dtype.size();
    let unit = units::largest([width, args.input(0).alignment(), args.output(0).alignment()]);
    let all = n * dtype.size() / unit;
    let kernel_args = SelectArgs {
        x: args.read(0),
        index: args.read(1),
        y: args.write(0),
        outer: outer as i64,
        size: from[axis] as i64,
        count: count as i64,
        width: (width / unit) as i64,
        missing: units::missing(dtype),
        faults: args.faults(Bounds::Axis),
    };
    let spec =
        units::constants(KernelSpec::new(&SELECT, "select").dtype("ID", args.read_dtype(1)), unit, all);
    args.kernel(spec, units::grid(args, all), &kernel_args)
}

/// Whether an index of `count` entries is ordered before slices are added at the `size` positions that it names. If not, the block of
/// a position searches it.
pub(super) fn needs_order(size: usize, count: usize) -> bool {
    count > MOST || count.saturating_mul(size) > LOOKS
}

pub(super) fn workspace(size: usize, launch: &Launch<'_>) -> Result<usize> {
    let count = launch.reads[0].layout.numel();
    Ok(Sort::new(launch.op, count, size)?.workspace())
}

/// The entries of an index in the order of the positions that they name, and where those of each of `size` positions end.
pub(super) fn order(size: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let count = args.read_shape(0).numel();
    let sort = Sort::new(args.op(), count, size)?;
    let kernel_args = KeysArgs {
        index: args.read(0),
        keys: sort.keys(),
        count: count as i64,
        size: size as i64,
        faults: args.faults(Bounds::Axis),
    };
    let spec = KernelSpec::new(&KEYS, "keys").dtype("ID", args.read_dtype(0));
    args.kernel(spec, units::grid(args, count), &kernel_args)?;
    let sorted = sort.run(Some(args.write(0)), args)?;
    let kernel_args =
        EndsArgs { keys: sorted.keys, ends: args.write(1), count: count as i64, size: size as i64 };
    args.kernel(KernelSpec::new(&ENDS, "ends"), units::grid(args, size), &kernel_args)
}

/// Adds to operand 2, if that is a base. `order` is the number of the first of two operands, the order of the index.
pub(super) fn add(axis: usize, has_base: bool, order: Option<usize>, args: &mut CudaArgs<'_>) -> Result<()> {
    let to = args.write_shape(0);
    if to.numel() == 0 {
        return Ok(());
    }
    let (size, count) = (to[axis], args.read_shape(1).numel());
    let outer: usize = to[..axis].iter().product();
    let width: usize = to[axis + 1..].iter().product();
    let ids = args.read_dtype(1);
    let is_narrow = outer * width <= NARROW && size >= MANY_ROWS;
    let rows = if order.is_some() && is_narrow { SHARED_ROWS } else { 1 };
    let y = args.write(0);
    let base = if has_base { args.read(2) } else { y };
    let adds = args.accumulate(0) || has_base;
    let dtype = args.write_dtype(0);
    let vec = units::largest([
        width * dtype.size(),
        args.input(0).alignment(),
        args.alignment(base),
        args.alignment(y),
    ]) / dtype.size();
    let spec = KernelSpec::new(&ADD, "add")
        .dtype("ID", ids)
        .dtype("ELEMENT", dtype)
        .int("VEC", vec as i64)
        .flag("ADD", adds)
        .flag("IN_PLACE", args.same_place(base, y))
        .int("ROWS", rows as i64)
        .flag("SORTED", order.is_some());
    let kernel_args = IndexAddArgs {
        x: args.read(0),
        index: args.read(1),
        entries: order.map_or(Pointer::NOTHING, |first| args.read(first)),
        ends: order.map_or(Pointer::NOTHING, |first| args.read(first + 1)),
        base,
        y,
        outer: outer as i64,
        size: size as i64,
        count: count as i64,
        width: width as i64,
        // An order has reported them.
        faults: if order.is_some() { Reporter::NONE } else { args.faults(Bounds::Axis) },
    };
    let wanted = (args.multiprocessors() * 16).div_ceil(size);
    let columns = (outer * width / vec).div_ceil(THREADS).min(wanted).clamp(1, MAX_Y);
    let blocks = size.div_ceil(rows);
    let grid = Grid { blocks: [blocks as u32, columns as u32, 1], ..Grid::line(blocks, THREADS as u32) };
    args.kernel(spec, grid, &kernel_args)
}
