//! Layer norm and RMS norm on the CPU: one pass over memory in each direction.

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float, with_mixed};
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::simd;
use crate::device::cpu::widen::Widened;
use crate::error::Result;
use crate::kernels::blocks::in_blocks;
use crate::kernels::elementwise::Runs;
use crate::kernels::rows::{add_rows, each_task, map, rows_a_piece, rows_a_task, sum};

pub(super) fn forward(centred: bool, eps: f64, args: &HostArgs<'_>) -> Result<()> {
    with_mixed!(args, args.read_dtype(0), args.read_dtype(1), T, P, R => {
        let weight = Widened::of::<P>(args.read(1)?);
        let bias = Widened::of::<P>(if centred { args.read(2)? } else { &[] });
        forward_of::<T, R>(centred, R::c(eps), (weight.get(), bias.get()), args)
    })
}

pub(super) fn backward(centred: bool, args: &HostArgs<'_>) -> Result<()> {
    with_mixed!(args, args.read_dtype(0), args.read_dtype(1), T, P, R => {
        let weight = Widened::of::<P>(args.read(1)?);
        backward_of::<T, R>(centred, weight.get(), args)
    })
}

pub(super) fn parameters(centred: bool, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.write_dtype(0), P, R => match centred {
        true => parameters_of::<P, R, true>(args),
        false => parameters_of::<P, R, false>(args),
    })
}

fn forward_of<T: Stored, R: Real>(
    centred: bool,
    eps: R,
    parameters: (&[R], &[R]),
    args: &HostArgs<'_>,
) -> Result<()> {
    let (x, y, inv) = (args.read::<T>(0)?, args.write::<T>(0)?, args.write::<R>(1)?);
    // Without centring there are no means to save.
    let means = if centred { args.write::<R>(2)? } else { &mut [] };
    if x.is_empty() {
        inv.fill(R::ZERO);
        means.fill(R::ZERO);
        return Ok(());
    }
    let width = parameters.0.len();
    let task = rows_a_task(width);
    let body = |(((y, x), inv), means): (((&mut [T], &[T]), &mut [R]), &mut [R])| {
        let x = Runs { data: x, step: width };
        in_blocks([x], y, width, false, &mut |first, [x], y, _| {
            let inv = &mut inv[first..][..y.len() / width];
            match centred {
                true => norm_rows::<R, true>(x.data, y, inv, &mut means[first..], parameters, eps),
                false => norm_rows::<R, false>(x.data, y, inv, &mut [], parameters, eps),
            }
        });
    };
    let tasks = y.par_chunks_mut(task * width).zip(x.par_chunks(task * width)).zip(inv.par_chunks_mut(task));
    if centred {
        each_task(x.len(), tasks.zip(means.par_chunks_mut(task)), body);
    } else {
        each_task(x.len(), tasks.map(|t| (t, <&mut [R]>::default())), body);
    }
    Ok(())
}

/// The rows of `x`, normed, and what they are normed by.
fn norm_rows<R: Real, const CENTRED: bool>(
    x: &[R],
    y: &mut [R],
    inv: &mut [R],
    means: &mut [R],
    (weight, bias): (&[R], &[R]),
    eps: R,
) {
    let width = weight.len();
    let scale = R::c(1.0 / width as f64);
    simd(
        #[inline(always)]
        || {
            let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(inv);
            for (i, ((y, x), inv)) in rows.enumerate() {
                let mean = if CENTRED { scale * sum([x], |[x]| x) } else { R::ZERO };
                let var = scale * sum([x], |[x]| (x - mean) * (x - mean));
                let r = R::ONE / (var + eps).sqrt();
                *inv = r;
                if CENTRED {
                    means[i] = mean;
                    map(y, [x, weight, bias], false, |[x, w, b]| (x - mean) * r * w + b);
                } else {
                    map(y, [x, weight], false, |[x, w]| x * r * w);
                }
            }
        },
    )
}

/// How many parts the sums of weight and bias have. The choice keeps all sums short: over the rows of a block, the
/// blocks of a part, and the parts.
pub(super) fn parts(rows: usize, width: usize) -> usize {
    rows.div_ceil(rows_a_piece(rows, width))
}

