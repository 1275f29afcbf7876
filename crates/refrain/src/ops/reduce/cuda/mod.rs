//! Reductions and their gradients on CUDA.

use crate::kernels::reduction::cuda::{MACHINE, MOMENTS, REDUCTION, ReductionLaunch, Rows};

use super::Kind;
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, KernelSpec, Source};
use crate::error::Result;
use crate::kernels::elementwise::cuda::{LOOP, run};
use crate::kernels::reduction::Extent;
use crate::tensor::DType;

static SOURCE: Source = Source { name: "reduce", parts: &[REDUCTION, include_str!("../kernel.cu"), MACHINE] };
static VARIANCE: Source =
    Source { name: "variance", parts: &[REDUCTION, MOMENTS, include_str!("../kernel.cu"), MACHINE] };
static GRADIENT: Source = Source { name: "reduce_backward", parts: &[include_str!("../gradient.cu"), LOOP] };

/// The maximum size of a state in bytes: two words of eight.
const STATE: usize = 16;

/// Workspace bytes of reductions of the first operand.
pub(crate) fn workspace(extent: Extent, launch: &Launch<'_>) -> usize {
    let x = &launch.reads[0];
    Rows::room(extent, &[x.layout], x.dtype.size(), STATE)
}

fn constants(spec: KernelSpec, kind: &'static str, maximum: bool, compute: DType, out: DType) -> KernelSpec {
    spec.word("KIND", kind).flag("MAXIMUM", maximum).dtype("COMPUTE", compute).dtype("OUT", out)
}

/// The sum of the first operand over the middle of `extent`, divided by `divisor`, into output `o`.
pub(crate) fn sum(args: &mut CudaArgs<'_>, o: usize, extent: Extent, divisor: f64) -> Result<()> {
    let (compute, out) = (args.read_dtype(0).accumulator(), args.write_dtype(o));
    let mut reduction = ReductionLaunch::of_rows(args, extent, &[0]).output(args, o);
    reduction.scalars.push(divisor);
    reduction.run(args, &SOURCE, |spec| constants(spec, "SUM", false, compute, out))
}

pub(super) fn forward(kind: Kind, extent: Extent, args: &mut CudaArgs<'_>) -> Result<()> {
    let (compute, out) = (args.read_dtype(0).accumulator(), args.write_dtype(0));
    let mut reduction = ReductionLaunch::of_rows(args, extent, &[0]).output(args, 0);
    let (source, word, maximum) = match kind {
        Kind::Sum => return sum(args, 0, extent, 1.0),
        Kind::Mean => return sum(args, 0, extent, extent.n as f64),
        Kind::Product => (&SOURCE, "PRODUCT", false),
        Kind::Max | Kind::Min => (&SOURCE, "EXTREME", kind == Kind::Max),
        Kind::ArgMax | Kind::ArgMin => (&SOURCE, "POSITION", kind == Kind::ArgMax),
        Kind::Var { correction } => {
            reduction = reduction.output(args, 1);
            reduction.scalars.push(correction as f64);
            (&VARIANCE, "VARIANCE", false)
        }
    };
    reduction.run(args, source, |spec| constants(spec, word, maximum, compute, out))
}

/// Operands: x, its extremes and their gradient.
pub(super) fn tie_share(extent: Extent, args: &mut CudaArgs<'_>) -> Result<()> {
    let (compute, out) = (args.read_dtype(0).accumulator(), args.write_dtype(0));
    let mut reduction = ReductionLaunch::new(args, extent, &[0]).output(args, 0);
    reduction.extra.extend([args.read(1), args.read(2)]);
    reduction.run(args, &SOURCE, |spec| constants(spec, "TIES", false, compute, out))
}

/// Operands: x and two tensors that broadcast to it.
pub(super) fn backward(form: &'static str, scalars: &[f64], args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = args.write_dtype(0).accumulator();
    run(args, &GRADIENT, compute, scalars, |spec| spec.word("FORM", form))
}
