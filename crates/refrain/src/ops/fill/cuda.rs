//! Filling memory on CUDA.

use super::Arange;
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::elementwise::cuda::{LOOP, run};
use crate::kernels::units;

static SOURCE: Source = Source { name: "fill", parts: &[include_str!("kernel.cu"), LOOP] };
static ARANGE: Source = Source { name: "arange", parts: &[include_str!("arange.cu")] };

params! {
    struct ArangeArgs {
        y: Pointer = "OUT*",
        n: i64,
        start: f64,
        step: f64,
    }
}

pub(super) fn fill(value: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = args.write_dtype(0).accumulator();
    run(args, &SOURCE, compute, &[value], |spec| spec)
}

pub(super) fn arange(op: &Arange, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let spec = KernelSpec::new(&ARANGE, "arange").dtype("OUT", op.dtype);
    let kernel_args = ArangeArgs { y: args.write(0), n: n as i64, start: op.start, step: op.step };
    args.kernel(spec, units::grid(args, n), &kernel_args)
}
