//! Linear recurrences on the CPU: lines side by side, one step after the other.

use rayon::prelude::*;

use super::RecurrenceBackward;
use crate::device::HostArgs;
use crate::device::cpu::numeric::{Number, Stored, with_float};
use crate::device::cpu::parallel::{for_each, optional_pieces, worthwhile};
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::reduction::Extent;

/// Lines of neighbours that are computed side by side, so that a step need not wait for the one before it.
const LINES: usize = 8;

/// How lines lie in a piece of memory: so many, so far apart, of so many steps, so far apart.
#[derive(Clone, Copy)]
struct Lines {
    count: usize,
    apart: usize,
    steps: usize,
    step: usize,
}

impl Lines {
    /// The elements of all lines at a step, from the first to the last.
    #[inline(always)]
    fn at<T>(self, x: &[T], t: usize) -> &[T] {
        &x[t * self.step..][..(self.count - 1) * self.apart + 1]
    }

    #[inline(always)]
    fn at_mut<T>(self, x: &mut [T], t: usize) -> &mut [T] {
        &mut x[t * self.step..][..(self.count - 1) * self.apart + 1]
    }
}

/// The elements of a piece and those of what is before them, and where its lines lie.
fn cut(Extent { outer, n, inner }: Extent) -> (usize, usize, impl Fn(usize) -> Lines + Sync) {
    let of_slab = inner != 1;
    let (piece, lines) = if of_slab { (n * inner, inner) } else { (LINES * n, LINES) };
    let lies = move |i: usize| match of_slab {
        true => Lines { count: inner, apart: 1, steps: n, step: inner },
        false => Lines { count: LINES.min(outer - i * LINES), apart: n, steps: n, step: 1 },
    };
    (piece, lines, lies)
}

/// Calls `f` with the lines, where the distance of neighbours is a constant.
#[inline(always)]
fn with_constant(lines: Lines, mut f: impl FnMut(Lines)) {
    if lines.apart == 1 { f(Lines { apart: 1, ..lines }) } else { f(lines) }
}

#[inline(always)]
fn put<T: Stored, R: Number>(to: &mut T, value: R, add: bool) {
    *to = T::from_number(if add { to.to::<R>().plus(value) } else { value });
}

pub(super) fn forward(extent: Extent, first: bool, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => forward_of::<T, R>(extent, first, args))
}

fn forward_of<T: Stored, R: Number>(extent: Extent, first: bool, args: &HostArgs<'_>) -> Result<()> {
    let (x, decay, y) = (args.read::<T>(0)?, args.read::<T>(1)?, args.write::<T>(0)?);
    let first = if first { Some(args.read::<T>(2)?) } else { None };
    if y.is_empty() {
        return Ok(());
    }
    let (add, all) = (args.accumulate(0), 3 * y.len());
    let (piece, lines, lies) = cut(extent);
    for_each(worthwhile(all), y.par_chunks_mut(piece).enumerate(), |(i, y)| {
        let (x, decay) = (&x[i * piece..][..y.len()], &decay[i * piece..][..y.len()]);
        let lies = lies(i);
        let mut states = Scratch::filled(lies.count, R::ZERO);
        if let Some(first) = first {
            states.iter_mut().zip(&first[i * lines..]).for_each(|(state, first)| *state = first.to());
        }
        simd(
            #[inline(always)]
            || with_constant(lies, |lies| steps(lies, x, decay, y, &mut states, add)),
        );
    });
    Ok(())
}

#[inline(always)]
fn steps<T: Stored, R: Number>(lies: Lines, x: &[T], decay: &[T], y: &mut [T], states: &mut [R], add: bool) {
    for t in 0..lies.steps {
        let (x, decay, y) = (lies.at(x, t), lies.at(decay, t), lies.at_mut(y, t));
        let states = &mut states[..lies.count];
        for line in 0..lies.count {
            let at = line * lies.apart;
            states[line] = decay[at].to::<R>().times(states[line]).plus(x[at].to());
            put(&mut y[at], states[line], add);
        }
    }
}

