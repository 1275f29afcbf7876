//! Normalised queries and keys on CUDA: a vector in registers.

use super::Sizes;
use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::elementwise::cuda::arithmetic;
use crate::kernels::lanes::{Lanes, ROWS};
use crate::tensor::DType;

static SOURCE: Source = Source { name: "qk_norm", parts: &[ROWS, include_str!("kernel.cu")] };

/// Kernels multiply by the inverse, which of smaller numbers is infinite.
fn invertible(eps: f64, args: &CudaArgs<'_>) -> f64 {
    let least = if args.read_dtype(0) == DType::F64 { f64::MIN_POSITIVE } else { f32::MIN_POSITIVE.into() };
    if eps > 0.0 { eps.max(least) } else { eps }
}

pub(super) fn forward(eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let eps = invertible(eps, args);
    let (x, y) = (args.read(0), args.write(0));
    let params = Params::new().pointer(x).pointer(args.read(1)).pointer(y).f64(eps);
    run(false, &[x, y], params, args)
}

pub(super) fn backward(eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let eps = invertible(eps, args);
    let (x, dy, dx, along) = (args.read(0), args.read(2), args.write(0), args.write(1));
    let params =
        Params::new().pointer(x).pointer(args.read(1)).pointer(dy).pointer(dx).pointer(along).f64(eps);
    run(true, &[x, dy, dx], params, args)
}

/// The vectors of all heads, which lie at `addresses`.
fn run(backward: bool, addresses: &[u64], params: Params, args: &mut CudaArgs<'_>) -> Result<()> {
    let Sizes { tokens, heads, dim } = Sizes::of(args.read_shape(0));
    let rows = tokens * 3 * heads;
    let dtype = args.read_dtype(0);
    // The dimension was checked: every vector fits.
    let Some(lanes) = Lanes::of(dim, dtype.size()).filter(|_| rows * dim > 0) else { return Ok(()) };
    let spec = Spec::new(&SOURCE, "qk_norm").dtype("COMPUTE", arithmetic(dtype)).dtype("IN", dtype);
    let spec = spec.int("HEADS", heads as i64).flag("BACKWARD", backward).flag("ADD", args.accumulate(0));
    let spec = lanes.constants(spec, addresses.iter().map(|&a| (a, dtype)));
    args.kernel(spec, lanes.grid(rows), &params.size(rows).i32(dim as i32))
}
