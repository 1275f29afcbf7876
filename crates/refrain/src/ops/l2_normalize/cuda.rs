//! L2 normalisation on CUDA: a row in registers where it fits, else two passes of a block over each column.

use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::columns::{self, COLUMNS};
use crate::kernels::elementwise::cuda::arithmetic;
use crate::kernels::lanes::{Lanes, ROWS};
use crate::kernels::reduction::Extent;

static IN_ROWS: Source = Source { name: "l2_normalize", parts: &[ROWS, include_str!("kernel.cu")] };
static IN_COLUMNS: Source = Source { name: "l2_normalize", parts: &[COLUMNS, include_str!("columns.cu")] };

pub(super) fn forward(extent: Extent, eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let addresses = [args.read(0), args.write(0)];
    let params = Params::new().pointer(addresses[0]).pointer(addresses[1]).pointer(args.write(1)).f64(eps);
    run(false, extent, &addresses, params, args)
}

pub(super) fn backward(extent: Extent, eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let addresses = [args.read(0), args.read(1), args.write(0)];
    let [y, dy, dx] = addresses;
    let params = Params::new().pointer(y).pointer(dy).pointer(args.read(2)).pointer(dx).f64(eps);
    run(true, extent, &addresses, params, args)
}

fn run(
    backward: bool,
    extent: Extent,
    addresses: &[u64],
    params: Params,
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    // The norm of nothing is still a result.
    if outer * inner == 0 || (backward && n == 0) {
        return Ok(());
    }
    let dtype = args.read_dtype(0);
    let constants = |spec: Spec| {
        spec.dtype("COMPUTE", arithmetic(dtype))
            .dtype("IN", dtype)
            .flag("BACKWARD", backward)
            .flag("ADD", args.accumulate(0))
    };
    match Lanes::of(n, dtype.size()).filter(|_| inner == 1) {
        Some(lanes) => {
            let spec = constants(Spec::new(&IN_ROWS, "l2_normalize_rows"));
            let spec = lanes.constants(spec, addresses.iter().map(|&a| (a, dtype)));
            args.kernel(spec, lanes.grid(outer), &params.size(outer).i32(n as i32))
        }
        None => {
            let spec = constants(Spec::new(&IN_COLUMNS, "l2_normalize_columns"));
            args.kernel(spec, columns::grid(extent), &columns::params(params, extent))
        }
    }
}
