//! How kernels on the CPU read and write the elements of a tile, whatever their strides.

use bytemuck::Pod;

use super::{LoopPlan, Rectangle};
use crate::device::cpu::numeric::{Number, Stored, convert, store};
use crate::device::cpu::simd::simd;

/// Fills `to` with neighbours in memory.
pub(super) fn read_run<T: Stored, N: Number>(data: &[T], offset: usize, to: &mut [N]) {
    let run = &data[offset..offset + to.len()];
    match N::same(run) {
        Some(same) => to.copy_from_slice(same),
        None => convert(run, to),
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
        |r, to| {
            read_rectangle(
                data,
                r,
                to,
                #[inline(always)]
                |v: T| v.to(),
            );
        },
    );
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

#[inline(always)]
pub(super) fn read_rectangle<T: Pod, N: Pod>(
    data: &[T],
    r: &Rectangle,
    to: &mut [N],
    f: impl Fn(T) -> N + Copy,
) {
    if r.stride > 1 && r.row_stride == 1 && r.rows > 1 {
        return read_transposed(data, r, to, f);
    }
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

/// Rows and columns of a block that is transposed at a time: some cache lines.
const BLOCK: usize = 16;

/// Reads a rectangle whose columns lie one after the other: by blocks, each read by columns and written by rows, so
/// that a cache line is used as a whole, once.
#[inline(always)]
fn read_transposed<T: Pod, N: Pod>(data: &[T], r: &Rectangle, to: &mut [N], f: impl Fn(T) -> N + Copy) {
    let mut block = [[N::zeroed(); BLOCK]; BLOCK];
    for row in (0..r.rows).step_by(BLOCK) {
        let rows = BLOCK.min(r.rows - row);
        for column in (0..r.len).step_by(BLOCK) {
            let columns = BLOCK.min(r.len - column);
            for (j, block) in block[..columns].iter_mut().enumerate() {
                let from = &data[r.offset + row + (column + j) * r.stride..][..rows];
                block.iter_mut().zip(from).for_each(|(to, &from)| *to = f(from));
            }
            for i in 0..rows {
                let to = &mut to[(row + i) * r.len + column..][..columns];
                to.iter_mut().zip(&block).for_each(|(to, block)| *to = block[i]);
            }
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
