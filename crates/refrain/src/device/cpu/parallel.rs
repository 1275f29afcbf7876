//! The threads of kernels.
//!
//! Kernels have their own pool. A thread of that pool never waits for the lock of a storage, so a launch that holds
//! locks always finishes, whatever user threads wait for them. And a user's pool never starts one of its own tasks in
//! the middle of a launch.

use std::cell::Cell;
use std::sync::OnceLock;

use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::scratch;
use crate::error::{Error, Result};
use crate::sync::with_flag;

/// From this many elements, a separate task is worthwhile.
const GRAIN: usize = 1 << 14;

/// Launches that touch fewer bytes run on the calling thread: to hand them over and to wait takes 10 to 15 us. The second number is
/// for kernels that hardly compute.
const SMALL: [usize; 2] = [1 << 15, 3 << 20];

/// The pool: as many threads as rayon's global pool has (`RAYON_NUM_THREADS`, or what the program set). `None` if the
/// system gives no threads, or if shuttle runs them all on one; then kernels run on the calling thread.
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
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, and lets this thread compute on the CPU alone: no kernel, and no replay of a step, is given to the threads
/// of kernels. Values are the same, bit for bit.
///
/// Use it where many threads compute at the same time, each something small: to hand over and to wait takes longer than
/// it saves. Kernels of your own ([`custom`](crate::custom)) still run on the threads of kernels. It applies to the
/// calling thread until `f` returns or panics, and has no effect on other devices.
///
/// ```
/// use refrain::{Device, Tensor, on_one_thread};
///
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu())?;
/// assert_eq!(on_one_thread(|| x.exp())?.to_vec::<f32>()?, x.exp()?.to_vec::<f32>()?);
/// # Ok::<(), refrain::Error>(())
/// ```
pub fn on_one_thread<R>(f: impl FnOnce() -> R) -> R {
    with_flag(|value| IS_ALONE.replace(value), true, f)
}

/// Marks this new thread as one of the kernel threads.
pub(crate) fn mark(_index: usize) {
    IS_KERNEL_THREAD.set(true);
    scratch::reserve();
}

/// Whether this is one of the kernel threads. Only then may a kernel split its work.
pub(crate) fn allowed() -> bool {
    IS_KERNEL_THREAD.get()
}

/// Refuses work of the engine on a kernel thread. A kernel runs there, and the work could wait for a lock that its launch
/// holds.
pub(crate) fn refuse_engine(op: &'static str) -> Result<()> {
    if !allowed() {
        return Ok(());
    }
    let message = "a host kernel uses a tensor while it runs, which could wait forever; let the kernel use slices of its operands alone, and pass every tensor as an operand";
    Err(Error::Kernel { op, message: message.to_owned() })
}

/// Runs a kernel that touches `bytes` bytes, and only reads and writes them if it `streams`, with all threads if that is
/// worthwhile.
pub(super) fn run<R: Send>(bytes: usize, streams: bool, kernel: impl FnOnce() -> R + Send) -> R {
    if bytes < SMALL[usize::from(streams)] { kernel() } else { replay(kernel) }
}

/// Runs the kernels of a program, with all threads.
pub(super) fn replay<R: Send>(kernels: impl FnOnce() -> R + Send) -> R {
    match pool() {
        // A single thread would do no more than this one does at once.
        Some(pool) if !allowed() && !IS_ALONE.get() && pool.current_num_threads() > 1 => {
            install(pool, kernels)
        }
        _ => kernels(),
    }
}

/// Runs a kernel that may split its work by any means, on the kernel threads.
pub(super) fn inside<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    match pool() {
        Some(pool) if !allowed() => install(pool, f),
        _ => f(),
    }
}

