//! Fourier transforms on CUDA: in shared memory by one kernel, or, of long lines, by a kernel for each stage.

use std::fmt::Write;

use super::plan::Plan;
use super::{Fft, Form};
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::tensor::DType;

static BLOCK: Source = Source { name: "fft", parts: &[include_str!("fft.cu"), include_str!("block.cu")] };
static PASSES: Source = Source { name: "fft", parts: &[include_str!("fft.cu"), include_str!("passes.cu")] };

const THREADS: usize = 256;
/// The largest radix that is a power of two. With it, a thread's numbers take 16 registers.
const RADIX: usize = 8;
/// The shared memory of a block on every GPU that kernels are compiled for.
const SHARED: usize = 99 << 10;
/// About the points of a block: each thread computes a few.
const POINTS: usize = 4 * THREADS;
/// Neighbours of which memory moves whole sectors.
const NEIGHBOURS: usize = 32;

params! {
    struct FftArgs {
        x_re: Pointer = "const IN*",
        x_im: Pointer = "const IN*",
        y_re: Pointer = "OUT*",
        y_im: Pointer = "OUT*",
        /// Of long lines: the points before a stage, and after it.
        points: Pointer,
        others: Pointer,
        /// How many transforms there are, and how many of them are neighbours.
        lines: i64,
        inner: i64,
        /// The product of the radices before this stage.
        before: i64,
        /// The factor of bins at the edges, or of all results.
        edge: f64,
        middle: f64,
    }
}

/// The transforms of a block, and its shared memory. `None` if not even one fits.
fn lanes(plan: &Plan, inner: usize, compute: DType) -> Option<(usize, usize)> {
    let bytes = |lanes: usize| {
        let gaps = plan.points * lanes * compute.size() / 64 + 1;
        (2 * (plan.points * lanes + gaps) + plan.n) * 2 * compute.size()
    };
    let wanted = match inner {
        1 => (POINTS / plan.points).clamp(1, 64),
        _ => (POINTS / plan.points).next_power_of_two().clamp(NEIGHBOURS / 4, NEIGHBOURS),
    };
    (0..=wanted.ilog2()).map(|half| wanted >> half).find(|&n| bytes(n) <= SHARED).map(|n| (n, bytes(n)))
}

/// The bytes of the points of all lines, twice, of long lines.
pub(super) fn workspace(op: &Fft, launch: &Launch<'_>) -> Result<usize> {
    let y = &launch.writes[0].0;
    let (plan, compute) = (op.plan(RADIX)?, y.dtype.accumulator());
    let extent = op.extent(y.layout.shape());
    match lanes(&plan, extent.inner, compute) {
        Some(_) => Ok(0),
        None => Ok(4 * extent.outer * extent.inner * plan.points * compute.size()),
    }
}

pub(super) fn transform(op: &Fft, args: &mut CudaArgs<'_>) -> Result<()> {
    let (plan, extent) = (op.plan(RADIX)?, op.extent(args.write_shape(0)));
    let (dtype, lines) = (args.write_dtype(0), extent.outer * extent.inner);
    if lines == 0 {
        return Ok(());
    }
    let compute = dtype.accumulator();
    let form = match op.form {
        Form::Complex { inverse, .. } => i64::from(inverse),
        Form::Forward { .. } => 2,
        Form::Inverse { .. } => 3,
    };
    let (one_operand, one_result) =
        (matches!(op.form, Form::Forward { .. }), matches!(op.form, Form::Inverse { .. }));
    let spec = |source, entry| {
        KernelSpec::new(source, entry)
            .dtype("IN", dtype)
            .dtype("OUT", dtype)
            .dtype("COMPUTE", compute)
            .int("FORM", form)
            .int("N", plan.n as i64)
            .int("POINTS", plan.points as i64)
            .flag("ADD_RE", args.accumulate(0))
            .flag("ADD_IM", !one_result && args.accumulate(1))
            .flag("ROWS", extent.inner == 1)
    };
    let (edge, middle) = op.factors();
    let work = args.workspace();
    let half = 2 * lines * plan.points * compute.size();
    let mut told = FftArgs {
        x_re: args.read(0),
        x_im: args.read(usize::from(!one_operand)),
        y_re: args.write(0),
        y_im: args.write(usize::from(!one_result)),
        points: work,
        others: work,
        lines: lines as i64,
        inner: extent.inner as i64,
        before: 1,
        edge,
        middle,
    };
    if let Some((lanes, bytes)) = lanes(&plan, extent.inner, compute) {
        let mut stages = "#define STAGES(S)".to_string();
        for (radix, before) in plan.stages() {
            let _ = write!(stages, " S({radix}, {before})");
        }
        let spec = spec(&BLOCK, "fft_block")
            .int("LANES", lanes as i64)
            .int("THREADS", THREADS as i64)
            .ahead((stages + "\n").into());
        return args.kernel(spec, Grid::line(lines.div_ceil(lanes), THREADS as u32).shared(bytes), &told);
    }
    let grid = |units: usize| Grid::line(units.div_ceil(THREADS), THREADS as u32);
    let begin = spec(&PASSES, "fft_begin").flag("BEGIN", true);
    let end = spec(&PASSES, "fft_end").flag("END", true);
    let passes: Vec<_> = plan
        .stages()
        .map(|(radix, before)| {
            let units = if radix <= 8 { plan.points / radix } else { plan.points };
            (spec(&PASSES, "fft_pass").int("PASS_RADIX", radix as i64), grid(lines * units), before)
        })
        .collect();
    let results = if let Form::Forward { .. } = op.form { plan.n / 2 + 1 } else { plan.points };
    told.others = work.plus(half);
    args.kernel(begin, grid(lines * plan.points), &told)?;
    for (pass, grid, before) in passes {
        told.before = before as i64;
        args.kernel(pass, grid, &told)?;
        std::mem::swap(&mut told.points, &mut told.others);
    }
    args.kernel(end, grid(lines * results), &told)
}
