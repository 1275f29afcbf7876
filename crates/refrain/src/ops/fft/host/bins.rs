//! Between the bins of real numbers and the points of a complex transform. Where a point holds two real numbers, the points'
//! transform `Z` and the bins `X` of `n` numbers are related by the transforms `E` and `O` of those at even and at odd places:
//! `Z = E + i O`, `X[k] = E[k] + w^k O[k]`, and `X[n / 2 - k]` is the conjugate of `E[k] - w^k O[k]`, with `w = exp(-2 pi i / n)`.

use super::{Job, Planes};
use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::simd;

/// Bins of transformed points, scaled.
pub(super) fn from_points<R: Real>(job: &Job<'_, R>, lanes: usize, z: &Planes<'_, R>, x: &mut Planes<'_, R>) {
    let (n, points, halved) = (job.plan.n, job.plan.points, job.plan.is_halved());
    let (edge, middle) = job.op.factors();
    simd(
        #[inline(always)]
        || {
            for k in 0..n / 2 + 1 {
                let scale = R::c(if k == 0 || 2 * k == n { edge } else { middle });
                let half = R::c(0.5);
                let (c, s) = job.roots.at(k % n);
                let (a, b) = (k % points * lanes, (points - k % points) % points * lanes);
                let (a_re, a_im) = (&z.re[a..][..lanes], &z.im[a..][..lanes]);
                let (b_re, b_im) = (&z.re[b..][..lanes], &z.im[b..][..lanes]);
                let (x_re, x_im) = (&mut x.re[k * lanes..][..lanes], &mut x.im[k * lanes..][..lanes]);
                for l in 0..lanes {
                    (x_re[l], x_im[l]) = if halved {
                        let (e_re, e_im) = (half * (a_re[l] + b_re[l]), half * (a_im[l] - b_im[l]));
                        let (o_re, o_im) = (half * (a_im[l] + b_im[l]), half * (b_re[l] - a_re[l]));
                        (scale * (e_re + c * o_re - s * o_im), scale * (e_im + c * o_im + s * o_re))
                    } else {
                        (scale * a_re[l], scale * a_im[l])
                    };
                }
            }
        },
    );
}

/// Points of scaled bins, twice as large where a point holds two numbers. Their parts are swapped, for an inverse transform.
pub(super) fn to_points<R: Real>(job: &Job<'_, R>, lanes: usize, x: &Planes<'_, R>, z: &mut Planes<'_, R>) {
    let (n, points, halved) = (job.plan.n, job.plan.points, job.plan.is_halved());
    let (edge, middle) = job.op.factors();
    // The factors of both parts of a bin.
    let factors = |k: usize| match k == 0 || 2 * k == n {
        true => (R::c(edge), R::ZERO),
        false => (R::c(middle), R::c(middle)),
    };
    simd(
        #[inline(always)]
        || {
            for k in 0..points {
                let other = if halved { points - k } else { (n - k) % n };
                let (c, s) = job.roots.at(k);
                // Of an odd `n`, one of both is a bin.
                let a = if halved { k } else { k.min(other) };
                let b = if halved { other } else { a };
                let ((a_scale, a_im_scale), (b_scale, b_im_scale)) = (factors(a), factors(b));
                let (a_re, a_im) = (&x.re[a * lanes..][..lanes], &x.im[a * lanes..][..lanes]);
                let (b_re, b_im) = (&x.re[b * lanes..][..lanes], &x.im[b * lanes..][..lanes]);
                let (z_re, z_im) = (&mut z.re[k * lanes..][..lanes], &mut z.im[k * lanes..][..lanes]);
                let sign = if halved || k <= other { R::ONE } else { -R::ONE };
                for l in 0..lanes {
                    // A zero factor takes no part, also if the number is infinite or NaN.
                    let im = |v: R, scale: R| if scale == R::ZERO { R::ZERO } else { v * scale };
                    let (a_re, a_im) = (a_re[l] * a_scale, im(a_im[l], a_im_scale));
                    (z_im[l], z_re[l]) = if halved {
                        let (b_re, b_im) = (b_re[l] * b_scale, im(b_im[l], b_im_scale));
                        let (e_re, e_im) = (a_re + b_re, a_im - b_im);
                        let (d_re, d_im) = (a_re - b_re, a_im + b_im);
                        let (o_re, o_im) = (d_re * c + d_im * s, d_im * c - d_re * s);
                        (e_re - o_im, e_im + o_re)
                    } else {
                        (a_re, sign * a_im)
                    };
                }
            }
        },
    );
}