fn install<R: Send>(pool: &ThreadPool, kernel: impl FnOnce() -> R + Send) -> R {
    if rayon::current_thread_index().is_none() {
        return pool.install(kernel);
    }
    // While it waits, a worker of another pool would run tasks of that pool, and these may want the locks
    // that this launch holds. So let a plain thread wait instead.
    std::thread::scope(|scope| {
        let done = scope.spawn(|| pool.install(kernel)).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Calls `body(i, piece)` for every piece of `size` elements of `out` (the last may be shorter), in parallel if there
/// is enough work for several threads.
pub(crate) fn pieces<T: Send>(out: &mut [T], size: usize, body: impl Fn(usize, &mut [T]) + Sync) {
    split(out, size, &body);
}

/// Takes a function pointer, so that rayon's part is compiled only once for each element type.
fn split<T: Send>(out: &mut [T], size: usize, body: &(dyn Fn(usize, &mut [T]) + Sync)) {
    if out.is_empty() || size == 0 {
        return;
    }
    let group = (GRAIN / size).max(1);
    let worthwhile = out.len() > GRAIN;
    for_each(worthwhile, out.par_chunks_mut(group * size).enumerate(), |(g, out): (usize, &mut [T])| {
        out.chunks_mut(size).enumerate().for_each(|(i, piece)| body(g * group + i, piece));
    });
}

/// Calls `body` with each item: on all kernel threads if that is worthwhile and this thread may split its work, otherwise one
/// after the other.
///
/// It does what `for_each` of rayon does, with less code: what splits the items knows `body` by a pointer, so that it is compiled
/// once for each type of items and not for each caller.
pub(crate) fn for_each<I: IndexedParallelIterator>(
    worthwhile: bool,
    items: I,
    body: impl Fn(I::Item) + Sync,
) {
    each(worthwhile, items, &body);
}

/// The body of [`for_each`], by a pointer.
type Body<'a, T> = &'a (dyn Fn(T) + Sync);

fn each<I: IndexedParallelIterator>(worthwhile: bool, items: I, body: Body<'_, I::Item>) {
    let len = items.len();
    let least = match worthwhile && allowed() {
        true => len.div_ceil(PIECES * rayon::current_num_threads()),
        false => len,
    };
    items.with_producer(Split { len, least, body });
}

/// Pieces of the work for each thread, so that one that is done early takes over from others.
const PIECES: usize = 8;

struct Split<'a, T> {
    len: usize,
    least: usize,
    body: Body<'a, T>,
}

impl<T> ProducerCallback<T> for Split<'_, T> {
    type Output = ();

    fn callback<P: Producer<Item = T>>(self, items: P) {
        halves(items, self.len, self.least, self.body);
    }
}

/// Splits the items in halves, down to `least` items.
fn halves<P: Producer>(items: P, len: usize, least: usize, body: Body<'_, P::Item>) {
    if len <= least {
        return items.into_iter().for_each(body);
    }
    let (left, right) = items.split_at(len / 2);
    join(|| halves(left, len / 2, least, body), || halves(right, len - len / 2, least, body));
}

/// Runs both, side by side if there are threads for it.
pub(crate) fn join(a: impl FnOnce() + Send, b: impl FnOnce() + Send) {
    /// Rayon's part, compiled once.
    fn both(a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
        rayon::join(a, b);
    }
    let (mut a, mut b) = (Some(a), Some(b));
    both(&mut || a.take().into_iter().for_each(|a| a()), &mut || b.take().into_iter().for_each(|b| b()));
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn one_thread_runs_its_kernels_and_replays_itself() {
        let me = thread::current().id();
        let launch = |streams| run(SMALL[0], streams, || thread::current().id());
        let here = || [launch(false), replay(|| thread::current().id())];
        let is_split = rayon::current_num_threads() > 1;
        let not_here = here().map(|thread| thread != me);
        assert_eq!(not_here, [is_split; 2]);
        assert_eq!(launch(true), me, "it hardly computes");
        on_one_thread(|| {
            assert_eq!(here(), [me; 2]);
            assert_ne!(inside(|| thread::current().id()), me);
            on_one_thread(|| ());
            assert_eq!(here(), [me; 2]);
        });
        assert!(std::panic::catch_unwind(|| on_one_thread(|| panic!("a test"))).is_err());
        assert_eq!(here().map(|thread| thread != me), not_here);
    }
}
