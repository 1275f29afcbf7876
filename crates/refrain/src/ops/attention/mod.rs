//! Scaled dot-product attention as one operation. The scores never leave the cache.

mod cuda;
mod dropout;
mod flash;
mod forms;
mod fragments;
mod host;
mod options;

use smallvec::{SmallVec, smallvec};

use super::{Needs, Op, Spec, Specs};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch, OPERANDS};
use crate::error::Result;
use crate::tensor::{DType, Layout, Shape, Tensor};
use crate::types::Precision;

pub use options::SdpaOptions;

/// `softmax(scale q k^T) v` for each sequence and head. The operands are `[batch, tokens, heads, dim]`, as
/// projections leave them, or one packed `[batch, tokens, 3, heads, dim]`. Two more results hold, for each row of
/// scores, the maximum and 1 / the sum of `e^(score - maximum)`. The backward pass recomputes the scores with them, and
/// also needs the output.
///
/// Behind queries, keys and values come, if used, the scores to add and the softmax weights that dropout keeps. Behind the three
/// results come the scores for the next layer.
#[derive(Clone, Copy, Debug)]
struct Attention {
    scale: f64,
    causal: bool,
    /// Keys ahead of the first query, for the causal mask.
    past: usize,
    packed: bool,
    precision: Precision,
    /// Whether scores are added: a mask, those of the layer before, or the sum of both.
    adds_scores: bool,
    /// Whether the scores are a result.
    returns_scores: bool,
    /// The probability with which dropout drops a softmax weight.
    dropout: Option<f64>,
}

impl Attention {
    /// The number of operands for queries, keys and values: 3, or 1 if packed.
    fn operands(&self) -> usize {
        if self.packed { 1 } else { 3 }
    }

    /// The operand with the scores to add.
    fn before(&self) -> Option<usize> {
        self.adds_scores.then_some(self.operands())
    }

    /// The operand with the weights that dropout keeps.
    fn kept(&self) -> Option<usize> {
        self.dropout.map(|_| self.operands() + usize::from(self.adds_scores))
    }

    /// The result with the scores.
    fn scores(&self) -> Option<usize> {
        self.returns_scores.then_some(3)
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
        let mut specs: Specs =
            smallvec![Spec::new([batch, queries, heads, dim], q.dtype()), of_rows.clone(), of_rows];
        if self.returns_scores {
            let keys = x[self.operands() - 1].dims()[1];
            specs.push(Spec::new([batch, heads, queries, keys], q.dtype()));
        }
        Ok(specs)
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

    fn input_needs(&self, i: usize) -> Needs {
        // Masks repeat memory along the axes that they are broadcast over.
        if i < self.operands() || Some(i) == self.before() {
            Needs::InnerContiguous
        } else {
            Needs::Contiguous
        }
    }

    fn saves(&self, _: &[bool]) -> Saves {
        let inputs = (0..self.operands()).chain(self.before()).chain(self.kept());
        let outputs = [0, 1, 2].into_iter();
        outputs.fold(inputs.fold(Saves::default(), Saves::input), Saves::output)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let d_after = self.scores().and_then(|o| g.grad_of(o).cloned());
        let (out, largest, inverse) = (g.output(0)?, g.output(1)?, g.output(2)?);
        let operands = (0..self.operands()).map(|i| g.input(i)).collect::<Result<SmallVec<[Tensor; 3]>>>()?;
        let grad = match (g.grad_of(0), &d_after) {
            (Some(grad), _) => grad.clone(),
            (None, None) => return Ok(()),
            // Only the scores have a gradient.
            (None, Some(_)) => {
                let (q, rank) = (&operands[0], operands[0].rank());
                let shape = [q.dims()[0], q.dims()[1], q.dims()[rank - 2], q.dims()[rank - 1]];
                Tensor::zeros(shape, q.dtype(), q.device())?
            }
        };
        let before = self.before().map(|i| g.input(i)).transpose()?;
        let kept = self.kept().map(|i| g.input(i)).transpose()?;
        let op = AttentionBackward {
            attention: *self,
            has_d_after: d_after.is_some(),
            needs_d_before: self.before().is_some_and(|i| g.needs(i)),
        };
        let targets: SmallVec<[usize; 4]> =
            (0..self.operands()).chain(self.before().filter(|_| op.needs_d_before)).collect();
        let inputs: SmallVec<[&Tensor; OPERANDS]> = operands
            .iter()
            .chain([&grad, &largest, &inverse, &out])
            .chain(&before)
            .chain(&d_after)
            .chain(&kept)
            .collect();
        g.emit(&targets, op, &inputs)
    }
}

/// The gradients of queries, keys and values, packed in the same way, and of the scores that were added. Operands:
/// queries, keys and values, the gradient of the output, what the forward pass saved of the rows, the output; then, if there
/// are any, the scores that were added, the gradient of the scores that were returned, and the weights that dropout kept.
#[derive(Clone, Copy, Debug)]
struct AttentionBackward {
    attention: Attention,
    /// Whether the scores that were returned have a gradient.
    has_d_after: bool,
    /// Whether the scores that were added need a gradient.
    needs_d_before: bool,
}

impl AttentionBackward {
    /// The operand with the scores that were added.
    fn before(&self) -> Option<usize> {
        self.attention.adds_scores.then_some(self.attention.operands() + 4)
    }

