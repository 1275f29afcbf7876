//! Running sums and products on the CPU: one after the other along the axis.

use super::{Kind, Scan};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_float, with_stored};
use crate::device::cpu::{parallel, scratch::Scratch};
use crate::error::Result;
use crate::kernels::reduction::Extent;
use crate::tensor::DType;

/// Sums begin anew after this many elements, on top of what was before: rounding errors then grow with the number of
/// these groups instead of the number of elements.
const GROUP: usize = 1024;

pub(super) fn forward(scan: &Scan, args: &HostArgs<'_>) -> Result<()> {
    match args.read_dtype(0) {
        DType::F64 => of::<f64, f64, f64>(scan, args),
        DType::F32 => of::<f32, f32, f32>(scan, args),
        DType::F16 => of::<half::f16, half::f16, f32>(scan, args),
        DType::BF16 => of::<half::bf16, half::bf16, f32>(scan, args),
        other => with_stored!(other, T => of::<T, i64, i64>(scan, args)),
    }
}

fn of<T: Stored, U: Stored, N: Number>(scan: &Scan, args: &HostArgs<'_>) -> Result<()> {
    let Extent { n, inner, .. } = scan.extent;
    let (x, y, accumulate) = (args.read::<T>(0)?, args.write::<U>(0)?, args.accumulate(0));
    let put = |to: &mut U, v: N| *to = U::from_number(if accumulate { to.to::<N>().plus(v) } else { v });
    // The element at step `t`.
    let place = |t: usize| if scan.reverse { n - 1 - t } else { t };
    parallel::pieces(y, n * inner, |slab, y| {
        let x = &x[slab * n * inner..][..n * inner];
        if inner == 1 {
            let (mut before, mut group) = (N::ZERO, N::ZERO);
            let mut product = N::ONE;
            for t in 0..n {
                let (i, v) = (place(t), x[place(t)].to::<N>());
                if scan.kind == Kind::Product {
                    product = product.times(v);
                    put(&mut y[i], product);
                    continue;
                }
                if t % GROUP == 0 {
                    before = before.plus(group);
                    group = N::ZERO;
                }
                group = group.plus(v);
                put(&mut y[i], before.plus(group));
            }
            return;
        }
        let first = if scan.kind == Kind::Sum { N::ZERO } else { N::ONE };
        let (mut before, mut group) = (Scratch::filled(inner, N::ZERO), Scratch::filled(inner, first));
        for t in 0..n {
            let row = place(t) * inner;
            let (x, y) = (&x[row..][..inner], &mut y[row..][..inner]);
            if scan.kind == Kind::Product {
                for ((product, x), y) in group.iter_mut().zip(x).zip(y) {
                    *product = product.times(x.to());
                    put(y, *product);
                }
                continue;
            }
            if t % GROUP == 0 {
                for (before, group) in before.iter_mut().zip(&mut *group) {
                    *before = before.plus(std::mem::take(group));
                }
            }
            for (((group, before), x), y) in group.iter_mut().zip(&*before).zip(x).zip(y) {
                *group = group.plus(x.to());
                put(y, before.plus(*group));
            }
        }
    });
    Ok(())
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
