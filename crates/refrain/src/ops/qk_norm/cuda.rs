//! `qk_norm` on CUDA: each vector stays in registers.

use super::Sizes;
use crate::device::cuda::{CudaArgs, KernelSpec, Member, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::lanes::{Lanes, ROWS};
use crate::tensor::DType;

const VECTORS: &str = include_str!("vectors.cu");
static FORWARD: Source = Source { name: "qk_norm", parts: &[ROWS, VECTORS, include_str!("kernel.cu")] };
static BACKWARD: Source = Source { name: "qk_norm", parts: &[ROWS, VECTORS, include_str!("backward.cu")] };

params! {
    struct QkNormArgs {
        x: Pointer = "const IN*",
        temperature: Pointer = "const COMPUTE*",
        y: Pointer = "IN*",
        eps: f64,
        rows: i64,
        width: i64,
    }

    struct QkNormBackwardArgs {
        x: Pointer = "const IN*",
        temperature: Pointer = "const COMPUTE*",
        dy: Pointer = "const IN*",
        dx: Pointer = "IN*",
        /// Gets what each query adds to the gradient of its head's temperature.
        along: Pointer = "COMPUTE*",
        eps: f64,
        rows: i64,
        width: i64,
    }
}

/// The smallest eps whose inverse is finite. Kernels multiply by the inverse.
fn invertible(eps: f64, args: &CudaArgs<'_>) -> f64 {
    let least = if args.read_dtype(0) == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE.into() };
    if eps > 0.0 { eps.max(least) } else { eps }
}

/// Vectors, and numbers of each.
fn sizes(args: &CudaArgs<'_>) -> (usize, usize) {
    let Sizes { tokens, heads, dim } = Sizes::of(args.read_shape(0));
    (tokens * 3 * heads, dim)
}

pub(super) fn forward(eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let (rows, width) = sizes(args);
    let kernel_args = QkNormArgs {
        x: args.read(0),
        temperature: args.read(1),
        y: args.write(0),
        eps: invertible(eps, args),
        rows: rows as i64,
        width: width as i64,
    };
    run(KernelSpec::new(&FORWARD, "qk_norm"), &[kernel_args.x, kernel_args.y], &kernel_args, args)
}

pub(super) fn backward(eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let (rows, width) = sizes(args);
    let kernel_args = QkNormBackwardArgs {
        x: args.read(0),
        temperature: args.read(1),
        dy: args.read(2),
        dx: args.write(0),
        along: args.write(1),
        eps: invertible(eps, args),
        rows: rows as i64,
        width: width as i64,
    };
    let spec = KernelSpec::new(&BACKWARD, "qk_norm_backward").flag("ADD", args.accumulate(0));
    run(spec, &[kernel_args.x, kernel_args.dy, kernel_args.dx], &kernel_args, args)
}

/// The vectors of all heads, which lie at `operands`.
fn run<P: Member + 'static>(
    spec: KernelSpec,
    operands: &[Pointer],
    params: &P,
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    let (Sizes { heads, .. }, (rows, width)) = (Sizes::of(args.read_shape(0)), sizes(args));
    let dtype = args.read_dtype(0);
    // The dimension has been checked: every vector fits.
    let Some(lanes) = Lanes::of(width, dtype.size()).filter(|_| rows * width > 0) else { return Ok(()) };
    let spec = spec.dtype("COMPUTE", dtype.accumulator()).dtype("IN", dtype).int("HEADS", heads as i64);
    let spec = lanes.constants(spec, operands.iter().map(|&x| (args.alignment(x), dtype)));
    args.kernel(spec, lanes.grid(rows), params)
}
