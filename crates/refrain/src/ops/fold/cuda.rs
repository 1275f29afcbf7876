//! The adjoint of `unfold` on CUDA.

use super::Fold;
use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::units;

static SOURCE: Source = Source { name: "fold", parts: &[include_str!("kernel.cu")] };

pub(super) fn fold(op: &Fold, args: &mut CudaArgs<'_>) -> Result<()> {
    let (windows, n) = (args.read_shape(0), op.shape.numel());
    if n == 0 {
        return Ok(());
    }
    let reach = n.max(windows.numel()).max(op.size).max(op.step);
    let spec = Spec::new(&SOURCE, "fold")
        .dtype("ELEMENT", args.write_dtype(0))
        .word("INDEX", units::index_type(reach));
    let params = Params::new()
        .pointer(args.read(0))
        .pointer(args.write(0))
        .size(n)
        .size(op.shape[op.axis])
        .size(op.shape[op.axis + 1..].iter().product())
        .size(windows[op.axis])
        .size(op.size)
        .size(op.step);
    args.kernel(spec, units::grid(args, n), &params)
}
