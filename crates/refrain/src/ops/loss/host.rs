//! Mean losses on the CPU, in one pass. Each piece has its own sum; the sums are added in order in f64.

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_stored};
use crate::device::cpu::scratch::with_scratch;
use crate::device::cpu::simd::simd;
use crate::error::Result;
use crate::kernels::rows::{TASK, each_task, load, sum};

/// Elements that are converted and summed at a time.
pub(super) const BLOCK: usize = 1024;

/// `sum(f(prediction, target)) / numel` of operands 0 and 1.
pub(super) fn mean_of<T: Stored, U: Stored, R: Real>(
    args: &HostArgs<'_>,
    f: impl Fn(R, R) -> R + Sync + Send,
) -> Result<()> {
    let (x, t) = (args.read::<T>(0)?, args.read::<U>(1)?);
    let total = total_of(x.len(), x.par_chunks(TASK).zip(t.par_chunks(TASK)), |(x, t)| {
        with_scratch(2 * BLOCK, |buf: &mut [R]| {
            let (x_buf, t_buf) = buf.split_at_mut(BLOCK);
            simd(
                #[inline(always)]
                || {
                    let mut total = 0.0;
                    for (x, t) in x.chunks(BLOCK).zip(t.chunks(BLOCK)) {
                        total += sum([load(x, x_buf), load(t, t_buf)], |[x, t]| f(x, t)).to_f64();
                    }
                    total
                },
            )
        })
    });
    put(args, total / x.len() as f64)
}

/// Writes the loss.
pub(super) fn put(args: &HostArgs<'_>, loss: f64) -> Result<()> {
    with_stored!(args.write_dtype(0), T => args.write::<T>(0)?.fill(T::from_number(loss)));
    Ok(())
}

/// The gradient of the loss, operand `i`.
pub(super) fn gradient<R: Real>(args: &HostArgs<'_>, i: usize) -> Result<R> {
    with_stored!(args.read_dtype(i), T => Ok(args.read::<T>(i)?.first().map_or(R::ZERO, |d| d.to())))
}

/// The sum of the results of `body` over the tasks, in order.
pub(super) fn total_of<I: IndexedParallelIterator>(
    elements: usize,
    tasks: I,
    body: impl Fn(I::Item) -> f64 + Send + Sync,
) -> f64 {
    with_scratch(tasks.len(), |sums: &mut [f64]| {
        each_task(elements, sums.par_iter_mut().zip(tasks), |(sum, task)| *sum = body(task));
        sums.iter().sum()
    })
}
