//! Elementwise kernels on the CPU.
//!
//! The work is divided into tiles of [`TILE`] elements. The operands of a tile are converted to the arithmetic type
//! (f16 and bf16 are computed in f32, integers in i64) and made contiguous; operands that are so already are not
//! copied. Then one loop runs over plain slices. So an operation is one loop for each arithmetic type, for all
//! layouts and dtypes.

use rayon::prelude::*;
use smallvec::SmallVec;

use super::{LoopPlan, MAX_INPUTS, Rectangle};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, Stored, convert, store, with_stored};
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::{Error, Result};
use crate::tensor::{DType, Layout};

/// Elements per tile. The operands of a tile stay in the L1 cache.
const TILE: usize = 1024;
/// Elements per tile where an operand is transposed: some rows, so that blocks can be transposed.
const TILE_TRANSPOSED: usize = 8 * TILE;
/// Tiles per task.
const TILES_A_TASK: usize = 16;

/// An elementwise operation on floating-point numbers.
pub(crate) trait FloatTile: Sync {
    /// `y[i] = f(x[0][i], x[1][i], ...)`. All slices have the same length.
    fn tile<R: Real>(&self, x: &[&[R]], y: &mut [R]);
}

/// An elementwise operation on numbers of any kind.
pub(crate) trait NumberTile: Sync {
    /// `y[i] = f(x[0][i], x[1][i], ...)`. All slices have the same length.
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [N]);
}

/// Runs an operation in the arithmetic of the floating-point dtype `compute`.
pub(crate) fn float(args: &HostArgs<'_>, compute: DType, op: &impl FloatTile) -> Result<()> {
    match compute {
        DType::F64 => run(args, |x: &[&[f64]], y: &mut [f64]| op.tile(x, y)),
        DType::F32 | DType::F16 | DType::BF16 => run(args, |x: &[&[f32]], y: &mut [f32]| op.tile(x, y)),
        other => Err(Error::Unsupported { op: args.op(), dtype: other, device: "cpu".to_string() }),
    }
}

/// Runs an operation in the arithmetic of the dtype `compute`.
pub(crate) fn number(args: &HostArgs<'_>, compute: DType, op: &impl NumberTile) -> Result<()> {
    match compute {
        DType::F64 => run(args, |x: &[&[f64]], y: &mut [f64]| op.tile(x, y)),
        DType::F32 | DType::F16 | DType::BF16 => run(args, |x: &[&[f32]], y: &mut [f32]| op.tile(x, y)),
        _ if all_bytes(args) => run_into::<u8, u8>(args, Some(&|x: &[&[u8]], y: &mut [u8]| op.tile(x, y))),
        _ => run(args, |x: &[&[i64]], y: &mut [i64]| op.tile(x, y)),
    }
}

/// Whether all operands and the result are u8 or bool: then the arithmetic is that of u8, which wraps around like that
/// of i64 cut to its low byte.
fn all_bytes(args: &HostArgs<'_>) -> bool {
    let is_byte = |dtype| matches!(dtype, DType::U8 | DType::Bool);
    is_byte(args.write_dtype(0)) && (0..args.reads()).all(|i| is_byte(args.read_dtype(i)))
}

/// Runs an operation in integer arithmetic.
pub(crate) fn int(args: &HostArgs<'_>, tile: impl Fn(&[&[i64]], &mut [i64]) + Sync) -> Result<()> {
    run(args, tile)
}

/// Copies the operand, through the arithmetic of the dtype `compute`.
pub(crate) fn copy(args: &HostArgs<'_>, compute: DType) -> Result<()> {
    match compute {
        DType::F64 => with_stored!(args.write_dtype(0), T => run_into::<T, f64>(args, None)),
        DType::F32 | DType::F16 | DType::BF16 => {
            with_stored!(args.write_dtype(0), T => run_into::<T, f32>(args, None))
        }
        _ if all_bytes(args) => run_into::<u8, u8>(args, None),
        _ => with_stored!(args.write_dtype(0), T => run_into::<T, i64>(args, None)),
    }
}

/// An operand to read: its memory in its own dtype.
struct InputSource<'a> {
    data: Data<'a>,
    operand: usize,
}

