//! Filling memory on CUDA.

use super::Arange;
use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::elementwise::cuda::{LOOP, arithmetic, run};
use crate::kernels::units;

static SOURCE: Source = Source { name: "fill", parts: &[include_str!("kernel.cu"), LOOP] };
static ARANGE: Source = Source { name: "arange", parts: &[include_str!("arange.cu")] };

pub(super) fn fill(value: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = arithmetic(args.write_dtype(0));
    run(args, &SOURCE, compute, &[value], |spec| spec)
}

pub(super) fn arange(op: &Arange, args: &mut CudaArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let spec = Spec::new(&ARANGE, "arange").dtype("OUT", op.dtype);
    let params = Params::new().pointer(args.write(0)).size(n).f64(op.start).f64(op.step);
    args.kernel(spec, units::grid(args, n), &params)
}
