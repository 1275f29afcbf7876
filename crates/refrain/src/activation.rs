//! Activations that a product can end with.

#[cfg(doc)]
use crate::Tensor;

/// What is applied to the result of a linear layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// [`Tensor::relu`].
    Relu,
    /// [`Tensor::gelu`].
    Gelu,
    /// [`Tensor::gelu_tanh`].
    GeluTanh,
    /// [`Tensor::silu`].
    Silu,
}
