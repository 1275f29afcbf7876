//! What an operation is, and the way of every operation: [`apply`] gives it a new result, [`apply_into`] an existing
//! one; both go through [`execute`] to the door. The operations themselves are in `ops/`.

mod apply;
pub mod custom;
mod execute;
mod gradients;

use std::fmt;

use smallvec::{SmallVec, smallvec};

pub use custom::custom_op;

pub(crate) use apply::{
    accumulate_into, apply, apply_all, apply_all_on, apply_into, apply_into_on, apply_on, apply_once, two,
};
pub(crate) use execute::{Dest, execute, runs_on_host, spans_apart};

use crate::autograd::{Differentiable, Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{Communicator, CudaArgs, HostArgs, Kernel, Launch, RESULTS};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::cuda::Rows;
use crate::tensor::{DType, Layout, Shape, Tensor};

/// The shape and dtype of an operand or a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// Its shape.
    pub shape: Shape,
    /// Its dtype.
    pub dtype: DType,
}

/// The results of an operation.
pub(crate) type Specs = SmallVec<[Spec; RESULTS]>;

impl Spec {
    /// Makes one from both.
    pub fn new(shape: impl Into<Shape>, dtype: DType) -> Spec {
        Spec { shape: shape.into(), dtype }
    }

    /// The shape and dtype of `t`.
    pub(crate) fn like(t: &Tensor) -> Spec {
        Spec::new(t.shape(), t.dtype())
    }

    /// The results of an operation that has only this one.
    pub(crate) fn one(self) -> Specs {
        smallvec![self]
    }
}

/// The layout that a kernel needs for an operand. An operand with another layout is first copied (a result is copied
/// afterwards), on the same device and in the same dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Any strides.
    Any,
    /// Elements along the last axis are adjacent in memory.
    InnerContiguous,
    /// Row-major without gaps.
    Contiguous,
    /// Row-major without gaps, or rows that a reduction of this extent takes where they lie.
    Rows(Extent),
    /// The same for a reduction of all elements to one.
    AllRows,
}

impl Needs {
    pub(super) fn fits(self, layout: &Layout) -> bool {
        match self {
            Needs::Any => true,
            Needs::InnerContiguous => layout.is_inner_contiguous(),
            Needs::Contiguous => layout.is_contiguous(),
            Needs::Rows(extent) => layout.is_contiguous() || Rows::of(extent, &[layout]).is_some(),
            Needs::AllRows => Needs::Rows(Extent::all(layout.numel())).fits(layout),
        }
    }
}

/// An operation. Its `Debug` text must contain all its parameters, because recordings are compared by that text.
pub(crate) trait Op: Clone + fmt::Debug + Send + Sync + 'static {
    /// The name for errors and traces.
    const NAME: &'static str;

    /// The name of this value, if one struct stands for several operations.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Checks the operands and returns the shapes and dtypes of the results.
    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs>;

    /// The kernel on the CPU.
    fn host(&self, args: &mut HostArgs<'_>) -> Result<()>;

    /// The kernels on CUDA.
    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()>;

    /// Whether a kernel can fail because of the values of the operands, which `infer` can't see. True for kernels
    /// that check indices or a counter.
    fn can_fail(&self) -> bool {
        false
    }

    /// Whether the kernel on the CPU always runs on threads that run nothing but kernels.
    fn needs_kernel_threads(&self) -> bool {
        false
    }

    /// Whether the kernel on the CPU takes hardly longer than to read and to write memory.
    fn streams(&self) -> bool {
        false
    }

    /// Workspace bytes that the CUDA kernels need.
    fn cuda_workspace(&self, _launch: &Launch<'_>, _gpu: &dyn Gpu) -> Result<usize> {
        Ok(0)
    }

    /// The multiplications and additions of the matrix products in the operation, from the shapes of operands and
    /// results. 0 if it has none.
    fn flops(&self, _reads: &[&Shape], _writes: &[&Shape]) -> u64 {
        0
    }

    /// The communicator of a collective.
    fn communicator(&self) -> Option<&Communicator> {
        None
    }

    /// [`Kernel::words_before`], for an operation that draws random numbers.
    fn words_before(&self) -> u64 {
        0
    }

    /// The layout that the kernel needs for input `i`.
    fn input_needs(&self, _i: usize) -> Needs {
        if self.keeps_strides() { Needs::Any } else { Needs::Contiguous }
    }

    /// The layout that the kernel on the CPU needs for input `i`, if it takes more layouts than those on CUDA.
    fn host_input_needs(&self, i: usize) -> Needs {
        self.input_needs(i)
    }

    /// The layout that the kernel needs for output `o`.
    fn output_needs(&self, _o: usize) -> Needs {
        if self.keeps_strides() { Needs::Any } else { Needs::Contiguous }
    }

    /// Whether new results have the strides of the inputs on the CPU, if those of all inputs are the same, and have their channels last
    /// on a GPU if those of the inputs are. For elementwise operations, which then read and write memory in its order, and take any layout.
    fn keeps_strides(&self) -> bool {
        false
    }

    /// Whether an element of a result depends on this element of each input alone, so that axes may be in any order.
    fn is_elementwise(&self) -> bool {
        self.keeps_strides()
    }

    /// Whether output `o` may be the memory of input `i` (with the same layout). The kernel then gets one slice for
    /// both.
    fn in_place(&self, _o: usize, _i: usize) -> bool {
        false
    }

    /// Whether the kernel can add to output `o` instead of replacing it.
    fn accumulates(&self, _o: usize) -> bool {
        false
    }

    /// Which values the backward pass needs.
    fn saves(&self, _needs: &[bool]) -> Saves {
        Saves::default()
    }

    /// Computes the gradients of the operands from the gradients of the results.
    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let _ = g;
        Err(Error::Autograd {
            op: self.name(),
            message: "this operation has no gradient; detach its operands or run it inside no_grad"
                .to_string(),
        })
    }
}

