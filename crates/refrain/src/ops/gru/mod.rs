//! The recurrence of a gated recurrent unit over all time steps: one launch forward, one backward.

mod cuda;
mod host;
#[cfg(test)]
mod tests;

use smallvec::{SmallVec, smallvec};

use super::linear::parameter_gradients;
use super::{Op, Spec, Specs, apply_all_on, apply_into_on};
use crate::autograd::{Gradients, Saves, is_grad_enabled};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::precision::{precision, rounded};
use crate::tensor::{DType, Shape, Tensor};
use crate::types::Precision;

/// Operands: what the input contributes to the gates `[B, T, 3 H]`, weight, bias, and the initial state. Results: the states,
/// and if kept, for the backward pass, `r`, `z`, `n` and what `r` was multiplied by, `[B, T, 4 H]`.
#[derive(Clone, Copy, Debug)]
struct Gru {
    keep: bool,
    precision: Precision,
}

/// Sequences, time steps and hidden features.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    steps: usize,
    hidden: usize,
}

impl Sizes {
    /// Those of a tensor of states `[B, T, H]`.
    fn of(states: &Shape) -> Sizes {
        let size = |axis: usize| states.dims().get(axis).copied().unwrap_or(0);
        Sizes { batch: size(0), steps: size(1), hidden: size(2) }
    }

    /// The multiplications and additions of all time steps.
    fn flops(self) -> u64 {
        6 * (self.batch * self.steps * self.hidden * self.hidden) as u64
    }
}

impl Gru {
    /// The operands of the kernel: an f32 weight and bias rounded if the precision asks for it.
    fn operands(&self, inputs: &[&Tensor; 4]) -> Result<SmallVec<[Tensor; 4]>> {
        let rounds = self.precision == Precision::Bf16 && inputs[0].dtype() == DType::BF16;
        let operand = |(i, &t): (usize, &&Tensor)| match t.dtype() {
            DType::F32 if rounds && (i == 1 || i == 2) => rounded(t),
            _ => Ok(t.clone()),
        };
        inputs.iter().enumerate().map(operand).collect()
    }
}

impl Op for Gru {
    const NAME: &'static str = "gru";

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let (x, w, b, h) = (inputs[0], inputs[1], inputs[2], inputs[3]);
        x.require_float(Self::NAME)?;
        for (i, t) in inputs.iter().enumerate().skip(1) {
            let fits = if i == 3 { t.dtype() == x.dtype() } else { t.dtype().is_parameter_of(x.dtype()) };
            if !fits {
                return Err(Error::dtypes(Self::NAME, x.dtype(), t.dtype()));
            }
        }
        let &[rows, hidden] = w.dims() else {
            let hint = "the weight must be [3 hidden, hidden]";
            return Err(Error::shapes(Self::NAME, x.shape(), w.shape(), hint));
        };
        if rows != 3 * hidden || hidden == 0 {
            let hint = "the weight must be [3 hidden, hidden], with one hidden feature or more";
            return Err(Error::shapes(Self::NAME, x.shape(), w.shape(), hint));
        }
        let &[batch, steps, gates] = x.dims() else {
            let hint = "the input must be [batch, time, 3 hidden]";
            return Err(Error::shapes(Self::NAME, x.shape(), w.shape(), hint));
        };
        if gates != rows || steps == 0 {
            let hint = "the input must be [batch, time, 3 hidden], with one time step or more";
            return Err(Error::shapes(Self::NAME, x.shape(), w.shape(), hint));
        }
        if b.dims() != [rows] {
            return Err(Error::shapes(Self::NAME, w.shape(), b.shape(), "the bias must be [3 hidden]"));
        }
        if h.dims() != [batch, hidden] {
            let hint = "the initial state must be [batch, hidden]";
            return Err(Error::shapes(Self::NAME, x.shape(), h.shape(), hint));
        }
        let states = Spec::new([batch, steps, hidden], x.dtype());
        Ok(match self.keep {
            true => smallvec![states, Spec::new([batch, steps, 4 * hidden], x.dtype())],
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
        Ok(cuda::workspace(cuda::Pass::Forward, launch, gpu))
    }

    fn flops(&self, _: &[&Shape], writes: &[&Shape]) -> u64 {
        Sizes::of(writes[0]).flops()
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(1).input(3).output(0).output(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (w, h0, y, gates) = (g.input(1)?, g.input(3)?, g.output(0)?, g.output(1)?);
        let dy = g.grad()?.clone();
        let rest = g.emit_with_rest(&[0, 3], GruBackward, &[&y, &gates, &w, &h0, &dy])?;
        let before = |_: &Gradients<'_>| {
            let steps = y.dims()[1];
            Tensor::concat(&[&h0.unsqueeze(1)?, &y.narrow(1, 0, steps - 1)?], 1)
        };
        parameter_gradients(g, self.precision, 1, Some(2), &rest[0], before)
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
        Ok(cuda::workspace(cuda::Pass::Backward, launch, gpu))
    }

    fn flops(&self, reads: &[&Shape], _: &[&Shape]) -> u64 {
        Sizes::of(reads[0]).flops()
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
        let operands = op.operands(&inputs)?;
        let operands: SmallVec<[&Tensor; 4]> = operands.iter().collect();
        let y = apply_all_on(op, &inputs, &operands)?.into_iter().next();
        y.ok_or_else(|| Error::internal(Gru::NAME, "no result"))
    }

    /// [`Tensor::gru`] into the memory of `dst`.
    ///
    /// # Errors
    /// The same, and if `dst` does not match the result.
    pub fn gru_into(&self, weight: &Tensor, bias: &Tensor, initial: &Tensor, dst: &Tensor) -> Result<()> {
        let (x, initial) = (of_precision(self)?, of_precision(initial)?);
        let (op, inputs) = gru(&x, weight, bias, &initial);
        let operands = op.operands(&inputs)?;
        let operands: SmallVec<[&Tensor; 4]> = operands.iter().collect();
        apply_into_on(op, &inputs, &operands, dst)
    }
}

/// A tensor in the dtype that the precision has for it.
fn of_precision(t: &Tensor) -> Result<Tensor> {
    t.to_dtype(precision().result(t.dtype()))
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
