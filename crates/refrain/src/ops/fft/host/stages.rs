//! The stages of a complex transform, on lanes.

use super::Planes;
use super::roots::Roots;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::simd;
use crate::ops::fft::plan::Plan;

/// The largest radix that is a power of two. With 8, a transform takes twice as long.
pub(super) const LARGEST_POWER: usize = 4;

/// Transforms `x`, by way of `y`.
pub(super) fn run<'a, R: Real>(
    plan: &Plan,
    roots: &Roots<R>,
    lanes: usize,
    x: &mut Planes<'a, R>,
    y: &mut Planes<'a, R>,
) {
    for (radix, before) in plan.stages() {
        let stage = Stage {
            roots,
            n: plan.n,
            run: before * lanes,
            groups: plan.points / (radix * before),
            // The root of the points is this power of that of `n`.
            step: plan.n / plan.points * before,
        };
        simd(
            #[inline(always)]
            || match radix {
                2 => stage.short::<2>(x, y),
                3 => stage.short::<3>(x, y),
                4 => stage.short::<4>(x, y),
                5 => stage.short::<5>(x, y),
                radix => stage.long(radix, x, y),
            },
        );
        std::mem::swap(x, y);
    }
}

/// A stage: each group combines as many runs as the radix, which lie `groups` runs apart, to runs that are neighbours.
struct Stage<'a, R> {
    roots: &'a Roots<R>,
    n: usize,
    /// The numbers in a run. All are combined with the same roots.
    run: usize,
    groups: usize,
    step: usize,
}

impl<R: Real> Stage<'_, R> {
    /// A stage whose sums stay in registers.
    #[inline(always)]
    fn short<const RADIX: usize>(&self, x: &Planes<'_, R>, y: &mut Planes<'_, R>) {
        let run = self.run;
        let mut of_radix = [(R::ONE, R::ZERO); RADIX];
        for (k, root) in of_radix.iter_mut().enumerate() {
            *root = self.roots.at(k * (self.n / RADIX));
        }
        let all = y.re.chunks_exact_mut(RADIX * run).zip(y.im.chunks_exact_mut(RADIX * run));
        for (group, (y_re, y_im)) in all.take(self.groups).enumerate() {
            let mut twist = [(R::ONE, R::ZERO); RADIX];
            let mut from: [(&[R], &[R]); RADIX] = [(&[], &[]); RADIX];
            for k in 0..RADIX {
                twist[k] = self.roots.at(self.step * group * k);
                let first = (k * self.groups + group) * run;
                from[k] = (&x.re[first..][..run], &x.im[first..][..run]);
            }
            let (mut to_re, mut to_im) = (y_re.chunks_exact_mut(run), y_im.chunks_exact_mut(run));
            let to: [(&mut [R], &mut [R]); RADIX] =
                std::array::from_fn(|_| (to_re.next().unwrap_or_default(), to_im.next().unwrap_or_default()));
            for (to_re, to_im) in &to {
                assert!(to_re.len() == run && to_im.len() == run);
            }
            for q in 0..run {
                let mut v = [(R::ZERO, R::ZERO); RADIX];
                for k in 0..RADIX {
                    v[k] = (from[k].0[q], from[k].1[q]);
                }
                let v = transformed(v, &of_radix);
                for k in 0..RADIX {
                    let ((re, im), (c, s)) = (v[k], twist[k]);
                    (to[k].0[q], to[k].1[q]) =
                        if k == 0 { (re, im) } else { (re * c - im * s, re * s + im * c) };
                }
            }
        }
    }

    /// A stage of a larger odd radix: each result of a group is summed by itself.
    #[inline(always)]
    fn long(&self, radix: usize, x: &Planes<'_, R>, y: &mut Planes<'_, R>) {
        let run = self.run;
        let all = y.re.chunks_exact_mut(run).zip(y.im.chunks_exact_mut(run));
        for (i, (to_re, to_im)) in all.take(self.groups * radix).enumerate() {
            let (group, k) = (i / radix, i % radix);
            let from = |j: usize| {
                let first = (j * self.groups + group) * run;
                (&x.re[first..][..run], &x.im[first..][..run])
            };
            let (re, im) = from(0);
            to_re.copy_from_slice(re);
            to_im.copy_from_slice(im);
            for j in 1..=radix / 2 {
                let (c, s) = self.roots.at(j * k % radix * (self.n / radix));
                let ((a_re, a_im), (b_re, b_im)) = (from(j), from(radix - j));
                for q in 0..run {
                    to_re[q] += c * (a_re[q] + b_re[q]) - s * (a_im[q] - b_im[q]);
                    to_im[q] += c * (a_im[q] + b_im[q]) + s * (a_re[q] - b_re[q]);
                }
            }
            let (c, s) = self.roots.at(self.step * group * k);
            for (re, im) in to_re.iter_mut().zip(to_im) {
                (*re, *im) = (*re * c - *im * s, *re * s + *im * c);
            }
        }
    }
}

/// The transform of a few complex numbers. `roots` has the powers of the root of as many.
#[inline(always)]
fn transformed<R: Real, const RADIX: usize>(v: [(R, R); RADIX], roots: &[(R, R); RADIX]) -> [(R, R); RADIX] {
    let add = |a: (R, R), b: (R, R)| (a.0 + b.0, a.1 + b.1);
    let sub = |a: (R, R), b: (R, R)| (a.0 - b.0, a.1 - b.1);
    let mut y = v;
    match RADIX {
        2 => (y[0], y[1]) = (add(v[0], v[1]), sub(v[0], v[1])),
        4 => {
            let (a, b) = (add(v[0], v[2]), sub(v[0], v[2]));
            let (c, d) = (add(v[1], v[3]), sub(v[1], v[3]));
            // -i times d.
            let d = (d.1, -d.0);
            (y[0], y[1], y[2], y[3]) = (add(a, c), add(b, d), sub(a, c), sub(b, d));
        }
        _ => {
            for k in 0..RADIX {
                y[k] = v[0];
                for j in 1..=RADIX / 2 {
                    let (c, s) = roots[j * k % RADIX];
                    let (sum, difference) = (add(v[j], v[RADIX - j]), sub(v[j], v[RADIX - j]));
                    y[k].0 += c * sum.0 - s * difference.1;
                    y[k].1 += c * sum.1 + s * difference.0;
                }
            }
        }
    }
    y
}
