//! Scaled dot-product attention as one operation. The scores never leave the cache.

mod cuda;
mod fragments;
mod host;
#[cfg(test)]
mod tests;

use smallvec::smallvec;

use super::{Needs, Op, Spec, Specs, apply_all, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::precision::precision;
use crate::tensor::{DType, Layout, Shape, Tensor};
use crate::types::Precision;

/// `softmax(scale q k^T) v` for each sequence and head. The operands are `[batch, tokens, heads, dim]`, as
/// projections leave them, or one packed `[batch, tokens, 3, heads, dim]`. Two more results hold, for each row of
/// scores, the maximum and 1 / the sum of `e^(score - maximum)`. The backward pass recomputes the scores with them.
#[derive(Clone, Copy, Debug)]
struct Attention {
    scale: f64,
    causal: bool,
    packed: bool,
    precision: Precision,
}

impl Attention {
    /// The number of operands: 3, or 1 if packed.
    fn operands(&self) -> usize {
        if self.packed { 1 } else { 3 }
    }

    /// The layouts of queries, keys and values, or of their gradients, in these operands.
    fn layouts<'a>(&self, of: impl Fn(usize) -> &'a Layout) -> [Layout; 3] {
        [0, 1, 2].map(|i| if self.packed { of(0).narrow(2, i, 1).squeeze(2) } else { of(i).clone() })
    }

    /// Multiplications and additions of the product of the queries with all keys.
    fn product(&self, reads: &[&Shape]) -> u64 {
        let q = reads[0];
        let keys = reads[self.operands() - 1][1];
        2 * (q.numel() / if self.packed { 3 } else { 1 } * keys) as u64
    }
}

impl Op for Attention {
    const NAME: &'static str = "scaled_dot_product_attention";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let q = x[0];
        let sums = if q.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let rank = q.rank();
        let (batch, queries, heads, dim) = (q.dims()[0], q.dims()[1], q.dims()[rank - 2], q.dims()[rank - 1]);
        let of_rows = Spec::new([batch, heads, queries], sums);
        Ok(smallvec![Spec::new([batch, queries, heads, dim], q.dtype()), of_rows.clone(), of_rows])
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self, args)
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        2 * self.product(reads)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::InnerContiguous
    }

    fn saves(&self, _: &[bool]) -> Saves {
        (0..self.operands()).fold(Saves::default().output(1).output(2), Saves::input)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let Some(grad) = g.grad_of(0).cloned() else { return Ok(()) };
        let (largest, inverse) = (g.output(1)?, g.output(2)?);
        if self.packed {
            let qkv = g.input(0)?;
            return g.emit(&[0], AttentionBackward(*self), &[&qkv, &grad, &largest, &inverse]);
        }
        let [q, k, v] = [g.input(0)?, g.input(1)?, g.input(2)?];
        g.emit(&[0, 1, 2], AttentionBackward(*self), &[&q, &k, &v, &grad, &largest, &inverse])
    }
}

/// The gradients of queries, keys and values, packed in the same way. Operands: queries, keys and values, the
/// gradient of the output, and what the forward pass saved.
#[derive(Clone, Debug)]
struct AttentionBackward(Attention);

impl Op for AttentionBackward {
    const NAME: &'static str = "scaled_dot_product_attention_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(x[..self.0.operands()].iter().map(|t| Spec::like(t)).collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(&self.0, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(&self.0, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::backward_workspace(&self.0, launch))
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        5 * self.0.product(reads)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::InnerContiguous
    }
}

