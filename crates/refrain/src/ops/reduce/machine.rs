//! The machine of reductions on the CPU: `[outer, n, inner]` to `[outer, inner]`.
//!
//! What is combined in which order follows from the extents alone, so that results do not depend on
//! the number of threads.

use rayon::prelude::*;

use super::Extent;
use crate::ops::rows::{TASK, each_task};

/// Rows of a column that are reduced in one go, at least; the piece's state costs little beside them.
const FEWEST_ROWS: usize = 64;
/// And at most, which bounds the rounding error of a sum taken one after the other.
const MOST_ROWS: usize = 1024;
/// Columns that are reduced side by side.
const SEGMENT: usize = 256;

/// How elements are reduced. There are `K` operands of one shape.
pub(crate) trait Reducer<T, const K: usize>: Sync {
    /// What some elements come to.
    type State: Copy + Default + Send + Sync;

    /// Reduces a row, which starts at position `start` of the reduced axis.
    fn row(&self, x: [&[T]; K], start: usize) -> Self::State;

    /// Reduces `states.len()` columns of the rows that begin `stride` elements after each other; the
    /// first is at position `start` of the reduced axis.
    fn columns(&self, x: [&[T]; K], stride: usize, rows: usize, start: usize, states: &mut [Self::State]);

    /// Of two parts, the first of which comes before the second.
    fn merge(&self, a: Self::State, b: Self::State) -> Self::State;
}

/// Reduces and hands what each element of `y` comes to to `store`. `n` must not be 0.
pub(crate) fn reduce<T: Sync, U: Send, F: Reducer<T, K>, const K: usize>(
    x: [&[T]; K],
    extent: Extent,
    f: &F,
    y: &mut [U],
    store: impl Fn(&mut U, F::State) + Sync + Send,
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
    let mut states = vec![F::State::default(); y.len() * count];
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
fn pieces<T: Sync, U: Send, F: Reducer<T, K>, const K: usize>(
    x: [&[T]; K],
    extent: Extent,
    rows: usize,
    f: &F,
    y: &mut [U],
    store: impl Fn(&mut U, F::State) + Sync + Send,
) {
    let Extent { n, inner, .. } = extent;
    let count = n.div_ceil(rows);
    let task = (TASK / rows).max(if inner == 1 { 1 } else { SEGMENT });
    each_task(x[0].len(), y.par_chunks_mut(task).enumerate(), |(i, y)| {
        let mut states = [F::State::default(); SEGMENT];
        let mut at = 0;
        while at < y.len() {
            let (piece, column) = ((i * task + at) / inner, (i * task + at) % inner);
            let (slab, start) = (piece / count, piece % count * rows);
            let rows = rows.min(n - start);
            let first = (slab * n + start) * inner + column;
            if inner == 1 {
                store(&mut y[at], f.row(x.map(|x| &x[first..first + rows]), start));
                at += 1;
                continue;
            }
            let width = SEGMENT.min(inner - column).min(y.len() - at);
            let end = first + (rows - 1) * inner + width;
            let states = &mut states[..width];
            f.columns(x.map(|x| &x[first..end]), inner, rows, start, states);
            y[at..at + width].iter_mut().zip(states).for_each(|(y, s)| store(y, *s));
            at += width;
        }
    });
}
