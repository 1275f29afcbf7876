//! Layer norm and RMS norm on the CPU: one pass over memory in each direction.

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float, with_mixed};
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::rows::{add_rows, each_task, load, map, rows_a_piece, rows_a_task, sum};

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

pub(super) fn parameters(centred: bool, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.write_dtype(0), P, R => match centred {
        true => parameters_of::<P, R, true>(args),
        false => parameters_of::<P, R, false>(args),
    })
}

/// `T` is the stored type of rows, `P` that of parameters.
fn forward_of<T: Stored, P: Stored, R: Real, const CENTRED: bool>(
    eps: f64,
    args: &HostArgs<'_>,
) -> Result<()> {
    let (x, weight) = (args.read::<T>(0)?, args.read::<P>(1)?);
    let bias = if CENTRED { args.read::<P>(2)? } else { weight };
    let (y, inv) = (args.write::<T>(0)?, args.write::<R>(1)?);
    let width = weight.len();
    // Without centring there are no means to save.
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

/// How many parts the sums of weight and bias have. The choice keeps all sums short: over the rows of a block, the
/// blocks of a part, and the parts.
pub(super) fn parts(rows: usize, width: usize) -> usize {
    rows.div_ceil(rows_a_piece(rows, width))
}

/// With `n = (x - mean) * inv` and `g = dy * weight`: `dx = inv * (g - mean(g) - n * mean(g * n))`. The rows of a
/// part add `sum(dy * n)` to dweight and `sum(dy)` to dbias.
fn backward_of<T: Stored, P: Stored, R: Real, const CENTRED: bool>(args: &HostArgs<'_>) -> Result<()> {
    let (x, weight, dy) = (args.read::<T>(0)?, args.read::<P>(1)?, args.read::<T>(2)?);
    let inv = args.read::<R>(3)?;
    let mean = if CENTRED { args.read::<R>(4)? } else { inv };
    let (dx, partial) = (args.write::<T>(0)?, args.write::<R>(1)?);
    let (rows, width) = (inv.len(), weight.len());
    if width == 0 {
        return Ok(());
    }
    let accumulate = args.accumulate(0);
    let scale = R::c(1.0 / width as f64);
    let (piece, block) = (rows_a_piece(rows, width), rows_a_task(width));
    let tasks = partial
        .par_chunks_mut(2 * width)
        .zip(dx.par_chunks_mut(piece * width))
        .zip(x.par_chunks(piece * width).zip(dy.par_chunks(piece * width)))
        .zip(inv.par_chunks(piece).zip(mean.par_chunks(piece)));
    each_task(x.len(), tasks, |(((states, dx), (x, dy)), (inv, mean))| {
        with_scratch(9 * width, |buf: &mut [R]| {
            let (own, buf) = buf.split_at_mut(2 * width);
            let (sums, buf) = buf.split_at_mut(2 * width);
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
                    let (dw, db) = sums.split_at(width);
                    for (state, (&w, &b)) in states.as_chunks_mut().0.iter_mut().zip(dw.iter().zip(db)) {
                        *state = [w, b];
                    }
                },
            )
        })
    });
    Ok(())
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
