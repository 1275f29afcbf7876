//! What recurrent cells (GRU, LSTM) make of their operands before their kernels and gradients.

use smallvec::SmallVec;

use crate::error::Result;
use crate::precision::{precision, rounded};
use crate::tensor::{DType, Tensor};
use crate::types::Precision;

/// The operands of the kernel: an f32 weight and bias (operands 1 and 2) rounded if the precision asks for it.
pub(super) fn operands(precision: Precision, inputs: &[&Tensor]) -> Result<SmallVec<[Tensor; 5]>> {
    let rounds = precision == Precision::Bf16 && inputs[0].dtype() == DType::BF16;
    let operand = |(i, &t): (usize, &&Tensor)| match t.dtype() {
        DType::F32 if rounds && (i == 1 || i == 2) => rounded(t),
        _ => Ok(t.clone()),
    };
    inputs.iter().enumerate().map(operand).collect()
}

/// A tensor in the dtype that the precision has for it.
pub(super) fn of_precision(t: &Tensor) -> Result<Tensor> {
    t.to_dtype(precision().result(t.dtype()))
}

/// The states before each time step `[B, T, H]`, from the initial one and those after each time step.
pub(super) fn states_before(initial: &Tensor, states: &Tensor) -> Result<Tensor> {
    let all = Tensor::empty("states_before", states.shape(), states.dtype(), states.device())?;
    let steps = states.dims()[1];
    all.narrow(1, 0, 1)?.copy_from(&initial.unsqueeze(1)?)?;
    all.narrow(1, 1, steps - 1)?.copy_from(&states.narrow(1, 0, steps - 1)?)?;
    Ok(all)
}
