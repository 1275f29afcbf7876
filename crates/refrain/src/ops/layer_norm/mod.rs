//! Normalisation of the last axis: layer norm, and RMS norm, which does not subtract the mean and has no bias.

mod cuda;
mod host;

use smallvec::SmallVec;

use super::{Op, Spec, Specs, apply, apply_into, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, KernelSet, Launch};
use crate::error::{Error, Result};
use crate::tensor::{DType, Shape, Tensor};

/// Operands: x, weight, and bias if centred. Results: y, 1/std (or 1/rms) of each row, and the mean of each row if
/// centred.
#[derive(Clone, Copy, Debug)]
struct LayerNorm {
    centred: bool,
    eps: f64,
}

/// Checks the small number that avoids division by 0.
pub(crate) fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    if eps >= 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(op, format!("eps is {eps}; use a finite number of at least 0, such as 1e-5")))
}

/// Checks parameter vectors with one element for each of `n` features: they have the dtype of `x`, or are all f32 if
/// `x` is f16 or bf16.
pub(crate) fn check_parameters(op: &'static str, x: &Tensor, parameters: &[&Tensor], n: usize) -> Result<()> {
    for parameter in parameters {
        if !parameter.dtype().is_parameter_of(x.dtype()) {
            return Err(Error::dtypes(op, x.dtype(), parameter.dtype()));
        }
        check_dtypes(op, parameters[0], parameter)?;
        if parameter.dims() != [n] {
            return Err(Error::shapes(
                op,
                x.shape(),
                parameter.shape(),
                format!("parameters of a normalisation over {n} features must have shape [{n}]"),
            ));
        }
    }
    Ok(())
}

impl Op for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn name(&self) -> &'static str {
        if self.centred { "layer_norm" } else { "rms_norm" }
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let (op, x) = (self.name(), inputs[0]);
        x.require_float(op)?;
        check_eps(op, self.eps)?;
        let Some((&width, rows)) = x.dims().split_last() else {
            return Err(Error::invalid(
                op,
                "a scalar has no axis to normalise; pass a tensor of one axis or more",
            ));
        };
        check_parameters(op, x, &inputs[1..], width)?;
        let statistic = Spec::new(rows, x.dtype().accumulator());
        let mut specs = Spec::like(x).one();
        specs.push(statistic.clone());
        if self.centred {
            specs.push(statistic);
        }
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self.centred, self.eps, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self.centred, self.eps, args)
    }

    fn saves(&self, _: &[bool]) -> Saves {
        let saves = Saves::default().input(0).input(1).output(1);
        if self.centred { saves.output(2) } else { saves }
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (x, weight, inv, dy) = (g.input(0)?, g.input(1)?, g.output(1)?, g.grad()?.clone());
        let (centred, dtype) = (self.centred, weight.dtype());
        let mean = centred.then(|| g.output(2)).transpose()?;
        let operands: SmallVec<[&Tensor; 5]> = [&x, &weight, &dy, &inv].into_iter().chain(&mean).collect();
        let sums = g.emit_with_rest(&[0], LayerNormBackward { centred, parts: parts(&x) }, &operands)?;
        // A separate launch, so that what needs dx does not wait for this sum.
        match centred {
            true if g.needs(1) || g.needs(2) => {
                g.emit(&[1, 2], ParameterSums { centred, dtype }, &[&sums[0]])
            }
            false if g.needs(1) => g.emit(&[1], ParameterSums { centred, dtype }, &[&sums[0]]),
            _ => Ok(()),
        }
    }
}

/// How many parts the device's kernel uses for the gradients of the parameters.
fn parts(x: &Tensor) -> usize {
    let (rows, width) = rows_of(x.shape());
    match x.device().kernels() {
        KernelSet::Cuda => cuda::parts(rows, width, x.dtype()),
        KernelSet::Host => host::parts(rows, width),
    }
}

/// Number of rows and their width.
fn rows_of(shape: &Shape) -> (usize, usize) {
    match shape.split_last() {
        Some((&width, rows)) => (rows.iter().product(), width),
        None => (1, 1),
    }
}

