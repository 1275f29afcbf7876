//! Losses on CUDA: sums in two passes, gradients elementwise.

use smallvec::SmallVec;

use super::Pointwise;
use crate::device::Launch;
use crate::device::cuda::{Bounds, CudaArgs, Grid, KernelSpec, Pointer, Reporter, Source, params};
use crate::error::{Error, Result};
use crate::kernels::elementwise::cuda::{LOOP, run};
use crate::kernels::lanes::{Lanes, ROWS};
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::{MACHINE, MAX_SCALARS, REDUCTION, ReductionLaunch, Rows};
use crate::tensor::{DType, Layout};

static TERMS: Source = Source {
    name: "loss",
    parts: &[REDUCTION, include_str!("total.cu"), include_str!("kernel.cu"), MACHINE],
};
static TOTAL: Source = Source { name: "loss", parts: &[REDUCTION, include_str!("total.cu"), MACHINE] };
static GRADIENT: Source = Source { name: "loss_backward", parts: &[include_str!("gradient.cu"), LOOP] };
static QUANTILE_GRADIENT: Source =
    Source { name: "quantile_loss_backward", parts: &[include_str!("quantile.cu")] };
const ENTROPY: &str = include_str!("cross_entropy.cu");
static ENTROPY_IN_ROWS: Source =
    Source { name: "cross_entropy", parts: &[ROWS, ENTROPY, include_str!("cross_entropy_rows.cu")] };
static ENTROPY_WIDE: Source =
    Source { name: "cross_entropy", parts: &[ENTROPY, include_str!("cross_entropy_wide.cu")] };
static ENTROPY_BACKWARD: Source =
    Source { name: "cross_entropy", parts: &[include_str!("cross_entropy_backward.cu")] };

params! {
    struct QuantileBackwardArgs<const LEVELS: usize> {
        x: Pointer = "const PREDICTION*",
        t: Pointer = "const TARGET*",
        dy: Pointer = "const DY*",
        dx: Pointer = "DX*",
        /// 1 by the number of terms.
        share: f64,
        n: i64,
        /// As many as the constant says.
        levels: [f64; LEVELS],
    }

    struct CrossEntropyArgs {
        x: Pointer = "const IN*",
        ids: Pointer = "const ID*",
        largest: Pointer = "COMPUTE*",
        inverse: Pointer = "COMPUTE*",
        /// Of each block, the sum of its losses.
        partial: Pointer = "double*",
        smoothing: f64,
        rows: i64,
        classes: i64,
        faults: Reporter,
    }

    struct CrossEntropyBackwardArgs {
        x: Pointer = "const IN*",
        ids: Pointer = "const ID*",
        largest: Pointer = "const COMPUTE*",
        inverse: Pointer = "const COMPUTE*",
        dy: Pointer = "const DY*",
        dx: Pointer = "IN*",
        /// 1 by the number of rows.
        share: f64,
        smoothing: f64,
        n: i64,
        classes: i64,
        faults: Reporter,
    }
}

const THREADS: usize = 256;
/// Bytes that a thread loads at once.
const PIECE_BYTES: usize = 16;
/// Bytes of a state (an f64).
const STATE: usize = 8;
/// How many levels fit into the parameters of a kernel.
const MAX_LEVELS: usize = MAX_SCALARS;
/// And those of a kernel for fewer.
const FEW_LEVELS: usize = 32;

fn total(args: &CudaArgs<'_>, n: usize, inputs: &[usize], divisor: usize) -> ReductionLaunch {
    let mut total = ReductionLaunch::of_rows(args, Extent::all(n), inputs).output(args, 0);
    total.scalars.push(divisor as f64);
    total
}

fn constants(spec: KernelSpec, out: DType) -> KernelSpec {
    spec.dtype("COMPUTE", out.accumulator()).dtype("OUT", out)
}