pub(super) fn backward(op: &RecurrenceBackward, args: &HostArgs<'_>) -> Result<()> {
    with_float!(args, args.read_dtype(0), T, R => backward_of::<T, R>(op, args))
}

fn backward_of<T: Stored, R: Number>(op: &RecurrenceBackward, args: &HostArgs<'_>) -> Result<()> {
    let (decay, y, dy) = (args.read::<T>(0)?, args.read::<T>(1)?, args.read::<T>(2)?);
    let first = if op.first { Some(args.read::<T>(3)?) } else { None };
    let dx = args.write::<T>(0)?;
    let d_decay = if op.decay { Some(args.write::<T>(1)?) } else { None };
    let last = 1 + usize::from(op.decay);
    let d_first = if op.first { Some(args.write::<T>(last)?) } else { None };
    if dx.is_empty() {
        return Ok(());
    }
    let add = |there: bool, o: usize| there && args.accumulate(o);
    let adds = [add(true, 0), add(op.decay, 1), add(op.first, last)];
    let (piece, lines, lies) = cut(op.extent);
    let (all, tasks) = (5 * dx.len(), dx.len().div_ceil(piece));
    let items = dx.par_chunks_mut(piece).enumerate();
    let items = items.zip(optional_pieces(d_decay, tasks, piece)).zip(optional_pieces(d_first, tasks, lines));
    for_each(worthwhile(all), items, |(((i, dx), d_decay), d_first)| {
        let (lies, all) = (lies(i), i * piece..i * piece + dx.len());
        let first = first.map(|first| &first[i * lines..][..lies.count]);
        let read = Read { decay: &decay[all.clone()], y: &y[all.clone()], dy: &dy[all], first };
        let mut sums = Scratch::filled(lies.count, R::ZERO);
        let mut written = Written { dx, d_decay, d_first, adds };
        simd(
            #[inline(always)]
            || with_constant(lies, |lies| steps_back(lies, &read, &mut written, &mut sums)),
        );
    });
    Ok(())
}

struct Read<'a, T> {
    decay: &'a [T],
    y: &'a [T],
    dy: &'a [T],
    first: Option<&'a [T]>,
}

struct Written<'a, T> {
    dx: &'a mut [T],
    d_decay: Option<&'a mut [T]>,
    d_first: Option<&'a mut [T]>,
    /// Whether each of them is added to.
    adds: [bool; 3],
}

#[inline(always)]
fn steps_back<T: Stored, R: Number>(
    lies: Lines,
    read: &Read<'_, T>,
    written: &mut Written<'_, T>,
    sums: &mut [R],
) {
    let Written { dx, d_decay, d_first, adds } = written;
    let sums = &mut sums[..lies.count];
    for t in (0..lies.steps).rev() {
        // Loops of their own, each of which becomes SIMD code. So far, a sum is that of the next step times its decay.
        let (dy, dx) = (lies.at(read.dy, t), lies.at_mut(dx, t));
        for line in 0..lies.count {
            let at = line * lies.apart;
            sums[line] = dy[at].to::<R>().plus(sums[line]);
            put(&mut dx[at], sums[line], adds[0]);
        }
        if let Some(d_decay) = d_decay {
            let (d_decay, own) = (lies.at_mut(d_decay, t), lies.apart);
            let before =
                if t > 0 { Some((lies.at(read.y, t - 1), own)) } else { read.first.map(|first| (first, 1)) };
            match before {
                Some((before, apart)) => {
                    for line in 0..lies.count {
                        let product = before[line * apart].to::<R>().times(sums[line]);
                        put(&mut d_decay[line * own], product, adds[1]);
                    }
                }
                None => (0..lies.count).for_each(|line| put(&mut d_decay[line * own], R::ZERO, adds[1])),
            }
        }
        let decay = lies.at(read.decay, t);
        for line in 0..lies.count {
            sums[line] = decay[line * lies.apart].to::<R>().times(sums[line]);
        }
    }
    if let Some(d_first) = d_first {
        d_first.iter_mut().zip(sums).for_each(|(to, sum)| put(to, *sum, adds[2]));
    }
}
