//! Cross entropy with class ids.

use rayon::prelude::*;

use super::host::{gradient, put, total_of};
use super::{cuda, result};
use crate::autograd::{Gradients, Saves};
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::simd;
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch};
use crate::error::{Error, Result};
use crate::kernels::blocks::in_blocks;
use crate::kernels::elementwise::Runs;
use crate::kernels::positions::{Position, check_places, check_range, require_positions, with_positions};
use crate::kernels::rows::{each_task, load, map, max, rows_a_task, sum};
use crate::ops::{Op, Spec, Specs, apply, apply_into};
use crate::tensor::Tensor;

/// Operands: logits and ids. Results: the loss; and for each row its largest logit and 1 / the sum of `e^(x -
/// largest)`. These two are kept separately, because beside a large logit the logarithm of the sum would lose digits.
#[derive(Clone, Copy, Debug)]
struct CrossEntropy {
    smoothing: f64,
}

impl Op for CrossEntropy {
    const NAME: &'static str = "cross_entropy";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let (logits, ids) = (x[0], x[1]);
        logits.require_float(Self::NAME)?;
        require_positions(Self::NAME, "class ids (the second operand)", ids)?;
        if !(0.0..=1.0).contains(&self.smoothing) {
            let message = format!("label smoothing is {}; use a number from 0 to 1", self.smoothing);
            return Err(Error::invalid(Self::NAME, message));
        }
        match logits.dims().split_last() {
            Some((&classes, rows)) if rows == ids.dims() => {
                check_places(Self::NAME, ids.shape(), classes, || "0 classes".to_string())?;
                let mut specs = Spec::new((), result(Self::NAME, logits, logits)?).one();
                let statistic = Spec::new(ids.shape(), logits.dtype().accumulator());
                specs.extend([statistic.clone(), statistic]);
                Ok(specs)
            }
            _ => Err(Error::shapes(
                Self::NAME,
                logits.shape(),
                ids.shape(),
                "logits must have the shape of the class ids plus one more axis for the classes",
            )),
        }
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, ids => {
            with_float!(args, args.read_dtype(0), T, R => forward::<T, R, _>(self.smoothing, ids, args))
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::cross_entropy(self.smoothing, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::cross_entropy_workspace(launch))
    }

    fn saves(&self, _: &[bool]) -> Saves {
        Saves::default().input(0).input(1).output(1).output(2)
    }

    fn backward(&self, g: &mut Gradients<'_>) -> Result<()> {
        let (x, ids, dy) = (g.input(0)?, g.input(1)?, g.grad()?.clone());
        let (largest, inverse) = (g.output(1)?, g.output(2)?);
        g.emit(&[0], CrossEntropyBackward(*self), &[&x, &ids, &largest, &inverse, &dy])
    }
}

/// Operands: logits, ids, what the forward pass saved for each row, and dy. Result: `dy / rows * (softmax(logits) -
/// target)`.
#[derive(Clone, Copy, Debug)]
struct CrossEntropyBackward(CrossEntropy);

impl Op for CrossEntropyBackward {
    const NAME: &'static str = "cross_entropy_backward";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::like(x[0]).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_positions!(args, 1, ids => {
            with_float!(args, args.read_dtype(0), T, R => backward::<T, R, _>(self.0.smoothing, ids, args))
        })
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::cross_entropy_backward(self.0.smoothing, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn accumulates(&self, _: usize) -> bool {
        true
    }
}

/// Checks that each class id is below `classes`.
fn check_ids<I: Position>(args: &HostArgs<'_>, ids: &[I], classes: usize) -> Result<()> {
    check_range(args, 1, ids, classes, || format!("{classes} classes"))
}

fn forward<T: Stored, R: Real, I: Position>(smoothing: f64, ids: &[I], args: &HostArgs<'_>) -> Result<()> {
    let x = args.read::<T>(0)?;
    let classes = args.read_shape(0).last().copied().unwrap_or(0);
    check_ids(args, ids, classes)?;
    let (largest, inverse) = (args.write::<R>(1)?, args.write::<R>(2)?);
    let task = rows_a_task(classes);
    let tasks = largest
        .par_chunks_mut(task)
        .zip(inverse.par_chunks_mut(task))
        .zip(x.par_chunks(task * classes.max(1)))
        .zip(ids.par_chunks(task));
    let total = total_of(x.len(), tasks, |(((largest, inverse), x), ids)| {
        let copied = if R::same(x).is_some() { 0 } else { x.len() };
        with_scratch(copied, |buf: &mut [R]| losses(smoothing, load(x, buf), ids, classes, largest, inverse))
    });
    put(args, total / ids.len() as f64)
}

