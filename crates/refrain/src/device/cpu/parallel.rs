//! Kernels on several threads.
//!
//! The thread that launches a kernel runs it, and shares loops of it with a [`Team`]. A thread of the team never waits for the
//! lock of a storage, so a launch that holds locks always finishes, whatever user threads wait for them.
//!
//! Kernels of users have a pool of `rayon`, because they may use it; so have sorts of long lines. So a user's pool never starts one
//! of its own tasks in the middle of a launch.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use rayon::iter::Either;
use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::rectangle::RectangleMut;
use super::scratch;
use super::team::{Alone, Team};
use crate::error::{Error, Result};
use crate::sync::with_flag;

/// Elements of a loop that are worth an item of their own: of a short one fewer, so that all threads get some.
pub(crate) fn grain(elements: usize) -> usize {
    (elements / 16).clamp(1 << 12, 1 << 14)
}

/// Whether to share a loop over elements is worthwhile.
pub(crate) fn worthwhile(elements: usize) -> bool {
    elements > 1 << 13
}

/// Launches that touch fewer bytes run on the calling thread alone: to share them takes half a microsecond, and more if threads must
/// wake up. The second number is for kernels that hardly compute.
const SMALL: [usize; 2] = [1 << 15, 1 << 17];

/// The team, with as many threads as rayon's global pool has (`RAYON_NUM_THREADS`, or what the program set). `None` if shuttle
/// runs all threads on one; then kernels run on the calling thread.
fn team() -> Option<&'static Team> {
    if cfg!(shuttle) {
        return None;
    }
    static TEAM: OnceLock<&Team> = OnceLock::new();
    Some(TEAM.get_or_init(|| Team::new(global_threads(), begin)))
}

/// The threads of rayon's global pool. A worker of another pool would say how many that one has.
fn global_threads() -> usize {
    if rayon::current_thread_index().is_none() {
        return rayon::current_num_threads();
    }
    let elsewhere = std::thread::Builder::new().spawn(rayon::current_num_threads);
    elsewhere.ok().and_then(|thread| thread.join().ok()).unwrap_or(1)
}

/// The pool of users' kernels, with as many threads. `None` if the system gives no threads, or with shuttle.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let team = team()?;
    POOL.get_or_init(|| {
        ThreadPoolBuilder::new()
            .num_threads(team.threads())
            .thread_name(|i| format!("refrain-custom-{i}"))
            .start_handler(|_| {
                IS_OF_POOL.set(true);
                begin(team);
            })
            .build()
            .ok()
    })
    .as_ref()
}

thread_local! {
    /// The team that shares the loops of this thread's kernel.
    static TEAM: Cell<Option<&'static Team>> = const { Cell::new(None) };
    static IS_OF_POOL: Cell<bool> = const { Cell::new(false) };
    static IS_ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Begins a thread that runs nothing but kernels.
fn begin(team: &'static Team) {
    TEAM.set(Some(team));
    scratch::reserve();
}

/// Runs `f`, and lets this thread compute on the CPU alone: it shares no kernel, and no replay of a step, with other threads.
/// Values are the same, bit for bit.
///
/// Use it where many threads compute at the same time, each something small: no core has time to help another one. Kernels of
/// your own ([`custom`](crate::custom)) still run on threads of the engine. It applies to the calling thread until `f` returns
/// or panics, and has no effect on other devices.
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

/// Whether this thread runs a kernel that may split its work.
pub(crate) fn allowed() -> bool {
    TEAM.get().is_some()
}

/// The threads that share a kernel of this thread.
pub(crate) fn threads() -> usize {
    TEAM.get().map_or(1, Team::threads)
}

/// Refuses work of the engine on a thread that runs a kernel. The work could wait for a lock that the kernel's launch holds.
pub(crate) fn refuse_engine(op: &'static str) -> Result<()> {
    if !allowed() {
        return Ok(());
    }
    let message = "a host kernel uses a tensor while it runs, which could wait forever; let the kernel use slices of its operands alone, and pass every tensor as an operand";
    Err(Error::Kernel { op, message: message.to_owned() })
}

/// Runs a kernel that touches `bytes` bytes, and only reads and writes them if it `streams`, with all threads if that is
/// worthwhile.
pub(super) fn run<R>(bytes: usize, streams: bool, kernel: impl FnOnce() -> R) -> R {
    if bytes < SMALL[usize::from(streams)] { kernel() } else { replay(kernel) }
}

/// Runs the kernels of a program, with all threads.
pub(super) fn replay<R>(kernels: impl FnOnce() -> R) -> R {
    match team() {
        Some(team) if !allowed() && !IS_ALONE.get() && team.threads() > 1 => with_team(team, kernels),
        _ => kernels(),
    }
}

/// Shares the kernels that `f` runs with a team.
fn with_team<R>(team: &'static Team, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<&'static Team>);
    impl Drop for Restore {
        fn drop(&mut self) {
            TEAM.set(self.0);
        }
    }
    let _restore = Restore(TEAM.replace(Some(team)));
    f()
}

