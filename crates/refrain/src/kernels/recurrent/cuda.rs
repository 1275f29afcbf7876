//! The recurrence on CUDA: one kernel runs through all time steps. A block computes its sequences alone, so blocks do not wait for
//! each other.
//!
//! Where the weight fits in the registers of a multiprocessor, a block has it there and computes one sequence. A larger one is
//! spread over the registers of two blocks or the shared memory of a cluster of eight, on GPUs that have clusters, which computes
//! some sequences. Otherwise it is read from the L2 cache at each time step. How a sum is added up depends on the hidden size, the dtype
//! and the kind of GPU.

use super::{Cell, Sizes};
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Gpu, Grid, KernelSpec, Member, MmaKind, Pointer};
use crate::error::Result;
use crate::tensor::DType;

pub(crate) const COMMON: &str = include_str!("common.cu");
pub(crate) const RESIDENT: &str = include_str!("resident.cu");
pub(crate) const CLUSTERED: &str = include_str!("clustered.cu");
pub(crate) const STREAMED: &str = include_str!("streamed.cu");
/// The kernels of a pass by [`Plan`].
pub(crate) const FORWARD: [&str; 3] = [
    include_str!("resident_forward.cu"),
    include_str!("clustered_forward.cu"),
    include_str!("streamed_forward.cu"),
];
pub(crate) const BACKWARD: [&str; 3] = [
    include_str!("resident_backward.cu"),
    include_str!("clustered_backward.cu"),
    include_str!("streamed_backward.cu"),
];

/// The kernels of a cell for a pass, by plan: the name of its operation, the text of the cell, and those of the pass.
macro_rules! sources {
    ($name:literal, $cell:literal, $pass:ident) => {
        $crate::kernels::recurrent::cuda::sources!(
            $name, $cell, $pass: RESIDENT 0, CLUSTERED 1, STREAMED 2
        )
    };
    ($name:literal, $cell:literal, $pass:ident: $($plan:ident $i:literal),*) => {{
        use $crate::kernels::recurrent::cuda as shared;
        [$($crate::device::cuda::Source {
            name: $name,
            parts: &[shared::COMMON, shared::$plan, include_str!($cell), shared::$pass[$i]],
        }),*]
    }};
}
pub(crate) use sources;

/// The bytes of the weight that the threads of a multiprocessor have in their registers.
const RESIDENT_BYTES: usize = 3 * 128 * 128 * 4;
/// With more threads than this, each has too few registers beside those of the weight.
const RESIDENT_THREADS: usize = 384;

/// Two blocks have the weight in their registers up to so many hidden features, in f32 arithmetic.
const PAIRED_HIDDEN: usize = 128;
/// Threads that share a hidden feature of a pair.
const PAIRED_PARTS: usize = 4;
/// The most sequences of a pair, whose threads have few registers left.
const PAIRED_SEQUENCES: usize = 4;
/// This many pairs fill a GPU.
const PAIRS: usize = 64;

/// Blocks of a cluster: as many as every GPU with clusters allows.
const CLUSTER: usize = 8;
/// Threads that share a hidden feature of a cluster.
const CLUSTERED_PARTS: usize = 16;
/// The most sequences of a cluster. Half of it where a block has so many threads that each has few registers.
const CLUSTERED_SEQUENCES: usize = 8;
const MANY_THREADS: usize = 640;
/// This many clusters fill a GPU.
const CLUSTERS: usize = 16;
/// Shared memory that a block has on a GPU with clusters.
const CLUSTERED_SHARED: usize = 227 << 10;

const STREAMED_THREADS: usize = 512;
const STREAMED_PARTS: usize = 8;
/// Fewer blocks than this do not use all of the bandwidth of the L2 cache.
const STREAMED_BLOCKS: usize = 32;
/// Shared memory that a block has on every supported GPU.
const SHARED: usize = 96 << 10;

/// The two kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    Forward,
    Backward,
}

