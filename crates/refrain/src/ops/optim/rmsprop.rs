//! RMSprop: Tieleman and Hinton, "Lecture 6.5", 2012; centred and with momentum: Graves, "Generating sequences with recurrent
//! neural networks", 2013. In the form of PyTorch.

use smallvec::SmallVec;

use super::sweep::{SegmentSettings, SegmentView, check_table, sweep};
use super::{SegmentTable, check_control, check_flat, check_option, cuda};
use crate::autograd::check_in_place;
use crate::device::cpu::numeric::{Number, Real, Stored, with_float};
use crate::device::cpu::simd::simd;
use crate::device::{CudaArgs, HostArgs, Mode};
use crate::error::{Error, Result};
use crate::ops::{Dest, Op, Spec, Specs, execute};
use crate::tensor::{DType, Tensor};

/// The hyper-parameters of RMSprop; the default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RmsPropOptions {
    /// The decay rate of the running means, in `[0, 1)`.
    pub alpha: f64,
    /// Added to the denominator. At least 0.
    pub eps: f64,
    /// This share of each parameter is added to its gradient. At least 0.
    pub weight_decay: f64,
    /// The decay rate of the momentum buffer, in `[0, 1)`.
    pub momentum: f64,
    /// Whether the gradient is divided by its standard deviation, instead of the root of its mean square.
    pub centered: bool,
}

impl Default for RmsPropOptions {
    fn default() -> RmsPropOptions {
        RmsPropOptions { alpha: 0.99, eps: 1e-8, weight_decay: 0.0, momentum: 0.0, centered: false }
    }
}

/// The operands of a step of RMSprop. All flat buffers have one length and one floating-point dtype, and are contiguous.
#[derive(Clone, Copy)]
pub struct RmsPropBuffers<'a> {
    /// Updated in place.
    pub parameters: &'a Tensor,
    /// Read, then set to zero.
    pub gradients: &'a Tensor,
    /// The running mean of the squared gradient, updated in place.
    pub square_avg: &'a Tensor,
    /// The running mean of the gradient, updated in place. `Some` if and only if the options say `centered`.
    pub grad_avg: Option<&'a Tensor>,
    /// Updated in place; start with zeros. `Some` if and only if momentum is not 0.
    pub momentum_buffer: Option<&'a Tensor>,
    /// The learning rate, f64 `[1]`.
    pub learning_rate: &'a Tensor,
    /// A factor that the gradients are multiplied by first, f64 `[1]`: the coefficient of gradient clipping, or 1. Minus infinity
    /// skips the step.
    pub gradient_scale: &'a Tensor,
    /// Which elements are updated, and how. Elements outside all segments do not change.
    pub segments: &'a SegmentTable,
}

#[derive(Clone, Debug)]
struct RmsProp {
    options: RmsPropOptions,
}

/// The numbers of a step that all elements of a segment share.
struct Coefficients<R> {
    scale: R,
    decay: R,
    alpha: R,
    one_minus_alpha: R,
    eps: R,
    momentum: R,
    rate: R,
}

/// One step of RMSprop as in `torch.optim.RMSprop`, in one launch. It also sets all gradients to zero:
///
/// ```text
/// g = gradient * gradient_scale + weight_decay * decay_factor * p
/// v = alpha v + (1 - alpha) g^2;    d = sqrt(v) + eps
/// a = a + (1 - alpha) (g - a);      d = sqrt(v - a^2) + eps        centered
/// b = momentum b + g / d;           p -= learning_rate * rate_factor * b
/// ```
///
/// If rounding makes `v - a^2` negative, it is taken as 0. Segments that are not trainable keep their parameters and running means.
///
/// # Errors
/// If an option is out of its range, a buffer has another shape or dtype than [`RmsPropBuffers`] says, is missing or not needed,
/// two buffers share memory, or the segment table is longer than the buffers.
pub fn rmsprop(options: RmsPropOptions, buffers: RmsPropBuffers<'_>) -> Result<()> {
    const OP: &str = RmsProp::NAME;
    let b = buffers;
    let flat: SmallVec<[&Tensor; 5]> =
        [Some(b.parameters), Some(b.gradients), Some(b.square_avg), b.grad_avg, b.momentum_buffer]
            .into_iter()
            .flatten()
            .collect();
    check_flat(OP, &flat)?;
    check_table(OP, b.segments, b.parameters)?;
    let pairs = [
        (options.centered, b.grad_avg, "a running mean of the gradient is needed if and only if `centered`"),
        (
            options.momentum != 0.0,
            b.momentum_buffer,
            "a momentum buffer is needed if and only if momentum is not 0",
        ),
    ];
    for (needs, buffer, message) in pairs {
        if needs != buffer.is_some() {
            return Err(Error::invalid(OP, format!("{message}; pass Some(buffer of zeros) or None")));
        }
    }
    let mut dests: SmallVec<[Dest; 5]> = SmallVec::new();
    for t in &flat {
        check_in_place(OP, t)?;
        dests.push(Dest::Into(t.untracked(), Mode::Replace));
    }
    let controls = [b.learning_rate, b.gradient_scale, b.segments.ranges(), b.segments.settings()];
    let inputs: SmallVec<[&Tensor; 9]> = flat.into_iter().chain(controls).collect();
    execute(&RmsProp { options }, &inputs, &dests)?;
    Ok(())
}

