//! Elementwise kernels on the CPU.
//!
//! The work is divided into tiles. The operands of a tile are converted to the arithmetic type (f16 and bf16 are computed
//! in f32, integers in i64) and made contiguous; operands that are so already are not copied. Then one loop runs over
//! plain slices. So an operation is one loop for each arithmetic type, for all layouts and dtypes.
//!
//! If each row of every operand is contiguous (a narrowed operand) or one element (a broadcast one), and no operand needs to
//! be converted, a tile has some rows, which are read and written where they lie.

use std::any::TypeId;
use std::ops::Range;

use half::{bf16, f16};
use rayon::prelude::*;

use super::operands::{Data, Operands, Tiling};
use super::runs::{Runs, RunsMut};
use super::{LoopPlan, MAX_INPUTS, moves};
use crate::device::HostArgs;
use crate::device::cpu::narrow::{Bf16Loops, HalfLoops};
#[cfg(target_arch = "x86_64")]
use crate::device::cpu::narrow::{f16_loops, with_f16_loops};
use crate::device::cpu::numeric::{Number, Real, Stored, store, with_stored};
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::Scratch;
use crate::error::{Error, Result};
use crate::tensor::DType;

/// An elementwise operation on floating-point numbers.
pub(crate) trait FloatTile: Sync {
    /// `y[i] = f(x[0][i], x[1][i], ...)`. All slices have the same length.
    fn tile<R: Real>(&self, x: &[&[R]], y: &mut [R]);
}

/// An elementwise operation on numbers of any kind.
pub(crate) trait NumberTile: Sync {
    /// As [`FloatTile::tile`].
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [N]);
}

/// An elementwise question about numbers of any kind, whose answers are bools.
pub(crate) trait TruthTile: Sync {
    /// As [`FloatTile::tile`]; an answer is 0 or 1.
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [u8]);
}

