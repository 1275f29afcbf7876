//! L2 normalisation on CUDA: a row stays in registers if it fits; otherwise a block makes two passes over each
//! column.

use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::columns::{self, COLUMNS, ColumnsAt};
use crate::kernels::lanes::{Lanes, ROWS};
use crate::kernels::reduction::Extent;
use crate::tensor::DType;

static IN_ROWS: Source = Source { name: "l2_normalize", parts: &[ROWS, include_str!("kernel.cu")] };
static IN_ROWS_BACKWARD: Source =
    Source { name: "l2_normalize", parts: &[ROWS, include_str!("backward.cu")] };
static IN_COLUMNS: Source = Source { name: "l2_normalize", parts: &[COLUMNS, include_str!("columns.cu")] };
static IN_COLUMNS_BACKWARD: Source =
    Source { name: "l2_normalize", parts: &[COLUMNS, include_str!("columns_backward.cu")] };

params! {
    struct L2RowsArgs {
        x: Pointer = "const IN*",
        y: Pointer = "IN*",
        norms: Pointer = "COMPUTE*",
        eps: f64,
        rows: i64,
        width: i64,
    }

    struct L2RowsBackwardArgs {
        y: Pointer = "const IN*",
        dy: Pointer = "const IN*",
        norms: Pointer = "const COMPUTE*",
        dx: Pointer = "IN*",
        eps: f64,
        rows: i64,
        width: i64,
    }

    struct L2ColumnsArgs {
        x: Pointer = "const IN*",
        y: Pointer = "IN*",
        norms: Pointer = "COMPUTE*",
        eps: f64,
        at: ColumnsAt,
    }

    struct L2ColumnsBackwardArgs {
        y: Pointer = "const IN*",
        dy: Pointer = "const IN*",
        norms: Pointer = "const COMPUTE*",
        dx: Pointer = "IN*",
        eps: f64,
        at: ColumnsAt,
    }
}

fn constants(spec: KernelSpec, dtype: DType) -> KernelSpec {
    spec.dtype("COMPUTE", dtype.accumulator()).dtype("IN", dtype)
}

/// How rows lie in registers, if they find room there.
fn lanes(extent: Extent, dtype: DType) -> Option<Lanes> {
    Lanes::of(extent.n, dtype.size()).filter(|_| extent.inner == 1)
}

pub(super) fn forward(extent: Extent, eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    // An empty vector still has a norm.
    if outer * inner == 0 {
        return Ok(());
    }
    let dtype = args.read_dtype(0);
    let (x, y, norms) = (args.read(0), args.write(0), args.write(1));
    match lanes(extent, dtype) {
        Some(lanes) => {
            let kernel_args = L2RowsArgs { x, y, norms, eps, rows: outer as i64, width: n as i64 };
            let spec = constants(KernelSpec::new(&IN_ROWS, "l2_normalize_rows"), dtype);
            let spec = lanes.constants(spec, [x, y].map(|x| (args.alignment(x), dtype)));
            args.kernel(spec, lanes.grid(outer), &kernel_args)
        }
        None => {
            let kernel_args = L2ColumnsArgs { x, y, norms, eps, at: ColumnsAt::new(extent) };
            let spec = constants(KernelSpec::new(&IN_COLUMNS, "l2_normalize_columns"), dtype);
            args.kernel(spec, columns::grid(extent), &kernel_args)
        }
    }
}

pub(super) fn backward(extent: Extent, eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    if outer * n * inner == 0 {
        return Ok(());
    }
    let (dtype, add) = (args.read_dtype(0), args.accumulate(0));
    let (y, dy, norms, dx) = (args.read(0), args.read(1), args.read(2), args.write(0));
    match lanes(extent, dtype) {
        Some(lanes) => {
            let kernel_args =
                L2RowsBackwardArgs { y, dy, norms, dx, eps, rows: outer as i64, width: n as i64 };
            let spec = KernelSpec::new(&IN_ROWS_BACKWARD, "l2_normalize_rows_backward").flag("ADD", add);
            let spec = constants(spec, dtype);
            let spec = lanes.constants(spec, [y, dy, dx].map(|x| (args.alignment(x), dtype)));
            args.kernel(spec, lanes.grid(outer), &kernel_args)
        }
        None => {
            let kernel_args = L2ColumnsBackwardArgs { y, dy, norms, dx, eps, at: ColumnsAt::new(extent) };
            let spec =
                KernelSpec::new(&IN_COLUMNS_BACKWARD, "l2_normalize_columns_backward").flag("ADD", add);
            args.kernel(constants(spec, dtype), columns::grid(extent), &kernel_args)
        }
    }
}
