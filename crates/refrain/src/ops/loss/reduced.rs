//! Losses of elements, and their sum: compositions.

use super::Pointwise;
use crate::error::Result;
use crate::operation::{Op, apply};
use crate::tensor::{Tensor, check_devices};

/// What a loss makes of the losses of all elements or rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// They stay as they are.
    None,
}

impl Reduction {
    pub(super) fn of(self, losses: Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean => losses.mean(()),
            Reduction::Sum => losses.sum(()),
            Reduction::None => Ok(losses),
        }
    }
}

impl Pointwise {
    /// The loss with another reduction. The mean takes one pass.
    pub(super) fn reduced(self, x: &Tensor, t: &Tensor, reduction: Reduction) -> Result<Tensor> {
        if reduction == Reduction::Mean {
            return apply(self, &[x, t]);
        }
        check_devices(self.name(), &[x, t])?;
        let dtype = self.check(x, t)?;
        let wide = dtype.accumulator();
        let (x, t) = (x.to_dtype(wide)?, t.to_dtype(wide)?);
        let losses = match self {
            Pointwise::Mse => x.sub(&t)?.square()?,
            Pointwise::L1 => x.sub(&t)?.abs()?,
            Pointwise::Huber { delta } => {
                let a = x.sub(&t)?.abs()?;
                let inside = a.minimum_scalar(delta)?;
                inside.mul(&a.sub(&inside.mul_scalar(0.5)?)?)?
            }
            // -ln(p) is softplus(-x), and -ln(1 - p) is softplus(x).
            Pointwise::Bce => {
                let of_zeros = t.neg()?.add_scalar(1.0)?.mul(&x.softplus()?)?;
                t.mul(&x.neg()?.softplus()?)?.add(&of_zeros)?
            }
        };
        reduction.of(losses)?.to_dtype(dtype)
    }
}
