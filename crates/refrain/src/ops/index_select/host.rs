//! `index_select`, `index_add` and `index_reduce` on the CPU.

use super::reduce::{IndexReduction, Reduction};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, Stored, with_float, with_stored};
use crate::device::cpu::{parallel, scratch::Scratch, simd::simd};
use crate::error::Result;
use crate::kernels::positions::{Position, check_range, missing, pick};

/// Columns that are reduced together, in registers or the L1 cache.
const COLUMNS: usize = 64;
/// Elements of a result that are selected at a time.
const PIECE: usize = 4096;

/// Checks the indices of operand `i`, of places along an axis.
fn check<I: Position>(
    args: &HostArgs<'_>,
    i: usize,
    index: &[I],
    axis: usize,
    size: usize,
    advice: &str,
) -> Result<()> {
    let advice = || if advice.is_empty() { String::new() } else { format!(" ({advice})") };
    check_range(args, i, index, size, || format!("axis {axis} of size {size}{}", advice()))
}

pub(super) fn select<I: Position>(axis: usize, advice: &str, index: &[I], args: &HostArgs<'_>) -> Result<()> {
    let from = args.read_shape(0);
    let size = from[axis];
    check(args, 1, index, axis, size, advice)?;
    let inner: usize = from[axis + 1..].iter().product();
    with_stored!(args.write_dtype(0), T => {
        let x = args.read::<T>(0)?;
        if inner == 1 {
            parallel::pieces(args.write::<T>(0)?, PIECE, |piece, y| {
                select_elements((x, size), index, piece * PIECE, y);
            });
            return Ok(());
        }
        parallel::pieces(args.write::<T>(0)?, inner, |i, row| {
            match index[i % index.len()].within(size) {
                Some(place) => row.copy_from_slice(&x[(i / index.len() * size + place) * inner..][..inner]),
                None => row.fill(missing()),
            }
        });
    });
    Ok(())
}

/// Elements of the rows of `x`, which have `size` elements each, by an index for all rows: those from `first` on.
fn select_elements<T: Stored, I: Position>((x, size): (&[T], usize), index: &[I], first: usize, y: &mut [T]) {
    let (mut at, mut rest) = (first, y);
    while !rest.is_empty() {
        let (row, column) = (at / index.len(), at % index.len());
        let (y, others) = rest.split_at_mut(rest.len().min(index.len() - column));
        pick(&x[row * size..][..size], &index[column..], y);
        at += y.len();
        rest = others;
    }
}

/// Writes the entries of an index in the order of the `ends.len()` places that they name, and where those of each place end.
fn sort<I: Position>(index: &[I], entries: &mut [i32], ends: &mut [i32]) {
    let size = ends.len();
    let places = || index.iter().enumerate().filter_map(|(entry, i)| Some((entry, i.within(size)?)));
    ends.fill(0);
    places().for_each(|(_, place)| ends[place] += 1);
    let mut start = 0;
    for end in &mut *ends {
        start += std::mem::replace(end, start);
    }
    // Each entry moves the start of its place's range, so that the starts become the ends.
    for (entry, place) in places() {
        entries[ends[place] as usize] = entry as i32;
        ends[place] += 1;
    }
    let outside = index.iter().enumerate().filter(|(_, i)| i.within(size).is_none());
    entries[start as usize..].iter_mut().zip(outside).for_each(|(to, (entry, _))| *to = entry as i32);
}

pub(super) fn order<I: Position>(axis: usize, size: usize, index: &[I], args: &HostArgs<'_>) -> Result<()> {
    check(args, 0, index, axis, size, "")?;
    sort(index, args.write(0)?, args.write(1)?);
    Ok(())
}

/// For each slice, the entries of an index that name it, in order.
struct Sorted<'a> {
    entries: &'a [i32],
    ends: &'a [i32],
}

