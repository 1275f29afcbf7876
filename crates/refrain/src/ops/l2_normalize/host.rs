//! L2 normalisation on the CPU: one pass over memory along the last axis. Along other axes, the sums of the columns
//! are computed first.

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, Stored, with_float};
use crate::device::cpu::scratch::{Scratch, with_scratch};
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::{Extent, PartPosition, Reducer, Rows, reduce, reduce_in};
use crate::kernels::rows::{self, each_task, load, map, rows_a_task, sum};

/// The sum of the products of two operands.
struct Products;

impl<T: Stored, R: Real> Reducer<T, R, 2> for Products {
    fn row(&self, x: [&[T]; 2], _: PartPosition) -> R {
        simd(
            #[inline(always)]
            || {
                rows::sum(
                    x,
                    #[inline(always)]
                    |[a, b]| a.to::<R>() * b.to::<R>(),
                )
            },
        )
    }

    fn columns(&self, [a, b]: [&[T]; 2], stride: usize, rows: usize, _: PartPosition, sums: &mut [R]) {
        let width = sums.len();
        simd(
            #[inline(always)]
            || {
                sums.fill(R::ZERO);
                for r in 0..rows {
                    let (a, b) = (&a[r * stride..][..width], &b[r * stride..][..width]);
                    sums.iter_mut().zip(a).zip(b).for_each(|((s, a), b)| *s += a.to::<R>() * b.to::<R>());
                }
            },
        )
    }

    fn merge(&self, a: R, b: R) -> R {
        a + b
    }
}

pub(super) fn forward(extent: Extent, eps: f64, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let (y, norms) = (args.write::<T>(0)?, args.write::<R>(1)?);
        if y.is_empty() {
            norms.fill(R::ZERO);
            return Ok(());
        }
        let x = Rows::of(args, 0, extent)?;
        match extent.inner {
            1 => forward_rows::<T, R>(x.get(), y, norms, extent.n, R::c(eps)),
            _ => forward_columns::<T, R>(x.get(), y, norms, extent, R::c(eps)),
        }
        Ok(())
    })
}

#[inline(always)]
fn larger<R: Real>(norm: R, eps: R) -> R {
    if norm < eps { eps } else { norm }
}

fn forward_rows<T: Stored, R: Real>(
    (x, step): (&[T], usize),
    y: &mut [T],
    norms: &mut [R],
    n: usize,
    eps: R,
) {
    let (rows, elements) = (rows_a_task(n), y.len());
    let tasks = y.par_chunks_mut(rows * n).zip(x.par_chunks(rows * step)).zip(norms.par_chunks_mut(rows));
    each_task(elements, tasks, |((y, x), norms)| {
        with_scratch(n, |buf: &mut [R]| {
            simd(
                #[inline(always)]
                || {
                    for ((y, x), norm) in y.chunks_exact_mut(n).zip(x.chunks(step)).zip(norms) {
                        let x = load(&x[..n], buf);
                        *norm = sum([x], |[x]| x * x).sqrt();
                        let by = larger(*norm, eps);
                        map(y, [x], false, |[x]| x / by);
                    }
                },
            )
        })
    });
}

fn forward_columns<T: Stored, R: Real>(
    (x, step): (&[T], usize),
    y: &mut [T],
    norms: &mut [R],
    extent: Extent,
    eps: R,
) {
    let Extent { n, inner, .. } = extent;
    reduce_in([x, x], extent, extent.steps_of_rows(step), &Products, norms, |to, squares: R| {
        *to = squares.sqrt()
    });
    let norms = &*norms;
    let rows = rows_a_task(inner);
    let elements = y.len();
    let tasks = y.par_chunks_mut(rows * inner).zip(x.par_chunks(rows * step)).enumerate();
    each_task(elements, tasks, |(task, (y, x))| {
        with_scratch(inner, |buf: &mut [R]| {
            simd(
                #[inline(always)]
                || {
                    for (row, (y, x)) in y.chunks_exact_mut(inner).zip(x.chunks(step)).enumerate() {
                        let norms = &norms[(task * rows + row) / n * inner..][..inner];
                        map(y, [load(&x[..inner], buf), norms], false, |[x, norm]| x / larger(norm, eps));
                    }
                },
            )
        })
    });
}

