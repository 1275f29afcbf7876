//! Optimisers on CUDA. Each is one launch, except the global norm.

use super::{AdamWOptions, LionOptions, RmsPropOptions, Schedule, SgdOptions};
use crate::device::Launch;
use crate::device::cuda::{Bounds, CudaArgs, Grid, KernelSpec, Member, Pointer, Reporter, Source, params};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::{MACHINE, REDUCTION, ReductionLaunch, room};

const SEGMENTS: &str = include_str!("segments.cu");
static ADAM: Source = Source { name: "adam", parts: &[SEGMENTS, include_str!("adam.cu")] };
static LION: Source = Source { name: "lion", parts: &[SEGMENTS, include_str!("lion.cu")] };
static RMSPROP: Source = Source { name: "rmsprop", parts: &[SEGMENTS, include_str!("rmsprop.cu")] };
static SGD: Source = Source { name: "sgd", parts: &[SEGMENTS, include_str!("sgd.cu")] };
static CLIP: Source = Source { name: "clip", parts: &[REDUCTION, include_str!("clip.cu"), MACHINE] };
static SCHEDULE: Source = Source { name: "learning_rate", parts: &[include_str!("schedule.cu")] };

const THREADS: usize = 256;
/// The maximum number of elements that a thread updates at a time.
const MAX_VEC: usize = 4;
/// Bytes of a sum of squares.
const STATE: usize = 8;

params! {
    /// Segments of flat buffers: which run of elements is updated how.
    struct Table {
        /// Offset and length of each segment, in rising order.
        ranges: Pointer = "const i64*",
        /// Decay factor, rate factor, trainable (1 or 0).
        settings: Pointer = "const double*",
        count: i64,
        /// Elements of a buffer.
        n: i64,
    }

    struct AdamArgs {
        parameters: Pointer = "IN*",
        gradients: Pointer = "IN*",
        means: Pointer = "IN*",
        squares: Pointer = "IN*",
        step: Pointer = "const i64*",
        rate: Pointer = "const double*",
        scale: Pointer = "const double*",
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        table: Table,
        faults: Reporter,
    }

    struct SgdArgs {
        parameters: Pointer = "IN*",
        gradients: Pointer = "IN*",
        velocities: Pointer = "IN*",
        rate: Pointer = "const double*",
        scale: Pointer = "const double*",
        momentum: f64,
        weight_decay: f64,
        table: Table,
    }

    struct RmsPropArgs {
        parameters: Pointer = "IN*",
        gradients: Pointer = "IN*",
        squares: Pointer = "IN*",
        means: Pointer = "IN*",
        velocities: Pointer = "IN*",
        rate: Pointer = "const double*",
        scale: Pointer = "const double*",
        alpha: f64,
        eps: f64,
        weight_decay: f64,
        momentum: f64,
        table: Table,
    }

    struct LionArgs {
        parameters: Pointer = "IN*",
        gradients: Pointer = "IN*",
        means: Pointer = "IN*",
        rate: Pointer = "const double*",
        scale: Pointer = "const double*",
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        table: Table,
    }

    struct LearningRateArgs {
        step: Pointer = "const i64*",
        rate: Pointer = "double*",
        /// Of the schedule, in the order that the text says.
        arguments: [f64; 5],
    }
}

/// The segments in read operand `i` and the one after it.
fn table(i: usize, args: &CudaArgs<'_>) -> Table {
    Table {
        ranges: args.read(i),
        settings: args.read(i + 1),
        count: args.read_shape(i)[0] as i64,
        n: args.write_shape(0).numel() as i64,
    }
}

/// Updates the launch's results, flat buffers of one dtype.
fn update<P: Member + 'static>(
    spec: KernelSpec,
    params: &P,
    table: Table,
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 || table.count == 0 {
        return Ok(());
    }
    let dtype = args.write_dtype(0);
    let vec = (16 / dtype.size()).min(MAX_VEC);
    let aligned = (0..args.writes()).all(|o| args.output(o).alignment().is_multiple_of(vec * dtype.size()));
    let spec = spec
        .dtype("COMPUTE", dtype.accumulator())
        .dtype("IN", dtype)
        .int("VEC", vec as i64)
        .flag("ALIGNED", aligned);
    args.kernel(spec, Grid::line(n.div_ceil(vec * THREADS), THREADS as u32), params)
}

