//! Layer and root-mean-square norm on the CPU: one pass over memory each way.

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_mixed};
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::ops::rows::{add_rows, each_task, load, map, rows_a_piece, rows_a_task, sum};

pub(super) fn forward(centred: bool, eps: f64, args: &HostArgs<'_>) -> Result<()> {
    with_mixed!(args, args.read_dtype(0), args.read_dtype(1), T, P, R => match centred {
        true => forward_of::<T, P, R, true>(eps, args),
        false => forward_of::<T, P, R, false>(eps, args),
    })
}

pub(super) fn backward(centred: bool, args: &HostArgs<'_>) -> Result<()> {
    with_mixed!(args, args.read_dtype(0), args.read_dtype(1), T, P, R => match centred {
        true => backward_of::<T, P, R, true>(args),
        false => backward_of::<T, P, R, false>(args),
    })
}

/// `T` is stored of rows, `P` of parameters.
fn forward_of<T: Stored, P: Stored, R: Real, const CENTRED: bool>(
    eps: f64,
    args: &HostArgs<'_>,
) -> Result<()> {
    let (x, weight) = (args.read::<T>(0)?, args.read::<P>(1)?);
    let bias = if CENTRED { args.read::<P>(2)? } else { weight };
    let (y, inv) = (args.write::<T>(0)?, args.write::<R>(1)?);
    let width = weight.len();
    // Without centring there are no means to keep.
    let means = if CENTRED { args.write::<R>(2)? } else { &mut [] };
    if x.is_empty() {
        inv.fill(R::ZERO);
        means.fill(R::ZERO);
        return Ok(());
    }
    let (scale, eps) = (R::c(1.0 / width as f64), R::c(eps));
    let task = rows_a_task(width);
    let body = |(((y, x), inv), means): (((&mut [T], &[T]), &mut [R]), &mut [R])| {
        with_scratch(3 * width, |buf: &mut [R]| {
            let (x_buf, buf) = buf.split_at_mut(width);
            let (weight_buf, bias_buf) = buf.split_at_mut(width);
            simd(
                #[inline(always)]
                || {
                    let (weight, bias) = (load(weight, weight_buf), load(bias, bias_buf));
                    let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(inv);
                    for (i, ((y, x), inv)) in rows.enumerate() {
                        let x = load(x, x_buf);
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
        })
    };
    let tasks = y.par_chunks_mut(task * width).zip(x.par_chunks(task * width)).zip(inv.par_chunks_mut(task));
    if CENTRED {
        each_task(x.len(), tasks.zip(means.par_chunks_mut(task)), body);
    } else {
        each_task(x.len(), tasks.map(|t| (t, <&mut [R]>::default())), body);
    }
    Ok(())
}

/// With `n = (x - mean) * inv` and `g = dy * weight`: `dx = inv * (g - mean(g) - n * mean(g * n))`,
/// `dweight = sum(dy * n)`, `dbias = sum(dy)`.
fn backward_of<T: Stored, P: Stored, R: Real, const CENTRED: bool>(args: &HostArgs<'_>) -> Result<()> {
    let (x, weight, dy) = (args.read::<T>(0)?, args.read::<P>(1)?, args.read::<T>(2)?);
    let inv = args.read::<R>(3)?;
    let mean = if CENTRED { args.read::<R>(4)? } else { inv };
    let (dx, dweight) = (args.write::<T>(0)?, args.write::<P>(1)?);
    let (rows, width) = (inv.len(), weight.len());
    if width == 0 {
        return Ok(());
    }
    let accumulate = args.accumulate(0);
    let scale = R::c(1.0 / width as f64);
    // Rows go in blocks, so that no sum of a parameter runs over more terms than a block has rows or a
    // piece has blocks.
    let (piece, block) = (rows_a_piece(rows, width), rows_a_task(width));
    with_scratch(rows.div_ceil(piece) * 2 * width, |partial: &mut [R]| {
        let tasks = partial
            .par_chunks_mut(2 * width)
            .zip(dx.par_chunks_mut(piece * width))
            .zip(x.par_chunks(piece * width).zip(dy.par_chunks(piece * width)))
            .zip(inv.par_chunks(piece).zip(mean.par_chunks(piece)));
        each_task(x.len(), tasks, |(((sums, dx), (x, dy)), (inv, mean))| {
            with_scratch(7 * width, |buf: &mut [R]| {
                let (own, buf) = buf.split_at_mut(2 * width);
                let (normed, buf) = buf.split_at_mut(width);
                let (weighted, buf) = buf.split_at_mut(width);
                let (weight_buf, buf) = buf.split_at_mut(width);
                let (x_buf, dy_buf) = buf.split_at_mut(width);
                simd(
                    #[inline(always)]
                    || {
                        let weight = load(weight, weight_buf);
                        sums.fill(R::ZERO);
                        let blocks = dx
                            .chunks_mut(block * width)
                            .zip(x.chunks(block * width).zip(dy.chunks(block * width)))
                            .zip(inv.chunks(block).zip(mean.chunks(block)));
                        for ((dx, (x, dy)), (inv, mean)) in blocks {
                            own.fill(R::ZERO);
                            let (dw, db) = own.split_at_mut(width);
                            let rows = dx
                                .chunks_exact_mut(width)
                                .zip(x.chunks_exact(width).zip(dy.chunks_exact(width)))
                                .zip(inv.iter().zip(mean));
                            for ((dx, (x, dy)), (&r, &m)) in rows {
                                let (x, dy) = (load(x, x_buf), load(dy, dy_buf));
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
                            map(sums, [own], true, |[s]| s);
                        }
                    },
                )
            })
        });
        with_scratch(2 * width, |total: &mut [R]| {
            total.fill(R::ZERO);
            add_rows(total, partial.chunks(2 * width));
            let (dw, db) = total.split_at(width);
            map(dweight, [dw], args.accumulate(1), |[v]| v);
            if CENTRED {
                map(args.write::<P>(2)?, [db], args.accumulate(2), |[v]| v);
            }
            Ok(())
        })
    })
}
