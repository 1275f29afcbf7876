//! Batch norm on CUDA: the sums of each channel, then one pass over the elements.

use smallvec::SmallVec;

use super::BatchNorm;
use crate::device::cuda::{
    CudaArgs, Elements, Following, Grid, KernelSpec, Pointer, Source, TailArgs, params,
};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::{
    MACHINE, MERGE_THREADS, MOMENTS, REDUCTION, Reduction, ReductionLaunch, room,
};
use crate::tensor::DType;

const SUMS: &str = include_str!("sums.cu");
const RUNNING: &str = include_str!("running.cu");
const ELEMENTS: &str = include_str!("elements.cu");
const PASS: &str = include_str!("pass.cu");
static RUNNING_ONLY: Source =
    Source { name: "batch_norm", parts: &[RUNNING, include_str!("running_only.cu")] };
static MOMENTS_OF_CHANNELS: Source =
    Source { name: "batch_norm", parts: &[REDUCTION, MOMENTS, SUMS, MACHINE] };
static FORWARD: Source = Source {
    name: "batch_norm",
    parts: &[REDUCTION, MOMENTS, SUMS, MACHINE, RUNNING, ELEMENTS, include_str!("forward.cu"), PASS],
};
static GRADIENT_SUMS: Source = Source { name: "batch_norm", parts: &[REDUCTION, SUMS, MACHINE] };
static BACKWARD: Source = Source {
    name: "batch_norm_backward",
    parts: &[REDUCTION, SUMS, MACHINE, ELEMENTS, include_str!("backward.cu"), PASS],
};

params! {
    /// Mean and 1/std of running statistics.
    struct RunningArgs {
        mean: Pointer = "const PARAMETER*",
        var: Pointer = "const PARAMETER*",
        means: Pointer = "COMPUTE*",
        invs: Pointer = "COMPUTE*",
        eps: f64,
        channels: i64,
    }

    struct BatchNormArgs {
        x: Pointer,
        weight: Pointer,
        bias: Pointer,
        means: Pointer,
        invs: Pointer,
        /// The sums that are merged, if MERGES. If RUNNING, the running statistics are those of `extra`.
        sums: Reduction<4>,
        y: Pointer,
        n: i64,
        channels: i64,
        inner: i64,
        tail: [TailArgs; 1],
    }

    struct BatchNormBackwardArgs {
        x: Pointer,
        weight: Pointer,
        dy: Pointer,
        means: Pointer,
        invs: Pointer,
        /// Of each channel, the sums of dy and of dy (x - mean) / std.
        totals: Pointer,
        /// The sums that are merged, if MERGES.
        sums: Reduction<4>,
        dx: Pointer,
        /// 1 by the values of a channel.
        share: f64,
        n: i64,
        channels: i64,
        inner: i64,
        tail: [TailArgs; 1],
    }
}

/// Threads of a block, except in the first pass of a reduction.
const THREADS: usize = MERGE_THREADS;
/// The maximum size of a state in bytes: two f64.
const STATE: usize = 16;
/// Blocks per multiprocessor of a kernel over elements: many; those that run at once, each with many vectors of the same channels;
/// or at most so many, if each has to merge sums first.
const MANY_BLOCKS: usize = 32;
const BLOCKS_AT_ONCE: usize = 2;
const MERGING_BLOCKS: usize = 4;
/// Bytes of a vector of elements at most. Where a thread keeps what it knows of its channels in registers, it has at most so many
/// channels, so that registers are left for two blocks. Threads that merge sums have one or two vectors, and one block is enough.
const WIDEST_BYTES: usize = 16;
const FEW_CHANNELS: usize = 4;
/// Vectors of elements that a thread loads before it computes.
const ELEMENTS_AHEAD: usize = 2;

/// The reduction of all values of a channel: over columns if channels are neighbours, otherwise over lines that are
/// merged by channel.
fn lines(extent: Extent) -> Extent {
    let Extent { outer, n: channels, inner } = extent;
    match inner {
        1 => Extent { outer: 1, n: outer, inner: channels },
        _ => Extent { outer: outer * channels, n: inner, inner: 1 },
    }
}

/// The unmodified sums of the backward pass, behind the states.
fn states(extent: Extent, dtype: DType) -> usize {
    room(lines(extent), dtype.size(), STATE).next_multiple_of(256)
}

