//! Reductions on CUDA: `[outer, n, inner]` to `[outer, inner]`. One pass, or two if there are few results and much
//! input.
//!
//! The order of combinations depends only on the extents, and on how rows lie if they have gaps, so results do not depend on the
//! size of the device.

use smallvec::SmallVec;

use crate::device::cuda::{
    ChainArgs, CudaArgs, Grid, HEAD_AXES, KernelSpec, Lead, Leading, Pointer, Source, params,
};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::tensor::{DType, Layout, Shape};

/// The interface between reducers and the passes. It comes before the reducer's source.
pub(crate) const REDUCTION: &str = include_str!("reduction.cu");
/// The passes. They come after the reducer's source.
pub(crate) const MACHINE: &str = include_str!("machine.cu");
/// The reducer of means and variances, except its results.
pub(crate) const MOMENTS: &str = include_str!("moments.cu");

/// Threads of a block in the first pass, and of one that merges states.
const THREADS: usize = 256;
pub(crate) const MERGE_THREADS: usize = 512;
/// The maximum number of neighbours that a thread processes at a time; also used if fewer do not divide an extent.
const MAX_VEC: usize = 8;
const LESSER_VEC: usize = 4;
/// This many blocks fill a device. A reduction to fewer results is split into pieces.
const BLOCKS: usize = 1024;
/// The same for columns, of which a thread loads some rows while it adds others: as many as run at once. With 1024, a step of ResNet-18 took 2 %
/// longer on an H200.
const COLUMN_BLOCKS: usize = 264;
/// This many elements of a row are worth a block.
const ROW_PIECE: usize = 4096;
/// This many vectors of a short row are worth a lane, which loads them at once (`AHEAD` in the kernel text), if so many lanes are left
/// that they fill a device.
const ROW_VECTORS: usize = 4;
const ENOUGH_LANES: usize = 1 << 17;
/// The maximum, which limits the rounding error of what a thread adds one by one.
const MAX_ROW_PIECE: usize = 1 << 17;
/// This many vectors of a column, and at most so many elements, are worth a thread: it loads them at once. The maximum is in
/// rows.
const COLUMN_ROWS: usize = 8;
const COLUMN_ELEMENTS: usize = 32;
const MAX_COLUMN_ROWS: usize = 512;
/// This many states are worth a thread in the second pass.
const PARTIAL_ROWS: usize = 4;
/// The maximum number of states that each block of the kernel after a reduction merges itself. For more, the second pass is
/// faster.
const MAX_CONSUMER_STATES: usize = 4096;

/// The fewest neighbours that are worth a row. A copy of shorter runs is faster.
const SHORTEST_RUN: usize = 64;
/// The maximum number of rows of one result.
const MAX_ROWS_OF_RESULT: usize = 4096;

/// Numbers that a reducer can have, at most, beside one.
pub(crate) const MAX_SCALARS: usize = 256;
/// Operands, results and other tensors, at most.
const INPUTS: usize = 2;
const OUTPUTS: usize = 4;
const EXTRA: usize = 4;

params! {
    /// The arguments of the passes.
    pub(crate) struct Reduction<const SCALARS: usize> {
        /// The operands are `[outer, n, inner]`, their reductions `[outer, inner]`.
        outer: i64,
        n: i64,
        inner: i64,
        /// How many pieces n is cut into, and how long each is.
        pieces: i64,
        piece: i64,
        /// The logarithm of the lanes of a row, or of the columns side by side.
        shift: i64,
        /// Whether the first pass finishes the results.
        direct: i64,
        /// The states that are merged are `[count, totals]`.
        count: i64,
        totals: i64,
        /// Elements that one of the totals is reduced from.
        elements: i64,
        /// How far apart the first rows of neighbouring totals are if `inner` is 1, and rows of one total.
        step: [i64; INPUTS],
        next: [i64; INPUTS],
        x: [Pointer; INPUTS],
        partial: Pointer,
        y: [Pointer; OUTPUTS],
        /// Whether results are added to what is there.
        accumulate: [i64; OUTPUTS],
        /// Tensors and numbers that the reducer knows the meaning of.
        extra: [Pointer; EXTRA],
        s: [f64; SCALARS],
    }
}

params! {
    /// The arguments of a first pass whose operand is computed.
    struct HeadedReduction {
        own: Reduction<4>,
        head: ChainArgs<HEAD_AXES>,
    }
}

