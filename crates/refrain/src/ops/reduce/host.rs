//! Reductions on the CPU. The order of additions is fixed by the extent alone, so that results do
//! not depend on the number of threads.

use rayon::prelude::*;

use super::Extent;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_stored};
use crate::device::cpu::{parallel, simd::simd};
use crate::error::Result;
use crate::tensor::DType;

/// Independent sums side by side, for vector registers and for accuracy.
const LANES: usize = 16;
/// Elements that are summed in one go.
const CHUNK: usize = 1 << 14;

/// `scale * sum` over the middle of `extent`.
pub(super) fn sum(args: &HostArgs<'_>, extent: Extent, scale: f64) -> Result<()> {
    match args.read_dtype(0) {
        DType::F64 => sum_of::<f64, f64, f64>(args, extent, scale),
        DType::F32 => sum_of::<f32, f32, f32>(args, extent, scale),
        DType::F16 => sum_of::<half::f16, half::f16, f32>(args, extent, scale),
        DType::BF16 => sum_of::<half::bf16, half::bf16, f32>(args, extent, scale),
        other => with_stored!(other, T => sum_of::<T, i64, i64>(args, extent, scale)),
    }
}

fn sum_of<T: Stored, U: Stored, N: Number>(args: &HostArgs<'_>, extent: Extent, scale: f64) -> Result<()> {
    let x = args.read::<T>(0)?;
    let accumulate = args.accumulate(0);
    let y = args.write::<U>(0)?;
    let scale = N::from_f64(scale);
    let store = |to: &mut U, sum: N| {
        let v = sum.times(scale);
        *to = U::from_number(if accumulate { to.to::<N>().plus(v) } else { v });
    };
    let Extent { outer, n, inner } = extent;
    if outer * inner == 0 {
        return Ok(());
    }
    if n == 0 {
        y.iter_mut().for_each(|y| store(y, N::ZERO));
        return Ok(());
    }
    let serial = x.len() <= CHUNK || !parallel::allowed();
    if inner == 1 && n <= CHUNK {
        // Short rows: several to a task.
        let rows = (CHUNK / n).max(1);
        let body = |(y, x): (&mut [U], &[T])| {
            y.iter_mut().zip(x.chunks(n)).for_each(|(y, row)| store(y, sum_row(row)));
        };
        match serial {
            true => y.chunks_mut(rows).zip(x.chunks(rows * n)).for_each(body),
            false => y.par_chunks_mut(rows).zip(x.par_chunks(rows * n)).for_each(body),
        }
        return Ok(());
    }
    // Long sums: chunks along n by themselves, then their sums in order.
    let rows = (CHUNK / inner).max(1);
    let pieces = n.div_ceil(rows);
    let mut partial = vec![N::ZERO; outer * pieces * inner];
    let body = |(i, sums): (usize, &mut [N])| {
        let (o, piece) = (i / pieces, i % pieces);
        let x = &x[(o * n + piece * rows) * inner..(o * n + n.min((piece + 1) * rows)) * inner];
        match inner {
            1 => sums[0] = sum_row(x),
            _ => simd(
                #[inline(always)]
                || {
                    for row in x.chunks_exact(inner) {
                        sums.iter_mut().zip(row).for_each(|(s, &v)| *s = s.plus(v.to()));
                    }
                },
            ),
        }
    };
    match serial {
        true => partial.chunks_mut(inner).enumerate().for_each(body),
        false => partial.par_chunks_mut(inner).enumerate().for_each(body),
    }
    for (y, partial) in y.chunks_mut(inner).zip(partial.chunks_mut(pieces * inner)) {
        let (total, rest) = partial.split_at_mut(inner);
        for piece in rest.chunks(inner) {
            total.iter_mut().zip(piece).for_each(|(t, &p)| *t = t.plus(p));
        }
        y.iter_mut().zip(total).for_each(|(y, t)| store(y, *t));
    }
    Ok(())
}

/// The sum of a row: short blocks in lanes, their sums pairwise, so that rounding errors stay small
/// however long the row is (Higham, "The accuracy of floating point summation", 1993).
fn sum_row<T: Stored, N: Number>(row: &[T]) -> N {
    const BLOCK: usize = 64 * LANES;
    if row.len() > BLOCK {
        let (left, right) = row.split_at((row.len() / 2).next_multiple_of(BLOCK));
        return sum_row::<T, N>(left).plus(sum_row(right));
    }
    simd(
        #[inline(always)]
        || {
            let mut lanes = [N::ZERO; LANES];
            let chunks = row.chunks_exact(LANES);
            let rest = chunks.remainder();
            for chunk in chunks {
                for (l, &v) in lanes.iter_mut().zip(chunk) {
                    *l = l.plus(v.to());
                }
            }
            for (l, &v) in lanes.iter_mut().zip(rest) {
                *l = l.plus(v.to());
            }
            let mut width = LANES / 2;
            while width > 0 {
                for i in 0..width {
                    lanes[i] = lanes[i].plus(lanes[i + width]);
                }
                width /= 2;
            }
            lanes[0]
        },
    )
}
