//! Dropout on CUDA.

use smallvec::smallvec;

use super::{Dropout, scale, threshold};
use crate::device::cuda::{CudaArgs, KernelSpec, Piece, Pointer, RandomWords, Source, params};
use crate::error::Result;
use crate::kernels::elementwise::cuda::{LOOP, run};
use crate::kernels::units;
use crate::ops::random::philox::WORDS;
use crate::tensor::DType;

const ELEMENT: &str = include_str!("element.cu");
static SOURCE: Source = Source { name: "dropout", parts: &[ELEMENT, include_str!("kernel.cu")] };
static PIECE: Source = Source { name: "dropout", parts: &[ELEMENT, include_str!("piece.cu")] };
static BACKWARD: Source = Source { name: "dropout_backward", parts: &[include_str!("backward.cu"), LOOP] };

params! {
    struct DropoutArgs {
        x: Pointer = "const ELEMENT*",
        residual: Pointer = "const ELEMENT*",
        /// Seed and counter.
        state: Pointer = "const i64*",
        y: Pointer = "ELEMENT*",
        mask: Pointer = "unsigned char*",
        n: i64,
        /// Added to the counter.
        offset: u64,
        /// The words of the first block that belong to no element.
        skip: i64,
        threshold: i64,
        scale: f64,
    }
}

/// The result, and the mask.
fn describe(op: &Dropout, args: &mut CudaArgs<'_>) {
    let adds = usize::from(op.adds);
    let words = Some(RandomWords { state: 1 + adds, offset: op.place.block() });
    let scalars = smallvec![threshold(op.p) as f64, scale(op.p)];
    let constants = |kept| {
        let spec = KernelSpec::new(&PIECE, "dropout").flag("KEPT", kept).flag("ADDS", op.adds);
        spec.flag("NEVER", u32::try_from(threshold(op.p)).is_err()).constants
    };
    let compute = args.write_dtype(0).accumulator();
    let x = (0..=adds).collect();
    let result = Piece { source: &PIECE, constants: constants(false), compute, scalars, x, y: 0, words };
    if op.keeps_mask {
        let (compute, constants) = (DType::Bool.accumulator(), constants(true));
        let mask = Piece { compute, constants, x: smallvec![], y: 1, ..result.clone() };
        args.describe(mask);
    }
    args.describe(result);
}

pub(super) fn forward(op: &Dropout, args: &mut CudaArgs<'_>) -> Result<()> {
    if args.describes() {
        // In a chain, words begin with a block.
        if op.place.is_in_blocks() {
            describe(op, args);
        }
        return Ok(());
    }
    let n = args.write_shape(0).numel();
    if n == 0 {
        return Ok(());
    }
    let skip = op.place.skip();
    let spec = KernelSpec::new(&SOURCE, "dropout")
        .dtype("ELEMENT", args.write_dtype(0))
        .flag("MASK", op.keeps_mask)
        .flag("ADDS", op.adds);
    let kernel_args = DropoutArgs {
        x: args.read(0),
        residual: if op.adds { args.read(1) } else { Pointer::NOTHING },
        state: args.read(1 + usize::from(op.adds)),
        y: args.write(0),
        mask: if op.keeps_mask { args.write(1) } else { Pointer::NOTHING },
        n: n as i64,
        offset: op.place.block(),
        skip: skip as i64,
        threshold: threshold(op.p) as i64,
        scale: scale(op.p),
    };
    args.kernel(spec, units::grid(args, (skip + n).div_ceil(WORDS)), &kernel_args)
}

pub(super) fn backward(scale: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = args.write_dtype(0).accumulator();
    run(args, &BACKWARD, compute, &[scale], |spec| spec)
}