/// A [`FloatTile`] for some rows of one length. An operation whose short rows shall be fast implements this one: the loop over rows
/// is then compiled together with that over elements.
pub(crate) trait FloatRows: Sync {
    fn rows<R: Real>(&self, x: &[Runs<'_, R>], y: RunsMut<'_, R>);

    /// Whether there is a loop over numbers of 16 bits, which saves the passes that convert them.
    fn takes_halves(&self) -> bool {
        false
    }

    /// This loop.
    fn rows_of_halves<L: HalfLoops>(&self, _loops: L, _x: Runs<'_, L::Half>, _y: RunsMut<'_, L::Half>) {}
}

/// A [`NumberTile`] for some rows of one length.
pub(crate) trait NumberRows: Sync {
    fn rows<N: Number>(&self, x: &[Runs<'_, N>], y: RunsMut<'_, N>);

    /// Whether there are loops over numbers of 16 bits, which save the passes that convert them.
    fn takes_halves(&self) -> bool {
        false
    }

    /// [`rows`](Self::rows) of such numbers.
    fn rows_of_halves<L: HalfLoops>(&self, _loops: L, _x: &[Runs<'_, L::Half>], _y: RunsMut<'_, L::Half>) {}

    /// [`rows_with_one`](Self::rows_with_one) of such numbers.
    fn halves_with_one<L: HalfLoops>(
        &self,
        _loops: L,
        _one: OneNumber<'_, L::Half>,
        _x: Runs<'_, L::Half>,
        _y: RunsMut<'_, L::Half>,
    ) {
    }

    /// Whether there is a loop for two operands of which one is one number in each row.
    const WITH_ONE: bool = false;

    /// This loop.
    fn rows_with_one<N: Number>(&self, _one: OneNumber<'_, N>, _x: Runs<'_, N>, _y: RunsMut<'_, N>) {}
}

/// A [`TruthTile`] for some rows of one length.
pub(crate) trait TruthRows: Sync {
    fn rows<N: Number>(&self, x: &[Runs<'_, N>], y: RunsMut<'_, u8>);

    /// As [`NumberRows::WITH_ONE`].
    const WITH_ONE: bool = false;

    /// As [`NumberRows::rows_with_one`].
    fn rows_with_one<N: Number>(&self, _one: OneNumber<'_, N>, _x: Runs<'_, N>, _y: RunsMut<'_, u8>) {}
}

impl<O: FloatTile> FloatRows for O {
    fn rows<R: Real>(&self, x: &[Runs<'_, R>], y: RunsMut<'_, R>) {
        each_row(x, y, |x, y| self.tile(x, y));
    }
}

impl<O: NumberTile> NumberRows for O {
    fn rows<N: Number>(&self, x: &[Runs<'_, N>], y: RunsMut<'_, N>) {
        each_row(x, y, |x, y| self.tile(x, y));
    }
}

impl<O: TruthTile> TruthRows for O {
    fn rows<N: Number>(&self, x: &[Runs<'_, N>], y: RunsMut<'_, u8>) {
        each_row(x, y, |x, y| self.tile(x, y));
    }
}

/// An operand that is one number in each row: the first of the row.
#[derive(Clone, Copy)]
pub(crate) struct OneNumber<'a, N> {
    pub(crate) numbers: Runs<'a, N>,
    /// Whether it is the first operand.
    pub(crate) is_first: bool,
}

/// Calls `tile` with each row of the operands and of the result.
fn each_row<N, Y>(x: &[Runs<'_, N>], y: RunsMut<'_, Y>, tile: impl Fn(&[&[N]], &mut [Y])) {
    y.each(|r, y| {
        let mut rows: [&[N]; MAX_INPUTS] = [&[]; MAX_INPUTS];
        rows.iter_mut().zip(x).for_each(|(row, x)| *row = x.row(r, y.len()));
        tile(&rows[..x.len()], y);
    });
}

/// Runs an expression with `$loops` as the loops over the operands' numbers of 16 bits, if the operation takes these and the machine
/// has loops for them; otherwise runs `$wide`.
macro_rules! with_half_loops {
    ($args:expr, $op:expr, $loops:ident => $halves:expr, else $wide:expr) => {
        match $op.takes_halves() {
            true if all_are(DType::BF16, $args) => {
                let $loops = Bf16Loops;
                $halves
            }
            #[cfg(target_arch = "x86_64")]
            true if all_are(DType::F16, $args)
                && let Some(loops) = f16_loops() =>
            {
                with_f16_loops!(loops, $loops => $halves)
            }
            _ => $wide,
        }
    };
}

/// Runs an operation in the arithmetic of the floating-point dtype `compute`.
pub(crate) fn float<O: FloatRows>(args: &HostArgs<'_>, compute: DType, op: &O) -> Result<()> {
    /// The operation on numbers of 16 bits.
    fn run_halves<L: HalfLoops, O: FloatRows>(args: &HostArgs<'_>, loops: L, op: &O) -> Result<()>
    where
        L::Half: Arithmetic,
    {
        L::Half::run(args, &|x, y| op.rows_of_halves(loops, x[0], y), None)
    }
    match compute {
        DType::F64 => f64::run(args, &|x, y| op.rows(x, y), None),
        DType::F32 | DType::F16 | DType::BF16 => with_half_loops!(args, op,
            loops => run_halves(args, loops, op),
            else f32::run(args, &|x, y| op.rows(x, y), None)
        ),
        other => Err(Error::Unsupported { op: args.op(), dtype: other, device: "cpu".to_string() }),
    }
}

/// Runs an operation in the arithmetic of the dtype `compute`.
pub(crate) fn number<O: NumberRows>(args: &HostArgs<'_>, compute: DType, op: &O) -> Result<()> {
    /// The operation in arithmetic of type `N`.
    fn run_in<N: Arithmetic, O: NumberRows>(args: &HostArgs<'_>, op: &O) -> Result<()> {
        let with_one = |one: OneNumber<'_, N>, x: Runs<'_, N>, y: RunsMut<'_, N>| op.rows_with_one(one, x, y);
        N::run(args, &|x, y| op.rows(x, y), if O::WITH_ONE { Some(&with_one) } else { None })
    }
    /// The operation on numbers of 16 bits.
    fn run_halves<L: HalfLoops, O: NumberRows>(args: &HostArgs<'_>, loops: L, op: &O) -> Result<()>
    where
        L::Half: Arithmetic,
    {
        let with_one = |one: OneNumber<'_, L::Half>, x: Runs<'_, L::Half>, y: RunsMut<'_, L::Half>| {
            op.halves_with_one(loops, one, x, y);
        };
        let with_one: TileWithOne<'_, L::Half, L::Half> = if O::WITH_ONE { Some(&with_one) } else { None };
        L::Half::run(args, &|x, y| op.rows_of_halves(loops, x, y), with_one)
    }
    match compute {
        DType::F64 => run_in::<f64, O>(args, op),
        DType::F32 | DType::F16 | DType::BF16 => with_half_loops!(args, op,
            loops => run_halves(args, loops, op),
            else run_in::<f32, O>(args, op)
        ),
        _ if all_bytes(args) => run_in::<u8, O>(args, op),
        _ => run_in::<i64, O>(args, op),
    }
}

/// Whether all operands and the result have this dtype, and the result is not a sum, which is rounded once.
fn all_are(dtype: DType, args: &HostArgs<'_>) -> bool {
    let all = (0..args.reads()).all(|i| args.read_dtype(i) == dtype);
    all && args.write_dtype(0) == dtype && !args.accumulate(0)
}

/// Runs an operation whose result is bool, in the arithmetic of the dtype `compute`.
pub(crate) fn truth<O: TruthRows>(args: &HostArgs<'_>, compute: DType, op: &O) -> Result<()> {
    /// The operation in arithmetic of type `N`.
    fn run_in<N: Number, O: TruthRows>(args: &HostArgs<'_>, op: &O) -> Result<()> {
        let with_one =
            |one: OneNumber<'_, N>, x: Runs<'_, N>, y: RunsMut<'_, u8>| op.rows_with_one(one, x, y);
        run_into::<u8, N, u8>(args, &|x, y| op.rows(x, y), if O::WITH_ONE { Some(&with_one) } else { None })
    }
    match compute {
        DType::F64 => run_in::<f64, O>(args, op),
        DType::F32 | DType::F16 | DType::BF16 => run_in::<f32, O>(args, op),
        _ if all_bytes(args) => run_in::<u8, O>(args, op),
        _ => run_in::<i64, O>(args, op),
    }
}

/// Whether all operands and the result are u8 or bool: then the arithmetic is that of u8, which wraps around like that
/// of i64 cut to its low byte.
fn all_bytes(args: &HostArgs<'_>) -> bool {
    let is_byte = |dtype| matches!(dtype, DType::U8 | DType::Bool);
    is_byte(args.write_dtype(0)) && (0..args.reads()).all(|i| is_byte(args.read_dtype(i)))
}

/// Runs an operation in integer arithmetic.
pub(crate) fn int(
    args: &HostArgs<'_>,
    rows: impl Fn(&[Runs<'_, i64>], RunsMut<'_, i64>) + Sync,
) -> Result<()> {
    i64::run(args, &rows, None)
}

/// Runs an operation on bytes, in arithmetic of u8.
pub(crate) fn bytes(
    args: &HostArgs<'_>,
    rows: impl Fn(&[Runs<'_, u8>], RunsMut<'_, u8>) + Sync,
) -> Result<()> {
    u8::run(args, &rows, None)
}

/// Copies the operand, through the arithmetic of the dtype `compute`.
pub(crate) fn copy(args: &HostArgs<'_>, compute: DType) -> Result<()> {
    let (from, to) = (args.read_dtype(0), args.write_dtype(0));
    if from == to && !args.accumulate(0) {
        return moves::run(args);
    }
    match compute {
        DType::F64 => with_stored!(to, T => converted::<T, f64>(args)),
        DType::F32 | DType::F16 | DType::BF16 => with_stored!(to, T => converted::<T, f32>(args)),
        _ if all_bytes(args) => converted::<u8, u8>(args),
        _ => with_stored!(to, T => converted::<T, i64>(args)),
    }
}

/// Calls `body` with pieces of an output, in parallel if there is enough work: their elements, where their memory begins in
/// that of the output, and this memory.
pub(super) fn pieces<T: Send>(
    plan: &LoopPlan,
    out: &mut [T],
    body: impl Fn(Range<usize>, usize, &mut [T]) + Sync,
) {
    // Split where plain slices are possible: anywhere if the output is dense, otherwise along its outermost dimension.
    let whole = plan.numel();
    let grain = parallel::grain(whole);
    let (elements, memory) = if plan.is_dense(0) {
        (grain, grain)
    } else {
        let rows = (grain * plan.shape[0]).div_ceil(whole).clamp(1, plan.shape[0]);
        (whole / plan.shape[0] * rows, plan.strides[0][0] * rows)
    };
    let worthwhile = parallel::worthwhile(whole);
    parallel::for_each(worthwhile, out.par_chunks_mut(memory).enumerate(), |(piece, out)| {
        body(piece * elements..((piece + 1) * elements).min(whole), piece * memory, out);
    });
}

/// The arithmetic of a tile, from numbers of type `N` to numbers of type `Y`. It is behind a pointer, so that the code
/// around it is compiled once for each combination of types and not for each operation.
type Tile<'a, N, Y> = &'a (dyn Fn(&[Runs<'_, N>], RunsMut<'_, Y>) + Sync);
/// The arithmetic of a tile with an operand that is one number in each row, if there is a loop for it.
type TileWithOne<'a, N, Y> = Option<&'a (dyn Fn(OneNumber<'_, N>, Runs<'_, N>, RunsMut<'_, Y>) + Sync)>;

/// An arithmetic type whose results are stored in some dtypes.
trait Arithmetic: Number {
    /// Runs an operation whose result has one of these dtypes.
    fn run(
        args: &HostArgs<'_>,
        tile: Tile<'_, Self, Self>,
        with_one: TileWithOne<'_, Self, Self>,
    ) -> Result<()>;
}

macro_rules! arithmetic {
    ($($n:ty: $($dtype:pat => $t:ty),+;)*) => {$(
        impl Arithmetic for $n {
            fn run(args: &HostArgs<'_>, tile: Tile<'_, $n, $n>, with_one: TileWithOne<'_, $n, $n>) -> Result<()> {
                match args.write_dtype(0) {
                    $($dtype => run_into::<$t, $n, $n>(args, tile, with_one),)+
                    _ => Err(Error::internal(args.op(), "a result that is not computed in this arithmetic")),
                }
            }
        }
    )*};
}
arithmetic! {
    f64: DType::F64 => f64;
    f32: DType::F32 => f32, DType::F16 => f16, DType::BF16 => bf16;
    f16: DType::F16 => f16;
    bf16: DType::BF16 => bf16;
    i64: DType::I64 => i64, DType::I32 => i32, DType::U8 | DType::Bool => u8;
    u8: DType::U8 | DType::Bool => u8;
}

fn run_into<T: Stored, N: Number, Y: Number>(
    args: &HostArgs<'_>,
    tile: Tile<'_, N, Y>,
    tile_with_one: TileWithOne<'_, N, Y>,
) -> Result<()> {
    let Some(mut operands) = Operands::of(args)? else {
        return Ok(());
    };
    let out: &mut [T] = args.write(0)?;
    let count = operands.data.len();
    let is_direct = |operands: &Operands<'_>| (0..count).all(|i| operands.is_direct::<N>(i));
    let may_write = TypeId::of::<T>() == TypeId::of::<Y>() && !operands.accumulate;
    let one = operands.one_of_two::<N>().filter(|_| may_write).zip(tile_with_one);
    if !(may_write && (one.is_some() || is_direct(&operands))) {
        operands.gather_rows();
    }
    let (operands, reads_direct) = (&operands, is_direct(&operands));
    let writes_direct = may_write && (operands.tiling != Tiling::Gathered || operands.plan.is_dense(0));
    // Where the operands lie, to where the result lies.
    let moves_nothing = writes_direct && (one.is_some() || reads_direct);
    let most = operands.most(!moves_nothing);
    pieces(&operands.plan, out, |elements, base, memory| {
        let mut buffers = Scratch::<N>::new(if moves_nothing { 0 } else { count * most });
        let mut result = Scratch::<Y>::new(if writes_direct { 0 } else { most });
        operands.tiles(elements, most, |block| {
            let (rows, len) = (block.rows, block.len);
            let mut inputs = [Runs::one(&[][..]); MAX_INPUTS];
            if moves_nothing && let Some(data) = Y::same_mut(&mut memory[block.offsets[0] - base..]) {
                let y = RunsMut { data, step: block.steps[0], rows, len };
                if let Some((one, tile)) = one {
                    let numbers = OneNumber { numbers: operands.runs(one, &block), is_first: one == 0 };
                    return tile(numbers, operands.runs(1 - one, &block), y);
                }
                for (i, input) in inputs[..count].iter_mut().enumerate() {
                    *input = operands.runs(i, &block);
                }
                return tile(&inputs[..count], y);
            }
            let mut rest = &mut *buffers;
            for (i, input) in inputs[..count].iter_mut().enumerate() {
                let (buf, after) = rest.split_at_mut(len);
                *input = Runs::one(operands.read(i, &block, (&*memory, base), buf));
                rest = after;
            }
            let inputs = &inputs[..count];
            if writes_direct
                && let Some(run) = operands.run_of_output(&block, (&mut *memory, base))
                && let Some(out) = Y::same_mut(run)
            {
                return tile(inputs, RunsMut::one(out));
            }
            let result = &mut result[..len];
            tile(inputs, RunsMut::one(result));
            operands.write(&block, result, (&mut *memory, base));
        });
    });
    Ok(())
}

/// Writes the operand, converted through the arithmetic type `N`.
fn converted<T: Stored, N: Number>(args: &HostArgs<'_>) -> Result<()> {
    let Some(mut operands) = Operands::of(args)? else {
        return Ok(());
    };
    let out: &mut [T] = args.write(0)?;
    if operands.tiling == Tiling::Rows && operands.is_direct::<N>(0) {
        let operands = &operands;
        pieces(&operands.plan, out, |elements, base, memory| {
            operands.tiles(elements, operands.most(false), |block| {
                let (x, y) = (operands.runs::<N>(0, &block), &mut memory[block.offsets[0] - base..]);
                for r in 0..block.rows {
                    let y = &mut y[r * block.steps[0]..][..block.len];
                    store(x.row(r, block.len), y, operands.accumulate);
                }
            });
        });
        return Ok(());
    }
    operands.gather_rows();
    let operands = &operands;
    let writes_direct = TypeId::of::<T>() == TypeId::of::<N>()
        && !operands.accumulate
        && !matches!(operands.data[0], Data::InPlace);
    let most = operands.most(!(operands.is_direct::<N>(0) || writes_direct));
    pieces(&operands.plan, out, |elements, base, memory| {
        let mut buffer = Scratch::<N>::new(most);
        operands.tiles(elements, most, |block| {
            if writes_direct
                && let Some(run) = operands.run_of_output(&block, (&mut *memory, base))
                && let Some(out) = N::same_mut(run)
            {
                return operands.read_into::<T, N>(0, &block, (&[], 0), out);
            }
            let values = operands.read(0, &block, (&*memory, base), &mut buffer[..block.len]);
            operands.write(&block, values, (&mut *memory, base));
        });
    });
    Ok(())
}
