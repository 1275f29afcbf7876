//! Adam: Kingma and Ba, ICLR 2015; and AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.

use super::sweep::{SegmentSettings, SegmentView, check_table, sweep};
use super::{SegmentTable, check_control, check_flat, check_option, cuda};
use crate::autograd::check_in_place;
use crate::device::cpu::numeric::{Number, Real, Stored, with_float};
use crate::device::cpu::simd::simd;
use crate::device::{CudaArgs, HostArgs, Mode};
use crate::error::{Error, Result};
use crate::ops::{Dest, Op, Spec, Specs, execute};
use crate::tensor::{DType, Tensor};

/// The hyper-parameters of AdamW; the default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AdamWOptions {
    /// The decay rates of the running means of the gradient and of its square, each in `[0, 1)`.
    pub betas: (f64, f64),
    /// Added to the denominator. At least 0.
    pub eps: f64,
    /// The weight decay, as a factor of the learning rate. At least 0.
    pub weight_decay: f64,
}

impl Default for AdamWOptions {
    fn default() -> AdamWOptions {
        AdamWOptions { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.01 }
    }
}

/// The hyper-parameters of Adam; the default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct AdamOptions {
    /// The decay rates of the running means of the gradient and of its square, each in `[0, 1)`.
    pub betas: (f64, f64),
    /// Added to the denominator. At least 0.
    pub eps: f64,
    /// This share of each parameter is added to its gradient (L2 regularisation). At least 0.
    pub weight_decay: f64,
}

impl Default for AdamOptions {
    fn default() -> AdamOptions {
        AdamOptions { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 }
    }
}

/// The operands of a step of Adam or AdamW. All flat buffers have one length and one floating-point dtype, and are
/// contiguous.
#[derive(Clone, Copy)]
pub struct AdamWBuffers<'a> {
    /// Updated in place.
    pub parameters: &'a Tensor,
    /// Read, then set to zero.
    pub gradients: &'a Tensor,
    /// The running mean of the gradient, updated in place.
    pub exp_avg: &'a Tensor,
    /// The running mean of the squared gradient, updated in place.
    pub exp_avg_sq: &'a Tensor,
    /// How many steps were done before this one, i64 `[1]`. This step does not advance it.
    pub step: &'a Tensor,
    /// The learning rate, f64 `[1]`.
    pub learning_rate: &'a Tensor,
    /// A factor that the gradients are multiplied by first, f64 `[1]`: the coefficient of gradient clipping, or 1.
    /// Minus infinity skips the step.
    pub gradient_scale: &'a Tensor,
    /// Which elements are updated, and how. Elements outside all segments do not change.
    pub segments: &'a SegmentTable,
}

#[derive(Clone, Debug)]
struct Adam {
    options: AdamWOptions,
    /// Whether weight decay acts on the parameters (AdamW), and not on the gradients (Adam).
    decoupled: bool,
}

/// The valid range of the step counter.
const STEPS: std::ops::Range<i64> = 0..i64::MAX;

/// The numbers of a step that all elements of a segment share.
struct Coefficients<R> {
    scale: R,
    one_minus_beta1: R,
    beta2: R,
    one_minus_beta2: R,
    /// Weight decay of the gradients, and what decay leaves of the parameters.
    decay: R,
    keep: R,
    step_size: R,
    root_correction: R,
    eps: R,
}

/// One step of AdamW as in `torch.optim.AdamW`, in one launch. It also sets all gradients to zero:
///
/// ```text
/// g  = gradient * gradient_scale;  t = step + 1;  lr = learning_rate * rate_factor
/// p -= lr * weight_decay * decay_factor * p
/// m += (1 - beta1) (g - m);        v = beta2 v + (1 - beta2) g^2
/// p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// ```
///
/// Segments that are not trainable keep their parameters and moments.
///
/// # Errors
/// If an option is out of its range, the step counter is negative or `i64::MAX`, a buffer has another shape or dtype
/// than [`AdamWBuffers`] says, two buffers share memory, or the segment table is longer than the buffers.
pub fn adamw(options: AdamWOptions, buffers: AdamWBuffers<'_>) -> Result<()> {
    run(&Adam { options, decoupled: true }, buffers)
}

/// One step of Adam as in `torch.optim.Adam`, in one launch. It also sets all gradients to zero:
///
/// ```text
/// g  = gradient * gradient_scale + weight_decay * decay_factor * p
/// t  = step + 1;                   lr = learning_rate * rate_factor
/// m += (1 - beta1) (g - m);        v = beta2 v + (1 - beta2) g^2
/// p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// ```
///
/// Segments that are not trainable keep their parameters and moments.
///
/// # Errors
/// As for [`adamw`].
pub fn adam(options: AdamOptions, buffers: AdamWBuffers<'_>) -> Result<()> {
    let AdamOptions { betas, eps, weight_decay } = options;
    run(&Adam { options: AdamWOptions { betas, eps, weight_decay }, decoupled: false }, buffers)
}