/// How a recurrence is computed: where the weight is.
#[derive(Clone, Copy)]
pub(crate) enum Plan {
    /// In registers, of which `parts` threads have a hidden feature.
    Resident { parts: usize },
    /// In the registers or the shared memory of a cluster.
    Clustered(Cluster),
    /// In the L2 cache. The states are in shared memory or in the workspace, `bytes` for a block.
    Streamed { sequences: usize, bytes: usize, in_shared: bool },
}

/// A cluster of blocks that have `units` hidden features each, of which `parts` threads share one.
#[derive(Clone, Copy)]
pub(crate) struct Cluster {
    blocks: usize,
    units: usize,
    parts: usize,
    sequences: usize,
    in_registers: bool,
    /// Shared memory of a block.
    bytes: usize,
}

impl Cluster {
    /// Two blocks with the weight in their registers.
    fn pair(pass: Pass, gates: usize, Sizes { batch, hidden, .. }: Sizes, size: usize) -> Cluster {
        let units = hidden.div_ceil(2).next_multiple_of(2 * PAIRED_PARTS);
        let sequences = batch.div_ceil(PAIRS).next_power_of_two().min(PAIRED_SEQUENCES);
        let bytes = sequences * Cluster::of_one(pass, gates, units, 2 * units) * size;
        Cluster { blocks: 2, units, parts: PAIRED_PARTS, sequences, in_registers: true, bytes }
    }

    /// The numbers that a block has of a sequence: the states of all features, twice, and the sums of the block's own; or of the
    /// gates.
    fn of_one(pass: Pass, gates: usize, units: usize, padded: usize) -> usize {
        match pass {
            Pass::Forward => 2 * padded + gates * units,
            Pass::Backward => 2 * gates * padded + units,
        }
    }
}

/// The largest power of two, at most `wanted`, so that the sequences of a block need at most `limit` bytes.
fn fitting(wanted: usize, limit: usize, bytes: impl Fn(usize) -> usize) -> Option<usize> {
    std::iter::successors(Some(wanted), |&n| (n > 1).then_some(n / 2)).find(|&n| bytes(n) <= limit)
}

impl Plan {
    fn of(pass: Pass, cell: Cell, sizes: Sizes, dtype: DType, mma: MmaKind) -> Plan {
        let (Cell { gates, carried }, Sizes { batch, hidden, .. }) = (cell, sizes);
        let size = dtype.accumulator().size();
        // More gates need more threads, which have fewer columns each.
        let of_single = if gates > 3 { 4 } else { 2 };
        let parts = of_single * size / 4;
        if gates * hidden * hidden * size <= RESIDENT_BYTES && hidden * parts <= RESIDENT_THREADS {
            return Plan::Resident { parts };
        }
        // Only GPUs with groups of warps are known to have clusters.
        let has_clusters = mma == MmaKind::WarpGroup;
        if has_clusters && size == 4 && hidden <= PAIRED_HIDDEN {
            return Plan::Clustered(Cluster::pair(pass, gates, sizes, size));
        }
        let units = hidden.div_ceil(CLUSTER).next_multiple_of(4);
        let padded = units * CLUSTER;
        let of_one = Cluster::of_one(pass, gates, units, padded);
        let clustered = |sequences: usize| gates * units * padded * dtype.size() + sequences * of_one * size;
        let threads = units * CLUSTERED_PARTS;
        let most = if threads > MANY_THREADS { CLUSTERED_SEQUENCES / 2 } else { CLUSTERED_SEQUENCES };
        let wanted = batch.div_ceil(CLUSTERS).next_power_of_two().min(most);
        if has_clusters
            && threads <= 1024
            && let Some(sequences) = fitting(wanted, CLUSTERED_SHARED, clustered)
        {
            let (blocks, parts, bytes) = (CLUSTER, CLUSTERED_PARTS, clustered(sequences));
            return Plan::Clustered(Cluster { blocks, units, parts, sequences, in_registers: false, bytes });
        }
        let of_one = (1 + gates + carried) * hidden.next_multiple_of(4) * size;
        let streamed = |sequences: usize| sequences * of_one;
        let wanted = batch.div_ceil(STREAMED_BLOCKS).next_power_of_two().min(STREAMED_PARTS);
        let fitting = fitting(wanted, SHARED, streamed);
        let sequences = fitting.unwrap_or(wanted);
        Plan::Streamed { sequences, bytes: streamed(sequences), in_shared: fitting.is_some() }
    }

