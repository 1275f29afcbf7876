//! Elementwise kernels: one loop over all layouts and dtypes for each kind of device. An operation supplies its
//! arithmetic.

pub(crate) mod chain;
pub(crate) mod cuda;
mod host;
mod moves;
mod operands;
mod read;
mod runs;
mod transpose;

use smallvec::SmallVec;

pub(crate) use host::{
    FloatRows, FloatTile, NumberRows, NumberTile, OneNumber, TruthRows, TruthTile, bytes, copy, float, int,
    number, truth,
};
pub(crate) use moves::{bits, contiguous, fill};
pub(crate) use read::InOrder;
pub(crate) use runs::{Runs, RunsMut, are_bytes, map_bytes};
pub(crate) use transpose::{Lines, LinesMut, transpose};

use super::numbers::Numbers;
use crate::tensor::Layout;

/// The maximum number of operands.
const MAX_INPUTS: usize = 5;

/// One list for each operand: the output, then each input.
type Each = SmallVec<[Numbers; MAX_INPUTS + 1]>;

/// All operands over one shape. The dimensions are ordered by the strides of the output, largest first, and merged if
/// all operands allow it.
pub(crate) struct LoopPlan {
    pub(crate) shape: Numbers,
    pub(crate) strides: Each,
}

impl LoopPlan {
    pub(crate) fn new(layouts: &[&Layout]) -> LoopPlan {
        let rank = layouts[0].rank();
        let mut order = Numbers::collect(rank, (0..rank).filter(|&i| layouts[0].shape()[i] != 1));
        order.sort_unstable_by_key(|&i| (std::cmp::Reverse(layouts[0].strides()[i]), i));
        let mut shape = Numbers::with_room(rank.max(1));
        let mut strides: Each = layouts.iter().map(|_| Numbers::with_room(rank.max(1))).collect();
        for &i in &*order {
            let d = layouts[0].shape()[i];
            let merges = !shape.is_empty()
                && layouts.iter().zip(&strides).all(|(l, s)| s.last() == Some(&(l.strides()[i] * d)));
            match (merges, shape.last_mut()) {
                (true, Some(last)) => *last *= d,
                _ => shape.push(d),
            }
            for (l, s) in layouts.iter().zip(&mut strides) {
                match s.last_mut() {
                    Some(last) if merges => *last = l.strides()[i],
                    _ => s.push(l.strides()[i]),
                }
            }
        }
        if shape.is_empty() {
            shape.push(1);
            strides.iter_mut().for_each(|s| s.push(1));
        }
        LoopPlan { shape, strides }
    }

    pub(crate) fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements of an operand lie one after the other.
    pub(crate) fn is_dense(&self, operand: usize) -> bool {
        let strides = &*self.strides[operand];
        let mut next = 1;
        self.shape.iter().zip(strides).rev().all(|(&d, &stride)| {
            let follows = stride == next || d == 1;
            next *= d;
            follows
        })
    }

    /// Whether neighbours in memory are neighbours along the second to last axis: a transposed matrix.
    fn is_transposed(&self, operand: usize) -> bool {
        let strides = &*self.strides[operand];
        strides.len() > 1 && strides[strides.len() - 1] > 1 && strides[strides.len() - 2] == 1
    }

    /// Whether every row over the last axis has at least `shortest` elements and is, for the output, contiguous, for each
    /// input contiguous or one element.
    fn has_rows(&self, shortest: usize) -> bool {
        let last = self.shape.len() - 1;
        self.shape[last] >= shortest
            && self.strides[0][last] == 1
            && self.strides.iter().all(|strides| strides[last] <= 1)
    }

    /// The offset of an element in each of the first operands.
    fn offsets<const K: usize>(&self, element: usize) -> [usize; K] {
        let mut offsets = [0; K];
        let mut rest = element;
        for (i, &d) in self.shape.iter().enumerate().rev() {
            let at = rest % d;
            rest /= d;
            offsets.iter_mut().zip(&self.strides).for_each(|(offset, strides)| *offset += at * strides[i]);
        }
        offsets
    }

    /// The strides of the first operands along the last axis.
    fn inner_strides<const K: usize>(&self) -> [usize; K] {
        std::array::from_fn(|operand| self.strides[operand].last().copied().unwrap_or(1))
    }

    /// Calls `visit` with the rectangles over the last two axes that cover the elements `start..start + len` of an
    /// operand, in order.
    #[inline(always)]
    fn rectangles(&self, operand: usize, start: usize, len: usize, mut visit: impl FnMut(Rectangle)) {
        let (shape, strides) = (&*self.shape, &*self.strides[operand]);
        let last = shape.len() - 1;
        let mut index = Numbers::zeros(last + 1);
        let index = &mut *index;
        let mut rest = start;
        for i in (0..=last).rev() {
            index[i] = rest % shape[i];
            rest /= shape[i];
        }
        let mut offset: usize = index.iter().zip(strides).map(|(i, s)| i * s).sum();
        let (inner, stride) = (shape[last], strides[last]);
        let (row_stride, most_rows) = if last > 0 { (strides[last - 1], shape[last - 1]) } else { (0, 1) };
        let mut left = len;
        loop {
            let column = index[last];
            let (rows, len) = if column > 0 || left < inner || last == 0 {
                (1, left.min(inner - column))
            } else {
                ((left / inner).min(most_rows - index[last - 1]), inner)
            };
            visit(Rectangle { offset, row_stride, rows, stride, len });
            left -= rows * len;
            if left == 0 {
                return;
            }
            // The rows are complete: on to the next.
            offset -= column * stride;
            index[last] = 0;
            let mut by = rows;
            for i in (0..last).rev() {
                index[i] += by;
                offset += by * strides[i];
                if index[i] < shape[i] {
                    break;
                }
                offset -= index[i] * strides[i];
                index[i] = 0;
                by = 1;
            }
        }
    }
}

/// Elements of an operand: rows of `len` elements, by their offsets in its memory.
struct Rectangle {
    offset: usize,
    row_stride: usize,
    rows: usize,
    stride: usize,
    len: usize,
}

impl Rectangle {
    /// Whether its columns lie one after the other in memory.
    fn is_transposed(&self) -> bool {
        self.stride > 1 && self.row_stride == 1 && self.rows > 1
    }
}