/// A reduction of operands to results.
pub(crate) struct ReductionLaunch {
    pub(crate) extent: Extent,
    /// One or two operands, and their dtypes.
    pub(crate) inputs: SmallVec<[(Pointer, DType); INPUTS]>,
    /// Where the rows of the operands lie. Empty: one after the other.
    rows: SmallVec<[RowSteps; INPUTS]>,
    /// Results, and whether they are added to.
    pub(crate) outputs: SmallVec<[(Pointer, bool); OUTPUTS]>,
    /// Tensors and numbers that the reducer knows the meaning of.
    pub(crate) extra: SmallVec<[Pointer; EXTRA]>,
    pub(crate) scalars: SmallVec<[f64; 4]>,
    /// Space for states, of the size that [`room`] returns.
    pub(crate) partial: Pointer,
    /// The final number of results, if it is not `outer * inner`: then result `i` of the first pass belongs to `i %
    /// totals`.
    pub(crate) totals: Option<usize>,
    /// What computes the operand, if it is not in memory, and the source of a first pass that calls it.
    lead: Option<(Lead, &'static Source)>,
}

/// The states that are left to merge; `direct`: none, the first pass finishes the results.
#[derive(Clone, Copy)]
struct Merge {
    direct: bool,
    count: usize,
    totals: usize,
}

/// How a reduction is divided among threads.
struct ReductionPlan {
    vec: usize,
    shift: u32,
    pieces: usize,
    piece: usize,
    blocks: usize,
}

/// How many neighbouring elements of `size` bytes a thread processes at a time, if they divide `extent`.
fn neighbours(extent: usize, size: usize) -> usize {
    let widest = (16 / size).clamp(1, MAX_VEC);
    [widest, widest.min(LESSER_VEC)].into_iter().find(|&v| extent.is_multiple_of(v)).unwrap_or(1)
}

fn plan(extent: Extent, size: usize) -> ReductionPlan {
    let Extent { outer, n, inner } = extent;
    if inner == 1 {
        // A single row may end within a vector.
        let vec = neighbours(if outer == 1 { 0 } else { n }, size);
        let block = n > ROW_PIECE || (n > ROW_PIECE / 4 && outer < ROW_PIECE);
        let lanes_of = |each: usize| n.div_ceil(vec * each).next_power_of_two().min(32);
        let lanes = match () {
            () if block => THREADS,
            () if outer * lanes_of(ROW_VECTORS) >= ENOUGH_LANES => lanes_of(ROW_VECTORS),
            () => lanes_of(1),
        };
        let wanted = (n / ROW_PIECE).min(BLOCKS.div_ceil(outer.max(1)));
        let count = wanted.max(n.div_ceil(MAX_ROW_PIECE)).max(1);
        // A piece begins where a vector begins.
        let piece = n.div_ceil(count).next_multiple_of(1024);
        let pieces = if block { n.div_ceil(piece).max(1) } else { 1 };
        let blocks = (outer * pieces).div_ceil(THREADS / lanes);
        return ReductionPlan { vec, shift: lanes.trailing_zeros(), pieces, piece, blocks };
    }
    let vec = neighbours(inner, size);
    let columns = (inner / vec).max(1).next_power_of_two().min(32);
    let across = inner.div_ceil(columns * vec);
    let rows = THREADS / columns;
    let smallest = rows * COLUMN_ROWS.min(COLUMN_ELEMENTS / vec);
    let wanted = (n / smallest).min(COLUMN_BLOCKS.div_ceil((outer * across).max(1)));
    let count = wanted.max(n.div_ceil(rows * MAX_COLUMN_ROWS)).max(1);
    // Threads have equally many rows, except in the last piece. The nearest multiple, not the next one, which may be twice as
    // long as what fills the device.
    let piece = ((n.div_ceil(count) + smallest / 2) / smallest).max(1) * smallest;
    let pieces = n.div_ceil(piece).max(1);
    ReductionPlan { vec, shift: columns.trailing_zeros(), pieces, piece, blocks: outer * pieces * across }
}

/// A merge of `totals` results by blocks with so many of them side by side.
fn merge_plan(columns: usize, totals: usize) -> ReductionPlan {
    let blocks = totals.div_ceil(columns);
    ReductionPlan { vec: 1, shift: columns.trailing_zeros(), pieces: 1, piece: 0, blocks }
}

/// The maximum workspace bytes of a reduction of operands of `size` bytes each to states of `state` bytes.
pub(crate) fn room(extent: Extent, size: usize, state: usize) -> usize {
    plan(extent, size).pieces * extent.outer * extent.inner * state
}

/// How far apart the rows of an operand lie.
#[derive(Clone, Copy)]
struct RowSteps {
    /// The first rows of neighbouring results.
    step: usize,
    /// The rows of one result.
    next: usize,
}

impl RowSteps {
    fn begin_at_multiples_of(self, vec: usize) -> bool {
        self.step.is_multiple_of(vec) && self.next.is_multiple_of(vec)
    }
}

/// Where the elements of a reduction along neighbours lie, if each result is reduced from equally long rows.
pub(crate) struct Rows {
    /// All rows of all results: first the first ones of all results, then the second ones, and so on.
    extent: Extent,
    /// Of each operand.
    steps: SmallVec<[RowSteps; INPUTS]>,
}

impl Rows {
    /// `None` if operands of these layouts do not lie like this, or if it would be faster to copy them.
    pub(crate) fn of(Extent { outer, n, inner }: Extent, layouts: &[&Layout]) -> Option<Rows> {
        if inner != 1 || n == 0 || outer == 0 {
            return None;
        }
        let len = layouts.iter().map(|layout| neighbours_along(layout)).min()?.min(n);
        let count = n / len;
        if !n.is_multiple_of(len) || (count > 1 && (len < SHORTEST_RUN || count > MAX_ROWS_OF_RESULT)) {
            return None;
        }
        let shape = Shape::from([outer, count, len]);
        let steps = |layout: &&Layout| {
            let merged = layout.reshape(&shape)?;
            let &[step, next, _] = merged.strides() else { return None };
            // What there is one of has no step.
            Some(RowSteps { step: if outer > 1 { step } else { 0 }, next: if count > 1 { next } else { 0 } })
        };
        let steps = layouts.iter().map(steps).collect::<Option<_>>()?;
        Some(Rows { extent: Extent { outer: outer * count, n: len, inner: 1 }, steps })
    }