/// With `n = (x - mean) * inv` and `g = dy * weight`: `dx = inv * (g - mean(g) - n * mean(g * n))`. The rows of a
/// part add `sum(dy * n)` to dweight and `sum(dy)` to dbias.
fn backward_of<T: Stored, R: Real>(centred: bool, weight: &[R], args: &HostArgs<'_>) -> Result<()> {
    let (x, dy, inv) = (args.read::<T>(0)?, args.read::<T>(2)?, args.read::<R>(3)?);
    let mean = if centred { args.read::<R>(4)? } else { inv };
    let (dx, partial) = (args.write::<T>(0)?, args.write::<R>(1)?);
    let (rows, width) = (inv.len(), weight.len());
    if width == 0 {
        return Ok(());
    }
    let accumulate = args.accumulate(0);
    let (piece, block) = (rows_a_piece(rows, width), rows_a_task(width));
    let tasks = partial
        .par_chunks_mut(2 * width)
        .zip(dx.par_chunks_mut(piece * width))
        .zip(x.par_chunks(piece * width).zip(dy.par_chunks(piece * width)))
        .zip(inv.par_chunks(piece).zip(mean.par_chunks(piece)));
    each_task(x.len(), tasks, |(((states, dx), (x, dy)), (inv, mean))| {
        with_scratch(4 * width, |buf: &mut [R]| {
            let (own, sums) = buf.split_at_mut(2 * width);
            sums.fill(R::ZERO);
            let blocks = dx
                .chunks_mut(block * width)
                .zip(x.chunks(block * width).zip(dy.chunks(block * width)))
                .zip(inv.chunks(block).zip(mean.chunks(block)));
            for ((dx, (x, dy)), (inv, mean)) in blocks {
                own.fill(R::ZERO);
                let x = [x, dy].map(|data| Runs { data, step: width });
                in_blocks(x, dx, width, accumulate, &mut |first, [x, dy], dx, accumulate| {
                    let rows = dx.len() / width;
                    let kept = (&inv[first..][..rows], &mean[first..][..rows]);
                    let x = [x.data, dy.data];
                    match centred {
                        true => backward_rows::<R, true>(x, dx, kept, weight, own, accumulate),
                        false => backward_rows::<R, false>(x, dx, kept, weight, own, accumulate),
                    }
                });
                add_rows(sums, std::iter::once(&*own));
            }
            let (dw, db) = sums.split_at(width);
            for (state, (&w, &b)) in states.as_chunks_mut().0.iter_mut().zip(dw.iter().zip(db)) {
                *state = [w, b];
            }
        })
    });
    Ok(())
}

/// `dx` of some rows, whose parts of dweight and dbias are added to `own`.
fn backward_rows<R: Real, const CENTRED: bool>(
    [x, dy]: [&[R]; 2],
    dx: &mut [R],
    (inv, mean): (&[R], &[R]),
    weight: &[R],
    own: &mut [R],
    accumulate: bool,
) {
    let width = weight.len();
    let scale = R::c(1.0 / width as f64);
    let (dw, db) = own.split_at_mut(width);
    with_scratch(2 * width, |buf: &mut [R]| {
        let (normed, weighted) = buf.split_at_mut(width);
        simd(
            #[inline(always)]
            || {
                let rows = dx
                    .chunks_exact_mut(width)
                    .zip(x.chunks_exact(width).zip(dy.chunks_exact(width)))
                    .zip(inv.iter().zip(mean));
                for ((dx, (x, dy)), (&r, &m)) in rows {
                    let m = if CENTRED { m } else { R::ZERO };
                    map(normed, [x], false, |[x]| (x - m) * r);
                    map(weighted, [dy, weight], false, |[dy, w]| dy * w);
                    map(dw, [dy, normed], true, |[dy, n]| dy * n);
                    if CENTRED {
                        map(db, [dy], true, |[dy]| dy);
                    }
                    let (g, n) = (&*weighted, &*normed);
                    let along = scale * sum([g, n], |[g, n]| g * n);
                    let level = if CENTRED { scale * sum([g], |[g]| g) } else { R::ZERO };
                    map(dx, [g, n], accumulate, |[g, n]| r * (g - level - n * along));
                }
            },
        )
    });
}

/// Adds up the sums of the parts.
fn parameters_of<P: Stored, R: Real, const CENTRED: bool>(args: &HostArgs<'_>) -> Result<()> {
    let (partial, dweight) = (args.read::<R>(0)?, args.write::<P>(0)?);
    let width = dweight.len();
    if width == 0 {
        return Ok(());
    }
    with_scratch(4 * width, |buf: &mut [R]| {
        let (total, buf) = buf.split_at_mut(2 * width);
        let (dw, db) = buf.split_at_mut(width);
        total.fill(R::ZERO);
        add_rows(total, partial.chunks(2 * width));
        for (&[weight, bias], (w, b)) in total.as_chunks().0.iter().zip(dw.iter_mut().zip(db.iter_mut())) {
            (*w, *b) = (weight, bias);
        }
        map(dweight, [&*dw], args.accumulate(0), |[v]| v);
        if CENTRED {
            map(args.write::<P>(1)?, [&*db], args.accumulate(1), |[v]| v);
        }
        Ok(())
    })
}
