//! Linear recurrences on the CPU: lines side by side, one step after the other.

use rayon::prelude::*;

use super::RecurrenceBackward;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_float};
use crate::device::cpu::parallel::{ByColumns, by_columns, for_each, optional_pieces, worthwhile};
use crate::device::cpu::rectangle::RectangleMut;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::Extent;

/// Lines of neighbours that are computed side by side, so that a step need not wait for the one before it.
const LINES: usize = 8;

/// How lines lie in a piece of memory that is read: where the first one begins, how many there are, how far apart, and of how many steps,
/// how far apart.
#[derive(Clone, Copy)]
struct Lines {
    start: usize,
    count: usize,
    apart: usize,
    steps: usize,
    step: usize,
}

impl Lines {
    /// Lines whose steps are neighbours.
    fn of_neighbours(count: usize, steps: usize) -> Lines {
        Lines { start: 0, count, apart: steps, steps, step: 1 }
    }

    /// Lines that are some columns of a matrix.
    fn of_columns<T>(columns: &RectangleMut<'_, T>, [steps, inner]: [usize; 2]) -> Lines {
        let own = columns.columns();
        Lines { start: own.start, count: own.len(), apart: 1, steps, step: inner }
    }

    /// The elements of all lines at a step, from the first to the last.
    #[inline(always)]
    fn at<T>(self, x: &[T], t: usize) -> &[T] {
        &x[self.start + t * self.step..][..(self.count - 1) * self.apart + 1]
    }
}

/// What lines of results lie in.
trait Steps<T> {
    /// The elements of all lines at a step, from the first to the last.
    fn at_mut(&mut self, lines: Lines, t: usize) -> &mut [T];
}

impl<T> Steps<T> for &mut [T] {
    #[inline(always)]
    fn at_mut(&mut self, lines: Lines, t: usize) -> &mut [T] {
        &mut self[lines.start + t * lines.step..][..(lines.count - 1) * lines.apart + 1]
    }
}

impl<T> Steps<T> for RectangleMut<'_, T> {
    #[inline(always)]
    fn at_mut(&mut self, _: Lines, t: usize) -> &mut [T] {
        self.row(t)
    }
}

#[inline(always)]
fn put<T: Stored, R: Number>(to: &mut T, value: R, add: bool) {
    *to = T::from_number(if add { to.to::<R>().plus(value) } else { value });
}

/// What a step makes of the one before it. Nothing stays nothing, also where the factor is infinite.
#[inline(always)]
fn carried<R: Number>(value: R, factor: R) -> R {
    if (value == R::ZERO) & !factor.is_nan() { R::ZERO } else { factor.times(value) }
}

/// What a recurrence reads, of a piece; `first` of the lines alone.
#[derive(Clone, Copy)]
struct Forward<'a, T> {
    x: &'a [T],
    decay: &'a [T],
    first: Option<&'a [T]>,
    add: bool,
}

pub(super) fn forward(extent: Extent, first: bool, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => forward_of::<T, R>(extent, first, args))
}

fn forward_of<T: Stored, R: Number>(extent: Extent, first: bool, args: &HostArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = extent;
    let (x, decay, y) = (args.read::<T>(0)?, args.read::<T>(1)?, args.write::<T>(0)?);
    let first = if first { Some(args.read::<T>(2)?) } else { None };
    if y.is_empty() {
        return Ok(());
    }
    let add = args.accumulate(0);
    let (piece, lines) = if inner == 1 { (LINES * n, LINES) } else { (n * inner, inner) };
    for_each(worthwhile(3 * y.len()), y.par_chunks_mut(piece).enumerate(), |(i, mut y)| {
        let all = i * piece..i * piece + y.len();
        let first = first.map(|first| &first[i * lines..]);
        let read = Forward { x: &x[all.clone()], decay: &decay[all], first, add };
        if inner == 1 {
            return read.run::<R>(Lines::of_neighbours(y.len() / n, n), &mut y);
        }
        by_columns(outer - 1, [n, inner], RectangleMut::all(y, inner), |mut y| {
            let first = first.map(|first| &first[y.columns()]);
            Forward { first, ..read }.run::<R>(Lines::of_columns(&y, [n, inner]), &mut y);
        });
    });
    Ok(())
}

impl<T: Stored> Forward<'_, T> {
    fn run<R: Number>(self, lines: Lines, y: &mut impl Steps<T>) {
        let mut states = Scratch::filled(lines.count, R::ZERO);
        if let Some(first) = self.first {
            states.iter_mut().zip(first).for_each(|(state, first)| *state = first.to());
        }
        simd(
            #[inline(always)]
            || match lines.apart {
                // A constant, so that the loops become SIMD code.
                1 => self.steps(Lines { apart: 1, ..lines }, y, &mut states),
                _ => self.steps(lines, y, &mut states),
            },
        );
    }

    #[inline(always)]
    fn steps<R: Number>(self, lines: Lines, y: &mut impl Steps<T>, states: &mut [R]) {
        let states = &mut states[..lines.count];
        for t in 0..lines.steps {
            let (x, decay, y) = (lines.at(self.x, t), lines.at(self.decay, t), y.at_mut(lines, t));
            let y = &mut y[..x.len()];
            for line in 0..lines.count {
                let at = line * lines.apart;
                states[line] = x[at].to::<R>().plus(carried(states[line], decay[at].to()));
                put(&mut y[at], states[line], self.add);
            }
        }
    }
}

/// What a backward pass reads, of a piece; `first` of the lines alone.
#[derive(Clone, Copy)]
struct Backward<'a, T> {
    decay: &'a [T],
    dy: &'a [T],
    /// The results, for the gradient of the decay, as `first`.
    y: Option<&'a [T]>,
    first: Option<&'a [T]>,
    /// Whether each of the results is added to.
    adds: [bool; 3],
}