/// A slice of any dtype.
enum Data<'a> {
    F64(&'a [f64]),
    F32(&'a [f32]),
    F16(&'a [half::f16]),
    BF16(&'a [half::bf16]),
    I64(&'a [i64]),
    I32(&'a [i32]),
    U8(&'a [u8]),
    /// The operand is the output, so read from there.
    InPlace,
}

impl<'a> Data<'a> {
    fn of(args: &HostArgs<'a>, i: usize) -> Result<Data<'a>> {
        if args.in_place(i).is_some() {
            return Ok(Data::InPlace);
        }
        Ok(match args.read_dtype(i) {
            DType::F64 => Data::F64(args.read(i)?),
            DType::F32 => Data::F32(args.read(i)?),
            DType::F16 => Data::F16(args.read(i)?),
            DType::BF16 => Data::BF16(args.read(i)?),
            DType::I64 => Data::I64(args.read(i)?),
            DType::I32 => Data::I32(args.read(i)?),
            DType::U8 | DType::Bool => Data::U8(args.read(i)?),
        })
    }
}

/// Converts elements `start..start + buf.len()` to the arithmetic type and makes them contiguous.
fn gather<'b, T: Stored, N: Number>(
    plan: &LoopPlan,
    operand: usize,
    data: &'b [T],
    start: usize,
    buf: &'b mut [N],
) -> &'b [N] {
    if plan.is_dense(operand) {
        let run = &data[start..start + buf.len()];
        if let Some(same) = N::same(run) {
            return same;
        }
        convert(run, buf);
        return buf;
    }
    simd(
        #[inline(always)]
        || {
            let mut at = 0;
            plan.rectangles(
                operand,
                start,
                buf.len(),
                #[inline(always)]
                |r| {
                    let to = &mut buf[at..at + r.rows * r.len];
                    at += to.len();
                    read_rectangle(data, &r, to);
                },
            );
        },
    );
    buf
}

#[inline(always)]
fn read_rectangle<T: Stored, N: Number>(data: &[T], r: &Rectangle, to: &mut [N]) {
    if r.stride > 1 && r.row_stride == 1 && r.rows > 1 {
        return read_transposed(data, r, to);
    }
    for (row, to) in to.chunks_exact_mut(r.len).enumerate() {
        let from = &data[r.offset + row * r.row_stride..];
        match r.stride {
            0 => to.fill(from[0].to()),
            1 => to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to()),
            stride => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, from)| *to = from.to()),
        }
    }
}

/// Rows and columns of a block that is transposed at a time: some cache lines.
const BLOCK: usize = 16;

/// Reads a rectangle whose columns lie one after the other: by blocks, each read by columns and written by rows, so
/// that a cache line is used as a whole, once.
#[inline(always)]
fn read_transposed<T: Stored, N: Number>(data: &[T], r: &Rectangle, to: &mut [N]) {
    let mut block = [[N::ZERO; BLOCK]; BLOCK];
    for row in (0..r.rows).step_by(BLOCK) {
        let rows = BLOCK.min(r.rows - row);
        for column in (0..r.len).step_by(BLOCK) {
            let columns = BLOCK.min(r.len - column);
            for (j, block) in block[..columns].iter_mut().enumerate() {
                let from = &data[r.offset + row + (column + j) * r.stride..][..rows];
                block.iter_mut().zip(from).for_each(|(to, from)| *to = from.to());
            }
            for i in 0..rows {
                let to = &mut to[(row + i) * r.len + column..][..columns];
                to.iter_mut().zip(&block).for_each(|(to, block)| *to = block[i]);
            }
        }
    }
}

/// Writes `values` to the elements from `start` on of an output whose memory `to` begins at `base`.
fn scatter<T: Stored, N: Number>(
    plan: &LoopPlan,
    values: &[N],
    start: usize,
    to: &mut [T],
    base: usize,
    accumulate: bool,
) {
    if plan.is_dense(0) {
        return store(values, &mut to[start - base..][..values.len()], accumulate);
    }
    let mut at = 0;
    plan.rectangles(0, start, values.len(), |r| {
        for row in 0..r.rows {
            let values = &values[at..at + r.len];
            at += r.len;
            let to = &mut to[r.offset + row * r.row_stride - base..];
            match r.stride {
                1 => store(values, &mut to[..r.len], accumulate),
                stride => {
                    for (to, &n) in to.iter_mut().step_by(stride).zip(values) {
                        *to = T::from_number(if accumulate { to.to::<N>().plus(n) } else { n });
                    }
                }
            }
        }
    });
}

/// The arithmetic of a tile. It is behind a pointer, so that the code around it is compiled once for each pair of
/// types and not for each operation.
type Tile<'a, N> = &'a (dyn Fn(&[&[N]], &mut [N]) + Sync);

fn run<N: Number>(args: &HostArgs<'_>, tile: impl Fn(&[&[N]], &mut [N]) + Sync) -> Result<()> {
    with_stored!(args.write_dtype(0), T => run_into::<T, N>(args, Some(&tile)))
}

/// Without arithmetic, the only operand is the result.
fn run_into<T: Stored, N: Number>(args: &HostArgs<'_>, tile: Option<Tile<'_, N>>) -> Result<()> {
    let layouts: SmallVec<[&Layout; 6]> =
        std::iter::once(args.write_layout(0)).chain((0..args.reads()).map(|i| args.read_layout(i))).collect();
    if layouts.len() > MAX_INPUTS + 1 {
        return Err(Error::internal(args.op(), "an elementwise kernel with too many operands"));
    }
    let plan = LoopPlan::new(&layouts);
    if plan.numel() == 0 {
        return Ok(());
    }
    let sources: SmallVec<[InputSource<'_>; MAX_INPUTS]> = (0..args.reads())
        .map(|i| Ok(InputSource { data: Data::of(args, i)?, operand: i + 1 }))
        .collect::<Result<_>>()?;
    let accumulate = args.accumulate(0);
    let out: &mut [T] = args.write(0)?;

    // Split the output where plain slices are possible: anywhere if it is dense, otherwise along its outermost
    // dimension.
    let whole = plan.numel();
    let (piece_elements, piece_memory) = if plan.is_dense(0) {
        (TILE * TILES_A_TASK, TILE * TILES_A_TASK)
    } else {
        let rows = (TILE * TILES_A_TASK * plan.shape[0]).div_ceil(whole).clamp(1, plan.shape[0]);
        (whole / plan.shape[0] * rows, plan.strides[0][0] * rows)
    };
    let transposed = (1..layouts.len()).any(|operand| plan.is_transposed(operand));
    let tile_elements = if transposed { TILE_TRANSPOSED } else { TILE };
    let body = |(piece, memory): (usize, &mut [T])| {
        let mut buffers = Scratch::<N>::new((sources.len() + 1) * tile_elements);
        let (result, buffers) = buffers.split_at_mut(tile_elements);
        let (first, end) = (piece * piece_elements, ((piece + 1) * piece_elements).min(whole));
        let base = piece * piece_memory;
        let mut start = first;
        while start < end {
            let len = tile_elements.min(end - start);
            let mut inputs: [&[N]; MAX_INPUTS] = [&[]; MAX_INPUTS];
            let buffers = buffers.chunks_exact_mut(tile_elements);
            for (source, (input, buf)) in sources.iter().zip(inputs.iter_mut().zip(buffers)) {
                let (o, buf) = (source.operand, &mut buf[..len]);
                *input = match source.data {
                    Data::F64(d) => gather(&plan, o, d, start, buf),
                    Data::F32(d) => gather(&plan, o, d, start, buf),
                    Data::F16(d) => gather(&plan, o, d, start, buf),
                    Data::BF16(d) => gather(&plan, o, d, start, buf),
                    Data::I64(d) => gather(&plan, o, d, start, buf),
                    Data::I32(d) => gather(&plan, o, d, start, buf),
                    Data::U8(d) => gather(&plan, o, d, start, buf),
                    Data::InPlace => {
                        let mut at = 0;
                        plan.rectangles(0, start, len, |mut r| {
                            r.offset -= base;
                            let to = &mut buf[at..at + r.rows * r.len];
                            at += to.len();
                            read_rectangle(memory, &r, to);
                        });
                        buf
                    }
                };
            }
            let inputs = &inputs[..sources.len()];
            let direct = if plan.is_dense(0) && !accumulate {
                N::same_mut(&mut memory[start - base..start - base + len])
            } else {
                None
            };
            match (tile, direct) {
                (Some(tile), Some(out)) => tile(inputs, out),
                (Some(tile), None) => {
                    let result = &mut result[..len];
                    tile(inputs, result);
                    scatter(&plan, result, start, memory, base, accumulate);
                }
                (None, Some(out)) => out.copy_from_slice(inputs[0]),
                (None, None) => scatter(&plan, inputs[0], start, memory, base, accumulate),
            }
            start += len;
        }
    };
    if whole <= TILE * TILES_A_TASK || !crate::device::cpu::parallel::allowed() {
        out.chunks_mut(piece_memory).enumerate().for_each(body);
    } else {
        out.par_chunks_mut(piece_memory).enumerate().for_each(body);
    }
    Ok(())
}