    /// The workspace bytes of a reduction of `extent`, whose rows may lie like this, as of [`room`].
    pub(crate) fn room(extent: Extent, layouts: &[&Layout], size: usize, state: usize) -> usize {
        room(Rows::of(extent, layouts).map_or(extent, |rows| rows.extent), size, state)
    }
}

/// How many elements are adjacent in memory, along the last axes.
fn neighbours_along(layout: &Layout) -> usize {
    let mut count = 1;
    for (&size, &stride) in layout.shape().iter().zip(layout.strides()).rev() {
        if size != 1 && stride != count {
            break;
        }
        count *= size;
    }
    count
}

impl ReductionLaunch {
    /// A reduction of the first `inputs` operands of the launch.
    pub(crate) fn new(args: &CudaArgs<'_>, extent: Extent, inputs: &[usize]) -> ReductionLaunch {
        ReductionLaunch {
            extent,
            inputs: inputs.iter().map(|&i| (args.read(i), args.read_dtype(i))).collect(),
            rows: SmallVec::new(),
            outputs: SmallVec::new(),
            extra: SmallVec::new(),
            scalars: SmallVec::new(),
            partial: args.workspace(),
            totals: None,
            lead: None,
        }
    }

    /// [`ReductionLaunch::new`] of an operand that a head computes. Before the parts of other passes, `source` has those of a head.
    pub(crate) fn headed(
        args: &CudaArgs<'_>,
        extent: Extent,
        dtype: DType,
        source: &'static Source,
        head: &dyn Leading,
    ) -> Result<ReductionLaunch> {
        let row = match extent {
            Extent { inner, .. } if inner > 1 => inner,
            // A single row may end within a vector.
            Extent { outer: 1, .. } => 0,
            Extent { n, .. } => n,
        };
        let mut reduction = ReductionLaunch::new(args, extent, &[]);
        reduction.inputs.push((Pointer::NOTHING, dtype));
        reduction.lead = Some((head.lead(args, row)?, source));
        Ok(reduction)
    }

