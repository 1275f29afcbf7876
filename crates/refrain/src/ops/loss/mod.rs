//! Losses: the mean over all elements as a scalar, in one pass.

mod cross_entropy;
mod cuda;
mod distance;
mod host;
mod quantile;
mod reduced;
mod weighted;

use super::{Needs, Op, Spec, Specs, apply, apply_into, check_dtypes};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::numeric::{Real, with_mixed};
use crate::device::cpu::simd::simd;
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::elementwise::{self, FloatTile};
use crate::kernels::rows::{map, sum};
use crate::precision::precision;
use crate::tensor::{DType, Tensor};
use crate::types::Precision;

pub use reduced::Reduction;
pub use weighted::CrossEntropyOptions;

/// The dtype of a loss: that of its operands; f32 in mixed precision, where these may be bf16 and f32.
fn result(op: &'static str, prediction: &Tensor, target: &Tensor) -> Result<DType> {
    let mixed = |t: &Tensor| precision().result(t.dtype()) == DType::BF16;
    if precision() == Precision::Bf16 && mixed(prediction) && mixed(target) {
        return Ok(DType::F32);
    }
    check_dtypes(op, prediction, target)?;
    Ok(prediction.dtype())
}

/// A function of the error `e = prediction - target`, or of both. The loss is its mean.
#[derive(Clone, Copy, Debug)]
enum Pointwise {
    /// `e^2`
    Mse,
    /// `|e|`
    L1,
    /// `e^2 / 2` up to delta, then its tangent.
    Huber { delta: f64 },
    /// `-t ln(p) - (1 - t) ln(1 - p)` with `p = sigmoid(x)`, computed from x: `max(x, 0) - x t + ln(1 + e^-|x|)`.
    Bce,
}

impl Pointwise {
    /// Checks the operands and returns the dtype of the loss.
    fn check(&self, x: &Tensor, t: &Tensor) -> Result<DType> {
        let op = self.name();
        x.require_float(op)?;
        let dtype = result(op, x, t)?;
        if x.shape() != t.shape() {
            let hint = "prediction and target must have the same shape";
            return Err(Error::shapes(op, x.shape(), t.shape(), hint));
        }
        match self {
            Pointwise::Huber { delta } if !(*delta > 0.0 && delta.is_finite()) => {
                Err(Error::invalid(op, format!("delta is {delta}; use a positive number")))
            }
            _ => Ok(dtype),
        }
    }
}

impl Pointwise {
    /// Adds the sums of all blocks of predictions and targets to a total, in order.
    fn add<R: Real>(self, mut total: f64, x: &[R], t: &[R]) -> f64 {
        simd(
            #[inline(always)]
            || {
                for (x, t) in x.chunks(host::BLOCK).zip(t.chunks(host::BLOCK)) {
                    let sum = match self {
                        Pointwise::Mse => sum([x, t], |[x, t]| (x - t) * (x - t)),
                        Pointwise::L1 => sum([x, t], |[x, t]| (x - t).abs()),
                        Pointwise::Bce => sum([x, t], |[x, t]| x.relu() - x * t + (-x.abs()).exp().log1p()),
                        Pointwise::Huber { delta } => {
                            let (delta, half) = (R::c(delta), R::c(0.5));
                            sum([x, t], |[x, t]| {
                                let e = x - t;
                                let a = e.abs();
                                if a < delta { half * e * e } else { delta * (a - half * delta) }
                            })
                        }
                    };
                    total += sum.to_f64();
                }
                total
            },
        )
    }
}

impl Op for Pointwise {
    const NAME: &'static str = "loss";

    fn name(&self) -> &'static str {
        match self {
            Pointwise::Mse => "mse_loss",
            Pointwise::L1 => "l1_loss",
            Pointwise::Huber { .. } => "huber_loss",
            Pointwise::Bce => "bce_with_logits",
        }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new((), self.check(x[0], x[1])?).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_mixed!(args, args.read_dtype(0), args.read_dtype(1), T, U, R => {
            host::mean_of::<T, U, R>(args, &|total, x, t| self.add(total, x, t))
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::forward(*self, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(launch, 2))
    }

    fn input_needs(&self, i: usize) -> Needs {
        match i {
            // A target is often a part of each window.
            1 => Needs::AllRows,
            _ => Needs::Contiguous,
        }
    }

    fn host_input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0).input(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (x, t) = (g.input(0)?, g.input(1)?);
        let dy = g.grad()?.broadcast_to(x.shape())?;
        for by in 0..2 {
            if g.needs(by) {
                let share = 1.0 / x.numel() as f64;
                let scale = if by == 0 || matches!(self, Pointwise::Bce) { share } else { -share };
                g.emit(&[by], PointwiseBackward { loss: *self, by, scale }, &[&x, &t, &dy])?;
            }
        }
        Ok(())
    }
}

