//! Reductions on the CPU: `[outer, n, inner]` to `[outer, inner]`.
//!
//! The order of combinations depends only on the extents, so results do not depend on the number of threads.

pub(crate) mod cuda;
mod transposed;

use bytemuck::Pod;
use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::Stored;
use crate::device::cpu::scratch::Scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::elementwise;
use crate::kernels::rows::{TASK, each_task};
use crate::tensor::{Layout, Shape, Tensor};

pub(crate) use transposed::Transposed;

/// The reduced axes merged into one: the operand is viewed as `[outer, n, inner]`, and `n` is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) outer: usize,
    pub(crate) n: usize,
    pub(crate) inner: usize,
}

impl Extent {
    /// All of so many elements.
    pub(crate) fn all(n: usize) -> Extent {
        Extent { outer: 1, n, inner: 1 }
    }

    /// One axis of a tensor.
    pub(crate) fn of_axis(x: &Tensor, axis: usize) -> Extent {
        let dims = x.dims();
        Extent {
            outer: dims[..axis].iter().product(),
            n: dims[axis],
            inner: dims[axis + 1..].iter().product(),
        }
    }
}

/// The minimum number of rows of a column that are reduced at a time. The state of the piece costs little beside
/// them.
const FEWEST_ROWS: usize = 64;
/// The maximum, which limits the rounding error of a sequential sum.
const MOST_ROWS: usize = 1024;
/// The maximum number of columns that are reduced side by side.
pub(crate) const SEGMENT: usize = 256;
/// The minimum, where there are several tasks.
const NARROW: usize = 128;

/// The state of a reduction over some elements.
pub(crate) trait State: Pod + Default + Send + Sync {}

impl<S: Pod + Default + Send + Sync> State for S {}

/// The position of a part of a reduction.
#[derive(Clone, Copy)]
pub(crate) struct PartPosition {
    /// The position of the first element along the reduced axis.
    pub(crate) start: usize,
    /// The position of the (first) result among the results.
    pub(crate) result: usize,
}

/// How elements of type `T`, of `K` operands of one shape, are reduced to states of type `S`.
pub(crate) trait Reducer<T, S: State, const K: usize>: Sync {
    /// Reduces a row.
    fn row(&self, x: [&[T]; K], at: PartPosition) -> S;

    /// Reduces four rows of one length, each as [`Reducer::row`] does, that are parts of neighbouring results. Side by side,
    /// this may be faster.
    fn four_rows(&self, x: [[&[T]; K]; 4], at: [PartPosition; 4]) -> [S; 4] {
        std::array::from_fn(|i| self.row(x[i], at[i]))
    }

    /// Reduces `states.len()` columns (at most [`SEGMENT`]) of `rows` rows; the rows start `stride` elements apart.
    fn columns(&self, x: [&[T]; K], stride: usize, rows: usize, at: PartPosition, states: &mut [S]);

    /// Merges two parts. The first one comes before the second one.
    fn merge(&self, a: S, b: S) -> S;

    /// How many rows are reduced at a time, as a part. The order of combinations follows from it.
    fn rows_at_a_time(&self, extent: Extent) -> usize {
        extent.rows_at_a_time()
    }

    /// Merges all parts of some results, `[parts, results]`, in order. The results are the first ones.
    fn merge_all(&self, states: &mut [S], results: usize) {
        let (merged, others) = states.split_at_mut(results);
        simd(
            #[inline(always)]
            || {
                for row in others.chunks_exact(results) {
                    merged.iter_mut().zip(row).for_each(|(a, &b)| *a = self.merge(*a, b));
                }
            },
        );
    }
}

/// Where the elements `[outer, n, inner]` lie in memory. The last stride is 1: that of `n` if `inner` is 1, else that of
/// `inner`.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    pub(crate) outer: usize,
    pub(crate) n: usize,
}

impl Extent {
    /// The steps where rows begin `step` elements apart.
    pub(crate) fn steps_of_rows(self, step: usize) -> Steps {
        match self.inner {
            1 => Steps { outer: step, n: 1 },
            _ => Steps { outer: self.n * step, n: step },
        }
    }

    /// The steps of contiguous memory.
    pub(crate) fn steps(self) -> Steps {
        Steps { outer: self.n * self.inner, n: self.inner }
    }

