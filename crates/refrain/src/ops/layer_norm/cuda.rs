//! Layer and root-mean-square norm on CUDA. A row lies in registers where it fits; the backward pass then
//! sums the gradients of weight and bias on its way, block by block.

use super::{rows_of, statistics};
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, Grid, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::elementwise::cuda::arithmetic;
use crate::kernels::lanes::{self, Lanes, ROWS};
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::{MACHINE, REDUCTION, Reduction, room};
use crate::tensor::DType;

static FORWARD: Source = Source { name: "layer_norm", parts: &[ROWS, include_str!("forward.cu")] };
static BACKWARD: Source = Source {
    name: "layer_norm_backward",
    parts: &[REDUCTION, include_str!("sums.cu"), ROWS, include_str!("backward.cu")],
};
static SUMS: Source =
    Source { name: "layer_norm_sums", parts: &[REDUCTION, include_str!("sums.cu"), MACHINE] };
static WIDE: Source = Source { name: "layer_norm_wide", parts: &[include_str!("wide.cu")] };

/// Threads of a block that takes a wide row.
const WIDE_THREADS: u32 = 256;
/// Elements that a lane can hold beside its sums.
const MAX_HELD: usize = 8;
/// Blocks at most that leave sums.
const MAX_BLOCKS: usize = 512;
/// Rows, at least, that a lane takes one after the other.
const FEWEST_ROWS: usize = 2;

/// Of rows and parameters.
fn dtypes(args: &CudaArgs<'_>) -> [DType; 2] {
    [args.read_dtype(0), args.read_dtype(1)]
}

fn constants(spec: Spec, [dtype, parameters]: [DType; 2], centred: bool) -> Spec {
    spec.dtype("COMPUTE", arithmetic(dtype))
        .dtype("IN", dtype)
        .dtype("PARAMETER", parameters)
        .flag("CENTRED", centred)
}

pub(super) fn forward(centred: bool, eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let (rows, width) = rows_of(args.read_shape(0));
    if rows == 0 {
        return Ok(());
    }
    let dtypes @ [dtype, parameters] = dtypes(args);
    let (x, weight, y) = (args.read(0), args.read(1), args.write(0));
    let bias = if centred { args.read(2) } else { weight };
    let mean = if centred { args.write(2) } else { 0 };
    let share = if width == 0 { 0.0 } else { 1.0 / width as f64 };
    let params = Params::new().pointer(x).pointer(weight).pointer(bias);
    let params = params.pointer(y).pointer(args.write(1)).pointer(mean).f64(share).f64(eps);
    match Lanes::of(width, dtype.size()) {
        Some(lanes) => {
            let spec = constants(Spec::new(&FORWARD, "layer_norm"), dtypes, centred);
            let operands = [(x, dtype), (y, dtype), (weight, parameters), (bias, parameters)];
            let spec = lanes.constants(spec, operands);
            args.kernel(spec, lanes.grid(rows), &params.size(rows).i32(width as i32))
        }
        None => {
            let spec = constants(Spec::new(&WIDE, "layer_norm_wide"), dtypes, centred);
            let spec = spec.flag("BACKWARD", false).flag("ADD", false);
            args.kernel(spec, Grid::line(rows, WIDE_THREADS), &params.size(width))
        }
    }
}

/// Rows that lie in registers beside the sums of weight and bias.
fn summed(width: usize, dtype: DType) -> Option<Lanes> {
    Lanes::of(width, dtype.size()).filter(|lanes| lanes.held() <= MAX_HELD)
}

/// How many rows each block takes, of those that leave sums.
fn rows_a_block(lanes: Lanes, rows: usize) -> usize {
    let groups = lanes.rows_a_block();
    rows.div_ceil(MAX_BLOCKS).max(FEWEST_ROWS * groups).next_multiple_of(groups)
}

/// Into how many parts the sums of weight and bias are cut: one for each block that leaves sums, and one of rows that
/// a reduction adds up by itself.
pub(super) fn parts(rows: usize, width: usize, dtype: DType) -> usize {
    summed(width, dtype).map_or(1, |lanes| rows.div_ceil(rows_a_block(lanes, rows)))
}

fn by_columns(rows: usize, width: usize) -> Extent {
    Extent { outer: 1, n: rows, inner: width }
}

pub(super) fn workspace(launch: &Launch<'_>) -> usize {
    let (rows, width) = rows_of(launch.reads[0].layout.shape());
    let dtype = launch.reads[0].dtype;
    match summed(width, dtype) {
        Some(_) => 0,
        None => room(by_columns(rows, width), dtype.size(), 2 * statistics(dtype).size()),
    }
}

/// Of a part's sums, for weight and bias side by side.
fn in_parts(spec: Spec, dtype: DType, centred: bool) -> Spec {
    spec.dtype("COMPUTE", statistics(dtype)).flag("CENTRED", centred).flag("IN_PARTS", true)
}

pub(super) fn backward(centred: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let (rows, width) = rows_of(args.read_shape(0));
    if width == 0 {
        return Ok(());
    }
    let dtypes @ [dtype, parameters] = dtypes(args);
    let (x, weight, dy, inv) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let (mean, dx, sums) = (if centred { args.read(4) } else { 0 }, args.write(0), args.write(1));
    let params = Params::new().pointer(x).pointer(weight).pointer(dy).pointer(inv).pointer(mean).pointer(dx);
    let share = 1.0 / width as f64;
    let add = args.accumulate(0);

    let fused = summed(width, dtype);
    let registers = fused.or_else(|| Lanes::of(width, dtype.size()));
    match registers {
        _ if rows == 0 => {}
        Some(lanes) => {
            let per_block = fused.map_or(lanes.rows_a_block(), |lanes| rows_a_block(lanes, rows));
            let spec = constants(Spec::new(&BACKWARD, "layer_norm_backward"), dtypes, centred);
            let spec = spec.int("SCALARS", 1).flag("IN_PARTS", true);
            let spec = spec.flag("ADD", add).flag("SUMS", fused.is_some());
            let operands = [(x, dtype), (dy, dtype), (dx, dtype), (weight, parameters)];
            let spec = lanes.constants(spec, operands);
            let params = params.pointer(sums).f64(share);
            let params = params.size(rows).size(per_block).i32(width as i32);
            args.kernel(spec, Grid::line(rows.div_ceil(per_block), lanes::THREADS as u32), &params)?;
        }
        None => {
            let spec = constants(Spec::new(&WIDE, "layer_norm_wide"), dtypes, centred);
            let spec = spec.flag("BACKWARD", true).flag("ADD", add);
            args.kernel(spec, Grid::line(rows, WIDE_THREADS), &params.f64(share).size(width))?;
        }
    }
    if fused.is_some() {
        return Ok(());
    }
    let mut reduction = Reduction::new(args, by_columns(rows, width), &[0, 2]).output(args, 1);
    reduction.extra.extend([inv, mean]);
    reduction.run(args, &SUMS, |spec| in_parts(spec, dtype, centred))
}

pub(super) fn parameters(centred: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let (parts, width) = (args.read_shape(0)[0], args.read_shape(0)[1]);
    let (compute, out) = (args.read_dtype(0), args.write_dtype(0));
    let mut sums = Reduction::new(args, by_columns(parts, width), &[]).output(args, 0);
    if centred {
        sums = sums.output(args, 1);
    }
    sums.partial = args.read(0);
    let constants = |spec: Spec| spec.dtype("COMPUTE", compute).dtype("OUT", out);
    let constants = |spec: Spec| constants(spec).flag("CENTRED", centred).flag("IN_PARTS", false);
    sums.merge(args, &SUMS, constants, parts, width)
}
