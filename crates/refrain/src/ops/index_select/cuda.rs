//! `index_select`, `index_add` and `index_reduce` on CUDA.

use super::reduce::{IndexReduction, Reduction};
use crate::device::Launch;
use crate::device::cuda::{
    Bounds, ChainArgs, CudaArgs, Grid, HEAD_AXES, KernelSpec, Leading, Pick, Pointer, Reporter, Source,
    Summing, params,
};
use crate::error::Result;
use crate::kernels::elementwise::chain::{LOADS, VALUES};
use crate::kernels::sort::Sort;
use crate::kernels::units;
use crate::tensor::DType;

static SELECT: Source = Source { name: "index_select", parts: &[include_str!("kernel.cu")] };
static KEYS: Source = Source { name: "index_order", parts: &[include_str!("keys.cu")] };
static ENDS: Source = Source { name: "index_order", parts: &[include_str!("ends.cu")] };
static REDUCE: Source = Source { name: "index_reduce", parts: &[include_str!("reduce.cu")] };
static REDUCE_HEADED: Source =
    Source { name: "index_reduce", parts: &[VALUES, LOADS, include_str!("reduce.cu")] };

const THREADS: usize = 256;
/// If the index has more entries than this, a block does not search it.
const MOST: usize = 4096;
/// If all blocks together would search more entries than this, the index is sorted.
const LOOKS: usize = 1 << 22;
/// If there are so many positions, several share a block, each a part of its threads, and take turns: the gradient of 4,096 rows of 64
/// numbers in a table of 100,000 took 148 us on an H200 with a block for each position.
const MANY_ROWS: usize = 1 << 13;
/// Blocks for each multiprocessor that are enough, and turns at most.
const ENOUGH_BLOCKS: usize = 16;
const MAX_TURNS: usize = 8;
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

    struct IndexReduceArgs {
        x: Pointer = "const ELEMENT*",
        index: Pointer = "const ID*",
        /// The entries by positions, and where those of each position end, if they are ordered.
        entries: Pointer = "const u32*",
        ends: Pointer = "const u32*",
        /// What the result begins with, which may be y.
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

    struct HeadedArgs {
        own: IndexReduceArgs,
        head: ChainArgs<HEAD_AXES>,
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

/// Whether an index of `count` entries is ordered before slices are reduced at the `size` positions that it names. If not, the block of
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

/// Sums or extremes of slices at indexed positions, with the places of the operands and of the result.
#[derive(Clone, Copy, Debug)]
struct Reduce {
    reduction: Reduction,
    source: Pointer,
    index: Pointer,
    base: Option<Pointer>,
    /// Of the index: its entries, and where those of each position end.
    order: Option<[Pointer; 2]>,
    y: Pointer,
    /// Whether y is added to.
    accumulates: bool,
    /// Of the index, and of everything else.
    dtypes: [DType; 2],
    outer: usize,
    /// Of the axis in y.
    size: usize,
    /// Entries of the index.
    count: usize,
    width: usize,
}

/// On top of operand 2, if that is a base. `order` is the number of the first of two operands, the order of the index.
pub(super) fn reduce(
    reduction: Reduction,
    axis: usize,
    has_base: bool,
    order: Option<usize>,
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    let to = args.write_shape(0);
    if to.numel() == 0 {
        return Ok(());
    }
    let reduce = Reduce {
        reduction,
        source: args.read(0),
        index: args.read(1),
        base: has_base.then(|| args.read(2)),
        order: order.map(|first| [first, first + 1].map(|i| args.read(i))),
        y: args.write(0),
        accumulates: args.accumulate(0),
        dtypes: [args.read_dtype(1), args.write_dtype(0)],
        outer: to[..axis].iter().product(),
        size: to[axis],
        count: args.read_shape(1).numel(),
        width: to[axis + 1..].iter().product(),
    };
    if args.describes() {
        args.describe_summing(Box::new(reduce));
        return Ok(());
    }
    reduce.run(args, None)
}

impl Summing for Reduce {
    fn source(&self) -> usize {
        self.source.number()
    }

    /// Entries out of range are not looked at.
    fn visits_all(&self) -> bool {
        false
    }

    fn workspace(&self) -> usize {
        0
    }

    fn moved(&self, reads: &[Pointer], writes: &[Pointer]) -> Option<Box<dyn Summing>> {
        let moved = |pointer: Pointer| pointer.moved(reads, writes);
        let order = match self.order {
            Some([entries, ends]) => Some([moved(entries)?, moved(ends)?]),
            None => None,
        };
        let base = match self.base {
            Some(base) => Some(moved(base)?),
            None => None,
        };
        let [source, index, y] = [self.source, self.index, self.y].map(moved);
        Some(Box::new(Reduce { source: source?, index: index?, base, order, y: y?, ..*self }))
    }

    fn run(&self, args: &mut CudaArgs<'_>, head: Option<&dyn Leading>) -> Result<()> {
        let Reduce { source, index, y, outer, size, count, width, .. } = *self;
        let [ids, dtype] = self.dtypes;
        let base = self.base.unwrap_or(y);
        let lead = head.map(|head| head.lead(args, width)).transpose()?;
        let adjacent = [width * dtype.size(), args.alignment(base), args.alignment(y)];
        let vec = match &lead {
            Some(lead) if units::largest(adjacent).is_multiple_of(lead.vec * dtype.size()) => lead.vec,
            Some(_) => 1,
            None => units::largest(adjacent.into_iter().chain([args.alignment(source)])) / dtype.size(),
        };
        let lanes = (outer * width / vec).next_power_of_two().min(THREADS);
        let turns = size * lanes / (THREADS * args.multiprocessors() * ENOUGH_BLOCKS);
        let (lanes, rows) = match self.order.is_some() && lanes < THREADS && size >= MANY_ROWS {
            true => (lanes, THREADS / lanes * turns.clamp(1, MAX_TURNS)),
            false => (THREADS, 1),
        };
        let (kind, base_joins) = match self.reduction {
            Reduction::Sum => ("SUM", true),
            Reduction::Extreme { of: IndexReduction::Amax, include_self } => ("AMAX", include_self),
            Reduction::Extreme { of: IndexReduction::Amin, include_self } => ("AMIN", include_self),
        };
        let spec = KernelSpec::new(if lead.is_some() { &REDUCE_HEADED } else { &REDUCE }, "reduce")
            .word("KIND", kind)
            .flag("BASE_JOINS", base_joins)
            .dtype("ID", ids)
            .dtype("ELEMENT", dtype)
            .int("VEC", vec as i64)
            .flag("BASE", self.accumulates || self.base.is_some())
            .flag("IN_PLACE", args.same_place(base, y))
            .int("ROWS", rows as i64)
            .int("LANES", lanes as i64)
            .flag("SORTED", self.order.is_some())
            .flag("HEAD", lead.is_some());
        let [entries, ends] = self.order.unwrap_or([Pointer::NOTHING; 2]);
        let own = IndexReduceArgs {
            x: source,
            index,
            entries,
            ends,
            base,
            y,
            outer: outer as i64,
            size: size as i64,
            count: count as i64,
            width: width as i64,
            // An order has reported them.
            faults: if self.order.is_some() { Reporter::NONE } else { args.faults(Bounds::Axis) },
        };
        let wanted = (args.multiprocessors() * 16).div_ceil(size);
        let columns = (outer * width / vec).div_ceil(THREADS).min(wanted).clamp(1, MAX_Y);
        let blocks = size.div_ceil(rows);
        let grid = Grid { blocks: [blocks as u32, columns as u32, 1], ..Grid::line(blocks, THREADS as u32) };
        match lead {
            None => args.kernel(spec, grid, &own),
            Some(lead) => {
                let spec = lead.constants(spec);
                args.kernel(spec, grid, &HeadedArgs { own, head: lead.args })
            }
        }
    }

    fn boxed(&self) -> Box<dyn Summing> {
        Box::new(*self)
    }
}