impl Sorted<'_> {
    fn of(&self, i: usize) -> &[i32] {
        let end = |i: usize| self.ends[i] as usize;
        &self.entries[i.checked_sub(1).map_or(0, end)..end(i)]
    }
}

/// On top of operand 2, if that is `base`, or of zeros. `order` is the number of the first of two operands, the order of the index.
pub(super) fn reduce<I: Position>(
    reduction: Reduction,
    axis: usize,
    base: bool,
    order: Option<usize>,
    index: &[I],
    args: &HostArgs<'_>,
) -> Result<()> {
    let to = args.write_shape(0);
    let (size, count) = (to[axis], index.len());
    let inner: usize = to[axis + 1..].iter().product();
    let onto = base || args.accumulate(0);
    let base_joins = !matches!(reduction, Reduction::Extreme { include_self: false, .. });
    let (mut entries, mut ends);
    let sorted = match order {
        Some(first) => Sorted { entries: args.read(first)?, ends: args.read(first + 1)? },
        None => {
            check(args, 1, index, axis, size, "")?;
            (entries, ends) = (Scratch::new(count), Scratch::new(size));
            sort(index, &mut entries, &mut ends);
            Sorted { entries: &entries, ends: &ends }
        }
    };
    with_float!(args, args.write_dtype(0), T, R => {
        let x = args.read::<T>(0)?;
        let original = if base && args.in_place(2).is_none() { Some(args.read::<T>(2)?) } else { None };
        parallel::pieces(args.write::<T>(0)?, inner, |i, row| {
            let (outer, entries) = (i / size, sorted.of(i % size));
            if let Some(base) = original {
                row.copy_from_slice(&base[i * inner..][..row.len()]);
            }
            if entries.is_empty() {
                if !onto {
                    row.fill(T::from_number(<R as Number>::ZERO));
                }
                return;
            }
            for (c, y) in row.chunks_mut(COLUMNS).enumerate() {
                let mut all = [<R as Number>::ZERO; COLUMNS];
                let width = y.len();
                let all = &mut all[..width];
                let slices = entries.iter().map(|&e| {
                    &x[(outer * count + e as usize) * inner + c * COLUMNS..][..width]
                });
                let joins = onto && base_joins;
                simd(
                    #[inline(always)]
                    || {
                        if joins {
                            all.iter_mut().zip(y.iter()).for_each(|(a, y)| *a = y.to());
                        }
                        match reduction {
                            Reduction::Sum => slices.for_each(|slice| sum_up(all, slice)),
                            Reduction::Extreme { of: IndexReduction::Amax, .. } => {
                                extreme::<T, R, true>(all, joins, slices);
                            }
                            Reduction::Extreme { of: IndexReduction::Amin, .. } => {
                                extreme::<T, R, false>(all, joins, slices);
                            }
                        }
                        y.iter_mut().zip(all.iter()).for_each(|(y, &a)| *y = T::from_number(a));
                    },
                );
            }
        });
        Ok(())
    })
}

#[inline(always)]
fn sum_up<T: Stored, R: Real>(all: &mut [R], slice: &[T]) {
    all.iter_mut().zip(slice).for_each(|(a, x)| *a += x.to::<R>());
}

/// The largest or smallest of `all`, if it `joins`, and of one or more slices. A zero is +0, so that the order does not matter.
#[inline(always)]
fn extreme<'a, T: Stored, R: Real, const MAX: bool>(
    all: &mut [R],
    joins: bool,
    mut slices: impl Iterator<Item = &'a [T]>,
) {
    if !joins && let Some(first) = slices.next() {
        all.iter_mut().zip(first).for_each(|(a, x)| *a = x.to());
    }
    for slice in slices {
        for (a, x) in all.iter_mut().zip(slice) {
            let x: R = x.to();
            let is_more = if MAX { x > *a } else { x < *a };
            // Without branches, so that loops become SIMD code.
            *a = if is_more | x.is_nan() { x } else { *a };
        }
    }
    all.iter_mut().for_each(|a| *a += R::ZERO);
}
