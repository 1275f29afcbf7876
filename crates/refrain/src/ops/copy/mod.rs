//! Copies and casts.

pub(crate) mod cuda;

use super::{Needs, Op, Spec, Specs, apply, apply_into};
use crate::autograd::Gradients;
use crate::device::cpu::numeric::Number;
use crate::device::cpu::simd::simd;
use crate::device::{CudaArgs, HostArgs, Launch, Mode};
use crate::error::Result;
use crate::kernels::elementwise::{self, TruthTile};
use crate::tensor::{DType, Tensor};

/// Copies values to other memory, or adds them there. The field is the name of the public method.
#[derive(Clone, Debug)]
pub(crate) struct Copy(pub(crate) &'static str);

/// Copies the values of a tensor to a tensor of the same shape, dtype and device in another storage. It bypasses the
/// tape and uses no heap memory.
pub(crate) fn copy_values(from: &Tensor, to: &Tensor) -> Result<()> {
    let kernel = Copy("copy_from");
    let (reads, writes) = ([from.operand()], [(to.operand(), Mode::Replace)]);
    to.device().launch(&Launch {
        op: kernel.0,
        kernel: &kernel,
        reads: &reads,
        writes: &writes,
        workspace: None,
    })
}

/// Converts values to another dtype.
#[derive(Clone, Debug)]
pub(crate) struct Cast(DType);

impl Op for Copy {
    const NAME: &'static str = "copy";

    fn name(&self) -> &'static str {
        self.0
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::copy(args, args.write_dtype(0))
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::copy(args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        g.add(0, grad)
    }
}

/// The arithmetic of a cast: a type that holds every value of the source and rounds only once to the result.
fn between(from: DType, to: DType) -> DType {
    let narrow = matches!(to, DType::F16 | DType::BF16);
    match (from.is_float(), to.is_float()) {
        (false, false) => DType::I64,
        (true, _) if from == DType::F64 || to == DType::F64 => DType::F64,
        (true, _) => DType::F32,
        (false, true) if matches!(from, DType::U8 | DType::Bool) && to != DType::F64 => DType::F32,
        // f64 would round the value a first time.
        (false, true) if from == DType::I64 && narrow => DType::I64,
        (false, true) if to == DType::F64 || narrow => DType::F64,
        (false, true) => DType::F32,
    }
}

/// The cast to bool: whether the value is nonzero.
struct NonZero;

impl TruthTile for NonZero {
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [u8]) {
        simd(
            #[inline(always)]
            || y.iter_mut().zip(x[0]).for_each(|(y, &x)| *y = u8::from(x != N::ZERO)),
        );
    }
}

impl Op for Cast {
    const NAME: &'static str = "to_dtype";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new(x[0].shape(), self.0).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let through = between(args.read_dtype(0), self.0);
        match self.0 {
            DType::Bool => elementwise::truth(args, through, &NonZero),
            _ => elementwise::copy(args, through),
        }
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::cast(self.0, args)
    }

    fn keeps_strides(&self) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let grad = g.grad()?.clone();
        let dtype = g.input_dtype(0);
        g.emit(&[0], Cast(dtype), &[&grad])
    }
}

impl Tensor {
    /// A copy in new memory, row-major.
    pub fn copy(&self) -> Result<Tensor> {
        apply(Copy("copy"), &[self])
    }

    /// This tensor if it is contiguous (row-major without gaps), otherwise a contiguous copy.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// Copies the values of `source` into the memory of this tensor. Both must have the same shape and dtype.
    pub fn copy_from(&self, source: &Tensor) -> Result<()> {
        apply_into(Copy("copy_from"), &[source], self)
    }

    /// Converts the values to another dtype. Returns this tensor if it has that dtype already.
    ///
    /// To a float: rounded to nearest, ties to even. To bool: `x != 0`. From float to integer: truncated towards zero
    /// and clamped to the range of i64; NaN becomes 0. To a narrower integer: the low bits are kept (floats are first
    /// converted to i64). The result is the same on every device. In PyTorch, NaN and out-of-range values depend on
    /// the processor, so CPU and GPU differ.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if self.dtype() == dtype { Ok(self.clone()) } else { apply(Cast(dtype), &[self]) }
    }

    /// [`Tensor::to_dtype`] with the dtype of `dst`, into its memory.
    pub fn to_dtype_into(&self, dst: &Tensor) -> Result<()> {
        apply_into(Cast(dst.dtype()), &[self], dst)
    }
}