/// Makes every operation a kernel that the door can launch.
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

    fn needs_kernel_threads(&self) -> bool {
        Op::needs_kernel_threads(self)
    }

    fn streams(&self) -> bool {
        Op::streams(self)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        Op::cuda_workspace(self, launch, gpu)
    }

    fn flops(&self, reads: &[&Shape], writes: &[&Shape]) -> u64 {
        Op::flops(self, reads, writes)
    }

    fn communicator(&self) -> Option<&Communicator> {
        Op::communicator(self)
    }

    fn boxed(&self) -> Box<dyn Kernel> {
        Box::new(self.clone())
    }

    fn parameters(&self) -> String {
        format!("{self:?}")
    }

    fn words_before(&self) -> u64 {
        Op::words_before(self)
    }
}

/// An operation behind a pointer, so that its way to the door is compiled once and not for each operation.
pub(crate) trait DynOp: Kernel {
    fn name(&self) -> &'static str;
    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs>;
    fn input_needs(&self, i: usize) -> Needs;
    fn host_input_needs(&self, i: usize) -> Needs;
    fn output_needs(&self, o: usize) -> Needs;
    fn keeps_strides(&self) -> bool;
    fn is_elementwise(&self) -> bool;
    fn in_place(&self, o: usize, i: usize) -> bool;
    fn accumulates(&self, o: usize) -> bool;
}

impl<O: Op> DynOp for O {
    fn name(&self) -> &'static str {
        Op::name(self)
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        Op::infer(self, inputs)
    }

    fn input_needs(&self, i: usize) -> Needs {
        Op::input_needs(self, i)
    }

    fn host_input_needs(&self, i: usize) -> Needs {
        Op::host_input_needs(self, i)
    }

    fn output_needs(&self, o: usize) -> Needs {
        Op::output_needs(self, o)
    }

    fn keeps_strides(&self) -> bool {
        Op::keeps_strides(self)
    }

    fn is_elementwise(&self) -> bool {
        Op::is_elementwise(self)
    }

    fn in_place(&self, o: usize, i: usize) -> bool {
        Op::in_place(self, o, i)
    }

    fn accumulates(&self, o: usize) -> bool {
        Op::accumulates(self, o)
    }
}

/// An operation as an entry of the tape.
pub(crate) struct OnTape<O>(pub(crate) O);

impl<O: Op> Differentiable for OnTape<O> {
    fn name(&self) -> &'static str {
        Op::name(&self.0)
    }

    fn saves(&self, needs: &[bool]) -> Saves {
        self.0.saves(needs)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        self.0.backward(g)
    }
}
