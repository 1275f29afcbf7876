//! `qk_norm` on the CPU: one pass over memory, token by token.

use rayon::prelude::*;

use super::Sizes;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::blocks::in_blocks;
use crate::kernels::elementwise::Runs;
use crate::kernels::rows::{each_task, load, map, rows_a_task, sum};

pub(super) fn forward(eps: f64, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => forward_of::<T, R>(R::c(eps), args))
}

pub(super) fn backward(eps: f64, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => backward_of::<T, R>(R::c(eps), args))
}

/// What a vector is divided by, and whether its length is below eps.
#[inline(always)]
fn length<R: Real>(x: &[R], eps: R) -> (R, bool) {
    let norm = sum([x], |[x]| x * x).sqrt();
    if norm < eps { (eps, true) } else { (norm, false) }
}

fn forward_of<T: Stored, R: Real>(eps: R, args: &HostArgs<'_>) -> Result<()> {
    let (x, temperature, y) = (args.read::<T>(0)?, args.read::<R>(1)?, args.write::<T>(0)?);
    let Sizes { heads, dim, .. } = Sizes::of(args.read_shape(0));
    if x.is_empty() {
        return Ok(());
    }
    let width = 3 * heads * dim;
    let task = rows_a_task(width) * width;
    each_task(x.len(), y.par_chunks_mut(task).zip(x.par_chunks(task)), |(y, x)| {
        with_scratch(dim, |buf: &mut [R]| {
            simd(
                #[inline(always)]
                || {
                    for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                        let (y, values) = y.split_at_mut(2 * heads * dim);
                        values.copy_from_slice(&x[2 * heads * dim..]);
                        for (i, (y, x)) in y.chunks_exact_mut(dim).zip(x.chunks_exact(dim)).enumerate() {
                            let scale = temperature.get(i).copied().unwrap_or(R::ONE);
                            let x = load(x, buf);
                            let (by, _) = length(x, eps);
                            map(y, [x], false, |[x]| x / by * scale);
                        }
                    }
                },
            )
        })
    });
    Ok(())
}

fn backward_of<T: Stored, R: Real>(eps: R, args: &HostArgs<'_>) -> Result<()> {
    let (x, temperature, dy) = (args.read::<T>(0)?, args.read::<R>(1)?, args.read::<T>(2)?);
    let (dx, along) = (args.write::<T>(0)?, args.write::<R>(1)?);
    let accumulate = args.accumulate(0);
    let Sizes { heads, dim, .. } = Sizes::of(args.read_shape(0));
    if x.is_empty() {
        return Ok(());
    }
    let width = 3 * heads * dim;
    let task = rows_a_task(width);
    let tasks = dx
        .par_chunks_mut(task * width)
        .zip(x.par_chunks(task * width).zip(dy.par_chunks(task * width)))
        .zip(along.par_chunks_mut(task * heads));
    each_task(x.len(), tasks, |((dx, (x, dy)), along)| {
        let x = [x, dy].map(|data| Runs { data, step: width });
        in_blocks(x, dx, width, accumulate, &mut |first, [x, dy], dx, accumulate| {
            let along = &mut along[first * heads..];
            backward_tokens::<R>([x.data, dy.data], dx, along, temperature, [heads, dim], eps, accumulate);
        });
    });
    Ok(())
}

/// The gradients of some tokens.
fn backward_tokens<R: Real>(
    [x, dy]: [&[R]; 2],
    dx: &mut [R],
    along: &mut [R],
    temperature: &[R],
    [heads, dim]: [usize; 2],
    eps: R,
    accumulate: bool,
) {
    with_scratch(dim, |unit: &mut [R]| {
        simd(
            #[inline(always)]
            || {
                let vectors = dx.chunks_exact_mut(dim).zip(x.chunks_exact(dim).zip(dy.chunks_exact(dim)));
                for (i, (dx, (x, dy))) in vectors.enumerate() {
                    let (token, place) = (i / (3 * heads), i % (3 * heads));
                    if place >= 2 * heads {
                        map(dx, [dy], accumulate, |[d]| d);
                        continue;
                    }
                    let (by, below) = length(x, eps);
                    map(unit, [x], false, |[x]| x / by);
                    let unit = &*unit;
                    let projection = sum([unit, dy], |[u, d]| u * d);
                    let mut scale = R::ONE;
                    if place < heads {
                        along[token * heads + place] = projection;
                        scale = temperature[place];
                    }
                    let off = if below { R::ZERO } else { projection };
                    map(dx, [unit, dy], accumulate, |[u, d]| (d - u * off) / by * scale);
                }
            },
        )
    });
}
