//! Slices of numbers: their type, and conversions of all elements.

use std::any::TypeId;

use bytemuck::Pod;
use half::{bf16, f16};

use super::conversions::{SMALL, small_whole};
use super::{Number, Stored};
use crate::device::cpu::narrow;
use crate::device::cpu::simd::simd;

/// Converts each element. Both slices have the same length.
///
/// It is not inlined, so that its loops are compiled once for each pair of types and not for each caller.
#[inline(never)]
pub(crate) fn convert<T: Stored, N: Number>(from: &[T], to: &mut [N]) {
    if let Some(from) = same::<T, f16>(from)
        && narrow::widen_f16s(from, to)
    {
        return;
    }
    simd(
        #[inline(always)]
        || to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to()),
    );
}

/// Stores numbers, rounded to nearest, or adds them to what is there. Both slices have the same length. Not inlined, like
/// [`convert`].
#[inline(never)]
pub(crate) fn store<T: Stored, N: Number>(from: &[N], to: &mut [T], accumulate: bool) {
    if !accumulate
        && let (Some(from), Some(to)) = (f32::same(from), same_mut::<T, f16>(to))
        && narrow::f16s_from_f32(from, to)
    {
        return;
    }
    if !accumulate && let (Some(from), Some(to)) = (f64::same(from), same_mut::<T, bf16>(to)) {
        return narrow::bf16s_from_f64(from, to);
    }
    if !accumulate && let (Some(from), Some(to)) = (i64::same(from), same_mut::<T, bf16>(to)) {
        return narrow::bf16s_from_i64(from, to);
    }
    simd(
        #[inline(always)]
        || match accumulate {
            true => to.iter_mut().zip(from).for_each(|(to, &n)| *to = T::from_number(to.to::<N>().plus(n))),
            // Bytes are made of f32 without this.
            false if T::IS_INTEGER && !N::IS_INTEGER && size_of::<T>().max(size_of::<N>() / 4) > 1 => {
                for (from, to) in from.chunks(BLOCK).zip(to.chunks_mut(BLOCK)) {
                    match from.iter().fold(true, |all, &n| all & is_small(n)) {
                        true => to
                            .iter_mut()
                            .zip(from)
                            .for_each(|(to, &n)| *to = T::from_number(small_whole(n.to_f64()))),
                        false => to.iter_mut().zip(from).for_each(|(to, &n)| *to = T::from_number(n)),
                    }
                }
            }
            false => to.iter_mut().zip(from).for_each(|(to, &n)| *to = T::from_number(n)),
        },
    );
}

/// Floats that are looked at before they become integers.
const BLOCK: usize = 256;

/// Whether [`small_whole`] takes it.
#[inline(always)]
fn is_small<N: Number>(n: N) -> bool {
    (n > N::from_f64(-SMALL)) & (n < N::from_f64(SMALL))
}

/// The slice, if its elements are of type `U`.
pub(super) fn same<T: Pod, U: Pod>(s: &[T]) -> Option<&[U]> {
    (TypeId::of::<T>() == TypeId::of::<U>()).then(|| bytemuck::cast_slice(s))
}

/// The slice, if its elements are of type `U`.
pub(super) fn same_mut<T: Pod, U: Pod>(s: &mut [T]) -> Option<&mut [U]> {
    (TypeId::of::<T>() == TypeId::of::<U>()).then(|| bytemuck::cast_slice_mut(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In blocks of small numbers, and with one that is not.
    #[test]
    fn slices_of_floats_become_integers_as_in_rust() {
        let beyond = [SMALL, -SMALL, SMALL - 0.5, -3e18, 1e19, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        for special in [0.0, -0.9, 300.7].into_iter().chain(beyond) {
            let mut numbers: Vec<f64> = (0..3 * BLOCK + 77).map(|i| i as f64 * 0.37 - 150.2).collect();
            numbers[BLOCK + 9] = special;
            let floats: Vec<f32> = numbers.iter().map(|&v| v as f32).collect();
            let (mut of_numbers, mut of_floats) = (vec![0i64; numbers.len()], vec![0i64; numbers.len()]);
            store(&numbers, &mut of_numbers, false);
            store(&floats, &mut of_floats, false);
            assert!(of_numbers.iter().zip(&numbers).all(|(&i, &v)| i == v as i64), "f64 with {special}");
            assert!(of_floats.iter().zip(&floats).all(|(&i, &v)| i == v as i64), "f32 with {special}");
            let (mut words, mut bytes) = (vec![0i32; numbers.len()], vec![0u8; numbers.len()]);
            store(&numbers, &mut words, false);
            store(&numbers, &mut bytes, false);
            assert!(words.iter().zip(&numbers).all(|(&i, &v)| i == v as i64 as i32), "i32 with {special}");
            assert!(bytes.iter().zip(&numbers).all(|(&i, &v)| i == v as i64 as u8), "u8 with {special}");
        }
    }
}
