//! Random numbers on the CPU.

use super::philox::{self, WORDS};
use super::{Distribution, Sample};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Stored, store, with_float};
use crate::device::cpu::{math::f64 as math, parallel, simd::simd};
use crate::error::{Error, Result};
use crate::tensor::DType;

/// Numbers per iteration: a whole number of random blocks in every dtype.
const TILE: usize = 1024;

/// The seed, and a block, counted from the start of the sequence.
pub(crate) fn position(args: &HostArgs<'_>, state: usize, offset: u64) -> Result<(u64, u64)> {
    match args.read::<i64>(state)? {
        &[seed, base] => Ok((seed as u64, (base as u64).wrapping_add(offset))),
        _ => Err(Error::internal(args.op(), "the state of a generator is not a seed and a base")),
    }
}

pub(super) fn sample(op: &Sample, args: &HostArgs<'_>) -> Result<()> {
    let dtype = args.write_dtype(0);
    let (seed, first) = position(args, 0, op.place.block())?;
    let words_each = words_each(dtype);
    let skip = op.place.skip() / words_each;
    let blocks_a_tile = (TILE * words_each / WORDS) as u64;
    with_float!(args, dtype, T, _R => {
        parallel::pieces(args.write::<T>(0)?, TILE, |i, out| {
            let mut words = [0u32; 2 * TILE + WORDS];
            // Two normal numbers come from one pair of uniform ones.
            let words = &mut words[..(skip + out.len()).next_multiple_of(2) * words_each];
            philox::fill(seed, first.wrapping_add(i as u64 * blocks_a_tile), words);
            match (op.distribution, words_each) {
                (Distribution::Uniform, 1) => uniform(&words[skip..], 32 - bits(dtype), out),
                (Distribution::Uniform, _) => uniform_wide(&words[2 * skip..], out),
                (Distribution::Normal, 1) => normal(words, skip, out),
                (Distribution::Normal, _) => normal_wide(words, skip, out),
            }
        });
        Ok(())
    })
}

/// Random words per number.
pub(super) fn words_each(dtype: DType) -> usize {
    if dtype == DType::F64 { 2 } else { 1 }
}

/// Bits of the significand, including the leading one. A uniform number has as many random bits.
pub(super) fn bits(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 53,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

/// 2^-`n`
fn reciprocal_power(n: u32) -> f64 {
    f64::from_bits(u64::from(1023 - n) << 52)
}

/// The top 53 bits of two words. The first is the upper one.
#[inline(always)]
fn wide(pair: &[u32]) -> u64 {
    (u64::from(pair[0]) << 32 | u64::from(pair[1])) >> 11
}

fn uniform<T: Stored>(words: &[u32], shift: u32, out: &mut [T]) {
    let scale = reciprocal_power(32 - shift);
    simd(
        #[inline(always)]
        || out.iter_mut().zip(words).for_each(|(y, &w)| *y = T::from_number(f64::from(w >> shift) * scale)),
    );
}

fn uniform_wide<T: Stored>(words: &[u32], out: &mut [T]) {
    let scale = reciprocal_power(53);
    simd(
        #[inline(always)]
        || {
            let numbers = words.as_chunks::<2>().0.iter().map(|pair| wide(pair) as f64 * scale);
            out.iter_mut().zip(numbers).for_each(|(y, number)| *y = T::from_number(number));
        },
    );
}

/// Writes pairs of normal numbers without the first `skip` of them: from two uniform numbers each, `u` in (0, 1] and `v` in [0, 1),
/// which `uniform` makes of `W` words (Box and Muller, 1958). `waves` are the sine and the cosine of `v` turns.
#[inline(always)]
fn write_pairs<T: Stored, const W: usize>(
    words: &[[u32; W]],
    skip: usize,
    out: &mut [T],
    uniform: impl Fn(&[u32; W]) -> [f64; 2],
    waves: impl Fn(f64) -> [f64; 2],
) {
    let half = skip % 2;
    let words = &words[skip / 2..][..(half + out.len()).div_ceil(2)];
    // In loops of their own, so that each becomes SIMD code.
    let [mut radius, mut turn, mut sine, mut cosine] = [[0.0; TILE / 2 + 1]; 4];
    let mut both = [[0.0; 2]; TILE / 2 + 1];
    let n = words.len();
    let (radius, turn, both) = (&mut radius[..n], &mut turn[..n], &mut both[..n]);
    let (sine, cosine) = (&mut sine[..n], &mut cosine[..n]);
    simd(
        #[inline(always)]
        || {
            radius
                .iter_mut()
                .zip(&mut *turn)
                .zip(words)
                .for_each(|((u, v), words)| [*u, *v] = uniform(words));
            for u in radius.iter_mut() {
                *u = (-2.0 * math::log_of_normal(*u)).sqrt();
            }
            for ((sine, cosine), &v) in sine.iter_mut().zip(&mut *cosine).zip(&*turn) {
                [*sine, *cosine] = waves(v);
            }
            for (i, both) in both.iter_mut().enumerate() {
                *both = [radius[i] * cosine[i], radius[i] * sine[i]];
            }
        },
    );
    store(&both.as_flattened()[half..][..out.len()], out, false);
}

fn normal<T: Stored>(words: &[u32], skip: usize, out: &mut [T]) {
    let scale = reciprocal_power(32);
    write_pairs(
        words.as_chunks::<2>().0,
        skip,
        out,
        #[inline(always)]
        |&[u, v]| [(f64::from(u) + 1.0) * scale, f64::from(v) * scale],
        math::sine_and_cosine_of_turns,
    );
}

fn normal_wide<T: Stored>(words: &[u32], skip: usize, out: &mut [T]) {
    let scale = reciprocal_power(53);
    write_pairs(
        words.as_chunks::<4>().0,
        skip,
        out,
        #[inline(always)]
        |w| [(wide(&w[..2]) + 1) as f64 * scale, wide(&w[2..]) as f64 * scale],
        #[inline(always)]
        |v| math::sine_and_cosine(std::f64::consts::TAU * v),
    );
}
