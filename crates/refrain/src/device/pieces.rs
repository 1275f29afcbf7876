//! Copies from a source that gives its bytes in pieces. Several threads fill pieces at the same time.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::error::Result;

/// Bytes per piece: a multiple of every dtype's size.
pub(crate) const PIECE: usize = 4 << 20;

/// A thread is worth its start from this many pieces on.
const PIECES_PER_THREAD: usize = 4;
/// So many threads read memory, and look at it, as fast as a bus to a GPU takes it.
const MOST_THREADS: usize = 16;

/// Fills a piece with the bytes from a position on.
pub(crate) type Fill<'a> = dyn Fn(usize, &mut [u8]) -> Result<()> + Sync + 'a;

/// How many threads should fill the pieces of so many bytes.
pub(in crate::device) fn threads(bytes: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    (bytes / (PIECE * PIECES_PER_THREAD)).clamp(1, cores.min(MOST_THREADS))
}

/// Cuts bytes into pieces and hands them out to threads. `begin` makes what a thread needs for its work; `copy` gets
/// one piece after the other. The first error ends the work of all threads.
pub(in crate::device) fn hand_out<T>(
    bytes: usize,
    threads: usize,
    begin: impl Fn() -> Result<T> + Sync,
    copy: impl Fn(&mut T, Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = begin().inspect_err(|_| next.store(bytes, Ordering::Relaxed))?;
        loop {
            let at = next.fetch_add(PIECE, Ordering::Relaxed);
            if at >= bytes {
                return Ok(());
            }
            if let Err(e) = copy(&mut own, at..bytes.min(at + PIECE)) {
                next.store(bytes, Ordering::Relaxed);
                return Err(e);
            }
        }
    };
    thread::scope(|scope| {
        // If the system has no more threads, those that there are do the work.
        let others: Vec<_> = (1..threads)
            .map_while(|_| thread::Builder::new().name("refrain-copy".into()).spawn_scoped(scope, work).ok())
            .collect();
        let own = work();
        others.into_iter().fold(own, |done, other| {
            let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
            done.and(other)
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::error::Error;

    #[test]
    fn each_piece_is_handed_out_once_and_an_error_ends_the_work() {
        for (bytes, threads) in [(0, 1), (1, 1), (PIECE, 3), (5 * PIECE + 7, 3)] {
            let seen = Mutex::new(Vec::new());
            let copy = |_: &mut (), range: Range<usize>| {
                seen.lock().unwrap().push(range);
                Ok(())
            };
            hand_out(bytes, threads, || Ok(()), copy).unwrap();
            let mut seen = seen.into_inner().unwrap();
            seen.sort_by_key(|range| range.start);
            assert_eq!(seen.len(), bytes.div_ceil(PIECE));
            assert_eq!(seen.iter().map(Range::len).sum::<usize>(), bytes);
        }
        let copied = AtomicUsize::new(0);
        let copy = |_: &mut (), _: Range<usize>| {
            copied.fetch_add(1, Ordering::Relaxed);
            Err(Error::invalid("test", "stop"))
        };
        let error = hand_out(100 * PIECE, 3, || Ok(()), copy).unwrap_err();
        assert!(error.to_string().contains("stop"), "{error}");
        assert!(copied.into_inner() <= 3);
    }
}
