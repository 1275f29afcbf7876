//! Softmax on CUDA: a row in registers where it fits, else two passes of a block over each column.

use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::columns::{self, COLUMNS};
use crate::kernels::elementwise::cuda::arithmetic;
use crate::kernels::lanes::{Lanes, ROWS};
use crate::kernels::reduction::Extent;

static IN_ROWS: Source = Source { name: "softmax", parts: &[ROWS, include_str!("kernel.cu")] };
static IN_COLUMNS: Source = Source { name: "softmax", parts: &[COLUMNS, include_str!("columns.cu")] };

pub(super) fn run(log: bool, backward: bool, extent: Extent, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    if outer * n * inner == 0 {
        return Ok(());
    }
    let dtype = args.read_dtype(0);
    let constants = |spec: Spec| {
        spec.dtype("COMPUTE", arithmetic(dtype))
            .dtype("IN", dtype)
            .flag("LOG", log)
            .flag("BACKWARD", backward)
            .flag("ADD", args.accumulate(0))
    };
    let mut addresses = [args.read(0), args.write(0), args.write(0)];
    let mut params = Params::new().pointer(addresses[0]);
    if backward {
        addresses[2] = args.read(1);
        params = params.pointer(addresses[2]);
    }
    params = params.pointer(addresses[1]);
    match Lanes::of(n, dtype.size()).filter(|_| inner == 1) {
        Some(lanes) => {
            let spec = constants(Spec::new(&IN_ROWS, "softmax_rows"));
            let spec = lanes.constants(spec, addresses.map(|a| (a, dtype)));
            args.kernel(spec, lanes.grid(outer), &params.size(outer).i32(n as i32))
        }
        None => {
            let spec = constants(Spec::new(&IN_COLUMNS, "softmax_columns"));
            args.kernel(spec, columns::grid(extent), &columns::params(params, extent))
        }
    }
}
