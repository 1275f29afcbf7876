//! Class ids as vectors on CUDA.

use crate::device::cuda::{Bounds, CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "one_hot", parts: &[include_str!("kernel.cu")] };

pub(super) fn one_hot(classes: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let wide = units::largest([args.write(0)]).max(dtype.size()) / dtype.size();
    let spec = Spec::new(&SOURCE, "one_hot")
        .dtype("ID", args.read_dtype(0))
        .dtype("OUT", dtype)
        .word("INDEX", units::index_type(n))
        .int("WIDE", wide as i64);
    let params = Params::new().pointer(args.read(0)).pointer(args.write(0)).size(n).size(classes);
    let params = params.words(&args.faults(Bounds::Classes));
    args.kernel(spec, units::grid(args, n.div_ceil(wide)), &params)
}
