//! Replaces the elements under a mask by a number.

use super::{WhereBackward, cuda};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::numeric::{Number, nearest};
use crate::device::cpu::simd::simd;
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::kernels::elementwise::{self, NumberTile};
use crate::operation::{Needs, Op, Spec, Specs, apply, apply_into};
use crate::tensor::{DType, Shape, Tensor};

/// The value where the mask is nonzero, otherwise the operand. Operands: the mask and the operand, of one shape.
#[derive(Clone, Debug)]
struct MaskedFill {
    value: f64,
}

impl MaskedFill {
    /// The value, rounded once to the dtype. For bool, 0 or 1.
    fn value_as(&self, dtype: DType) -> f64 {
        if dtype == DType::Bool { f64::from(u8::from(self.value != 0.0)) } else { nearest(dtype, self.value) }
    }
}

/// [`MaskedFill`] with the value in the dtype of the operand.
struct Filled(f64);

impl NumberTile for Filled {
    fn tile<N: Number>(&self, x: &[&[N]], y: &mut [N]) {
        let (mask, x, value) = (x[0], x[1], N::from_f64(self.0));
        simd(
            #[inline(always)]
            || {
                for ((y, &m), &x) in y.iter_mut().zip(mask).zip(x) {
                    *y = if m != N::ZERO { value } else { x };
                }
            },
        );
    }
}

impl Op for MaskedFill {
    const NAME: &'static str = "masked_fill";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        require_mask(x[0])?;
        let dtype = x[1].dtype();
        if !dtype.is_float() && self.value.fract() != 0.0 {
            let message =
                format!("the value is {} for a tensor of dtype {dtype}; use a whole number", self.value);
            return Err(Error::invalid(Self::NAME, message));
        }
        dtype.require_in_range(Self::NAME, self.value)?;
        Ok(Spec::like(x[1]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let dtype = args.write_dtype(0);
        elementwise::number(args, dtype, &Filled(self.value_as(dtype)))
    }

    fn streams(&self) -> bool {
        true
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::masked_fill(self.value_as(args.write_dtype(0)), args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn in_place(&self, _: usize, _: usize) -> bool {
        true
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (grad, mask) = (g.grad()?.clone(), g.input(0)?);
        g.emit(&[1], WhereBackward { chosen: false }, &[&mask, &grad])
    }
}

fn require_mask(mask: &Tensor) -> Result<()> {
    match mask.dtype() {
        DType::Bool | DType::U8 => Ok(()),
        lhs => {
            let hint = "the mask must be bool or u8; compare it, for example with ne_scalar(0.0)".to_string();
            Err(Error::DTypeMismatch { op: MaskedFill::NAME, lhs, rhs: DType::Bool, hint })
        }
    }
}

/// The mask and the operand as views of their broadcast shape.
fn broadcast(x: &Tensor, mask: &Tensor) -> Result<[Tensor; 2]> {
    let shape = Shape::broadcast(MaskedFill::NAME, x.shape(), mask.shape())?;
    Ok([mask.broadcast_to(&shape)?, x.broadcast_to(&shape)?])
}

impl Tensor {
    /// `value` where the mask is true or nonzero, otherwise this tensor. The mask is bool or u8, and both broadcast as in
    /// NumPy. For every dtype; the value is rounded to it. Elements that are replaced get no gradient.
    ///
    /// # Errors
    /// If the mask has another dtype, or shapes do not match. For integers also if the value is not a whole number in the
    /// range of the dtype.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &Device::cpu())?;
    /// let hidden = x.masked_fill(&x.gt_scalar(1.5)?, f64::NEG_INFINITY)?;
    /// assert_eq!(hidden.to_vec::<f32>()?, [1.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn masked_fill(&self, mask: &Tensor, value: f64) -> Result<Tensor> {
        let [mask, x] = broadcast(self, mask)?;
        apply(MaskedFill { value }, &[&mask, &x])
    }

    /// [`Tensor::masked_fill`] into the memory of `dst` (which may be this tensor).
    pub fn masked_fill_into(&self, mask: &Tensor, value: f64, dst: &Tensor) -> Result<()> {
        let [mask, x] = broadcast(self, mask)?;
        apply_into(MaskedFill { value }, &[&mask, &x], dst)
    }
}
