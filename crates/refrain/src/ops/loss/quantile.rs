//! The quantile loss.

use rayon::prelude::*;
use smallvec::SmallVec;

use super::host::{BLOCK, gradient, put, total_of};
use super::{Reduction, cuda, result};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::numeric::{Real, with_mixed};
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::simd;
use crate::device::cpu::widen::{Widened, output};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::rows::{each_task, map, rows_a_task, sum};
use crate::ops::{Op, Spec, Specs, apply, apply_into};
use crate::tensor::{DType, Tensor, check_devices};

type Levels = SmallVec<[f64; 9]>;

/// The mean of `max(q e, (q - 1) e)` with `e = target - prediction`.
#[derive(Clone, Debug)]
struct QuantileLoss {
    levels: Levels,
}

impl QuantileLoss {
    /// Checks the operands and returns the dtype of the loss.
    fn check(&self, prediction: &Tensor, target: &Tensor) -> Result<DType> {
        prediction.require_float(Self::NAME)?;
        let dtype = result(Self::NAME, prediction, target)?;
        if let Some(q) = self.levels.iter().find(|q| !(**q > 0.0 && **q < 1.0)) {
            return Err(Error::invalid(Self::NAME, format!("level {q} is not between 0 and 1")));
        }
        match prediction.dims().split_last() {
            Some((&count, shape)) if count == self.levels.len() && count > 0 && shape == target.dims() => {
                Ok(dtype)
            }
            _ => Err(Error::shapes(
                Self::NAME,
                prediction.shape(),
                target.shape(),
                format!(
                    "the prediction must have the shape of the target plus one more axis of size {} (one for each level; pass at least one level)",
                    self.levels.len()
                ),
            )),
        }
    }
}

impl Op for QuantileLoss {
    const NAME: &'static str = "quantile_loss";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new((), self.check(x[0], x[1])?).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_mixed!(args, args.read_dtype(0), args.read_dtype(1), _T, _U, R => forward::<R>(&self.levels, args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::quantile(&self.levels, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::workspace(launch, 1))
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0).input(1)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (x, t, dy) = (g.input(0)?, g.input(1)?, g.grad()?.clone());
        for by in 0..2 {
            if g.needs(by) {
                g.emit(&[by], QuantileLossBackward { levels: self.levels.clone(), by }, &[&x, &t, &dy])?;
            }
        }
        Ok(())
    }
}

/// The gradient of the prediction (`by` 0) or of the target. Operands: prediction, target and dy.
#[derive(Clone, Debug)]
struct QuantileLossBackward {
    levels: Levels,
    by: usize,
}

