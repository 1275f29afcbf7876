//! Operations that are composed of existing ones, with a gradient of their own.

use super::gradient::{Returned, run_backward};
use crate::autograd::{Differentiable, Gradients, Saves, TapeEntry, check_operands, no_grad};
use crate::device::{Storage, Watch};
use crate::error::{Error, Result};
use crate::operation::Spec;
use crate::tensor::{Tensor, check_devices};

/// How many values an operation can save, together with its operands: the tape keeps a bit for each.
const MOST: usize = u32::BITS as usize;

/// Runs an operation of your own that is composed of existing ones, with a gradient of its own.
///
/// Use it where the gradient that the tape would find is not the one you want: a straight-through estimator, a reversed
/// or scaled gradient, a formula that is shorter or more exact than the chain rule.
///
/// - `forward` gets the operands and returns the results and the values that `backward` will need. It is not on the
///   tape.
/// - `backward` gets the gradient of each result (zeros where nothing depends on it) and the saved values. It returns a
///   gradient for each operand, in its shape and dtype, or `None` for an operand that has none. It runs once for each
///   backward pass, and not at all if no operand requires a gradient.
///
/// ```
/// use refrain::{Device, Tensor, custom_op};
///
/// /// Rounds, but lets gradients through as if it did not (a straight-through estimator).
/// fn round_through(x: &Tensor) -> refrain::Result<Tensor> {
///     let mut results = custom_op(
///         "round_through",
///         &[x],
///         |x| Ok((vec![x[0].round()?], vec![])),
///         |gradients, _| Ok(vec![Some(gradients[0].clone())]),
///     )?;
///     Ok(results.remove(0))
/// }
///
/// let x = Tensor::from_slice(&[0.4f32, 1.6], [2], &Device::cpu())?;
/// x.set_requires_grad(true)?;
/// let y = round_through(&x)?;
/// y.square()?.sum(())?.backward()?;
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 2.0]);
/// assert_eq!(x.grad().unwrap().to_vec::<f32>()?, [0.0, 4.0]);
/// # Ok::<(), refrain::Error>(())
/// ```
///
/// The guarantees are those of built-in operations. A saved value that is overwritten before the backward pass is
/// [`Error::SavedValueOverwritten`]. An operation in a [`Step`](crate::Step) is recorded and replayed, bit for bit. A result
/// never shares memory with an operand: if `forward` returns an operand or a view of one, its values are copied.
///
/// A tensor that a closure captures gets no gradient; pass it as an operand instead. [`gradcheck`](crate::gradcheck) compares
/// the gradient with finite differences.
///
/// # Errors
/// What the closures return. [`Error::InvalidArgument`] without an operand or a result, or with more than 32 operands and
/// saved values; [`Error::DeviceMismatch`]; [`Error::Aliased`] if `forward` writes into an operand. In the backward pass,
/// [`Error::Autograd`], [`Error::ShapeMismatch`] or [`Error::DTypeMismatch`] if the gradients do not fit the operands.
pub fn custom_op(
    name: &'static str,
    operands: &[&Tensor],
    forward: impl FnOnce(&[Tensor]) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
    backward: impl Fn(&[Tensor], &[Tensor]) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Result<Vec<Tensor>> {
    super::require_operands(name, operands)?;
    check_devices(name, operands)?;
    check_operands(name, operands)?;
    let handles: Vec<Tensor> = operands.iter().map(|t| t.detach()).collect();
    let watches: Vec<Watch> =
        operands.iter().map(|t| Watch::new(t.storage(), t.operand().byte_range())).collect();
    let first_new = Storage::next_id();
    let (results, saved) = no_grad(|| forward(&handles))?;
    for (i, (watch, operand)) in watches.iter().zip(operands).enumerate() {
        if let Some(by) = watch.overwritten_by() {
            let message = format!(
                "the forward closure overwrites operand {i} ({} {}) by {by}; write into a new tensor or a copy()",
                operand.dtype(),
                operand.shape()
            );
            return Err(Error::Aliased { op: name, message });
        }
    }
    drop(watches);
    if results.is_empty() {
        return Err(Error::invalid(
            name,
            "the forward closure returned no result; return at least one tensor",
        ));
    }
    if operands.len() + saved.len() > MOST {
        let message = format!(
            "{} operands and {} saved values are more than {MOST}; save fewer, for example one concatenated tensor",
            operands.len(),
            saved.len()
        );
        return Err(Error::invalid(name, message));
    }
    let everything: Vec<&Tensor> = operands.iter().copied().chain(&results).chain(&saved).collect();
    check_devices(name, &everything)?;

    // Only memory that is new can't have a history, or handles elsewhere that would not know this one.
    let mut outputs: Vec<Tensor> = Vec::with_capacity(results.len());
    for result in &results {
        let new = result.storage_id() >= first_new && !outputs.iter().any(|o| o.shares_storage(result));
        outputs.push(if new { result.untracked() } else { no_grad(|| result.untracked().copy())? });
    }
    let function = Custom {
        name,
        operands: operands.len(),
        saved: saved.len(),
        results: outputs.iter().map(Spec::like).collect(),
        backward: Box::new(backward),
    };
    let saved: Vec<Tensor> = saved.iter().map(Tensor::untracked).collect();
    let inputs: Vec<&Tensor> = operands.iter().copied().chain(&saved).collect();
    if let Some(entry) = TapeEntry::begin(&function, &inputs, &inputs) {
        entry.finish(function, &outputs);
    }
    Ok(outputs)
}

type Backward = dyn Fn(&[Tensor], &[Tensor]) -> Returned + Send + Sync;

/// The entry of the tape. Its inputs are the operands, and then the saved values, which get no gradient.
struct Custom {
    name: &'static str,
    operands: usize,
    saved: usize,
    results: Vec<Spec>,
    backward: Box<Backward>,
}

impl Differentiable for Custom {
    fn name(&self) -> &'static str {
        self.name
    }

    fn saves(&self, _: &[bool]) -> Saves {
        (self.operands..self.operands + self.saved).fold(Saves::default(), Saves::input)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let saved = (0..self.saved).map(|k| g.saved_value(self.operands + k, || format!("saved value {k}")));
        let saved = saved.collect::<Result<Vec<_>>>()?;
        run_backward(g, self.name, self.operands, &self.results, &saved, &self.backward)
    }
}