pub(super) fn adam(options: &AdamWOptions, decoupled: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let AdamWOptions { betas: (beta1, beta2), eps, weight_decay } = *options;
    let table = table(7, args);
    let kernel_args = AdamArgs {
        parameters: args.write(0),
        gradients: args.write(1),
        means: args.write(2),
        squares: args.write(3),
        step: args.read(4),
        rate: args.read(5),
        scale: args.read(6),
        beta1,
        beta2,
        eps,
        weight_decay,
        table,
        faults: args.faults(Bounds::Steps),
    };
    update(KernelSpec::new(&ADAM, "adam").flag("DECOUPLED", decoupled), &kernel_args, table, args)
}

pub(super) fn rmsprop(options: &RmsPropOptions, args: &mut CudaArgs<'_>) -> Result<()> {
    let RmsPropOptions { alpha, eps, weight_decay, momentum, centered } = *options;
    let (flat, has_momentum) = (options.flat(), momentum != 0.0);
    let table = table(flat + 2, args);
    let kernel_args = RmsPropArgs {
        parameters: args.write(0),
        gradients: args.write(1),
        squares: args.write(2),
        means: if centered { args.write(3) } else { Pointer::NOTHING },
        velocities: if has_momentum { args.write(flat - 1) } else { Pointer::NOTHING },
        rate: args.read(flat),
        scale: args.read(flat + 1),
        alpha,
        eps,
        weight_decay,
        momentum,
        table,
    };
    let spec = KernelSpec::new(&RMSPROP, "rmsprop").flag("CENTERED", centered).flag("MOMENTUM", has_momentum);
    update(spec, &kernel_args, table, args)
}

pub(super) fn lion(options: &LionOptions, args: &mut CudaArgs<'_>) -> Result<()> {
    let LionOptions { betas: (beta1, beta2), weight_decay } = *options;
    let table = table(5, args);
    let kernel_args = LionArgs {
        parameters: args.write(0),
        gradients: args.write(1),
        means: args.write(2),
        rate: args.read(3),
        scale: args.read(4),
        beta1,
        beta2,
        weight_decay,
        table,
    };
    update(KernelSpec::new(&LION, "lion"), &kernel_args, table, args)
}

/// `flat` is the number of flat buffers: parameters, gradients, and with momentum a third.
pub(super) fn sgd(options: &SgdOptions, flat: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let table = table(flat + 2, args);
    let kernel_args = SgdArgs {
        parameters: args.write(0),
        gradients: args.write(1),
        velocities: if flat == 3 { args.write(2) } else { Pointer::NOTHING },
        rate: args.read(flat),
        scale: args.read(flat + 1),
        momentum: options.momentum,
        weight_decay: options.weight_decay,
        table,
    };
    update(KernelSpec::new(&SGD, "sgd").flag("MOMENTUM", flat == 3), &kernel_args, table, args)
}

pub(super) fn clip_workspace(launch: &Launch<'_>) -> usize {
    let x = &launch.reads[0];
    room(Extent::all(x.layout.shape().numel()), x.dtype.size(), STATE)
}

pub(super) fn clip(max_norm: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = args.read_dtype(0).accumulator();
    let extent = Extent::all(args.read_shape(0).numel());
    let mut norm = ReductionLaunch::new(args, extent, &[0]).output(args, 0).output(args, 1);
    norm.scalars.push(max_norm);
    norm.run(args, &CLIP, |spec| spec.dtype("COMPUTE", compute))
}

pub(super) fn learning_rate(schedule: &Schedule, args: &mut CudaArgs<'_>) -> Result<()> {
    let (word, arguments) = match *schedule {
        Schedule::Constant { lr } => ("CONSTANT", [lr, 0.0, 0.0, 0.0, 0.0]),
        Schedule::Cosine { lr, eta_min, t_max } => ("COSINE", [lr, eta_min, t_max as f64, 0.0, 0.0]),
        Schedule::OneCycle { max_lr, total_steps, pct_start, div_factor, final_div_factor } => {
            ("ONE_CYCLE", [max_lr, total_steps as f64, pct_start, div_factor, final_div_factor])
        }
        Schedule::Warmup { lr, warmup_steps, start_factor } => {
            ("WARMUP", [lr, warmup_steps as f64, start_factor, 0.0, 0.0])
        }
        Schedule::WarmupCosine { lr, warmup_steps, total_steps, start_factor, eta_min } => {
            ("WARMUP_COSINE", [lr, warmup_steps as f64, start_factor, total_steps as f64, eta_min])
        }
    };
    let spec = KernelSpec::new(&SCHEDULE, "learning_rate").word("SCHEDULE", word);
    let kernel_args = LearningRateArgs { step: args.read(0), rate: args.write(0), arguments };
    args.kernel(spec, Grid::line(1, 1), &kernel_args)
}