/// Workspace bytes of a sum over the elements of the first operand, or of the first two together.
pub(super) fn workspace(launch: &Launch<'_>, inputs: usize) -> usize {
    let inputs = &launch.reads[..inputs];
    let layouts: SmallVec<[&Layout; 2]> = inputs.iter().map(|x| x.layout).collect();
    let size = inputs.iter().map(|x| x.dtype.size()).max().unwrap_or(1);
    Rows::room(Extent::all(launch.reads[0].layout.shape().numel()), &layouts, size, STATE)
}

fn grid(args: &CudaArgs<'_>, n: usize) -> Grid {
    Grid::line(n.div_ceil(THREADS).min(args.multiprocessors() * 64), THREADS as u32)
}

fn index(n: usize) -> &'static str {
    if n >= 1 << 30 { "u64" } else { "u32" }
}

fn word(loss: Pointwise) -> (&'static str, f64) {
    match loss {
        Pointwise::Mse => ("MSE", 0.0),
        Pointwise::L1 => ("L1", 0.0),
        Pointwise::Huber { delta } => ("HUBER", delta),
        Pointwise::Bce => ("BCE", 0.0),
    }
}

pub(super) fn forward(loss: Pointwise, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, out, (word, delta)) = (args.read_shape(0).numel(), args.write_dtype(0), word(loss));
    let mut total = total(args, n, &[0, 1], n);
    total.scalars.push(delta);
    total.run(args, &TERMS, |spec| constants(spec, out).word("LOSS", word))
}

pub(super) fn backward(loss: Pointwise, by: usize, scale: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let (word, delta) = word(loss);
    let compute = args.write_dtype(0).accumulator();
    run(args, &GRADIENT, compute, &[scale, delta], |spec| spec.word("LOSS", word).int("BY", by as i64))
}

fn check_levels(args: &CudaArgs<'_>, levels: &[f64]) -> Result<()> {
    if levels.len() <= MAX_LEVELS {
        return Ok(());
    }
    let message = format!(
        "there are {} levels; a GPU takes at most {MAX_LEVELS} at once: split the prediction by levels",
        levels.len()
    );
    Err(Error::invalid(args.op(), message))
}

pub(super) fn quantile(levels: &[f64], args: &mut CudaArgs<'_>) -> Result<()> {
    check_levels(args, levels)?;
    let (n, target, out) = (args.read_shape(0).numel(), args.read_dtype(1), args.write_dtype(0));
    let mut total = total(args, n, &[0], n);
    total.scalars.extend_from_slice(levels);
    total.extra.push(args.read(1));
    total.run(args, &TERMS, |spec| {
        constants(spec, out)
            .dtype("TARGET", target)
            .word("LOSS", "QUANTILE")
            .int("LEVELS", levels.len() as i64)
    })
}

pub(super) fn quantile_backward(levels: &[f64], by: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    check_levels(args, levels)?;
    let (terms, n) = (args.read_shape(0).numel(), args.write_shape(0).numel());
    if n == 0 {
        return Ok(());
    }
    let dtype = args.read_dtype(0);
    let spec = KernelSpec::new(&QUANTILE_GRADIENT, "quantile_backward")
        .dtype("COMPUTE", dtype.accumulator())
        .dtype("PREDICTION", dtype)
        .dtype("TARGET", args.read_dtype(1))
        .dtype("DY", args.read_dtype(2))
        .dtype("DX", args.write_dtype(0))
        .int("LEVELS", levels.len() as i64)
        .int("BY", by as i64)
        .word("INDEX", index(terms))
        .flag("ADD", args.accumulate(0));
    match levels.len() {
        ..=FEW_LEVELS => args.kernel(spec, grid(args, n), &quantiles::<FEW_LEVELS>(levels, terms, n, args)),
        _ => args.kernel(spec, grid(args, n), &quantiles::<MAX_LEVELS>(levels, terms, n, args)),
    }
}

