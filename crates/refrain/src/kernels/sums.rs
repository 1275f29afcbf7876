//! Sums on the CPU, of rows and of columns.
//!
//! Up to [`RUN`] numbers are added in 16 lanes, number `i` in lane `i % 16`, and then the lanes in halves. More numbers are cut
//! into runs, and the sums of the runs are added in the same way. So a sum has the same bits wherever its numbers lie in memory.

use std::slice::ChunksExact;

#[cfg(target_arch = "x86_64")]
use half::f16;
use pulp::{Simd, WithSimd};

use crate::device::cpu::numeric::{Real, Stored, convert};
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::{arch, simd};
#[cfg(target_arch = "x86_64")]
use crate::device::cpu::{narrow::f16_loops, numeric::Number};
use crate::kernels::rows::LANES;

/// Numbers that are added in lanes, at most.
pub(crate) const RUN: usize = 1024;
/// Rows that [`columns`] passes before it goes on: four of each lane, which are added at a time.
const WINDOW: usize = 4 * LANES;

/// The sums of four rows of one length, at most [`RUN`].
pub(crate) fn four_rows<T: Stored, R: Real>(x: [&[T]; 4]) -> [R; 4] {
    if let [Some(a), Some(b), Some(c), Some(d)] = x.map(R::same) {
        return arch().dispatch(FourRows([a, b, c, d]));
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(sums) = halves::four_rows(x) {
        return sums.map(R::from_f32);
    }
    let n = x[0].len();
    with_scratch(4 * n, |copies: &mut [R]| {
        x.iter().zip(copies.chunks_exact_mut(n.max(1))).for_each(|(x, copy)| convert(x, copy));
        arch().dispatch(FourRows(std::array::from_fn(|i| &copies[i * n..][..n])))
    })
}

struct FourRows<'a, R>([&'a [R]; 4]);

impl<R: Real> WithSimd for FourRows<'_, R> {
    type Output = [R; 4];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [R; 4] {
        // Registers that hold all lanes.
        let count = LANES / R::lanes::<S>();
        let mut lanes = [[R::ZERO; LANES]; 4];
        // One row after the other, as memory is read fastest. The processor is through with a row before its sums are.
        for (lanes, x) in lanes.iter_mut().zip(self.0) {
            let (whole, rest) = x.split_at(x.len() / LANES * LANES);
            let mut sums = [R::splat(simd, R::ZERO); LANES];
            for x in registers::<S, R>(whole) {
                for k in 0..count {
                    sums[k] = R::add_vectors(simd, sums[k], x[k]);
                }
            }
            lanes.copy_from_slice(bytemuck::cast_slice(&sums[..count]));
            lanes.iter_mut().zip(rest).for_each(|(lane, &v)| *lane += v);
        }
        in_halves(lanes)
    }
}

/// The numbers of all lanes at a time, in registers. Not by `array::map` of several slices, which is a call where it is not
/// inlined, so that the number of registers would not be known.
#[inline(always)]
pub(crate) fn registers<S: Simd, R: Real>(x: &[R]) -> ChunksExact<'_, R::Vector<S>> {
    R::as_vectors::<S>(x).0.chunks_exact(LANES / R::lanes::<S>())
}

/// Adds the lanes of each row.
#[inline(always)]
pub(crate) fn in_halves<R: Real>(mut lanes: [[R; LANES]; 4]) -> [R; 4] {
    let mut half = LANES / 2;
    while half > 0 {
        for lanes in &mut lanes {
            for l in 0..half {
                lanes[l] += lanes[l + half];
            }
        }
        half /= 2;
    }
    [lanes[0][0], lanes[1][0], lanes[2][0], lanes[3][0]]
}

/// The sums of `sums.len()` columns of `rows` rows, at most [`RUN`]. The rows begin `step` numbers apart.
pub(crate) fn columns<T: Stored, R: Real>(x: &[T], step: usize, rows: usize, sums: &mut [R]) {
    let (width, used) = (sums.len(), rows.min(LANES));
    let row = |r: usize| &x[r * step..][..width];
    let mut lanes = Scratch::filled(used * width, R::ZERO);
    simd(
        #[inline(always)]
        || {
            for start in (0..rows).step_by(WINDOW) {
                for (lane, sums) in lanes.chunks_exact_mut(width).enumerate().take(rows - start) {
                    let first = start + lane;
                    if first + 3 * LANES < rows {
                        // The sums are loaded and stored once.
                        add_four(sums, [first, first + LANES, first + 2 * LANES, first + 3 * LANES].map(row));
                    } else {
                        for r in (first..rows).step_by(LANES) {
                            add_one(sums, row(r));
                        }
                    }
                }
            }
            // Unused lanes are zeros.
            let mut half = LANES / 2;
            while half > 0 {
                let (first, second) = lanes.split_at_mut(half.min(used) * width);
                let second = &second[..half.min(used.saturating_sub(half)) * width];
                first.iter_mut().zip(second).for_each(|(a, &b)| *a += b);
                half /= 2;
            }
        },
    );
    sums.copy_from_slice(&lanes[..width]);
}

