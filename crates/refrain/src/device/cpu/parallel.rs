//! The threads that kernels run on.
//!
//! Kernels have a pool of their own. A thread of that pool never waits for a lock of a storage, so a
//! launch that holds locks always comes to its end, whatever threads of the user wait for them; and a
//! user's pool never has one of its tasks picked up in the middle of a launch.

use std::cell::Cell;
use std::sync::OnceLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::scratch;

/// Elements that are worth a task of their own.
const GRAIN: usize = 1 << 14;

/// Launches that touch fewer bytes stay on the calling thread.
const SMALL: usize = 1 << 15;

/// The pool: as many threads as rayon's global pool has (`RAYON_NUM_THREADS`, or what the program set).
/// `None` if the system gives no threads, or shuttle runs them all on one; kernels then run on the calling thread.
fn pool() -> Option<&'static ThreadPool> {
    if cfg!(shuttle) {
        return None;
    }
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    POOL.get_or_init(|| {
        ThreadPoolBuilder::new()
            .num_threads(rayon::current_num_threads())
            .thread_name(|i| format!("refrain-cpu-{i}"))
            .start_handler(mark)
            .build()
            .ok()
    })
    .as_ref()
}

thread_local! {
    static IS_KERNEL_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Makes this thread, which has just started, one of the kernels' own.
pub(crate) fn mark(_index: usize) {
    IS_KERNEL_THREAD.set(true);
    scratch::reserve();
}

/// Whether this thread is one of the kernels' own: only then may a kernel split its work.
pub(crate) fn allowed() -> bool {
    IS_KERNEL_THREAD.get()
}

/// Runs a kernel that touches `bytes` bytes where it may use all threads.
pub(super) fn run<R: Send>(bytes: usize, kernel: impl FnOnce() -> R + Send) -> R {
    match pool() {
        Some(pool) if bytes >= SMALL && !allowed() => {
            if rayon::current_thread_index().is_none() {
                return pool.install(kernel);
            }
            // A worker of another pool would run its pool's tasks while it waits, and these may want
            // the locks that this launch holds: let a plain thread wait instead.
            std::thread::scope(|scope| {
                let done = scope.spawn(|| pool.install(kernel)).join();
                done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        }
        _ => kernel(),
    }
}

/// Runs a part of a kernel that always splits its work on the kernels' own threads.
pub(crate) fn inside<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    if allowed() { f() } else { run(usize::MAX, f) }
}

/// Calls `body(i, piece)` for every piece of `size` elements of `out` (the last may be shorter), side
/// by side where there is enough work for several threads.
pub(crate) fn pieces<T: Send>(out: &mut [T], size: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    split(out, size, &body);
}

/// Behind a pointer, so that rayon's part is compiled once for each element type.
fn split<T: Send>(out: &mut [T], size: usize, body: &(dyn Fn(usize, &mut [T]) + Sync)) {
    if out.is_empty() || size == 0 {
        return;
    }
    let group = (GRAIN / size).max(1);
    let task = |(g, out): (usize, &mut [T])| {
        out.chunks_mut(size).enumerate().for_each(|(i, piece)| body(g * group + i, piece));
    };
    if out.len() <= GRAIN || !allowed() {
        out.chunks_mut(group * size).enumerate().for_each(task);
    } else {
        out.par_chunks_mut(group * size).enumerate().for_each(task);
    }
}