impl RmsPropOptions {
    /// The number of flat buffers.
    pub(super) fn flat(&self) -> usize {
        3 + usize::from(self.centered) + usize::from(self.momentum != 0.0)
    }
}

impl Op for RmsProp {
    const NAME: &'static str = "rmsprop";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let RmsPropOptions { alpha, eps, weight_decay, momentum, .. } = self.options;
        let range = "at least 0 and less than 1";
        check_option(Self::NAME, "alpha", alpha, (0.0..1.0).contains(&alpha), range)?;
        check_option(Self::NAME, "eps", eps, eps >= 0.0, "at least 0")?;
        check_option(Self::NAME, "weight_decay", weight_decay, weight_decay >= 0.0, "at least 0")?;
        check_option(Self::NAME, "momentum", momentum, (0.0..1.0).contains(&momentum), range)?;
        let flat = self.options.flat();
        check_control(Self::NAME, "learning rate", x[flat], DType::F64)?;
        check_control(Self::NAME, "gradient scale", x[flat + 1], DType::F64)?;
        Ok(x[..flat].iter().map(|t| Spec::like(t)).collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_float!(args, args.write_dtype(0), T, R => self.run::<T, R>(args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::rmsprop(&self.options, args)
    }

    fn in_place(&self, output: usize, input: usize) -> bool {
        output == input
    }
}

impl RmsProp {
    fn run<T: Stored, R: Real>(&self, args: &HostArgs<'_>) -> Result<()> {
        let RmsPropOptions { alpha, eps, weight_decay, momentum, centered } = self.options;
        let flat = self.options.flat();
        let learning_rate = args.read::<f64>(flat)?[0];
        let scale = args.read::<f64>(flat + 1)?[0];
        let table = SegmentView::read(args, flat + 2, scale)?;
        let coefficients = |settings: SegmentSettings| Coefficients::<R> {
            scale: R::c(scale),
            decay: R::c(weight_decay * settings.decay_factor),
            alpha: R::c(alpha),
            one_minus_alpha: R::c(1.0 - alpha),
            eps: R::c(eps),
            momentum: R::c(momentum),
            rate: R::c(learning_rate * settings.rate_factor),
        };
        let frozen = |g: &mut [T]| g.fill(T::from_number(R::ZERO));
        let (p, g, v) = (args.write::<T>(0)?, args.write::<T>(1)?, args.write::<T>(2)?);
        match (centered, momentum != 0.0) {
            (false, false) => sweep([p, g, v], &table, &|[p, g, v], settings| match settings.trainable {
                true => update::<T, R, false, false>([p, g, v, &mut [], &mut []], &coefficients(settings)),
                false => frozen(g),
            }),
            (true, false) => {
                let a = args.write::<T>(3)?;
                sweep([p, g, v, a], &table, &|[p, g, v, a], settings| match settings.trainable {
                    true => update::<T, R, true, false>([p, g, v, a, &mut []], &coefficients(settings)),
                    false => frozen(g),
                });
            }
            (false, true) => {
                let b = args.write::<T>(3)?;
                sweep([p, g, v, b], &table, &|[p, g, v, b], settings| match settings.trainable {
                    true => update::<T, R, false, true>([p, g, v, &mut [], b], &coefficients(settings)),
                    false => frozen(g),
                });
            }
            (true, true) => {
                let (a, b) = (args.write::<T>(3)?, args.write::<T>(4)?);
                sweep([p, g, v, a, b], &table, &|[p, g, v, a, b], settings| match settings.trainable {
                    true => update::<T, R, true, true>([p, g, v, a, b], &coefficients(settings)),
                    false => frozen(g),
                });
            }
        }
        Ok(())
    }
}

/// Parameters, gradients, squares, and, if they are used, means and momentum.
#[inline(always)]
fn update<T: Stored, R: Real, const CENTERED: bool, const MOMENTUM: bool>(
    [p, g, v, a, b]: [&mut [T]; 5],
    c: &Coefficients<R>,
) {
    simd(
        #[inline(always)]
        || {
            let n = p.len();
            let (g, v) = (&mut g[..n], &mut v[..n]);
            let a = if CENTERED { &mut a[..n] } else { a };
            let b = if MOMENTUM { &mut b[..n] } else { b };
            for i in 0..n {
                let value = p[i].to::<R>();
                let gradient = g[i].to::<R>() * c.scale + c.decay * value;
                let square = c.alpha * v[i].to::<R>() + c.one_minus_alpha * gradient * gradient;
                let mut variance = square;
                if CENTERED {
                    let mean = a[i].to::<R>() + c.one_minus_alpha * (gradient - a[i].to::<R>());
                    variance = square - mean * mean;
                    variance = if variance < <R as Number>::ZERO { <R as Number>::ZERO } else { variance };
                    a[i] = T::from_number(mean);
                }
                let mut change = gradient / (variance.sqrt() + c.eps);
                if MOMENTUM {
                    change = c.momentum * b[i].to::<R>() + change;
                    b[i] = T::from_number(change);
                }
                p[i] = T::from_number(value - c.rate * change);
                g[i] = T::from_number(<R as Number>::ZERO);
                v[i] = T::from_number(square);
            }
        },
    );
}
