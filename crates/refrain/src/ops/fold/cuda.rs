//! The adjoint of `unfold` on CUDA.

use super::Fold;
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "fold", parts: &[include_str!("kernel.cu")] };

params! {
    struct FoldArgs {
        x: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        n: i64,
        length: i64,
        inner: i64,
        count: i64,
        size: i64,
        step: i64,
    }
}

pub(super) fn fold(op: &Fold, args: &mut CudaArgs<'_>) -> Result<()> {
    let (windows, n) = (args.read_shape(0), op.shape.numel());
    if n == 0 {
        return Ok(());
    }
    let reach = n.max(windows.numel()).max(op.size).max(op.step);
    let spec = KernelSpec::new(&SOURCE, "fold")
        .dtype("ELEMENT", args.write_dtype(0))
        .word("INDEX", units::index_type(reach));
    let kernel_args = FoldArgs {
        x: args.read(0),
        y: args.write(0),
        n: n as i64,
        length: op.shape[op.axis] as i64,
        inner: op.shape[op.axis + 1..].iter().product::<usize>() as i64,
        count: windows[op.axis] as i64,
        size: op.size as i64,
        step: op.step as i64,
    };
    args.kernel(spec, units::grid(args, n), &kernel_args)
}
