//! Batch normalisation: normalises each channel over all other axes.

mod cuda;
mod host;

use smallvec::SmallVec;

use super::layer_norm::{check_eps, check_parameters};
use super::{Dest, OnTape, Op, Spec, Specs, execute, spans_apart};
use crate::autograd::{self, Gradients, Saves, TapeEntry};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch, Mode};
use crate::error::{Error, Result};
use crate::kernels::reduction::Extent;
use crate::tensor::{Tensor, resolve_axis};

/// Operands: x, weight, bias, running mean, running variance. Results: y; mean and 1/std of each channel; in training
/// also the new running statistics, in the memory of the old ones.
#[derive(Clone, Copy, Debug)]
struct BatchNorm {
    /// The channels are the middle axis.
    extent: Extent,
    training: bool,
    momentum: f64,
    eps: f64,
}

impl Op for BatchNorm {
    const NAME: &'static str = "batch_norm";

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let x = inputs[0];
        x.require_float(Self::NAME)?;
        check_eps(Self::NAME, self.eps)?;
        check_parameters(Self::NAME, x, &inputs[1..], self.extent.n)?;
        let mut specs = Spec::like(x).one();
        let statistic = Spec::new([self.extent.n], x.dtype().accumulator());
        specs.extend([statistic.clone(), statistic]);
        if self.training {
            if !(0.0..=1.0).contains(&self.momentum) {
                let message = format!("momentum is {}; use a number from 0 to 1, such as 0.1", self.momentum);
                return Err(Error::invalid(Self::NAME, message));
            }
            let values = self.extent.outer * self.extent.inner;
            if values < 2 {
                return Err(Error::invalid(
                    Self::NAME,
                    format!(
                        "a tensor of shape {} has {values} values per channel, too few for a variance; use a larger batch, or evaluation mode",
                        x.shape()
                    ),
                ));
            }
            specs.extend([Spec::like(inputs[3]), Spec::like(inputs[4])]);
        }
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::forward(self, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(self, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(if self.training { cuda::workspace(self.extent, launch.reads[0].dtype) } else { 0 })
    }

    /// Only running statistics are read and written in place.
    fn in_place(&self, output: usize, input: usize) -> bool {
        matches!((output, input), (3, 3) | (4, 4))
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0).input(1).output(1).output(2)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (x, weight, dy) = (g.input(0)?, g.input(1)?, g.grad()?.clone());
        let (mean, inv) = (g.output(1)?, g.output(2)?);
        g.emit(&[0, 1, 2], BatchNormBackward(*self), &[&x, &weight, &dy, &mean, &inv])
    }
}

/// Operands: x, weight, dy, mean and 1/std. Results: dx, dweight, dbias.
#[derive(Clone, Copy, Debug)]
struct BatchNormBackward(BatchNorm);

impl Op for BatchNormBackward {
    const NAME: &'static str = "batch_norm_backward";

    fn infer(&self, inputs: &[&Tensor]) -> Result<Specs> {
        let mut specs = Spec::like(inputs[0]).one();
        specs.extend([Spec::like(inputs[1]), Spec::like(inputs[1])]);
        Ok(specs)
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        host::backward(self.0.extent, self.0.training, args)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.0.extent, self.0.training, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(self.0.extent, launch.reads[0].dtype))
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

/// The operands other than x.
type Parameters<'a> = [&'a Tensor; 4];

