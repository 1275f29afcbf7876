//! The largest and the smallest elements, and where they are, on the CPU.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use super::host::{Elements, Order};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_stored};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::{Extent, PartPosition, Reducer, SEGMENT, State};
use crate::kernels::rows;
use crate::tensor::DType;

/// Whether `b` replaces `a`: strictly more extreme, or the first NaN.
#[inline(always)]
fn beats<N: Number, const MAX: bool>(a: N, b: N) -> bool {
    let more = if MAX { b > a } else { b < a };
    // Without branches, so that loops become SIMD code.
    more | (b.is_nan() & !a.is_nan())
}

/// Elements that are compared as integers, so that the most extreme one does not depend on the order.
trait Keyed: Stored {
    type Key: State + Ord;

    /// Grows with the number; -0 is below 0. NaN is the largest key if `MAX`, else the smallest.
    fn key<const MAX: bool>(self) -> Self::Key;
    fn of_key(key: Self::Key) -> Self;
}

macro_rules! keyed_float {
    ($t:ident, $bits:ident) => {
        impl Keyed for $t {
            type Key = $bits;

            #[inline(always)]
            fn key<const MAX: bool>(self) -> $bits {
                let nan = if MAX { $bits::MAX } else { $bits::MIN };
                let bits = self.to_bits() as $bits;
                // Of negative numbers, all bits but the sign are turned round.
                let key = bits ^ (bits >> ($bits::BITS - 1) & $bits::MAX);
                if bits & $bits::MAX > $t::INFINITY.to_bits() as $bits { nan } else { key }
            }

            fn of_key(key: $bits) -> $t {
                let number = $t::from_bits((key ^ (key >> ($bits::BITS - 1) & $bits::MAX)) as _);
                if number.is_nan() { $t::NAN } else { number }
            }
        }
    };
}
keyed_float!(f16, i16);
keyed_float!(bf16, i16);
keyed_float!(f32, i32);
keyed_float!(f64, i64);

macro_rules! keyed_integer {
    ($($t:ident)*) => {$(
        impl Keyed for $t {
            type Key = $t;

            #[inline(always)]
            fn key<const MAX: bool>(self) -> $t {
                self
            }

            fn of_key(key: $t) -> $t {
                key
            }
        }
    )*};
}
keyed_integer!(i64 i32 u8);

/// The key of the most extreme element, or that of NaN if one is NaN.
struct Extreme<const MAX: bool>;

#[inline(always)]
fn more_extreme<K: Ord, const MAX: bool>(a: K, b: K) -> K {
    if MAX { a.max(b) } else { a.min(b) }
}

impl<T: Keyed, const MAX: bool> Reducer<T, T::Key, 1> for Extreme<MAX> {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> T::Key {
        simd(
            #[inline(always)]
            || rows::fold(x, x[0].key::<MAX>(), T::key::<MAX>, more_extreme::<T::Key, MAX>),
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, states: &mut [T::Key]) {
        let width = states.len();
        simd(
            #[inline(always)]
            || {
                states.iter_mut().zip(x).for_each(|(s, v)| *s = v.key::<MAX>());
                for r in 1..rows {
                    let row = &x[r * stride..][..width];
                    states
                        .iter_mut()
                        .zip(row)
                        .for_each(|(s, v)| *s = more_extreme::<T::Key, MAX>(*s, v.key::<MAX>()));
                }
            },
        )
    }

