//! Activations that a product can end with.

/// What is applied to the result of a linear layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// [`Tensor::relu`](crate::Tensor::relu).
    Relu,
    /// [`Tensor::gelu`](crate::Tensor::gelu).
    Gelu,
    /// [`Tensor::gelu_tanh`](crate::Tensor::gelu_tanh).
    GeluTanh,
    /// [`Tensor::silu`](crate::Tensor::silu).
    Silu,
}
