//! Products of pairs of bf16, by the instructions that the processor has for them.

mod amx;
mod avx512;

pub(crate) use amx::{Amx, TILE, Tiles};
pub(crate) use avx512::Avx512Bf16;

use crate::types::DType;

/// What multiplies pairs of bf16.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bf16Pairs {
    /// Registers of AVX-512.
    Avx512(Avx512Bf16),
    /// Tiles of AMX.
    Amx(Amx),
}

impl Bf16Pairs {
    /// For a product in `dtype` with a result of `rows` x `columns`, if there are instructions that make it faster. A matrix times a
    /// vector is a few sums of long rows, in f32.
    pub(crate) fn for_product(dtype: DType, rows: usize, columns: usize) -> Option<Bf16Pairs> {
        if dtype != DType::BF16 || rows <= 1 || columns <= 1 {
            return None;
        }
        let avx512 = || Avx512Bf16::get().filter(|_| avx512::is_fast()).map(Bf16Pairs::Avx512);
        Amx::get().map(Bf16Pairs::Amx).or_else(avx512)
    }
}
