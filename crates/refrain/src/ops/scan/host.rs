//! Running sums and products on the CPU.

use half::{bf16, f16};

use super::{Kind, Scan};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_float, with_stored};
use crate::device::cpu::simd::simd;
use crate::device::cpu::{parallel, scratch::Scratch};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::tensor::DType;

/// Sums begin anew after this many elements, on top of what was before: rounding errors then grow with the number of
/// these groups instead of the number of elements.
const GROUP: usize = 1024;
/// Elements of a line that are scanned side by side.
const BLOCK: usize = 16;

/// Products are computed in f64: in f32, that of a block of them could overflow although all results are in range.
pub(super) fn forward(scan: &Scan, args: &HostArgs<'_>) -> Result<()> {
    match (args.read_dtype(0), scan.kind) {
        (DType::F64, Kind::Sum) => of::<f64, f64, f64, true>(scan, args),
        (DType::F32, Kind::Sum) => of::<f32, f32, f32, true>(scan, args),
        (DType::F16, Kind::Sum) => of::<f16, f16, f32, true>(scan, args),
        (DType::BF16, Kind::Sum) => of::<bf16, bf16, f32, true>(scan, args),
        (DType::F64, Kind::Product) => of::<f64, f64, f64, false>(scan, args),
        (DType::F32, Kind::Product) => of::<f32, f32, f64, false>(scan, args),
        (DType::F16, Kind::Product) => of::<f16, f16, f64, false>(scan, args),
        (DType::BF16, Kind::Product) => of::<bf16, bf16, f64, false>(scan, args),
        (other, Kind::Sum) => with_stored!(other, T => of::<T, i64, i64, true>(scan, args)),
        (other, Kind::Product) => with_stored!(other, T => of::<T, i64, i64, false>(scan, args)),
    }
}

fn of<T: Stored, U: Stored, N: Number, const SUM: bool>(scan: &Scan, args: &HostArgs<'_>) -> Result<()> {
    let Extent { n, inner, .. } = scan.extent;
    let (x, y, accumulate) = (args.read::<T>(0)?, args.write::<U>(0)?, args.accumulate(0));
    parallel::pieces(y, n * inner, |slab, y| {
        let x = &x[slab * n * inner..][..n * inner];
        simd(
            #[inline(always)]
            || match (inner, scan.reverse) {
                (1, false) => line::<T, U, N, SUM, false>(x, y, accumulate),
                (1, true) => line::<T, U, N, SUM, true>(x, y, accumulate),
                _ => columns::<T, U, N, SUM>(scan, x, y, accumulate),
            },
        );
    });
    Ok(())
}

#[inline(always)]
fn both<N: Number, const SUM: bool>(a: N, b: N) -> N {
    if SUM { a.plus(b) } else { a.times(b) }
}

#[inline(always)]
fn put<U: Stored, N: Number>(to: &mut U, v: N, accumulate: bool) {
    *to = U::from_number(if accumulate { to.to::<N>().plus(v) } else { v });
}

/// Each element with those before it, in steps for which there are SIMD instructions.
#[inline(always)]
fn scanned<N: Number, const SUM: bool>(mut v: [N; BLOCK]) -> [N; BLOCK] {
    // One loop for each distance, so that each is unrolled.
    macro_rules! step {
        ($distance:literal) => {
            let from = v;
            for l in $distance..BLOCK {
                v[l] = both::<N, SUM>(from[l - $distance], from[l]);
            }
        };
    }
    step!(1);
    step!(2);
    step!(4);
    step!(8);
    v
}

/// What was before a block of a line: before its group, and in its group.
struct Before<N> {
    groups: N,
    own: N,
}

