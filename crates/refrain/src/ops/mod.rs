//! Operations: one folder (or one file while it is small) each, with its checks, kernels and gradient.
//!
//! An operation is a struct that implements [`Op`]. `apply` gives it a new result, `apply_into` an
//! existing one; both take the same way through [`execute`] to the door. To add an operation, add its
//! folder, a line here and a public method.

pub(crate) mod attention;
pub(crate) mod batch_norm;
pub(crate) mod binary;
pub(crate) mod concat;
pub(crate) mod copy;
pub(crate) mod dropout;
pub(crate) mod fill;
pub(crate) mod fold;
pub(crate) mod gather;
pub(crate) mod hadamard;
pub(crate) mod index_select;
pub(crate) mod l2_normalize;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod matmul;
pub(crate) mod one_hot;
pub mod optim;
pub(crate) mod pad;
pub(crate) mod qk_norm;
pub(crate) mod random;
pub(crate) mod reduce;
pub(crate) mod repeat;
pub(crate) mod softmax;
pub(crate) mod sort;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod unary;
pub(crate) mod where_cond;
pub(crate) mod windows;

use std::fmt;

use smallvec::{SmallVec, smallvec};

use crate::autograd::{self, Differentiable, Gradients, Recording, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Kernel, Launch, Mode, OPERANDS, Operand, RESULTS};
use crate::error::{Error, Result};
use crate::tensor::{DType, Layout, Shape, Tensor};

/// Shape and dtype of a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

/// The results of an operation.
pub(crate) type Specs = SmallVec<[Spec; RESULTS]>;

impl Spec {
    pub(crate) fn new(shape: impl Into<Shape>, dtype: DType) -> Spec {
        Spec { shape: shape.into(), dtype }
    }

    /// Shape and dtype of `t`.
    pub(crate) fn like(t: &Tensor) -> Spec {
        Spec::new(t.shape(), t.dtype())
    }

    /// The one result of an operation.
    pub(crate) fn one(self) -> Specs {
        smallvec![self]
    }
}

/// What a kernel expects of an operand's layout. What does not fit is copied first (or, for a result,
/// afterwards): on the same device, in the same dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Any strides.
    Any,
    /// Neighbours along the last axis follow each other in memory.
    InnerContiguous,
    /// Row-major without holes.
    Contiguous,
}

impl Needs {
    fn fits(self, layout: &Layout) -> bool {
        match self {
            Needs::Any => true,
            Needs::InnerContiguous => layout.is_inner_contiguous(),
            Needs::Contiguous => layout.is_contiguous(),
        }
    }
}

/// An operation. Its `Debug` text tells it from another with other parameters: recordings are compared by it.
pub(crate) trait Op: Clone + fmt::Debug + Send + Sync + 'static {
    /// The name in errors and traces.
    const NAME: &'static str;

    /// The name of this one, where a struct stands for several operations.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Checks the operands; says what the results are.
    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs>;

    /// The kernel on the CPU.
    fn host(&self, args: &mut HostArgs<'_>) -> Result<()>;

    /// The kernels on CUDA.
    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()>;

    /// Whether the kernels can fail for the values of the operands, which `infer` can't look at: those that check
    /// positions or a counter.
    fn can_fail(&self) -> bool {
        false
    }

    /// Bytes of memory that the kernels on CUDA work in, beside operands and results.
    fn cuda_workspace(&self, _launch: &Launch<'_>, _gpu: &dyn Gpu) -> Result<usize> {
        Ok(0)
    }

    /// Multiplications and additions of the products of matrices in it, by the shapes of operands and results: 0
    /// for an operation that has none.
    fn flops(&self, _reads: &[&Shape], _writes: &[&Shape]) -> u64 {
        0
    }

    /// What the kernel expects of input `i`.
    fn input_needs(&self, _i: usize) -> Needs {
        Needs::Contiguous
    }

    /// What the kernel expects of output `o`.
    fn output_needs(&self, _o: usize) -> Needs {
        Needs::Contiguous
    }

    /// Whether output `o` may be written where input `i`, of the same layout, is read. The kernel then gets one slice
    /// for both.
    fn in_place(&self, _o: usize, _i: usize) -> bool {
        false
    }

    /// Whether the kernel can add to output `o` instead of replacing it.
    fn accumulates(&self, _o: usize) -> bool {
        false
    }

    /// Which values the backward pass reads.
    fn saves(&self, _needs: &[bool]) -> Saves {
        Saves::default()
    }

    /// Turns gradients of the results into gradients of the operands.
    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let _ = g;
        Err(Error::Autograd {
            op: self.name(),
            message: "this operation has no gradient; detach its operands or run it inside no_grad"
                .to_string(),
        })
    }
}