    fn merge(&self, a: T::Key, b: T::Key) -> T::Key {
        more_extreme::<T::Key, MAX>(a, b)
    }
}

/// An element and its position. Packed, because `Pod` allows no padding.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C, packed)]
struct Found<N> {
    value: N,
    position: i64,
}

/// Elements that are searched at a time for the most extreme one.
const SEARCHED: usize = 64;

/// The first of the most extreme elements.
struct FirstExtreme<const MAX: bool>;

impl<T: Keyed, N: Number, const MAX: bool> Reducer<T, Found<N>, 1> for FirstExtreme<MAX> {
    fn row(&self, [x]: [&[T]; 1], at: PartPosition) -> Found<N> {
        let value: N = T::of_key(Extreme::<MAX>.row([x], at)).to();
        let is_it = |v: T| {
            let v: N = v.to();
            (v == value) | v.is_nan()
        };
        simd(
            #[inline(always)]
            || {
                // Chunk by chunk without branches, then one by one.
                let holds = |chunk: &[T]| chunk.iter().fold(false, |found, &v| found | is_it(v));
                let chunk = x.chunks(SEARCHED).position(holds).unwrap_or(0) * SEARCHED;
                let position = x[chunk..].iter().position(|&v| is_it(v)).unwrap_or(0);
                Found { value, position: (at.start + chunk + position) as i64 }
            },
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, at: PartPosition, states: &mut [Found<N>]) {
        let width = states.len();
        // Apart, so that the loop becomes SIMD code.
        let (mut values, mut places) = ([N::ZERO; SEGMENT], [0u32; SEGMENT]);
        let (values, places) = (&mut values[..width], &mut places[..width]);
        simd(
            #[inline(always)]
            || {
                values.iter_mut().zip(x).for_each(|(value, v)| *value = v.to());
                for r in 1..rows {
                    let row = &x[r * stride..][..width];
                    for ((value, place), v) in values.iter_mut().zip(&mut *places).zip(row) {
                        let v = v.to();
                        let more = beats::<N, MAX>(*value, v);
                        *value = if more { v } else { *value };
                        *place = if more { r as u32 } else { *place };
                    }
                }
            },
        );
        for ((state, &value), &place) in states.iter_mut().zip(&*values).zip(&*places) {
            *state = Found { value, position: (at.start + place as usize) as i64 };
        }
    }

    fn merge(&self, a: Found<N>, b: Found<N>) -> Found<N> {
        if beats::<N, MAX>(a.value, b.value) { b } else { a }
    }
}

/// Runs an expression with `$T` as the stored type of a dtype and `$N` as the type in which it is compared.
macro_rules! with_ordered {
    ($dtype:expr, $T:ident, $N:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $T = f64;
                type $N = f64;
                $body
            }
            DType::F32 => {
                type $T = f32;
                type $N = f32;
                $body
            }
            DType::F16 => {
                type $T = half::f16;
                type $N = f32;
                $body
            }
            DType::BF16 => {
                type $T = half::bf16;
                type $N = f32;
                $body
            }
            DType::U8 => {
                type $T = u8;
                type $N = u8;
                $body
            }
            other => with_stored!(other, $T => {
                type $N = i64;
                $body
            }),
        }
    };
}

/// The largest or smallest elements.
pub(super) fn extreme(args: &HostArgs<'_>, extent: Extent, max: bool) -> Result<()> {
    with_stored!(args.read_dtype(0), T => {
        let (x, y) = (Elements::<T>::of(args, extent, Order::Free)?, args.write::<T>(0)?);
        let store = |to: &mut T, key| *to = T::of_key(key);
        match max {
            true => x.reduce(&Extreme::<true>, y, store),
            false => x.reduce(&Extreme::<false>, y, store),
        }
        Ok(())
    })
}

/// The positions of the largest or smallest elements.
pub(super) fn arg_extreme(args: &HostArgs<'_>, extent: Extent, max: bool) -> Result<()> {
    with_ordered!(args.read_dtype(0), T, N => {
        let (x, y) = (Elements::<T>::of(args, extent, Order::Along)?, args.write::<i64>(0)?);
        let store = |to: &mut i64, found: Found<N>| *to = found.position;
        match max {
            true => x.reduce(&FirstExtreme::<true>, y, store),
            false => x.reduce(&FirstExtreme::<false>, y, store),
        }
        Ok(())
    })
}
