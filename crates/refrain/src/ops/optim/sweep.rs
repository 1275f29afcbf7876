//! One pass over flat buffers on the CPU, segment by segment.

use crate::device::HostArgs;
use crate::device::cpu::parallel;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

use super::SegmentTable;

/// Elements of an item of the work that threads share.
const TASK: usize = 1 << 14;

/// How to update the elements of a segment.
#[derive(Clone, Copy)]
pub(super) struct SegmentSettings {
    pub(super) decay_factor: f64,
    pub(super) rate_factor: f64,
    pub(super) trainable: bool,
}

/// The segment table, as kernels read it.
pub(super) struct SegmentView<'a> {
    pub(super) ranges: &'a [i64],
    pub(super) settings: &'a [f64],
    /// Whether this step is skipped: as if nothing were trainable.
    pub(super) skips: bool,
}

/// Checks that the table covers only elements of the buffers.
pub(super) fn check_table(op: &'static str, table: &SegmentTable, buffer: &Tensor) -> Result<()> {
    if table.end() > buffer.numel() {
        return Err(Error::invalid(
            op,
            format!(
                "the segment table reaches to element {}, but the buffers have {} elements; make the table for these buffers",
                table.end(),
                buffer.numel()
            ),
        ));
    }
    Ok(())
}

impl<'a> SegmentView<'a> {
    /// Reads the table from operands `ranges` and `ranges + 1`, for a step with this gradient scale.
    pub(super) fn read(args: &HostArgs<'a>, ranges: usize, scale: f64) -> Result<SegmentView<'a>> {
        let skips = scale == f64::NEG_INFINITY;
        Ok(SegmentView { ranges: args.read(ranges)?, settings: args.read(ranges + 1)?, skips })
    }

    fn len(&self) -> usize {
        self.settings.len() / 3
    }

    fn offset(&self, i: usize) -> usize {
        self.ranges[2 * i] as usize
    }

    fn end(&self, i: usize) -> usize {
        self.offset(i) + self.ranges[2 * i + 1] as usize
    }

    /// The first segment that ends after element `at`.
    fn first_after(&self, at: usize) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.end(middle) > at { high = middle } else { low = middle + 1 }
        }
        low
    }

    fn settings(&self, i: usize) -> SegmentSettings {
        let s = &self.settings[3 * i..];
        SegmentSettings { decay_factor: s[0], rate_factor: s[1], trainable: s[2] != 0.0 && !self.skips }
    }
}

/// What an optimiser does with a range of its buffers. It is behind a pointer, so that what divides them is compiled once for each
/// number of buffers.
pub(super) type Update<'a, T, const N: usize> = &'a (dyn Fn([&mut [T]; N], SegmentSettings) + Sync);

/// Calls `update` with the same range of every buffer, for ranges that are in one segment each.
pub(super) fn sweep<T: Send, const N: usize>(
    buffers: [&mut [T]; N],
    table: &SegmentView<'_>,
    update: Update<'_, T, N>,
) {
    let items = buffers[0].len().div_ceil(TASK);
    parallel::share(items > 1, items, (0, buffers), tasks, &|part| piece(part, table, update));
}

/// A part of the buffers, with the index of its first element.
type PartOf<'a, T, const N: usize> = (usize, [&'a mut [T]; N]);

/// Splits a part after so many tasks.
fn tasks<T, const N: usize>(
    (first, buffers): PartOf<'_, T, N>,
    tasks: usize,
) -> (PartOf<'_, T, N>, PartOf<'_, T, N>) {
    let (left, right) = split(buffers, tasks * TASK);
    ((first, left), (first + tasks * TASK, right))
}

/// A [`sweep`] of a part.
fn piece<T, const N: usize>(
    (first, buffers): PartOf<'_, T, N>,
    table: &SegmentView<'_>,
    update: Update<'_, T, N>,
) {
    let end_of_piece = first + buffers[0].len();
    let (mut rest, mut at) = (buffers, first);
    for i in table.first_after(first)..table.len() {
        let (start, end) = (table.offset(i).max(at), table.end(i).min(end_of_piece));
        if start >= end_of_piece {
            break;
        }
        let (run, tail) = split(split(rest, start - at).1, end - start);
        update(run, table.settings(i));
        (rest, at) = (tail, end);
    }
}

fn split<T, const N: usize>(buffers: [&mut [T]; N], at: usize) -> ([&mut [T]; N], [&mut [T]; N]) {
    let mut right: [&mut [T]; N] = std::array::from_fn(|_| Default::default());
    let mut i = 0;
    let left = buffers.map(|buffer| {
        let (l, r) = buffer.split_at_mut(at);
        right[i] = r;
        i += 1;
        l
    });
    (left, right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::ops::optim::Segment;

    #[test]
    fn one_thread_makes_the_same_runs_as_many() {
        // Gaps before, between and after segments. All of them cross borders of tasks.
        const LONG: usize = 3 * TASK + 77;
        let third = LONG / 3;
        let segments = [
            Segment { rate_factor: 0.25, ..Segment::new(3, third) },
            Segment { trainable: false, ..Segment::new(third + 10, third - 20) },
            Segment::new(2 * third, 0),
            Segment { decay_factor: 0.0, ..Segment::new(2 * third + 5, third - 9) },
        ];
        let table = SegmentTable::new(&segments, &Device::cpu()).unwrap();
        let ranges = table.ranges().to_vec::<i64>().unwrap();
        let settings = table.settings().to_vec::<f64>().unwrap();
        let table = SegmentView { ranges: &ranges, settings: &settings, skips: false };
        let mark = |[x]: [&mut [f64]; 1], s: SegmentSettings| x.fill(1.0 + s.rate_factor + s.decay_factor);
        let (mut many, mut one) = (vec![0.0; LONG], vec![0.0; LONG]);
        parallel::with_threads(3, || sweep([&mut many], &table, &mark));
        sweep([&mut one], &table, &mark);
        for (i, (a, b)) in many.into_iter().zip(one).enumerate() {
            let segment = segments.iter().find(|s| (s.offset..s.offset + s.length).contains(&i));
            let expected = segment.map_or(0.0, |s| 1.0 + s.rate_factor + s.decay_factor);
            assert!(a == expected && b == expected, "element {i}: {a}, {b}, not {expected}");
        }
    }
}
