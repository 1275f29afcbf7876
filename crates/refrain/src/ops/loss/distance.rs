//! How far vectors and distributions are apart, as compositions.

use super::Reduction;
use crate::error::{Error, Result};
use crate::operation::custom_op;
use crate::tensor::{DType, Shape, Tensor, check_dtypes};

impl Tensor {
    /// The cosine of the angle between vectors along an axis: `sum(a b) / (max(|a|, eps) max(|b|, eps))`. The axis disappears
    /// from the shape. For floats; shapes broadcast. It is composed of [`Tensor::l2_normalize`], a product and a sum.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or the axis is out of range.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let a = Tensor::from_slice(&[3.0f64, 4.0], [2], &device)?;
    /// let b = Tensor::from_slice(&[2.0f64, 0.0], [2], &device)?;
    /// assert!((a.cosine_similarity(&b, 0, 1e-8)?.to_scalar::<f64>()? - 0.6).abs() < 1e-12);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn cosine_similarity(&self, other: &Tensor, axis: isize, eps: f64) -> Result<Tensor> {
        const OP: &str = "cosine_similarity";
        self.require_float(OP)?;
        check_dtypes(OP, self, other)?;
        let shape = Shape::broadcast(OP, self.shape(), other.shape())?;
        let (a, b) = (self.broadcast_to(&shape)?, other.broadcast_to(&shape)?);
        a.l2_normalize(axis, eps)?.mul(&b.l2_normalize(axis, eps)?)?.sum(axis)
    }

    /// The divergence of Kullback and Leibler from these logarithms of probabilities to probabilities: the sum of `p (ln(p) -
    /// log_q)` over all elements, divided by the size of the first axis (`reduction="batchmean"` in PyTorch). A probability
    /// of 0 adds nothing. For floats of one shape with at least one axis. Both get gradients; that of `p` is infinite at 0.
    ///
    /// # Errors
    /// If shapes or dtypes differ, or there is no axis.
    pub fn kl_div(&self, p: &Tensor) -> Result<Tensor> {
        let (terms, dtype) = divergences(self, p)?;
        let rows = self.dims().first().map_or(1.0, |&rows| rows as f64);
        terms.sum(())?.div_scalar(rows)?.to_dtype(dtype)
    }

    /// [`Tensor::kl_div`] with the terms `p (ln(p) - log_q)` of the elements, their sum, or their mean over all elements
    /// (`reduction="mean"` in PyTorch).
    ///
    /// # Errors
    /// As [`Tensor::kl_div`].
    pub fn kl_div_reduced(&self, p: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let (terms, dtype) = divergences(self, p)?;
        reduction.of(terms)?.to_dtype(dtype)
    }
}

/// The terms of [`Tensor::kl_div`], f64 for f64 and f32 for other floats, and the dtype of the result.
fn divergences(log_q: &Tensor, p: &Tensor) -> Result<(Tensor, DType)> {
    const OP: &str = "kl_div";
    log_q.require_float(OP)?;
    check_dtypes(OP, log_q, p)?;
    if log_q.shape() != p.shape() || log_q.rank() == 0 {
        let hint = "both must have one shape, with at least one axis";
        return Err(Error::shapes(OP, log_q.shape(), p.shape(), hint));
    }
    let (dtype, wide) = (log_q.dtype(), log_q.dtype().accumulator());
    let (log_q, p) = (log_q.to_dtype(wide)?, p.to_dtype(wide)?);
    let results = custom_op(
        OP,
        &[&log_q, &p],
        |t| {
            let (log_q, p) = (&t[0], &t[1]);
            let nothing = p.eq_scalar(0.0)?;
            let terms = p.mul(&p.log()?.sub(log_q)?)?.masked_fill(&nothing, 0.0)?;
            Ok((vec![terms], vec![log_q.clone(), p.clone()]))
        },
        |gradients, saved| {
            let (log_q, p, d) = (&saved[0], &saved[1], &gradients[0]);
            let by_p = p.log()?.sub(log_q)?.add_scalar(1.0)?.mul(d)?;
            Ok(vec![Some(p.neg()?.mul(d)?), Some(by_p)])
        },
    )?;
    let terms = results.into_iter().next().ok_or_else(|| Error::internal(OP, "no result"))?;
    Ok((terms, dtype))
}
