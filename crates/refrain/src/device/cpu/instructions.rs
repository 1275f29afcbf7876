//! The names of the instructions that kernels use.

use pulp::Arch;

use super::bf16_pairs::Bf16Pairs;
use super::simd::arch;
use crate::types::DType;

/// The vector instructions that kernels on the CPU use, such as `["AVX-512", "AMX"]`: the best of this machine, unless the environment
/// variable `REFRAIN_CPU` limits them. None if the compiler alone chooses.
///
/// `"AMX"` and `"AVX-512 BF16"` are those of products of bf16.
///
/// ```
/// let names = refrain::cpu_instructions();
/// println!("{}", if names.is_empty() { "none known".to_owned() } else { names.join(", ") });
/// ```
pub fn cpu_instructions() -> Vec<&'static str> {
    let vectors = match arch() {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Arch::V3(_) => Some("AVX2"),
        #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
        Arch::V4(_) => Some("AVX-512"),
        #[cfg(target_arch = "aarch64")]
        Arch::Neon(_) => Some("NEON"),
        _ => None,
    };
    let of_bf16 = Bf16Pairs::for_product(DType::BF16, 2, 2).map(|pairs| match pairs {
        Bf16Pairs::Avx512(_) => "AVX-512 BF16",
        Bf16Pairs::Amx(_) => "AMX",
    });
    vectors.into_iter().chain(of_bf16).collect()
}
