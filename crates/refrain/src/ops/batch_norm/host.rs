//! Batch norm on the CPU: one pass over memory for the sums, one for the results.
//!
//! If the channels are the last axis, a line is a row of all channels. Otherwise a line is a run of neighbours of one
//! channel.

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use half::f16;
use rayon::prelude::*;

use super::BatchNorm;
use crate::device::HostArgs;
#[cfg(target_arch = "x86_64")]
use crate::device::cpu::narrow::{HalfLoops, f16_loops, with_f16_loops};
#[cfg(target_arch = "x86_64")]
use crate::device::cpu::numeric::Number;
use crate::device::cpu::numeric::{Real, Stored, with_mixed};
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::blocks::in_blocks;
use crate::kernels::elementwise::Runs;
use crate::kernels::reduction::Extent;
use crate::kernels::reduction::{PartPosition, Reducer, State, reduce};
use crate::kernels::rows::{self, each_task, map, rows_a_task};
use crate::ops::reduce::host::{InMoments, Moments};

/// The reduction of each channel of the operands, in the order of the channels.
fn channels<T: Sync, S: State, F: Reducer<T, S, K> + Reducer<S, S, 1>, const K: usize>(
    x: [&[T]; K],
    extent: Extent,
    f: &F,
) -> Scratch<S> {
    let Extent { outer, n: channels, inner } = extent;
    let mut states = Scratch::<S>::new(channels);
    if inner == 1 {
        reduce(x, Extent { outer: 1, n: outer, inner: channels }, f, &mut states, |to, s: S| *to = s);
    } else {
        let mut lines = Scratch::<S>::new(outer * channels);
        reduce(x, Extent { outer: outer * channels, n: inner, inner: 1 }, f, &mut lines, |to, s: S| *to = s);
        reduce([&lines], Extent { outer: 1, n: outer, inner: channels }, f, &mut states, |to, s: S| *to = s);
    }
    states
}

/// A number for each channel.
fn of_channels<R: Real>(values: impl ExactSizeIterator<Item = R>) -> Scratch<R> {
    Scratch::collect(values.len(), values)
}

/// Merges the states of the parts of each channel. The parts of a channel are `stride` apart.
fn merge_columns<S: State>(parts: &[S], stride: usize, states: &mut [S], merge: impl Fn(S, S) -> S) {
    let width = states.len();
    states.copy_from_slice(&parts[..width]);
    for row in parts.chunks(stride).skip(1) {
        states.iter_mut().zip(row).for_each(|(s, &p)| *s = merge(*s, p));
    }
}

impl<R: Real> Reducer<Moments, Moments, 1> for InMoments<R> {
    fn row(&self, [x]: [&[Moments]; 1], _: PartPosition) -> Moments {
        let mut state = [Moments::default()];
        merge_columns(x, 1, &mut state, Moments::merge);
        state[0]
    }

    fn columns(
        &self,
        [x]: [&[Moments]; 1],
        stride: usize,
        _: usize,
        _: PartPosition,
        states: &mut [Moments],
    ) {
        merge_columns(x, stride, states, Moments::merge);
    }

    fn merge(&self, a: Moments, b: Moments) -> Moments {
        a.merge(b)
    }
}

/// Runs `line` for each line of the results, with its operands and its channels, and whether to add to the line.
fn each_line<T: Stored, R: Real, const K: usize>(
    y: &mut [T],
    x: [&[T]; K],
    extent: Extent,
    accumulate: bool,
    line: impl Fn(&mut [R], [&[R]; K], usize, bool) + Sync,
) {
    if y.is_empty() {
        return;
    }
    let Extent { n: channels, inner, .. } = extent;
    let width = if inner == 1 { channels } else { inner };
    let (task, elements) = (rows_a_task(width), y.len());
    each_task(elements, y.par_chunks_mut(task * width).enumerate(), |(i, y)| {
        let x = x.map(|x| Runs { data: &x[i * task * width..], step: width });
        in_blocks(x, y, width, accumulate, &mut |first, x, y, accumulate| {
            simd(
                #[inline(always)]
                || {
                    for (j, y) in y.chunks_exact_mut(width).enumerate() {
                        let channel = if inner == 1 { 0 } else { (i * task + first + j) % channels };
                        line(y, x.map(|x| x.row(j, width)), channel, accumulate);
                    }
                },
            );
        });
    });
}

pub(super) fn forward(op: &BatchNorm, args: &HostArgs<'_>) -> Result<()> {
    with_mixed!(args, args.read_dtype(0), args.read_dtype(1), T, P, R => forward_of::<T, P, R>(op, args))
}

