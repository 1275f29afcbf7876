//! Blocks of a line on the CPU, the same whatever the size of registers. Sums of a block are made in steps of doubled distances.
//! Products, which are in f64 and would fill only few lanes, are made one after the other, of several blocks side by side.

use pulp::{Simd, WithSimd};

use crate::device::cpu::numeric::{Number, Real};
use crate::device::cpu::simd::{arch, simd};

/// Elements of a line that are scanned side by side.
pub(super) const BLOCK: usize = 16;
/// Blocks of products side by side, so that a multiplication need not wait for the one before it.
const SIDE_BY_SIDE: usize = 4;

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
                match SUM {
                    true => arch().dispatch(Sums::<$t> { blocks, before }),
                    false => simd(
                        #[inline(always)]
                        || products(blocks, &mut before.own),
                    ),
                }
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

/// Products of blocks, on top of what was before.
#[inline(always)]
fn products<R: Real>(numbers: &mut [R], before: &mut R) {
    for some in numbers.chunks_mut(SIDE_BY_SIDE * BLOCK) {
        let (blocks, _) = some.as_chunks_mut::<BLOCK>();
        match <&mut [[R; BLOCK]; SIDE_BY_SIDE]>::try_from(&mut *blocks) {
            Ok(blocks) => {
                let mut last = [R::ONE; SIDE_BY_SIDE];
                for t in 0..BLOCK {
                    for (last, block) in last.iter_mut().zip(&mut *blocks) {
                        *last = *last * block[t];
                        block[t] = *last;
                    }
                }
            }
            Err(_) => {
                for block in &mut *blocks {
                    let mut last = R::ONE;
                    for v in block {
                        last = last * *v;
                        *v = last;
                    }
                }
            }
        }
        for block in blocks {
            let own = *before;
            block.iter_mut().for_each(|v| *v = own * *v);
            *before = block[BLOCK - 1];
        }
    }
}

struct Sums<'a, R> {
    blocks: &'a mut [R],
    before: &'a mut Before<R>,
}

impl<R: Real> WithSimd for Sums<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let add = |a, b| R::add_vectors(simd, a, b);
        let lanes = R::lanes::<S>();
        let (count, none) = (BLOCK / lanes, R::splat(simd, R::ZERO));
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
                            v[k] = add(R::shifted(simd, before, from[k], $distance), from[k]);
                        } else if k >= $distance / lanes {
                            v[k] = add(from[k - $distance / lanes], from[k]);
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
                *to = add(groups, add(own, v));
            }
            let last: &[R] = bytemuck::cast_slice(&v[count - 1..count]);
            self.before.own += last[lanes - 1];
        }
    }
}