pub(super) fn backward(extent: Extent, eps: f64, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => {
        let (y, dy, norms) = (args.read::<T>(0)?, args.read::<T>(1)?, args.read::<R>(2)?);
        let (dx, accumulate) = (args.write::<T>(0)?, args.accumulate(0));
        match extent.inner {
            _ if y.is_empty() => {}
            1 => backward_rows::<T, R>([y, dy], norms, dx, extent.n, R::c(eps), accumulate),
            _ => backward_columns::<T, R>([y, dy], norms, dx, extent, R::c(eps), accumulate),
        }
        Ok(())
    })
}

/// How much of y is subtracted from dy, and what the rest is divided by. Below eps nothing is subtracted.
#[inline(always)]
fn coefficients<R: Real>(along: R, norm: R, eps: R) -> (R, R) {
    if norm < eps { (R::ZERO, eps) } else { (along, norm) }
}

fn backward_rows<T: Stored, R: Real>(
    [y, dy]: [&[T]; 2],
    norms: &[R],
    dx: &mut [T],
    n: usize,
    eps: R,
    accumulate: bool,
) {
    let rows = rows_a_task(n);
    let tasks = dx
        .par_chunks_mut(rows * n)
        .zip(y.par_chunks(rows * n).zip(dy.par_chunks(rows * n)))
        .zip(norms.par_chunks(rows));
    each_task(y.len(), tasks, |((dx, (y, dy)), norms)| {
        with_scratch(2 * n, |buf: &mut [R]| {
            let (y_buf, dy_buf) = buf.split_at_mut(n);
            simd(
                #[inline(always)]
                || {
                    let slices = dx.chunks_exact_mut(n).zip(y.chunks_exact(n).zip(dy.chunks_exact(n)));
                    for ((dx, (y, dy)), &norm) in slices.zip(norms) {
                        let (y, dy) = (load(y, y_buf), load(dy, dy_buf));
                        let (along, by) = coefficients(sum([y, dy], |[y, d]| y * d), norm, eps);
                        map(dx, [y, dy], accumulate, |[y, d]| (d - y * along) / by);
                    }
                },
            )
        })
    });
}

fn backward_columns<T: Stored, R: Real>(
    [y, dy]: [&[T]; 2],
    norms: &[R],
    dx: &mut [T],
    extent: Extent,
    eps: R,
    accumulate: bool,
) {
    let Extent { n, inner, .. } = extent;
    let mut along = Scratch::<R>::new(norms.len());
    reduce([y, dy], extent, &Products, &mut along, |to, sum| *to = sum);
    let rows = rows_a_task(inner);
    let size = rows * inner;
    let tasks = dx.par_chunks_mut(size).zip(y.par_chunks(size).zip(dy.par_chunks(size))).enumerate();
    each_task(y.len(), tasks, |(task, (dx, (y, dy)))| {
        with_scratch(2 * inner, |buf: &mut [R]| {
            let (y_buf, dy_buf) = buf.split_at_mut(inner);
            simd(
                #[inline(always)]
                || {
                    let slices =
                        dx.chunks_exact_mut(inner).zip(y.chunks_exact(inner).zip(dy.chunks_exact(inner)));
                    for (row, (dx, (y, dy))) in slices.enumerate() {
                        let at = (task * rows + row) / n * inner;
                        let (along, norms) = (&along[at..at + inner], &norms[at..at + inner]);
                        let (y, dy) = (load(y, y_buf), load(dy, dy_buf));
                        map(dx, [y, dy, along, norms], accumulate, |[y, d, along, norm]| {
                            let (along, by) = coefficients(along, norm, eps);
                            (d - y * along) / by
                        });
                    }
                },
            )
        })
    });
}
