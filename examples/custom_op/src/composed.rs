//! Operations that are composed of existing ones. An operation is a function: [`refrain::custom_op`] runs its forward part
//! outside the tape and puts its backward part on the tape.

use refrain::{Error, Result, Tensor, custom_op};

/// Rounds to the nearest of the ends of `steps` equal steps from -1 to 1. The gradient passes as if nothing had been rounded (a straight-through
/// estimator: Bengio et al., 2013), but not where the operand is beyond -1 or 1. For floats.
///
/// # Errors
/// If the operand is not floating-point, or `steps` is 0.
pub fn quantize(x: &Tensor, steps: u32) -> Result<Tensor> {
    if steps == 0 {
        let message = "0 steps; use at least 1".to_owned();
        return Err(Error::InvalidArgument { op: "quantize", message });
    }
    let scale = f64::from(steps) / 2.0;
    one(custom_op(
        "quantize",
        &[x],
        |x| {
            let step = ((x[0].clamp(-1.0, 1.0)? + 1.0)? * scale)?.round()?;
            Ok((vec![((step / scale)? - 1.0)?], vec![x[0].clone()]))
        },
        |gradients, saved| {
            let inside = saved[0].abs()?.le_scalar(1.0)?;
            Ok(vec![Some(inside.where_cond(&gradients[0], &gradients[0].zeros_like()?)?)])
        },
    )?)
}

/// The operand as it is, with its gradient times `-factor` (Ganin and Lempitsky, ICML 2015).
///
/// # Errors
/// If the device fails.
pub fn reverse_gradient(x: &Tensor, factor: f64) -> Result<Tensor> {
    one(custom_op(
        "reverse_gradient",
        &[x],
        |x| Ok((vec![x[0].copy()?], vec![])),
        move |gradients, _| Ok(vec![Some((&gradients[0] * -factor)?)]),
    )?)
}

/// `ln(sum of e^x)` over the last axis, which disappears. The gradient is the softmax, computed from the saved operand and
/// result, so that nothing overflows. A row of negative infinities alone gives NaN. For floats.
///
/// # Errors
/// If the operand is not floating-point, or its last axis is empty.
pub fn logsumexp(x: &Tensor) -> Result<Tensor> {
    one(custom_op(
        "logsumexp",
        &[x],
        |x| {
            let largest = x[0].max_keepdim(-1)?;
            let sum = (&x[0] - &largest)?.exp()?.sum_keepdim(-1)?;
            let y = (sum.log()? + largest)?;
            Ok((vec![y.squeeze(-1)?], vec![x[0].clone(), y]))
        },
        |gradients, saved| {
            let softmax = (&saved[0] - &saved[1])?.exp()?;
            Ok(vec![Some((softmax * gradients[0].unsqueeze(-1)?)?)])
        },
    )?)
}

/// The only result of an operation.
fn one(results: Vec<Tensor>) -> Result<Tensor> {
    let mut results = results;
    Ok(results.swap_remove(0))
}