/// Operands: x, weight, dy, 1/std, and the mean if centred. Results: dx, and what each part of the rows adds to
/// dweight and dbias, `[parts, width, 2]` in the dtype of the statistics.
#[derive(Clone, Copy, Debug)]
struct LayerNormBackward {
    centred: bool,
    parts: usize,
}

impl Op for LayerNormBackward {
    const NAME: &'static str = "layer_norm_backward";

    fn name(&self) -> &'static str {
        if self.centred { "layer_norm_backward" } else { "rms_norm_backward" }
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let (x, inv) = (inputs[0], inputs[3]);
        let mut specs = Spec::like(x).one();
        specs.push(Spec::new([self.parts, rows_of(x.shape()).1, 2], inv.dtype()));
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.centred, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.centred, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(launch))
    }

    fn accumulates(&self, o: usize) -> bool {
        o == 0
    }
}

/// Operand: the sums of the parts, `[parts, width, 2]`. Results: dweight, and dbias if centred, in the dtype of the
/// parameters.
#[derive(Clone, Copy, Debug)]
struct ParameterSums {
    centred: bool,
    dtype: DType,
}

impl Op for ParameterSums {
    const NAME: &'static str = "layer_norm_parameters_backward";

    fn name(&self) -> &'static str {
        if self.centred { Self::NAME } else { "rms_norm_weight_backward" }
    }

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let width = inputs[0].dims()[1];
        let results = if self.centred { 2 } else { 1 };
        Ok((0..results).map(|_| Spec::new([width], self.dtype)).collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::parameters(self.centred, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::parameters(self.centred, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

impl Tensor {
    /// Layer normalisation of the last axis: `(x - mean) / sqrt(var + eps) * weight + bias`, with the
    /// biased variance (Ba, Kiros and Hinton, 2016).
    ///
    /// `x` is a float tensor `[..., d]`. `weight` and `bias` are `[d]`, of the dtype of `x`, or f32 if `x` is f16 or
    /// bf16. The result has the dtype of `x`. Statistics are f32 (for f64: f64). If `eps` is 0, a row of equal
    /// elements has variance 0, and its result and gradient are NaN, as in PyTorch.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or `eps` is negative or not finite.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 5.0, 5.0], [2, 2], &device)?;
    /// let (weight, bias) = (x.select(0, 0)?.ones_like()?, x.select(0, 0)?.zeros_like()?);
    /// assert_eq!(x.layer_norm(&weight, &bias, 0.0)?.narrow(0, 0, 1)?.to_vec::<f32>()?, [-1.0, 1.0]);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn layer_norm(&self, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
        apply(LayerNorm { centred: true, eps }, &[self, weight, bias])
    }

    /// [`Tensor::layer_norm`] into the memory of `dst`.
    pub fn layer_norm_into(&self, weight: &Tensor, bias: &Tensor, eps: f64, dst: &Tensor) -> Result<()> {
        apply_into(LayerNorm { centred: true, eps }, &[self, weight, bias], dst)
    }

    /// Root-mean-square normalisation of the last axis: `x / sqrt(mean(x^2) + eps) * weight` (Zhang and
    /// Sennrich, 2019).
    ///
    /// `x` is a float tensor `[..., d]`. `weight` is `[d]`, of the dtype of `x`, or f32 if `x` is f16 or bf16. The
    /// result has the dtype of `x`. If `eps` is 0, a row of zeros gives NaN, and so does its gradient, as in PyTorch.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or `eps` is negative or not finite.
    pub fn rms_norm(&self, weight: &Tensor, eps: f64) -> Result<Tensor> {
        apply(LayerNorm { centred: false, eps }, &[self, weight])
    }

    /// [`Tensor::rms_norm`] into the memory of `dst`.
    pub fn rms_norm_into(&self, weight: &Tensor, eps: f64, dst: &Tensor) -> Result<()> {
        apply_into(LayerNorm { centred: false, eps }, &[self, weight], dst)
    }
}
