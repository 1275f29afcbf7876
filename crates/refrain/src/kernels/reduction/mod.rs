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
        Extent::of_dims(x.dims(), axis)
    }

    /// One axis of a shape.
    pub(crate) fn of_dims(dims: &[usize], axis: usize) -> Extent {
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
#[derive(Clone, Copy, Default)]
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
        [self.row(x[0], at[0]), self.row(x[1], at[1]), self.row(x[2], at[2]), self.row(x[3], at[3])]
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

/// How operands `[outer, n, inner]` are cut into `count` pieces of `rows` rows.
struct Pieces {
    extent: Extent,
    steps: Steps,
    rows: usize,
    count: usize,
}

/// What becomes one state.
#[derive(Clone, Copy, Default)]
struct Part {
    at: PartPosition,
    /// Its first element in memory.
    first: usize,
    rows: usize,
    column: usize,
}

impl Pieces {
    /// That of element `i` of `[outer, count, inner]`.
    fn part(&self, i: usize) -> Part {
        let Pieces { extent: Extent { n, inner, .. }, steps, rows, count } = *self;
        // Few divisions: they cost as much as the sum of a short row.
        let (piece, column) = if inner == 1 { (i, 0) } else { (i / inner, i % inner) };
        let (slab, start) = if count == 1 { (piece, 0) } else { (piece / count, piece % count * rows) };
        Part {
            at: PartPosition { start, result: slab * inner + column },
            first: slab * steps.outer + start * steps.n + column,
            rows: rows.min(n - start),
            column,
        }
    }
}

impl Part {
    /// So many of its elements.
    fn of<T, const K: usize>(self, mut x: [&[T]; K], len: usize) -> [&[T]; K] {
        for x in &mut x {
            *x = &x[self.first..][..len];
        }
        x
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
    let cut = Pieces { extent, steps, rows, count: n.div_ceil(rows) };
    let task = (TASK / rows).max(if inner == 1 { 4 } else { NARROW });
    each_task(extent.outer * n * inner, y.par_chunks_mut(task).enumerate(), |(i, y)| {
        let mut states = [S::default(); SEGMENT];
        let mut at = 0;
        while at < y.len() {
            if inner == 1 {
                let states = &mut states[..SEGMENT.min(y.len() - at)];
                for (k, states) in states.chunks_mut(4).enumerate() {
                    let mut parts = [Part::default(); 4];
                    for (j, part) in parts.iter_mut().enumerate() {
                        *part = cut.part(i * task + at + 4 * k + j);
                    }
                    match <&mut [S; 4]>::try_from(&mut *states) {
                        Ok(four) if parts.iter().all(|part| part.rows == parts[0].rows) => {
                            let [a, b, c, d] = &parts;
                            let rows = [a.of(x, a.rows), b.of(x, b.rows), c.of(x, c.rows), d.of(x, d.rows)];
                            *four = f.four_rows(rows, [a.at, b.at, c.at, d.at]);
                        }
                        _ => {
                            for (state, part) in states.iter_mut().zip(&parts) {
                                *state = f.row(part.of(x, part.rows), part.at);
                            }
                        }
                    }
                }
                store(&mut y[at..at + states.len()], states);
                at += states.len();
                continue;
            }
            let part = cut.part(i * task + at);
            let width = SEGMENT.min(inner - part.column).min(y.len() - at);
            let states = &mut states[..width];
            let columns = part.of(x, (part.rows - 1) * steps.n + width);
            f.columns(columns, steps.n, part.rows, part.at, states);
            store(&mut y[at..at + width], states);
            at += width;
        }
    });
}