/// Runs a kernel that may split its work by any means of `rayon`, on threads that run nothing but kernels.
pub(crate) fn inside<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    match pool() {
        Some(pool) if !IS_OF_POOL.get() => install(pool, f),
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
    let all = out.len();
    split(out, size, all, &body);
}

/// The same where pieces read more than they write: `all` elements together, at least as many as `out` has.
pub(crate) fn pieces_that_read<T: Send>(
    out: &mut [T],
    size: usize,
    all: usize,
    body: impl Fn(usize, &mut [T]) + Sync,
) {
    split(out, size, all, &body);
}

/// Takes a function pointer, so that what splits is compiled only once for each element type.
fn split<T: Send>(out: &mut [T], size: usize, all: usize, body: &(dyn Fn(usize, &mut [T]) + Sync)) {
    if out.is_empty() || size == 0 {
        return;
    }
    let of_piece = size * (all / out.len()).max(1);
    let (group, worthwhile) = ((grain(all) / of_piece).max(1), worthwhile(all));
    for_each(worthwhile, out.par_chunks_mut(group * size).enumerate(), |(g, out): (usize, &mut [T])| {
        out.chunks_mut(size).enumerate().for_each(|(i, piece)| body(g * group + i, piece));
    });
}

/// Calls `body` with each item: on all threads if that is worthwhile and this thread may split its work, otherwise one after
/// the other.
///
/// It does what `for_each` of rayon does, with less code: what splits the items knows `body` by a pointer, so that it is compiled
/// once for each type of items and not for each caller.
pub(crate) fn for_each<I: IndexedParallelIterator>(
    worthwhile: bool,
    items: I,
    body: impl Fn(I::Item) + Sync,
) {
    let len = items.len();
    items.with_producer(Each { worthwhile, len, body: &body });
}

/// What can be divided by columns, and its parts given to several threads.
pub(crate) trait ByColumns: Send + Sized {
    /// What belongs to the first columns, and to the others.
    fn split_at(self, first: usize) -> (Self, Self);
}

impl<T: Send> ByColumns for RectangleMut<'_, T> {
    fn split_at(self, first: usize) -> (Self, Self) {
        RectangleMut::split_at(self, first)
    }
}

/// The fewest columns of a part: some cache lines of a row.
const STRIP: usize = 64;

/// Calls `body` with parts of the work of so many columns of `rows` elements, beside so many `others` like it: on as many threads as that
/// leaves, if that is worthwhile and this thread may split its work, otherwise with all of it.
pub(crate) fn by_columns<W: ByColumns>(
    others: usize,
    [rows, columns]: [usize; 2],
    work: W,
    body: impl Fn(W) + Sync,
) {
    /// The work, and the columns of a strip.
    struct Strips<W> {
        work: W,
        width: usize,
    }
    let count = (threads() / (others + 1)).min(columns / STRIP);
    if count < 2 || !worthwhile(rows * columns) {
        return body(work);
    }
    let width = (columns / (2 * count)).next_multiple_of(STRIP);
    let split = |Strips { work, width }: Strips<W>, strips: usize| {
        let (first, rest) = work.split_at(strips * width);
        (Strips { work: first, width }, Strips { work: rest, width })
    };
    share(true, columns.div_ceil(width), Strips { work, width }, split, &|strips| body(strips.work));
}

/// Pieces of `each` elements of what may be missing, for as many tasks; `None` for each if it is.
pub(crate) fn optional_pieces<T: Send>(
    x: Option<&mut [T]>,
    tasks: usize,
    each: usize,
) -> impl IndexedParallelIterator<Item = Option<&mut [T]>> {
    match x {
        Some(x) => Either::Left(x.par_chunks_mut(each).map(Some)),
        None => Either::Right((0..tasks).into_par_iter().map(|_| None)),
    }
}

struct Each<'a, T> {
    worthwhile: bool,
    len: usize,
    body: &'a (dyn Fn(T) + Sync),
}

impl<T> ProducerCallback<T> for Each<'_, T> {
    type Output = ();

    fn callback<P: Producer<Item = T>>(self, items: P) {
        let run = |items: P| items.into_iter().for_each(self.body);
        share(self.worthwhile, self.len, items, P::split_at, &run);
    }
}