/// An operation at the door.
impl<O: Op> Kernel for O {
    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        Op::host(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        Op::cuda(self, args)
    }

    fn can_fail(&self) -> bool {
        Op::can_fail(self)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        Op::cuda_workspace(self, launch, gpu)
    }

    fn flops(&self, reads: &[&Shape], writes: &[&Shape]) -> u64 {
        Op::flops(self, reads, writes)
    }

    fn boxed(&self) -> Box<dyn Kernel> {
        Box::new(self.clone())
    }

    fn parameters(&self) -> String {
        format!("{self:?}")
    }
}

/// An operation on the tape.
struct OnTape<O>(O);

impl<O: Op> Differentiable for OnTape<O> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        self.0.saves(needs)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        self.0.backward(g)
    }
}

/// Where a result goes.
pub(crate) enum Dest {
    /// Into a new tensor.
    New,
    /// Into the memory that a tensor has.
    Into(Tensor, Mode),
}

/// All operands lie on one device.
pub(crate) fn check_devices(op: &'static str, inputs: &[&Tensor]) -> Result<()> {
    match inputs.iter().find(|t| t.device() != inputs[0].device()) {
        None => Ok(()),
        Some(other) => {
            Err(Error::DeviceMismatch { op, lhs: inputs[0].device().name(), rhs: other.device().name() })
        }
    }
}

/// Runs an operation with a new result.
pub(crate) fn apply<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    let name = op.name();
    apply_all(op, inputs)?.into_iter().next().ok_or_else(|| Error::internal(name, "no result"))
}

/// Runs an operation with new results.
pub(crate) fn apply_all<O: Op>(op: O, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; RESULTS]>> {
    apply_all_on(op, inputs, inputs)
}

/// Runs an operation with new results on `operands` that stand for `inputs`, with the same values but for rounding:
/// gradients go to the inputs, in their dtypes.
pub(crate) fn apply_all_on<O: Op>(
    op: O,
    inputs: &[&Tensor],
    operands: &[&Tensor],
) -> Result<SmallVec<[Tensor; RESULTS]>> {
    autograd::check_operands(op.name(), inputs)?;
    let function = OnTape(op);
    let recording = Recording::begin(&function, inputs, operands);
    let outputs = execute(&function.0, operands, &[])?;
    if let Some(recording) = recording {
        recording.finish(function, &outputs);
    }
    Ok(outputs)
}

/// Runs an operation whose first result goes into the memory that `dst` has; the rest are new and
/// live on as saved values.
pub(crate) fn apply_into<O: Op>(op: O, inputs: &[&Tensor], dst: &Tensor) -> Result<()> {
    apply_into_on(op, inputs, inputs, dst)
}

/// [`apply_into`] on operands that stand for inputs, as for [`apply_all_on`].
pub(crate) fn apply_into_on<O: Op>(
    op: O,
    inputs: &[&Tensor],
    operands: &[&Tensor],
    dst: &Tensor,
) -> Result<()> {
    autograd::check_destination(op.name(), inputs, dst)?;
    let function = OnTape(op);
    let recording = Recording::begin(&function, inputs, operands);
    let mut outputs = execute(&function.0, operands, &[Dest::Into(dst.clone(), Mode::Replace)])?;
    outputs[0] = dst.clone();
    autograd::wrote_into(function, recording, dst, &outputs);
    Ok(())
}

/// Runs `dst += op(inputs)`, outside the tape.
pub(crate) fn accumulate_into<O: Op>(op: O, inputs: &[&Tensor], dst: &Tensor) -> Result<()> {
    autograd::check_in_place(op.name(), dst)?;
    execute(&op, inputs, &[Dest::Into(dst.clone(), Mode::Accumulate)])?;
    Ok(())
}

