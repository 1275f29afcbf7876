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
use crate::error::Result;
use crate::kernels::reduction::Extent;

/// A line that is longer is sorted by all threads.
const LONG: usize = 1 << 16;

/// An element that can be sorted.
trait Ordered: Stored {
    /// A number that has the order of the elements: NaN last, -0 equal to 0.
    fn key(self) -> u64;
}

fn float_key(v: f32) -> u64 {
    let bits = if v == 0.0 { 0 } else { v.to_bits() };
    let key = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(if v.is_nan() { u32::MAX } else { key })
}

macro_rules! ordered {
    ($($t:ty, |$v:ident| $key:expr;)*) => {$(
        impl Ordered for $t {
            #[inline(always)]
            fn key(self) -> u64 {
                let $v = self;
                $key
            }
        }
    )*};
}
ordered! {
    f64, |v| {
        let bits = if v == 0.0 { 0 } else { v.to_bits() };
        let key = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
        if v.is_nan() { u64::MAX } else { key }
    };
    f32, |v| float_key(v);
    f16, |v| float_key(v.to_f32());
    bf16, |v| float_key(v.to_f32());
    i64, |v| v as u64 ^ 1 << 63;
    i32, |v| u64::from(v as u32 ^ 1 << 31);
    u8, |v| u64::from(v);
}

/// A key with its position below it.
trait Entry: Pod + Ord + Send + Sync {
    fn new(key: u64, position: usize) -> Self;
    fn position(self) -> u32;
}

/// For keys of 32 bits.
impl Entry for u64 {
    fn new(key: u64, position: usize) -> u64 {
        key << 32 | position as u64
    }
    fn position(self) -> u32 {
        self as u32
    }
}

/// For keys of 64 bits.
impl Entry for u128 {
    fn new(key: u64, position: usize) -> u128 {
        u128::from(key) << 64 | position as u128
    }
    fn position(self) -> u32 {
        self as u32
    }
}

/// The positions of the first elements of a line in order. Its elements are `stride` apart.
fn line<T: Ordered, E: Entry>(x: &[T], stride: usize, n: usize, mask: u64, positions: &mut [u32]) {
    with_scratch(n, |entries: &mut [E]| {
        for (i, (entry, &v)) in entries.iter_mut().zip(x.iter().step_by(stride)).enumerate() {
            *entry = E::new(v.key() ^ mask, i);
        }
        let keep = positions.len();
        let first = match keep < n {
            true => {
                entries.select_nth_unstable(keep);
                &mut entries[..keep]
            }
            false => entries,
        };
        match first.len() >= LONG && parallel::allowed() {
            true => first.par_sort_unstable(),
            false => first.sort_unstable(),
        }
        positions.iter_mut().zip(first).for_each(|(to, entry)| *to = entry.position());
    });
}

pub(super) fn sort(op: &Sort, args: &HostArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = op.extent;
    let keep = op.keep;
    if outer * keep * inner == 0 {
        return Ok(());
    }
    with_stored!(args.read_dtype(0), T => {
        let x = args.read::<T>(0)?;
        let wide = size_of::<T>() == 8;
        // To sort in descending order, the keys are turned around; equal elements still keep their order.
        let mask = match (op.descending, wide) {
            (false, _) => 0,
            (true, true) => u64::MAX,
            (true, false) => u64::from(u32::MAX),
        };
        let mut lines = Scratch::<u32>::new(outer * inner * keep);
        parallel::pieces(&mut lines, keep, |at, positions| {
            let x = &x[at / inner * n * inner + at % inner..];
            match wide {
                true => line::<T, u128>(x, inner, n, mask, positions),
                false => line::<T, u64>(x, inner, n, mask, positions),
            }
        });
        let lines = &*lines;
        // Row `i` of the results has an element of each line of a slab.
        let position = |i: usize, c: usize| lines[(i / keep * inner + c) * keep + i % keep] as usize;
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
