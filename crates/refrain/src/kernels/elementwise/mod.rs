//! Elementwise kernels: one loop over all layouts and dtypes for each kind of device. An operation supplies its
//! arithmetic.

pub(crate) mod cuda;
mod host;

use smallvec::SmallVec;

pub(crate) use host::{FloatTile, NumberTile, float, int, number};

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

    pub(crate) fn is_dense(&self, operand: usize) -> bool {
        self.shape.len() == 1 && (self.strides[operand][0] == 1 || self.shape[0] == 1)
    }

    /// Calls `run(offset, stride, len)` for the runs along the last axis that cover the elements `start..start + len`
    /// of an operand.
    pub(crate) fn runs(
        &self,
        operand: usize,
        start: usize,
        len: usize,
        mut run: impl FnMut(usize, usize, usize),
    ) {
        let strides = &self.strides[operand];
        let last = self.shape.len() - 1;
        let inner = self.shape[last];
        let mut index = Numbers::zeros(last + 1);
        let mut rest = start;
        for i in (0..=last).rev() {
            index[i] = rest % self.shape[i];
            rest /= self.shape[i];
        }
        let mut offset: usize = index.iter().zip(&**strides).map(|(i, s)| i * s).sum();
        let mut left = len;
        while left > 0 {
            let n = left.min(inner - index[last]);
            run(offset, strides[last], n);
            left -= n;
            if left == 0 {
                break;
            }
            offset -= index[last] * strides[last];
            index[last] = 0;
            for i in (0..last).rev() {
                index[i] += 1;
                offset += strides[i];
                if index[i] < self.shape[i] {
                    break;
                }
                offset -= index[i] * strides[i];
                index[i] = 0;
            }
        }
    }
}