    /// [`ReductionLaunch::new`] for operands whose rows may have gaps between them (`Needs::Rows`).
    pub(crate) fn of_rows(args: &CudaArgs<'_>, extent: Extent, inputs: &[usize]) -> ReductionLaunch {
        let layouts: SmallVec<[&Layout; INPUTS]> = inputs.iter().map(|&i| args.read_layout(i)).collect();
        let Some(rows) = Rows::of(extent, &layouts) else {
            return ReductionLaunch::new(args, extent, inputs);
        };
        let mut reduction = ReductionLaunch::new(args, rows.extent, inputs);
        reduction.totals = Some(extent.outer);
        reduction.rows = rows.steps;
        reduction
    }

    /// Adds a result of the launch.
    pub(crate) fn output(mut self, args: &CudaArgs<'_>, o: usize) -> ReductionLaunch {
        self.outputs.push((args.write(o), args.accumulate(o)));
        self
    }

    /// Runs the passes. `constants` adds the constants of the reducer (including COMPUTE) to each pass.
    pub(crate) fn run(
        &self,
        args: &mut CudaArgs<'_>,
        source: &'static Source,
        constants: impl Fn(KernelSpec) -> KernelSpec,
    ) -> Result<()> {
        match self.first_pass(args, source, &constants)? {
            Merge { direct: true, .. } => Ok(()),
            Merge { count, totals, .. } => self.merge(args, source, constants, count, totals),
        }
    }

    /// [`ReductionLaunch::run`] for a kernel that follows and uses the results. Returns whether the states are so few that
    /// each of its blocks merges them faster than a second pass would: then it has to call `merge_partials` with
    /// [`ReductionLaunch::consumer_args`]. Otherwise the results are finished.
    pub(crate) fn run_for_consumer(
        &self,
        args: &mut CudaArgs<'_>,
        source: &'static Source,
        constants: impl Fn(KernelSpec) -> KernelSpec,
    ) -> Result<bool> {
        let Merge { direct, count, totals } = self.first_pass(args, source, &constants)?;
        // Without elements there may be no consumer.
        let is_few = totals <= MERGE_THREADS && count * totals <= MAX_CONSUMER_STATES;
        let by_consumer = is_few && !direct && self.extent.n * self.results() > 0;
        if !direct && !by_consumer {
            self.merge(args, source, constants, count, totals)?;
        }
        Ok(by_consumer)
    }

    /// What a consumer is told: all results are merged side by side by a block of [`MERGE_THREADS`].
    pub(crate) fn consumer_args(&self, args: &CudaArgs<'_>) -> Result<Reduction<4>> {
        let (_, merge) = self.plan();
        self.kernel_args(args, &merge_plan(merge.totals.next_power_of_two(), merge.totals), merge)
    }

    /// The first pass, and what is left to merge.
    fn first_pass(
        &self,
        args: &mut CudaArgs<'_>,
        source: &'static Source,
        constants: impl Fn(KernelSpec) -> KernelSpec,
    ) -> Result<Merge> {
        let (plan, merge) = self.plan();
        if self.results() > 0 {
            let aligned =
                self.inputs.iter().all(|&(x, d)| args.alignment(x).is_multiple_of(plan.vec * d.size()))
                    && self.rows.iter().all(|rows| rows.begin_at_multiples_of(plan.vec));
            let (entry, guard) = match self.extent.inner {
                1 => ("reduce_rows", "REDUCE_ROWS"),
                _ => ("reduce_columns", "REDUCE_COLUMNS"),
            };
            let source = self.lead.as_ref().map_or(source, |(_, source)| source);
            let mut spec = constants(self.spec(source, entry, guard))
                .int("OPERANDS", self.inputs.len() as i64)
                .int("VEC", plan.vec as i64)
                .flag("ALIGNED", aligned);
            for ((_, dtype), name) in self.inputs.iter().zip(["IN0", "IN1"]) {
                spec = spec.dtype(name, *dtype);
            }
            if let Some((lead, _)) = &self.lead {
                spec = lead.constants(spec.int("HEAD", lead.vec.min(plan.vec) as i64));
                let kernel_args =
                    HeadedReduction { own: self.kernel_args(args, &plan, merge)?, head: lead.args };
                args.kernel(spec, Grid::line(plan.blocks, THREADS as u32), &kernel_args)?;
                return Ok(merge);
            }
            self.launch(args, spec, Grid::line(plan.blocks, THREADS as u32), &plan, merge)?;
        }
        Ok(merge)
    }