/// Adds four rows, one after the other.
#[inline(always)]
fn add_four<T: Stored, R: Real>(sums: &mut [R], x: [&[T]; 4]) {
    #[cfg(target_arch = "x86_64")]
    if let (Some(loops), Some(_)) = (f16_loops(), f16::same(x[0])) {
        return loops.add(sums, x.map(|x| f16::same(x).unwrap_or_default()));
    }
    let [a, b, c, d] = x;
    for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
        *sum = *sum + a.to() + b.to() + c.to() + d.to();
    }
}

#[inline(always)]
fn add_one<T: Stored, R: Real>(sums: &mut [R], x: &[T]) {
    #[cfg(target_arch = "x86_64")]
    if let (Some(loops), Some(x)) = (f16_loops(), f16::same(x)) {
        return loops.add(sums, [x]);
    }
    sums.iter_mut().zip(x).for_each(|(sum, v)| *sum += v.to());
}

/// Rows of f16 and bf16 by AVX-512, converted in registers.
#[cfg(target_arch = "x86_64")]
mod halves {
    use std::arch::x86_64::__m512;

    use bytemuck::{Pod, cast};
    use half::{bf16, f16};
    use pulp::Arch;
    use pulp::x86::V4;

    use super::{LANES, in_halves};
    use crate::device::cpu::numeric::{Number, Stored};
    use crate::device::cpu::simd::arch;

    /// `None` for other types, and on a machine without AVX-512.
    pub(super) fn four_rows<T: Stored>(x: [&[T]; 4]) -> Option<[f32; 4]> {
        let Arch::V4(v4) = arch() else {
            return None;
        };
        if let [Some(a), Some(b), Some(c), Some(d)] = x.map(f16::same) {
            let sums = converted(
                v4,
                [a, b, c, d],
                #[inline(always)]
                |x: [f16; LANES]| v4.avx512f._mm512_cvtph_ps(cast(x)),
            );
            return Some(sums);
        }
        if let [Some(a), Some(b), Some(c), Some(d)] = x.map(bf16::same) {
            let sums = converted(
                v4,
                [a, b, c, d],
                #[inline(always)]
                |x: [bf16; LANES]| {
                    cast(v4.avx512f._mm512_slli_epi32::<16>(v4.avx512f._mm512_cvtepu16_epi32(cast(x))))
                },
            );
            return Some(sums);
        }
        None
    }

    #[inline(always)]
    fn converted<H: Pod>(v4: V4, x: [&[H]; 4], widen: impl Fn([H; LANES]) -> __m512) -> [f32; 4] {
        v4.vectorize(
            #[inline(always)]
            || {
                let mut sums = [cast::<_, __m512>([0.0f32; LANES]); 4];
                for (sum, x) in sums.iter_mut().zip(x) {
                    let (whole, rest) = x.as_chunks::<LANES>();
                    for &x in whole {
                        *sum = v4.avx512f._mm512_add_ps(*sum, widen(x));
                    }
                    // Zeros change nothing.
                    let mut last = [H::zeroed(); LANES];
                    last[..rest.len()].copy_from_slice(rest);
                    *sum = v4.avx512f._mm512_add_ps(*sum, widen(last));
                }
                in_halves(cast::<_, [[f32; LANES]; 4]>(sums))
            },
        )
    }
}

/// Adds up the sums of runs, `[runs, results]`. The results are the first ones.
pub(crate) fn merge<R: Real>(sums: &mut [R], results: usize) {
    let mut count = sums.len() / results;
    let mut merged = Scratch::<R>::new(results);
    while count > 1 {
        let runs = count.div_ceil(RUN);
        for run in 0..runs {
            let len = RUN.min(count - run * RUN);
            let of_run = &sums[run * RUN * results..][..len * results];
            match &mut *merged {
                [one] => [*one, ..] = four_rows([of_run; 4]),
                merged => columns(of_run, results, len, merged),
            }
            sums[run * results..][..results].copy_from_slice(&merged);
        }
        count = runs;
    }
}