impl<N: Number> Before<N> {
    /// A block of at most [`BLOCK`] elements: scanned by itself, and put on top of what was before.
    #[inline(always)]
    fn block<T: Stored, U: Stored, const SUM: bool, const REVERSE: bool>(
        &mut self,
        x: &[T],
        y: &mut [U],
        accumulate: bool,
    ) {
        let len = x.len();
        let place = |l: usize| if REVERSE { len - 1 - l } else { l };
        let mut v = [if SUM { N::ZERO } else { N::ONE }; BLOCK];
        for l in 0..len {
            v[l] = x[place(l)].to();
        }
        v = scanned::<N, SUM>(v);
        for l in 0..len {
            let all = both::<N, SUM>(self.groups, both::<N, SUM>(self.own, v[l]));
            put(&mut y[place(l)], all, accumulate);
        }
        self.own = both::<N, SUM>(self.own, v[BLOCK - 1]);
    }
}

/// A line, block by block.
#[inline(always)]
fn line<T: Stored, U: Stored, N: Number, const SUM: bool, const REVERSE: bool>(
    x: &[T],
    y: &mut [U],
    accumulate: bool,
) {
    let (n, first) = (x.len(), if SUM { N::ZERO } else { N::ONE });
    let mut before = Before { groups: first, own: first };
    let whole = n / BLOCK * BLOCK;
    for t in (0..whole).step_by(BLOCK) {
        if SUM && t.is_multiple_of(GROUP) {
            before = Before { groups: before.groups.plus(before.own), own: first };
        }
        let at = if REVERSE { n - t - BLOCK } else { t };
        before.block::<T, U, SUM, REVERSE>(&x[at..][..BLOCK], &mut y[at..][..BLOCK], accumulate);
    }
    if whole < n {
        if SUM && whole.is_multiple_of(GROUP) {
            before = Before { groups: before.groups.plus(before.own), own: first };
        }
        let rest = if REVERSE { 0..n - whole } else { whole..n };
        before.block::<T, U, SUM, REVERSE>(&x[rest.clone()], &mut y[rest], accumulate);
    }
}

/// Columns side by side, one element after the other.
#[inline(always)]
fn columns<T: Stored, U: Stored, N: Number, const SUM: bool>(
    scan: &Scan,
    x: &[T],
    y: &mut [U],
    accumulate: bool,
) {
    let Extent { n, inner, .. } = scan.extent;
    let first = if SUM { N::ZERO } else { N::ONE };
    let (mut before, mut group) = (Scratch::filled(inner, first), Scratch::filled(inner, first));
    for t in 0..n {
        let row = inner * if scan.reverse { n - 1 - t } else { t };
        let (x, y) = (&x[row..][..inner], &mut y[row..][..inner]);
        if SUM && t.is_multiple_of(GROUP) {
            for (before, group) in before.iter_mut().zip(&mut *group) {
                *before = before.plus(std::mem::replace(group, first));
            }
        }
        for (((group, before), x), y) in group.iter_mut().zip(&*before).zip(x).zip(y) {
            *group = both::<N, SUM>(*group, x.to());
            put(y, both::<N, SUM>(*before, *group), accumulate);
        }
    }
}

pub(super) fn product_backward(extent: Extent, args: &HostArgs<'_>) -> Result<()> {
    let Extent { n, inner, .. } = extent;
    with_float!(args, args.read_dtype(0), T, R => {
        let (x, y, dy) = (args.read::<T>(0)?, args.read::<T>(1)?, args.read::<T>(2)?);
        let (dx, accumulate) = (args.write::<T>(0)?, args.accumulate(0));
        parallel::pieces(dx, n * inner, |slab, dx| {
            let first = slab * n * inner;
            // Of each column, what x[i] is multiplied by behind it.
            let mut sums = Scratch::filled(inner, <R as Number>::ZERO);
            for i in (0..n).rev() {
                for (c, sum) in sums.iter_mut().enumerate() {
                    let (local, at) = (i * inner + c, first + i * inner + c);
                    let after: R = if i + 1 < n { x[at + inner].to::<R>() * *sum } else { R::ZERO };
                    *sum = dy[at].to::<R>() + after;
                    let before: R = if i > 0 { y[at - inner].to() } else { R::ONE };
                    let v = before * *sum;
                    dx[local] = T::from_number(if accumulate { dx[local].to::<R>() + v } else { v });
                }
            }
        });
        Ok(())
    })
}
