//! Chooses between two tensors, elementwise.

mod cuda;
mod masked_fill;

use super::{Needs, Op, Spec, Specs, apply, apply_into, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::numeric::Number;
use crate::device::cpu::simd::simd;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::elementwise::{self, NumberTile};
use crate::tensor::{DType, Shape, Tensor};

const NAME: &str = "where_cond";

/// `a` where the condition is nonzero, otherwise `b`. Operands: condition, `a`, `b`, of one shape.
#[derive(Clone, Debug)]
struct Where;

/// The gradient where the condition is (or is not) nonzero, otherwise 0. Operands: condition, `dy`.
#[derive(Clone, Debug)]
struct WhereBackward {
    chosen: bool,
}

impl NumberTile for Where {
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [N]) {
        let (condition, a, b) = (x[0], x[1], x[2]);
        simd(
            #[inline(always)]
            || {
                for (((y, &c), &a), &b) in y.iter_mut().zip(condition).zip(a).zip(b) {
                    *y = if c != N::ZERO { a } else { b };
                }
            },
        );
    }
}

impl NumberTile for WhereBackward {
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [N]) {
        let (condition, dy, chosen) = (x[0], x[1], self.chosen);
        simd(
            #[inline(always)]
            || {
                for ((y, &c), &d) in y.iter_mut().zip(condition).zip(dy) {
                    *y = if (c != N::ZERO) == chosen { d } else { N::ZERO };
                }
            },
        );
    }
}

fn require_condition(op: &'static str, condition: &Tensor) -> Result<()> {
    match condition.dtype() {
        DType::Bool | DType::U8 => Ok(()),
        lhs => {
            let hint = "the condition (the tensor before the dot) must be bool or u8; compare it, for example with ne_scalar(0.0)".to_string();
            Err(Error::DTypeMismatch { op, lhs, rhs: DType::Bool, hint })
        }
    }
}

impl Op for Where {
    const NAME: &'static str = NAME;

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        require_condition(NAME, x[0])?;
        check_dtypes(NAME, x[1], x[2])?;
        Ok(Spec::like(x[1]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::number(args, args.write_dtype(0), self)
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(args)
    }

    fn keeps_strides(&self) -> bool {
        true
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (grad, condition) = (g.grad()?.clone(), g.input(0)?);
        for (i, chosen) in [(1, true), (2, false)] {
            if g.needs(i) {
                g.emit(&[i], WhereBackward { chosen }, &[&condition, &grad])?;
            }
        }
        Ok(())
    }
}

impl Op for WhereBackward {
    const NAME: &'static str = "where_cond_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        require_condition(Self::NAME, x[0])?;
        Ok(Spec::like(x[1]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::number(args, args.write_dtype(0), self)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.chosen, args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

/// The operands as views of their broadcast shape.
fn broadcast(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<[Tensor; 3]> {
    let (a, b) = super::binary::broadcast(NAME, a, b)?;
    let shape = Shape::broadcast(NAME, condition.shape(), a.shape())?;
    Ok([condition.broadcast_to(&shape)?, a.broadcast_to(&shape)?, b.broadcast_to(&shape)?])
}

impl Tensor {
    /// `a` where this tensor (the condition) is true or nonzero, otherwise `b`. The condition is bool or u8. `a` and
    /// `b` have one dtype, any; under [`Precision::Bf16`](crate::Precision::Bf16) f32 and bf16 may be mixed, which gives f32. Shapes
    /// broadcast as in NumPy.
    ///
    /// An element that is not chosen has no influence, even if it is NaN. Its gradient is 0.
    ///
    /// # Errors
    /// If dtypes or shapes do not match.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::from_slice(&[-1.0f32, 2.0], [2], &device)?;
    /// let zero = Tensor::scalar(0.0f32, &device)?;
    /// assert_eq!(x.gt_scalar(0.0)?.where_cond(&x, &zero)?.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn where_cond(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let [condition, a, b] = broadcast(self, a, b)?;
        apply(Where, &[&condition, &a, &b])
    }

    /// [`Tensor::where_cond`] into the memory of `dst` (which may be an operand of the result's shape).
    pub fn where_cond_into(&self, a: &Tensor, b: &Tensor, dst: &Tensor) -> Result<()> {
        let [condition, a, b] = broadcast(self, a, b)?;
        apply_into(Where, &[&condition, &a, &b], dst)
    }
}
