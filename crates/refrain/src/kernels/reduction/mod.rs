//! Reductions on the CPU: `[outer, n, inner]` to `[outer, inner]`.
//!
//! The order of combinations depends only on the extents, so results do not depend on the number of threads.

pub(crate) mod cuda;

use bytemuck::Pod;
use rayon::prelude::*;

use crate::device::cpu::scratch::Scratch;
use crate::kernels::rows::{TASK, each_task};
use crate::tensor::Tensor;

/// The reduced axes merged into one: the operand is viewed as `[outer, n, inner]`, and `n` is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) outer: usize,
    pub(crate) n: usize,
    pub(crate) inner: usize,
}

impl Extent {
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
pub(crate) trait Reducer<T, S, const K: usize>: Sync {
    /// Reduces a row.
    fn row(&self, x: [&[T]; K], at: PartPosition) -> S;

    /// Reduces `states.len()` columns (at most [`SEGMENT`]) of `rows` rows; the rows start `stride` elements apart.
    fn columns(&self, x: [&[T]; K], stride: usize, rows: usize, at: PartPosition, states: &mut [S]);

    /// Merges two parts. The first one comes before the second one.
    fn merge(&self, a: S, b: S) -> S;
}

/// Reduces, and calls `store` with each element of `y` and its state. `n` must not be 0.
pub(crate) fn reduce<T: Sync, U: Send, S: State, F: Reducer<T, S, K>, const K: usize>(
    x: [&[T]; K],
    extent: Extent,
    f: &F,
    y: &mut [U],
    store: impl Fn(&mut U, S) + Sync + Send,
) {
    let Extent { n, inner, .. } = extent;
    let rows = match inner {
        1 => TASK,
        _ => (TASK / inner.max(1)).clamp(FEWEST_ROWS, MOST_ROWS),
    };
    if n <= rows {
        return pieces(x, extent, n, f, y, store);
    }
    // Pieces along n separately, then their states in order.
    let count = n.div_ceil(rows);
    let mut states = Scratch::<S>::new(y.len() * count);
    pieces(x, extent, rows, f, &mut states, |to, state| *to = state);
    for (y, states) in y.chunks_mut(inner.max(1)).zip(states.chunks(inner.max(1) * count)) {
        for (i, y) in y.iter_mut().enumerate() {
            let mut column = states.iter().skip(i).step_by(inner).copied();
            let first = column.next().unwrap_or_default();
            store(y, column.fold(first, |a, b| f.merge(a, b)));
        }
    }
}

/// Reduces pieces of `rows` rows: `y` is `[outer, pieces, inner]`.
fn pieces<T: Sync, U: Send, S: State, F: Reducer<T, S, K>, const K: usize>(
    x: [&[T]; K],
    extent: Extent,
    rows: usize,
    f: &F,
    y: &mut [U],
    store: impl Fn(&mut U, S) + Sync + Send,
) {
    let Extent { n, inner, .. } = extent;
    let count = n.div_ceil(rows);
    let task = (TASK / rows).max(if inner == 1 { 1 } else { SEGMENT });
    each_task(x[0].len(), y.par_chunks_mut(task).enumerate(), |(i, y)| {
        let mut states = [S::default(); SEGMENT];
        let mut at = 0;
        while at < y.len() {
            let (piece, column) = ((i * task + at) / inner, (i * task + at) % inner);
            let (slab, start) = (piece / count, piece % count * rows);
            let rows = rows.min(n - start);
            let place = PartPosition { start, result: slab * inner + column };
            let first = (slab * n + start) * inner + column;
            if inner == 1 {
                store(&mut y[at], f.row(x.map(|x| &x[first..first + rows]), place));
                at += 1;
                continue;
            }
            let width = SEGMENT.min(inner - column).min(y.len() - at);
            let end = first + (rows - 1) * inner + width;
            let states = &mut states[..width];
            f.columns(x.map(|x| &x[first..end]), inner, rows, place, states);
            y[at..at + width].iter_mut().zip(states).for_each(|(y, s)| store(y, *s));
            at += width;
        }
    });
}