/// Workspace bytes for elements of this dtype.
pub(super) fn workspace(extent: Extent, dtype: DType) -> usize {
    states(extent, dtype) + 2 * extent.n * dtype.accumulator().size()
}

/// The dtypes of elements and of parameters.
fn dtypes(args: &CudaArgs<'_>) -> [DType; 2] {
    [args.read_dtype(0), args.read_dtype(1)]
}

fn constants(spec: KernelSpec, [dtype, parameters]: [DType; 2]) -> KernelSpec {
    spec.dtype("COMPUTE", dtype.accumulator()).dtype("PARAMETER", parameters)
}

/// A reduction with one result per channel.
fn by_channel(args: &CudaArgs<'_>, extent: Extent, inputs: &[usize]) -> ReductionLaunch {
    let mut sums = ReductionLaunch::new(args, lines(extent), inputs);
    sums.totals = Some(extent.n);
    sums
}

/// Where a kernel over elements has the statistics of channels from.
#[derive(Clone, Copy, PartialEq)]
enum Statistics {
    /// From memory.
    Stored,
    /// Each block merges partial sums.
    Merged,
    /// Each block computes them from running statistics.
    Running,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// How many neighbours have one channel each, or all one channel.
fn row(Extent { n: channels, inner, .. }: Extent) -> usize {
    if inner == 1 { channels } else { inner }
}

/// Runs a reduction whose results a kernel over elements reads.
fn run_sums(
    sums: &ReductionLaunch,
    args: &mut CudaArgs<'_>,
    source: &'static Source,
    dtypes: [DType; 2],
    backward: bool,
) -> Result<Statistics> {
    let constants = |spec| constants(spec, dtypes).flag("BACKWARD", backward);
    match sums.run_for_consumer(args, source, constants)? {
        true => Ok(Statistics::Merged),
        false => Ok(Statistics::Stored),
    }
}

/// A pass over the elements, forward or backward.
struct Pass<'a> {
    extent: Extent,
    /// Those of elements and of parameters.
    dtypes: [DType; 2],
    statistics: Statistics,
    /// Whether the results are added to.
    adds: bool,
    /// Where elements are read and written. The last is the result.
    elements: &'a [Pointer],
    tail: Option<&'a dyn Following>,
}

impl Pass<'_> {
    fn numel(&self) -> usize {
        let Extent { outer, n: channels, inner } = self.extent;
        outer * channels * inner
    }

    /// Adds the constants of the kernel, and says how many blocks it wants.
    fn launch(&self, spec: KernelSpec, args: &CudaArgs<'_>) -> (KernelSpec, Grid) {
        let Pass { extent, dtypes, statistics, adds, elements, tail } = *self;
        let dtype = dtypes[0];
        let Extent { n: channels, inner, .. } = extent;
        let merges = statistics == Statistics::Merged;
        let widest = WIDEST_BYTES / dtype.size();
        let most = if inner == 1 && !merges { widest.min(FEW_CHANNELS) } else { widest };
        let vec = 1 << row(extent).trailing_zeros().min(most.trailing_zeros());
        let aligned = elements.iter().all(|&x| args.alignment(x).is_multiple_of(vec * dtype.size()))
            && tail.is_none_or(|tail| tail.is_aligned(args, vec));
        let spec = constants(spec, dtypes)
            .dtype("IN", dtype)
            .dtype("IN0", dtype)
            .word("INDEX", if self.numel() >= 1 << 30 { "u64" } else { "u32" })
            .int("VEC", vec as i64)
            .int("ELEMENTS_AHEAD", ELEMENTS_AHEAD as i64)
            .int("RESIDENT", if merges || dtype == DType::F64 { 1 } else { BLOCKS_AT_ONCE as i64 })
            .flag("ALIGNED", aligned)
            .flag("INNER", inner != 1)
            .flag("ADD", adds)
            .flag("MERGES", merges)
            .flag("RUNNING", statistics == Statistics::Running)
            .flag("TAIL", tail.is_some())
            .flag("STORES", elements.last().is_some_and(|&y| y != Pointer::NOTHING));
        let multiprocessors = args.multiprocessors();
        let whole = (self.numel() / vec).div_ceil(THREADS);
        let at_once = whole.min(multiprocessors * BLOCKS_AT_ONCE);
        // Blocks whose vectors are a whole number of rows of channels.
        let period = channels / gcd(channels, THREADS * vec);
        // Not if many would be left out.
        let fixed = |blocks: usize| inner == 1 && blocks / period * period * 8 >= blocks.max(1) * 7;
        let blocks = match statistics {
            // Each block reads all sums, so a block for each multiprocessor is enough if its threads load their elements at once.
            Statistics::Merged => {
                let fewest = multiprocessors.max(whole.div_ceil(ELEMENTS_AHEAD));
                whole.min(fewest).min(multiprocessors * MERGING_BLOCKS)
            }
            Statistics::Stored | Statistics::Running if fixed(at_once) => at_once,
            Statistics::Stored | Statistics::Running => whole.min(multiprocessors * MANY_BLOCKS),
        };
        let blocks = if fixed(blocks) { blocks / period * period } else { blocks };
        let spec = spec.flag("FIXED", fixed(blocks));
        let spec = match tail {
            Some(tail) => spec.ahead(tail.text()),
            None => spec,
        };
        (spec, Grid::line(blocks, THREADS as u32))
    }
}