    /// Which source it needs.
    pub(crate) fn index(self) -> usize {
        match self {
            Plan::Resident { .. } => 0,
            Plan::Clustered(_) => 1,
            Plan::Streamed { .. } => 2,
        }
    }
}

/// Workspace bytes for the states of all blocks, if they do not fit in shared memory.
pub(crate) fn workspace(pass: Pass, cell: Cell, launch: &Launch<'_>, gpu: &dyn Gpu) -> usize {
    let states = match pass {
        Pass::Forward => launch.writes[0].0.layout.shape(),
        Pass::Backward => launch.reads[0].layout.shape(),
    };
    let sizes = Sizes::of(states);
    match Plan::of(pass, cell, sizes, launch.reads[0].dtype, gpu.mma()) {
        Plan::Streamed { sequences, bytes, in_shared: false } => sizes.batch.div_ceil(sequences) * bytes,
        _ => 0,
    }
}

/// The plan of a launch, whose operand 0 has the dtype of the states, and its workspace.
pub(crate) fn plan(pass: Pass, cell: Cell, sizes: Sizes, args: &CudaArgs<'_>) -> (Plan, Pointer) {
    let plan = Plan::of(pass, cell, sizes, args.read_dtype(0), args.mma());
    let workspace = match plan {
        Plan::Streamed { in_shared: false, .. } => args.workspace(),
        _ => Pointer::NOTHING,
    };
    (plan, workspace)
}

/// Launches the kernel; the weight is operand `weight`.
pub(crate) fn run<P: Member + 'static>(
    plan: Plan,
    cell: Cell,
    Sizes { batch, hidden, .. }: Sizes,
    spec: KernelSpec,
    weight: usize,
    params: &P,
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    if batch == 0 {
        return Ok(());
    }
    let (dtype, stored) = (args.read_dtype(0), args.read_dtype(weight));
    let wide = hidden.is_multiple_of(4) && args.alignment(args.read(weight)) >= 4 * stored.size();
    let spec = spec
        .int("GATES", cell.gates as i64)
        .int("CARRIED", cell.carried as i64)
        .dtype("IN", dtype)
        .dtype("W", stored)
        .dtype("COMPUTE", dtype.accumulator())
        .int("HIDDEN", hidden as i64)
        .flag("WIDE", wide);
    let (spec, grid) = match plan {
        Plan::Resident { parts } => {
            let threads = (hidden * parts).next_multiple_of(32);
            let spec = spec.int("PARTS", parts as i64).int("THREADS", threads as i64);
            (spec, Grid::line(batch, threads as u32))
        }
        Plan::Clustered(Cluster { blocks, units, parts, sequences, in_registers, bytes }) => {
            let threads = units * parts;
            let spec = spec
                .int("PARTS", parts as i64)
                .int("THREADS", threads as i64)
                .int("SEQUENCES", sequences as i64)
                .int("CLUSTER", blocks as i64)
                .int("UNITS", units as i64)
                .flag("IN_REGISTERS", in_registers);
            (spec, Grid::line(batch.div_ceil(sequences) * blocks, threads as u32).shared(bytes))
        }
        Plan::Streamed { sequences, bytes, in_shared } => {
            let spec = spec
                .int("PARTS", STREAMED_PARTS as i64)
                .int("THREADS", STREAMED_THREADS as i64)
                .int("SEQUENCES", sequences as i64)
                .flag("IN_SHARED", in_shared);
            let grid = Grid::line(batch.div_ceil(sequences), STREAMED_THREADS as u32);
            (spec, grid.shared(if in_shared { bytes } else { 0 }))
        }
    };
    args.kernel(spec, grid, params)
}
