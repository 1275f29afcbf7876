//! Conversions between f32 and the floats of 16 bits, without branches and without calls: loops that convert become SIMD
//! code. The results are those of the crate `half`, bit for bit.

#[cfg(test)]
mod tests;

use bytemuck::Pod;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use pulp::{
    Arch, Simd,
    x86::{V3, V4},
};

#[cfg(target_arch = "x86_64")]
use super::f16c::F16c;
use super::numeric::Number;
#[cfg(target_arch = "x86_64")]
use super::simd::arch;
use super::simd::simd;

const INFINITY: u32 = 0x7f80_0000;
const SIGN: u32 = 0x8000_0000;

/// A NaN keeps its bits.
#[inline(always)]
pub(crate) fn bf16_to_f32(v: bf16) -> f32 {
    f32::from_bits(u32::from(v.to_bits()) << 16)
}

/// Rounded to nearest, ties to even.
#[inline(always)]
pub(super) fn bf16_from_f32(v: f32) -> bf16 {
    bf16::from_bits((nearest_bf16(v) >> 16) as u16)
}

/// The nearest bf16, in the upper half of the result.
#[inline(always)]
fn nearest_bf16(v: f32) -> u32 {
    let nan = v.to_bits() | 0x0040_0000;
    if v.is_nan() { nan } else { nearest_bf16_of_number(v) }
}

/// [`nearest_bf16`] of what is not NaN.
#[inline(always)]
fn nearest_bf16_of_number(v: f32) -> u32 {
    let bits = v.to_bits();
    // Half of the last place that stays; a tie rounds up only to an even number. A carry reaches the exponent.
    bits.wrapping_add(0x7fff + (bits >> 16 & 1))
}

/// The difference of the exponents' biases, in the exponent of an f32.
const BIAS: u32 = (127 - 15) << 23;

#[inline(always)]
pub(super) fn f16_to_f32(v: f16) -> f32 {
    let bits = u32::from(v.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    // 2^-14: a subnormal number is added to it, and the sum is exact.
    let smallest = f32::from_bits(BIAS + (1 << 23));
    let subnormal = (f32::from_bits(magnitude + BIAS + (1 << 23)) - smallest).to_bits();
    let quiet = if bits & 0x7fff > 0x7c00 { 0x0040_0000 } else { 0 };
    let finite = if bits & 0x7c00 == 0 { subnormal } else { magnitude + BIAS };
    let all = if bits & 0x7c00 == 0x7c00 { magnitude | INFINITY | quiet } else { finite };
    f32::from_bits(all | (bits & 0x8000) << 16)
}

/// Rounded to nearest, ties to even.
#[inline(always)]
pub(super) fn f16_from_f32(v: f32) -> f16 {
    let (bits, magnitude) = (v.to_bits(), v.to_bits() & !SIGN);
    // As for bf16.
    let normal = magnitude.wrapping_sub(BIAS).wrapping_add(0x0fff + (magnitude >> 13 & 1)) >> 13;
    // The last place of a number from 1/2 to 1 is that of a subnormal f16, so the sum is rounded there.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    // 65,520 and more are infinite: half a place above the largest number.
    let large = if magnitude > INFINITY { magnitude >> 13 & 0x03ff | 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < BIAS + (1 << 23) { subnormal } else { normal };
    let all = if magnitude >= 65_520.0f32.to_bits() { large } else { finite };
    f16::from_bits((all | bits >> 16 & 0x8000) as u16)
}

/// Numbers of 64 bits that are looked at before they are converted.
const BLOCK: usize = 512;

/// Rounds numbers of 64 bits to nearest, ties to even. Both slices have the same length.
pub(super) fn bf16s_from_f64(from: &[f64], to: &mut [bf16]) {
    // Rounded to f32 first, a number is rounded wrongly only where that is a tie.
    let mut near = [0.0f32; BLOCK];
    simd(
        #[inline(always)]
        || {
            for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
                let near = &mut near[..from.len()];
                near.iter_mut().zip(from).for_each(|(near, &v)| *near = v as f32);
                // The lower halves, of which that of a tie is the least, and the largest size: of integers, for which there are SIMD
                // instructions. By loops of their own, in which all numbers have one width.
                let (mut least, mut largest) = (i32::MAX, 0);
                for v in &*near {
                    least = least.min((v.to_bits() << 16) as i32);
                    largest = largest.max(v.to_bits() & !SIGN);
                }
                if least > i32::MIN && largest <= INFINITY {
                    let of = |v: f32| bf16::from_bits((nearest_bf16_of_number(v) >> 16) as u16);
                    to.iter_mut().zip(&*near).for_each(|(to, &v)| *to = of(v));
                } else {
                    to.iter_mut().zip(from).for_each(|(to, &v)| *to = bf16_from_f32(v.to_odd_f32()));
                }
            }
        },
    );
}

/// Rounds integers to nearest, ties to even. Both slices have the same length.
pub(super) fn bf16s_from_i64(from: &[i64], to: &mut [bf16]) {
    const TWO_TO_51: i64 = 1 << 51;
    // Added to the bits of this, an integer of up to 51 bits is added to the number.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    simd(
        #[inline(always)]
        || {
            for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
                let beyond = |v: i64| v.wrapping_add(TWO_TO_51) as u64 >> 52;
                if from.iter().fold(0, |any, &v| any | beyond(v)) == 0 {
                    for (to, &v) in to.iter_mut().zip(from) {
                        let v = f64::from_bits(ROUND.to_bits().wrapping_add(v as u64)) - ROUND;
                        *to = bf16::from_bits(((seven_digits(v) as f32).to_bits() >> 16) as u16);
                    }
                } else {
                    to.iter_mut().zip(from).for_each(|(to, &v)| *to = bf16_from_f32(v.to_odd_f32()));
                }
            }
        },
    );
}

