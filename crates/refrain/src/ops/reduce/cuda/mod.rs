//! Reductions and their gradients on CUDA.

use crate::kernels::reduction::cuda::{MACHINE, MOMENTS, REDUCTION, ReductionLaunch, Rows};

use super::Kind;
use crate::device::Launch;
use crate::device::cuda::{CudaArgs, KernelSpec, Leading, Pointer, Source, Summing};
use crate::error::{Error, Result};
use crate::kernels::elementwise::chain::{LOADS, VALUES};
use crate::kernels::elementwise::cuda::{LOOP, run};
use crate::kernels::reduction::Extent;
use crate::tensor::DType;

static SOURCE: Source = Source { name: "reduce", parts: &[REDUCTION, include_str!("../kernel.cu"), MACHINE] };
static HEADED: Source =
    Source { name: "reduce", parts: &[VALUES, LOADS, REDUCTION, include_str!("../kernel.cu"), MACHINE] };
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
    reduction.run(args, &SOURCE, |spec| constants(spec, "KIND_SUM", false, compute, out))
}

/// A reduction of one operand to one result, with their places.
#[derive(Clone, Copy, Debug)]
struct Reduce {
    kind: Kind,
    extent: Extent,
    x: Pointer,
    y: Pointer,
    dtypes: [DType; 2],
    /// Whether y is added to.
    accumulates: bool,
    workspace: usize,
}

pub(super) fn forward(kind: Kind, extent: Extent, args: &mut CudaArgs<'_>) -> Result<()> {
    if let Kind::Var { correction } = kind {
        let (compute, out) = (args.read_dtype(0).accumulator(), args.write_dtype(0));
        let mut variance = ReductionLaunch::of_rows(args, extent, &[0]).output(args, 0).output(args, 1);
        variance.scalars.push(correction as f64);
        return variance.run(args, &VARIANCE, |spec| constants(spec, "KIND_VARIANCE", false, compute, out));
    }
    let reduce = Reduce {
        kind,
        extent,
        x: args.read(0),
        y: args.write(0),
        dtypes: [args.read_dtype(0), args.write_dtype(0)],
        accumulates: args.accumulate(0),
        workspace: Rows::room(extent, &[args.read_layout(0)], args.read_dtype(0).size(), STATE),
    };
    if args.describes() {
        args.describe_summing(Box::new(reduce));
        return Ok(());
    }
    reduce.run(args, None)
}

impl Summing for Reduce {
    fn source(&self) -> usize {
        self.x.number()
    }

    fn visits_all(&self) -> bool {
        true
    }

    fn workspace(&self) -> usize {
        self.workspace
    }

    fn moved(&self, reads: &[Pointer], writes: &[Pointer]) -> Option<Box<dyn Summing>> {
        let [x, y] = [self.x, self.y].map(|pointer| pointer.moved(reads, writes));
        Some(Box::new(Reduce { x: x?, y: y?, ..*self }))
    }

    fn run(&self, args: &mut CudaArgs<'_>, head: Option<&dyn Leading>) -> Result<()> {
        let [dtype, out] = self.dtypes;
        let (compute, extent) = (dtype.accumulator(), self.extent);
        let mut reduction = match head {
            None => ReductionLaunch::of_rows(args, extent, &[self.x.number()]),
            Some(head) => ReductionLaunch::headed(args, extent, dtype, &HEADED, head)?,
        };
        reduction.outputs.push((self.y, self.accumulates));
        let divisor = if self.kind == Kind::Mean { extent.n as f64 } else { 1.0 };
        let (word, maximum) = match self.kind {
            Kind::Sum | Kind::Mean => ("KIND_SUM", false),
            Kind::Product => ("KIND_PRODUCT", false),
            Kind::Max | Kind::Min => ("KIND_EXTREME", self.kind == Kind::Max),
            Kind::ArgMax | Kind::ArgMin => ("KIND_POSITION", self.kind == Kind::ArgMax),
            Kind::Var { .. } => return Err(Error::internal(args.op(), "a variance has two results")),
        };
        reduction.scalars.push(divisor);
        reduction.run(args, &SOURCE, |spec| constants(spec, word, maximum, compute, out))
    }

    fn boxed(&self) -> Box<dyn Summing> {
        Box::new(*self)
    }
}

/// Operands: x, its extremes and their gradient.
pub(super) fn tie_share(extent: Extent, args: &mut CudaArgs<'_>) -> Result<()> {
    let (compute, out) = (args.read_dtype(0).accumulator(), args.write_dtype(0));
    let mut reduction = ReductionLaunch::new(args, extent, &[0]).output(args, 0);
    reduction.extra.extend([args.read(1), args.read(2)]);
    reduction.run(args, &SOURCE, |spec| constants(spec, "KIND_TIES", false, compute, out))
}

/// Operands: x and two tensors that broadcast to it.
pub(super) fn backward(form: &'static str, scalars: &[f64], args: &mut CudaArgs<'_>) -> Result<()> {
    let compute = args.write_dtype(0).accumulator();
    run(args, &GRADIENT, compute, scalars, |spec| spec.word("FORM", form))
}
