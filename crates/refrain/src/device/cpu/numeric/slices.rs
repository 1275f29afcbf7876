//! Slices of numbers: their type, and conversions of all elements.

use std::any::TypeId;

use bytemuck::Pod;
use half::{bf16, f16};

use super::{Number, Stored};
use crate::device::cpu::narrow;
use crate::device::cpu::simd::simd;

/// Converts each element. Both slices have the same length.
///
/// It is not inlined, so that its loops are compiled once for each pair of types and not for each caller.
#[inline(never)]
pub(crate) fn convert<T: Stored, N: Number>(from: &[T], to: &mut [N]) {
    if let (Some(from), Some(to)) = (same::<T, f16>(from), f32::same_mut(to))
        && narrow::f16s_to_f32(from, to)
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
            false => to.iter_mut().zip(from).for_each(|(to, &n)| *to = T::from_number(n)),
        },
    );
}

/// The slice, if its elements are of type `U`.
pub(super) fn same<T: Pod, U: Pod>(s: &[T]) -> Option<&[U]> {
    (TypeId::of::<T>() == TypeId::of::<U>()).then(|| bytemuck::cast_slice(s))
}

/// The slice, if its elements are of type `U`.
pub(super) fn same_mut<T: Pod, U: Pod>(s: &mut [T]) -> Option<&mut [U]> {
    (TypeId::of::<T>() == TypeId::of::<U>()).then(|| bytemuck::cast_slice_mut(s))
}
