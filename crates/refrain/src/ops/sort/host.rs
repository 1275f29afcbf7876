//! Sorting on the CPU. A line is sorted by numbers that have the order of its elements, each with its position below it, so
//! that no two are equal.

use bytemuck::Pod;
use half::{bf16, f16};
use rayon::prelude::*;

use super::Sort;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Stored, with_stored};
use crate::device::cpu::parallel;
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};
use crate::kernels::reduction::Extent;
use crate::kernels::rows::{TASK, each_task};

/// A line that is longer is sorted, or searched, by all threads.
const LONG: usize = 1 << 16;
/// Elements of columns that are copied to lines at a time: they stay in the L2 cache.
const COLUMNS: usize = 1 << 15;
/// If at most this share of a line is wanted, the line is searched for it. Otherwise all of it gets entries.
const SHARE: usize = 16;
/// Elements of a searched line that are compared with the last one wanted at a time, without branches.
const BLOCK: usize = 32;

/// An element that can be sorted.
trait Ordered: Stored {
    type Entry: Entry;
    /// A number that has the order of the elements: NaN last, -0 equal to 0.
    fn key(self) -> <Self::Entry as Entry>::Key;
}

/// The key of a float by its bits.
macro_rules! float_key {
    ($bits:expr, $unsigned:ty, $infinity:expr) => {{
        const SIGN: $unsigned = !(<$unsigned>::MAX >> 1);
        let (bits, magnitude): ($unsigned, $unsigned) = ($bits, $bits & !SIGN);
        let key = if bits > SIGN { !bits } else { magnitude | SIGN };
        if magnitude > $infinity { <$unsigned>::MAX } else { key }
    }};
}

macro_rules! ordered {
    ($($t:ty, $entry:ty, |$v:ident| $key:expr;)*) => {$(
        impl Ordered for $t {
            type Entry = $entry;
            #[inline(always)]
            fn key(self) -> <$entry as Entry>::Key {
                let $v = self;
                $key
            }
        }
    )*};
}
ordered! {
    f64, u128, |v| float_key!(v.to_bits(), u64, f64::INFINITY.to_bits());
    f32, u64, |v| float_key!(v.to_bits(), u32, f32::INFINITY.to_bits());
    f16, u64, |v| u32::from(float_key!(v.to_bits(), u16, f16::INFINITY.to_bits()));
    bf16, u64, |v| u32::from(float_key!(v.to_bits(), u16, bf16::INFINITY.to_bits()));
    i64, u128, |v| v as u64 ^ 1 << 63;
    i32, u64, |v| v as u32 ^ 1 << 31;
    u8, u64, |v| u32::from(v);
}

/// A key with its position below it.
trait Entry: Pod + Ord + Send + Sync {
    type Key: Copy + PartialOrd + std::ops::Not<Output = Self::Key> + Send + Sync;
    /// It comes after all others.
    const LAST: Self;
    fn new(key: Self::Key, position: usize) -> Self;
    fn key(self) -> Self::Key;
    fn position(self) -> u32;
}

macro_rules! entry {
    ($entry:ty, $key:ty) => {
        impl Entry for $entry {
            type Key = $key;
            const LAST: $entry = <$entry>::MAX;
            #[inline(always)]
            fn new(key: $key, position: usize) -> $entry {
                <$entry>::from(key) << <$key>::BITS | position as $entry
            }
            #[inline(always)]
            fn key(self) -> $key {
                (self >> <$key>::BITS) as $key
            }
            #[inline(always)]
            fn position(self) -> u32 {
                self as u32
            }
        }
    };
}
entry!(u64, u32);
entry!(u128, u64);

/// To sort in descending order, keys are turned around; equal elements still keep their order.
#[inline(always)]
fn turned<T: Ordered>(v: T, descending: bool) -> <T::Entry as Entry>::Key {
    if descending { !v.key() } else { v.key() }
}

/// Fills `found` with entries of a part of a line that begins at `start`, in no order. Its first `keep` are among them.
fn search<T: Ordered>(x: &[T], start: usize, descending: bool, keep: usize, found: &mut [T::Entry]) {
    let (head, rest) = x.split_at(found.len().min(x.len()));
    for (i, (entry, &v)) in found.iter_mut().zip(head).enumerate() {
        *entry = T::Entry::new(turned(v, descending), start + i);
    }
    let mut count = head.len();
    // The last one wanted so far. What has its key, and comes later, is not wanted.
    let shorten = |found: &mut [T::Entry]| found.select_nth_unstable(keep - 1).1.key();
    if !rest.is_empty() {
        let mut last = shorten(found);
        count = keep;
        simd(
            #[inline(always)]
            || {
                for (b, block) in rest.chunks(BLOCK).enumerate() {
                    let mut any = false;
                    for &v in block {
                        any |= turned(v, descending) < last;
                    }
                    if !any {
                        continue;
                    }
                    if count + BLOCK > found.len() {
                        last = shorten(&mut found[..count]);
                        count = keep;
                    }
                    let first = start + head.len() + b * BLOCK;
                    for (i, &v) in block.iter().enumerate() {
                        let key = turned(v, descending);
                        found[count] = T::Entry::new(key, first + i);
                        count += usize::from(key < last);
                    }
                }
            },
        );
    }
    found[count..].fill(T::Entry::LAST);
}

