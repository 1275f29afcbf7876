//! Stochastic gradient descent with momentum (Sutskever et al., "On the importance of initialization and momentum in
//! deep learning", ICML 2013), in the form of PyTorch.

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

/// The hyper-parameters of SGD. The default is plain gradient descent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SgdOptions {
    /// The decay rate of the momentum buffer, in `[0, 1)`.
    pub momentum: f64,
    /// This share of each parameter is added to its gradient. At least 0.
    pub weight_decay: f64,
}

/// The operands of a step of SGD. All flat buffers have one length and one floating-point dtype, and are contiguous.
#[derive(Clone, Copy)]
pub struct SgdBuffers<'a> {
    /// Updated in place.
    pub parameters: &'a Tensor,
    /// Read, then set to zero.
    pub gradients: &'a Tensor,
    /// Updated in place; start with zeros. `Some` if and only if momentum is not 0.
    pub momentum_buffer: Option<&'a Tensor>,
    /// The learning rate, f64 `[1]`.
    pub learning_rate: &'a Tensor,
    /// A factor that the gradients are multiplied by first, f64 `[1]`: the coefficient of gradient clipping, or 1.
    /// Minus infinity skips the step.
    pub gradient_scale: &'a Tensor,
    /// Which elements are updated, and how. Elements outside all segments do not change.
    pub segments: &'a SegmentTable,
}

#[derive(Clone, Debug)]
struct Sgd {
    options: SgdOptions,
    /// The number of flat buffers: 2, or 3 with momentum.
    flat: usize,
}

/// The numbers of a step that all elements of a segment share.
struct Coefficients<R> {
    scale: R,
    momentum: R,
    decay: R,
    rate: R,
}

/// One step of SGD as in `torch.optim.SGD`, in one launch. It also sets all gradients to zero:
///
/// ```text
/// g = gradient * gradient_scale + weight_decay * decay_factor * p
/// b = momentum * b + g
/// p -= learning_rate * rate_factor * b
/// ```
///
/// Segments that are not trainable keep their parameters and momentum.
///
/// # Errors
/// If an option is out of its range, a buffer has another shape or dtype than [`SgdBuffers`] says, two buffers share
/// memory, or the segment table is longer than the buffers.
pub fn sgd(options: SgdOptions, buffers: SgdBuffers<'_>) -> Result<()> {
    let b = buffers;
    let flat: SmallVec<[&Tensor; 3]> =
        [Some(b.parameters), Some(b.gradients), b.momentum_buffer].into_iter().flatten().collect();
    check_flat(Sgd::NAME, &flat)?;
    check_table(Sgd::NAME, b.segments, b.parameters)?;
    if (options.momentum != 0.0) != b.momentum_buffer.is_some() {
        return Err(Error::invalid(
            Sgd::NAME,
            "a momentum buffer is needed if and only if momentum is not 0; pass Some(buffer of zeros) or None",
        ));
    }
    let mut dests: SmallVec<[Dest; 3]> = SmallVec::new();
    for t in &flat {
        check_in_place(Sgd::NAME, t)?;
        dests.push(Dest::Into(t.untracked(), Mode::Replace));
    }
    let op = Sgd { options, flat: flat.len() };
    let controls = [b.learning_rate, b.gradient_scale, b.segments.ranges(), b.segments.settings()];
    let inputs: SmallVec<[&Tensor; 7]> = flat.into_iter().chain(controls).collect();
    execute(&op, &inputs, &dests)?;
    Ok(())
}

impl Op for Sgd {
    const NAME: &'static str = "sgd";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        let SgdOptions { momentum, weight_decay } = self.options;
        let range = "at least 0 and less than 1";
        check_option(Self::NAME, "momentum", momentum, (0.0..1.0).contains(&momentum), range)?;
        check_option(Self::NAME, "weight_decay", weight_decay, weight_decay >= 0.0, "at least 0")?;
        check_control(Self::NAME, "learning rate", x[self.flat], DType::F64)?;
        check_control(Self::NAME, "gradient scale", x[self.flat + 1], DType::F64)?;
        Ok(x[..self.flat].iter().map(|t| Spec::like(t)).collect())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        with_float!(args, args.write_dtype(0), T, R => self.run::<T, R>(args))
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::sgd(&self.options, self.flat, args)
    }

    fn in_place(&self, output: usize, input: usize) -> bool {
        output == input
    }
}

impl Sgd {
    fn run<T: Stored, R: Real>(&self, args: &HostArgs<'_>) -> Result<()> {
        let learning_rate = args.read::<f64>(self.flat)?[0];
        let scale = args.read::<f64>(self.flat + 1)?[0];
        let table = SegmentView::read(args, self.flat + 2, scale)?;
        let SgdOptions { momentum, weight_decay } = self.options;
        let coefficients = |settings: SegmentSettings| Coefficients::<R> {
            scale: R::c(scale),
            momentum: R::c(momentum),
            decay: R::c(weight_decay * settings.decay_factor),
            rate: R::c(learning_rate * settings.rate_factor),
        };
        let (p, g) = (args.write::<T>(0)?, args.write::<T>(1)?);
        if self.flat == 3 {
            let b = args.write::<T>(2)?;
            sweep([p, g, b], &table, &|[p, g, b], settings| match settings.trainable {
                true => with_momentum(p, g, b, &coefficients(settings)),
                false => g.fill(T::from_number(R::ZERO)),
            });
        } else {
            sweep([p, g], &table, &|[p, g], settings| match settings.trainable {
                true => plain(p, g, &coefficients(settings)),
                false => g.fill(T::from_number(R::ZERO)),
            });
        }
        Ok(())
    }
}

#[inline(always)]
fn with_momentum<T: Stored, R: Real>(p: &mut [T], g: &mut [T], b: &mut [T], c: &Coefficients<R>) {
    simd(
        #[inline(always)]
        || {
            for ((p, g), b) in p.iter_mut().zip(g).zip(b) {
                let value = p.to::<R>();
                let velocity = c.momentum * b.to::<R>() + (g.to::<R>() * c.scale + c.decay * value);
                *p = T::from_number(value - c.rate * velocity);
                *g = T::from_number(<R as Number>::ZERO);
                *b = T::from_number(velocity);
            }
        },
    );
}

#[inline(always)]
fn plain<T: Stored, R: Real>(p: &mut [T], g: &mut [T], c: &Coefficients<R>) {
    simd(
        #[inline(always)]
        || {
            for (p, g) in p.iter_mut().zip(g) {
                let value = p.to::<R>();
                *p = T::from_number(value - c.rate * (g.to::<R>() * c.scale + c.decay * value));
                *g = T::from_number(<R as Number>::ZERO);
            }
        },
    );
}
