//! Softmax on CUDA: a row stays in registers if it fits; otherwise a block makes two passes over each column.

use crate::device::cuda::{CudaArgs, KernelSpec, Member, Pointer, Source, params};
use crate::error::Result;
use crate::kernels::columns::{self, COLUMNS, ColumnsAt};
use crate::kernels::lanes::{Lanes, ROWS};
use crate::kernels::reduction::Extent;
use crate::tensor::DType;

static IN_ROWS: Source = Source { name: "softmax", parts: &[ROWS, include_str!("kernel.cu")] };
static IN_ROWS_BACKWARD: Source = Source { name: "softmax", parts: &[ROWS, include_str!("backward.cu")] };
static IN_COLUMNS: Source = Source { name: "softmax", parts: &[COLUMNS, include_str!("columns.cu")] };
static IN_COLUMNS_BACKWARD: Source =
    Source { name: "softmax", parts: &[COLUMNS, include_str!("columns_backward.cu")] };

params! {
    struct SoftmaxRowsArgs {
        x: Pointer = "const IN*",
        y: Pointer = "IN*",
        rows: i64,
        width: i64,
    }

    struct SoftmaxRowsBackwardArgs {
        y: Pointer = "const IN*",
        dy: Pointer = "const IN*",
        dx: Pointer = "IN*",
        rows: i64,
        width: i64,
    }

    struct SoftmaxColumnsArgs {
        x: Pointer = "const IN*",
        y: Pointer = "IN*",
        at: ColumnsAt,
    }

    struct SoftmaxColumnsBackwardArgs {
        y: Pointer = "const IN*",
        dy: Pointer = "const IN*",
        dx: Pointer = "IN*",
        at: ColumnsAt,
    }
}

/// How rows lie in registers, if they find room there.
fn lanes(extent: Extent, dtype: DType) -> Option<Lanes> {
    Lanes::of(extent.n, dtype.size()).filter(|_| extent.inner == 1)
}

fn constants(spec: KernelSpec, log: bool, args: &CudaArgs<'_>) -> KernelSpec {
    let dtype = args.read_dtype(0);
    spec.dtype("COMPUTE", dtype.accumulator()).dtype("IN", dtype).flag("LOG", log)
}

fn in_rows<P: Member + 'static>(
    spec: KernelSpec,
    (lanes, rows): (Lanes, usize),
    operands: &[Pointer],
    params: &P,
    args: &mut CudaArgs<'_>,
) -> Result<()> {
    let dtype = args.read_dtype(0);
    let spec = lanes.constants(spec, operands.iter().map(|&x| (args.alignment(x), dtype)));
    args.kernel(spec, lanes.grid(rows), params)
}

pub(super) fn forward(log: bool, extent: Extent, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    if outer * n * inner == 0 {
        return Ok(());
    }
    let (x, y) = (args.read(0), args.write(0));
    match lanes(extent, args.read_dtype(0)) {
        Some(lanes) => {
            let kernel_args = SoftmaxRowsArgs { x, y, rows: outer as i64, width: n as i64 };
            let spec = constants(KernelSpec::new(&IN_ROWS, "softmax_rows"), log, args);
            in_rows(spec, (lanes, outer), &[x, y], &kernel_args, args)
        }
        None => {
            let spec = constants(KernelSpec::new(&IN_COLUMNS, "softmax_columns"), log, args);
            let kernel_args = SoftmaxColumnsArgs { x, y, at: ColumnsAt::new(extent) };
            args.kernel(spec, columns::grid(extent), &kernel_args)
        }
    }
}

pub(super) fn backward(log: bool, extent: Extent, args: &mut CudaArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    if outer * n * inner == 0 {
        return Ok(());
    }
    let (y, dy, dx) = (args.read(0), args.read(1), args.write(0));
    let add = args.accumulate(0);
    match lanes(extent, args.read_dtype(0)) {
        Some(lanes) => {
            let kernel_args = SoftmaxRowsBackwardArgs { y, dy, dx, rows: outer as i64, width: n as i64 };
            let spec = KernelSpec::new(&IN_ROWS_BACKWARD, "softmax_rows_backward").flag("ADD", add);
            in_rows(constants(spec, log, args), (lanes, outer), &[y, dy, dx], &kernel_args, args)
        }
        None => {
            let spec = KernelSpec::new(&IN_COLUMNS_BACKWARD, "softmax_columns_backward").flag("ADD", add);
            let kernel_args = SoftmaxColumnsBackwardArgs { y, dy, dx, at: ColumnsAt::new(extent) };
            args.kernel(constants(spec, log, args), columns::grid(extent), &kernel_args)
        }
    }
}
