//! Pooling on the CPU: plane by plane.

use std::ops::Range;

use super::{Kind, Pool};
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, Stored, convert, store, with_float};
use crate::device::cpu::{parallel, scratch::Scratch, simd::simd};
use crate::error::Result;
use crate::kernels::rows::load;

impl Pool {
    /// The places of window `at` in its image, as ranges of rows and columns.
    fn ranges(&self, at: usize) -> [Range<usize>; 2] {
        let [.., columns] = self.count;
        let range = |axis: usize, i: usize| {
            let begin = i * self.window.stride[axis];
            let (padding, size) = (self.window.padding[axis], self.images[2 + axis]);
            begin.saturating_sub(padding)
                ..(begin + self.window.kernel[axis]).saturating_sub(padding).min(size)
        };
        [range(0, at / columns), range(1, at % columns)]
    }

    /// The ranges of rows in the image of a row of windows.
    fn rows(&self, row: usize) -> Range<usize> {
        let [rows, _] = self.ranges(row * self.count[1]);
        rows
    }

    /// Whether a mean divides by all elements of a window.
    fn divides_by_all(&self) -> bool {
        self.kind == Kind::Mean { all: true }
    }
}

/// How the windows of a row lie over a row of the image.
struct Columns<R> {
    stride: usize,
    width: usize,
    /// The range of columns of each window.
    windows: Scratch<[usize; 2]>,
    /// For each column of a window: the range of windows that have it in the image, and where the first of them has it.
    places: Scratch<[usize; 3]>,
    /// By how many elements of a row of a window its mean is divided.
    counts: Scratch<R>,
}

/// With fewer windows in a row, each is summed by itself.
const FEW: usize = 8;

impl<R: Real> Columns<R> {
    fn new(pool: &Pool) -> Columns<R> {
        let (count, width) = (pool.count[1], pool.images[3]);
        let (kernel, stride, padding) =
            (pool.window.kernel[1], pool.window.stride[1], pool.window.padding[1]);
        let mut windows = Scratch::filled(count, [0; 2]);
        let mut counts = Scratch::new(count);
        for (at, (window, number)) in windows.iter_mut().zip(&mut *counts).enumerate() {
            let [_, columns] = pool.ranges(at);
            *number = R::from_f64(if pool.divides_by_all() { kernel } else { columns.len() } as f64);
            *window = [columns.start, columns.end];
        }
        // Other columns of a window are always in the padding.
        let inside = padding.saturating_sub((count - 1) * stride)..kernel.min(width + padding);
        let mut places = Scratch::filled(inside.len(), [0; 3]);
        for (place, k) in places.iter_mut().zip(inside) {
            let first = padding.saturating_sub(k).div_ceil(stride);
            let end = (width + padding - k).div_ceil(stride).min(count);
            *place = [first.min(end), end, (first * stride + k).saturating_sub(padding)];
        }
        Columns { stride, width, windows, places, counts }
    }

    /// Adds rows of an image to the sums of the windows over them. Both loops add the elements of a window in the same
    /// order.
    fn add_windows(&self, rows: &[R], sums: &mut [R]) {
        simd(
            #[inline(always)]
            || {
                for row in rows.chunks_exact(self.width) {
                    if sums.len() < FEW {
                        for (sum, &[start, end]) in sums.iter_mut().zip(&*self.windows) {
                            row[start..end].iter().for_each(|&x| *sum += x);
                        }
                        continue;
                    }
                    for &[start, end, first] in &*self.places {
                        let (sums, x) = (&mut sums[start..end], row.get(first..).unwrap_or_default());
                        match self.stride {
                            1 => sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += x),
                            _ => {
                                let x = x.iter().step_by(self.stride);
                                sums.iter_mut().zip(x).for_each(|(sum, &x)| *sum += x);
                            }
                        }
                    }
                }
            },
        );
    }

    /// Adds the share of each window of a row to all of its elements, in the order of the windows.
    fn spread_windows(&self, shares: &[R], rows: &mut [R]) {
        simd(
            #[inline(always)]
            || {
                for row in rows.chunks_exact_mut(self.width) {
                    if shares.len() < FEW {
                        for (&share, &[start, end]) in shares.iter().zip(&*self.windows) {
                            row[start..end].iter_mut().for_each(|x| *x += share);
                        }
                        continue;
                    }
                    for &[start, end, first] in self.places.iter().rev() {
                        let (shares, x) = (&shares[start..end], row.get_mut(first..).unwrap_or_default());
                        match self.stride {
                            1 => x.iter_mut().zip(shares).for_each(|(x, &share)| *x += share),
                            _ => {
                                let x = x.iter_mut().step_by(self.stride);
                                x.zip(shares).for_each(|(x, &share)| *x += share);
                            }
                        }
                    }
                }
            },
        );
    }

    /// Divides what belongs to the windows of a row, each of which has so many rows.
    fn divide(&self, numbers: &mut [R], rows: usize) {
        let rows = R::from_f64(rows as f64);
        simd(
            #[inline(always)]
            || numbers.iter_mut().zip(&*self.counts).for_each(|(n, &count)| *n = *n / (rows * count)),
        );
    }
}

