//! How far vectors and distributions are apart, as compositions.

use crate::error::{Error, Result};
use crate::operation::custom_op;
use crate::tensor::{Shape, Tensor, check_dtypes};

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
        const OP: &str = "kl_div";
        self.require_float(OP)?;
        check_dtypes(OP, self, p)?;
        if self.shape() != p.shape() || self.rank() == 0 {
            let hint = "both must have one shape, with at least one axis";
            return Err(Error::shapes(OP, self.shape(), p.shape(), hint));
        }
        let rows = self.dims()[0] as f64;
        let (dtype, wide) = (self.dtype(), self.dtype().accumulator());
        let (log_q, p) = (self.to_dtype(wide)?, p.to_dtype(wide)?);
        let results = custom_op(
            OP,
            &[&log_q, &p],
            |t| {
                let (log_q, p) = (&t[0], &t[1]);
                let nothing = p.eq_scalar(0.0)?;
                let terms = p.mul(&p.log()?.sub(log_q)?)?.masked_fill(&nothing, 0.0)?;
                Ok((vec![terms.sum(())?.div_scalar(rows)?], vec![log_q.clone(), p.clone()]))
            },
            move |gradients, saved| {
                let (log_q, p, d) = (&saved[0], &saved[1], gradients[0].div_scalar(rows)?);
                let by_p = p.log()?.sub(log_q)?.add_scalar(1.0)?.mul(&d)?;
                Ok(vec![Some(p.neg()?.mul(&d)?), Some(by_p)])
            },
        )?;
        results.into_iter().next().ok_or_else(|| Error::internal(OP, "no result"))?.to_dtype(dtype)
    }
}
