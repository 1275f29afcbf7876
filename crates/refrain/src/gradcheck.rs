//! Compares gradients with finite differences.

use crate::autograd::no_grad;
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};

/// Compares the gradients of `f` with central finite differences, in f64.
///
/// `f` maps the inputs to one tensor of any shape. Its elements are weighted with fixed pseudo-random numbers, so
/// that errors of different elements can't cancel. Every input must be an f64 tensor. Inputs that require a gradient
/// are checked, and their previous gradients are overwritten.
///
/// # Errors
/// `Error::Autograd` names the first element whose two derivatives differ by more than `tolerance * (1 +
/// |derivative|)`. For smooth functions, a step of 1e-6 gives about eight correct digits.
///
/// ```
/// use refrain::{Device, Tensor, gradcheck};
/// let x = Tensor::from_slice(&[0.3f64, -1.2], [2], &Device::cpu())?;
/// x.set_requires_grad(true)?;
/// gradcheck(|t| t[0].tanh(), &[x], 1e-7)?;
/// # Ok::<(), refrain::Error>(())
/// ```
pub fn gradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor], tolerance: f64) -> Result<()> {
    const OP: &str = "gradcheck";
    const STEP: f64 = 1e-6;
    for input in inputs.iter().filter(|t| t.requires_grad()) {
        input.require_dtype(OP, "input", DType::F64)?;
        if input.grad().is_none() {
            input.set_grad(&input.zeros_like()?)?;
        }
        input.zero_grad()?;
    }
    let out = f(inputs)?;
    let weights: Vec<f64> =
        (0..out.numel()).map(|i| ((i as f64 + 1.0) * 0.754_877_666_2).fract() + 0.25).collect();
    out.backward_with(&Tensor::from_slice(&weights, out.shape(), out.device())?)?;
    let value = || -> Result<f64> {
        let out = no_grad(|| f(inputs))?.to_vec::<f64>()?;
        Ok(out.iter().zip(&weights).map(|(y, w)| y * w).sum())
    };
    for (n, input) in inputs.iter().enumerate() {
        let Some(grad) = input.grad() else { continue };
        let grad = grad.to_vec::<f64>()?;
        let mut x = input.to_vec::<f64>()?;
        for i in 0..x.len() {
            let at = x[i];
            let mut probe = |v: f64| -> Result<f64> {
                x[i] = v;
                no_grad(|| input.write_from(&x))?;
                value()
            };
            let slope = (probe(at + STEP)? - probe(at - STEP)?) / (2.0 * STEP);
            probe(at)?;
            if (slope - grad[i]).abs() > tolerance * (1.0 + slope.abs()) || grad[i].is_nan() {
                return Err(Error::Autograd {
                    op: OP,
                    message: format!(
                        "input {n}, element {i}: the backward pass gives {}, finite differences give {slope}",
                        grad[i]
                    ),
                });
            }
        }
    }
    Ok(())
}