/// Rounds the bits of a number to the digits of bf16, 7 after the first, to nearest, ties to even.
#[inline(always)]
fn seven_digits(v: f64) -> f64 {
    /// The bits that are rounded away.
    const AWAY: u32 = 52 - 7;
    let bits = v.to_bits();
    let up = (1 << (AWAY - 1)) - 1 + (bits >> AWAY & 1);
    // A carry reaches the exponent.
    f64::from_bits(bits.wrapping_add(up) & !((1 << AWAY) - 1))
}

/// To the nearest whole number, ties to even, as instructions name it. None of them raises an exception.
pub(crate) const NEAREST: i32 = 8;
/// To the largest whole number that is not above.
pub(crate) const DOWN: i32 = 9;
/// To the smallest whole number that is not below.
pub(crate) const UP: i32 = 10;
/// To the largest one that is not above in size.
pub(crate) const TOWARDS_0: i32 = 11;

/// Loops over numbers of 16 bits that are computed in f32, and converted in registers.
pub(crate) trait HalfLoops: Copy + Send + Sync {
    type Half: Pod;
    /// The bits of 2^16, or of infinity, if that is beyond all numbers.
    const TWO_TO_16: u16;
    /// The bits of infinity.
    const INFINITY: u16;
    /// The bit of a NaN that is not a signalling one.
    const QUIET: u16;

    /// Runs a closure with loops, compiled for the instructions of the machine.
    fn run<O>(self, f: impl FnOnce() -> O) -> O;
    /// `y[i] = f(x[i])`, inside [`run`](Self::run). All slices have the same length.
    #[inline(always)]
    fn map<N: Number>(self, x: &[Self::Half], y: &mut [Self::Half], f: impl Fn(N) -> N) {
        self.map_both(
            x,
            x,
            y,
            #[inline(always)]
            |x, _| f(x),
        );
    }
    /// `y[i] = f(a[i], b[i])`, likewise.
    fn map_both<N: Number>(
        self,
        a: &[Self::Half],
        b: &[Self::Half],
        y: &mut [Self::Half],
        f: impl Fn(N, N) -> N,
    );
    /// `y[i]`, the whole number beside `x[i]` in direction `TO`, likewise.
    fn whole<const TO: i32>(self, x: &[Self::Half], y: &mut [Self::Half]);
    /// The number in the arithmetic type.
    fn wide<N: Number>(v: Self::Half) -> N;
    /// The nearest number of 16 bits.
    fn nearest(v: f32) -> Self::Half;
}

