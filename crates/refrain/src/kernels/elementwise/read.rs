//! How kernels on the CPU read and write the elements of a tile, whatever their strides.

use std::any::TypeId;
use std::ops::Range;

use bytemuck::Pod;
use half::f16;

use super::transpose::{Lines, LinesMut, transpose};
use super::{LoopPlan, Rectangle};
use crate::device::cpu::numeric::{Number, Stored, convert, store};
use crate::device::cpu::simd::simd;
use crate::tensor::Layout;

/// Fills `to` with neighbours in memory.
pub(super) fn read_run<T: Stored, N: Number>(data: &[T], offset: usize, to: &mut [N]) {
    let run = &data[offset..offset + to.len()];
    match N::same(run) {
        Some(same) => to.copy_from_slice(same),
        None if N::CONVERTS => convert(run, to),
        None => {}
    }
}

/// Converts the elements from `start` on to the arithmetic type.
pub(super) fn gather<T: Stored, N: Number>(
    plan: &LoopPlan,
    operand: usize,
    data: &[T],
    start: usize,
    to: &mut [N],
) {
    read_tile(
        plan,
        (operand, start),
        to,
        #[inline(always)]
        |r, to| match N::same(data) {
            Some(same) => copy_rectangle(same, r, to),
            None if N::CONVERTS => convert_rectangle(data, r, to),
            None => {}
        },
    );
}

/// The elements of an operand in row-major order, some at a time.
pub(crate) struct InOrder<'a, T> {
    plan: LoopPlan,
    data: &'a [T],
}

impl<'a, T: Stored> InOrder<'a, T> {
    pub(crate) fn new(layout: &Layout, data: &'a [T]) -> InOrder<'a, T> {
        let row_major = Layout::contiguous(layout.shape().clone());
        InOrder { plan: LoopPlan::new(&[&row_major, layout]), data }
    }

    /// Whether neighbours in memory are neighbours along the second to last axis. Then more at a time are faster.
    pub(crate) fn is_transposed(&self) -> bool {
        self.plan.is_transposed(1)
    }

    /// Some elements where they lie, if they do so in order, and in the arithmetic type.
    pub(crate) fn run<N: Number>(&self, elements: Range<usize>) -> Option<&'a [N]> {
        if self.plan.is_dense(1) { N::same(&self.data[elements]) } else { None }
    }

    /// Some elements in the arithmetic type, in `buf` if they are not so in memory.
    pub(crate) fn read<'b, N: Number>(&self, elements: Range<usize>, buf: &'b mut [N]) -> &'b [N]
    where
        'a: 'b,
    {
        if let Some(run) = self.run(elements.clone()) {
            return run;
        }
        let buf = &mut buf[..elements.len()];
        gather(&self.plan, 1, self.data, elements.start, buf);
        buf
    }
}

/// Fills `to` with the elements of an operand from `start` on, by rectangles.
#[inline(always)]
pub(super) fn read_tile<N>(
    plan: &LoopPlan,
    (operand, start): (usize, usize),
    to: &mut [N],
    read: impl Fn(&Rectangle, &mut [N]),
) {
    simd(
        #[inline(always)]
        || {
            let mut at = 0;
            plan.rectangles(
                operand,
                start,
                to.len(),
                #[inline(always)]
                |r| {
                    let to = &mut to[at..at + r.rows * r.len];
                    at += to.len();
                    read(&r, to);
                },
            );
        },
    );
}

/// Elements of a row of f16 that are worth a conversion of their own, by instructions for slices.
const SLICE: usize = 16;

/// Converts the elements of a rectangle to the arithmetic type.
#[inline(always)]
pub(super) fn convert_rectangle<T: Stored, N: Number>(data: &[T], r: &Rectangle, to: &mut [N]) {
    if r.is_transposed() {
        return read_transposed(data, r, to);
    }
    if r.stride == 1 && r.len >= SLICE && is_f16::<T>() {
        for (row, to) in to.chunks_exact_mut(r.len).enumerate() {
            convert(&data[r.offset + row * r.row_stride..][..r.len], to);
        }
        return;
    }
    read_rectangle(
        data,
        r,
        to,
        #[inline(always)]
        |v: T| v.to(),
    );
}

