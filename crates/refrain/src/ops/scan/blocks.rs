//! Blocks of a line on the CPU: each is scanned in steps of doubled distances, the same whatever the size of registers.

use pulp::{Simd, WithSimd};

use crate::device::cpu::numeric::{Number, Real};
use crate::device::cpu::simd::{arch, simd};

/// Elements of a line that are scanned side by side.
pub(super) const BLOCK: usize = 16;

/// What was before a block of a line: before its group, and in its group.
#[derive(Clone, Copy)]
pub(super) struct Before<N> {
    pub(super) groups: N,
    pub(super) own: N,
}

#[inline(always)]
pub(super) fn both<N: Number, const SUM: bool>(a: N, b: N) -> N {
    if SUM { a.plus(b) } else { a.times(b) }
}

/// What is before all numbers.
#[inline(always)]
pub(super) fn nothing<N: Number, const SUM: bool>() -> N {
    if SUM { N::ZERO } else { N::ONE }
}

/// The arithmetic of a line.
pub(super) trait Scanned: Number {
    /// Scans blocks: each by itself, and then on top of what was before.
    fn scan<const SUM: bool>(blocks: &mut [Self], before: &mut Before<Self>);
}

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Scanned for $t {
            fn scan<const SUM: bool>(blocks: &mut [Self], before: &mut Before<Self>) {
                arch().dispatch(InRegisters::<$t, SUM> { blocks, before });
            }
        }
    )*};
}
floats!(f32, f64);

impl Scanned for i64 {
    fn scan<const SUM: bool>(blocks: &mut [Self], before: &mut Before<Self>) {
        simd(
            #[inline(always)]
            || {
                for v in blocks {
                    before.own = both::<i64, SUM>(before.own, *v);
                    *v = both::<i64, SUM>(before.groups, before.own);
                }
            },
        );
    }
}

struct InRegisters<'a, R, const SUM: bool> {
    blocks: &'a mut [R],
    before: &'a mut Before<R>,
}

impl<R: Real, const SUM: bool> WithSimd for InRegisters<'_, R, SUM> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let combine = |a, b| match SUM {
            true => R::add_vectors(simd, a, b),
            false => R::mul_vectors(simd, a, b),
        };
        let lanes = R::lanes::<S>();
        let (count, none) = (BLOCK / lanes, R::splat(simd, nothing::<R, SUM>()));
        let groups = R::splat(simd, self.before.groups);
        for block in R::as_vectors_mut::<S>(self.blocks).0.chunks_exact_mut(count) {
            let mut v = [none; BLOCK];
            v[..count].copy_from_slice(block);
            // One after the other, so that each distance is a constant.
            macro_rules! step {
                ($distance:literal) => {
                    let from = v;
                    for k in 0..count {
                        if $distance < lanes {
                            let before = if k > 0 { from[k - 1] } else { none };
                            v[k] = combine(R::shifted(simd, before, from[k], $distance), from[k]);
                        } else if k >= $distance / lanes {
                            v[k] = combine(from[k - $distance / lanes], from[k]);
                        }
                    }
                };
            }
            step!(1);
            step!(2);
            step!(4);
            step!(8);
            let own = R::splat(simd, self.before.own);
            for (to, &v) in block.iter_mut().zip(&v) {
                let all = combine(own, v);
                *to = if SUM { combine(groups, all) } else { all };
            }
            let last: &[R] = bytemuck::cast_slice(&v[count - 1..count]);
            self.before.own = both::<R, SUM>(self.before.own, last[lanes - 1]);
        }
    }
}