/// [`HalfLoops`] of bf16, which the compiler turns into SIMD code.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Loops;

/// Pairs of bf16 that are converted at a time.
const PAIRS: usize = 16;

/// The last elements, and zeros.
#[inline(always)]
fn padded<T: Pod, const L: usize>(rest: &[T]) -> [T; L] {
    let mut x = [T::zeroed(); L];
    if !rest.is_empty() {
        x[..rest.len()].copy_from_slice(rest);
    }
    x
}

impl HalfLoops for Bf16Loops {
    type Half = bf16;
    const TWO_TO_16: u16 = 0x4780;
    const INFINITY: u16 = 0x7f80;
    const QUIET: u16 = 0x0040;

    #[inline(always)]
    fn run<O>(self, f: impl FnOnce() -> O) -> O {
        simd(f)
    }

    #[inline(always)]
    fn map_both<N: Number>(self, a: &[bf16], b: &[bf16], y: &mut [bf16], f: impl Fn(N, N) -> N) {
        const UPPER: u32 = 0xffff_0000;
        let wide = |bits: u32| N::from_f32(f32::from_bits(bits));
        let ((a, a_rest), (b, b_rest), (y, y_rest)) = (
            a.as_chunks::<{ 2 * PAIRS }>(),
            b.as_chunks::<{ 2 * PAIRS }>(),
            y.as_chunks_mut::<{ 2 * PAIRS }>(),
        );
        let (last_a, last_b) = (padded(a_rest), padded(b_rest));
        for i in 0..y.len() + usize::from(!y_rest.is_empty()) {
            // A pair in 32 bits is widened by one instruction each, without moving numbers to other lanes.
            let a: [u32; PAIRS] = bytemuck::cast(*a.get(i).unwrap_or(&last_a));
            let b: [u32; PAIRS] = bytemuck::cast(*b.get(i).unwrap_or(&last_b));
            let mut of = [0; PAIRS];
            for l in 0..PAIRS {
                let low = f(wide(a[l] << 16), wide(b[l] << 16));
                let high = f(wide(a[l] & UPPER), wide(b[l] & UPPER));
                of[l] = nearest_bf16(low.to_f32()) >> 16 | nearest_bf16(high.to_f32()) & UPPER;
            }
            let of: [bf16; 2 * PAIRS] = bytemuck::cast(of);
            match y.get_mut(i) {
                Some(y) => *y = of,
                None => y_rest.copy_from_slice(&of[..y_rest.len()]),
            }
        }
    }

    #[inline(always)]
    fn whole<const TO: i32>(self, x: &[bf16], y: &mut [bf16]) {
        self.map(
            x,
            y,
            #[inline(always)]
            |x: f32| match TO {
                DOWN => x.floor(),
                UP => x.ceil(),
                TOWARDS_0 => x.trunc(),
                _ => x.round_ties_even(),
            },
        );
    }

    #[inline(always)]
    fn wide<N: Number>(v: bf16) -> N {
        N::from_f32(bf16_to_f32(v))
    }

    fn nearest(v: f32) -> bf16 {
        bf16_from_f32(v)
    }
}

/// [`HalfLoops`] of f16, by instructions that convert it.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct F16Loops<C>(C);

/// The loops of the machine.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) enum F16 {
    Avx512(F16Loops<V4>),
    F16c(F16Loops<F16c>),
}

