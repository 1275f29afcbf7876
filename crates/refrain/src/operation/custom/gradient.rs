//! The gradients that a user's backward function returns.

use crate::autograd::Gradients;
use crate::error::{Error, Result};
use crate::operation::Spec;
use crate::tensor::{Tensor, check_devices};

/// What a backward function returns: a gradient for each operand, or `None` for an operand that has none.
pub(super) type Returned = Result<Vec<Option<Tensor>>>;

/// Calls `backward` with the gradient of each result (zeros where none has arrived) and adds what it returns to the
/// gradients of the operands.
pub(super) fn run_backward(
    g: &mut Gradients<'_>,
    op: &'static str,
    operands: usize,
    results: &[Spec],
    saved: &[Tensor],
    backward: impl FnOnce(&[Tensor], &[Tensor]) -> Returned,
) -> Result<()> {
    let arrived = (0..results.len()).find_map(|o| g.grad_of(o));
    let nothing = || Error::internal(op, "no gradient has arrived");
    let device = arrived.ok_or_else(nothing)?.device().clone();
    let of_result = |(o, spec): (usize, &Spec)| match g.grad_of(o) {
        Some(gradient) => Ok(gradient.clone()),
        None => Tensor::zeros(&spec.shape, spec.dtype, &device),
    };
    let gradients = results.iter().enumerate().map(of_result).collect::<Result<Vec<_>>>()?;
    let returned = backward(&gradients, saved)?;
    if returned.len() != operands {
        return Err(Error::Autograd {
            op,
            message: format!(
                "the backward function returned {} gradients for {operands} operands; return one for each, or None for an operand that has none",
                returned.len(),
            ),
        });
    }
    for (i, gradient) in returned.into_iter().enumerate() {
        let Some(gradient) = gradient.filter(|_| g.needs(i)) else { continue };
        if gradient.shape() != g.input_shape(i) {
            let hint = format!("gradient {i} must have the shape of operand {i}");
            return Err(Error::shapes(op, gradient.shape(), g.input_shape(i), hint));
        }
        gradient.require_dtype(op, &format!("gradient of operand {i}"), g.input_dtype(i))?;
        check_devices(op, &[&gradients[0], &gradient])?;
        g.add(i, gradient.untracked())?;
    }
    Ok(())
}