/// The sum of the losses of some rows, and what the backward pass needs of each.
fn losses<R: Real, I: Position>(
    smoothing: f64,
    x: &[R],
    ids: &[I],
    classes: usize,
    largest: &mut [R],
    inverse: &mut [R],
) -> f64 {
    let share = R::c(1.0 / classes as f64);
    let (picked, level) = (R::c(1.0 - smoothing), R::c(smoothing));
    simd(
        #[inline(always)]
        || {
            let mut total = 0.0;
            let rows = largest.iter_mut().zip(inverse).zip(x.chunks_exact(classes)).zip(ids);
            for (((largest, inverse), x), &id) in rows {
                let shift = max(x);
                let powers = sum([x], |[x]| (x - shift).exp());
                let log = powers.ln();
                (*largest, *inverse) = (shift, R::ONE / powers);
                let x_id = id.within(classes).map_or(R::c(f64::NAN), |id| x[id]);
                let mut loss = picked * (log + (shift - x_id));
                if smoothing > 0.0 {
                    loss += level * (log + share * sum([x], |[x]| shift - x));
                }
                total += loss.to_f64();
            }
            total
        },
    )
}

fn backward<T: Stored, R: Real, I: Position>(smoothing: f64, ids: &[I], args: &HostArgs<'_>) -> Result<()> {
    let x = args.read::<T>(0)?;
    let classes = args.read_shape(0).last().copied().unwrap_or(0);
    check_ids(args, ids, classes)?;
    let (largest, inverse) = (args.read::<R>(2)?, args.read::<R>(3)?);
    let dy: R = gradient(args, 4)?;
    let (dx, accumulate) = (args.write::<T>(0)?, args.accumulate(0));
    if x.is_empty() {
        return Ok(());
    }
    let scale = dy * R::c(1.0 / ids.len() as f64);
    let task = rows_a_task(classes);
    let tasks = dx
        .par_chunks_mut(task * classes)
        .zip(x.par_chunks(task * classes))
        .zip(largest.par_chunks(task).zip(inverse.par_chunks(task)).zip(ids.par_chunks(task)));
    each_task(x.len(), tasks, |((dx, x), ((largest, inverse), ids))| {
        let x = Runs { data: x, step: classes };
        in_blocks([x], dx, classes, accumulate, &mut |first, [x], dx, accumulate| {
            let kept = [&largest[first..], &inverse[first..]];
            gradients(smoothing, scale, x.data, &ids[first..], kept, classes, dx, accumulate);
        });
    });
    Ok(())
}

/// The gradients of some rows, from what the forward pass kept of each.
#[expect(clippy::too_many_arguments, reason = "the operands and options of one kernel")]
fn gradients<R: Real, I: Position>(
    smoothing: f64,
    scale: R,
    x: &[R],
    ids: &[I],
    [largest, inverse]: [&[R]; 2],
    classes: usize,
    dx: &mut [R],
    accumulate: bool,
) {
    let (picked, level) = (scale * R::c(1.0 - smoothing), scale * R::c(smoothing / classes as f64));
    with_scratch(classes, |d: &mut [R]| {
        simd(
            #[inline(always)]
            || {
                let rows = dx.chunks_exact_mut(classes).zip(x.chunks_exact(classes));
                let kept = largest.iter().zip(inverse);
                for ((dx, x), ((&shift, &inverse), &id)) in rows.zip(kept.zip(ids)) {
                    let share = scale * inverse;
                    map(d, [x], false, |[x]| (x - shift).exp() * share - level);
                    match id.within(classes) {
                        Some(id) => d[id] = d[id] - picked,
                        None => d.fill(R::c(f64::NAN)),
                    }
                    map(dx, [d], accumulate, |[d]| d);
                }
            },
        )
    });
}

impl Tensor {
    /// The cross entropy of these logits with class ids: the mean of `-log_softmax(logits)[id]` over all rows.
    ///
    /// Logits are floats `[..., classes]`; ids are i64 or i32 `[...]`. The result is a scalar of the dtype of the
    /// logits (under [`Precision::Bf16`](crate::Precision::Bf16): f32 for bf16 logits). It is NaN if there are no
    /// rows.
    ///
    /// # Errors
    /// If shapes or dtypes do not match, or an id is not in `0..classes`. On the CPU the error names the first such
    /// id, and nothing is written. On a GPU a later call on the device returns the error
    /// ([`Device::synchronize`](crate::Device::synchronize)); such an id makes the loss and the gradient of its row
    /// NaN.
    pub fn cross_entropy(&self, ids: &Tensor) -> Result<Tensor> {
        self.cross_entropy_smoothed(ids, 0.0)
    }

    /// [`Tensor::cross_entropy`] into the memory of `dst`.
    pub fn cross_entropy_into(&self, ids: &Tensor, dst: &Tensor) -> Result<()> {
        self.cross_entropy_smoothed_into(ids, 0.0, dst)
    }

    /// [`Tensor::cross_entropy`] with smoothed labels: a share of `label_smoothing` (0 to 1) of the target is spread
    /// evenly over all classes (Szegedy et al., 2016).
    pub fn cross_entropy_smoothed(&self, ids: &Tensor, label_smoothing: f64) -> Result<Tensor> {
        apply(CrossEntropy { smoothing: label_smoothing }, &[self, ids])
    }

    /// [`Tensor::cross_entropy_smoothed`] into the memory of `dst`.
    pub fn cross_entropy_smoothed_into(
        &self,
        ids: &Tensor,
        label_smoothing: f64,
        dst: &Tensor,
    ) -> Result<()> {
        apply_into(CrossEntropy { smoothing: label_smoothing }, &[self, ids], dst)
    }
}