pub(super) fn forward(pool: &Pool, args: &HostArgs<'_>) -> Result<()> {
    let [.., height, width] = pool.images;
    let [rows, columns] = pool.count;
    with_float!(args, args.read_dtype(0), T, R => {
        let (x, y) = (args.read::<T>(0)?, args.write::<T>(0)?);
        let plane = |i: usize| &x[i * height * width..][..height * width];
        if pool.kind == Kind::Max {
            let places = args.write::<i64>(1)?;
            parallel::pieces(places, rows * columns, |i, places| {
                let x = plane(i);
                for (at, to) in places.iter_mut().enumerate() {
                    let [rows, columns] = pool.ranges(at);
                    let mut best = rows.start * width + columns.start;
                    for i in rows {
                        for place in i * width + columns.start..i * width + columns.end {
                            let (v, most) = (x[place].to::<R>(), x[best].to::<R>());
                            if v > most || (v.is_nan() && !most.is_nan()) {
                                best = place;
                            }
                        }
                    }
                    *to = best as i64;
                }
            });
            let places = &*places;
            parallel::pieces(y, rows * columns, |i, y| {
                let (x, places) = (plane(i), &places[i * rows * columns..]);
                y.iter_mut().zip(places).for_each(|(y, &place)| *y = x[place as usize]);
            });
            return Ok(());
        }
        let by_columns = Columns::<R>::new(pool);
        parallel::pieces(y, rows * columns, |i, y| {
            let (mut converted, mut sums) = (Scratch::new(height * width), Scratch::<R>::new(columns));
            let x = load(plane(i), &mut converted);
            for (row, y) in y.chunks_mut(columns).enumerate() {
                let range = pool.rows(row);
                let rows = if pool.divides_by_all() { pool.window.kernel[0] } else { range.len() };
                sums.fill(R::ZERO);
                by_columns.add_windows(&x[range.start * width..range.end * width], &mut sums);
                by_columns.divide(&mut sums, rows);
                store(&sums, y, false);
            }
        });
        Ok(())
    })
}

pub(super) fn backward(pool: &Pool, args: &HostArgs<'_>) -> Result<()> {
    let [.., height, width] = pool.images;
    let windows = pool.count[0] * pool.count[1];
    let accumulate = args.accumulate(0);
    with_float!(args, args.write_dtype(0), T, R => {
        let by_columns = (pool.kind != Kind::Max).then(|| Columns::<R>::new(pool));
        let dy = args.read::<T>(0)?;
        let places = if pool.kind == Kind::Max { args.read::<i64>(1)? } else { &[] };
        parallel::pieces(args.write::<T>(0)?, height * width, |plane, dx| {
            let dy = &dy[plane * windows..][..windows];
            let mut sums = Scratch::filled(dx.len(), <R as Number>::ZERO);
            if let Some(by_columns) = &by_columns {
                let mut shares = Scratch::<R>::new(pool.count[1]);
                for (row, dy) in dy.chunks(pool.count[1]).enumerate() {
                    let range = pool.rows(row);
                    convert(dy, &mut shares);
                    if !pool.divides_by_all() {
                        by_columns.divide(&mut shares, range.len());
                    }
                    by_columns.spread_windows(&shares, &mut sums[range.start * width..range.end * width]);
                }
                if pool.divides_by_all() {
                    let all = pool.window.kernel.map(|size| size as f64);
                    let all = R::from_f64(all[0] * all[1]);
                    simd(
                        #[inline(always)]
                        || sums.iter_mut().for_each(|sum| *sum /= all),
                    );
                }
            } else {
                for (d, &place) in dy.iter().zip(&places[plane * windows..]) {
                    // The places are those that the operation wrote; one out of range has no element.
                    if let Some(sum) = sums.get_mut(place as usize) {
                        *sum += d.to::<R>();
                    }
                }
            }
            store(&sums, dx, accumulate);
        });
        Ok(())
    })
}