/// `T` is the stored type of elements, `P` that of parameters.
fn forward_of<T: Stored, P: Stored, R: Real>(op: &BatchNorm, args: &HostArgs<'_>) -> Result<()> {
    let (x, weight, bias) = (args.read::<T>(0)?, args.read::<P>(1)?, args.read::<P>(2)?);
    let (y, means, invs) = (args.write::<T>(0)?, args.write::<R>(1)?, args.write::<R>(2)?);
    if op.training {
        let moments = channels([x], op.extent, &InMoments::<R>(PhantomData));
        for ((m, mean), inv) in moments.iter().zip(&mut *means).zip(&mut *invs) {
            *mean = R::c(m.mean);
            *inv = R::c(1.0 / (m.variance(0.0) + op.eps).sqrt());
        }
        update::<P>(args, op.momentum, &moments)?;
    } else {
        let (mean, var) = (args.read::<P>(3)?, args.read::<P>(4)?);
        means.iter_mut().zip(mean).for_each(|(to, m)| *to = m.to());
        let eps = R::c(op.eps);
        invs.iter_mut().zip(var).for_each(|(to, v)| *to = R::ONE / (v.to::<R>() + eps).sqrt());
    }
    let scales = of_channels(weight.iter().zip(&*invs).map(|(w, &r)| w.to::<R>() * r));
    let shifts = of_channels(bias.iter().map(|b| b.to::<R>()));
    let means = &*means;
    if op.extent.inner == 1 && normalised_halves(x, y, [means, &scales, &shifts]) {
        return Ok(());
    }
    each_line(
        y,
        [x],
        op.extent,
        false,
        #[inline(always)]
        |y: &mut [R], [x], channel, _| {
            if op.extent.inner == 1 {
                map(y, [x, means, &scales, &shifts], false, |[x, m, s, b]| (x - m) * s + b);
            } else {
                let (m, s, b) = (means[channel], scales[channel], shifts[channel]);
                map(y, [x], false, |[x]| (x - m) * s + b);
            }
        },
    );
    Ok(())
}

/// Rows of f16 in one pass, which converts them in registers. False, and nothing is done, for other types and on a machine without
/// instructions for f16.
fn normalised_halves<T: Stored, R: Real>(x: &[T], y: &mut [T], of_columns: [&[R]; 3]) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let (Some(x), Some(y), Some(loops)) = (f16::same(x), f16::same_mut(y), f16_loops())
        && let [Some(means), Some(scales), Some(shifts)] = of_columns.map(|numbers| f32::same(numbers))
    {
        let width = means.len();
        let task = rows_a_task(width) * width;
        let tasks = y.par_chunks_mut(task.max(1)).zip(x.par_chunks(task.max(1)));
        each_task(x.len(), tasks, |(y, x)| {
            with_f16_loops!(loops, loops => HalfLoops::run(loops,
                #[inline(always)]
                || for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                    loops.map_with(
                        x,
                        [means, scales, shifts],
                        y,
                        #[inline(always)]
                        |x, [m, s, b]| (x - m) * s + b,
                    );
                },
            ));
        });
        return true;
    }
    let _ = (x, y, of_columns);
    false
}

/// Moves the running statistics towards those of the batch. A channel that would get one that is not finite keeps both.
fn update<T: Stored>(args: &HostArgs<'_>, momentum: f64, moments: &[Moments]) -> Result<()> {
    let (means, vars) = (running::<T>(args, 3)?, running::<T>(args, 4)?);
    let moved = |old: T, new: f64| T::from_number((1.0 - momentum) * old.to::<f64>() + momentum * new);
    for ((mean, var), batch) in means.iter_mut().zip(vars).zip(moments) {
        let new = [moved(*mean, batch.mean), moved(*var, batch.variance(1.0))];
        if new.iter().all(|v| v.to::<f64>().is_finite()) {
            [*mean, *var] = new;
        }
    }
    Ok(())
}

/// A running statistic (operand and result `i`), with its old values.
fn running<'a, T: Stored>(args: &'a HostArgs<'_>, i: usize) -> Result<&'a mut [T]> {
    let running = args.write::<T>(i)?;
    if args.in_place(i).is_none() {
        // The statistic is in strided memory; the result is copied there afterwards.
        running.copy_from_slice(args.read::<T>(i)?);
    }
    Ok(running)
}

/// The sums of dy and of `dy * (x - mean)`, from the operands x and dy.
struct GradientSums<'a, R> {
    means: &'a [R],
}

impl<T: Stored, R: Real> Reducer<T, [R; 2], 2> for GradientSums<'_, R> {
    fn row(&self, x: [&[T]; 2], at: PartPosition) -> [R; 2] {
        // A row belongs to one channel (a line or all of it).
        let mean = self.means[at.result % self.means.len()];
        simd(
            #[inline(always)]
            || {
                let products = rows::sum(
                    x,
                    #[inline(always)]
                    |[x, d]| d.to::<R>() * (x.to::<R>() - mean),
                );
                [rows::sum([x[1]], |[d]| d.to()), products]
            },
        )
    }

    fn columns(
        &self,
        [x, dy]: [&[T]; 2],
        stride: usize,
        rows: usize,
        at: PartPosition,
        states: &mut [[R; 2]],
    ) {
        let width = states.len();
        let means = &self.means[at.result..][..width];
        simd(
            #[inline(always)]
            || {
                states.fill([R::ZERO; 2]);
                for r in 0..rows {
                    let (x, dy) = (&x[r * stride..][..width], &dy[r * stride..][..width]);
                    for (((s, x), d), &m) in states.iter_mut().zip(x).zip(dy).zip(means) {
                        let d: R = d.to();
                        s[0] += d;
                        s[1] += d * (x.to::<R>() - m);
                    }
                }
            },
        )
    }

    fn merge(&self, a: [R; 2], b: [R; 2]) -> [R; 2] {
        [a[0] + b[0], a[1] + b[1]]
    }
}

