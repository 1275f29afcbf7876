//! The machine of elementwise kernels on CUDA.
//!
//! Where the last axis of all operands lies in consecutive memory (or repeats one element), a thread
//! takes 16 bytes of it at once; else single elements at any strides.

use smallvec::SmallVec;

use super::{MAX_INPUTS, Plan};
use crate::device::cuda::{CudaArgs, Grid, Params, Source, Spec};
use crate::error::{Error, Result};
use crate::tensor::{DType, Layout};

/// The loop, which the parts of every elementwise source end with.
pub(crate) const LOOP: &str = include_str!("kernel.cu");

const THREADS: u32 = 256;
/// Bytes that a thread loads or stores at once.
const VECTOR_BYTES: usize = 16;
const INPUT_NAMES: [&str; MAX_INPUTS] = ["IN0", "IN1", "IN2", "IN3", "IN4"];

/// What elements of a dtype are computed in.
pub(crate) fn arithmetic(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        DType::F32 | DType::F16 | DType::BF16 => DType::F32,
        _ => DType::I64,
    }
}

/// An operand of the loop.
#[derive(Clone, Copy)]
pub(crate) struct Operand<'a> {
    /// Of the shape that all operands have.
    pub(crate) layout: &'a Layout,
    pub(crate) dtype: DType,
    /// Where the first element lies.
    pub(crate) address: u64,
}

/// The launch's first output as an operand.
pub(crate) fn output<'a>(args: &CudaArgs<'a>) -> Operand<'a> {
    Operand { layout: args.write_layout(0), dtype: args.write_dtype(0), address: args.write(0) }
}

/// The launch's input `i` as an operand.
pub(crate) fn input<'a>(args: &CudaArgs<'a>, i: usize) -> Operand<'a> {
    Operand { layout: args.read_layout(i), dtype: args.read_dtype(i), address: args.read(i) }
}

/// Runs `y = apply(x, scalars)` over the launch's operands and its first output, in the arithmetic of
/// `compute`. `constants` adds those of the operation.
pub(crate) fn run(
    args: &mut CudaArgs<'_>,
    source: &'static Source,
    compute: DType,
    scalars: &[f64],
    constants: impl FnOnce(Spec) -> Spec,
) -> Result<()> {
    let x: SmallVec<[Operand<'_>; MAX_INPUTS]> = (0..args.reads()).map(|i| input(args, i)).collect();
    run_on(args, source, compute, scalars, output(args), &x, constants)
}

/// [`run`] on other views of the operands.
pub(crate) fn run_on(
    args: &mut CudaArgs<'_>,
    source: &'static Source,
    compute: DType,
    scalars: &[f64],
    y: Operand<'_>,
    x: &[Operand<'_>],
    constants: impl FnOnce(Spec) -> Spec,
) -> Result<()> {
    let inputs = x.len();
    let operands: SmallVec<[Operand<'_>; 6]> = std::iter::once(y).chain(x.iter().copied()).collect();
    let layouts: SmallVec<[&Layout; 6]> = operands.iter().map(|o| o.layout).collect();
    if inputs > MAX_INPUTS {
        return Err(Error::internal(args.op(), "an elementwise kernel with too many operands"));
    }
    let plan = Plan::new(&layouts);
    let n = plan.numel();
    if n == 0 {
        return Ok(());
    }
    let last = plan.shape.len() - 1;
    let sizes: SmallVec<[usize; 6]> = operands.iter().map(|o| o.dtype.size()).collect();
    let addresses: SmallVec<[u64; 6]> = operands.iter().map(|o| o.address).collect();

    let vec = VECTOR_BYTES / sizes.iter().max().copied().unwrap_or(VECTOR_BYTES);
    let fits = |o: usize| {
        let strides = &plan.strides[o];
        match strides[last] {
            // A destination holds each element once.
            0 => o > 0,
            1 => {
                addresses[o].is_multiple_of((vec * sizes[o]) as u64)
                    && strides[..last].iter().all(|s| s.is_multiple_of(vec))
            }
            _ => false,
        }
    };
    let whole = last == 0 || plan.shape[last].is_multiple_of(vec);
    let vec = if whole && (0..=inputs).all(fits) { vec } else { 1 };
    let dense: i64 = (0..inputs).map(|i| i64::from(plan.strides[i + 1][last] == 1) << i).sum();
    let rank = if last == 0 { 1 } else { plan.shape.len().next_power_of_two() };
    let reach = plan.strides.iter().map(|s| s.iter().zip(&*plan.shape).map(|(s, d)| s * d).sum::<usize>());
    // Room for the steps beyond the end that a loop over the grid takes.
    let wide = reach.chain([n]).max().unwrap_or(n) >= 1 << 30;

    let mut spec = Spec::new(source, "elementwise")
        .dtype("COMPUTE", compute)
        .dtype("OUT", y.dtype)
        .int("INPUTS", inputs as i64)
        .int("SCALARS", scalars.len() as i64)
        .int("RANK", rank as i64)
        .int("VEC", vec as i64)
        .int("DENSE", if vec > 1 { dense } else { 0 })
        .word("INDEX", if wide { "u64" } else { "u32" })
        .flag("ADD", args.accumulate(0));
    for (i, name) in INPUT_NAMES.into_iter().enumerate().take(inputs) {
        spec = spec.dtype(name, x[i].dtype);
    }

    let mut words: SmallVec<[u64; 64]> = SmallVec::new();
    let padding = rank - plan.shape.len();
    words.push(n as u64);
    words.extend(addresses.iter().copied());
    words.push(0);
    words.extend(scalars.iter().map(|s| s.to_bits()));
    words.push(0);
    let mut dims = |values: &[usize], fill: u64| {
        words.extend(std::iter::repeat_n(fill, padding).chain(values.iter().map(|&v| v as u64)));
    };
    dims(&plan.shape, 1);
    plan.strides.iter().for_each(|s| dims(s, 0));
    words.extend(std::iter::repeat_n(0, rank));

    let blocks = (n / vec).div_ceil(THREADS as usize).min(args.multiprocessors() * 64);
    args.kernel(constants(spec), Grid::line(blocks, THREADS), &Params::new().words(&words))
}
