//! Copies and casts on CUDA.

use smallvec::SmallVec;

use super::between;
use crate::device::cuda::{CudaArgs, Grid, KernelSpec, Pointer, Source, View, padded, params, with_rank};
use crate::error::Result;
use crate::kernels::elementwise::LoopPlan;
use crate::kernels::elementwise::cuda::{LOOP, run_on};
use crate::tensor::DType;

static SOURCE: Source = Source { name: "copy", parts: &[include_str!("kernel.cu"), LOOP] };
static TRANSPOSE: Source = Source { name: "transpose", parts: &[include_str!("transpose.cu")] };

const THREADS: u32 = 256;
/// Side of a tile of a transposing copy.
const SIDE: usize = 64;
const VECTOR_BYTES: usize = 16;
/// From this many elements, a tile is worth its barriers.
const WORTHWHILE: usize = 512;
/// From this many two-byte elements, tiles of twice the side still fill a device.
const MANY: usize = 4 << 20;

/// The dtype that stands for all dtypes of its size when bits are only moved. f16 and bf16 stay as they are, because
/// they pass through f32.
fn same_bits(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::I64,
        DType::F32 => DType::I32,
        DType::Bool => DType::U8,
        other => other,
    }
}

pub(super) fn copy(args: &mut CudaArgs<'_>) -> Result<()> {
    copy_between(args, args.output(0), args.input(0))
}

/// Copies `x` to `y`, or adds it if the launch accumulates. Both have one shape and one dtype.
pub(crate) fn copy_between(args: &mut CudaArgs<'_>, y: View<'_>, x: View<'_>) -> Result<()> {
    // In a chain, the value comes from an operation of its dtype.
    let dtype = if args.accumulate(0) || args.describes() { y.dtype } else { same_bits(y.dtype) };
    let (y, x) = (View { dtype, ..y }, View { dtype, ..x });
    match Transpose::of(y, x) {
        Some(transpose) => transpose.launch(args, y, x),
        None => run_on(args, &SOURCE, dtype.accumulator(), &[], y, &[x], |spec| spec.flag("TRUTH", false)),
    }
}

pub(super) fn cast(dtype: DType, args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = between(args.read_dtype(0), dtype);
    let (y, x) = (args.output(0), args.input(0));
    run_on(args, &SOURCE, compute, &[], y, &[x], |spec| spec.flag("TRUTH", dtype == DType::Bool))
}

/// The side of a tile that moves 16 bytes at a time. `None` unless the rows of both tensors start and end at
/// multiples of 16 bytes and fill at least half a tile.
fn vector_side(plan: &LoopPlan, a: usize, y: View<'_>, x: View<'_>) -> Option<usize> {
    let (size, last) = (y.dtype.size(), plan.shape.len() - 1);
    let counts = [plan.shape[a], plan.shape[last]];
    let side = match size {
        1 => 128,
        // Lines of 256 bytes on both sides, if there are many.
        2 if plan.numel() >= MANY && counts.iter().all(|&n| n >= 128) => 128,
        8 => 32,
        _ => 64,
    };
    let whole = |n: usize| (n * size).is_multiple_of(VECTOR_BYTES);
    let fits = counts.iter().all(|&n| n >= side / 2 && whole(n))
        && [(y, 0, last), (x, 1, a)].iter().all(|&(operand, o, along)| {
            operand.alignment().is_multiple_of(VECTOR_BYTES)
                && plan.strides[o].iter().enumerate().all(|(i, &s)| i == along || whole(s))
        });
    fits.then_some(side)
}

params! {
    struct TransposeArgs<const RANK: usize> {
        x: Pointer = "const ELEMENT*",
        y: Pointer = "ELEMENT*",
        /// Elements along axis a, and along axis b.
        a: i64,
        b: i64,
        /// Steps along b in x, and along a in y.
        x_b: i64,
        y_a: i64,
        tile_a: i64,
        tile_b: i64,
        tiles_a: i64,
        tiles_b: i64,
        /// Of all other axes.
        shape: [i64; RANK],
        x_strides: [i64; RANK],
        y_strides: [i64; RANK],
    }
}

