//! Layer norm and RMS norm on CUDA. A row stays in registers if it fits. In that case the backward pass also sums the
//! gradients of weight and bias, block by block.

use super::rows_of;
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, FlatOperand, Grid, KernelSpec, Pointer, RowNorm, Source, params};
use crate::error::Result;
use crate::kernels::lanes::{self, Lanes, ROWS};
use crate::kernels::norm::{self, NORM, NormArgs};
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::{MACHINE, REDUCTION, ReductionLaunch, room};
use crate::tensor::DType;

static FORWARD: Source = Source { name: "layer_norm", parts: &[ROWS, NORM, include_str!("forward.cu")] };
static BACKWARD: Source =
    Source { name: "layer_norm_backward", parts: &[STATE, ROWS, include_str!("backward.cu")] };
static SUMS: Source =
    Source { name: "layer_norm_sums", parts: &[REDUCTION, STATE, include_str!("sums.cu"), MACHINE] };
static WIDE: Source = Source { name: "layer_norm_wide", parts: &[include_str!("wide.cu")] };
static WIDE_BACKWARD: Source = Source { name: "layer_norm_wide", parts: &[include_str!("wide_backward.cu")] };
const STATE: &str = include_str!("state.cu");

params! {
    struct LayerNormBackwardArgs {
        x: Pointer = "const IN*",
        weight: Pointer = "const PARAMETER*",
        dy: Pointer = "const IN*",
        inv: Pointer = "const COMPUTE*",
        mean: Pointer = "const COMPUTE*",
        dx: Pointer = "IN*",
        /// `State`s of the text: of each block, its sums for weight and bias.
        partial: Pointer,
        /// 1 / width
        share: f64,
        rows: i64,
        rows_a_block: i64,
        width: i64,
    }
}

/// Threads of a block that processes a wide row.
const WIDE_THREADS: u32 = 256;
/// Elements that a lane can hold besides its sums, in f32 and in f64.
const MAX_HELD: [usize; 2] = [32, 8];
/// Elements that a lane can hold without them. In f64 each takes two registers, so that more would spill.
const MAX_HELD_ALONE: [usize; 2] = [32, 16];
/// The maximum number of blocks that store sums, where lanes hold up to 8 elements, and more: as many as run at once on the
/// largest GPUs.
const MAX_BLOCKS: [usize; 2] = [396, 264];
/// The minimum number of rows that a lane processes in turn.
const FEWEST_ROWS: usize = 2;

/// The dtypes of rows and of parameters.
fn dtypes(args: &CudaArgs<'_>) -> [DType; 2] {
    [args.read_dtype(0), args.read_dtype(1)]
}

fn constants(spec: KernelSpec, [dtype, parameters]: [DType; 2], centred: bool) -> KernelSpec {
    spec.dtype("COMPUTE", dtype.accumulator())
        .dtype("IN", dtype)
        .dtype("PARAMETER", parameters)
        .flag("CENTRED", centred)
}

pub(super) fn forward(centred: bool, eps: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let (rows, width) = rows_of(args.read_shape(0));
    let norm = RowNorm {
        centred,
        eps,
        rows,
        width,
        x: FlatOperand::of(&args.input(0)),
        weight: FlatOperand::of(&args.input(1)),
        bias: FlatOperand::of(&args.input(if centred { 2 } else { 1 })),
        y: FlatOperand::of(&args.output(0)),
        inv: args.write(1),
        mean: if centred { args.write(2) } else { Pointer::NOTHING },
    };
    if args.describes() {
        args.describe_norm(norm);
        return Ok(());
    }
    if rows == 0 {
        return Ok(());
    }
    let kernel_args = NormArgs::of(&norm);
    match Lanes::of(width, norm.dtype().size()) {
        Some(lanes) => {
            let spec = norm::constants(KernelSpec::new(&FORWARD, "layer_norm"), &norm);
            let spec = lanes.constants(spec, norm::in_memory(&norm, args));
            args.kernel(spec, lanes.grid(rows), &kernel_args)
        }
        None => {
            let spec = norm::constants(KernelSpec::new(&WIDE, "layer_norm_wide"), &norm);
            args.kernel(spec, Grid::line(rows, WIDE_THREADS), &kernel_args)
        }
    }
}

