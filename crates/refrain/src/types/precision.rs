//! Mixed precision: what products are computed in.

use super::dtype::DType;

/// The precision of [`linear`](crate::Tensor::linear), [`matmul`](crate::Tensor::matmul), [`conv2d`](crate::Tensor::conv2d)
/// and its kin, and [`scaled_dot_product_attention`](crate::Tensor::scaled_dot_product_attention) for f32, and of their
/// gradients. It does not change f64 and f16.
///
/// # Mixed precision
/// Under [`Precision::Bf16`] activations are bf16 and parameters stay f32, by the rule of PyTorch's autocast
/// (`torch.autocast` with bfloat16; Micikevicius et al., "Mixed Precision Training", ICLR 2018). Weights and biases of
/// linear layers are read from bf16 copies, which [`with_precision`](crate::with_precision) keeps until its closure ends or the parameters are
/// written to: one launch makes those of all parameters that lie in one storage, as a model's do. On a GPU so are f32 factors of
/// large products, and f32 inputs of wide layers.
///
/// | becomes bf16 | |
/// | --- | --- |
/// | results of linear, matmul, convolutions and attention | also of f32 operands |
/// | operands of these, and biases of linear (those of convolutions stay f32) | f32 operands are rounded to bf16; sums are f32; the result is rounded once, after bias, activation and residual |
/// | gradients of bf16 activations | each has its activation's dtype |
///
/// | stays f32 | |
/// | --- | --- |
/// | parameters, running statistics, moments of the optimiser | they are never rounded in memory |
/// | gradients of f32 parameters | the products of bf16 operands are summed, written and accumulated in f32; the gradients of biases and of norm parameters, too |
/// | weights and biases of norms | used in f32 |
/// | mean, variance and 1/std of a norm, exponentials and sums of a softmax, sums of reductions | for elements of any dtype |
/// | losses | for bf16 predictions with bf16 or f32 targets; cross entropy of bf16 logits |
///
/// Every other operation keeps the dtype of its operands: elementwise operations, dropout, norms and softmax of bf16
/// give bf16. This differs from autocast, which computes norms and softmax in f32. As with autocast, what a product made bf16 may meet
/// f32: an elementwise operation of two operands, [`where_cond`](crate::Tensor::where_cond), [`concat`](crate::Tensor::concat) and
/// [`stack`](crate::Tensor::stack) of bf16 and f32 are computed in f32 and give f32; so does f32 to which bf16 is added in place. Other operations refuse such operands, and so do
/// these under other precisions; convert one with [`Tensor::to_dtype`](crate::Tensor::to_dtype).
///
/// On the CPU the same program runs in f32 arithmetic; what is in memory is rounded in the same way. Inside
/// attention, a GPU also rounds the probabilities and the gradients of the scores to bf16 before it multiplies them.
/// The CPU does not.
///
/// Under every precision, an f16 or bf16 [`linear`](crate::Tensor::linear) layer accepts an f32 weight and bias, and
/// an f16 or bf16 norm accepts f32 parameters. The bias is rounded only under this precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32 products, about as exact as f32 arithmetic. On the tensor cores of a GPU, each operand is the sum of two
    /// TF32 numbers (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022). Tensor cores
    /// truncate where f32 arithmetic rounds. So on a GPU a product is too small by 6e-8 to 8e-8 of its value, but
    /// exact if its numbers are small integers. A sum with an infinite operand is NaN there, and so is a sum with a
    /// finite operand of `(1 - 2^-12) 2^128` or more.
    #[default]
    F32,
    /// On a GPU, the operands of f32 products are rounded to TF32 (10 fraction bits as in f16, the range of f32) for
    /// the tensor cores; sums and results are f32. The CPU multiplies in f32.
    Tf32,
    /// Mixed precision, see above: operands are rounded to bf16 (7 fraction bits), results are bf16.
    Bf16,
}

impl Precision {
    /// The dtype of a product of activations of `dtype`.
    pub(crate) fn result(self, dtype: DType) -> DType {
        if self == Precision::Bf16 && dtype == DType::F32 { DType::BF16 } else { dtype }
    }

    /// The dtype in which operands of these dtypes are multiplied: the wider one is rounded to the other.
    pub(crate) fn product(self, a: DType, b: DType) -> DType {
        self.result(if a.size() < b.size() { a } else { b })
    }
}
