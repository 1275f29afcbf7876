//! The instruction that multiplies pairs of bf16 (`vdpbf16ps` of AVX-512 BF16).
#![allow(unsafe_code)] // Calls an instruction that not every processor with AVX-512 has.

#[cfg(target_arch = "x86_64")]
use std::sync::OnceLock;

use pulp::{Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use crate::device::cpu::simd::arch;

/// Permission to use the instruction: there is a value only if the processor has it and `REFRAIN_CPU` chooses no lower
/// instruction set.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512Bf16(pulp::x86::V4);

#[cfg(target_arch = "x86_64")]
impl Avx512Bf16 {
    /// If the processor has the instruction, fast or slow.
    pub(crate) fn get() -> Option<Avx512Bf16> {
        match arch() {
            pulp::Arch::V4(v4) if is_x86_feature_detected!("avx512bf16") => Some(Avx512Bf16(v4)),
            _ => None,
        }
    }

    /// For each lane of 32 bits: `c` plus the product of the upper halves of `a` and `b`, rounded to f32, plus that of the
    /// lower halves, rounded. Both are fused multiply-adds; subnormal numbers and results count as zero. The registers
    /// are those of AVX-512.
    #[inline(always)]
    pub(crate) fn mul_add<S: Simd>(self, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
        use bytemuck::cast;
        // SAFETY: the processor has AVX-512 BF16, because there is a `self`.
        cast(unsafe { std::arch::x86_64::_mm512_dpbf16_ps(cast(c), cast(a), cast(b)) })
    }

    /// Runs a kernel that is compiled for AVX-512 with this instruction.
    pub(crate) fn run<F: WithSimd>(self, kernel: F) -> F::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16")]
        fn compiled<F: WithSimd>(v4: pulp::x86::V4, kernel: F) -> F::Output {
            kernel.with_simd(v4)
        }
        // SAFETY: the processor has AVX-512, because there is a `V4`, and AVX-512 BF16, because there is a `self`.
        unsafe { compiled(self.0, kernel) }
    }
}

/// No other processor has this instruction: there is no value.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Avx512Bf16 {}

#[cfg(not(target_arch = "x86_64"))]
impl Avx512Bf16 {
    /// If the processor has the instruction, fast or slow.
    pub(crate) fn get() -> Option<Avx512Bf16> {
        None
    }

    pub(crate) fn mul_add<S: Simd>(self, _: S::f32s, _: S::f32s, _: S::f32s) -> S::f32s {
        match self {}
    }

    pub(crate) fn run<F: WithSimd>(self, _: F) -> F::Output {
        match self {}
    }
}

/// Whether the instruction multiplies more numbers in the same time than a multiply-add of f32. It does on AMD's processors (Zen 4 and 5);
/// Intel's (Sapphire Rapids) take three times as long for it, for twice the numbers.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_fast() -> bool {
    use std::arch::x86_64::__cpuid;
    static FAST: OnceLock<bool> = OnceLock::new();
    *FAST.get_or_init(|| {
        #[allow(unused_unsafe)] // Newer versions of Rust call it safe.
        // SAFETY: every x86-64 processor has this instruction, which only reads.
        let vendor = unsafe { __cpuid(0) };
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn is_fast() -> bool {
    false
}