/// How rows are divided over lanes if the sums of weight and bias also fit into registers.
fn summed(width: usize, dtype: DType) -> Option<Lanes> {
    let most = MAX_HELD[usize::from(dtype == DType::F64)];
    Lanes::of(width, dtype.size()).filter(|lanes| lanes.held() <= most)
}

/// Rows per block, if blocks store sums.
fn rows_a_block(lanes: Lanes, rows: usize) -> usize {
    let groups = lanes.rows_a_block();
    rows.div_ceil(MAX_BLOCKS[usize::from(lanes.held() > 8)])
        .max(FEWEST_ROWS * groups)
        .next_multiple_of(groups)
}

/// How many parts the sums of weight and bias have: one for each block that stores sums; otherwise one for each part
/// of the rows that a separate reduction sums.
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
        None => room(by_columns(rows, width), dtype.size(), 2 * dtype.accumulator().size()),
    }
}

/// The kernel constants of the sums of a part, for weight and bias together.
fn in_parts(spec: KernelSpec, dtype: DType, centred: bool) -> KernelSpec {
    spec.dtype("COMPUTE", dtype.accumulator()).flag("CENTRED", centred).flag("IN_PARTS", true)
}

pub(super) fn backward(centred: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let (rows, width) = rows_of(args.read_shape(0));
    if width == 0 {
        return Ok(());
    }
    let dtypes @ [dtype, parameters] = dtypes(args);
    let add = args.accumulate(0);
    let fused = summed(width, dtype);
    let most = MAX_HELD_ALONE[usize::from(dtype == DType::F64)];
    let registers = fused.or_else(|| Lanes::of(width, dtype.size()).filter(|lanes| lanes.held() <= most));
    let per_block = match (fused, registers) {
        (Some(lanes), _) => rows_a_block(lanes, rows),
        (None, lanes) => lanes.map_or(1, Lanes::rows_a_block),
    };
    let kernel_args = LayerNormBackwardArgs {
        x: args.read(0),
        weight: args.read(1),
        dy: args.read(2),
        inv: args.read(3),
        mean: if centred { args.read(4) } else { Pointer::NOTHING },
        dx: args.write(0),
        partial: args.write(1),
        share: 1.0 / width as f64,
        rows: rows as i64,
        rows_a_block: per_block as i64,
        width: width as i64,
    };
    match registers {
        _ if rows == 0 => {}
        Some(lanes) => {
            let spec = constants(KernelSpec::new(&BACKWARD, "layer_norm_backward"), dtypes, centred);
            let spec = spec.flag("ADD", add).flag("SUMS", fused.is_some());
            let operands = [
                (kernel_args.x, dtype),
                (kernel_args.dy, dtype),
                (kernel_args.dx, dtype),
                (kernel_args.weight, parameters),
            ];
            let spec = lanes.constants(spec, operands.map(|(x, dtype)| (args.alignment(x), dtype)));
            args.kernel(spec, Grid::line(rows.div_ceil(per_block), lanes::THREADS as u32), &kernel_args)?;
        }
        None => {
            let spec =
                constants(KernelSpec::new(&WIDE_BACKWARD, "layer_norm_wide_backward"), dtypes, centred);
            args.kernel(spec.flag("ADD", add), Grid::line(rows, WIDE_THREADS), &kernel_args)?;
        }
    }
    if fused.is_some() {
        return Ok(());
    }
    let mut reduction = ReductionLaunch::new(args, by_columns(rows, width), &[0, 2]).output(args, 1);
    reduction.extra.extend([kernel_args.inv, kernel_args.mean]);
    reduction.run(args, &SUMS, |spec| in_parts(spec, dtype, centred))
}

pub(super) fn parameters(centred: bool, args: &mut CudaArgs<'_>) -> Result<()> {
    let (parts, width) = (args.read_shape(0)[0], args.read_shape(0)[1]);
    let (compute, out) = (args.read_dtype(0), args.write_dtype(0));
    let mut sums = ReductionLaunch::new(args, by_columns(parts, width), &[]).output(args, 0);
    if centred {
        sums = sums.output(args, 1);
    }
    sums.partial = args.read(0);
    let constants = |spec: KernelSpec| spec.dtype("COMPUTE", compute).dtype("OUT", out);
    let constants = |spec: KernelSpec| constants(spec).flag("CENTRED", centred).flag("IN_PARTS", false);
    sums.merge(args, &SUMS, constants, parts, width)
}