/// The way of every operation: checks, layouts, destinations, the door. Not part of the tape.
///
/// `dests` may be shorter than the results; the rest are new.
pub(crate) fn execute<O: Op>(
    op: &O,
    inputs: &[&Tensor],
    dests: &[Dest],
) -> Result<SmallVec<[Tensor; RESULTS]>> {
    let name = op.name();
    let dest_tensors = dests.iter().filter_map(|d| match d {
        Dest::Into(t, _) => Some(t),
        Dest::New => None,
    });
    let everything: SmallVec<[&Tensor; OPERANDS + RESULTS]> =
        inputs.iter().copied().chain(dest_tensors).collect();
    check_devices(name, &everything)?;
    let device = everything.first().ok_or_else(|| Error::internal(name, "no operand"))?.device().clone();
    let specs = op.infer(inputs)?;

    let mut reads: SmallVec<[Tensor; OPERANDS]> = SmallVec::new();
    for (i, t) in inputs.iter().enumerate() {
        reads.push(if op.input_needs(i).fits(t.layout()) { t.untracked() } else { t.untracked().copy()? });
    }

    // What the kernel writes, how, and where that must still be brought.
    let mut writes: SmallVec<[(Tensor, Mode); RESULTS]> = SmallVec::new();
    let mut staged: SmallVec<[(usize, &Tensor, Mode); RESULTS]> = SmallVec::new();
    for (o, spec) in specs.iter().enumerate() {
        let fresh = || Tensor::empty(name, &spec.shape, spec.dtype, &device);
        match dests.get(o).unwrap_or(&Dest::New) {
            Dest::New => writes.push((fresh()?, Mode::Replace)),
            Dest::Into(dst, mode) => {
                check_dest(op, o, spec, inputs, dst)?;
                let fits =
                    op.output_needs(o).fits(dst.layout()) && writes.iter().all(|(w, _)| spans_apart(w, dst));
                let adds = *mode == Mode::Accumulate && op.accumulates(o);
                if fits && (*mode == Mode::Replace || adds) {
                    // An operand that interleaves with the destination is read from a copy.
                    for read in &mut reads {
                        if !spans_apart(read, dst) && read.layout() != dst.layout() {
                            *read = read.copy()?;
                        }
                    }
                    writes.push((dst.untracked(), *mode));
                } else if adds {
                    // The kernel adds to a copy, so that the sum is rounded as often as where the layout fits.
                    writes.push((dst.untracked().copy()?, Mode::Accumulate));
                    staged.push((o, dst, Mode::Replace));
                } else {
                    writes.push((fresh()?, Mode::Replace));
                    staged.push((o, dst, *mode));
                }
            }
        }
    }

    {
        let read_operands: SmallVec<[Operand<'_>; OPERANDS]> = reads.iter().map(Tensor::operand).collect();
        let write_operands: SmallVec<[(Operand<'_>, Mode); RESULTS]> =
            writes.iter().map(|(t, mode)| (t.operand(), *mode)).collect();
        let mut launch =
            Launch { op: name, kernel: op, reads: &read_operands, writes: &write_operands, workspace: None };
        let workspace = device.workspace_bytes(&launch)?;
        let room = (workspace > 0).then(|| device.workspace(name, workspace)).transpose()?;
        let bytes = Layout::contiguous(Shape::from([workspace]));
        launch.workspace = room.as_ref().map(|storage| Operand { storage, layout: &bytes, dtype: DType::U8 });
        device.launch(&launch)?;
    }
    for (o, dst, mode) in staged {
        let dst = dst.untracked();
        match mode {
            Mode::Replace => dst.copy_from(&writes[o].0)?,
            Mode::Accumulate => dst.add_assign(&writes[o].0)?,
        }
    }
    Ok(writes.into_iter().map(|(t, _)| t).collect())
}

fn spans_apart(a: &Tensor, b: &Tensor) -> bool {
    let (x, y) = (a.operand().byte_range(), b.operand().byte_range());
    !a.shares_storage(b) || x.is_empty() || y.is_empty() || x.end <= y.start || y.end <= x.start
}

/// A destination has the result's shape and dtype, holds each element once, and shares no element
/// with an operand unless the operation allows to work in place.
fn check_dest<O: Op>(op: &O, o: usize, spec: &Spec, inputs: &[&Tensor], dst: &Tensor) -> Result<()> {
    let name = op.name();
    if dst.shape() != &spec.shape {
        return Err(Error::shapes(
            name,
            dst.shape(),
            &spec.shape,
            format!("the destination must have the result's shape, {}", spec.shape),
        ));
    }
    dst.require_dtype(name, spec.dtype)?;
    if dst.layout().repeats_memory() {
        return Err(Error::Aliased {
            op: name,
            message: format!(
                "the destination of shape {} repeats memory (a broadcast view), so elements would overwrite each other; use a tensor with memory of its own",
                dst.shape()
            ),
        });
    }
    for (i, input) in inputs.iter().enumerate() {
        let same_view = input.layout() == dst.layout() && input.dtype() == dst.dtype();
        let allowed = !input.shares_storage(dst)
            || (same_view && op.in_place(o, i))
            || (input.dtype() == dst.dtype() && input.layout().is_disjoint(dst.layout()))
            || spans_apart(input, dst);
        if !allowed {
            return Err(Error::Aliased {
                op: name,
                message: format!(
                    "the destination shares memory with operand {i}, which would be overwritten while it is still being read; {}",
                    if op.in_place(o, i) {
                        "only the very same view may be both"
                    } else {
                        "use another destination"
                    }
                ),
            });
        }
    }
    Ok(())
}

/// Both operands have one dtype.
pub(crate) fn check_dtypes(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dtype() != b.dtype() {
        return Err(Error::DTypeMismatch { op, lhs: a.dtype(), rhs: b.dtype() });
    }
    Ok(())
}
