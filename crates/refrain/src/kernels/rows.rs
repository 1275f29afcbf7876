//! Loops over rows on the CPU, for all operations along an axis.
//!
//! The order of additions depends only on the extents, so results do not depend on the number of threads.

use rayon::prelude::*;

use crate::device::cpu::numeric::{Number, Real, Stored, convert};
use crate::device::cpu::parallel;

/// This many elements are worth a task. With fewer, a kernel makes one task.
pub(crate) const TASK: usize = 1 << 14;
/// The maximum number of pieces of a sum over rows. Each piece has its own sums.
const MAX_PIECES: usize = 64;
/// Independent sums side by side, for SIMD registers and for accuracy.
pub(crate) const LANES: usize = 16;
/// Elements per lane that are summed at a time.
const RUN: usize = 64;

/// Rows of `width` elements per task.
pub(crate) fn rows_a_task(width: usize) -> usize {
    (TASK / width.max(1)).max(1)
}

/// Rows of `width` elements per piece of a sum over `rows` rows.
pub(crate) fn rows_a_piece(rows: usize, width: usize) -> usize {
    rows_a_task(width).max(rows.div_ceil(MAX_PIECES))
}

/// Runs tasks over `elements` elements in total. They run on all cores, or one after the other on this thread if
/// there are few elements or the thread may not split its work.
pub(crate) fn each_task<I: IndexedParallelIterator>(
    elements: usize,
    tasks: I,
    body: impl Fn(I::Item) + Sync,
) {
    parallel::for_each(elements > TASK, tasks, body);
}

/// The row in the arithmetic type, converted into `buf` if needed.
#[inline(always)]
pub(crate) fn load<'a, T: Stored, N: Number>(row: &'a [T], buf: &'a mut [N]) -> &'a [N] {
    if let Some(same) = N::same(row) {
        return same;
    }
    let buf = &mut buf[..row.len()];
    convert(row, buf);
    buf
}

/// `f` of each item. A loop of its own, because `array::map` is a call where it is not inlined.
#[inline(always)]
fn each<A: Copy, B: Copy, const K: usize>(x: [A; K], f: impl Fn(A) -> B) -> [B; K] {
    let mut y = [f(x[0]); K];
    let mut k = 1;
    while k < K {
        y[k] = f(x[k]);
        k += 1;
    }
    y
}

/// Element `i` of each slice.
#[inline(always)]
fn at<T: Copy, S: AsRef<[T]> + ?Sized, const K: usize>(x: &[&S; K], i: usize) -> [T; K] {
    each(
        *x,
        #[inline(always)]
        |x| x.as_ref()[i],
    )
}

/// The first `n` elements of each slice.
#[inline(always)]
fn first<'a, T, const K: usize>(x: [&'a [T]; K], n: usize) -> [&'a [T]; K] {
    each(
        x,
        #[inline(always)]
        |x: &'a [T]| &x[..n],
    )
}

/// The sum of `f` over slices of one length: short runs are summed in lanes, the sums of the runs in lanes, and the
/// lanes in halves.
#[inline(always)]
pub(crate) fn sum<T: Copy, N: Number, const K: usize>(x: [&[T]; K], f: impl Fn([T; K]) -> N) -> N {
    let n = x[0].len();
    let m = n / LANES;
    let x = first(x, n);
    let chunks = each(
        x,
        #[inline(always)]
        |x: &[T]| &x.as_chunks::<LANES>().0[..m],
    );
    let mut total = [N::ZERO; LANES];
    let mut start = 0;
    while start < m {
        let end = m.min(start + RUN);
        let mut lanes = [N::ZERO; LANES];
        for i in start..end {
            let rows = each(
                chunks,
                #[inline(always)]
                |x: &[[T; LANES]]| &x[i],
            );
            for l in 0..LANES {
                lanes[l] = lanes[l].plus(f(at(&rows, l)));
            }
        }
        let lanes = in_memory(lanes);
        for l in 0..LANES {
            total[l] = total[l].plus(lanes[l]);
        }
        start = end;
    }
    for (l, i) in (m * LANES..n).enumerate() {
        total[l] = total[l].plus(f(at(&x, i)));
    }
    halves(total, N::plus)
}

/// The product: numbers are multiplied in lanes, and the lanes in halves.
#[inline(always)]
pub(crate) fn product<T: Stored, N: Number>(x: &[T]) -> N {
    let mut lanes = [N::ONE; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for l in 0..LANES {
            lanes[l] = lanes[l].times(chunk[l].to());
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = lane.times(v.to());
    }
    halves(lanes, N::times)
}

/// Folds integers with a function for which order and repetition do not matter, so that the loop becomes SIMD code.
#[inline(always)]
pub(crate) fn fold<T: Copy, S: Copy>(x: &[T], first: S, of: impl Fn(T) -> S, f: impl Fn(S, S) -> S) -> S {
    let mut all = first;
    for &v in x {
        all = f(all, of(v));
    }
    all
}

/// Lanes that a loop has left. What combines them comes after a way through memory: otherwise the loop would be compiled for
/// registers of two lanes, which are combined first.
#[inline(always)]
fn in_memory<N, const L: usize>(lanes: [N; L]) -> [N; L] {
    std::hint::black_box(lanes)
}

/// Combines the lanes in halves.
#[inline(always)]
fn halves<N: Copy, const L: usize>(lanes: [N; L], f: impl Fn(N, N) -> N) -> N {
    let mut lanes = in_memory(lanes);
    let mut width = L / 2;
    while width > 0 {
        for l in 0..width {
            lanes[l] = f(lanes[l], lanes[l + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The largest element that is not NaN. Negative infinity if there is none.
#[inline(always)]
pub(crate) fn max<R: Real>(x: &[R]) -> R {
    let larger = |a: R, b: R| if b > a { b } else { a };
    let mut lanes = [R::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for l in 0..LANES {
            lanes[l] = larger(lanes[l], chunk[l]);
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, v);
    }
    halves(lanes, larger)
}

/// `y[i] = f(x[0][i], ...)`, or added to `y[i]`.
#[inline(always)]
pub(crate) fn map<T: Stored, N: Number, const K: usize>(
    y: &mut [T],
    x: [&[N]; K],
    accumulate: bool,
    f: impl Fn([N; K]) -> N,
) {
    let n = y.len();
    let x = first(x, n);
    // By index: beside an iterator over `y`, each access to `x` would be checked, and up to a whole step of the loop would not be
    // SIMD code.
    if accumulate {
        for i in 0..n {
            y[i] = T::from_number(y[i].to::<N>().plus(f(at(&x, i))));
        }
    } else {
        for i in 0..n {
            y[i] = T::from_number(f(at(&x, i)));
        }
    }
}

/// Adds rows to `sums`, elementwise, in order.
#[inline(always)]
pub(crate) fn add_rows<'a, N: Number>(sums: &mut [N], rows: impl Iterator<Item = &'a [N]>) {
    for row in rows {
        map(sums, [row], true, |[v]| v);
    }
}
