//! Running sums and products on the CPU.

use half::{bf16, f16};

use super::blocks::{BLOCK, Before, Scanned, both, nothing};
use super::{Kind, Scan};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, convert, store, with_float, with_stored};
use crate::device::cpu::parallel::{self, by_columns};
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::kernels::rows::rows_a_task;
use crate::tensor::DType;

/// Sums begin anew after this many elements, on top of what was before: rounding errors then grow with the number of
/// these groups instead of the number of elements.
const GROUP: usize = 1024;
/// Elements of a line that are converted, scanned and stored at a time.
const AT_A_TIME: usize = 256;

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

fn of<T: Stored, U: Stored, N: Scanned, const SUM: bool>(scan: &Scan, args: &HostArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = scan.extent;
    let (x, y, accumulate) = (args.read::<T>(0)?, args.write::<U>(0)?, args.accumulate(0));
    if inner == 1 {
        let task = rows_a_task(n) * n;
        parallel::pieces(y, task, |i, y| {
            let mut numbers = [nothing::<N, SUM>(); AT_A_TIME];
            for (x, y) in x[i * task..].chunks_exact(n).zip(y.chunks_exact_mut(n)) {
                line::<T, U, N, SUM>(x, y, scan.reverse, accumulate, &mut numbers);
            }
        });
        return Ok(());
    }
    parallel::pieces(y, n * inner, |slab, y| {
        let (x, y) = (&x[slab * n * inner..][..n * inner], RectangleMut::all(y, inner));
        by_columns(outer - 1, [n, inner], y, |y| {
            simd(
                #[inline(always)]
                || columns::<T, U, N, SUM>(scan, x, y, accumulate),
            );
        });
    });
    Ok(())
}

/// A line, some elements at a time, which are copied to `numbers`.
fn line<T: Stored, U: Stored, N: Scanned, const SUM: bool>(
    x: &[T],
    y: &mut [U],
    reverse: bool,
    accumulate: bool,
    numbers: &mut [N; AT_A_TIME],
) {
    let first = nothing::<N, SUM>();
    let mut before = Before { groups: first, own: first };
    for t in (0..x.len()).step_by(AT_A_TIME) {
        if SUM && t.is_multiple_of(GROUP) {
            before = Before { groups: before.groups.plus(before.own), own: first };
        }
        let len = AT_A_TIME.min(x.len() - t);
        let at = if reverse { x.len() - t - len } else { t };
        let some = &mut numbers[..len];
        convert(&x[at..][..len], some);
        if reverse {
            some.reverse();
        }
        // Elements behind the last one change none before them.
        N::scan::<SUM>(&mut numbers[..len.next_multiple_of(BLOCK)], &mut before);
        let some = &mut numbers[..len];
        if reverse {
            some.reverse();
        }
        store(some, &mut y[at..][..len], accumulate);
    }
}

/// Columns side by side, one element after the other.
#[inline(always)]
fn columns<T: Stored, U: Stored, N: Number, const SUM: bool>(
    scan: &Scan,
    x: &[T],
    mut y: RectangleMut<'_, U>,
    accumulate: bool,
) {
    let Extent { n, inner, .. } = scan.extent;
    let (own, first) = (y.columns(), nothing::<N, SUM>());
    let (mut before, mut group) = (Scratch::filled(own.len(), first), Scratch::filled(own.len(), first));
    for t in 0..n {
        let row = if scan.reverse { n - 1 - t } else { t };
        let (x, y) = (&x[row * inner..][own.clone()], y.row(row));
        if SUM && t.is_multiple_of(GROUP) {
            for (before, group) in before.iter_mut().zip(&mut *group) {
                *before = before.plus(std::mem::replace(group, first));
            }
        }
        for (((group, before), x), y) in group.iter_mut().zip(&*before).zip(x).zip(y) {
            *group = both::<N, SUM>(*group, x.to());
            let all = both::<N, SUM>(*before, *group);
            *y = U::from_number(if accumulate { y.to::<N>().plus(all) } else { all });
        }
    }
}

pub(super) fn product_backward(extent: Extent, args: &HostArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    with_float!(args, args.read_dtype(0), T, R => {
        let (x, y, dy) = (args.read::<T>(0)?, args.read::<T>(1)?, args.read::<T>(2)?);
        let (dx, accumulate) = (args.write::<T>(0)?, args.accumulate(0));
        parallel::pieces(dx, n * inner, |slab, dx| {
            let first = slab * n * inner;
            by_columns(outer - 1, [n, inner], RectangleMut::all(dx, inner), |mut dx| {
                let own = dx.columns();
                // Of each column, what x[i] is multiplied by behind it.
                let mut sums = Scratch::filled(own.len(), <R as Number>::ZERO);
                for i in (0..n).rev() {
                    let dx = dx.row(i);
                    for (c, (sum, dx)) in sums.iter_mut().zip(dx).enumerate() {
                        let at = first + i * inner + own.start + c;
                        let after: R = if i + 1 < n { x[at + inner].to::<R>() * *sum } else { R::ZERO };
                        *sum = dy[at].to::<R>() + after;
                        let before: R = if i > 0 { y[at - inner].to() } else { R::ONE };
                        let v = before * *sum;
                        *dx = T::from_number(if accumulate { dx.to::<R>() + v } else { v });
                    }
                }
            });
        });
        Ok(())
    })
}