fn is_f16<T: 'static>() -> bool {
    TypeId::of::<T>() == TypeId::of::<f16>()
}

#[inline(always)]
fn read_rectangle<T: Pod, N: Pod>(data: &[T], r: &Rectangle, to: &mut [N], f: impl Fn(T) -> N) {
    for (row, to) in to.chunks_exact_mut(r.len).enumerate() {
        let from = &data[r.offset + row * r.row_stride..];
        match r.stride {
            0 => to.fill(f(from[0])),
            1 => to.iter_mut().zip(from).for_each(|(to, &from)| *to = f(from)),
            stride => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, &from)| *to = f(from)),
        }
    }
}

/// Elements of a short row, at most.
const SHORT: usize = 64;

/// Copies a rectangle; short rows by groups of as many elements as divide them.
#[inline(always)]
pub(super) fn copy_rectangle<U: Pod>(data: &[U], r: &Rectangle, to: &mut [U]) {
    match r.len {
        _ if r.is_transposed() => {
            let from = Lines { data: &data[r.offset..], step: r.stride };
            return transpose(from, LinesMut { data: to, step: r.len }, r.rows, r.len);
        }
        _ if r.stride != 1 || r.len > SHORT => {}
        len if len.is_multiple_of(16) => return copy_short::<U, 16>(data, r, to),
        len if len.is_multiple_of(8) => return copy_short::<U, 8>(data, r, to),
        len if len.is_multiple_of(2) => return copy_short::<U, 2>(data, r, to),
        _ => {}
    }
    read_rectangle(
        data,
        r,
        to,
        #[inline(always)]
        |v| v,
    );
}

#[inline(always)]
fn copy_short<U: Pod, const W: usize>(data: &[U], r: &Rectangle, to: &mut [U]) {
    for (row, to) in to.chunks_exact_mut(r.len).enumerate() {
        let from = &data[r.offset + row * r.row_stride..][..r.len];
        to.as_chunks_mut::<W>().0.iter_mut().zip(from.as_chunks::<W>().0).for_each(|(to, from)| *to = *from);
    }
}

/// Columns that are transposed before they are converted.
const COLUMNS: usize = 64;
/// Rows, likewise.
const ROWS: usize = 16;

/// Converts a rectangle whose columns lie one after the other.
fn read_transposed<T: Stored, N: Number>(data: &[T], r: &Rectangle, to: &mut [N]) {
    let mut block = [T::zeroed(); ROWS * COLUMNS];
    for row in (0..r.rows).step_by(ROWS) {
        let rows = ROWS.min(r.rows - row);
        for column in (0..r.len).step_by(COLUMNS) {
            let columns = COLUMNS.min(r.len - column);
            let from = Lines { data: &data[r.offset + row + column * r.stride..], step: r.stride };
            transpose(from, LinesMut { data: &mut block, step: COLUMNS }, rows, columns);
            simd(
                #[inline(always)]
                || {
                    for (i, from) in block.chunks_exact(COLUMNS).take(rows).enumerate() {
                        let to = &mut to[(row + i) * r.len + column..][..columns];
                        match is_f16::<T>() {
                            true => convert(&from[..columns], to),
                            false => to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to()),
                        }
                    }
                },
            );
        }
    }
}

/// Writes `values` to the elements from `start` on of an output whose memory `to` begins at `base`.
pub(super) fn scatter<T: Stored, N: Number>(
    plan: &LoopPlan,
    values: &[N],
    start: usize,
    to: &mut [T],
    base: usize,
    accumulate: bool,
) {
    if plan.is_dense(0) {
        return store(values, &mut to[start - base..][..values.len()], accumulate);
    }
    let mut at = 0;
    plan.rectangles(0, start, values.len(), |r| {
        for row in 0..r.rows {
            let values = &values[at..at + r.len];
            at += r.len;
            let to = &mut to[r.offset + row * r.row_stride - base..];
            match r.stride {
                1 => store(values, &mut to[..r.len], accumulate),
                stride => {
                    for (to, &n) in to.iter_mut().step_by(stride).zip(values) {
                        *to = T::from_number(if accumulate { to.to::<N>().plus(n) } else { n });
                    }
                }
            }
        }
    });
}
