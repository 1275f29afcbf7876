//! Softmax on the CPU. Along the last axis, a row stays in cache from its maximum to its result. Along other axes,
//! the maximum and sum of each column are computed first, then the results row by row.

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_float};
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::blocks::in_blocks;
use crate::kernels::elementwise::Runs;
use crate::kernels::reduction::{Extent, PartPosition, Reducer, Rows, SEGMENT, reduce, reduce_in};
use crate::kernels::rows::{each_task, load, map, max, rows_a_task, sum};

pub(super) fn forward(log: bool, extent: Extent, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let y = args.write::<T>(0)?;
        if y.is_empty() {
            return Ok(());
        }
        let x = Rows::of(args, 0, extent)?;
        match (extent.inner, log) {
            (1, false) => rows::<T, R>(x.get(), y, extent.n, softmax_rows),
            (1, true) => rows::<T, R>(x.get(), y, extent.n, log_softmax_rows),
            _ => columns::<T, R>(log, x.get(), y, extent),
        }
        Ok(())
    })
}

/// Runs `kernel` over rows of `n` elements, which begin `step` apart in `x`.
fn rows<T: Stored, R: Real>(
    (x, step): (&[T], usize),
    y: &mut [T],
    n: usize,
    kernel: fn(Runs<'_, R>, &mut [R], usize),
) {
    let rows = rows_a_task(n);
    each_task(y.len(), y.par_chunks_mut(rows * n).zip(x.par_chunks(rows * step)), |(y, x)| {
        in_blocks([Runs { data: x, step }], y, n, false, &mut |_, [x], y, _| kernel(x, y, n));
    });
}

fn softmax_rows<R: Real>(x: Runs<'_, R>, y: &mut [R], n: usize) {
    with_scratch(n, |powers: &mut [R]| {
        simd(
            #[inline(always)]
            || {
                for (r, y) in y.chunks_exact_mut(n).enumerate() {
                    let x = x.row(r, n);
                    let shift = max(x);
                    map(powers, [x], false, |[x]| (x - shift).exp());
                    let share = R::ONE / sum([powers], |[p]| p);
                    map(y, [powers], false, |[p]| p * share);
                }
            },
        )
    });
}

fn log_softmax_rows<R: Real>(x: Runs<'_, R>, y: &mut [R], n: usize) {
    simd(
        #[inline(always)]
        || {
            for (r, y) in y.chunks_exact_mut(n).enumerate() {
                let x = x.row(r, n);
                let shift = max(x);
                // Separately, because the logarithm is small beside a large shift.
                let log = sum([x], |[x]| (x - shift).exp()).ln();
                map(y, [x], false, |[x]| x - shift - log);
            }
        },
    );
}

/// The largest of some numbers, and the sum of `e^(x - largest)`.
type Exponentials<R> = [R; 2];

struct SumExponentials;

impl<T: Stored, R: Real> Reducer<T, Exponentials<R>, 1> for SumExponentials {
    fn row(&self, [x]: [&[T]; 1], at: PartPosition) -> Exponentials<R> {
        let mut state = [Exponentials::<R>::default()];
        self.columns([x], 1, x.len(), at, &mut state);
        state[0]
    }

    fn columns(
        &self,
        [x]: [&[T]; 1],
        stride: usize,
        rows: usize,
        _: PartPosition,
        states: &mut [Exponentials<R>],
    ) {
        let width = states.len();
        // Apart, so that each loop becomes SIMD code.
        let (mut largest, mut sums) = ([R::NEG_INFINITY; SEGMENT], [R::ZERO; SEGMENT]);
        let (largest, sums) = (&mut largest[..width], &mut sums[..width]);
        let mut bufs = [[R::ZERO; SEGMENT]; 4];
        let row = |r: usize| &x[r.min(rows - 1) * stride..][..width];
        let larger = |a: R, b: R| if b > a { b } else { a };
        simd(
            #[inline(always)]
            || {
                let [buf, second, third, fourth] = &mut bufs;
                // Four at a time, because memory is read faster so.
                for r in (0..rows).step_by(4) {
                    let (a, b) = (load(row(r), buf), load(row(r + 1), second));
                    let (c, d) = (load(row(r + 2), third), load(row(r + 3), fourth));
                    for ((((largest, &a), &b), &c), &d) in largest.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                        *largest = larger(*largest, larger(larger(a, b), larger(c, d)));
                    }
                }
                for r in 0..rows {
                    let row = load(row(r), buf);
                    for ((sum, &largest), &v) in sums.iter_mut().zip(&*largest).zip(row) {
                        // Negative infinity alone adds nothing to the sums of other parts.
                        let p = (v - largest).exp();
                        *sum += if v == R::NEG_INFINITY { R::ZERO } else { p };
                    }
                }
            },
        );
        for ((state, &largest), &sum) in states.iter_mut().zip(&*largest).zip(&*sums) {
            *state = [largest, sum];
        }
    }

    fn rows_at_a_time(&self, extent: Extent) -> usize {
        extent.most_rows_at_a_time()
    }

    fn merge(&self, a: Exponentials<R>, b: Exponentials<R>) -> Exponentials<R> {
        let largest = if a[0] > b[0] { a[0] } else { b[0] };
        let part = |[own, sum]: Exponentials<R>| match own == R::NEG_INFINITY {
            // Zero, or NaN if a number is NaN.
            true => sum,
            false => sum * (own - largest).exp(),
        };
        [largest, part(a) + part(b)]
    }
}