/// The most parts that work is divided into. Further threads of a team have no part of their own.
const MOST_PARTS: usize = 32;

/// Pieces of a part. A thread that is done with its own part takes pieces of others.
const PIECES: usize = 8;

/// The part of a thread: what is left of its work.
struct Part<W> {
    /// Items. It is changed with the work, and read without it to see that nothing is left.
    items: AtomicUsize,
    work: Mutex<Option<W>>,
}

/// Calls `run` with parts that make up the work of `items` items: on all threads if that is worthwhile and this thread may split
/// its work, otherwise with all of it.
///
/// Part `w` of `n` begins at item `w * items / n` at each launch, and thread `w` begins there. So in a chain of launches, what a
/// thread reads is mostly still in the cache of its core.
pub(crate) fn share<W: Send>(
    worthwhile: bool,
    items: usize,
    work: W,
    split: Split<W>,
    run: &(dyn Fn(W) + Sync),
) {
    let count = threads().min(MOST_PARTS).min(items);
    let Some(team) = TEAM.get().filter(|_| worthwhile && count > 1) else {
        return run(work);
    };
    let mut rest = Some(work);
    let mut parts = [const { None::<Alone<Part<W>>> }; MOST_PARTS];
    for (w, part) in parts[..count].iter_mut().enumerate() {
        let len = (w + 1) * items / count - w * items / count;
        let own = match rest.take() {
            Some(work) if w + 1 < count => {
                let (own, after) = split(work, len);
                rest = Some(after);
                Some(own)
            }
            last => last,
        };
        *part = Some(Alone(Part { items: AtomicUsize::new(len), work: Mutex::new(own) }));
    }
    let (parts, size) = (&parts[..count], (items / (count * PIECES)).max(1));
    team.lead(team.threads().min(items) - 1, &|thread| {
        let mut has_worked = false;
        // A thread without a part begins with the end of another one.
        if let Some(Some(part)) = parts.get(thread) {
            while let Some(piece) = part.0.first(size, split) {
                run(piece);
                has_worked = true;
            }
        }
        for other in 0..count {
            let Some(part) = &parts[(thread + other) % count] else { continue };
            while let Some(piece) = part.0.last(size, split) {
                run(piece);
                has_worked = true;
            }
        }
        has_worked
    });
}

/// Splits work in two after so many items.
type Split<W> = fn(W, usize) -> (W, W);

impl<W> Part<W> {
    /// Takes the first items, so many at most.
    fn first(&self, items: usize, split: Split<W>) -> Option<W> {
        self.take(|work, left| match left > items {
            true => {
                let (piece, rest) = split(work, items);
                (piece, Some(rest), left - items)
            }
            false => (work, None, 0),
        })
    }

    /// Takes the last items, so many at most.
    fn last(&self, items: usize, split: Split<W>) -> Option<W> {
        self.take(|work, left| match left > items {
            true => {
                let (rest, piece) = split(work, left - items);
                (piece, Some(rest), left - items)
            }
            false => (work, None, 0),
        })
    }

    /// Takes what `f` takes of the work and its items, which returns the rest, too.
    fn take(&self, f: impl FnOnce(W, usize) -> (W, Option<W>, usize)) -> Option<W> {
        if self.items.load(Relaxed) == 0 {
            return None;
        }
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        let (piece, rest, items) = f(work.take()?, self.items.load(Relaxed));
        *work = rest;
        self.items.store(items, Relaxed);
        Some(piece)
    }
}