/// The arguments of the gradient's kernel, of at most `LEVELS` levels.
fn quantiles<const LEVELS: usize>(
    levels: &[f64],
    terms: usize,
    n: usize,
    args: &CudaArgs<'_>,
) -> QuantileBackwardArgs<LEVELS> {
    QuantileBackwardArgs {
        x: args.read(0),
        t: args.read(1),
        dy: args.read(2),
        dx: args.write(0),
        share: 1.0 / terms as f64,
        n: n as i64,
        levels: std::array::from_fn(|i| levels.get(i).copied().unwrap_or_default()),
    }
}

/// Rows, classes, and how rows are divided over lanes if they fit into registers.
fn rows(dims: &[usize], dtype: DType) -> (usize, usize, Option<Lanes>) {
    let (classes, rows) = dims.split_last().map_or((1, 1), |(&c, rows)| (c, rows.iter().product()));
    (rows, classes, Lanes::of(classes, dtype.size()))
}

pub(super) fn cross_entropy_workspace(launch: &Launch<'_>) -> usize {
    let x = &launch.reads[0];
    let (rows, _, lanes) = rows(x.layout.shape(), x.dtype);
    rows.div_ceil(lanes.map_or(1, Lanes::rows_a_block)) * STATE
}

pub(super) fn cross_entropy(smoothing: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let dtype = args.read_dtype(0);
    let (rows, classes, lanes) = rows(args.read_shape(0), dtype);
    let blocks = rows.div_ceil(lanes.map_or(1, Lanes::rows_a_block));
    if rows > 0 {
        let kernel_args = CrossEntropyArgs {
            x: args.read(0),
            ids: args.read(1),
            largest: args.write(1),
            inverse: args.write(2),
            partial: args.workspace(),
            smoothing,
            rows: rows as i64,
            classes: classes as i64,
            faults: args.faults(Bounds::Classes),
        };
        let source = if lanes.is_some() { &ENTROPY_IN_ROWS } else { &ENTROPY_WIDE };
        let spec = KernelSpec::new(source, "cross_entropy")
            .dtype("COMPUTE", dtype.accumulator())
            .dtype("IN", dtype)
            .dtype("ID", args.read_dtype(1));
        match lanes {
            Some(lanes) => {
                let spec = lanes.constants(spec, [(args.input(0).alignment(), dtype)]);
                args.kernel(spec, lanes.grid(rows), &kernel_args)?;
            }
            None => args.kernel(spec, Grid::line(blocks, THREADS as u32), &kernel_args)?,
        }
    }
    let out = args.write_dtype(0);
    total(args, 0, &[], rows).merge(args, &TOTAL, |spec| constants(spec, out), blocks, 1)
}

pub(super) fn cross_entropy_backward(smoothing: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let dtype = args.read_dtype(0);
    let (rows, classes, _) = rows(args.read_shape(0), dtype);
    let n = rows * classes;
    if n == 0 {
        return Ok(());
    }
    let whole = [args.read(0), args.write(0)].iter().all(|&x| args.alignment(x) >= PIECE_BYTES);
    let vec = if whole { PIECE_BYTES / dtype.size() } else { 1 };
    let spec = KernelSpec::new(&ENTROPY_BACKWARD, "cross_entropy_backward")
        .dtype("COMPUTE", dtype.accumulator())
        .dtype("IN", dtype)
        .dtype("ID", args.read_dtype(1))
        .dtype("DY", args.read_dtype(4))
        .word("INDEX", index(n))
        .int("VEC", vec as i64)
        .flag("ADD", args.accumulate(0));
    let kernel_args = CrossEntropyBackwardArgs {
        x: args.read(0),
        ids: args.read(1),
        largest: args.read(2),
        inverse: args.read(3),
        dy: args.read(4),
        dx: args.write(0),
        share: 1.0 / rows as f64,
        smoothing,
        n: n as i64,
        classes: classes as i64,
        faults: args.faults(Bounds::Classes),
    };
    args.kernel(spec, grid(args, n.div_ceil(vec)), &kernel_args)
}
