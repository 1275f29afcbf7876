//! Conversions between f32 and the floats of 16 bits, without branches and without calls: loops that convert become SIMD
//! code. The results are those of the crate `half`, bit for bit.

use bytemuck::Pod;
use half::{bf16, f16};
#[cfg(target_arch = "x86_64")]
use pulp::Arch;

use super::numeric::Number;
#[cfg(target_arch = "x86_64")]
use super::simd::arch;
use super::simd::simd;

const INFINITY: u32 = 0x7f80_0000;
const SIGN: u32 = 0x8000_0000;

/// A NaN keeps its bits.
#[inline(always)]
pub(super) fn bf16_to_f32(v: bf16) -> f32 {
    f32::from_bits(u32::from(v.to_bits()) << 16)
}

/// Rounded to nearest, ties to even.
#[inline(always)]
pub(super) fn bf16_from_f32(v: f32) -> bf16 {
    let bits = v.to_bits();
    // Half of the last place that stays; a tie rounds up only to an even number. A carry reaches the exponent.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let nan = bits | 0x0040_0000;
    bf16::from_bits((if v.is_nan() { nan } else { rounded } >> 16) as u16)
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

/// Rounds numbers of 64 bits to nearest, ties to even. Both slices have the same length.
pub(super) fn bf16s_from_f64(from: &[f64], to: &mut [bf16]) {
    /// Numbers that are looked at before they are converted.
    const BLOCK: usize = 256;
    /// The bits of an f64 that an f32 does not have.
    const BEYOND: u64 = (1 << 29) - 1;
    // Rounded to odd by its bits, a number within the range of normal f32 becomes an f32 exactly.
    let odd = |v: f64| {
        let bits = v.to_bits();
        f64::from_bits((bits & !BEYOND) | (((bits & BEYOND) + BEYOND) & (BEYOND + 1))) as f32
    };
    // A 0 is the largest of these.
    let magnitude = |v: f64| v.abs().to_bits().wrapping_sub(1);
    let smallest = magnitude(f64::from(f32::MIN_POSITIVE));
    simd(
        #[inline(always)]
        || {
            for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
                if from.iter().fold(u64::MAX, |least, &v| least.min(magnitude(v))) < smallest {
                    to.iter_mut().zip(from).for_each(|(to, &v)| *to = bf16_from_f32(v.to_odd_f32()));
                } else {
                    to.iter_mut().zip(from).for_each(|(to, &v)| *to = bf16_from_f32(odd(v)));
                }
            }
        },
    );
}

/// Loops over numbers of 16 bits that are computed in f32, and converted in registers.
pub(crate) trait HalfLoops: Copy + Send + Sync {
    type Half: Pod;

    /// Runs a closure with loops, compiled for the instructions of the machine.
    fn run<O>(self, f: impl FnOnce() -> O) -> O;
    /// `y[i] = f(x[i])`, inside [`run`](Self::run). All slices have the same length.
    fn map<N: Number>(self, x: &[Self::Half], y: &mut [Self::Half], f: impl Fn(N) -> N);
    /// `y[i] = f(a[i], b[i])`, likewise.
    fn map_both<N: Number>(
        self,
        a: &[Self::Half],
        b: &[Self::Half],
        y: &mut [Self::Half],
        f: impl Fn(N, N) -> N,
    );
    /// The number in the arithmetic type.
    fn wide<N: Number>(v: Self::Half) -> N;
}

/// [`HalfLoops`] of bf16, which the compiler turns into SIMD code.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Loops;

impl HalfLoops for Bf16Loops {
    type Half = bf16;

    #[inline(always)]
    fn run<O>(self, f: impl FnOnce() -> O) -> O {
        simd(f)
    }

    #[inline(always)]
    fn map<N: Number>(self, x: &[bf16], y: &mut [bf16], f: impl Fn(N) -> N) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = bf16_from_f32(f(Self::wide(x)).to_f32());
        }
    }

    #[inline(always)]
    fn map_both<N: Number>(self, a: &[bf16], b: &[bf16], y: &mut [bf16], f: impl Fn(N, N) -> N) {
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = bf16_from_f32(f(Self::wide(a), Self::wide(b)).to_f32());
        }
    }

    #[inline(always)]
    fn wide<N: Number>(v: bf16) -> N {
        N::from_f32(bf16_to_f32(v))
    }
}

/// [`HalfLoops`] of f16, by the instructions of AVX-512 that convert it.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct F16Loops(pulp::x86::V4);

/// `None` on a machine without instructions for f16.
#[cfg(target_arch = "x86_64")]
pub(crate) fn f16_loops() -> Option<F16Loops> {
    match arch() {
        Arch::V4(v4) => Some(F16Loops(v4)),
        _ => None,
    }
}

/// Numbers in a register.
#[cfg(target_arch = "x86_64")]
const WIDE: usize = 16;

#[cfg(target_arch = "x86_64")]
impl F16Loops {
    #[inline(always)]
    fn widen(self, x: [f16; WIDE]) -> [f32; WIDE] {
        bytemuck::cast(self.0.avx512f._mm512_cvtph_ps(bytemuck::cast(x)))
    }

    /// To nearest, ties to even.
    #[inline(always)]
    fn round(self, x: [f32; WIDE]) -> [f16; WIDE] {
        bytemuck::cast(self.0.avx512f._mm512_cvtps_ph::<0>(bytemuck::cast(x)))
    }