impl<R: Real> Reducer<[R; 2], [R; 2], 1> for GradientSums<'_, R> {
    fn row(&self, [x]: [&[[R; 2]]; 1], _: PartPosition) -> [R; 2] {
        let mut state = [[R::ZERO; 2]];
        merge_columns(x, 1, &mut state, |a, b| [a[0] + b[0], a[1] + b[1]]);
        state[0]
    }

    fn columns(&self, [x]: [&[[R; 2]]; 1], stride: usize, _: usize, _: PartPosition, states: &mut [[R; 2]]) {
        merge_columns(x, stride, states, |a, b| [a[0] + b[0], a[1] + b[1]]);
    }

    fn merge(&self, a: [R; 2], b: [R; 2]) -> [R; 2] {
        [a[0] + b[0], a[1] + b[1]]
    }
}

pub(super) fn backward(extent: Extent, training: bool, args: &HostArgs<'_>) -> Result<()> {
    with_mixed!(args, args.read_dtype(0), args.read_dtype(1), T, P, R => {
        backward_of::<T, P, R>(extent, training, args)
    })
}

/// With `n = (x - mean) * inv` and sums over all values of a channel: `dweight = sum(dy * n)` and `dbias = sum(dy)`.
/// In training `dx = weight * inv * (dy - dbias / count - n * dweight / count)`, in evaluation `dx = weight * inv *
/// dy`.
fn backward_of<T: Stored, P: Stored, R: Real>(
    extent: Extent,
    training: bool,
    args: &HostArgs<'_>,
) -> Result<()> {
    let (x, weight, dy) = (args.read::<T>(0)?, args.read::<P>(1)?, args.read::<T>(2)?);
    let (means, invs) = (args.read::<R>(3)?, args.read::<R>(4)?);
    let (dx, accumulate) = (args.write::<T>(0)?, args.accumulate(0));
    let (dweight, dbias) = (args.write::<P>(1)?, args.write::<P>(2)?);
    let sums = match x.is_empty() {
        true => Scratch::filled(extent.n, [R::ZERO; 2]),
        false => channels([x, dy], extent, &GradientSums { means }),
    };
    let dw = of_channels(sums.iter().zip(invs).map(|(s, &r)| s[1] * r));
    let db = of_channels(sums.iter().map(|s| s[0]));
    map(dweight, [&dw], args.accumulate(1), |[v]| v);
    map(dbias, [&db], args.accumulate(2), |[v]| v);
    let scales = of_channels(weight.iter().zip(invs).map(|(w, &r)| w.to::<R>() * r));
    if !training {
        scaled(dx, dy, &scales, extent, accumulate);
        return Ok(());
    }
    let share = R::c(1.0 / (extent.outer * extent.inner) as f64);
    let levels = of_channels(db.iter().map(|&b| b * share));
    let slopes = of_channels(dw.iter().zip(invs).map(|(&w, &r)| w * r * share));
    each_line(
        dx,
        [x, dy],
        extent,
        accumulate,
        #[inline(always)]
        |dx: &mut [R], [x, dy], channel, accumulate| {
            if extent.inner == 1 {
                let x = [x, dy, means, &scales, &levels, &slopes];
                map(dx, x, accumulate, |[x, d, m, s, l, a]| s * (d - l - (x - m) * a));
            } else {
                let (m, s) = (means[channel], scales[channel]);
                let (l, a) = (levels[channel], slopes[channel]);
                map(dx, [x, dy], accumulate, |[x, d]| s * (d - l - (x - m) * a));
            }
        },
    );
    Ok(())
}

/// The gradient in evaluation: the gradient of the result times one number per channel. It does not use `x` or the
/// sums, because a NaN there would not vanish when it is multiplied by 0.
fn scaled<T: Stored, R: Real>(dx: &mut [T], dy: &[T], scales: &[R], extent: Extent, accumulate: bool) {
    each_line(
        dx,
        [dy],
        extent,
        accumulate,
        #[inline(always)]
        |dx: &mut [R], [dy], channel, accumulate| {
            if extent.inner == 1 {
                map(dx, [dy, scales], accumulate, |[d, s]| s * d);
            } else {
                let s = scales[channel];
                map(dx, [dy], accumulate, |[d]| s * d);
            }
        },
    );
}
