//! Elementwise kernels on CUDA.
//!
//! If the last axis of all operands is contiguous (or repeats one element), a thread processes 16 bytes of it at a
//! time. Otherwise it processes single elements with any strides.

use smallvec::SmallVec;

use super::{LoopPlan, MAX_INPUTS};
use crate::device::cuda::{
    CudaArgs, Grid, KernelSpec, Piece, Pointer, Source, View, padded, params, with_rank,
};
use crate::error::{Error, Result};
use crate::kernels::numbers::Numbers;
use crate::tensor::{DType, Layout};

/// The loop. Every elementwise source ends with it.
pub(crate) const LOOP: &str = include_str!("kernel.cu");

const THREADS: u32 = 256;
/// Bytes that a thread loads or stores at a time.
const VECTOR_BYTES: usize = 16;
/// Scalars at most.
const MAX_SCALARS: usize = 2;
const INPUT_NAMES: [&str; MAX_INPUTS] = ["IN0", "IN1", "IN2", "IN3", "IN4"];

params! {
    /// The arguments of the loop. Of inputs and scalars there are as many as the constants say.
    struct Elements<const RANK: usize> {
        n: i64,
        y: Pointer,
        x: [Pointer; MAX_INPUTS],
        s: [f64; MAX_SCALARS],
        shape: [i64; RANK],
        y_strides: [i64; RANK],
        strides: [[i64; RANK]; MAX_INPUTS],
    }
}

/// An operand that a loop walks over.
#[derive(Clone, Copy)]
pub(super) struct Walked {
    /// Bytes of an element.
    pub(super) size: usize,
    /// Which power of two the address of the first element is a multiple of.
    pub(super) alignment: usize,
    /// Whether one element may stand for a whole axis.
    pub(super) repeats: bool,
}

impl Walked {
    pub(super) fn of(view: &View<'_>) -> Walked {
        Walked { size: view.dtype.size(), alignment: view.alignment(), repeats: true }
    }
}

/// How a loop walks over its operands.
pub(super) struct Walk {
    /// Elements that a thread processes at a time.
    pub(super) vec: usize,
    /// Bit `o`: operand `o` is loaded and stored `vec` elements at a time.
    pub(super) dense: i64,
    /// Axes of the arrays in the arguments.
    pub(super) rank: usize,
    /// Whether offsets need 64 bits.
    pub(super) wide: bool,
}

impl Walk {
    pub(super) fn new(plan: &LoopPlan, operands: &[Walked]) -> Walk {
        let last = plan.shape.len() - 1;
        let vec = VECTOR_BYTES / operands.iter().map(|o| o.size).max().unwrap_or(VECTOR_BYTES);
        let fits = |(strides, operand): (&Numbers, &Walked)| match strides[last] {
            0 => operand.repeats,
            1 => {
                operand.alignment.is_multiple_of(vec * operand.size)
                    && strides[..last].iter().all(|s| s.is_multiple_of(vec))
            }
            _ => false,
        };
        let whole = last == 0 || plan.shape[last].is_multiple_of(vec);
        let vec = if whole && plan.strides.iter().zip(operands).all(fits) { vec } else { 1 };
        let is_dense = |strides: &Numbers| vec > 1 && strides[last] == 1;
        let dense = plan.strides.iter().enumerate().map(|(o, s)| i64::from(is_dense(s)) << o).sum();
        let rank = if last == 0 { 1 } else { plan.shape.len().next_power_of_two() };
        let reach =
            plan.strides.iter().map(|s| s.iter().zip(&*plan.shape).map(|(s, d)| s * d).sum::<usize>());
        let n = plan.numel();
        // Includes the steps beyond the end that a loop over the grid takes.
        let wide = reach.chain([n]).max().unwrap_or(n) >= 1 << 30;
        Walk { vec, dense, rank, wide }
    }
}

/// Blocks for so many iterations, which may go around more than once.
pub(super) fn grid(args: &CudaArgs<'_>, iterations: usize) -> Grid {
    Grid::line(iterations.div_ceil(THREADS as usize).min(args.multiprocessors() * 64), THREADS)
}

