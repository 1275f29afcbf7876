//! `one_hot` on CUDA.

use crate::device::cuda::{Bounds, CudaArgs, KernelSpec, Pointer, Reporter, Source, params};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "one_hot", parts: &[include_str!("kernel.cu")] };

params! {
    struct OneHotArgs {
        ids: Pointer = "const ID*",
        y: Pointer = "OUT*",
        n: i64,
        classes: i64,
        faults: Reporter,
    }
}

pub(super) fn one_hot(classes: usize, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let wide = units::largest([args.output(0).alignment()]).max(dtype.size()) / dtype.size();
    let spec = KernelSpec::new(&SOURCE, "one_hot")
        .dtype("ID", args.read_dtype(0))
        .dtype("OUT", dtype)
        .word("INDEX", units::index_type(n))
        .int("WIDE", wide as i64);
    let kernel_args = OneHotArgs {
        ids: args.read(0),
        y: args.write(0),
        n: n as i64,
        classes: classes as i64,
        faults: args.faults(Bounds::Classes),
    };
    args.kernel(spec, units::grid(args, n.div_ceil(wide)), &kernel_args)
}
