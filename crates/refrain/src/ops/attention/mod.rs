//! Scaled dot-product attention as one operation: the scores never leave the cache.

mod cuda;
mod fragments;
mod host;
#[cfg(test)]
mod tests;

use smallvec::smallvec;

use super::{Needs, Op, Spec, Specs, apply_all, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, Device, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::precision::{Precision, precision};
use crate::tensor::{DType, Shape, Tensor};

/// `softmax(scale q k^T) v` for each sequence and head. Operands are `[batch, tokens, heads, dim]`, as
/// projections leave them; a second result keeps the log-sum-exp of each row of scores for the
/// backward pass, which computes the scores again.
#[derive(Clone, Copy, Debug)]
struct Attention {
    scale: f64,
    causal: bool,
    precision: Precision,
}

/// Multiplications and additions of queries with all keys.
fn product(qkv: &[&Shape]) -> u64 {
    2 * (qkv[0].numel() * qkv[1][1]) as u64
}

impl Op for Attention {
    const NAME: &'static str = "scaled_dot_product_attention";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let (q, k) = (x[0], x[1]);
        let sums = if q.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
        let sizes = [q.dims()[0], q.dims()[2], q.dims()[1]];
        debug_assert_eq!(k.dims(), x[2].dims());
        Ok(smallvec![Spec::like(q), Spec::new(sizes, sums)])
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self.scale, self.causal, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self, args)
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        2 * product(reads)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::InnerContiguous
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0).input(1).input(2).output(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let Some(grad) = g.grad_of(0).cloned() else { return Ok(()) };
        let saved = [g.input(0)?, g.input(1)?, g.input(2)?, g.output(1)?];
        let [q, k, v, sums] = &saved;
        g.emit(&[0, 1, 2], AttentionBackward(*self), &[q, k, v, &grad, sums])
    }
}

/// The gradients by queries, keys and values; of operands `q, k, v, do` and the log-sum-exps.
#[derive(Clone, Debug)]
struct AttentionBackward(Attention);

impl Op for AttentionBackward {
    const NAME: &'static str = "scaled_dot_product_attention_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(x[..3].iter().map(|t| Spec::like(t)).collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.0.scale, self.0.causal, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(&self.0, args)
    }

    fn workspace(&self, launch: &Launch<'_>, _: &Device) -> Result<usize> {
        Ok(cuda::backward_workspace(&self.0, launch))
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        5 * product(reads)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::InnerContiguous
    }
}

impl Tensor {
    /// Attention: `softmax(scale q k^T) v`, with this tensor as the queries (Vaswani et al., 2017).
    ///
    /// Queries are `[batch, heads, n, dim]`, keys and values `[batch, heads, m, dim]`; or all without
    /// `heads`. The result has the queries' shape. `scale` is `1 / sqrt(dim)` if not given; with
    /// `causal`, query `i` sees keys `0..=i` only. For floats of one dtype; f16 and bf16 compute in f32. Under
    /// [`Precision::Bf16`](crate::Precision::Bf16) operands of f32 are cast to bf16 first.
    ///
    /// In memory the result lies as `[batch, n, heads, dim]`, so that merging the heads of its
    /// transpose moves no data.
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
            return Err(Error::shapes(OP, key.shape(), value.shape(), "keys and values have one shape"));
        }
        let r = self.rank();
        let fits = (r == 3 || r == 4)
            && key.rank() == r
            && (0..r).all(|i| i == r - 2 || self.dims()[i] == key.dims()[i]);
        if !fits {
            let hint = "queries are [batch, heads, n, dim], keys and values [batch, heads, m, dim] (heads may be absent)";
            return Err(Error::shapes(OP, self.shape(), key.shape(), hint));
        }
        if key.dims()[r - 2] == 0 && self.numel() > 0 {
            return Err(Error::invalid(OP, "there are no keys to attend to; pass at least one"));
        }
        let scale = scale.unwrap_or(1.0 / (self.dims()[r - 1] as f64).sqrt());
        let tokens_first = |t: &Tensor| if r == 4 { t.transpose(1, 2) } else { t.unsqueeze(2) };
        let (q, k, v) = (tokens_first(self)?, tokens_first(key)?, tokens_first(value)?);
        let out = apply_all(Attention { scale, causal, precision: precision() }, &[&q, &k, &v])?;
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
}
