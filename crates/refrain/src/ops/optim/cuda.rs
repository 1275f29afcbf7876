//! Optimisers on CUDA, a launch each but for the global norm.

use super::{AdamWOptions, Schedule, SgdOptions};
use crate::device::Launch;
use crate::device::cuda::{Bounds, CudaArgs, Grid, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::elementwise::cuda::arithmetic;
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::{MACHINE, REDUCTION, Reduction, room};

const SEGMENTS: &str = include_str!("segments.cu");
static ADAMW: Source = Source { name: "adamw", parts: &[SEGMENTS, include_str!("adamw.cu")] };
static SGD: Source = Source { name: "sgd", parts: &[SEGMENTS, include_str!("sgd.cu")] };
static CLIP: Source = Source { name: "clip", parts: &[REDUCTION, include_str!("clip.cu"), MACHINE] };
static SCHEDULE: Source = Source { name: "learning_rate", parts: &[include_str!("schedule.cu")] };

const THREADS: usize = 256;
/// Elements that a thread updates at once, at most.
const MAX_VEC: usize = 4;
/// Bytes of a sum of squares.
const STATE: usize = 8;

/// Updates `n` elements of the launch's results, flat buffers of one dtype.
fn update(spec: Spec, params: Params, n: usize, segments: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    if n == 0 || segments == 0 {
        return Ok(());
    }
    let dtype = args.write_dtype(0);
    let vec = (16 / dtype.size()).min(MAX_VEC);
    let aligned = (0..args.writes()).all(|o| args.write(o).is_multiple_of((vec * dtype.size()) as u64));
    let spec = spec
        .dtype("COMPUTE", arithmetic(dtype))
        .dtype("IN", dtype)
        .int("VEC", vec as i64)
        .flag("ALIGNED", aligned);
    let grid = Grid::line(n.div_ceil(vec * THREADS), THREADS as u32);
    args.kernel(spec, grid, &params.size(n).size(segments))
}

pub(super) fn adamw(options: &AdamWOptions, args: &mut CudaArgs<'_>) -> Result<()> {
    let AdamWOptions { betas, eps, weight_decay } = *options;
    let flat = (0..4).fold(Params::new(), |params, o| params.pointer(args.write(o)));
    let params = (4..9).fold(flat, |params, i| params.pointer(args.read(i)));
    let params =
        params.f64(betas.0).f64(betas.1).f64(eps).f64(weight_decay).words(&args.faults(Bounds::Steps));
    let (n, segments) = (args.write_shape(0).numel(), args.read_shape(7)[0]);
    update(Spec::new(&ADAMW, "adamw"), params, n, segments, args)
}

/// With `flat` buffers: parameters, gradients, and with momentum a third.
pub(super) fn sgd(options: &SgdOptions, flat: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let momentum = if flat == 3 { args.write(2) } else { 0 };
    let params = Params::new().pointer(args.write(0)).pointer(args.write(1)).pointer(momentum);
    let params = (flat..flat + 4).fold(params, |params, i| params.pointer(args.read(i)));
    let params = params.f64(options.momentum).f64(options.weight_decay);
    let (n, segments) = (args.write_shape(0).numel(), args.read_shape(flat + 2)[0]);
    update(Spec::new(&SGD, "sgd").flag("MOMENTUM", flat == 3), params, n, segments, args)
}

fn flat_extent(n: usize) -> Extent {
    Extent { outer: 1, n, inner: 1 }
}

pub(super) fn clip_workspace(launch: &Launch<'_>) -> usize {
    let x = &launch.reads[0];
    room(flat_extent(x.layout.shape().numel()), x.dtype.size(), STATE)
}

pub(super) fn clip(max_norm: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = arithmetic(args.read_dtype(0));
    let extent = flat_extent(args.read_shape(0).numel());
    let mut norm = Reduction::new(args, extent, &[0]).output(args, 0).output(args, 1);
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
    let params = Params::new().pointer(args.read(0)).pointer(args.write(0));
    let spec = Spec::new(&SCHEDULE, "learning_rate").word("SCHEDULE", word);
    args.kernel(spec, Grid::line(1, 1), &params.words(&arguments.map(f64::to_bits)))
}