fn run(x: &Tensor, parameters: Parameters<'_>, op: BatchNorm, dst: Option<&Tensor>) -> Result<Tensor> {
    // For the backward pass, the running statistics are constants.
    let [weight, bias, mean, var] = parameters;
    let (running_mean, running_var) = (mean.untracked(), var.untracked());
    let inputs = [x, weight, bias, &running_mean, &running_var];
    let mut dests: SmallVec<[Dest; 5]> = SmallVec::new();
    dests.push(match dst {
        None => Dest::New,
        Some(dst) => {
            autograd::check_destination(BatchNorm::NAME, &inputs, dst)?;
            Dest::Into(dst.clone(), Mode::Replace)
        }
    });
    if op.training {
        if !spans_apart(mean, var) && !mean.layout().is_disjoint(var.layout()) {
            return Err(Error::Aliased {
                op: BatchNorm::NAME,
                message: "running mean and running variance share memory, so each would overwrite the other; give each a tensor of its own".to_string(),
            });
        }
        dests.extend([Dest::New, Dest::New]);
        for running in [mean, var] {
            autograd::check_in_place(BatchNorm::NAME, running)?;
            dests.push(Dest::Into(running.untracked(), Mode::Replace));
        }
    }
    autograd::check_operands(BatchNorm::NAME, &inputs)?;
    let function = OnTape(op);
    let recording = TapeEntry::begin(&function, &inputs, &inputs);
    let mut outputs = execute(&function.0, &inputs, &dests)?;
    outputs.truncate(3);
    match (dst, recording) {
        (Some(dst), recording) => {
            outputs[0] = dst.clone();
            autograd::wrote_into(function, recording, dst, &outputs);
        }
        (None, Some(recording)) => recording.finish(function, &outputs),
        (None, None) => {}
    }
    Ok(outputs.swap_remove(0))
}

#[allow(clippy::too_many_arguments)] // The operation has this many operands; each has the same name everywhere.
impl Tensor {
    /// Batch normalisation: `(x - mean) / sqrt(var + eps) * weight + bias`, with mean and variance of each
    /// channel (Ioffe and Szegedy, 2015).
    ///
    /// `x` and the parameters are floats. Channels are axis `axis` of `x` (1 in `[batch, channels, ...]`). `weight`,
    /// `bias` and the running statistics are `[channels]`, of the dtype of `x`, or all f32 if `x` is f16 or bf16. The
    /// result has the dtype of `x`.
    ///
    /// In training, mean and (biased) variance are those of `x` over all other axes. The running statistics are
    /// updated in place with the unbiased variance: `running = (1 - momentum) * running + momentum * new`. A channel
    /// whose new running mean or variance is not finite (`x` has an infinity, a NaN or too large values) keeps both old
    /// ones; PyTorch stores the infinity or NaN. In evaluation, mean and variance are the running ones. They get no
    /// gradient.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or `eps` is negative or not finite. In training also if `momentum` is not in
    /// 0 to 1, if there are fewer than two values per channel, or if the running statistics share memory or require a
    /// gradient.
    pub fn batch_norm(
        &self,
        weight: &Tensor,
        bias: &Tensor,
        running_mean: &Tensor,
        running_var: &Tensor,
        axis: isize,
        training: bool,
        momentum: f64,
        eps: f64,
    ) -> Result<Tensor> {
        let axis = resolve_axis(BatchNorm::NAME, axis, self.rank())?;
        let parameters = [weight, bias, running_mean, running_var];
        let op = |x: &Tensor, axis| {
            let op = BatchNorm { extent: Extent::of_axis(x, axis), training, momentum, eps };
            run(x, parameters, op, None)
        };
        if axis != 1 || !self.has_channels_last() {
            return op(self, axis);
        }
        // Errors name the shape of these images.
        let extent = Extent::of_axis(self, axis);
        BatchNorm { extent, training, momentum, eps }.infer(&[
            self,
            weight,
            bias,
            running_mean,
            running_var,
        ])?;
        Ok(op(&self.pixels_first()?, 3)?.channels_first())
    }

    /// [`Tensor::batch_norm`] into the memory of `dst`.
    pub fn batch_norm_into(
        &self,
        weight: &Tensor,
        bias: &Tensor,
        running_mean: &Tensor,
        running_var: &Tensor,
        axis: isize,
        training: bool,
        momentum: f64,
        eps: f64,
        dst: &Tensor,
    ) -> Result<()> {
        let extent = Extent::of_axis(self, resolve_axis(BatchNorm::NAME, axis, self.rank())?);
        let op = BatchNorm { extent, training, momentum, eps };
        run(self, [weight, bias, running_mean, running_var], op, Some(dst)).map(|_| ())
    }
}