fn columns<T: Stored, R: Real>(log: bool, (x, step): (&[T], usize), y: &mut [T], extent: Extent) {
    let Extent { outer, n, inner } = extent;
    let mut states = Scratch::<[R; 2]>::new(outer * inner);
    let steps = extent.steps_of_rows(step);
    reduce_in([x], extent, steps, &SumExponentials, &mut states, |to, [largest, sum]: Exponentials<R>| {
        *to = [largest, if log { sum.ln() } else { R::ONE / sum }];
    });
    let largest = Scratch::<R>::collect(states.len(), states.iter().map(|s| s[0]));
    let scales = Scratch::<R>::collect(states.len(), states.iter().map(|s| s[1]));
    let rows = rows_a_task(inner);
    let tasks = y.par_chunks_mut(rows * inner).zip(x.par_chunks(rows * step)).enumerate();
    each_task(outer * n * inner, tasks, |(task, (y, x))| {
        in_blocks([Runs { data: x, step }], y, inner, false, &mut |first, [x], y, _| {
            columns_forward::<R>(log, x, y, task * rows + first, extent, [&largest, &scales]);
        });
    });
}

/// Some rows, from row `first` on, by the statistics of their columns.
fn columns_forward<R: Real>(
    log: bool,
    x: Runs<'_, R>,
    y: &mut [R],
    first: usize,
    Extent { n, inner, .. }: Extent,
    [largest, scales]: [&[R]; 2],
) {
    simd(
        #[inline(always)]
        || {
            for (row, y) in y.chunks_exact_mut(inner).enumerate() {
                let at = (first + row) / n * inner;
                let states = [x.row(row, inner), &largest[at..][..inner], &scales[at..][..inner]];
                match log {
                    true => map(y, states, false, |[x, a, b]| x - a - b),
                    false => map(y, states, false, |[x, a, b]| (x - a).exp() * b),
                }
            }
        },
    );
}

pub(super) fn backward(log: bool, extent: Extent, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let (y, dy, dx) = (args.read::<T>(0)?, args.read::<T>(1)?, args.write::<T>(0)?);
        match extent.inner {
            _ if y.is_empty() => {}
            1 => rows_backward::<T, R>(log, y, dy, dx, extent.n, args.accumulate(0)),
            _ => columns_backward::<T, R>(log, y, dy, dx, extent, args.accumulate(0)),
        }
        Ok(())
    })
}

fn rows_backward<T: Stored, R: Real>(log: bool, y: &[T], dy: &[T], dx: &mut [T], n: usize, accumulate: bool) {
    let task = rows_a_task(n) * n;
    let tasks = dx.par_chunks_mut(task).zip(y.par_chunks(task)).zip(dy.par_chunks(task));
    each_task(y.len(), tasks, |((dx, y), dy)| {
        let x = [y, dy].map(|data| Runs { data, step: n });
        in_blocks(x, dx, n, accumulate, &mut |_, [y, dy], dx, accumulate| {
            softmax_backward_rows::<R>(log, [y.data, dy.data], dx, n, accumulate);
        });
    });
}

