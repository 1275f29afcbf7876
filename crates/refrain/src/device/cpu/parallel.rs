//! When kernels may use more than one thread.

/// Whether this thread belongs to a thread pool already. A kernel then stays on it: waiting for
/// other threads would let it pick up other work of the pool, which may want the locks that the
/// launch holds.
pub(crate) fn is_nested() -> bool {
    rayon::current_thread_index().is_some()
}