/// The results of a backward pass, in `O` but for the last one, which has an element a line.
struct Written<'a, O, T> {
    dx: O,
    d_decay: Option<O>,
    d_first: Option<&'a mut [T]>,
}

impl<T: Send> ByColumns for Written<'_, RectangleMut<'_, T>, T> {
    fn split_at(self, first: usize) -> (Self, Self) {
        let (dx, rest) = self.dx.split_at(first);
        let (d_decay, d_decays) = self.d_decay.map(|columns| columns.split_at(first)).unzip();
        let (d_first, d_firsts) = self.d_first.map(|lines| lines.split_at_mut(first)).unzip();
        (Written { dx, d_decay, d_first }, Written { dx: rest, d_decay: d_decays, d_first: d_firsts })
    }
}

pub(super) fn backward(op: &RecurrenceBackward, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => backward_of::<T, R>(op, args))
}

fn backward_of<T: Stored, R: Number>(op: &RecurrenceBackward, args: &HostArgs<'_>) -> Result<()> {
    let Extent { outer, n, inner } = op.extent;
    let (decay, dy) = (args.read::<T>(0)?, args.read::<T>(1)?);
    let y = if op.decay { Some(args.read::<T>(2)?) } else { None };
    let first = if op.decay && op.first { Some(args.read::<T>(3)?) } else { None };
    let dx = args.write::<T>(0)?;
    let d_decay = if op.decay { Some(args.write::<T>(1)?) } else { None };
    let last = 1 + usize::from(op.decay);
    let d_first = if op.first { Some(args.write::<T>(last)?) } else { None };
    if dx.is_empty() {
        return Ok(());
    }
    let add = |there: bool, o: usize| there && args.accumulate(o);
    let adds = [add(true, 0), add(op.decay, 1), add(op.first, last)];
    let (piece, lines) = if inner == 1 { (LINES * n, LINES) } else { (n * inner, inner) };
    let (all, tasks) = (5 * dx.len(), dx.len().div_ceil(piece));
    let items = dx.par_chunks_mut(piece).enumerate();
    let items = items.zip(optional_pieces(d_decay, tasks, piece)).zip(optional_pieces(d_first, tasks, lines));
    for_each(worthwhile(all), items, |(((i, dx), d_decay), d_first)| {
        let all = i * piece..i * piece + dx.len();
        let first = first.map(|first| &first[i * lines..]);
        let y = y.map(|y| &y[all.clone()]);
        let read = Backward { decay: &decay[all.clone()], dy: &dy[all], y, first, adds };
        if inner == 1 {
            let lines = Lines::of_neighbours(dx.len() / n, n);
            return read.run::<R, _>(lines, Written { dx, d_decay, d_first });
        }
        let d_decay = d_decay.map(|d_decay| RectangleMut::all(d_decay, inner));
        let written = Written { dx: RectangleMut::all(dx, inner), d_decay, d_first };
        by_columns(outer - 1, [n, inner], written, |written| {
            let first = first.map(|first| &first[written.dx.columns()]);
            let lines = Lines::of_columns(&written.dx, [n, inner]);
            Backward { first, ..read }.run::<R, _>(lines, written);
        });
    });
    Ok(())
}

impl<T: Stored> Backward<'_, T> {
    fn run<R: Number, O: Steps<T>>(self, lines: Lines, mut written: Written<'_, O, T>) {
        let mut sums = Scratch::filled(lines.count, R::ZERO);
        simd(
            #[inline(always)]
            || match lines.apart {
                // A constant, so that the loops become SIMD code.
                1 => self.steps(Lines { apart: 1, ..lines }, &mut written, &mut sums),
                _ => self.steps(lines, &mut written, &mut sums),
            },
        );
    }

    #[inline(always)]
    fn steps<R: Number, O: Steps<T>>(self, lines: Lines, written: &mut Written<'_, O, T>, sums: &mut [R]) {
        let Written { dx, d_decay, d_first } = written;
        let (sums, adds) = (&mut sums[..lines.count], self.adds);
        for t in (0..lines.steps).rev() {
            // Loops of their own, each of which becomes SIMD code. So far, a sum is that of the next step times its decay.
            let dy = lines.at(self.dy, t);
            let dx = &mut dx.at_mut(lines, t)[..dy.len()];
            for line in 0..lines.count {
                let at = line * lines.apart;
                sums[line] = dy[at].to::<R>().plus(sums[line]);
                put(&mut dx[at], sums[line], adds[0]);
            }
            if let (Some(d_decay), Some(y)) = (&mut *d_decay, self.y) {
                let d_decay = &mut d_decay.at_mut(lines, t)[..dy.len()];
                let before = match self.first {
                    _ if t > 0 => Some((lines.at(y, t - 1), lines.apart)),
                    first => first.map(|first| (first, 1)),
                };
                match before {
                    Some((before, apart)) => {
                        for line in 0..lines.count {
                            let product = before[line * apart].to::<R>().times(sums[line]);
                            put(&mut d_decay[line * lines.apart], product, adds[1]);
                        }
                    }
                    None => {
                        let to = d_decay.iter_mut().step_by(lines.apart);
                        to.for_each(|to| put(to, R::ZERO, adds[1]));
                    }
                }
            }
            let decay = lines.at(self.decay, t);
            for line in 0..lines.count {
                sums[line] = carried(sums[line], decay[line * lines.apart].to());
            }
        }
        if let Some(d_first) = d_first {
            d_first.iter_mut().zip(sums).for_each(|(to, sum)| put(to, *sum, adds[2]));
        }
    }
}
