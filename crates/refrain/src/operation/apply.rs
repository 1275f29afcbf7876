//! Operations, run and put on the tape.

use smallvec::SmallVec;

use super::execute::{Dest, execute};
use super::{OnTape, Op};
use crate::autograd::{self, TapeEntry};
use crate::device::{Mode, RESULTS, recording};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Runs an operation and returns its new result.
pub(crate) fn apply<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    let name = op.name();
    apply_all(op, inputs)?.into_iter().next().ok_or_else(|| Error::internal(name, "no result"))
}

/// The first two results of an operation.
pub(crate) fn two(op: &'static str, results: impl IntoIterator<Item = Tensor>) -> Result<(Tensor, Tensor)> {
    let mut results = results.into_iter();
    match (results.next(), results.next()) {
        (Some(first), Some(second)) => Ok((first, second)),
        _ => Err(Error::internal(op, "fewer than two results")),
    }
}

/// Runs an operation and returns its new results.
pub(crate) fn apply_all<O: Op>(op: O, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; RESULTS]>> {
    apply_all_on(op, inputs, inputs)
}

/// Runs an operation on `operands` that replace `inputs`; they have the same values up to rounding. The gradients go
/// to the inputs, in their dtypes.
pub(crate) fn apply_all_on<O: Op>(
    op: O,
    inputs: &[&Tensor],
    operands: &[&Tensor],
) -> Result<SmallVec<[Tensor; RESULTS]>> {
    autograd::check_operands(op.name(), inputs)?;
    let function = OnTape(op);
    let recording = TapeEntry::begin(&function, inputs, operands);
    let outputs = execute(&function.0, operands, &[])?;
    if let Some(recording) = recording {
        recording.finish(function, &outputs);
    }
    Ok(outputs)
}

/// [`apply_all_on`] for the first result.
pub(crate) fn apply_on<O: Op>(op: O, inputs: &[&Tensor], operands: &[&Tensor]) -> Result<Tensor> {
    let name = op.name();
    let first = apply_all_on(op, inputs, operands)?.into_iter().next();
    first.ok_or_else(|| Error::internal(name, "no result"))
}

/// Runs an operation that has no gradient. While a step is recorded, it runs once for the values of its operand: until something
/// writes to that, the next one of the same `text` has the same results. So nobody may write to them.
pub(crate) fn apply_once<O: Op>(
    op: O,
    text: String,
    operand: &Tensor,
) -> Result<SmallVec<[Tensor; RESULTS]>> {
    if let Some(results) = recording::computed(&text, &operand.operand()) {
        return Ok(results
            .map(|(storage, layout, dtype)| Tensor::from_parts(storage, layout, dtype))
            .collect());
    }
    let results = execute(&op, &[operand], &[])?;
    let kept = results.iter().map(|r| (r.storage().clone(), r.layout().clone(), r.dtype()));
    recording::keep_computed(text, &operand.operand(), kept);
    Ok(results)
}

/// Runs an operation whose first result is written to the memory of `dst`. The other results are new tensors, which
/// the tape may save.
pub(crate) fn apply_into<O: Op>(op: O, inputs: &[&Tensor], dst: &Tensor) -> Result<()> {
    apply_into_on(op, inputs, inputs, dst)
}

/// [`apply_into`] on operands that replace inputs, as in [`apply_all_on`].
pub(crate) fn apply_into_on<O: Op>(
    op: O,
    inputs: &[&Tensor],
    operands: &[&Tensor],
    dst: &Tensor,
) -> Result<()> {
    autograd::check_destination(op.name(), inputs, dst)?;
    let function = OnTape(op);
    let recording = TapeEntry::begin(&function, inputs, operands);
    let mut outputs = execute(&function.0, operands, &[Dest::Into(dst.clone(), Mode::Replace)])?;
    outputs[0] = dst.clone();
    autograd::wrote_into(function, recording, dst, &outputs);
    Ok(())
}

/// Runs `dst += op(inputs)` outside the tape.
pub(crate) fn accumulate_into<O: Op>(op: O, inputs: &[&Tensor], dst: &Tensor) -> Result<()> {
    autograd::check_in_place(op.name(), dst)?;
    execute(&op, inputs, &[Dest::Into(dst.clone(), Mode::Accumulate)])?;
    Ok(())
}
