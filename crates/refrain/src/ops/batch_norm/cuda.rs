//! Batch norm on CUDA: sums of each channel, then one pass over the elements.

use super::BatchNorm;
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Grid, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::elementwise::cuda::arithmetic;
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::{MACHINE, MOMENTS, REDUCTION, Reduction, room};
use crate::tensor::DType;

static MOMENTS_OF_CHANNELS: Source =
    Source { name: "batch_norm", parts: &[REDUCTION, MOMENTS, include_str!("sums.cu"), MACHINE] };
static GRADIENT_SUMS: Source =
    Source { name: "batch_norm", parts: &[REDUCTION, include_str!("sums.cu"), MACHINE] };
static SOURCE: Source = Source { name: "batch_norm", parts: &[include_str!("kernel.cu")] };

const THREADS: usize = 256;
/// Bytes of a state, at most: three f64.
const STATE: usize = 24;

/// The reduction of all values of a channel: of columns if channels are neighbours, else of lines that are
/// merged channel by channel.
fn lines(extent: Extent) -> Extent {
    let Extent { outer, n: channels, inner } = extent;
    match inner {
        1 => Extent { outer: 1, n: outer, inner: channels },
        _ => Extent { outer: outer * channels, n: inner, inner: 1 },
    }
}

/// The sums of the backward pass as they are, behind the states.
fn states(extent: Extent, dtype: DType) -> usize {
    room(lines(extent), dtype.size(), STATE).next_multiple_of(256)
}

pub(super) fn workspace(extent: Extent, launch: &Launch<'_>) -> usize {
    let dtype = launch.reads[0].dtype;
    states(extent, dtype) + 2 * extent.n * arithmetic(dtype).size()
}

/// Of elements and of parameters.
fn dtypes(args: &CudaArgs<'_>) -> [DType; 2] {
    [args.read_dtype(0), args.read_dtype(1)]
}

fn constants(spec: Spec, [dtype, parameters]: [DType; 2], backward: bool) -> Spec {
    spec.dtype("COMPUTE", arithmetic(dtype))
        .dtype("IN", dtype)
        .dtype("PARAMETER", parameters)
        .flag("BACKWARD", backward)
}

/// A reduction to one result a channel.
fn by_channel(args: &CudaArgs<'_>, extent: Extent, inputs: &[usize]) -> Reduction {
    let mut sums = Reduction::new(args, lines(extent), inputs);
    sums.totals = Some(extent.n);
    sums
}

/// One of the kernels over elements, with the blocks that it wants.
fn elements(
    extent: Extent,
    backward: bool,
    add: bool,
    addresses: &[u64],
    entry: &'static str,
    args: &CudaArgs<'_>,
) -> (Spec, Grid) {
    let dtypes @ [dtype, _] = dtypes(args);
    let Extent { outer, n: channels, inner } = extent;
    let widest = 16 / dtype.size();
    let run = if inner == 1 { channels } else { inner };
    let vec = if run.is_multiple_of(widest) { widest } else { 1 };
    let n = outer * channels * inner;
    let spec = constants(Spec::new(&SOURCE, entry), dtypes, backward)
        .word("INDEX", if n >= 1 << 30 { "u64" } else { "u32" })
        .int("VEC", vec as i64)
        .flag("ALIGNED", addresses.iter().all(|a| a.is_multiple_of((vec * dtype.size()) as u64)))
        .flag("INNER", inner != 1)
        .flag("ADD", add);
    let blocks = (n / vec).div_ceil(THREADS).min(args.multiprocessors() * 64);
    (spec, Grid::line(blocks, THREADS as u32))
}

pub(super) fn forward(op: &BatchNorm, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n: channels, inner } = op.extent;
    if channels == 0 {
        return Ok(());
    }
    let dtypes = dtypes(args);
    let (x, y) = (args.read(0), args.write(0));
    let (means, invs) = (args.write(1), args.write(2));
    if op.training {
        let mut sums = by_channel(args, op.extent, &[0]);
        for o in 1..5 {
            sums = sums.output(args, o);
        }
        sums.extra.extend([args.read(3), args.read(4)]);
        sums.scalars.extend([op.momentum, op.eps]);
        sums.run(args, &MOMENTS_OF_CHANNELS, |spec| constants(spec, dtypes, false))?;
    } else {
        let (spec, _) = elements(op.extent, false, false, &[x, y], "batch_norm_running", args);
        let params = Params::new().pointer(args.read(3)).pointer(args.read(4)).pointer(means).pointer(invs);
        let grid = Grid::line(channels.div_ceil(THREADS), THREADS as u32);
        args.kernel(spec, grid, &params.f64(op.eps).size(channels))?;
    }
    let n = outer * channels * inner;
    if n == 0 {
        return Ok(());
    }
    let (spec, grid) = elements(op.extent, false, false, &[x, y], "batch_norm", args);
    let params = Params::new().pointer(x).pointer(args.read(1)).pointer(args.read(2));
    let params = params.pointer(means).pointer(invs).pointer(y).size(n).size(channels).size(inner);
    args.kernel(spec, grid, &params)
}

pub(super) fn backward(extent: Extent, training: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n: channels, inner } = extent;
    if channels == 0 {
        return Ok(());
    }
    let dtypes @ [dtype, _] = dtypes(args);
    let (x, weight, dy, dx) = (args.read(0), args.read(1), args.read(2), args.write(0));
    let (means, invs) = (args.read(3), args.read(4));
    let totals = args.workspace() + states(extent, dtype) as u64;
    let mut sums = by_channel(args, extent, &[0, 2]).output(args, 1).output(args, 2);
    sums.extra.extend([means, invs, totals]);
    sums.scalars.push(channels as f64);
    sums.run(args, &GRADIENT_SUMS, |spec| constants(spec, dtypes, true))?;
    let n = outer * channels * inner;
    if n == 0 {
        return Ok(());
    }
    let share = 1.0 / (outer * inner) as f64;
    let add = args.accumulate(0);
    let (spec, grid) = elements(extent, true, add, &[x, dy, dx], "batch_norm", args);
    let spec = spec.flag("TRAINING", training);
    let params = Params::new().pointer(x).pointer(weight).pointer(dy).pointer(means).pointer(invs);
    let params = params.pointer(totals).pointer(dx).f64(share).size(n).size(channels).size(inner);
    args.kernel(spec, grid, &params)
}