    /// Adds rows, one after the other, as long as the sums.
    #[inline(always)]
    pub(crate) fn add<R: Number, const K: usize>(self, sums: &mut [R], rows: [&[f16]; K]) {
        let (sums, sums_rest) = sums.as_chunks_mut::<WIDE>();
        let rows = rows.map(|row| row.as_chunks::<WIDE>());
        for (i, sums) in sums.iter_mut().enumerate() {
            for k in 0..K {
                let row = self.widen(rows[k].0[i]);
                for l in 0..WIDE {
                    sums[l] = sums[l].plus(R::from_f32(row[l]));
                }
            }
        }
        for (i, sum) in sums_rest.iter_mut().enumerate() {
            for k in 0..K {
                *sum = sum.plus(R::from_f32(f16_to_f32(rows[k].1[i])));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl HalfLoops for F16Loops {
    type Half = f16;

    #[inline(always)]
    fn run<O>(self, f: impl FnOnce() -> O) -> O {
        self.0.vectorize(f)
    }

    #[inline(always)]
    fn map<N: Number>(self, x: &[f16], y: &mut [f16], f: impl Fn(N) -> N) {
        self.map_both(x, x, y, |x, _| f(x));
    }

    #[inline(always)]
    fn map_both<N: Number>(self, a: &[f16], b: &[f16], y: &mut [f16], f: impl Fn(N, N) -> N) {
        let register = |a: [f16; WIDE], b: [f16; WIDE]| {
            let (a, b) = (self.widen(a), self.widen(b));
            let mut y = [0.0; WIDE];
            for l in 0..WIDE {
                y[l] = f(N::from_f32(a[l]), N::from_f32(b[l])).to_f32();
            }
            self.round(y)
        };
        let ((a, a_rest), (b, b_rest), (y, y_rest)) =
            (a.as_chunks::<WIDE>(), b.as_chunks::<WIDE>(), y.as_chunks_mut::<WIDE>());
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = register(a, b);
        }
        let padded = |rest: &[f16]| {
            let mut x = [f16::ZERO; WIDE];
            x[..rest.len()].copy_from_slice(rest);
            x
        };
        y_rest.copy_from_slice(&register(padded(a_rest), padded(b_rest))[..y_rest.len()]);
    }

    #[inline(always)]
    fn wide<N: Number>(v: f16) -> N {
        N::from_f32(f16_to_f32(v))
    }
}

/// Converts each element by the instruction of AVX-512. False, and nothing is done, on a machine without it. Both slices have the
/// same length.
pub(super) fn f16s_to_f32(from: &[f16], to: &mut [f32]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(loops) = f16_loops() {
        let ((chunks, last), (to, to_last)) = (from.as_chunks(), to.as_chunks_mut());
        loops.run(
            #[inline(always)]
            || to.iter_mut().zip(chunks).for_each(|(to, &from)| *to = loops.widen(from)),
        );
        to_last.iter_mut().zip(last).for_each(|(to, &from)| *to = f16_to_f32(from));
        return true;
    }
    let _ = (from, to);
    false
}

/// Rounds each element, likewise.
pub(super) fn f16s_from_f32(from: &[f32], to: &mut [f16]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let Some(loops) = f16_loops() {
        let ((chunks, last), (to, to_last)) = (from.as_chunks(), to.as_chunks_mut());
        loops.run(
            #[inline(always)]
            || to.iter_mut().zip(chunks).for_each(|(to, &from)| *to = loops.round(from)),
        );
        to_last.iter_mut().zip(last).for_each(|(to, &from)| *to = f16_from_f32(from));
        return true;
    }
    let _ = (from, to);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_numbers_of_16_bits_convert_as_half_does() {
        for bits in 0..=u16::MAX {
            let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
            // The crate sets a bit of a signalling NaN.
            let quiet = if b.is_nan() { 0x0040_0000 } else { 0 };
            assert_eq!(bf16_to_f32(b).to_bits() | quiet, b.to_f32_const().to_bits(), "bf16 {bits:04x}");
            assert_eq!(f16_to_f32(h).to_bits(), h.to_f32_const().to_bits(), "f16 {bits:04x}");
        }
    }

    /// In slices, whose conversion may be an instruction of the machine.
    #[test]
    fn slices_of_f16_convert_as_numbers_do() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; all.len() - 3];
        if f16s_to_f32(&all[3..], &mut wide) {
            for (wide, &half) in wide.iter().zip(&all[3..]) {
                assert_eq!(wide.to_bits(), f16_to_f32(half).to_bits(), "{:04x}", half.to_bits());
            }
        }
        let numbers: Vec<f32> = (0..u32::MAX).step_by(997).map(f32::from_bits).chain(wide).collect();
        let mut halves = vec![f16::ZERO; numbers.len()];
        if f16s_from_f32(&numbers, &mut halves) {
            for (half, &v) in halves.iter().zip(&numbers) {
                assert_eq!(half.to_bits(), f16_from_f32(v).to_bits(), "{:08x}", v.to_bits());
            }
        }
    }

    /// Numbers all over the range, and around every tie: the lower bits of a number of 16 bits, halfway and beside it.
    #[test]
    fn numbers_of_32_bits_are_rounded_as_half_does() {
        let near =
            |bits: u32, half: u32| [0, 1, half - 1, half, half + 1, 2 * half - 1].map(|low| bits | low);
        let of_bf16 = (0..1 << 16).flat_map(|high: u32| near(high << 16, 1 << 15));
        let of_f16 = (0..1 << 19).flat_map(|high: u32| near(high << 13, 1 << 12));
        for bits in of_bf16.chain(of_f16).chain((0..u32::MAX).step_by(997)) {
            let v = f32::from_bits(bits);
            assert_eq!(bf16_from_f32(v).to_bits(), bf16::from_f32_const(v).to_bits(), "bf16 of {bits:08x}");
            assert_eq!(f16_from_f32(v).to_bits(), f16::from_f32_const(v).to_bits(), "f16 of {bits:08x}");
        }
    }
}
