//! The instructions that convert f16 on processors without AVX-512 (F16C).
#![allow(unsafe_code)] // Calls instructions that not every processor with AVX2 has.

use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

use bytemuck::cast;
use half::f16;
use pulp::x86::V3;

/// Permission to use the instructions: there is a value only if the processor has them beside AVX2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct F16c(V3);

impl F16c {
    pub(super) fn get(v3: V3) -> Option<F16c> {
        is_x86_feature_detected!("f16c").then_some(F16c(v3))
    }

    /// Permission to use AVX2.
    pub(super) fn v3(self) -> V3 {
        self.0
    }

    #[inline(always)]
    pub(super) fn widen(self, x: [f16; 8]) -> [f32; 8] {
        // SAFETY: the processor has F16C, because there is a `self`.
        cast(unsafe { _mm256_cvtph_ps(cast(x)) })
    }

    /// To nearest, ties to even.
    #[inline(always)]
    pub(super) fn round(self, x: [f32; 8]) -> [f16; 8] {
        // SAFETY: the processor has F16C, because there is a `self`.
        cast(unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(cast(x)) })
    }

    /// Runs a closure that is compiled for AVX2 with these instructions.
    #[inline(always)]
    pub(super) fn run<O>(self, f: impl FnOnce() -> O) -> O {
        #[target_feature(enable = "avx2,bmi1,bmi2,f16c,fma,fxsr,lzcnt,popcnt")]
        #[inline]
        fn compiled<O>(f: impl FnOnce() -> O) -> O {
            f()
        }
        // SAFETY: the processor has AVX2, because there is a `V3`, and F16C, because there is a `self`.
        unsafe { compiled(f) }
    }
}
