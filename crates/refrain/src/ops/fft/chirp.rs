//! Transforms of sizes with a large prime factor, as a convolution (Bluestein, 1970).
//!
//! From `j k = (j^2 + k^2 - (k - j)^2) / 2` follows `X[k] = c[k] sum over j of (x[j] c[j]) conj c[k - j]`, with the chirp
//! `c[j] = exp(-pi i j^2 / n)`. The sum is a convolution, which transforms of a power of two compute.

use crate::autograd::no_grad;
use crate::error::Result;
use crate::tensor::{DType, Tensor};

/// The transform, or the inverse one, of complex numbers, scaled.
pub(super) fn complex(
    re: &Tensor,
    im: &Tensor,
    axis: usize,
    inverse: bool,
    scale: f64,
) -> Result<(Tensor, Tensor)> {
    // The inverse transform of numbers whose parts are swapped has its parts swapped.
    if inverse {
        let (im, re) = complex(im, re, axis, false, scale)?;
        return Ok((re, im));
    }
    let (dtype, compute) = (re.dtype(), re.dtype().accumulator());
    let n = re.dims()[axis];
    let chirp = no_grad(|| Chirp::new(n, axis, re, compute))?;
    let (re, im) = product((&re.to_dtype(compute)?, &im.to_dtype(compute)?), (&chirp.re, &chirp.im))?;
    let padded = |x: &Tensor| -> Result<Tensor> {
        let mut padding = vec![(0, 0); x.rank()];
        padding[axis].1 = chirp.size - n;
        x.pad(&padding, 0.0)
    };
    let (re, im) = padded(&re)?.fft(&padded(&im)?, axis as isize)?;
    let (re, im) = product((&re, &im), (&chirp.window.0, &chirp.window.1))?;
    let (re, im) = re.ifft(&im, axis as isize)?;
    let (re, im) = (re.narrow(axis as isize, 0, n)?, im.narrow(axis as isize, 0, n)?);
    let (re, im) = product((&re, &im), (&chirp.re, &chirp.im))?;
    let scaled = |x: Tensor| if scale == 1.0 { Ok(x) } else { x.mul_scalar(scale) };
    Ok((scaled(re)?.to_dtype(dtype)?, scaled(im)?.to_dtype(dtype)?))
}

/// [`Tensor::rfft`].
pub(super) fn forward(x: &Tensor, axis: usize) -> Result<(Tensor, Tensor)> {
    let bins = x.dims()[axis] / 2 + 1;
    let (re, im) = complex(x, &x.zeros_like()?, axis, false, 1.0)?;
    Ok((re.narrow(axis as isize, 0, bins)?, im.narrow(axis as isize, 0, bins)?))
}

/// [`Tensor::irfft`], scaled.
pub(super) fn inverse(re: &Tensor, im: &Tensor, n: usize, axis: usize, scale: f64) -> Result<Tensor> {
    let at = axis as isize;
    // Bins that have a conjugate.
    let pairs = (n - 1) / 2;
    let (re_of_pairs, im_of_pairs) = (re.narrow(at, 1, pairs)?, im.narrow(at, 1, pairs)?);
    let edge = im.narrow(at, 0, 1)?.zeros_like()?;
    let last = if n.is_multiple_of(2) { Some(&edge) } else { None };
    let mirrored = im_of_pairs.flip(at)?.neg()?;
    let im: Vec<&Tensor> = [&edge, &im_of_pairs].into_iter().chain(last).chain([&mirrored]).collect();
    let (re, im) = (Tensor::concat(&[re, &re_of_pairs.flip(at)?], at)?, Tensor::concat(&im, at)?);
    Ok(complex(&re, &im, axis, true, scale)?.0)
}

/// The product of complex numbers.
fn product(a: (&Tensor, &Tensor), b: (&Tensor, &Tensor)) -> Result<(Tensor, Tensor)> {
    Ok((a.0.mul(b.0)?.sub(&a.1.mul(b.1)?)?, a.0.mul(b.1)?.add(&a.1.mul(b.0)?)?))
}

/// The chirp of `n` numbers, and the transform of its conjugate around 0, by a size that has room for the convolution. Their shapes
/// have 1 for all other axes.
struct Chirp {
    re: Tensor,
    im: Tensor,
    size: usize,
    window: (Tensor, Tensor),
}

impl Chirp {
    fn new(n: usize, axis: usize, like: &Tensor, dtype: DType) -> Result<Chirp> {
        let size = (2 * n - 1).next_power_of_two();
        // The square modulo 2 n, so that the angle is small. Squares of places are exact up to 2^53.
        let places = Tensor::arange(0.0, n as f64, 1.0, DType::F64, like.device())?;
        let squares = places.square()?;
        let turns = squares.div_scalar(2.0 * n as f64)?.floor()?.mul_scalar(2.0 * n as f64)?;
        let angles = squares.sub(&turns)?.mul_scalar(-std::f64::consts::PI / n as f64)?;
        let mut shape = vec![1; like.rank()];
        let along = |x: Tensor, shape: &mut Vec<usize>| -> Result<Tensor> {
            shape[axis] = x.numel();
            x.to_dtype(dtype)?.reshape(&**shape)
        };
        let (re, im) = (along(angles.cos()?, &mut shape)?, along(angles.sin()?, &mut shape)?);
        let at = axis as isize;
        let around = |x: &Tensor| -> Result<Tensor> {
            let mut none = shape.clone();
            none[axis] = size - (2 * n - 1);
            let none = Tensor::zeros(&*none, dtype, like.device())?;
            Tensor::concat(&[x, &none, &x.narrow(at, 1, n - 1)?.flip(at)?], at)
        };
        let window = around(&re)?.fft(&around(&im.neg()?)?, at)?;
        Ok(Chirp { re, im, size, window })
    }
}