/// `None` on a machine without instructions for f16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn f16_loops() -> Option<F16> {
    match arch() {
        Arch::V4(v4) => Some(F16::Avx512(F16Loops(v4))),
        Arch::V3(v3) => F16c::get(v3).map(|f16c| F16::F16c(F16Loops(f16c))),
        _ => None,
    }
}

/// Runs an expression with `$loops` as the [`F16Loops`] of the machine.
#[cfg(target_arch = "x86_64")]
macro_rules! with_f16_loops {
    ($f16:expr, $loops:ident => $body:expr) => {
        match $f16 {
            $crate::device::cpu::narrow::F16::Avx512($loops) => $body,
            $crate::device::cpu::narrow::F16::F16c($loops) => $body,
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use with_f16_loops;

/// Numbers that are converted at a time.
#[cfg(target_arch = "x86_64")]
pub(crate) const WIDE: usize = 16;

/// Instructions that convert f16.
#[cfg(target_arch = "x86_64")]
pub(crate) trait Converts: Copy + Send + Sync {
    type Simd: Simd;
    /// The registers of sums.
    fn simd(self) -> Self::Simd;
    fn vectorize<O>(self, f: impl FnOnce() -> O) -> O;
    fn widen(self, x: [f16; WIDE]) -> [f32; WIDE];
    /// To nearest, ties to even.
    fn round(self, x: [f32; WIDE]) -> [f16; WIDE];
    /// The whole numbers in direction `TO`. By an instruction: the compiler makes none of `floor` between conversions.
    fn whole<const TO: i32>(self, x: [f32; WIDE]) -> [f32; WIDE];
}

#[cfg(target_arch = "x86_64")]
impl Converts for V4 {
    type Simd = V4;

    fn simd(self) -> V4 {
        self
    }

    #[inline(always)]
    fn vectorize<O>(self, f: impl FnOnce() -> O) -> O {
        V4::vectorize(self, f)
    }

    #[inline(always)]
    fn widen(self, x: [f16; WIDE]) -> [f32; WIDE] {
        bytemuck::cast(self.avx512f._mm512_cvtph_ps(bytemuck::cast(x)))
    }

    #[inline(always)]
    fn round(self, x: [f32; WIDE]) -> [f16; WIDE] {
        bytemuck::cast(self.avx512f._mm512_cvtps_ph::<0>(bytemuck::cast(x)))
    }

    #[inline(always)]
    fn whole<const TO: i32>(self, x: [f32; WIDE]) -> [f32; WIDE] {
        bytemuck::cast(self.avx512f._mm512_roundscale_ps::<TO>(bytemuck::cast(x)))
    }
}

#[cfg(target_arch = "x86_64")]
impl Converts for F16c {
    type Simd = V3;

    fn simd(self) -> V3 {
        self.v3()
    }

    #[inline(always)]
    fn vectorize<O>(self, f: impl FnOnce() -> O) -> O {
        self.run(f)
    }

    #[inline(always)]
    fn widen(self, x: [f16; WIDE]) -> [f32; WIDE] {
        let [low, high]: [[f16; WIDE / 2]; 2] = bytemuck::cast(x);
        bytemuck::cast([F16c::widen(self, low), F16c::widen(self, high)])
    }

    #[inline(always)]
    fn round(self, x: [f32; WIDE]) -> [f16; WIDE] {
        let [low, high]: [[f32; WIDE / 2]; 2] = bytemuck::cast(x);
        bytemuck::cast([F16c::round(self, low), F16c::round(self, high)])
    }

    #[inline(always)]
    fn whole<const TO: i32>(self, x: [f32; WIDE]) -> [f32; WIDE] {
        let (avx, [low, high]) = (self.v3().avx, bytemuck::cast(x));
        bytemuck::cast([avx._mm256_round_ps::<TO>(low), avx._mm256_round_ps::<TO>(high)])
    }
}

/// Slices that are cut alike: chunks, and what is left behind them.
#[cfg(target_arch = "x86_64")]
type Cut<'a, T, const K: usize> = ([&'a [[T; WIDE]]; K], [&'a [T]; K]);

/// Cuts slices into `whole` chunks each: one known number, so that a loop over them has no checks.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn wide_chunks<T, const K: usize>(rows: [&[T]; K], whole: usize) -> Cut<'_, T, K> {
    // Not by `array::map`, which is a call where it is not inlined.
    let (mut chunks, mut rests) = ([&[][..]; K], [&[][..]; K]);
    for k in 0..K {
        let (row, rest) = rows[k].as_chunks::<WIDE>();
        (chunks[k], rests[k]) = (&row[..whole], rest);
    }
    (chunks, rests)
}

#[cfg(target_arch = "x86_64")]
impl<C: Converts> F16Loops<C> {
    /// The registers of [`run`](HalfLoops::run).
    pub(crate) fn simd(self) -> C::Simd {
        self.0.simd()
    }

    #[inline(always)]
    pub(crate) fn widen(self, x: [f16; WIDE]) -> [f32; WIDE] {
        self.0.widen(x)
    }

    /// `f` of some numbers. A function of its own, because a closure as long as `f` would be called.
    #[inline(always)]
    fn both<N: Number>(self, a: [f16; WIDE], b: [f16; WIDE], f: impl Fn(N, N) -> N) -> [f16; WIDE] {
        let (a, b) = (self.0.widen(a), self.0.widen(b));
        let mut y = [0.0; WIDE];
        for l in 0..WIDE {
            y[l] = f(N::from_f32(a[l]), N::from_f32(b[l])).to_f32();
        }
        self.0.round(y)
    }

    fn widen_all(self, from: &[f16], to: &mut [f32]) {
        let ((chunks, last), (to, to_last)) = (from.as_chunks(), to.as_chunks_mut());
        self.run(
            #[inline(always)]
            || to.iter_mut().zip(chunks).for_each(|(to, &from)| *to = self.0.widen(from)),
        );
        to_last.iter_mut().zip(last).for_each(|(to, &from)| *to = f16_to_f32(from));
    }

    fn round_all(self, from: &[f32], to: &mut [f16]) {
        let ((chunks, last), (to, to_last)) = (from.as_chunks(), to.as_chunks_mut());
        self.run(
            #[inline(always)]
            || to.iter_mut().zip(chunks).for_each(|(to, &from)| *to = self.0.round(from)),
        );
        to_last.iter_mut().zip(last).for_each(|(to, &from)| *to = f16_from_f32(from));
    }

    /// Adds rows, one after the other, as long as the sums.
    #[inline(always)]
    pub(crate) fn add<R: Number, const K: usize>(self, sums: &mut [R], rows: [&[f16]; K]) {
        let whole = sums.len() / WIDE;
        let (sums, sums_rest) = sums.as_chunks_mut::<WIDE>();
        let (chunks, rests) = wide_chunks(rows, whole);
        for (i, sums) in sums[..whole].iter_mut().enumerate() {
            let mut all = *sums;
            for k in 0..K {
                let row = self.0.widen(chunks[k][i]);
                for l in 0..WIDE {
                    all[l] = all[l].plus(R::from_f32(row[l]));
                }
            }
            *sums = all;
        }
        for (i, sum) in sums_rest.iter_mut().enumerate() {
            for k in 0..K {
                *sum = sum.plus(R::from_f32(f16_to_f32(rests[k][i])));
            }
        }
    }

    /// `y[i] = f(x[i], with[0][i], ...)`, inside [`run`](HalfLoops::run). All slices have the same length.
    #[inline(always)]
    pub(crate) fn map_with<const K: usize>(
        self,
        x: &[f16],
        with: [&[f32]; K],
        y: &mut [f16],
        f: impl Fn(f32, [f32; K]) -> f32,
    ) {
        let whole = x.len() / WIDE;
        let (x, x_rest) = x.as_chunks::<WIDE>();
        let (y, y_rest) = y.as_chunks_mut::<WIDE>();
        let (chunks, rests) = wide_chunks(with, whole);
        for (i, (y, &x)) in y[..whole].iter_mut().zip(x).enumerate() {
            let (x, mut wide) = (self.0.widen(x), [0.0; WIDE]);
            for l in 0..WIDE {
                let mut numbers = [0.0; K];
                for k in 0..K {
                    numbers[k] = chunks[k][i][l];
                }
                wide[l] = f(x[l], numbers);
            }
            *y = self.0.round(wide);
        }
        for (i, (y, &x)) in y_rest.iter_mut().zip(x_rest).enumerate() {
            let mut numbers = [0.0; K];
            for k in 0..K {
                numbers[k] = rests[k][i];
            }
            *y = f16_from_f32(f(f16_to_f32(x), numbers));
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<C: Converts> HalfLoops for F16Loops<C> {
    type Half = f16;
    const TWO_TO_16: u16 = 0x7c00;
    const INFINITY: u16 = 0x7c00;
    const QUIET: u16 = 0x0200;

    #[inline(always)]
    fn run<O>(self, f: impl FnOnce() -> O) -> O {
        self.0.vectorize(f)
    }

    #[inline(always)]
    fn map_both<N: Number>(self, a: &[f16], b: &[f16], y: &mut [f16], f: impl Fn(N, N) -> N) {
        let ((a, a_rest), (b, b_rest), (y, y_rest)) =
            (a.as_chunks::<WIDE>(), b.as_chunks::<WIDE>(), y.as_chunks_mut::<WIDE>());
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = self.both(
                a,
                b,
                #[expect(clippy::redundant_closure, reason = "a call through a reference is not inlined")]
                #[inline(always)]
                |a, b| f(a, b),
            );
        }
        if !y_rest.is_empty() {
            y_rest.copy_from_slice(&self.both(padded(a_rest), padded(b_rest), f)[..y_rest.len()]);
        }
    }

    #[inline(always)]
    fn whole<const TO: i32>(self, x: &[f16], y: &mut [f16]) {
        let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<WIDE>(), y.as_chunks_mut::<WIDE>());
        for (y, &x) in y.iter_mut().zip(x) {
            *y = self.0.round(self.0.whole::<TO>(self.0.widen(x)));
        }
        let mut last = [f16::ZERO; WIDE];
        last[..x_rest.len()].copy_from_slice(x_rest);
        let last = self.0.round(self.0.whole::<TO>(self.0.widen(last)));
        y_rest.copy_from_slice(&last[..y_rest.len()]);
    }

    #[inline(always)]
    fn wide<N: Number>(v: f16) -> N {
        N::from_f32(f16_to_f32(v))
    }

    fn nearest(v: f32) -> f16 {
        f16_from_f32(v)
    }
}

/// Converts each element by instructions for f16. False, and nothing is done, on a machine without them. Both slices have the
/// same length.
pub(super) fn widen_f16s<N: Number>(from: &[f16], to: &mut [N]) -> bool {
    if let Some(to) = f32::same_mut(to) {
        return f16s_to_f32(from, to);
    }
    let mut wide = [0.0; BLOCK];
    from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)).all(|(from, to)| {
        let wide = &mut wide[..from.len()];
        let is_done = f16s_to_f32(from, wide);
        simd(
            #[inline(always)]
            || to.iter_mut().zip(&*wide).for_each(|(to, &v)| *to = N::from_f32(v)),
        );
        is_done
    })
}

/// [`widen_f16s`] to f32.
fn f16s_to_f32(from: &[f16], to: &mut [f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(loops) = f16_loops() {
        with_f16_loops!(loops, loops => loops.widen_all(from, to));
        return true;
    }
    let _ = (from, to);
    false
}

/// Rounds each element, likewise.
pub(super) fn f16s_from_f32(from: &[f32], to: &mut [f16]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(loops) = f16_loops() {
        with_f16_loops!(loops, loops => loops.round_all(from, to));
        return true;
    }
    let _ = (from, to);
    false
}
