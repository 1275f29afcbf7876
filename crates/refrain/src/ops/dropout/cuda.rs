//! Dropout on CUDA.

use super::{Dropout, scale, threshold};
use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::elementwise::cuda::{LOOP, arithmetic, run};
use crate::kernels::units;
use crate::ops::random::philox::WORDS;

static SOURCE: Source = Source { name: "dropout", parts: &[include_str!("kernel.cu")] };
static BACKWARD: Source = Source { name: "dropout_backward", parts: &[include_str!("backward.cu"), LOOP] };

pub(super) fn forward(op: &Dropout, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let spec =
        Spec::new(&SOURCE, "dropout").dtype("ELEMENT", args.write_dtype(0)).flag("MASK", op.keeps_mask);
    let params = Params::new()
        .pointer(args.read(0))
        .pointer(args.read(1))
        .pointer(args.write(0))
        .pointer(if op.keeps_mask { args.write(1) } else { 0 })
        .size(n)
        .i64(op.offset as i64)
        .i64(threshold(op.p) as i64)
        .f64(scale(op.p));
    args.kernel(spec, units::grid(args, n.div_ceil(WORDS)), &params)
}

pub(super) fn backward(scale: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = arithmetic(args.write_dtype(0));
    run(args, &BACKWARD, compute, &[scale], |spec| spec)
}