    /// The steps of a layout, if its last stride is 1.
    pub(crate) fn steps_in(self, layout: &Layout) -> Option<Steps> {
        let merged = layout.reshape(&Shape::from([self.outer, self.n, self.inner]))?;
        let &[outer, n, inner] = merged.strides() else {
            return None;
        };
        let last = if self.inner == 1 { (self.n, n) } else { (self.inner, inner) };
        matches!(last, (1, _) | (_, 1)).then_some(Steps { outer, n })
    }

    /// The same reduction of a transposed matrix as one of the matrix.
    pub(crate) fn turned(self, layout: &Layout) -> Option<(Extent, Steps)> {
        let Extent { outer, n, inner } = self;
        let merged = layout.reshape(&Shape::from([outer, n, inner]))?;
        match (self, merged.strides()) {
            (Extent { outer: 1, .. }, &[_, 1, step]) => {
                Some((Extent { outer: inner, n, inner: 1 }, Steps { outer: step, n: 1 }))
            }
            (Extent { inner: 1, .. }, &[1, step, _]) => {
                Some((Extent { outer: 1, n, inner: outer }, Steps { outer: 0, n: step }))
            }
            _ => None,
        }
    }

    /// How many rows of a column are reduced at a time, by reducers that take long to merge parts.
    pub(crate) fn most_rows_at_a_time(self) -> usize {
        if self.inner == 1 { TASK } else { MOST_ROWS }
    }

    /// How many rows of a column are reduced at a time, by most reducers.
    fn rows_at_a_time(self) -> usize {
        match self.inner {
            1 => TASK,
            inner => (TASK / inner.max(1)).clamp(FEWEST_ROWS, MOST_ROWS),
        }
    }

    /// Elements of a row: of `n` if `inner` is 1, else of `inner`.
    pub(crate) fn width(self) -> usize {
        if self.inner == 1 { self.n } else { self.inner }
    }

    /// How far apart rows begin in a layout, if each is contiguous and all are equally far apart and do not overlap.
    fn row_step(self, layout: &Layout) -> Option<usize> {
        let steps = self.steps_in(layout)?;
        let (step, is_even) = match self.inner {
            1 if self.outer == 1 => (self.n, true),
            1 => (steps.outer, true),
            _ if self.n == 1 => (steps.outer.max(self.inner), self.outer == 1 || steps.outer >= self.inner),
            _ => (steps.n, self.outer == 1 || steps.outer == self.n * steps.n),
        };
        (is_even && step >= self.width()).then_some(step)
    }
}

/// An operand as rows ([`Extent::width`]): where it lies, if its rows are equally far apart, otherwise a contiguous copy.
pub(crate) enum Rows<'a, T> {
    InPlace { x: &'a [T], step: usize },
    Copy { x: Scratch<T>, step: usize },
}