fn softmax_backward_rows<R: Real>(log: bool, [y, dy]: [&[R]; 2], dx: &mut [R], n: usize, accumulate: bool) {
    simd(
        #[inline(always)]
        || {
            let rows = dx.chunks_exact_mut(n).zip(y.chunks_exact(n)).zip(dy.chunks_exact(n));
            for ((dx, y), dy) in rows {
                if log {
                    let total = sum([dy], |[d]| d);
                    map(dx, [y, dy], accumulate, |[y, d]| d - y.exp() * total);
                } else {
                    let total = sum([y, dy], |[y, d]| y * d);
                    map(dx, [y, dy], accumulate, |[y, d]| y * (d - total));
                }
            }
        },
    );
}

/// The sum of `y dy`; for the logarithm the sum of `dy`.
struct SumGradients {
    log: bool,
}

impl<T: Stored, R: Real> Reducer<T, R, 2> for SumGradients {
    fn row(&self, x: [&[T]; 2], at: PartPosition) -> R {
        let mut state = [R::ZERO];
        self.columns(x, 1, x[0].len(), at, &mut state);
        state[0]
    }

    fn columns(&self, [y, dy]: [&[T]; 2], stride: usize, rows: usize, _: PartPosition, states: &mut [R]) {
        let width = states.len();
        simd(
            #[inline(always)]
            || {
                states.fill(R::ZERO);
                for r in 0..rows {
                    let (y, dy) = (&y[r * stride..][..width], &dy[r * stride..][..width]);
                    let elements = states.iter_mut().zip(y).zip(dy);
                    if self.log {
                        elements.for_each(|((s, _), d)| *s += d.to());
                    } else {
                        elements.for_each(|((s, y), d)| *s += y.to::<R>() * d.to::<R>());
                    }
                }
            },
        )
    }

    fn merge(&self, a: R, b: R) -> R {
        a + b
    }
}

fn columns_backward<T: Stored, R: Real>(
    log: bool,
    y: &[T],
    dy: &[T],
    dx: &mut [T],
    extent: Extent,
    accumulate: bool,
) {
    let Extent { outer, inner, .. } = extent;
    let mut totals = Scratch::<R>::new(outer * inner);
    reduce([y, dy], extent, &SumGradients { log }, &mut totals, |to, total| *to = total);
    let rows = rows_a_task(inner);
    let size = rows * inner;
    let tasks = dx.par_chunks_mut(size).zip(y.par_chunks(size)).zip(dy.par_chunks(size)).enumerate();
    each_task(y.len(), tasks, |(task, ((dx, y), dy))| {
        let x = [y, dy].map(|data| Runs { data, step: inner });
        in_blocks(x, dx, inner, accumulate, &mut |first, [y, dy], dx, accumulate| {
            let first = task * rows + first;
            columns_backward_rows::<R>(log, [y.data, dy.data], dx, first, extent, &totals, accumulate);
        });
    });
}

/// Some rows, from row `first` on, by the sums of their columns.
fn columns_backward_rows<R: Real>(
    log: bool,
    [y, dy]: [&[R]; 2],
    dx: &mut [R],
    first: usize,
    Extent { n, inner, .. }: Extent,
    totals: &[R],
    accumulate: bool,
) {
    simd(
        #[inline(always)]
        || {
            let slices = dx.chunks_exact_mut(inner).zip(y.chunks_exact(inner)).zip(dy.chunks_exact(inner));
            for (row, ((dx, y), dy)) in slices.enumerate() {
                let totals = &totals[(first + row) / n * inner..][..inner];
                if log {
                    map(dx, [y, dy, totals], accumulate, |[y, d, t]| d - y.exp() * t);
                } else {
                    map(dx, [y, dy, totals], accumulate, |[y, d, t]| y * (d - t));
                }
            }
        },
    );
}