fn run(op: &Adam, b: AdamWBuffers<'_>) -> Result<()> {
    let name = op.name();
    let flat = [b.parameters, b.gradients, b.exp_avg, b.exp_avg_sq];
    check_flat(name, &flat)?;
    check_table(name, b.segments, b.parameters)?;
    for t in flat {
        check_in_place(name, t)?;
    }
    let controls = [b.step, b.learning_rate, b.gradient_scale, b.segments.ranges(), b.segments.settings()];
    let [p, g, m, v] = flat;
    let [step, rate, scale, ranges, settings] = controls;
    let dests = flat.map(|t| Dest::Into(t.untracked(), Mode::Replace));
    execute(op, &[p, g, m, v, step, rate, scale, ranges, settings], &dests)?;
    Ok(())
}

impl Op for Adam {
    const NAME: &'static str = "adamw";

    fn name(&self) -> &'static str {
        if self.decoupled { Self::NAME } else { "adam" }
    }

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let AdamWOptions { betas, eps, weight_decay } = self.options;
        for (name, beta) in [("betas.0", betas.0), ("betas.1", betas.1)] {
            check_option(self.name(), name, beta, (0.0..1.0).contains(&beta), "at least 0 and less than 1")?;
        }
        check_option(self.name(), "eps", eps, eps >= 0.0, "at least 0")?;
        check_option(self.name(), "weight_decay", weight_decay, weight_decay >= 0.0, "at least 0")?;
        check_control(self.name(), "step counter", x[4], DType::I64)?;
        check_control(self.name(), "learning rate", x[5], DType::F64)?;
        check_control(self.name(), "gradient scale", x[6], DType::F64)?;
        Ok(x[..4].iter().map(|t| Spec::like(t)).collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_float!(args, args.write_dtype(0), T, R => self.run::<T, R>(args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::adam(&self.options, self.decoupled, args)
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn in_place(&self, output: usize, input: usize) -> bool {
        output == input
    }
}

impl Adam {
    fn run<T: Stored, R: Real>(&self, args: &HostArgs<'_>) -> Result<()> {
        let step = args.read::<i64>(4)?[0];
        if !STEPS.contains(&step) {
            let message = format!(
                "the step counter is {step}; set it to the number of steps done, from 0 to {}",
                i64::MAX - 1
            );
            // On a GPU nothing changes then.
            return args.fault(Error::invalid(self.name(), message));
        }
        let learning_rate = args.read::<f64>(5)?[0];
        let scale = args.read::<f64>(6)?[0];
        let table = SegmentView::read(args, 7, scale)?;
        let buffers = [args.write::<T>(0)?, args.write(1)?, args.write(2)?, args.write(3)?];
        let AdamWOptions { betas: (beta1, beta2), eps, weight_decay } = self.options;
        let t = (step + 1) as f64;
        let (correction1, correction2) = (1.0 - beta1.powf(t), 1.0 - beta2.powf(t));
        sweep(buffers, &table, &|[p, g, m, v], settings: SegmentSettings| {
            if !settings.trainable {
                return g.fill(T::from_number(R::ZERO));
            }
            let rate = learning_rate * settings.rate_factor;
            let c = Coefficients {
                scale: R::c(scale),
                one_minus_beta1: R::c(1.0 - beta1),
                beta2: R::c(beta2),
                one_minus_beta2: R::c(1.0 - beta2),
                decay: R::c(weight_decay * settings.decay_factor),
                keep: R::c(1.0 - rate * weight_decay * settings.decay_factor),
                step_size: R::c(rate / correction1),
                root_correction: R::c(correction2.sqrt()),
                eps: R::c(eps),
            };
            match self.decoupled {
                true => update::<T, R, true>(p, g, m, v, &c),
                false => update::<T, R, false>(p, g, m, v, &c),
            }
        });
        Ok(())
    }
}

#[inline(always)]
fn update<T: Stored, R: Real, const DECOUPLED: bool>(
    p: &mut [T],
    g: &mut [T],
    m: &mut [T],
    v: &mut [T],
    c: &Coefficients<R>,
) {
    simd(
        #[inline(always)]
        || {
            for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
                let mut gradient = g.to::<R>() * c.scale;
                let mut value = p.to::<R>();
                if DECOUPLED {
                    value = c.keep * value;
                } else {
                    gradient += c.decay * value;
                }
                let mean = m.to::<R>() + c.one_minus_beta1 * (gradient - m.to::<R>());
                let square = c.beta2 * v.to::<R>() + c.one_minus_beta2 * gradient * gradient;
                let denominator = square.sqrt() / c.root_correction + c.eps;
                *p = T::from_number(value - c.step_size * (mean / denominator));
                *g = T::from_number(<R as Number>::ZERO);
                *m = T::from_number(mean);
                *v = T::from_number(square);
            }
        },
    );
}
