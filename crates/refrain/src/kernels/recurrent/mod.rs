//! Recurrent layers through all time steps in one launch: what the cells (GRU, LSTM) share. A cell has the formulas of a time step; here
//! are the products of the state with the weight, and the plans of the GPU.

pub(crate) mod cuda;
pub(crate) mod host;

use crate::error::{Error, Result};
use crate::tensor::{Shape, Tensor};

/// What a cell is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// Gates, of which each has a product of the state with its part of the weight.
    pub(crate) gates: usize,
    /// Numbers that a hidden feature carries from time step to time step beside its state: 0 or 1.
    pub(crate) carried: usize,
}

/// Sequences, time steps and hidden features.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) steps: usize,
    pub(crate) hidden: usize,
}

impl Sizes {
    /// Those of a tensor of states `[B, T, H]`.
    pub(crate) fn of(states: &Shape) -> Sizes {
        let size = |axis: usize| states.dims().get(axis).copied().unwrap_or(0);
        Sizes { batch: size(0), steps: size(1), hidden: size(2) }
    }

    /// The multiplications and additions of all time steps.
    pub(crate) fn flops(self, cell: Cell) -> u64 {
        (2 * cell.gates * self.batch * self.steps * self.hidden * self.hidden) as u64
    }

    /// Checks the operands of a cell: what the input contributes to the gates `[B, T, gates H]`, weight, bias, and initial states
    /// `[B, H]`.
    pub(crate) fn check(op: &'static str, Cell { gates, .. }: Cell, inputs: &[&Tensor]) -> Result<Sizes> {
        let (x, w, b) = (inputs[0], inputs[1], inputs[2]);
        x.require_float(op)?;
        for (i, t) in inputs.iter().enumerate().skip(1) {
            let fits = if i > 2 { t.dtype() == x.dtype() } else { t.dtype().is_parameter_of(x.dtype()) };
            if !fits {
                return Err(Error::dtypes(op, x.dtype(), t.dtype()));
            }
        }
        let &[rows, hidden] = w.dims() else {
            let hint = format!("the weight must be [{gates} hidden, hidden]");
            return Err(Error::shapes(op, x.shape(), w.shape(), hint));
        };
        if rows != gates * hidden || hidden == 0 {
            let hint =
                format!("the weight must be [{gates} hidden, hidden], with one hidden feature or more");
            return Err(Error::shapes(op, x.shape(), w.shape(), hint));
        }
        let &[batch, steps, features] = x.dims() else {
            let hint = format!("the input must be [batch, time, {gates} hidden]");
            return Err(Error::shapes(op, x.shape(), w.shape(), hint));
        };
        if features != rows || steps == 0 {
            let hint = format!("the input must be [batch, time, {gates} hidden], with one time step or more");
            return Err(Error::shapes(op, x.shape(), w.shape(), hint));
        }
        if b.dims() != [rows] {
            let hint = format!("the bias must be [{gates} hidden]");
            return Err(Error::shapes(op, w.shape(), b.shape(), hint));
        }
        for state in &inputs[3..] {
            if state.dims() != [batch, hidden] {
                let hint = "the initial state must be [batch, hidden]";
                return Err(Error::shapes(op, x.shape(), state.shape(), hint));
            }
        }
        Ok(Sizes { batch, steps, hidden })
    }
}
