//! When kernels may use more than one thread.

use rayon::prelude::*;

/// Elements that are worth a task of their own.
const GRAIN: usize = 1 << 14;

/// Whether this thread belongs to a thread pool already. A kernel then stays on it: waiting for
/// other threads would let it pick up other work of the pool, which may want the locks that the
/// launch holds.
pub(crate) fn is_nested() -> bool {
    rayon::current_thread_index().is_some()
}

/// Calls `body(i, piece)` for every piece of `size` elements of `out` (the last may be shorter), side
/// by side where there is enough work for several threads.
pub(crate) fn pieces<T: Send>(out: &mut [T], size: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    if out.is_empty() || size == 0 {
        return;
    }
    let group = (GRAIN / size).max(1);
    let task = |(g, out): (usize, &mut [T])| {
        out.chunks_mut(size).enumerate().for_each(|(i, piece)| body(g * group + i, piece));
    };
    if out.len() <= GRAIN || is_nested() {
        out.chunks_mut(group * size).enumerate().for_each(task);
    } else {
        out.par_chunks_mut(group * size).enumerate().for_each(task);
    }
}
