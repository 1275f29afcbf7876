//! The recurrence of a gated recurrent unit over all time steps: one launch forward, one backward.

mod cuda;
mod host;

use smallvec::{SmallVec, smallvec};

use super::linear::parameter_gradients;
use super::recurrent::{of_precision, operands, states_before};
use super::{Op, Spec, Specs, apply_into_on, apply_on};
use crate::autograd::{Gradients, Saves, is_grad_enabled};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::Result;
use crate::kernels::recurrent::cuda::{Pass, workspace};
use crate::kernels::recurrent::{Cell, Sizes};
use crate::precision::precision;
use crate::tensor::{Shape, Tensor};
use crate::types::Precision;

/// Operands: what the input contributes to the gates `[B, T, 3 H]`, weight, bias, and the initial state. Results: the states,
/// and if kept, for the backward pass, `r`, `z`, `n` and what `r` was multiplied by, `[B, T, 4 H]`.
#[derive(Clone, Copy, Debug)]
struct Gru {
    keep: bool,
    precision: Precision,
}

/// What a GRU is made of: `r`, `z` and `n`. Beside its state it carries nothing.
const CELL: Cell = Cell { gates: 3, carried: 0 };

impl Op for Gru {
    const NAME: &'static str = "gru";

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let Sizes { batch, steps, hidden } = Sizes::check(Self::NAME, CELL, inputs)?;
        let states = Spec::new([batch, steps, hidden], inputs[0].dtype());
        Ok(match self.keep {
            true => smallvec![states, Spec::new([batch, steps, 4 * hidden], inputs[0].dtype())],
            false => states.one(),
        })
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
        Saves::default().input(1).input(3).output(0).output(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (w, h0, y, gates) = (g.input(1)?, g.input(3)?, g.output(0)?, g.output(1)?);
        let dy = g.grad()?.clone();
        let rest = g.emit_with_rest(&[0, 3], GruBackward, &[&y, &gates, &w, &h0, &dy])?;
        parameter_gradients(g, self.precision, 1, Some(2), &rest[0], |_| states_before(&h0, &y))
    }
}

/// Operands: the states, what was kept of the gates, the weight, the initial state, and the gradient of the states. Results: the
/// gradients of what the input contributes to the gates, of the initial state, and of what the state contributes to the gates.
#[derive(Clone, Copy, Debug)]
struct GruBackward;

impl Op for GruBackward {
    const NAME: &'static str = "gru_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let Sizes { batch, steps, hidden } = Sizes::of(x[0].shape());
        let gates = Spec::new([batch, steps, 3 * hidden], x[0].dtype());
        Ok(smallvec![gates.clone(), Spec::like(x[3]), gates])
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, gpu: &dyn Gpu) -> Result<usize> {
        Ok(workspace(Pass::Backward, CELL, launch, gpu))
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        Sizes::of(reads[0]).flops(CELL)
    }
}

impl Tensor {
    /// The states of a gated recurrent unit (Cho et al., 2014) after each time step, in the form of PyTorch, in one launch. This
    /// tensor is what the input contributes to the gates `r`, `z` and `n`, `[B, T, 3 H]`: a [`Tensor::linear`] of the input
    /// at all time steps. The weight is `[3 H, H]`, the bias `[3 H]`, the initial state `[B, H]`, the result `[B, T, H]`. At each
    /// time step, with this tensor's parts `x_r`, `x_z`, `x_n` and those of the weight and the bias,
    ///
    /// ```text
    /// r  = sigmoid(x_r + W_r h + b_r)
    /// z  = sigmoid(x_z + W_z h + b_z)
    /// n  = tanh(x_n + r (W_n h + b_n))
    /// h' = n + z (h - n)
    /// ```
    ///
    /// For floats. All operands have one dtype, but beside f16 or bf16 weight and bias may be f32; the weight is then rounded
    /// before the product. In f16 and bf16 everything is computed in f32, and each state is rounded once. Under
    /// [`Precision::Bf16`], f32 states are computed in bf16; under [`Precision::Tf32`], only the gradient of the weight is
    /// a product of TF32.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let d = Device::cpu();
    /// // One sequence of two time steps, one hidden feature. With these weights r and z are 1/2.
    /// let x = Tensor::from_slice(&[0.0f32, 0.0, 0.0, 0.0, 0.0, 0.0], [1, 2, 3], &d)?;
    /// let (w, b) = (Tensor::zeros([3, 1], DType::F32, &d)?, Tensor::zeros(3, DType::F32, &d)?);
    /// let h = Tensor::ones([1, 1], DType::F32, &d)?;
    /// assert_eq!(x.gru(&w, &b, &h)?.to_vec::<f32>()?, [0.5, 0.25]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or there is no time step or no hidden feature.
    pub fn gru(&self, weight: &Tensor, bias: &Tensor, initial: &Tensor) -> Result<Tensor> {
        let (x, initial) = (of_precision(self)?, of_precision(initial)?);
        let (op, inputs) = gru(&x, weight, bias, &initial);
        let operands = operands(op.precision, &inputs)?;
        let operands: SmallVec<[&Tensor; 5]> = operands.iter().collect();
        apply_on(op, &inputs, &operands)
    }

    /// [`Tensor::gru`] into the memory of `dst`.
    ///
    /// # Errors
    /// The same, and if `dst` does not match the result.
    pub fn gru_into(&self, weight: &Tensor, bias: &Tensor, initial: &Tensor, dst: &Tensor) -> Result<()> {
        let (x, initial) = (of_precision(self)?, of_precision(initial)?);
        let (op, inputs) = gru(&x, weight, bias, &initial);
        let operands = operands(op.precision, &inputs)?;
        let operands: SmallVec<[&Tensor; 5]> = operands.iter().collect();
        apply_into_on(op, &inputs, &operands, dst)
    }
}

fn gru<'a>(
    x: &'a Tensor,
    weight: &'a Tensor,
    bias: &'a Tensor,
    initial: &'a Tensor,
) -> (Gru, [&'a Tensor; 4]) {
    let inputs = [x, weight, bias, initial];
    let keep = is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
    (Gru { keep, precision: precision() }, inputs)
}
