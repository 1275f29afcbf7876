//! Reductions of an operand whose columns lie one after the other in memory. A part of it at a time is copied to rows, so that
//! the order of combinations is that of a row-major operand.

use rayon::prelude::*;

use super::{Extent, Reducer, State, Steps, each, reduce_by};
use crate::device::cpu::numeric::Stored;
use crate::device::cpu::scratch::Scratch;
use crate::kernels::elementwise::{Lines, LinesMut, transpose};
use crate::kernels::rows::each_task;
use crate::tensor::{Layout, Shape};

/// Elements of a part, at most: they stay in the L2 cache.
const PART: usize = 1 << 15;
/// Rows of a part, or columns, at least: a cache line, of which no element is read twice.
const LINE: usize = 16;

/// `[outer, n, inner]` with steps in memory. That of `outer` is 1 if `inner` is 1, else that of `n`.
#[derive(Clone, Copy)]
pub(crate) struct Transposed {
    extent: Extent,
    steps: [usize; 3],
}

impl Transposed {
    /// `None` for other layouts, and for columns so long that a part would not stay in the cache.
    pub(crate) fn of(extent: Extent, layout: &Layout) -> Option<Transposed> {
        let merged = layout.reshape(&Shape::from([extent.outer, extent.n, extent.inner]))?;
        let &[outer, n, inner] = merged.strides() else {
            return None;
        };
        let is_transposed = match extent.inner {
            1 => outer == 1 && n > 1,
            _ => n == 1 && inner > 1,
        };
        let fits = extent.n > 0 && extent.n <= PART / LINE;
        (is_transposed && fits).then_some(Transposed { extent, steps: [outer, n, inner] })
    }

    /// [`reduce`](super::reduce) of this operand.
    pub(crate) fn reduce<T: Stored, U: Send, S: State>(
        &self,
        x: &[T],
        f: &impl Reducer<T, S, 1>,
        y: &mut [U],
        store: impl Fn(&mut U, S) + Sync + Send,
    ) {
        let Extent { outer, n, inner } = self.extent;
        if y.is_empty() {
            return;
        }
        // Results of a part: some rows, or some columns of one matrix.
        let mut count = (PART / n / LINE * LINE).min(if inner == 1 { 4 * LINE } else { inner });
        // A part of one column would be reduced as a row.
        while inner > 1 && inner % count == 1 {
            count += 1;
        }
        let rows = f.rows_at_a_time(self.extent);
        let part = |first: usize, y: &mut [U]| {
            let len = y.len();
            let (offset, step) = match inner {
                1 => (first, self.steps[1]),
                _ => (first / inner * self.steps[0] + first % inner * self.steps[2], self.steps[2]),
            };
            let mut copy = Scratch::<T>::new(n * len);
            let from = Lines { data: &x[offset..], step };
            let (height, width) = if inner == 1 { (len, n) } else { (n, len) };
            transpose(from, LinesMut { data: &mut copy, step: width }, height, width);
            let extent = match inner {
                1 => Extent { outer: len, n, inner: 1 },
                _ => Extent { outer: 1, n, inner: len },
            };
            let steps = Steps { outer: n * extent.inner, n: extent.inner };
            reduce_by(rows, [&copy], extent, steps, f, y, &each(&store));
        };
        let matrix = if inner == 1 { outer } else { inner };
        for (i, y) in y.chunks_mut(matrix).enumerate() {
            each_task(matrix * n, y.par_chunks_mut(count).enumerate(), |(k, y)| {
                part(i * matrix + k * count, y)
            });
        }
    }
}