    fn plan(&self) -> (ReductionPlan, Merge) {
        let size = self.inputs.iter().map(|(_, dtype)| dtype.size()).max().unwrap_or(1);
        let plan = plan(self.extent, size);
        let totals = self.totals.unwrap_or(self.results());
        let count = (plan.pieces * self.results()).checked_div(totals).unwrap_or(0);
        (plan, Merge { direct: count == 1, count, totals })
    }

    /// Results of the first pass.
    fn results(&self) -> usize {
        self.extent.outer * self.extent.inner
    }

    /// The second pass alone: `partial` is `[count, totals]`.
    pub(crate) fn merge(
        &self,
        args: &mut CudaArgs<'_>,
        source: &'static Source,
        constants: impl Fn(KernelSpec) -> KernelSpec,
        count: usize,
        totals: usize,
    ) -> Result<()> {
        if totals == 0 {
            return Ok(());
        }
        let rows = (count / PARTIAL_ROWS).max(1).next_power_of_two();
        let columns = (MERGE_THREADS / rows).clamp(4, 32).min(totals.next_power_of_two());
        let plan = merge_plan(columns, totals);
        let mut spec = constants(self.spec(source, "reduce_partials", "REDUCE_PARTIALS"));
        if let Some((_, dtype)) = self.inputs.first() {
            spec = spec.dtype("IN0", *dtype);
        }
        let merge = Merge { direct: false, count, totals };
        self.launch(args, spec, Grid::line(plan.blocks, MERGE_THREADS as u32), &plan, merge)
    }

    fn spec(&self, source: &'static Source, entry: &'static str, guard: &'static str) -> KernelSpec {
        KernelSpec::new(source, entry).flag(guard, true)
    }

    /// Launches a pass, with room for as many numbers as there are.
    fn launch(
        &self,
        args: &mut CudaArgs<'_>,
        spec: KernelSpec,
        grid: Grid,
        plan: &ReductionPlan,
        merge: Merge,
    ) -> Result<()> {
        match self.scalars.len() {
            0..=4 => args.kernel(spec, grid, &self.kernel_args::<4>(args, plan, merge)?),
            5..=32 => args.kernel(spec, grid, &self.kernel_args::<32>(args, plan, merge)?),
            _ => args.kernel(spec, grid, &self.kernel_args::<{ MAX_SCALARS + 1 }>(args, plan, merge)?),
        }
    }

    fn kernel_args<const SCALARS: usize>(
        &self,
        args: &CudaArgs<'_>,
        plan: &ReductionPlan,
        merge: Merge,
    ) -> Result<Reduction<SCALARS>> {
        fn all<T: Copy, const N: usize>(args: &CudaArgs<'_>, values: &[T], fill: T) -> Result<[T; N]> {
            let mut all = [fill; N];
            let too_many = || Error::internal(args.op(), "more than a reduction has room for");
            all.get_mut(..values.len()).ok_or_else(too_many)?.copy_from_slice(values);
            Ok(all)
        }
        let inputs: SmallVec<[Pointer; INPUTS]> = self.inputs.iter().map(|x| x.0).collect();
        let outputs: SmallVec<[Pointer; OUTPUTS]> = self.outputs.iter().map(|y| y.0).collect();
        let accumulate: SmallVec<[i64; OUTPUTS]> = self.outputs.iter().map(|y| y.1.into()).collect();
        let n = self.extent.n;
        let step: SmallVec<[i64; INPUTS]> = self.rows.iter().map(|rows| rows.step as i64).collect();
        let next: SmallVec<[i64; INPUTS]> = self.rows.iter().map(|rows| rows.next as i64).collect();
        Ok(Reduction {
            outer: self.extent.outer as i64,
            n: n as i64,
            inner: self.extent.inner as i64,
            pieces: plan.pieces as i64,
            piece: plan.piece as i64,
            shift: plan.shift.into(),
            direct: merge.direct.into(),
            count: merge.count as i64,
            totals: merge.totals as i64,
            elements: (n * self.results()).checked_div(merge.totals).unwrap_or(0) as i64,
            step: all(args, &step, n as i64)?,
            next: all(args, &next, (n * merge.totals) as i64)?,
            x: all(args, &inputs, Pointer::NOTHING)?,
            partial: self.partial,
            y: all(args, &outputs, Pointer::NOTHING)?,
            accumulate: all(args, &accumulate, 0)?,
            extra: all(args, &self.extra, Pointer::NOTHING)?,
            s: all(args, &self.scalars, 0.0)?,
        })
    }
}
