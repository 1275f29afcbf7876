//! Normalisation of queries and keys, with a temperature, packed with their values.

mod cuda;
mod host;

use super::layer_norm::check_eps;
use super::reduce::sum_of_rows;
use super::{Op, Spec, Specs, apply, apply_into};
use crate::autograd::{Gradients, Saves};
use crate::device::{CudaArgs, HostArgs};
use crate::error::{Error, Result};
use crate::tensor::{Shape, Tensor};

/// The maximum length of queries and keys: on a GPU they stay in registers.
const MAX_DIM: usize = 1024;

/// Operands: queries, keys and values `[.., 3, heads, dim]`, and temperatures `[heads]` in the dtype of the
/// statistics.
#[derive(Clone, Copy, Debug)]
struct QkNorm {
    eps: f64,
}

/// Number of tokens and heads, and the size of a head.
#[derive(Clone, Copy)]
struct Sizes {
    tokens: usize,
    heads: usize,
    dim: usize,
}

impl Sizes {
    /// The sizes of a shape that was checked.
    fn of(shape: &Shape) -> Sizes {
        let dims = shape.dims();
        let (tokens, rest) = dims.split_at(dims.len().saturating_sub(3));
        let size = |axis: usize| rest.get(axis).copied().unwrap_or(1);
        Sizes { tokens: tokens.iter().product(), heads: size(1), dim: size(2) }
    }
}

impl Op for QkNorm {
    const NAME: &'static str = "qk_norm";

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let (x, temperature) = (inputs[0], inputs[1]);
        x.require_float(Self::NAME)?;
        check_eps(Self::NAME, self.eps)?;
        let &[.., 3, heads, dim] = x.dims() else {
            let message = format!("the shape is {}; it must be [.., 3, heads, dim]", x.shape());
            return Err(Error::invalid(Self::NAME, message));
        };
        if dim > MAX_DIM {
            let message = format!("heads have {dim} features; use more heads, of at most {MAX_DIM} features");
            return Err(Error::invalid(Self::NAME, message));
        }
        temperature.require_dtype(Self::NAME, "temperature", x.dtype().accumulator())?;
        if temperature.dims() != [heads] {
            let hint = "there must be a temperature for each head";
            return Err(Error::shapes(Self::NAME, x.shape(), temperature.shape(), hint));
        }
        Ok(Spec::like(x).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self.eps, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self.eps, args)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0).input(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (x, temperature, dy) = (g.input(0)?, g.input(1)?, g.grad()?.clone());
        let along = g.emit_with_rest(&[0], QkNormBackward(*self), &[&x, &temperature, &dy])?;
        if g.needs(1) {
            // A separate launch, so that what needs dx does not wait for it.
            let (sum, along) = sum_of_rows(&along[0])?;
            g.emit(&[1], sum, &[&along])?;
        }
        Ok(())
    }
}

/// The gradients, from the operands and dy. With `u = x / |x|` and the temperature `t` (1 for keys): `dx = t (dy - u
/// sum(u dy)) / |x|`; below eps, `dx = t dy / eps`. A second result is `sum(u dy)` of each query, `[.., heads]`;
/// their sums are the gradients of the temperatures.
#[derive(Clone, Copy, Debug)]
struct QkNormBackward(QkNorm);

impl Op for QkNormBackward {
    const NAME: &'static str = "qk_norm_backward";

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let (x, temperature) = (inputs[0], inputs[1]);
        // Vectors without elements contribute nothing.
        let tokens = if x.numel() == 0 { &[0] } else { &x.dims()[..x.rank() - 3] };
        let along: Shape = tokens.iter().chain(temperature.dims()).copied().collect();
        let mut specs = Spec::like(x).one();
        specs.push(Spec::new(along, temperature.dtype()));
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.0.eps, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.0.eps, args)
    }

    fn accumulates(&self, o: usize) -> bool {
        o == 0
    }
}

/// The temperature in the dtype of the statistics, if its dtype matches `x`.
fn prepare(x: &Tensor, temperature: &Tensor) -> Result<Tensor> {
    let wide = x.dtype().accumulator();
    if temperature.dtype() != wide {
        temperature.require_dtype(QkNorm::NAME, "temperature", x.dtype())?;
        x.require_float(QkNorm::NAME)?;
    }
    temperature.to_dtype(wide)
}

impl Tensor {
    /// Normalises the queries and keys of attention, which are packed with their values in this tensor, `[.., 3,
    /// heads, dim]`. Each query becomes `t q / max(|q|, eps)` with the temperature `t` of its head. Each key becomes
    /// `k / max(|k|, eps)`. Values do not change (Henry et al., "Query-Key Normalization for Transformers", Findings
    /// of EMNLP 2020).
    ///
    /// For floats. The result has the shape and dtype of this tensor. Temperatures are `[heads]`, of the same dtype,
    /// or f32 if this tensor is f16 or bf16. `dim` is at most 1024. If a length is below `eps`, the gradient is that
    /// of `x / eps`.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// // One token, one head: query, key and value.
    /// let qkv = Tensor::from_slice(&[3.0f32, 4.0, 0.0, 2.0, 5.0, 6.0], [1, 3, 1, 2], &device)?;
    /// let temperature = Tensor::from_slice(&[10.0f32], 1, &device)?;
    /// assert_eq!(qkv.qk_norm(&temperature, 1e-12)?.to_vec::<f32>()?, [6.0, 8.0, 0.0, 1.0, 5.0, 6.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or `eps` is negative or not finite.
    pub fn qk_norm(&self, temperature: &Tensor, eps: f64) -> Result<Tensor> {
        apply(QkNorm { eps }, &[self, &prepare(self, temperature)?])
    }

    /// [`Tensor::qk_norm`] into the memory of `dst`.
    ///
    /// # Errors
    /// The same, and if `dst` does not match the result.
    pub fn qk_norm_into(&self, temperature: &Tensor, eps: f64, dst: &Tensor) -> Result<()> {
        apply_into(QkNorm { eps }, &[self, &prepare(self, temperature)?], dst)
    }
}
