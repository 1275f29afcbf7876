//! Roots of unity.

use std::f64::consts::PI;

use crate::device::cpu::numeric::Real;
use crate::device::cpu::scratch::Scratch;

/// `exp(-2 pi i e / n)` for each `e` below `n`.
pub(super) struct Roots<R> {
    cos: Scratch<R>,
    sin: Scratch<R>,
}

impl<R: Real> Roots<R> {
    /// Each is the product of a coarse root and a fine one, of which there are few, in f64.
    pub(super) fn new(n: usize) -> Roots<R> {
        let (mut cos, mut sin) = (Scratch::new(n), Scratch::new(n));
        let fine = 1 << (n.ilog2() / 2);
        let root = |e: usize| libm::sincos(-2.0 * PI * (e as f64 / n as f64));
        let table = Scratch::<[f64; 2]>::collect(fine, (0..fine).map(|e| root(e).into()));
        for (i, (cos, sin)) in cos.chunks_mut(fine).zip(sin.chunks_mut(fine)).enumerate() {
            let (s, c) = root(i * fine);
            for ((cos, sin), [fine_s, fine_c]) in cos.iter_mut().zip(sin).zip(&*table) {
                (*cos, *sin) = (R::c(c * fine_c - s * fine_s), R::c(s * fine_c + c * fine_s));
            }
        }
        // Those on the axes are exact.
        for (quarter, (c, s)) in [(1.0, 0.0), (0.0, -1.0), (-1.0, 0.0), (0.0, 1.0)].into_iter().enumerate() {
            if (quarter * n).is_multiple_of(4) {
                (cos[quarter * n / 4], sin[quarter * n / 4]) = (R::c(c), R::c(s));
            }
        }
        Roots { cos, sin }
    }

    /// The real and the imaginary part of that of `e`.
    #[inline(always)]
    pub(super) fn at(&self, e: usize) -> (R, R) {
        (self.cos[e], self.sin[e])
    }
}
