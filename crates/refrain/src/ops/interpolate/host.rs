//! Resizing on the CPU: axis by axis, the first one first, so that rows are weighted as a whole.

use super::Interpolation;
use super::taps::Axis;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Real, convert, store, with_float};
use crate::device::cpu::{parallel, scratch::Scratch, simd::simd};
use crate::error::Result;
use crate::kernels::rows::{load, sum};

/// For each element of an axis, a run of elements of the other axis and their weights.
struct Table<R> {
    from: usize,
    to: usize,
    /// Where the run of an element begins.
    firsts: Scratch<usize>,
    /// Where its weights begin, and at last where all end.
    starts: Scratch<usize>,
    weights: Scratch<R>,
    /// Whether the sum of a run is divided by its length.
    is_mean: bool,
}

/// Calls `f` with each pair of an element of the operand and one of the result, and the weight between them if it is not 0: 0 times an
/// infinite neighbour is NaN.
fn each_weight(axis: &Axis, mode: Interpolation, mut f: impl FnMut(usize, usize, f64)) {
    for i in 0..axis.to {
        let taps = axis.taps(mode, i);
        taps.iter(axis.from)
            .filter(|&(_, weight)| weight != 0.0)
            .for_each(|(place, weight)| f(place, i, weight));
    }
}

impl<R: Real> Table<R> {
    /// The weights of an axis or, for gradients, those of the way back.
    fn new(axis: &Axis, mode: Interpolation, back: bool) -> Table<R> {
        let (from, to) = if back { (axis.to, axis.from) } else { (axis.from, axis.to) };
        let turned = |x: usize, y: usize| if back { (y, x) } else { (x, y) };
        let mut firsts = Scratch::filled(to, usize::MAX);
        let mut starts = Scratch::filled(to + 1, 0);
        // The ends of the runs, until their lengths are known.
        each_weight(axis, mode, |x, y, _| {
            let (x, y) = turned(x, y);
            firsts[y] = firsts[y].min(x);
            starts[y + 1] = starts[y + 1].max(x + 1);
        });
        for y in 0..to {
            // Without a weight there is no end.
            firsts[y] = firsts[y].min(starts[y + 1]);
            starts[y + 1] = starts[y] + (starts[y + 1] - firsts[y]);
        }
        // A mean is divided at the end, so that a long sum has no rounded weights.
        let is_mean = mode == Interpolation::Area && !back;
        let mut weights = Scratch::filled(starts[to], R::ZERO);
        each_weight(axis, mode, |x, y, weight| {
            let (x, y) = turned(x, y);
            weights[starts[y] + x - firsts[y]] += R::from_f64(if is_mean { 1.0 } else { weight });
        });
        Table { from, to, firsts, starts, weights, is_mean }
    }

    /// The first element of the run of element `i`, and the weights.
    #[inline(always)]
    fn run(&self, i: usize) -> (usize, &[R]) {
        (self.firsts[i], &self.weights[self.starts[i]..self.starts[i + 1]])
    }
}

/// Resizes the last axis.
fn resize_row<R: Real>(table: &Table<R>, x: &[R], y: &mut [R]) {
    simd(
        #[inline(always)]
        || {
            for (i, y) in y.iter_mut().enumerate() {
                *y = match table.run(i) {
                    (first, weights) if table.is_mean => {
                        let run = &x[first..][..weights.len()];
                        sum([run], |[x]| x) / R::from_f64(run.len() as f64)
                    }
                    (first, &[weight]) => weight * x[first],
                    (first, &[a, b]) => a * x[first] + b * x[first + 1],
                    (first, weights) => sum([weights, &x[first..][..weights.len()]], |[weight, x]| {
                        if weight == R::ZERO { R::ZERO } else { weight * x }
                    }),
                };
            }
        },
    );
}

/// Adds a weighted row, or writes it.
fn add_row<R: Real>(x: &[R], weight: R, first: bool, y: &mut [R]) {
    simd(
        #[inline(always)]
        || match first {
            true => y.iter_mut().zip(x).for_each(|(y, &x)| *y = weight * x),
            false => y.iter_mut().zip(x).for_each(|(y, &x)| *y += weight * x),
        },
    );
}

/// Resizes the axes of `rest` of element `i` of the axis of `table`, whose operands are what `row` gives for each element.
fn resize_run<R: Real>(
    table: &Table<R>,
    i: usize,
    rest: &[Table<R>],
    row: &dyn Fn(usize, &mut dyn FnMut(&[R])),
    y: &mut [R],
) {
    let (first, weights) = table.run(i);
    let mut sums = Scratch::filled(rest.iter().map(|t| t.from).product(), R::ZERO);
    let mut is_first = true;
    for (k, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight != R::ZERO) {
        row(first + k, &mut |x| add_row(x, weight, is_first, &mut sums));
        is_first = false;
    }
    if table.is_mean {
        let count = R::from_f64(weights.len() as f64);
        simd(
            #[inline(always)]
            || sums.iter_mut().for_each(|sum| *sum = *sum / count),
        );
    }
    resize_block(rest, &sums, y);
}

/// Resizes the axes of `tables`.
fn resize_block<R: Real>(tables: &[Table<R>], x: &[R], y: &mut [R]) {
    match tables {
        [] => y.copy_from_slice(x),
        [last] => resize_row(last, x, y),
        [first, rest @ ..] => {
            let from: usize = rest.iter().map(|t| t.from).product();
            let to: usize = rest.iter().map(|t| t.to).product();
            for (i, y) in y.chunks_mut(to).enumerate() {
                resize_run(first, i, rest, &|place, f| f(&x[place * from..][..from]), y);
            }
        }
    }
}

/// The operand with its axes resized, or what their gradient gives back.
pub(super) fn resize(axes: &[Axis], mode: Interpolation, back: bool, args: &HostArgs<'_>) -> Result<()> {
    let accumulate = args.accumulate(0);
    if args.write_shape(0).numel() == 0 {
        return Ok(());
    }
    with_float!(args, args.write_dtype(0), T, R => {
        let (x, y) = (args.read::<T>(0)?, args.write::<T>(0)?);
        let all = x.len().max(y.len());
        let tables: smallvec::SmallVec<[Table<R>; 3]> =
            axes.iter().map(|axis| Table::new(axis, mode, back)).collect();
        let Some((first, rest)) = tables.split_first() else {
            return Ok(());
        };
        let from: usize = rest.iter().map(|t| t.from).product();
        let to: usize = rest.iter().map(|t| t.to).product();
        if rest.is_empty() {
            parallel::pieces_that_read(y, first.to, all, |i, y| {
                let (mut of_x, mut of_y) = (Scratch::new(first.from), Scratch::new(first.to));
                let x = load(&x[i * first.from..][..first.from], &mut of_x);
                resize_row(first, x, &mut of_y);
                store(&of_y, y, accumulate);
            });
            return Ok(());
        }
        parallel::pieces_that_read(y, to, all, |i, y| {
            let (block, i) = (i / first.to, i % first.to);
            let row = |place: usize, f: &mut dyn FnMut(&[R])| {
                let x = &x[(block * first.from + place) * from..][..from];
                match R::same(x) {
                    Some(x) => f(x),
                    None => {
                        let mut of_x = Scratch::new(from);
                        convert(x, &mut of_x);
                        f(&of_x);
                    }
                }
            };
            let mut of_y = Scratch::new(to);
            resize_run(first, i, rest, &row, &mut of_y);
            store(&of_y, y, accumulate);
        });
        Ok(())
    })
}
