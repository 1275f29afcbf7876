//! Lion: Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.

use super::sweep::{SegmentSettings, SegmentView, check_table, sweep};
use super::{SegmentTable, check_control, check_flat, check_option, cuda};
use crate::autograd::check_in_place;
use crate::device::cpu::numeric::{Number, Real, Stored, with_float};
use crate::device::cpu::simd::simd;
use crate::device::{CudaArgs, HostArgs, Mode};
use crate::error::Result;
use crate::ops::{Dest, Op, Spec, Specs, execute};
use crate::tensor::{DType, Tensor};

/// The hyper-parameters of Lion; the default is that of the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LionOptions {
    /// The share of the running mean in the direction of a step, and the decay rate of the running mean; each in `[0, 1)`.
    pub betas: (f64, f64),
    /// The weight decay, as a factor of the learning rate. At least 0.
    pub weight_decay: f64,
}

impl Default for LionOptions {
    fn default() -> LionOptions {
        LionOptions { betas: (0.9, 0.99), weight_decay: 0.0 }
    }
}

/// The operands of a step of Lion. All flat buffers have one length and one floating-point dtype, and are contiguous.
#[derive(Clone, Copy)]
pub struct LionBuffers<'a> {
    /// Updated in place.
    pub parameters: &'a Tensor,
    /// Read, then set to zero.
    pub gradients: &'a Tensor,
    /// The running mean of the gradient, updated in place.
    pub exp_avg: &'a Tensor,
    /// The learning rate, f64 `[1]`.
    pub learning_rate: &'a Tensor,
    /// A factor that the gradients are multiplied by first, f64 `[1]`: the coefficient of gradient clipping, or 1. Minus infinity
    /// skips the step.
    pub gradient_scale: &'a Tensor,
    /// Which elements are updated, and how. Elements outside all segments do not change.
    pub segments: &'a SegmentTable,
}

#[derive(Clone, Debug)]
struct Lion {
    options: LionOptions,
}

/// The number of flat buffers.
const FLAT: usize = 3;

/// The numbers of a step that all elements of a segment share.
struct Coefficients<R> {
    scale: R,
    beta1: R,
    one_minus_beta1: R,
    beta2: R,
    one_minus_beta2: R,
    keep: R,
    rate: R,
}

/// One step of Lion, in one launch. It also sets all gradients to zero:
///
/// ```text
/// g  = gradient * gradient_scale;   lr = learning_rate * rate_factor
/// u  = sign(beta1 m + (1 - beta1) g);   m = beta2 m + (1 - beta2) g
/// p  = (1 - lr * weight_decay * decay_factor) p - lr * u
/// ```
///
/// Segments that are not trainable keep their parameters and running means.
///
/// # Errors
/// If an option is out of its range, a buffer has another shape or dtype than [`LionBuffers`] says, two buffers share memory, or
/// the segment table is longer than the buffers.
pub fn lion(options: LionOptions, buffers: LionBuffers<'_>) -> Result<()> {
    let b = buffers;
    let flat = [b.parameters, b.gradients, b.exp_avg];
    check_flat(Lion::NAME, &flat)?;
    check_table(Lion::NAME, b.segments, b.parameters)?;
    for t in flat {
        check_in_place(Lion::NAME, t)?;
    }
    let dests = flat.map(|t| Dest::Into(t.untracked(), Mode::Replace));
    let [p, g, m] = flat;
    let inputs = [p, g, m, b.learning_rate, b.gradient_scale, b.segments.ranges(), b.segments.settings()];
    execute(&Lion { options }, &inputs, &dests)?;
    Ok(())
}

impl Op for Lion {
    const NAME: &'static str = "lion";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let LionOptions { betas, weight_decay } = self.options;
        for (name, beta) in [("betas.0", betas.0), ("betas.1", betas.1)] {
            check_option(Self::NAME, name, beta, (0.0..1.0).contains(&beta), "at least 0 and less than 1")?;
        }
        check_option(Self::NAME, "weight_decay", weight_decay, weight_decay >= 0.0, "at least 0")?;
        check_control(Self::NAME, "learning rate", x[FLAT], DType::F64)?;
        check_control(Self::NAME, "gradient scale", x[FLAT + 1], DType::F64)?;
        Ok(x[..FLAT].iter().map(|t| Spec::like(t)).collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_float!(args, args.write_dtype(0), T, R => self.run::<T, R>(args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::lion(&self.options, args)
    }

    fn in_place(&self, output: usize, input: usize) -> bool {
        output == input
    }
}

impl Lion {
    fn run<T: Stored, R: Real>(&self, args: &HostArgs<'_>) -> Result<()> {
        let LionOptions { betas: (beta1, beta2), weight_decay } = self.options;
        let learning_rate = args.read::<f64>(FLAT)?[0];
        let scale = args.read::<f64>(FLAT + 1)?[0];
        let table = SegmentView::read(args, FLAT + 2, scale)?;
        let buffers = [args.write::<T>(0)?, args.write(1)?, args.write(2)?];
        sweep(buffers, &table, &|[p, g, m], settings: SegmentSettings| {
            if !settings.trainable {
                return g.fill(T::from_number(R::ZERO));
            }
            let rate = learning_rate * settings.rate_factor;
            let c = Coefficients {
                scale: R::c(scale),
                beta1: R::c(beta1),
                one_minus_beta1: R::c(1.0 - beta1),
                beta2: R::c(beta2),
                one_minus_beta2: R::c(1.0 - beta2),
                keep: R::c(1.0 - rate * weight_decay * settings.decay_factor),
                rate: R::c(rate),
            };
            update(p, g, m, &c);
        });
        Ok(())
    }
}

#[inline(always)]
fn update<T: Stored, R: Real>(p: &mut [T], g: &mut [T], m: &mut [T], c: &Coefficients<R>) {
    simd(
        #[inline(always)]
        || {
            for ((p, g), m) in p.iter_mut().zip(g).zip(m) {
                let (gradient, mean) = (g.to::<R>() * c.scale, m.to::<R>());
                let mixed = c.beta1 * mean + c.one_minus_beta1 * gradient;
                // The sign; NaN stays NaN.
                let zero = <R as Number>::ZERO;
                let sign = if mixed > zero {
                    R::ONE
                } else if mixed < zero {
                    -R::ONE
                } else {
                    mixed
                };
                *p = T::from_number(c.keep * p.to::<R>() - c.rate * sign);
                *g = T::from_number(zero);
                *m = T::from_number(c.beta2 * mean + c.one_minus_beta2 * gradient);
            }
        },
    );
}