/// The positions of the first elements of a line in order.
fn line<T: Ordered>(x: &[T], descending: bool, positions: &mut [u32]) {
    let (n, keep) = (x.len(), positions.len());
    let mut in_order = |entries: &mut [T::Entry]| {
        let first = match keep < entries.len() {
            true => {
                entries.select_nth_unstable(keep);
                &mut entries[..keep]
            }
            false => entries,
        };
        match first.len() >= LONG && parallel::allowed() {
            true => parallel::inside(|| first.par_sort_unstable()),
            false => first.sort_unstable(),
        }
        positions.iter_mut().zip(first).for_each(|(to, entry)| *to = entry.position());
    };
    if keep <= n / SHARE {
        // Each part of a long line has entries of its own.
        let room = 4 * keep + BLOCK;
        let part = n.div_ceil(n.div_ceil(LONG.max(room)));
        return with_scratch(n.div_ceil(part) * room, |found: &mut [T::Entry]| {
            let parts = found.par_chunks_exact_mut(room).zip(x.par_chunks(part)).enumerate();
            each_task(n, parts, |(i, (found, x))| search(x, i * part, descending, keep, found));
            in_order(found);
        });
    }
    with_scratch(n, |entries: &mut [T::Entry]| {
        simd(
            #[inline(always)]
            || {
                for (i, (entry, &v)) in entries.iter_mut().zip(x).enumerate() {
                    *entry = T::Entry::new(turned(v, descending), i);
                }
            },
        );
        in_order(entries);
    });
}

/// The positions of neighbouring lines, from line `first` on.
fn lines<T: Ordered>(op: &Sort, x: &[T], first: usize, positions: &mut [u32]) {
    let Extent { n, inner, .. } = op.extent;
    if inner == 1 {
        for (x, positions) in x[first * n..].chunks_exact(n).zip(positions.chunks_exact_mut(op.keep)) {
            line(x, op.descending, positions);
        }
        return;
    }
    // Columns: some of one slab at a time.
    let (mut first, mut positions) = (first, positions);
    while !positions.is_empty() {
        let (slab, column) = (first / inner, first % inner);
        let count = (COLUMNS / n).max(1).min(inner - column).min(positions.len() / op.keep);
        let (own, rest) = positions.split_at_mut(count * op.keep);
        with_scratch(count * n, |rows: &mut [T]| {
            let from = Lines { data: &x[slab * n * inner + column..], step: inner };
            transpose(from, LinesMut { data: rows, step: n }, count, n);
            for (x, positions) in rows.chunks_exact(n).zip(own.chunks_exact_mut(op.keep)) {
                line(x, op.descending, positions);
            }
        });
        (first, positions) = (first + count, rest);
    }
}

pub(super) fn sort(op: &Sort, args: &HostArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = op.extent;
    let keep = op.keep;
    if outer * keep * inner == 0 {
        return Ok(());
    }
    with_stored!(args.read_dtype(0), T => {
        let x = args.read::<T>(0)?;
        let mut all = Scratch::<u32>::new(outer * inner * keep);
        // What a line costs depends on its length, not on how many of its elements are wanted.
        let each = (TASK / n).max(1);
        each_task(outer * n * inner, all.par_chunks_mut(each * keep).enumerate(), |(i, positions)| {
            lines(op, x, i * each, positions);
        });
        let all = &*all;
        if inner == 1 {
            parallel::pieces(args.write::<i64>(op.positions())?, TASK, |i, to| {
                to.iter_mut().zip(&all[i * TASK..]).for_each(|(to, &from)| *to = i64::from(from));
            });
            if op.values {
                parallel::pieces(args.write::<T>(0)?, TASK, |i, to| {
                    let (mut at, mut to) = (i * TASK, to);
                    while !to.is_empty() {
                        let x = &x[at / keep * n..][..n];
                        let (own, rest) = to.split_at_mut((keep - at % keep).min(to.len()));
                        own.iter_mut().zip(&all[at..]).for_each(|(to, &from)| *to = x[from as usize]);
                        (at, to) = (at + own.len(), rest);
                    }
                });
            }
            return Ok(());
        }
        // Row `i` of the results has an element of each line of a slab.
        let position = |i: usize, c: usize| all[(i / keep * inner + c) * keep + i % keep] as usize;
        parallel::pieces(args.write::<i64>(op.positions())?, inner, |i, row| {
            row.iter_mut().enumerate().for_each(|(c, to)| *to = position(i, c) as i64);
        });
        if op.values {
            parallel::pieces(args.write::<T>(0)?, inner, |i, row| {
                let x = &x[i / keep * n * inner..];
                row.iter_mut().enumerate().for_each(|(c, to)| *to = x[position(i, c) * inner + c]);
            });
        }
    });
    Ok(())
}
