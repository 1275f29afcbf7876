//! The Walsh-Hadamard transform on the CPU.

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::{parallel, scratch::Scratch, simd::simd};
use crate::error::Result;

/// Elements that are transformed with one piece of scratch memory.
const PIECE: usize = 4096;

pub(super) fn transform(args: &HostArgs<'_>) -> Result<()> {
    let n = args.write_shape(0).last().copied().unwrap_or(1);
    let piece = (PIECE / n).max(1) * n;
    let accumulate = args.accumulate(0);
    with_float!(args, args.write_dtype(0), T, R => {
        let x = if args.in_place(0).is_some() { None } else { Some(args.read::<T>(0)?) };
        let scale = R::c(1.0 / (n as f64).sqrt());
        parallel::pieces(args.write::<T>(0)?, piece, |i, y| {
            let from = x.map_or(&*y, |x| &x[i * piece..][..y.len()]);
            let mut rows = Scratch::<R>::collect(from.len(), from.iter().map(|v| v.to()));
            rows.chunks_exact_mut(n).for_each(butterflies);
            for (y, &v) in y.iter_mut().zip(&*rows) {
                let v = v * scale;
                *y = T::from_number(if accumulate { y.to::<R>() + v } else { v });
            }
        });
        Ok(())
    })
}

/// Sums and differences at distances 1, 2, 4, ...
fn butterflies<R: Real>(row: &mut [R]) {
    simd(
        #[inline(always)]
        || {
            let mut distance = 1;
            while distance < row.len() {
                for pair in row.chunks_exact_mut(2 * distance) {
                    let (left, right) = pair.split_at_mut(distance);
                    for (a, b) in left.iter_mut().zip(right) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
                distance *= 2;
            }
        },
    );
}
