//! Mixed precision: what products are computed in.

use super::dtype::DType;

/// What [`linear`](crate::Tensor::linear), [`matmul`](crate::Tensor::matmul) and
/// [`scaled_dot_product_attention`](crate::Tensor::scaled_dot_product_attention) make of f32, and their gradients.
/// f64 and f16 are what they are under every setting.
///
/// # Mixed precision
/// Under [`Precision::Bf16`] activations are bf16 and parameters stay f32, by the rule of PyTorch's autocast
/// (`torch.autocast` with bfloat16; Micikevicius et al., "Mixed Precision Training", ICLR 2018). Weights and biases of
/// linear layers are read from bf16 copies, which [`with_precision`](crate::with_precision) keeps until its closure ends or the parameters are
/// written to: one launch makes those of all parameters that lie in one storage, as a model's do.
///
/// | becomes bf16 | |
/// | --- | --- |
/// | results of linear, matmul and attention | also of f32 operands |
/// | what these multiply, and biases of linear | f32 operands are rounded to bf16, sums are f32, and the result is rounded once, after bias, activation and residual |
/// | gradients of bf16 activations | each has its activation's dtype |
///
/// | stays f32 | |
/// | --- | --- |
/// | parameters, running statistics, the optimiser's moments | masters: nothing rounds them in memory |
/// | gradients of f32 parameters | the weight gradient's product of bf16 operands is summed, written and accumulated in f32; so are the sums of biases and of the parameters of norms |
/// | weights and biases of norms | multiplied and added as they are |
/// | mean, variance and 1/std of a norm, the exponentials and sums of a softmax, sums of reductions | whatever the dtype of the elements |
/// | losses | of bf16 predictions with bf16 or f32 targets; cross entropy of bf16 logits |
///
/// All else follows its operands: elementwise operations, dropout, norms and softmax of bf16 give bf16. In that they
/// differ from autocast, which takes norms and softmax back to f32 and promotes bf16 beside f32: here an elementwise
/// operation of both remains an error, to be settled by [`Tensor::to_dtype`](crate::Tensor::to_dtype).
///
/// On the CPU the same program runs, in f32 arithmetic, with the same roundings of what is in memory. Inside attention a GPU
/// also rounds the probabilities and the gradients of scores to bf16, before they are multiplied; the CPU does not.
///
/// Under every setting a [`linear`](crate::Tensor::linear) layer of f16 or bf16 takes an f32 weight and bias, and a norm
/// of f16 or bf16 takes f32 parameters. A bias is rounded under this one only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// f32 is multiplied and summed about as exactly as in f32: on a GPU's tensor cores, each operand as the sum of two
    /// TF32 numbers (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022). These cut off
    /// where f32 rounds: a product as a whole is 6e-8 to 8e-8 of itself smaller there, and exact where its numbers are
    /// small integers. Sums that an infinite operand is in are NaN there, and those with a finite one from
    /// `(1 - 2^-12) 2^128` on.
    #[default]
    F32,
    /// On a GPU operands of f32 products are rounded to TF32 (10 bits behind the point, as f16, with the range of f32),
    /// on tensor cores; sums and results are f32. The CPU multiplies in f32.
    Tf32,
    /// Mixed precision, as above: operands are rounded to bf16 (7 bits behind the point), results are bf16.
    Bf16,
}

impl Precision {
    /// The dtype that a product of activations of `dtype` gives.
    pub(crate) fn result(self, dtype: DType) -> DType {
        if self == Precision::Bf16 && dtype == DType::F32 { DType::BF16 } else { dtype }
    }

    /// The dtype that operands of these dtypes are multiplied in: a wider one is rounded to the other.
    pub(crate) fn product(self, a: DType, b: DType) -> DType {
        self.result(if a.size() < b.size() { a } else { b })
    }
}