impl<'a, T: Stored> Rows<'a, T> {
    /// Operand `i` of a launch.
    pub(crate) fn of(args: &HostArgs<'a>, i: usize, extent: Extent) -> Result<Rows<'a, T>> {
        let (x, layout) = (args.read::<T>(i)?, args.read_layout(i));
        Ok(match extent.row_step(layout) {
            Some(step) => Rows::InPlace { x, step },
            None => Rows::Copy { x: elementwise::contiguous(layout, x), step: extent.width() },
        })
    }

    /// The memory, and how far apart rows begin.
    pub(crate) fn get(&self) -> (&[T], usize) {
        match self {
            Rows::InPlace { x, step } => (x, *step),
            Rows::Copy { x, step } => (x, *step),
        }
    }
}

/// Reduces, and calls `store` with each element of `y` and its state. `n` must not be 0.
pub(crate) fn reduce<T: Sync, U: Send, S: State, F: Reducer<T, S, K>, const K: usize>(
    x: [&[T]; K],
    extent: Extent,
    f: &F,
    y: &mut [U],
    store: impl Fn(&mut U, S) + Sync + Send,
) {
    reduce_in(x, extent, extent.steps(), f, y, store);
}

/// [`reduce`] of operands with gaps between rows.
pub(crate) fn reduce_in<T: Sync, U: Send, S: State, F: Reducer<T, S, K>, const K: usize>(
    x: [&[T]; K],
    extent: Extent,
    steps: Steps,
    f: &F,
    y: &mut [U],
    store: impl Fn(&mut U, S) + Sync + Send,
) {
    reduce_by(f.rows_at_a_time(extent), x, extent, steps, f, y, &each(store));
}

/// Stores states: one in each element. It is behind a pointer, so that what reduces is compiled once for each reducer.
type Store<'a, U, S> = &'a (dyn Fn(&mut [U], &[S]) + Sync);

/// A [`Store`] by a function of one element.
fn each<U, S: State>(store: impl Fn(&mut U, S)) -> impl Fn(&mut [U], &[S]) {
    move |y, states| y.iter_mut().zip(states).for_each(|(y, &state)| store(y, state))
}

/// [`reduce_in`] with so many rows at a time.
#[inline(never)]
fn reduce_by<T: Sync, U: Send, S: State, F: Reducer<T, S, K>, const K: usize>(
    rows: usize,
    x: [&[T]; K],
    extent: Extent,
    steps: Steps,
    f: &F,
    y: &mut [U],
    store: Store<'_, U, S>,
) {
    let Extent { n, inner, .. } = extent;
    if n <= rows {
        return pieces(x, (extent, steps), n, f, y, store);
    }
    // Pieces along n separately, then their states in order.
    let count = n.div_ceil(rows);
    let mut states = Scratch::<S>::new(y.len() * count);
    pieces(x, (extent, steps), rows, f, &mut states, &|to, states| to.copy_from_slice(states));
    for (y, states) in y.chunks_mut(inner.max(1)).zip(states.chunks_mut(inner.max(1) * count)) {
        f.merge_all(states, y.len());
        store(y, &states[..y.len()]);
    }
}

/// Reduces pieces of `rows` rows: `y` is `[outer, pieces, inner]`.
#[inline(never)]
fn pieces<T: Sync, U: Send, S: State, F: Reducer<T, S, K>, const K: usize>(
    x: [&[T]; K],
    (extent, steps): (Extent, Steps),
    rows: usize,
    f: &F,
    y: &mut [U],
    store: Store<'_, U, S>,
) {
    let Extent { n, inner, .. } = extent;
    let count = n.div_ceil(rows);
    let task = (TASK / rows).max(if inner == 1 { 4 } else { NARROW });
    each_task(extent.outer * n * inner, y.par_chunks_mut(task).enumerate(), |(i, y)| {
        let mut states = [S::default(); SEGMENT];
        // Few divisions: they cost as much as the sum of a short row.
        let place_of = |at: usize| {
            let (piece, column) = match inner {
                1 => (i * task + at, 0),
                _ => ((i * task + at) / inner, (i * task + at) % inner),
            };
            let (slab, start) = match count {
                1 => (piece, 0),
                _ => (piece / count, piece % count * rows),
            };
            let place = PartPosition { start, result: slab * inner + column };
            (place, slab * steps.outer + start * steps.n + column, rows.min(n - start), column)
        };
        let row = |(_, first, rows, _): (_, usize, usize, _)| x.map(|x| &x[first..first + rows]);
        let mut at = 0;
        while at < y.len() {
            if inner == 1 {
                let states = &mut states[..SEGMENT.min(y.len() - at)];
                for (k, states) in states.chunks_mut(4).enumerate() {
                    let places: [_; 4] = std::array::from_fn(|i| place_of(at + 4 * k + i));
                    match <&mut [S; 4]>::try_from(&mut *states) {
                        Ok(four) if places.iter().all(|place| place.2 == places[0].2) => {
                            *four = f.four_rows(places.map(row), places.map(|place| place.0));
                        }
                        _ => {
                            let each = states.iter_mut().zip(places);
                            each.for_each(|(state, place)| *state = f.row(row(place), place.0));
                        }
                    }
                }
                store(&mut y[at..at + states.len()], states);
                at += states.len();
                continue;
            }
            let (place, first, rows, column) = place_of(at);
            let width = SEGMENT.min(inner - column).min(y.len() - at);
            let end = first + (rows - 1) * steps.n + width;
            let states = &mut states[..width];
            f.columns(x.map(|x| &x[first..end]), steps.n, rows, place, states);
            store(&mut y[at..at + width], states);
            at += width;
        }
    });
}
