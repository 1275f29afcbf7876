//! The machine of reductions on the CPU: `[outer, n, inner]` to `[outer, inner]`.
//!
//! What is combined in which order follows from the extents alone, so that results do not depend on
//! the number of threads.

pub(crate) mod cuda;

use bytemuck::Pod;
use rayon::prelude::*;

use crate::device::cpu::scratch::Scratch;
use crate::kernels::rows::{TASK, each_task};
use crate::tensor::Tensor;

/// The reduced axes as one: the operand is seen as `[outer, n, inner]` and `n` goes away.
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

/// Rows of a column that are reduced in one go, at least; the piece's state costs little beside them.
const FEWEST_ROWS: usize = 64;
/// And at most, which bounds the rounding error of a sum taken one after the other.
const MOST_ROWS: usize = 1024;
/// Columns that are reduced side by side, at most.
pub(crate) const SEGMENT: usize = 256;

/// What some elements come to.
pub(crate) trait State: Pod + Default + Send + Sync {}

impl<S: Pod + Default + Send + Sync> State for S {}

/// Where a part of a reduction lies.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The first element's position along the reduced axis.
    pub(crate) start: usize,
    /// The (first) result's position among the results.
    pub(crate) result: usize,
}

/// How elements of type `T`, of `K` operands of one shape, are reduced to states of type `S`.
pub(crate) trait Reducer<T, S, const K: usize>: Sync {
    /// Reduces a row.
    fn row(&self, x: [&[T]; K], at: Place) -> S;

    /// Reduces `states.len()` columns, [`SEGMENT`] at most, of `rows` rows that begin `stride` elements
    /// after each other.
    fn columns(&self, x: [&[T]; K], stride: usize, rows: usize, at: Place, states: &mut [S]);

    /// Of two parts, the first of which comes before the second.
    fn merge(&self, a: S, b: S) -> S;
}

/// Reduces and hands what each element of `y` comes to to `store`. `n` must not be 0.
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
    // Pieces along n by themselves, then what they come to in order.
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
            let place = Place { start, result: slab * inner + column };
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
