//! The machine of reductions on CUDA: `[outer, n, inner]` to `[outer, inner]`, in one pass, or in two where
//! there are few results and much input.
//!
//! What is combined in which order follows from the extents alone, so that results do not depend on the
//! device's size.

use smallvec::SmallVec;

use crate::device::cuda::{CudaArgs, Grid, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::tensor::DType;

/// What reducers see of a reduction; comes before theirs.
pub(crate) const REDUCTION: &str = include_str!("reduction.cu");
/// The passes; come after the reducer.
pub(crate) const MACHINE: &str = include_str!("machine.cu");
/// The reducer of means and variances, but for its results.
pub(crate) const MOMENTS: &str = include_str!("moments.cu");

/// Threads of a block in the first and in the second pass.
const THREADS: usize = 256;
const PARTIAL_THREADS: usize = 512;
/// Neighbours that a thread takes at once, at most, and where that many do not divide an extent.
const MAX_VEC: usize = 8;
const LESSER_VEC: usize = 4;
/// Blocks that are enough to fill a device: a reduction to fewer results is cut into pieces.
const BLOCKS: usize = 1024;
/// Elements of a row that are worth a block.
const ROW_PIECE: usize = 4096;
/// And at most, which bounds the rounding error of what a thread adds one after the other.
const MAX_ROW_PIECE: usize = 1 << 17;
/// Rows of columns that are worth a thread, and at most.
const COLUMN_ROWS: usize = 8;
const MAX_COLUMN_ROWS: usize = 512;
/// States that are worth a thread in the second pass.
const PARTIAL_ROWS: usize = 4;

/// Numbers that there is always room for.
const SCALARS: usize = 4;

/// A reduction of operands to results.
pub(crate) struct Reduction {
    pub(crate) extent: Extent,
    /// Addresses and dtypes of one or two operands.
    pub(crate) inputs: SmallVec<[(u64, DType); 2]>,
    /// Addresses of results, and whether they are added to.
    pub(crate) outputs: SmallVec<[(u64, bool); 4]>,
    /// Addresses and numbers that the reducer knows the meaning of.
    pub(crate) extra: SmallVec<[u64; 4]>,
    pub(crate) scalars: SmallVec<[f64; 4]>,
    /// Room for states, as [`room`] says.
    pub(crate) partial: u64,
    /// How many results there are in the end, if not `outer * inner`: result `i` of the first pass then
    /// belongs to `i % totals`.
    pub(crate) totals: Option<usize>,
}

/// How a reduction is spread over threads.
struct Plan {
    vec: usize,
    shift: u32,
    pieces: usize,
    piece: usize,
    blocks: usize,
}

/// How many neighbours of elements of `size` bytes a thread takes at once, where these divide `extent`.
fn neighbours(extent: usize, size: usize) -> usize {
    let widest = (16 / size).clamp(1, MAX_VEC);
    [widest, widest.min(LESSER_VEC)].into_iter().find(|&v| extent.is_multiple_of(v)).unwrap_or(1)
}

fn plan(extent: Extent, size: usize) -> Plan {
    let Extent { outer, n, inner } = extent;
    if inner == 1 {
        // A single row may end within a vector.
        let vec = neighbours(if outer == 1 { 0 } else { n }, size);
        let block = n > ROW_PIECE || (n > ROW_PIECE / 4 && outer < ROW_PIECE);
        let lanes = if block { THREADS } else { n.div_ceil(vec).next_power_of_two().min(32) };
        let wanted = (n / ROW_PIECE).min(BLOCKS.div_ceil(outer.max(1)));
        let count = wanted.max(n.div_ceil(MAX_ROW_PIECE)).max(1);
        // Pieces begin where a vector does.
        let piece = n.div_ceil(count).next_multiple_of(1024);
        let pieces = if block { n.div_ceil(piece).max(1) } else { 1 };
        let blocks = (outer * pieces).div_ceil(THREADS / lanes);
        return Plan { vec, shift: lanes.trailing_zeros(), pieces, piece, blocks };
    }
    let vec = neighbours(inner, size);
    let columns = (inner / vec).max(1).next_power_of_two().min(32);
    let across = inner.div_ceil(columns * vec);
    let rows = THREADS / columns;
    let wanted = (n / (rows * COLUMN_ROWS)).min(BLOCKS.div_ceil((outer * across).max(1)));
    let count = wanted.max(n.div_ceil(rows * MAX_COLUMN_ROWS)).max(1);
    let piece = n.div_ceil(count).max(1);
    let pieces = n.div_ceil(piece).max(1);
    Plan { vec, shift: columns.trailing_zeros(), pieces, piece, blocks: outer * pieces * across }
}

/// Bytes of working memory that a reduction of operands of `size` bytes each to states of `state` bytes
/// needs at most.
pub(crate) fn room(extent: Extent, size: usize, state: usize) -> usize {
    plan(extent, size).pieces * extent.outer * extent.inner * state
}

impl Reduction {
    /// A reduction of the launch's first `inputs` operands.
    pub(crate) fn new(args: &CudaArgs<'_>, extent: Extent, inputs: &[usize]) -> Reduction {
        Reduction {
            extent,
            inputs: inputs.iter().map(|&i| (args.read(i), args.read_dtype(i))).collect(),
            outputs: SmallVec::new(),
            extra: SmallVec::new(),
            scalars: SmallVec::new(),
            partial: args.workspace(),
            totals: None,
        }
    }

    /// Adds a result of the launch.
    pub(crate) fn output(mut self, args: &CudaArgs<'_>, o: usize) -> Reduction {
        self.outputs.push((args.write(o), args.accumulate(o)));
        self
    }

    /// Runs the passes. `constants` adds those of the reducer, COMPUTE among them, to each.
    pub(crate) fn run(
        &self,
        args: &mut CudaArgs<'_>,
        source: &'static Source,
        constants: impl Fn(Spec) -> Spec,
    ) -> Result<()> {
        let Extent { outer, inner, .. } = self.extent;
        let results = outer * inner;
        let size = self.inputs.iter().map(|(_, dtype)| dtype.size()).max().unwrap_or(1);
        let plan = plan(self.extent, size);
        let totals = self.totals.unwrap_or(results);
        let count = (plan.pieces * results).checked_div(totals).unwrap_or(0);
        let direct = count == 1;
        if results > 0 {
            let aligned = self.inputs.iter().all(|(a, d)| a.is_multiple_of((plan.vec * d.size()) as u64));
            let (entry, guard) = match inner {
                1 => ("reduce_rows", "REDUCE_ROWS"),
                _ => ("reduce_columns", "REDUCE_COLUMNS"),
            };
            let mut spec = constants(self.spec(source, entry, guard))
                .int("OPERANDS", self.inputs.len() as i64)
                .int("VEC", plan.vec as i64)
                .flag("ALIGNED", aligned);
            for ((_, dtype), name) in self.inputs.iter().zip(["IN0", "IN1"]) {
                spec = spec.dtype(name, *dtype);
            }
            let words = self.words(&plan, direct, count, totals);
            args.kernel(spec, Grid::line(plan.blocks, THREADS as u32), &Params::new().words(&words))?;
        }
        if direct { Ok(()) } else { self.merge(args, source, constants, count, totals) }
    }

    /// The second pass by itself: `partial` is `[count, totals]`.
    pub(crate) fn merge(
        &self,
        args: &mut CudaArgs<'_>,
        source: &'static Source,
        constants: impl Fn(Spec) -> Spec,
        count: usize,
        totals: usize,
    ) -> Result<()> {
        if totals == 0 {
            return Ok(());
        }
        let rows = (count / PARTIAL_ROWS).max(1).next_power_of_two();
        let columns = (PARTIAL_THREADS / rows).clamp(4, 32).min(totals.next_power_of_two());
        let blocks = totals.div_ceil(columns);
        let plan = Plan { vec: 1, shift: columns.trailing_zeros(), pieces: 1, piece: 0, blocks };
        let mut spec = constants(self.spec(source, "reduce_partials", "REDUCE_PARTIALS"));
        if let Some((_, dtype)) = self.inputs.first() {
            spec = spec.dtype("IN0", *dtype);
        }
        let words = self.words(&plan, false, count, totals);
        args.kernel(spec, Grid::line(blocks, PARTIAL_THREADS as u32), &Params::new().words(&words))
    }

    fn room_of_scalars(&self) -> usize {
        self.scalars.len().max(SCALARS)
    }

    fn spec(&self, source: &'static Source, entry: &'static str, guard: &'static str) -> Spec {
        Spec::new(source, entry).flag(guard, true).int("SCALARS", self.room_of_scalars() as i64)
    }

    /// The struct `Reduction` of the kernels.
    fn words(&self, plan: &Plan, direct: bool, count: usize, totals: usize) -> SmallVec<[u64; 32]> {
        let Extent { outer, n, inner } = self.extent;
        let mut words: SmallVec<[u64; 32]> = SmallVec::new();
        let sizes = [outer, n, inner, plan.pieces, plan.piece, plan.shift as usize];
        words.extend(sizes.map(|v| v as u64));
        words.extend([u64::from(direct), count as u64, totals as u64]);
        let mut padded = |values: &mut dyn Iterator<Item = u64>, room: usize| {
            let end = words.len() + room;
            words.extend(values.take(room));
            words.resize(end, 0);
        };
        padded(&mut self.inputs.iter().map(|x| x.0), 2);
        padded(&mut std::iter::once(self.partial), 1);
        padded(&mut self.outputs.iter().map(|y| y.0), 4);
        padded(&mut self.outputs.iter().map(|y| u64::from(y.1)), 4);
        padded(&mut self.extra.iter().copied(), 4);
        padded(&mut self.scalars.iter().map(|s| s.to_bits()), self.room_of_scalars());
        words
    }
}
