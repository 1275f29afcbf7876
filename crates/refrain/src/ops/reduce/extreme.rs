//! The largest and the smallest elements, and where they are, on the CPU.

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use super::host::{Elements, Order};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_stored};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::{Extent, PartPosition, Reducer, SEGMENT, State};
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

    /// Whether there may be a NaN.
    const HAS_NAN: bool;

    /// Grows with the number; -0 is below 0. The key of a NaN is above or below those of all numbers, by its sign.
    fn key(self) -> Self::Key;
    /// Of the keys of some elements, `most` is the most extreme one and `least` the least: `most`, or the key of NaN if one is a
    /// NaN.
    fn extreme<const MAX: bool>(most: Self::Key, least: Self::Key) -> Self::Key;
    fn of_key(key: Self::Key) -> Self;
}

macro_rules! keyed_float {
    ($t:ident, $bits:ident) => {
        impl Keyed for $t {
            type Key = $bits;

            const HAS_NAN: bool = true;

            #[inline(always)]
            fn key(self) -> $bits {
                let bits = self.to_bits() as $bits;
                // Of negative numbers, all bits but the sign are turned round.
                bits ^ (bits >> ($bits::BITS - 1) & $bits::MAX)
            }

            #[inline(always)]
            fn extreme<const MAX: bool>(most: $bits, least: $bits) -> $bits {
                let (low, high) = if MAX { (least, most) } else { (most, least) };
                let is_nan = low < $t::NEG_INFINITY.key() || high > $t::INFINITY.key();
                match MAX {
                    _ if !is_nan => most,
                    true => $bits::MAX,
                    false => $bits::MIN,
                }
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
            const HAS_NAN: bool = false;

            #[inline(always)]
            fn key(self) -> $t {
                self
            }

            #[inline(always)]
            fn extreme<const MAX: bool>(most: $t, _: $t) -> $t {
                most
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

#[inline(always)]
fn less_extreme<K: Ord, const MAX: bool>(a: K, b: K) -> K {
    if MAX { a.min(b) } else { a.max(b) }
}

#[inline(always)]
fn extreme_of<T: Keyed, const MAX: bool>(x: &[T]) -> T::Key {
    let (mut most, mut least) = (x[0].key(), x[0].key());
    for v in x {
        most = more_extreme::<T::Key, MAX>(most, v.key());
        if T::HAS_NAN {
            least = less_extreme::<T::Key, MAX>(least, v.key());
        }
    }
    T::extreme::<MAX>(most, least)
}

/// Rows of a column that are compared at a time, so that what is known of the column is loaded and stored once.
const ROWS: usize = 4;

/// Folds four rows into what is known of their columns: of floats the most and the least extreme keys, else the most extreme ones.
#[inline(always)]
fn fold_rows<T: Keyed, const MAX: bool>(
    most: &mut [T::Key],
    least: &mut [T::Key],
    [a, b, c, d]: [&[T]; ROWS],
) {
    let more = more_extreme::<T::Key, MAX>;
    let less = less_extreme::<T::Key, MAX>;
    if T::HAS_NAN {
        let columns = most.iter_mut().zip(least).zip(a).zip(b).zip(c).zip(d);
        for (((((most, least), a), b), c), d) in columns {
            let (a, b, c, d) = (a.key(), b.key(), c.key(), d.key());
            *most = more(*most, more(more(a, b), more(c, d)));
            *least = less(*least, less(less(a, b), less(c, d)));
        }
    } else {
        for ((((most, a), b), c), d) in most.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *most = more(*most, more(more(a.key(), b.key()), more(c.key(), d.key())));
        }
    }
}

impl<T: Keyed, const MAX: bool> Reducer<T, T::Key, 1> for Extreme<MAX> {
    fn row(&self, [x]: [&[T]; 1], _: PartPosition) -> T::Key {
        simd(
            #[inline(always)]
            || extreme_of::<T, MAX>(x),
        )
    }

    fn four_rows(&self, [[a], [b], [c], [d]]: [[&[T]; 1]; 4], _: [PartPosition; 4]) -> [T::Key; 4] {
        simd(
            #[inline(always)]
            || {
                let ab = [extreme_of::<T, MAX>(a), extreme_of::<T, MAX>(b)];
                [ab[0], ab[1], extreme_of::<T, MAX>(c), extreme_of::<T, MAX>(d)]
            },
        )
    }

    fn columns(&self, [x]: [&[T]; 1], stride: usize, rows: usize, _: PartPosition, states: &mut [T::Key]) {
        let width = states.len();
        let mut least = [T::Key::default(); SEGMENT];
        let least = &mut least[..width];
        let row = |r: usize| &x[r * stride..][..width];
        simd(
            #[inline(always)]
            || {
                states.iter_mut().zip(x).for_each(|(s, v)| *s = v.key());
                if T::HAS_NAN {
                    least.copy_from_slice(states);
                }
                let fours = rows.saturating_sub(1) / ROWS;
                for r in (0..fours).map(|i| 1 + i * ROWS) {
                    fold_rows::<T, MAX>(states, least, [row(r), row(r + 1), row(r + 2), row(r + 3)]);
                }
                for r in 1 + fours * ROWS..rows {
                    fold_rows::<T, MAX>(states, least, [row(r); ROWS]);
                }
                if T::HAS_NAN {
                    for (most, &mut least) in states.iter_mut().zip(least) {
                        *most = T::extreme::<MAX>(*most, least);
                    }
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
