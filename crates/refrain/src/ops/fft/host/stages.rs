//! The stages of a complex transform, on lanes.

use super::Planes;
use super::roots::Roots;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::simd::simd;
use crate::ops::fft::plan::Plan;

/// The largest radix that is a power of two: with 8, registers do not suffice.
pub(super) const RADIX: usize = 4;
/// Numbers that are computed side by side.
const WIDTH: usize = 8;

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
            for (k, twist) in twist.iter_mut().enumerate() {
                *twist = self.roots.at(self.step * group * k);
            }
            for q in (0..run).step_by(WIDTH) {
                // Numbers of their own, so that the compiler knows that they are no others.
                let len = WIDTH.min(run - q);
                let mut v = [Numbers::<R>::zero(); RADIX];
                for (k, v) in v.iter_mut().enumerate() {
                    let first = (k * self.groups + group) * run + q;
                    v.load(&x.re[first..][..len], &x.im[first..][..len]);
                }
                let v = transformed(v, &of_radix);
                for (k, v) in v.iter().enumerate() {
                    let v = if k == 0 { *v } else { v.times(twist[k]) };
                    let first = k * run + q;
                    v.store(&mut y_re[first..][..len], &mut y_im[first..][..len]);
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

/// Complex numbers side by side.
#[derive(Clone, Copy)]
struct Numbers<R> {
    re: [R; WIDTH],
    im: [R; WIDTH],
}

impl<R: Real> Numbers<R> {
    #[inline(always)]
    fn zero() -> Numbers<R> {
        Numbers { re: [R::ZERO; WIDTH], im: [R::ZERO; WIDTH] }
    }

    #[inline(always)]
    fn load(&mut self, re: &[R], im: &[R]) {
        if let (Ok(re), Ok(im)) = (re.try_into(), im.try_into()) {
            *self = Numbers { re, im };
            return;
        }
        self.re[..re.len()].copy_from_slice(re);
        self.im[..im.len()].copy_from_slice(im);
    }

    #[inline(always)]
    fn store(&self, re: &mut [R], im: &mut [R]) {
        if let (Ok(re), Ok(im)) =
            (<&mut [R; WIDTH]>::try_from(&mut *re), <&mut [R; WIDTH]>::try_from(&mut *im))
        {
            (*re, *im) = (self.re, self.im);
            return;
        }
        re.copy_from_slice(&self.re[..re.len()]);
        im.copy_from_slice(&self.im[..im.len()]);
    }

    #[inline(always)]
    fn plus(&self, other: &Numbers<R>) -> Numbers<R> {
        let mut sum = *self;
        for i in 0..WIDTH {
            sum.re[i] += other.re[i];
            sum.im[i] += other.im[i];
        }
        sum
    }

    #[inline(always)]
    fn minus(&self, other: &Numbers<R>) -> Numbers<R> {
        let mut difference = *self;
        for i in 0..WIDTH {
            difference.re[i] = self.re[i] - other.re[i];
            difference.im[i] = self.im[i] - other.im[i];
        }
        difference
    }

    /// Times `-i`.
    #[inline(always)]
    fn turned(&self) -> Numbers<R> {
        let mut turned = Numbers { re: self.im, im: self.re };
        for im in &mut turned.im {
            *im = -*im;
        }
        turned
    }

    #[inline(always)]
    fn times(&self, (c, s): (R, R)) -> Numbers<R> {
        let mut product = *self;
        for i in 0..WIDTH {
            product.re[i] = self.re[i] * c - self.im[i] * s;
            product.im[i] = self.re[i] * s + self.im[i] * c;
        }
        product
    }
}

/// The transform of a few complex numbers. `roots` has the powers of the root of as many.
#[inline(always)]
fn transformed<R: Real, const RADIX: usize>(
    v: [Numbers<R>; RADIX],
    roots: &[(R, R); RADIX],
) -> [Numbers<R>; RADIX] {
    let mut y = v;
    match RADIX {
        2 => (y[0], y[1]) = (v[0].plus(&v[1]), v[0].minus(&v[1])),
        4 => {
            let (even, odd) = (v[0].plus(&v[2]), v[1].plus(&v[3]));
            let (p, q) = (v[0].minus(&v[2]), v[1].minus(&v[3]).turned());
            (y[0], y[1], y[2], y[3]) = (even.plus(&odd), p.plus(&q), even.minus(&odd), p.minus(&q));
        }
        _ => {
            for k in 0..RADIX {
                y[k] = v[0];
                for j in 1..=RADIX / 2 {
                    let (c, s) = roots[j * k % RADIX];
                    let (sum, difference) = (v[j].plus(&v[RADIX - j]), v[j].minus(&v[RADIX - j]));
                    for i in 0..WIDTH {
                        y[k].re[i] += c * sum.re[i] - s * difference.im[i];
                        y[k].im[i] += c * sum.im[i] + s * difference.re[i];
                    }
                }
            }
        }
    }
    y
}