impl Op for QuantileLossBackward {
    const NAME: &'static str = "quantile_loss_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[self.by]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_mixed!(args, args.read_dtype(0), args.read_dtype(1), _T, _U, R => {
            backward::<R>(&self.levels, self.by, args)
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::quantile_backward(&self.levels, self.by, args)
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

/// How many targets form a block, so that it has about [`BLOCK`] elements of the prediction.
fn targets_a_block(levels: usize) -> usize {
    (BLOCK / levels).max(1)
}

/// Repeats each number `levels` times.
#[inline(always)]
fn repeat_each<R: Real>(t: &[R], levels: usize, to: &mut [R]) {
    to.chunks_exact_mut(levels).zip(t).for_each(|(to, t)| to.fill(*t));
}

fn forward<R: Real>(levels: &[f64], args: &HostArgs<'_>) -> Result<()> {
    let (x, t) = (Widened::<R>::operand(args, 0)?, Widened::<R>::operand(args, 1)?);
    let (x, t) = (x.get(), t.get());
    let count = levels.len();
    let (block, task) = (targets_a_block(count), rows_a_task(count));
    let tasks = x.par_chunks(task * count).zip(t.par_chunks(task));
    let total = total_of(x.len(), tasks, |(x, t)| {
        with_scratch(2 * block * count, |buf: &mut [R]| {
            let (q, t_buf) = buf.split_at_mut(block * count);
            q.chunks_exact_mut(count)
                .for_each(|q| q.iter_mut().zip(levels).for_each(|(to, &q)| *to = R::c(q)));
            simd(
                #[inline(always)]
                || {
                    let mut total = 0.0;
                    for (x, t) in x.chunks(block * count).zip(t.chunks(block)) {
                        let n = x.len();
                        repeat_each(t, count, &mut t_buf[..n]);
                        let e = |[x, t, q]: [R; 3]| {
                            let e = t - x;
                            if e < R::ZERO { (q - R::ONE) * e } else { q * e }
                        };
                        total += sum([x, &t_buf[..n], &q[..n]], e).to_f64();
                    }
                    total
                },
            )
        })
    });
    put(args, total / x.len() as f64)
}

fn backward<R: Real>(levels: &[f64], by: usize, args: &HostArgs<'_>) -> Result<()> {
    let (x, t) = (Widened::<R>::operand(args, 0)?, Widened::<R>::operand(args, 1)?);
    let dy: R = gradient(args, 2)?;
    let accumulate = args.accumulate(0);
    output(args, 0, |dx| gradients(levels, by, dy, x.get(), t.get(), dx, accumulate))
}

/// Writes or adds the gradient of the prediction (`by` 0) or of the target.
fn gradients<R: Real>(levels: &[f64], by: usize, dy: R, x: &[R], t: &[R], dx: &mut [R], accumulate: bool) {
    let count = levels.len();
    let scale = dy * R::c(1.0 / x.len() as f64);
    // The slope of the loss is q above the prediction, q - 1 below it, the mean of both at it, and NaN for NaN.
    let slope = |x: R, t: R, q: R| {
        if t > x {
            q
        } else if t < x {
            q - R::ONE
        } else {
            q - R::c(0.5) + (t - x)
        }
    };
    let task = rows_a_task(count);
    // Elements of the result per target.
    let width = if by == 0 { count } else { 1 };
    let tasks = dx.par_chunks_mut(task * width).zip(x.par_chunks(task * count)).zip(t.par_chunks(task));
    each_task(x.len(), tasks, |((dx, x), t)| {
        with_scratch(count, |slopes: &mut [R]| {
            simd(
                #[inline(always)]
                || {
                    for ((dx, x), &t) in dx.chunks_exact_mut(width).zip(x.chunks_exact(count)).zip(t) {
                        for ((s, &x), &q) in slopes.iter_mut().zip(x).zip(levels) {
                            *s = slope(x, t, R::c(q));
                        }
                        if by == 0 {
                            map(dx, [slopes], accumulate, |[s]| -scale * s);
                        } else {
                            map(dx, [&[slopes.iter().copied().sum()]], accumulate, |[s]: [R; 1]| scale * s);
                        }
                    }
                },
            )
        })
    });
}

impl Tensor {
    /// The quantile (pinball) loss of this prediction: the mean of `max(q e, (q - 1) e)` over all elements
    /// and levels `q`, with `e = target - prediction` (Koenker and Bassett, 1978).
    ///
    /// The target is a float tensor `[...]`, the prediction `[..., levels.len()]` of the same dtype; position i of
    /// the last axis predicts the quantile of `levels[i]`. Levels are between 0 and 1. The result is a scalar; it is
    /// NaN if there are no elements. Under [`Precision::Bf16`](crate::Precision::Bf16) prediction and target may each
    /// be f32 or bf16, and the loss is f32. At `e = 0` the derivative is the mean of both sides. If `e` is NaN, the
    /// derivative is NaN, as in [`Tensor::mse_loss`], so that a missing value is not taken for a known one. On a GPU
    /// there are at most 256 levels.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or a level is not between 0 and 1. The levels 0 and 1 themselves are
    /// refused: their loss is 0 for every prediction below (above) all targets, so it has no unique minimum. Use the
    /// smallest (largest) target instead.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let device = Device::cpu();
    /// let prediction = Tensor::from_slice(&[1.0f32, 2.0, 5.0], [1, 3], &device)?;
    /// let target = Tensor::from_slice(&[4.0f32], [1], &device)?;
    /// // e = 3, 2 and -1
    /// let loss = prediction.quantile_loss(&target, &[0.25, 0.5, 0.75])?;
    /// assert_eq!(loss.to_scalar::<f32>()?, (0.75 + 1.0 + 0.25) / 3.0);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn quantile_loss(&self, target: &Tensor, levels: &[f64]) -> Result<Tensor> {
        apply(QuantileLoss { levels: levels.into() }, &[self, target])
    }

    /// [`Tensor::quantile_loss`] with the losses of the elements, in the shape of the prediction, or their sum, in place of the
    /// mean. Without the mean it is composed of elementwise operations; f16 and bf16 are computed in f32.
    ///
    /// # Errors
    /// As [`Tensor::quantile_loss`].
    pub fn quantile_loss_reduced(
        &self,
        target: &Tensor,
        levels: &[f64],
        reduction: Reduction,
    ) -> Result<Tensor> {
        let loss = QuantileLoss { levels: levels.into() };
        check_devices(QuantileLoss::NAME, &[self, target])?;
        let dtype = loss.check(self, target)?;
        if reduction == Reduction::Mean {
            return apply(loss, &[self, target]);
        }
        let wide = dtype.accumulator();
        let (x, t) = (self.to_dtype(wide)?, target.to_dtype(wide)?);
        let of_level = |(i, &q): (usize, &f64)| {
            let e = t.sub(&x.select(-1, i)?)?;
            e.mul_scalar(q)?.maximum(&e.mul_scalar(q - 1.0)?)
        };
        let losses = levels.iter().enumerate().map(of_level).collect::<Result<Vec<_>>>()?;
        let losses = Tensor::stack(&losses.iter().collect::<Vec<_>>(), -1)?;
        reduction.of(losses)?.to_dtype(dtype)
    }

    /// [`Tensor::quantile_loss`] into the memory of `dst`.
    pub fn quantile_loss_into(&self, target: &Tensor, levels: &[f64], dst: &Tensor) -> Result<()> {
        apply_into(QuantileLoss { levels: levels.into() }, &[self, target], dst)
    }
}