/// The forward pass, with the places of its operands and results.
#[derive(Clone, Debug)]
struct Forward {
    op: BatchNorm,
    /// Those of elements and of parameters.
    dtypes: [DType; 2],
    /// x, weight, bias, and the running mean and variance.
    reads: [Pointer; 5],
    /// y, mean and 1/std, and in training the new running mean and variance.
    writes: SmallVec<[Pointer; 5]>,
}

pub(super) fn forward(op: &BatchNorm, args: &mut CudaArgs<'_>) -> Result<()> {
    if op.extent.n == 0 {
        return Ok(());
    }
    let forward = Forward {
        op: *op,
        dtypes: dtypes(args),
        reads: std::array::from_fn(|i| args.read(i)),
        writes: (0..if op.training { 5 } else { 3 }).map(|o| args.write(o)).collect(),
    };
    if args.describes() {
        args.describe_elements(Box::new(forward));
        return Ok(());
    }
    forward.run(args, None)
}

impl Forward {
    /// Runs what comes before the elements.
    fn run_sums(&self, sums: &ReductionLaunch, args: &mut CudaArgs<'_>) -> Result<Statistics> {
        let BatchNorm { extent, training, eps, .. } = self.op;
        let channels = extent.n;
        if training {
            return run_sums(sums, args, &MOMENTS_OF_CHANNELS, self.dtypes, false);
        }
        if channels <= THREADS && extent.outer * extent.inner > 0 {
            return Ok(Statistics::Running);
        }
        let spec = constants(KernelSpec::new(&RUNNING_ONLY, "batch_norm_running"), self.dtypes);
        let [_, _, _, mean, var] = self.reads;
        let [means, invs] = [self.writes[1], self.writes[2]];
        let kernel_args = RunningArgs { mean, var, means, invs, eps, channels: channels as i64 };
        args.kernel(spec, Grid::line(channels.div_ceil(THREADS), THREADS as u32), &kernel_args)?;
        Ok(Statistics::Stored)
    }
}

impl Elements for Forward {
    fn row(&self) -> usize {
        row(self.op.extent)
    }

    fn moved(&self, reads: &[Pointer], writes: &[Pointer]) -> Option<Box<dyn Elements>> {
        let mut moved = self.clone();
        for pointer in moved.reads.iter_mut().chain(&mut moved.writes) {
            *pointer = pointer.moved(reads, writes)?;
        }
        Some(Box::new(moved))
    }

    fn workspace(&self) -> usize {
        if self.op.training { workspace(self.op.extent, self.dtypes[0]) } else { 0 }
    }