/// Runs `y = apply(x, scalars)` over the operands and the first output of the launch, in the arithmetic of `compute`.
/// `constants` adds the constants of the operation.
pub(crate) fn run(
    args: &mut CudaArgs<'_>,
    source: &'static Source,
    compute: DType,
    scalars: &[f64],
    constants: impl FnOnce(KernelSpec) -> KernelSpec,
) -> Result<()> {
    let x: SmallVec<[View<'_>; MAX_INPUTS]> = (0..args.reads()).map(|i| args.input(i)).collect();
    run_on(args, source, compute, scalars, args.output(0), &x, constants)
}

/// [`run`] on other views of the operands, of one shape.
pub(crate) fn run_on(
    args: &mut CudaArgs<'_>,
    source: &'static Source,
    compute: DType,
    scalars: &[f64],
    y: View<'_>,
    x: &[View<'_>],
    constants: impl FnOnce(KernelSpec) -> KernelSpec,
) -> Result<()> {
    run_with(args, source, constants(KernelSpec::new(source, "elementwise")), compute, scalars, (y, x))
}

/// [`run_on`] with the constants of the operation in `spec`, which is compiled once for all operations.
fn run_with(
    args: &mut CudaArgs<'_>,
    source: &'static Source,
    spec: KernelSpec,
    compute: DType,
    scalars: &[f64],
    (y, x): (View<'_>, &[View<'_>]),
) -> Result<()> {
    if args.describes() && std::iter::once(&y).chain(x).all(|view| args.is_operand(view)) {
        let x = x.iter().map(|view| view.pointer.number()).collect();
        let (scalars, y) = (SmallVec::from_slice(scalars), y.pointer.number());
        args.describe(Piece { source, constants: spec.constants, compute, scalars, x, y, words: None });
        return Ok(());
    }
    let inputs = x.len();
    let operands: SmallVec<[View<'_>; 6]> = std::iter::once(y).chain(x.iter().copied()).collect();
    let layouts: SmallVec<[&Layout; 6]> = operands.iter().map(|o| o.layout).collect();
    if inputs > MAX_INPUTS || scalars.len() > MAX_SCALARS {
        return Err(Error::internal(args.op(), "an elementwise kernel with too many operands"));
    }
    let plan = LoopPlan::new(&layouts);
    let n = plan.numel();
    if n == 0 {
        return Ok(());
    }
    // A destination holds each element once.
    let walked = |(o, view): (usize, &View<'_>)| Walked { repeats: o > 0, ..Walked::of(view) };
    let walked: SmallVec<[Walked; 6]> = operands.iter().enumerate().map(walked).collect();
    let Walk { vec, dense, rank, wide } = Walk::new(&plan, &walked);

    let mut spec = spec
        .dtype("COMPUTE", compute)
        .dtype("OUT", y.dtype)
        .int("INPUTS", inputs as i64)
        .int("RANK", rank as i64)
        .int("VEC", vec as i64)
        .int("DENSE", dense >> 1)
        .word("INDEX", if wide { "u64" } else { "u32" })
        .flag("ADD", args.accumulate(0));
    for (i, name) in INPUT_NAMES.into_iter().enumerate().take(inputs) {
        spec = spec.dtype(name, x[i].dtype);
    }

    let grid = grid(args, n / vec);
    with_rank!(args.op(), rank, RANK => {
        let mut elements = Elements::<RANK> {
            n: n as i64,
            y: y.pointer,
            x: [Pointer::NOTHING; MAX_INPUTS],
            s: [0.0; MAX_SCALARS],
            shape: padded(&plan.shape, 1),
            y_strides: padded(&plan.strides[0], 0),
            strides: [[0; RANK]; MAX_INPUTS],
        };
        for (i, x) in x.iter().enumerate() {
            elements.x[i] = x.pointer;
            elements.strides[i] = padded(&plan.strides[i + 1], 0);
        }
        elements.s[..scalars.len()].copy_from_slice(scalars);
        args.kernel(spec, grid, &elements)
    })
}
