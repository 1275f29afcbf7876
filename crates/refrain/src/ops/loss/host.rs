//! Mean losses on the CPU, in one pass. Each piece has its own sum; the sums are added in order in f64.

use rayon::prelude::*;

use crate::device::HostArgs;
use crate::device::cpu::numeric::{Real, Stored, with_stored};
use crate::device::cpu::scratch::with_scratch;
use crate::error::Result;
use crate::kernels::elementwise::InOrder;
use crate::kernels::rows::{TASK, each_task};

/// Elements that are summed at a time.
pub(super) const BLOCK: usize = 1024;
/// Elements that are converted, or made contiguous, at a time.
const PART: usize = 4 * BLOCK;

/// The sum over predictions and targets, divided by their number. `add` adds that of some elements to a total; it is compiled for
/// the arithmetic type alone.
pub(super) fn mean_of<T: Stored, U: Stored, R: Real>(
    args: &HostArgs<'_>,
    add: &(dyn Fn(f64, &[R], &[R]) -> f64 + Sync),
) -> Result<()> {
    let x = InOrder::new(args.read_layout(0), args.read::<T>(0)?);
    let t = InOrder::new(args.read_layout(1), args.read::<U>(1)?);
    let n = args.read_shape(0).numel();
    let part = if x.is_transposed() || t.is_transposed() { 2 * PART } else { PART };
    let total = total_of(n, (0..n.div_ceil(TASK)).into_par_iter(), |task| {
        let elements = task * TASK..n.min((task + 1) * TASK);
        if let (Some(x), Some(t)) = (x.run(elements.clone()), t.run(elements.clone())) {
            return add(0.0, x, t);
        }
        with_scratch(2 * part, |buf: &mut [R]| {
            let (x_buf, t_buf) = buf.split_at_mut(part);
            elements.clone().step_by(part).fold(0.0, |total, start| {
                let some = start..elements.end.min(start + part);
                add(total, x.read(some.clone(), x_buf), t.read(some, t_buf))
            })
        })
    });
    put(args, total / n as f64)
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
