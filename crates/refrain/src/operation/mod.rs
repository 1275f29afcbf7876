//! What an operation is, and the way of every operation: [`apply`] gives it a new result, [`apply_into`] an existing
//! one; both go through [`execute`] to the door. The operations themselves are in `ops/`.

mod apply;
mod execute;
mod gradients;

use std::fmt;

use smallvec::{SmallVec, smallvec};

pub(crate) use apply::{accumulate_into, apply, apply_all, apply_all_on, apply_into, apply_into_on};
pub(crate) use execute::{Dest, execute, spans_apart};

use crate::autograd::{Differentiable, Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Kernel, Launch, RESULTS};
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
    pub(super) fn fits(self, layout: &Layout) -> bool {
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
pub(crate) struct OnTape<O>(pub(crate) O);

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
