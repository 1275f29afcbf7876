//! Gradient clipping by the global norm: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural
//! networks", ICML 2013.

use rayon::prelude::*;
use smallvec::smallvec;

use super::{check_control, check_flat, cuda};
use crate::autograd::check_in_place;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::{parallel, scratch::with_scratch, simd::simd};
use crate::device::cuda::Gpu;
use crate::device::{CudaArgs, HostArgs, Launch, Mode};
use crate::error::{Error, Result};
use crate::ops::{Dest, Op, Spec, Specs, execute};
use crate::tensor::{DType, Tensor};

/// Elements per task.
const TASK: usize = 1 << 14;
/// Independent sums in parallel, for SIMD registers.
const LANES: usize = 16;

#[derive(Clone, Debug)]
struct ClipCoefficient {
    max_norm: f64,
}

/// The global norm of flat gradients, and the factor that brings it down to at most `max_norm`, as in
/// `torch.nn.utils.clip_grad_norm_`:
///
/// ```text
/// norm = sqrt(sum g^2);  coefficient = min(1, max_norm / (norm + 1e-6))
/// ```
///
/// `gradients` is one-dimensional, contiguous, of any floating-point dtype. Norm and coefficient are f64 `[1]`.
/// Squares are added in f64, in an order that depends only on the length. A NaN among the gradients makes both NaN.
/// `max_norm` may be infinite; then the coefficient is 1.
///
/// # Errors
/// If `max_norm` is negative or NaN, or the gradients are not a flat buffer.
pub fn clip_coefficient(gradients: &Tensor, max_norm: f64) -> Result<(Tensor, Tensor)> {
    check_flat(ClipCoefficient::NAME, &[gradients])?;
    let mut out = execute(&ClipCoefficient { max_norm }, &[gradients], &[])?;
    match (out.pop(), out.pop()) {
        (Some(coefficient), Some(norm)) => Ok((norm, coefficient)),
        _ => Err(Error::internal(ClipCoefficient::NAME, "a result is missing")),
    }
}

/// [`clip_coefficient`] into the memory of `norm` and `coefficient`, both f64 `[1]`.
pub fn clip_coefficient_into(
    gradients: &Tensor,
    max_norm: f64,
    norm: &Tensor,
    coefficient: &Tensor,
) -> Result<()> {
    const OP: &str = ClipCoefficient::NAME;
    check_flat(OP, &[gradients])?;
    for (role, t) in [("norm", norm), ("coefficient", coefficient)] {
        check_control(OP, role, t, DType::F64)?;
        check_in_place(OP, t)?;
    }
    if !super::spans_apart(norm, coefficient) {
        return Err(Error::Aliased {
            op: OP,
            message: "norm and coefficient share memory; pass two tensors".to_string(),
        });
    }
    let dests = [norm, coefficient].map(|t| Dest::Into(t.clone(), Mode::Replace));
    execute(&ClipCoefficient { max_norm }, &[gradients], &dests)?;
    Ok(())
}

impl Op for ClipCoefficient {
    const NAME: &'static str = "clip_coefficient";

    fn infer(&self, _: &[&Tensor]) -> Result<Specs> {
        if self.max_norm.is_nan() || self.max_norm < 0.0 {
            return Err(Error::invalid(
                Self::NAME,
                format!("max_norm is {}; it must be at least 0", self.max_norm),
            ));
        }
        Ok(smallvec![Spec::new(1, DType::F64), Spec::new(1, DType::F64)])
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        let sum = with_float!(args, args.read_dtype(0), T, R => {
            let x = args.read::<T>(0)?;
            Ok(sum_of_squares::<T, R>(x))
        })?;
        let norm = sum.sqrt();
        let coefficient = self.max_norm / (norm + 1e-6);
        args.write::<f64>(0)?[0] = norm;
        // NaN stays NaN.
        args.write::<f64>(1)?[0] =
            if coefficient > 1.0 || self.max_norm == f64::INFINITY { 1.0 } else { coefficient };
        Ok(())
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        cuda::clip(self.max_norm, args)
    }

    fn cuda_workspace(&self, launch: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
        Ok(cuda::clip_workspace(launch))
    }
}

/// The sum of the squares: of [`TASK`] elements at a time, and of these sums in halves.
fn sum_of_squares<T: Stored, R: Real>(x: &[T]) -> f64 {
    with_scratch(x.len().div_ceil(TASK), |sums: &mut [f64]| {
        parallel::for_each(sums.len() > 1, sums.par_iter_mut().zip(x.par_chunks(TASK)), |(sum, x)| {
            *sum = squares::<T, R>(x);
        });
        in_halves(sums, x.len())
    })
}

/// The sum of the sums of `n` elements.
fn in_halves(sums: &[f64], n: usize) -> f64 {
    if n <= TASK {
        return sums.first().copied().unwrap_or(0.0);
    }
    let middle = (n / 2).next_multiple_of(TASK);
    let (left, right) = sums.split_at(middle / TASK);
    in_halves(left, middle) + in_halves(right, n - middle)
}

#[inline(always)]
fn squares<T: Stored, R: Real>(x: &[T]) -> f64 {
    simd(
        #[inline(always)]
        || {
            let mut lanes = [0.0f64; LANES];
            let chunks = x.chunks_exact(LANES);
            let rest = chunks.remainder();
            for chunk in chunks {
                for (lane, &v) in lanes.iter_mut().zip(chunk) {
                    let v = v.to::<R>().to_f64();
                    *lane += v * v;
                }
            }
            for (lane, &v) in lanes.iter_mut().zip(rest) {
                let v = v.to::<R>().to_f64();
                *lane += v * v;
            }
            lanes.iter().sum()
        },
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_sum_does_not_depend_on_the_number_of_threads() {
        let sum = |x: &[f32]| super::sum_of_squares::<f32, f32>(x).to_bits();
        let x: Vec<f32> = (0..5 * super::TASK + 13).map(|i| (i as f32 * 0.37).sin()).collect();
        assert_eq!(crate::device::cpu::parallel::with_threads(3, || sum(&x)), sum(&x));
    }
}
