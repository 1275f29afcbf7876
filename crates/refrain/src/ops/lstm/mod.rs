//! The recurrence of a long short-term memory over all time steps: one launch forward, one backward.

mod cuda;
mod host;

use smallvec::{SmallVec, smallvec};

use super::linear::parameter_gradients;
use super::recurrent::{of_precision, operands, states_before};
use super::{Op, Spec, Specs, apply_all_on, two};
use crate::autograd::{Gradients, Saves, is_grad_enabled};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::recurrent::cuda::{Pass, workspace};
use crate::kernels::recurrent::{Cell, Sizes};
use crate::precision::precision;
use crate::tensor::{Shape, Tensor};
use crate::types::Precision;

/// Operands: what the input contributes to the gates `[B, T, 4 H]`, weight, bias, the initial state and the initial cell state.
/// Results: the states, the cell states, and if kept, for the backward pass, the gates `[B, T, 4 H]`.
#[derive(Clone, Copy, Debug)]
struct Lstm {
    keep: bool,
    precision: Precision,
}

/// What an LSTM is made of: `i`, `f`, `g` and `o`. Beside its state it carries the cell state.
const CELL: Cell = Cell { gates: 4, carried: 1 };

impl Op for Lstm {
    const NAME: &'static str = "lstm";

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let Sizes { batch, steps, hidden } = Sizes::check(Self::NAME, CELL, inputs)?;
        let states = Spec::new([batch, steps, hidden], inputs[0].dtype());
        let mut specs: Specs = smallvec![states.clone(), states];
        if self.keep {
            specs.push(Spec::new([batch, steps, 4 * hidden], inputs[0].dtype()));
        }
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self.keep, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self.keep, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        Ok(workspace(Pass::Forward, CELL, launch, gpu))
    }

    fn flops(&self, _: &[&Shape], writes: &[&Shape]) -> u64 {
        Sizes::of(writes[0]).flops(CELL)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(1).input(3).input(4).output(0).output(1).output(2)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (dy, dcells) = (g.grad_of(0).cloned(), g.grad_of(1).cloned());
        let (w, h0, c0) = (g.input(1)?, g.input(3)?, g.input(4)?);
        let (y, cells, gates) = (g.output(0)?, g.output(1)?, g.output(2)?);
        // If only the cell states have a gradient, that of the states is zero.
        let dy = dy.map_or_else(|| y.zeros_like(), Ok)?;
        let backward = LstmBackward { of_cells: dcells.is_some() };
        let operands = [&cells, &gates, &w, &c0, &dy].into_iter().chain(dcells.as_ref());
        let operands: SmallVec<[&Tensor; 6]> = operands.collect();
        // The gradient of the input's part is also that of what the state contributes.
        let rest = g.emit_with_rest(&[3, 4], backward, &operands)?;
        let dx = rest.into_iter().next().ok_or_else(|| Error::internal(Lstm::NAME, "no gradient"))?;
        parameter_gradients(g, self.precision, 1, Some(2), &dx, |_| states_before(&h0, &y))?;
        g.add(0, dx)
    }
}

/// Operands: the cell states, the gates, the weight, the initial cell state, the gradient of the states, and if they have one, that
/// of the cell states. Results: the gradients of the initial state, of the initial cell state, and of what the input contributes
/// to the gates.
#[derive(Clone, Copy, Debug)]
struct LstmBackward {
    of_cells: bool,
}

impl Op for LstmBackward {
    const NAME: &'static str = "lstm_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(smallvec![Spec::like(x[3]), Spec::like(x[3]), Spec::like(x[1])])
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.of_cells, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.of_cells, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        Ok(workspace(Pass::Backward, CELL, launch, gpu))
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        Sizes::of(reads[0]).flops(CELL)
    }
}

impl Tensor {
    /// The states and the cell states of a long short-term memory (Hochreiter and Schmidhuber, 1997) after each time step, in the
    /// form of PyTorch, in one launch. This tensor is what the input contributes to the gates `i`, `f`, `g` and `o`,
    /// `[B, T, 4 H]`: a [`Tensor::linear`] of the input at all time steps. The weight is `[4 H, H]`, the bias `[4 H]`, the
    /// initial state and the initial cell state `[B, H]`, and both results are `[B, T, H]`. At each time step, with this tensor's
    /// parts `x_i`, `x_f`, `x_g`, `x_o` and those of the weight and the bias,
    ///
    /// ```text
    /// i  = sigmoid(x_i + W_i h + b_i)
    /// f  = sigmoid(x_f + W_f h + b_f)
    /// g  = tanh(x_g + W_g h + b_g)
    /// o  = sigmoid(x_o + W_o h + b_o)
    /// c' = f c + i g
    /// h' = o tanh(c')
    /// ```
    ///
    /// The gradients of both results flow into all operands. To go on later, take the last of each:
    /// `states.select(1, t - 1)`.
    ///
    /// For floats. All operands have one dtype, but beside f16 or bf16 weight and bias may be f32; the weight is then rounded
    /// before the product. In f16 and bf16 everything is computed in f32. Each state is rounded once, and so the next time step
    /// reads it. A cell state is rounded only in the result: the next time step reads it in f32. Under [`Precision::Bf16`], f32
    /// states are computed in bf16; under [`Precision::Tf32`], only the gradient of the weight is a product of TF32.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let d = Device::cpu();
    /// // One sequence of two time steps, one hidden feature. With these weights i, f and o are 1/2, and g is 0.
    /// let x = Tensor::zeros([1, 2, 4], DType::F32, &d)?;
    /// let (w, b) = (Tensor::zeros([4, 1], DType::F32, &d)?, Tensor::zeros(4, DType::F32, &d)?);
    /// let one = Tensor::ones([1, 1], DType::F32, &d)?;
    /// let (h, c) = x.lstm(&w, &b, &one, &one)?;
    /// assert_eq!(c.to_vec::<f32>()?, [0.5, 0.25]);
    /// assert!((h.to_vec::<f32>()?[1] - 0.5 * 0.25f32.tanh()).abs() < 1e-6);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or there is no time step or no hidden feature.
    pub fn lstm(
        &self,
        weight: &Tensor,
        bias: &Tensor,
        initial: &Tensor,
        initial_cell: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let (x, h, c) = (of_precision(self)?, of_precision(initial)?, of_precision(initial_cell)?);
        let inputs = [&x, weight, bias, &h, &c];
        let keep = is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
        let op = Lstm { keep, precision: precision() };
        let operands = operands(op.precision, &inputs)?;
        let operands: SmallVec<[&Tensor; 5]> = operands.iter().collect();
        two(Lstm::NAME, apply_all_on(op, &inputs, &operands)?)
    }
}