    fn run(&self, args: &mut CudaArgs<'_>, tail: Option<&dyn Following>) -> Result<()> {
        let BatchNorm { extent, training, momentum, eps } = self.op;
        let [x, weight, bias, mean, var] = self.reads;
        let y = self.writes[0];
        let mut sums = by_channel(args, extent, &[]);
        sums.inputs.push((x, self.dtypes[0]));
        sums.extra.extend([mean, var]);
        sums.scalars.extend([momentum, eps]);
        if training {
            sums.outputs.extend(self.writes[1..].iter().map(|&o| (o, false)));
        }
        let statistics = self.run_sums(&sums, args)?;
        let elements = [x, y];
        let pass = Pass { extent, dtypes: self.dtypes, statistics, adds: false, elements: &elements, tail };
        if pass.numel() == 0 {
            return Ok(());
        }
        let spec = KernelSpec::new(&FORWARD, "batch_norm_pass").flag("BACKWARD", false);
        let (spec, grid) = pass.launch(spec, args);
        let kernel_args = BatchNormArgs {
            x,
            weight,
            bias,
            means: self.writes[1],
            invs: self.writes[2],
            sums: sums.consumer_args(args)?,
            y,
            n: pass.numel() as i64,
            channels: extent.n as i64,
            inner: extent.inner as i64,
            tail: [tail.map_or(TailArgs::NONE, |tail| tail.args(args))],
        };
        args.kernel(spec, grid, &kernel_args)
    }

    fn boxed(&self) -> Box<dyn Elements> {
        Box::new(self.clone())
    }
}

/// The backward pass, with the places of its operands and results.
#[derive(Clone, Copy, Debug)]
struct Backward {
    extent: Extent,
    training: bool,
    /// Those of elements and of parameters.
    dtypes: [DType; 2],
    /// x, weight, dy, mean and 1/std.
    reads: [Pointer; 5],
    /// dx, dweight and dbias.
    writes: [Pointer; 3],
    /// Whether the results are added to.
    adds: [bool; 3],
}

pub(super) fn backward(extent: Extent, training: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    if extent.n == 0 {
        return Ok(());
    }
    let backward = Backward {
        extent,
        training,
        dtypes: dtypes(args),
        reads: std::array::from_fn(|i| args.read(i)),
        writes: std::array::from_fn(|o| args.write(o)),
        adds: std::array::from_fn(|o| args.accumulate(o)),
    };
    if args.describes() {
        args.describe_elements(Box::new(backward));
        return Ok(());
    }
    backward.run(args, None)
}

impl Elements for Backward {
    fn row(&self) -> usize {
        row(self.extent)
    }

    fn moved(&self, reads: &[Pointer], writes: &[Pointer]) -> Option<Box<dyn Elements>> {
        let mut moved = *self;
        for pointer in moved.reads.iter_mut().chain(&mut moved.writes) {
            *pointer = pointer.moved(reads, writes)?;
        }
        Some(Box::new(moved))
    }

    fn workspace(&self) -> usize {
        workspace(self.extent, self.dtypes[0])
    }

    fn run(&self, args: &mut CudaArgs<'_>, tail: Option<&dyn Following>) -> Result<()> {
        let Backward { extent, training, dtypes, .. } = *self;
        let [x, weight, dy, means, invs] = self.reads;
        let [dx, dweight, dbias] = self.writes;
        // Where the unmodified sums are stored.
        let totals = Pointer::WORKSPACE.plus(states(extent, dtypes[0]));
        let mut sums = by_channel(args, extent, &[]);
        sums.inputs.extend([(x, dtypes[0]), (dy, dtypes[0])]);
        sums.outputs.extend([(dweight, self.adds[1]), (dbias, self.adds[2])]);
        sums.extra.extend([means, invs, totals]);
        let statistics = run_sums(&sums, args, &GRADIENT_SUMS, dtypes, true)?;
        let elements = [x, dy, dx];
        let pass = Pass { extent, dtypes, statistics, adds: self.adds[0], elements: &elements, tail };
        if pass.numel() == 0 {
            return Ok(());
        }
        let spec =
            KernelSpec::new(&BACKWARD, "batch_norm_pass").flag("BACKWARD", true).flag("TRAINING", training);
        let (spec, grid) = pass.launch(spec, args);
        let kernel_args = BatchNormBackwardArgs {
            x,
            weight,
            dy,
            means,
            invs,
            totals,
            sums: sums.consumer_args(args)?,
            dx,
            share: 1.0 / (extent.outer * extent.inner) as f64,
            n: pass.numel() as i64,
            channels: extent.n as i64,
            inner: extent.inner as i64,
            tail: [tail.map_or(TailArgs::NONE, |tail| tail.args(args))],
        };
        args.kernel(spec, grid, &kernel_args)
    }

    fn boxed(&self) -> Box<dyn Elements> {
        Box::new(*self)
    }
}