/// A copy in which neighbours in one tensor are far apart in the other.
struct Transpose {
    plan: LoopPlan,
    /// The axis along which elements of the operand are neighbours. In the result it is the last axis.
    a: usize,
    side: usize,
    tile: [usize; 2],
    /// Whether both tensors are moved 16 bytes at a time.
    vectors: bool,
}

impl Transpose {
    fn of(y: View<'_>, x: View<'_>) -> Option<Transpose> {
        let plan = LoopPlan::new(&[y.layout, x.layout]);
        let last = plan.shape.len() - 1;
        if plan.numel() == 0 || plan.strides[0][last] != 1 || plan.strides[1][last] <= 1 {
            return None;
        }
        let a = (0..last).find(|&i| plan.strides[1][i] == 1)?;
        let (count_a, count_b) = (plan.shape[a], plan.shape[last]);
        if count_a.min(count_b) < 4 || count_a.saturating_mul(count_b) < WORTHWHILE {
            return None;
        }
        if let Some(side) = vector_side(&plan, a, y, x) {
            return Some(Transpose { plan, a, side, tile: [side; 2], vectors: true });
        }
        // The same computation as in the kernel.
        let skew = if y.dtype.size() < 4 { 4 / y.dtype.size() } else { 1 };
        let room = SIDE * (SIDE + skew);
        let tile = if count_a < SIDE {
            [count_a, count_b.min(room / count_a - skew)]
        } else if count_b < SIDE {
            [count_a.min(room / (count_b + skew)), count_b]
        } else {
            [SIDE, SIDE]
        };
        Some(Transpose { plan, a, side: SIDE, tile, vectors: false })
    }

    fn launch(&self, args: &mut CudaArgs<'_>, y: View<'_>, x: View<'_>) -> Result<()> {
        let Transpose { plan, a, side, tile: [tile_a, tile_b], vectors } = self;
        let last = plan.shape.len() - 1;
        let (count_a, count_b) = (plan.shape[*a], plan.shape[last]);
        let others: SmallVec<[usize; 6]> = (0..last).filter(|i| i != a).collect();
        let rank = others.len().max(1).next_power_of_two();
        let spec = KernelSpec::new(&TRANSPOSE, "transpose")
            .dtype("ELEMENT", y.dtype)
            .flag("ADD", args.accumulate(0))
            .int("SIDE", *side as i64)
            .flag("VECTORS", *vectors)
            .flag("NARROW", [*tile_a, *tile_b] != [*side; 2])
            .int("RANK", rank as i64);

        let tiles = [count_a.div_ceil(*tile_a), count_b.div_ceil(*tile_b)];
        let batch: usize = others.iter().map(|&i| plan.shape[i]).product();
        let grid = Grid::line(tiles[0] * tiles[1] * batch, THREADS);
        let along =
            |values: &[usize]| -> SmallVec<[usize; 6]> { others.iter().map(|&i| values[i]).collect() };
        with_rank!(args.op(), rank, RANK => {
            let kernel_args = TransposeArgs::<RANK> {
                x: x.pointer,
                y: y.pointer,
                a: count_a as i64,
                b: count_b as i64,
                x_b: plan.strides[1][last] as i64,
                y_a: plan.strides[0][*a] as i64,
                tile_a: *tile_a as i64,
                tile_b: *tile_b as i64,
                tiles_a: tiles[0] as i64,
                tiles_b: tiles[1] as i64,
                shape: padded(&along(&plan.shape), 1),
                x_strides: padded(&along(&plan.strides[1]), 0),
                y_strides: padded(&along(&plan.strides[0]), 0),
            };
            args.kernel(spec, grid, &kernel_args)
        })
    }
}