    /// The operand with the gradient of the scores that were returned.
    fn d_after(&self) -> Option<usize> {
        self.has_d_after.then_some(self.attention.operands() + 4 + usize::from(self.attention.adds_scores))
    }

    /// The operand with the weights that dropout kept.
    fn kept(&self) -> Option<usize> {
        let others = usize::from(self.attention.adds_scores) + usize::from(self.has_d_after);
        self.attention.dropout.map(|_| self.attention.operands() + 4 + others)
    }

    /// The result with the gradient of the scores that were added.
    fn d_before(&self) -> Option<usize> {
        self.needs_d_before.then_some(self.attention.operands())
    }
}

impl Op for AttentionBackward {
    const NAME: &'static str = "scaled_dot_product_attention_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let scores = self.before().filter(|_| self.needs_d_before);
        Ok((0..self.attention.operands()).chain(scores).map(|i| Spec::like(x[i])).collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::backward_workspace(&self.attention, launch))
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        5 * self.attention.product(reads)
    }

    fn input_needs(&self, i: usize) -> Needs {
        // The gradient of the output is laid out by heads, too.
        let is_strided = i <= self.attention.operands() || Some(i) == self.before();
        if is_strided { Needs::InnerContiguous } else { Needs::Contiguous }
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
    /// simulated GPUs keep the weights in f32. With more than 16 to 64 keys, the backward pass on a GPU multiplies the
    /// gradient of the result with the rounded result, also as other implementations do.
    ///
    /// In memory the result is laid out as `[batch, n, heads, dim]`, so merging the heads of its transpose moves no
    /// data. The backward pass needs the result unchanged; if it was written to, `backward` returns
    /// [`SavedValueOverwritten`](crate::Error::SavedValueOverwritten).
    pub fn scaled_dot_product_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        scale: Option<f64>,
        causal: bool,
    ) -> Result<Tensor> {
        let options = SdpaOptions { scale, causal, ..SdpaOptions::default() };
        Ok(self.scaled_dot_product_attention_with(key, value, &options)?.0)
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
        let options = SdpaOptions { scale, causal, ..SdpaOptions::default() };
        Ok(self.scaled_dot_product_attention_qkvpacked_with(&options)?.0)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::{Pointer, View};
    use crate::device::{Mode, Operand};
    use crate::ops::testing::devices;

    #[test]
    fn queries_keys_and_values_on_cuda_begin_where_their_parts_of_the_operands_do() {
        for device in devices() {
            let op = |packed| Attention {
                scale: 1.0,
                causal: false,
                past: 0,
                packed,
                precision: Precision::F32,
                adds_scores: false,
                returns_scores: false,
                dropout: None,
            };
            let views = |packed: bool, operands: &[&Tensor]| {
                let op = op(packed);
                let reads: Vec<Operand<'_>> = operands.iter().map(|t| t.operand()).collect();
                let writes: Vec<_> = reads.iter().map(|&o| (o, Mode::Replace)).collect();
                let launch = Launch {
                    op: Attention::NAME,
                    kernel: &op,
                    reads: &reads,
                    writes: &writes,
                    workspace: None,
                };
                let layouts = op.layouts(|i| reads[i].layout);
                let place = |v: &View<'_>| (v.pointer, v.layout.clone(), v.alignment());
                let read = cuda::views(&op, &layouts, |i| View::read(&launch, i));
                let written = cuda::views(&op, &layouts, |i| View::write(&launch, i));
                (read.each_ref().map(place), written.each_ref().map(place))
            };
            // A part of two numbers, which is less than the alignment of the whole.
            let all = Tensor::zeros([4, 5, 3, 1, 2], DType::F32, &device).unwrap();
            for qkv in [all.clone(), all.narrow(0, 1, 2).unwrap()] {
                let parts = [0, 1, 2].map(|i| qkv.select(2, i).unwrap());
                let bytes = |from: u64, to: &Tensor| (to.operand().address() - from) as usize;
                let alignments = parts
                    .each_ref()
                    .map(|t| t.layout().offset() * 4)
                    .map(|at| [256, 128, 64, 32, 16, 8].into_iter().find(|a| at.is_multiple_of(*a)).unwrap());
                let (read, written) = views(true, &[&qkv]);
                for (i, part) in parts.iter().enumerate() {
                    let ahead = bytes(qkv.operand().address(), part);
                    assert_eq!(read[i], (Pointer::read(0).plus(ahead), part.layout().clone(), alignments[i]));
                    assert_eq!(
                        written[i],
                        (Pointer::write(0).plus(ahead), part.layout().clone(), alignments[i])
                    );
                }
                let (read, written) = views(false, &parts.each_ref());
                for (i, part) in parts.iter().enumerate() {
                    assert_eq!(read[i], (Pointer::read(i), part.layout().clone(), alignments[i]));
                    assert_eq!(written[i], (Pointer::write(i), part.layout().clone(), alignments[i]));
                }
            }
        }
    }
}
