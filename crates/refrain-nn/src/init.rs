//! Initial values of parameters.

use refrain::{Generator, Tensor};

use crate::error::Result;

/// The initial values of a parameter. Some depend on the width of the layer: they compute `fan_in` (inputs per
/// output) and `fan_out` (outputs per input) from the shape `[out, in, ..]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// One value for all elements.
    Constant(f64),
    /// Uniformly distributed over `[low, high)`.
    Uniform {
        /// The smallest value.
        low: f64,
        /// The end of the range, excluded.
        high: f64,
    },
    /// Normally distributed.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        std: f64,
    },
    /// Glorot and Bengio, AISTATS 2010: uniform within `gain * sqrt(6 / (fan_in + fan_out))` of 0.
    XavierUniform {
        /// 1 for linear layers.
        gain: f64,
    },
    /// Glorot and Bengio: normal with standard deviation `gain * sqrt(2 / (fan_in + fan_out))`.
    XavierNormal {
        /// 1 for linear layers.
        gain: f64,
    },
    /// He et al., ICCV 2015: uniform within `gain * sqrt(3 / fan_in)` of 0.
    KaimingUniform {
        /// `sqrt(2)` before a ReLU, 1 for linear layers.
        gain: f64,
    },
    /// He et al.: normal with standard deviation `gain / sqrt(fan_in)`.
    KaimingNormal {
        /// `sqrt(2)` before a ReLU, 1 for linear layers.
        gain: f64,
    },
}

impl Init {
    /// The initial weights of PyTorch's linear layers: uniform within `1 / sqrt(fan_in)` of 0.
    pub fn torch_linear() -> Init {
        Init::KaimingUniform { gain: (1.0f64 / 3.0).sqrt() }
    }

    /// The initial biases of PyTorch's linear layers: uniform within `1 / sqrt(fan_in)` of 0, with the `fan_in` of
    /// the weight.
    pub fn torch_bias(fan_in: usize) -> Init {
        let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
        Init::Uniform { low: -bound, high: bound }
    }

    /// Fills a tensor with initial values.
    ///
    /// # Errors
    /// If the tensor is not floating-point, or requires a gradient outside [`refrain::no_grad`].
    pub fn fill(self, tensor: &Tensor, generator: &Generator) -> Result<()> {
        let (fan_in, fan_out) = fans(tensor.dims());
        let within = |bound: f64| Init::Uniform { low: -bound, high: bound };
        let spread = |std: f64| Init::Normal { mean: 0.0, std };
        match self {
            Init::Constant(value) => tensor.fill(value)?,
            Init::Uniform { low, high } => {
                generator.uniform_into(tensor)?;
                tensor.mul_scalar_assign(high - low)?;
                tensor.add_scalar_assign(low)?;
            }
            Init::Normal { mean, std } => {
                generator.normal_into(tensor)?;
                tensor.mul_scalar_assign(std)?;
                tensor.add_scalar_assign(mean)?;
            }
            Init::XavierUniform { gain } => {
                within(gain * (6.0 / (fan_in + fan_out)).sqrt()).fill(tensor, generator)?
            }
            Init::XavierNormal { gain } => {
                spread(gain * (2.0 / (fan_in + fan_out)).sqrt()).fill(tensor, generator)?
            }
            Init::KaimingUniform { gain } => within(gain * (3.0 / fan_in).sqrt()).fill(tensor, generator)?,
            Init::KaimingNormal { gain } => spread(gain / fan_in.sqrt()).fill(tensor, generator)?,
        }
        Ok(())
    }
}

/// Fan-in and fan-out of a weight `[out, in, ..]`, each at least 1. For a vector, both are its length.
fn fans(dims: &[usize]) -> (f64, f64) {
    let field: usize = dims.iter().skip(2).product();
    let fan = |axis: usize| (dims.get(axis).or(dims.first()).copied().unwrap_or(1) * field).max(1) as f64;
    (fan(1), fan(0))
}
