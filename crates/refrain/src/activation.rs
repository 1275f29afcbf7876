//! Activations that can be fused with a linear layer.

/// The activation after a linear layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// No activation.
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
