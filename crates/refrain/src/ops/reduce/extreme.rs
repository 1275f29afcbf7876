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
    /// Whether numbers are compared faster than keys: of a NaN and of zeros, whose keys differ, nothing is known.
    const FAST_NUMBERS: bool = false;
    /// Whether this number is more extreme; not if one is a NaN.
    #[inline(always)]
    fn is_more<const MAX: bool>(self, _than: Self) -> bool {
        false
    }
    /// All bits if it is a NaN, else none: a mask, as comparisons make it.
    #[inline(always)]
    fn nan_mask(self) -> u64 {
        0
    }
    /// Whether it is no zero.
    #[inline(always)]
    fn is_unique(self) -> bool {
        true
    }
}

macro_rules! keyed_float {
    ($t:ident, $bits:ident $(, $fast:literal)?) => {
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

            $(
                // Not every machine compares integers of 64 bits fast.
                const FAST_NUMBERS: bool = $fast;

                #[inline(always)]
                fn is_more<const MAX: bool>(self, than: $t) -> bool {
                    if MAX { self > than } else { self < than }
                }

                #[inline(always)]
                fn nan_mask(self) -> u64 {
                    if self.is_nan() { u64::MAX } else { 0 }
                }

                #[inline(always)]
                fn is_unique(self) -> bool {
                    self.abs() > 0.0
                }
            )?
        }
    };
}
keyed_float!(f16, i16);
keyed_float!(bf16, i16);
keyed_float!(f32, i32);
keyed_float!(f64, i64, true);

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

#[inline(always)]
fn row_extreme<T: Keyed, const MAX: bool>(x: &[T]) -> T::Key {
    let found = if T::FAST_NUMBERS { extreme_number::<T, MAX>(x) } else { None };
    found.unwrap_or_else(
        #[inline(always)]
        || extreme_of::<T, MAX>(x),
    )
}

/// Numbers that are compared side by side.
const SIDE_BY_SIDE: usize = 16;

/// [`extreme_of`] by comparisons of numbers. `None` if that does not decide it.
#[inline(always)]
fn extreme_number<T: Keyed, const MAX: bool>(x: &[T]) -> Option<T::Key> {
    let more = |a: T, b: T| if b.is_more::<MAX>(a) { b } else { a };
    let mut most = [x[0]; SIDE_BY_SIDE];
    let mut nans = [0; SIDE_BY_SIDE];
    let (chunks, rest) = x.as_chunks::<SIDE_BY_SIDE>();
    for chunk in chunks {
        for l in 0..SIDE_BY_SIDE {
            most[l] = more(most[l], chunk[l]);
            nans[l] |= chunk[l].nan_mask();
        }
    }
    let all = rest.iter().chain(&most[1..]).fold(most[0], |a, &b| more(a, b));
    let nans = rest.iter().fold(nans.iter().fold(0, |all, nan| all | nan), |all, v| all | v.nan_mask());
    (nans == 0 && all.is_unique()).then(|| all.key())
}

/// The extremes of columns by comparisons of numbers. False if that does not decide them.
#[inline(always)]
fn extreme_numbers<T: Keyed, const MAX: bool>(
    x: &[T],
    stride: usize,
    rows: usize,
    states: &mut [T::Key],
) -> bool {
    let more = |a: T, b: T| if b.is_more::<MAX>(a) { b } else { a };
    let width = states.len();
    let row = |r: usize| &x[r.min(rows - 1) * stride..][..width];
    let mut most = [x[0]; SEGMENT];
    let most = &mut most[..width];
    most.copy_from_slice(row(0));
    let mut nans = most.iter().fold(0, |all, v| all | v.nan_mask());
    for r in (1..rows).step_by(ROWS) {
        let (a, b, c, d) = (row(r), row(r + 1), row(r + 2), row(r + 3));
        for ((((most, &a), &b), &c), &d) in most.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            nans |= a.nan_mask() | b.nan_mask() | c.nan_mask() | d.nan_mask();
            *most = more(*most, more(more(a, b), more(c, d)));
        }
    }
    states.iter_mut().zip(&*most).for_each(|(state, v)| *state = v.key());
    nans == 0 && most.iter().fold(true, |all, v| all & v.is_unique())
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
            || row_extreme::<T, MAX>(x),
        )
    }

    fn four_rows(&self, [[a], [b], [c], [d]]: [[&[T]; 1]; 4], _: [PartPosition; 4]) -> [T::Key; 4] {
        simd(
            #[inline(always)]
            || {
                let ab = [row_extreme::<T, MAX>(a), row_extreme::<T, MAX>(b)];
                [ab[0], ab[1], row_extreme::<T, MAX>(c), row_extreme::<T, MAX>(d)]
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
                if T::FAST_NUMBERS && extreme_numbers::<T, MAX>(x, stride, rows, states) {
                    return;
                }
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