/// What a test needs to compare kernels on different numbers of threads.
#[cfg(test)]
pub(crate) fn with_threads<R>(threads: usize, f: impl FnOnce() -> R) -> R {
    with_team(Team::new(threads, begin), f)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Runs a loop over `0..items` on all threads.
    fn for_all(items: usize, body: impl Fn(usize) + Sync) {
        for_each(true, (0..items).into_par_iter(), body);
    }

    #[test]
    fn one_thread_runs_its_kernels_and_replays_alone() {
        let launch = |streams| run(SMALL[0], streams, allowed);
        let shares = || [launch(false), replay(allowed)];
        let is_split = rayon::current_num_threads() > 1;
        assert_eq!(shares(), [is_split; 2]);
        assert!(!launch(true), "it hardly computes");
        assert!(!allowed(), "there is no kernel");
        on_one_thread(|| {
            assert_eq!(shares(), [false; 2]);
            let me = thread::current().id();
            assert_ne!(inside(|| thread::current().id()), me);
            on_one_thread(|| ());
            assert_eq!(shares(), [false; 2]);
        });
        assert!(std::panic::catch_unwind(|| on_one_thread(|| panic!("a test"))).is_err());
        assert_eq!(shares(), [is_split; 2]);
    }

    #[test]
    fn every_item_runs_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 8, 40] {
            with_threads(threads, || {
                for items in [0, 1, 2, 3, 7, 8, 31, 64, 1000] {
                    let runs: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                    for_all(items, |i| _ = runs[i].fetch_add(1, Relaxed));
                    let all = runs.iter().all(|runs| runs.load(Relaxed) == 1);
                    assert!(all, "{items} items on {threads} threads: {runs:?}");
                }
            });
        }
    }

    #[test]
    fn threads_without_a_part_of_their_own_take_items_of_others() {
        let all = Barrier::new(MOST_PARTS + 8);
        with_threads(MOST_PARTS + 8, || for_all(MOST_PARTS + 8, |_| _ = all.wait()));
    }

    #[test]
    fn every_element_of_the_columns_is_of_one_part() {
        for (threads, others, [rows, columns]) in [
            (1, 0, [200, 300]),
            (2, 0, [100, 128]),
            (3, 0, [90, 131]),
            (8, 1, [40, 1000]),
            (5, 9, [100, 700]),
            (4, 0, [3, 64]),
        ] {
            let mut matrix = vec![0usize; rows * columns];
            let parts = Mutex::new(0);
            with_threads(threads, || {
                by_columns(others, [rows, columns], RectangleMut::all(&mut matrix, columns), |mut part| {
                    let own = part.columns();
                    for r in 0..rows {
                        let row = part.row(r);
                        assert_eq!(row.len(), own.len());
                        row.iter_mut().zip(own.clone()).for_each(|(v, c)| *v += r * columns + c + 1);
                    }
                    *parts.lock().unwrap() += 1;
                });
            });
            assert!(
                matrix.iter().enumerate().all(|(i, v)| *v == i + 1),
                "{rows} x {columns} on {threads} threads"
            );
            let shares = threads / (others + 1) > 1 && columns / STRIP > 1;
            assert_eq!(parts.into_inner().unwrap() > 1, shares, "{rows} x {columns} on {threads} threads");
        }
    }

    #[test]
    fn a_thread_has_the_same_part_at_each_launch() {
        with_threads(3, || {
            let threads_of_items = || {
                let (all, ids) = (Barrier::new(3), Mutex::new([None; 3]));
                // Each thread takes one item, because none ends before all have begun.
                for_all(3, |i| {
                    all.wait();
                    ids.lock().unwrap()[i] = Some(thread::current().id());
                });
                ids.into_inner().unwrap()
            };
            let ids = threads_of_items();
            assert_eq!(ids[0], Some(thread::current().id()));
            for _ in 0..20 {
                assert_eq!(threads_of_items(), ids);
            }
            // By now, those that help sleep.
            thread::sleep(Duration::from_millis(50));
            assert_eq!(threads_of_items(), ids);
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_works_afterwards() {
        with_threads(2, || {
            for panics in [0, 1, 0, 1] {
                let both = Barrier::new(2);
                let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    for_all(2, |i| {
                        both.wait();
                        assert_ne!(i, panics, "a test");
                    });
                }));
                let panic = panic.unwrap_err();
                assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains("a test")));
            }
            let both = Barrier::new(2);
            for_all(2, |_| _ = both.wait());
        });
    }

    #[test]
    fn loops_of_many_callers_and_loops_in_loops_end_side_by_side() {
        const CALLERS: usize = 12;
        let team = Team::new(2, begin);
        let (all, sum) = (Barrier::new(CALLERS), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| {
                    with_team(team, || {
                        for_all(4, |i| {
                            // All loops are under way at this point.
                            if i == 0 {
                                all.wait();
                            }
                            for_all(5, |j| _ = sum.fetch_add(10 * i + j, Relaxed));
                        });
                    });
                });
            }
        });
        assert_eq!(sum.into_inner(), CALLERS * (10 * (1 + 2 + 3) * 5 + 10 * 4));
    }

    #[test]
    fn a_thread_of_the_team_shares_its_part() {
        with_threads(3, || {
            let [outer, inner] = [2, 2].map(Barrier::new);
            for_all(2, |i| {
                outer.wait();
                // The third thread has nothing to do, and takes an item of this loop.
                if i == 1 {
                    for_all(2, |_| _ = inner.wait());
                }
            });
        });
    }
}