/// Operands: prediction, target and dy. Result: `scale * dy * f'(e)`; of [`Pointwise::Bce`], `scale * dy` times the derivative
/// by the operand.
#[derive(Clone, Copy, Debug)]
struct PointwiseBackward {
    loss: Pointwise,
    /// The gradient of the prediction (0) or of the target (1).
    by: usize,
    scale: f64,
}

impl FloatTile for PointwiseBackward {
    fn tile<R: Real>(&self, x: &[&[R]], dx: &mut [R]) {
        let (x, scale, zero) = ([x[0], x[1], x[2]], R::c(self.scale), R::ZERO);
        simd(
            #[inline(always)]
            || match self.loss {
                Pointwise::Mse => map(dx, x, false, |[x, t, d]| (x - t) * ((scale + scale) * d)),
                Pointwise::L1 => map(dx, x, false, |[x, t, d]| {
                    let d = scale * d;
                    if x > t {
                        d
                    } else if x < t {
                        -d
                    } else {
                        zero * d
                    }
                }),
                Pointwise::Bce if self.by == 0 => {
                    map(dx, x, false, |[x, t, d]| (x.sigmoid() - t) * (scale * d))
                }
                Pointwise::Bce => map(dx, x, false, |[x, _, d]| -x * (scale * d)),
                Pointwise::Huber { delta } => {
                    let delta = R::c(delta);
                    map(dx, x, false, |[x, t, d]| {
                        let e = x - t;
                        let e = if e > delta { delta } else { e };
                        let e = if e < -delta { -delta } else { e };
                        e * (scale * d)
                    })
                }
            },
        )
    }
}

impl Op for PointwiseBackward {
    const NAME: &'static str = "loss_backward";

    fn name(&self) -> &'static str {
        match self.loss {
            Pointwise::Mse => "mse_loss_backward",
            Pointwise::L1 => "l1_loss_backward",
            Pointwise::Huber { .. } => "huber_loss_backward",
            Pointwise::Bce => "bce_with_logits_backward",
        }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[self.by]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        elementwise::float(args, args.write_dtype(0), self)
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::backward(self.loss, self.by, self.scale, args)
    }

    fn input_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn output_needs(&self, _: usize) -> Needs {
        Needs::Any
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident, $into:ident, $reduced:ident ($($arg:ident: $t:ty)?) => $op:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// Prediction and target are floats of one shape and one dtype. The result is a scalar; it is NaN if
            /// there are no elements. Both operands get gradients. Under [`Precision::Bf16`] each may be f32 or bf16,
            /// and the loss is f32.
            ///
            /// # Errors
            /// If shapes or dtypes differ, or a parameter is out of range.
            pub fn $name(&self, target: &Tensor $(, $arg: $t)?) -> Result<Tensor> {
                apply($op, &[self, target])
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] into the memory of `dst`.")]
            pub fn $into(&self, target: &Tensor $(, $arg: $t)?, dst: &Tensor) -> Result<()> {
                apply_into($op, &[self, target], dst)
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`] with the losses of the elements, or their sum, in place of the")]
            /// mean. Without the mean it is composed of elementwise operations; f16 and bf16 are computed in f32.
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($name), "`].")]
            pub fn $reduced(&self, target: &Tensor $(, $arg: $t)?, reduction: Reduction) -> Result<Tensor> {
                $op.reduced(self, target, reduction)
            }
        )*}
    };
}

methods! {
    /// The mean squared error, `mean((prediction - target)^2)`, of this prediction.
    mse_loss, mse_loss_into, mse_loss_reduced() => Pointwise::Mse;
    /// The binary cross entropy of these logits with probabilities (0 or 1 where the class is known): the mean of
    /// `-t ln(p) - (1 - t) ln(1 - p)` with `p = sigmoid(x)`. It is computed from the logits, so that no large one loses its
    /// gradient.
    bce_with_logits, bce_with_logits_into, bce_with_logits_reduced() => Pointwise::Bce;
    /// The mean absolute error, `mean(|prediction - target|)`, of this prediction. The derivative at 0 is 0.
    l1_loss, l1_loss_into, l1_loss_reduced() => Pointwise::L1;
    /// The Huber loss of this prediction, the mean over all errors `e = prediction - target` (Huber, 1964): `e^2 / 2`
    /// if `|e| < delta`, otherwise `delta (|e| - delta / 2)`. `delta` is positive.
    huber_loss, huber_loss_into, huber_loss_reduced(delta: f64) => Pointwise::Huber { delta };
}