impl Tensor {
    /// Attention: `softmax(scale q k^T) v`, with this tensor as the queries (Vaswani et al., 2017).
    ///
    /// Queries are `[batch, heads, n, dim]`, keys and values `[batch, heads, m, dim]`; all three may lack `heads`.
    /// The result has the shape of the queries. If `scale` is `None`, it is `1 / sqrt(dim)`. With `causal`, query `i`
    /// sees only the keys `0..=i`. The operands are floats of one dtype; f16 and bf16 are computed in f32. Under
    /// [`Precision::Bf16`](crate::Precision::Bf16) f32 operands are first cast to bf16.
    ///
    /// # Accuracy in 16 bits
    /// On a GPU the softmax weights `p` are rounded to the dtype before they are multiplied with the values, because
    /// tensor cores multiply 16-bit numbers. Other implementations do the same. The error of an element is at most
    ///
    /// - `2^-8 sum(p |v|)` in bf16,
    /// - `2^-11 sum(p |v|) + 2^-25 sum |v|` in f16, where the second part is for weights that are subnormal in f16,
    ///
    /// plus the rounding errors of f32 scores and sums, and the rounding of the result. If values cancel, so that
    /// `sum(p v)` is much smaller than `sum(p |v|)`, this can be some percent of the element. The CPU and the
    /// simulated GPUs keep the weights in f32.
    ///
    /// In memory the result is laid out as `[batch, n, heads, dim]`, so merging the heads of its transpose moves no
    /// data.
    pub fn scaled_dot_product_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        scale: Option<f64>,
        causal: bool,
    ) -> Result<Tensor> {
        const OP: &str = Attention::NAME;
        self.require_float(OP)?;
        let dtype = precision().result(self.dtype());
        for other in [key, value] {
            if precision().result(other.dtype()) != dtype {
                check_dtypes(OP, self, other)?;
            }
        }
        if [self, key, value].iter().any(|t| t.dtype() != dtype) {
            let (q, k, v) = (self.to_dtype(dtype)?, key.to_dtype(dtype)?, value.to_dtype(dtype)?);
            return q.scaled_dot_product_attention(&k, &v, scale, causal);
        }
        if key.shape() != value.shape() {
            return Err(Error::shapes(
                OP,
                key.shape(),
                value.shape(),
                "keys and values must have the same shape",
            ));
        }
        let r = self.rank();
        let fits = (r == 3 || r == 4)
            && key.rank() == r
            && (0..r).all(|i| i == r - 2 || self.dims()[i] == key.dims()[i]);
        if !fits {
            let hint = "queries must be [batch, heads, n, dim], keys and values [batch, heads, m, dim] (heads may be absent)";
            return Err(Error::shapes(OP, self.shape(), key.shape(), hint));
        }
        if key.dims()[r - 2] == 0 && self.numel() > 0 {
            return Err(Error::invalid(OP, "there are no keys to attend to; pass at least one"));
        }
        let scale = scale.unwrap_or(1.0 / (self.dims()[r - 1] as f64).sqrt());
        let tokens_first = |t: &Tensor| if r == 4 { t.transpose(1, 2) } else { t.unsqueeze(2) };
        let (q, k, v) = (tokens_first(self)?, tokens_first(key)?, tokens_first(value)?);
        let op = Attention { scale, causal, packed: false, precision: precision() };
        let out = apply_all(op, &[&q, &k, &v])?;
        let out = out.first().ok_or_else(|| Error::internal(OP, "no result"))?;
        if r == 4 { out.transpose(1, 2) } else { out.squeeze(2) }
    }

    /// [`Tensor::scaled_dot_product_attention`] into the memory of `dst`.
    pub fn scaled_dot_product_attention_into(
        &self,
        key: &Tensor,
        value: &Tensor,
        scale: Option<f64>,
        causal: bool,
        dst: &Tensor,
    ) -> Result<()> {
        dst.copy_from(&self.scaled_dot_product_attention(key, value, scale, causal)?)
    }

    /// Self-attention of queries, keys and values that are packed in this tensor, as one projection leaves them:
    /// computes `softmax(scale q k^T) v` from `[batch, tokens, 3, heads, dim]`. The result is `[batch, tokens, heads,
    /// dim]`.
    ///
    /// If `scale` is `None`, it is `1 / sqrt(dim)`. With `causal`, token `i` sees only the tokens `0..=i`. Dtypes and
    /// arithmetic are those of [`Tensor::scaled_dot_product_attention`].
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// // One sequence of one token: it attends to itself, and its value is the result.
    /// let qkv = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 1, 3, 1, 2], &Device::cpu())?;
    /// let o = qkv.scaled_dot_product_attention_qkvpacked(None, false)?;
    /// assert_eq!(o.dims(), [1, 1, 1, 2]);
    /// assert_eq!(o.to_vec::<f32>()?, [5.0, 6.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the tensor has another shape, or its dtype is not floating-point.
    pub fn scaled_dot_product_attention_qkvpacked(&self, scale: Option<f64>, causal: bool) -> Result<Tensor> {
        const OP: &str = "scaled_dot_product_attention_qkvpacked";
        self.require_float(OP)?;
        let &[_, _, 3, _, dim] = self.dims() else {
            let message = format!("the shape is {}; it must be [batch, tokens, 3, heads, dim]", self.shape());
            return Err(Error::invalid(OP, message));
        };
        let dtype = precision().result(self.dtype());
        if self.dtype() != dtype {
            return self.to_dtype(dtype)?.scaled_dot_product_attention_qkvpacked(scale, causal);
        }
        let scale = scale.unwrap_or(1.0 / (dim as f64).sqrt());
        let out = apply_all(Attention { scale, causal, packed: true, precision: precision() }, &[self])?;
        out.first().cloned().ok_or_else(|| Error::internal(OP, "no result"))
    }

    /// [`Tensor::scaled_dot_product_attention_qkvpacked`] into the memory of `dst`.
    ///
    /// # Errors
    /// The same, and if `dst` does not match the result.
    pub fn scaled_dot_product_attention_qkvpacked_into(
        &self,
        scale: Option<f64>,
        causal: bool,
        dst: &Tensor,
    ) -> Result<()> {
        dst.copy_from(&self.scaled_dot_product_attention_qkvpacked(scale, causal)?)
    }
}
